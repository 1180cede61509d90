"""An IMDSPolicy enforces: what it changes, in which order, and what stops it."""

import asyncio
import itertools
from typing import Any

import pytest

from testbed.admin import Admin, Json, path
from testbed.steer import make_not_ready, make_ready
from testing.customresource import condition, stands
from testing.imds import GOOD, MODIFY, SLOW, Fleet, Policy
from testing.operator import OperatorProcess
from testing.rollouts import until

from .conftest import TIME_SCALE

HOP = "httpPutResponseHopLimit"
RAISE = {HOP: 2}
NO_CANARY = {"instances": 0}
OPEN: dict[str, Any] = {"allowLoosening": ["HopLimit"], "allowTightening": ["Tokens"], "canary": NO_CANARY}
ENFORCE: dict[str, Any] = {"mode": "Enforce", "safety": OPEN}


def ids(made: list[tuple[str, str]]) -> list[str]:
    return [instance for _, instance in made]


def reasons(found: Json) -> set[str]:
    return {entry["reason"] for entry in found["status"].get("exceptions", [])}


def permit(fleet: Fleet) -> None:
    """The dry run that comes before the first change is answered well, whatever befalls those after it."""
    fleet.control.fault("refuse", operation=MODIFY, count=1, code="DryRunOperation", status=412)


async def events_of(admin: Admin, policy: Policy, *wanted: str) -> None:
    def told(events: list[Json]) -> bool:
        return set(wanted) <= {e["reason"] for e in events if e["involvedObject"]["name"] == policy.name}

    await admin.wait_for_all(path("events", "default"), told, 30)


async def test_what_differs_is_changed_once_and_seen_applied(fleet: Fleet, operator: OperatorProcess) -> None:
    made = await fleet.add(5, options=SLOW)
    await fleet.add(2)
    policy = await fleet.create(**ENFORCE)
    await policy.summary(nodes=7, compliant=7)
    await policy.condition("Ready", "True", "Enforced")
    await policy.condition("Enforcing", "True", "Enforced")
    sent = fleet.modified()
    assert sorted(call["InstanceId"] for call in sent) == sorted(ids(made))
    expected = {"HttpPutResponseHopLimit": 2, "HttpTokens": "required"}
    assert all({**call, "InstanceId": ""} == {**expected, "InstanceId": ""} for call in sent)
    assert all(one["inForce"]["HttpPutResponseHopLimit"] == 2 for one in fleet.control.instances())
    (asked,) = fleet.modified(dry=True)  # whether it may, for this generation: what is sent first
    assert asked == {**sent[0], "DryRun": True} or asked["InstanceId"] in ids(made)
    assert expected.items() <= asked.items()
    assert operator.metric("caretaker_imds_nodes", name=policy.name, state="compliant") == 7


async def test_options_that_are_not_named_stay_as_they_are(fleet: Fleet) -> None:
    odd = {
        **SLOW,
        "HttpProtocolIpv6": "enabled",
        "InstanceMetadataTags": "disabled",
        "HttpPutResponseHopLimit": 5,
    }
    await fleet.add(1, options=odd)
    policy = await fleet.create(options={"httpTokens": "required"}, **ENFORCE)
    await policy.condition("Ready", "True", "Enforced")
    (one,) = fleet.control.instances()
    assert one["inForce"] == {**odd, "HttpTokens": "required"}
    assert [set(call) for call in fleet.modified()] == [{"InstanceId", "HttpTokens"}]


async def test_an_endpoint_that_is_closed_by_hand_while_changes_are_made_stays_closed(fleet: Fleet) -> None:
    made = ids(await fleet.add(4, options=SLOW))
    policy = await fleet.create(mode="Enforce", safety={**OPEN, "maxChangesPerMinute": 6})
    await until(lambda: len(fleet.modified()) >= 1)
    first = {call["InstanceId"] for call in fleet.modified()}
    later = [one for one in made if one not in first]
    fleet.control.put_options(later[-1:], HttpEndpoint="disabled")
    await policy.condition("Ready", "True", "Enforced")
    assert fleet.control.instance(later[-1])["inForce"] == {
        **fleet.control.instance(made[0])["inForce"],
        "HttpEndpoint": "disabled",
    }


async def test_a_canarys_verdict_costs_so_many_calls(fleet: Fleet) -> None:
    """As docs/spec/imdspolicy.md says."""
    fleet.control.settings(apply_seconds=0)
    await fleet.add(3, options=SLOW)
    safety = {**OPEN, "canary": {"instances": 1, "soak": "0"}}
    policy = await fleet.create(mode="Enforce", options={HOP: 2}, safety=safety)
    await policy.when(lambda f: (f["status"].get("canary") or {}).get("phase") == "Passed")
    calls = fleet.control.calls()
    second = [at for at, one in enumerate(calls) if one["operation"] == MODIFY][2:3]
    before = calls[: second[0]] if second else calls
    # A look at all, one more where the machine is so slow that it is too old when the canary is sent its
    # change, one until it is told as applied, one before it passes and one before the next is changed.
    looks = [one for one in before if one["operation"] == "DescribeInstances"]
    assert 2 <= len(looks) <= 5
    assert [bool(one["params"].get("DryRun")) for one in before if one["operation"] == MODIFY] == [
        True,
        False,
    ]


async def test_one_that_may_not_be_changed_for_its_tags_keeps_none_of_the_others(fleet: Fleet) -> None:
    denied, *others = sorted(ids(await fleet.add(5, options=SLOW)))
    fleet.control.fault("refuse", instance=denied, count=None, code="UnauthorizedOperation", status=403)
    policy = await fleet.create(**ENFORCE)
    found = await policy.summary(nodes=5, compliant=4, failed=1)
    assert {(e["instance"], e["reason"]) for e in found["status"]["exceptions"]} == {
        (denied, "UnauthorizedOperation")
    }
    assert {call["InstanceId"] for call in fleet.modified()} >= set(others)
    # A dry run shows whether the denial is of this instance alone; allowed by then, the change is sent again.
    await until(lambda: denied in {one["InstanceId"] for one in fleet.modified(dry=True)})
    fleet.control.clear_faults()
    await policy.condition("Ready", "True", "Enforced")


async def test_what_is_denied_though_the_dry_run_passes_is_not_tried_again_and_again(fleet: Fleet) -> None:
    await fleet.add(4, options=SLOW)
    how = {"code": "UnauthorizedOperation", "status": 403, "message": "an explicit deny"}
    fleet.control.fault("refuse", count=None, real=True, **how)
    policy = await fleet.create(**ENFORCE)
    told = await policy.condition("Ready", "False", "BreakerOpen")
    assert "an explicit deny" in told["message"]
    await policy.condition("PermissionOK", "False", "AccessDenied")
    sent = len(fleet.modified())
    assert 2 <= sent <= 2 * 4, "each is sent once more after its dry run"
    await asyncio.sleep(3)  # a minute's time
    assert len(fleet.modified()) == sent
    found = await policy.get()
    assert stands(found, "PermissionOK", "False", "AccessDenied")
    fleet.control.clear_faults()
    await policy.edit(safety={"stopAfterConsecutiveFailures": 9})
    await policy.condition("Ready", "True", "Enforced")
    await policy.condition("PermissionOK", "True", "Permitted")


async def test_descriptions_that_lag_or_leave_something_out_change_no_verdict(fleet: Fleet) -> None:
    fleet.control.settings(stale_seconds=1, apply_seconds=0)
    made = ids(await fleet.add(3, options=SLOW))
    policy = await fleet.create(**ENFORCE, resyncInterval="1m")
    await policy.condition("Ready", "True", "Enforced")
    assert len(fleet.modified()) == 3, "each once, though EC2 told what was before"
    fleet.control.settings(omit=made[:1])
    found = await policy.summary(nodes=3, compliant=2, unknown=1)
    assert reasons(found) == {"InstanceNotTold"}
    fleet.control.settings(omit=[])
    await policy.summary(nodes=3, compliant=3)
    fleet.control.settings(omit=made[:1])
    await policy.summary(nodes=3, compliant=2, gone=1)


async def test_pending_is_followed_in_one_call_for_all_and_never_sent_again(
    fleet: Fleet, operator: OperatorProcess
) -> None:
    fleet.control.settings(apply_seconds=3600)
    made = await fleet.add(4, options=SLOW)
    policy = await fleet.create(**ENFORCE, pendingTimeout="1h")
    await policy.summary(nodes=4, pending=4)
    await policy.condition("Ready", "False", "Changing")

    first = fleet.described()

    def polls() -> int:
        return fleet.described() - first

    def asked() -> list[float]:
        return [entry["began"] for entry in fleet.told(operator, "pending")]

    await until(lambda: polls() >= 2 and len(asked()) >= 3)
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked())]
    assert gaps[0] >= 6 * TIME_SCALE * 0.99  # 3, 6, 12 s, scaled
    assert gaps[1] >= 12 * TIME_SCALE * 0.99
    assert len(fleet.modified()) == 4
    fleet.control.apply(ids(made))
    await policy.summary(nodes=4, compliant=4)
    assert len(fleet.modified()) == 4
    (which,) = fleet.control.calls("DescribeInstances")[-1]["params"]["Filters"]
    assert (which["Name"], sorted(which["Values"])) == ("instance-id", sorted(ids(made)))


async def test_what_is_never_applied_is_sent_once_more_and_then_told(fleet: Fleet) -> None:
    fleet.control.fault("stay_pending", count=None)
    await fleet.add(1, options=SLOW)
    policy = await fleet.create(**ENFORCE, pendingTimeout="10s")
    found = await policy.summary(nodes=1, failed=1)
    assert reasons(found) == {"NotApplied"}
    assert len(fleet.modified()) == 2
    fleet.control.apply()
    await policy.edit(resyncInterval="1m")
    await policy.condition("Ready", "True", "Enforced")
    assert len(fleet.modified()) == 2


async def test_an_opening_change_is_only_told_until_it_is_allowed(fleet: Fleet) -> None:
    await fleet.add(2, options=SLOW)
    policy = await fleet.create(mode="Enforce", safety={"canary": NO_CANARY, "allowTightening": ["Tokens"]})
    told = await policy.condition("Ready", "False", "LooseningNotAllowed")
    assert "add HopLimit to spec.safety.allowLoosening" in told["message"]
    found = await policy.summary(nodes=2, drifted=2)
    assert {(e["reason"], e["field"]) for e in found["status"]["exceptions"]} == {
        ("LooseningNotAllowed", HOP)
    }
    assert all(HOP.title() not in call for call in fleet.modified())
    options = [one["inForce"] for one in fleet.control.instances()]
    assert {(o["HttpTokens"], o["HttpPutResponseHopLimit"]) for o in options} == {("required", 1)}
    await policy.edit(safety={"allowLoosening": ["HopLimit"], "allowTightening": ["Tokens"]})
    await policy.condition("Ready", "True", "Enforced")
    assert {one["inForce"]["HttpPutResponseHopLimit"] for one in fleet.control.instances()} == {2}


async def test_a_closing_change_is_only_told_until_it_is_allowed(fleet: Fleet) -> None:
    await fleet.add(2, options=SLOW)
    policy = await fleet.create(mode="Enforce", safety={**OPEN, "allowTightening": []})
    told = await policy.condition("Ready", "False", "TighteningNotAllowed")
    assert "add Tokens to spec.safety.allowTightening" in told["message"]
    options = [one["inForce"] for one in fleet.control.instances()]
    assert {(o["HttpTokens"], o["HttpPutResponseHopLimit"]) for o in options} == {("optional", 2)}
    await policy.edit(safety={"allowTightening": ["Tokens"]})
    await policy.condition("Ready", "True", "Enforced")
    assert {one["inForce"]["HttpTokens"] for one in fleet.control.instances()} == {"required"}


async def test_the_canary_comes_first_and_stands_before_the_others_follow(fleet: Fleet, admin: Admin) -> None:
    await fleet.add(6, options=SLOW)
    safety = {**OPEN, "canary": {"instances": 2, "soak": "40s"}}
    policy = await fleet.create(mode="Enforce", options=RAISE, safety=safety)
    found = await policy.when(lambda f: (f["status"].get("canary") or {}).get("phase") == "Soaking")
    first = found["status"]["canary"]["instances"]
    assert sorted(call["InstanceId"] for call in fleet.modified()) == sorted(first)
    assert stands(found, "Ready", "False", "CanarySoaking")
    await policy.condition("Ready", "True", "Enforced")
    calls = fleet.control.calls(MODIFY)
    sent = [call for call in calls if not call["params"].get("DryRun")]
    assert len(sent) == 6
    assert sent[2]["at"] - sent[1]["at"] >= 40 * TIME_SCALE
    canary = (await policy.get())["status"]["canary"]
    assert (canary["phase"], canary["instances"]) == ("Passed", first)
    await events_of(admin, policy, "CanaryPassed")
    # A node that joins later needs none, nor does an edit of anything else.
    await policy.edit(safety={"maxChangesPerMinute": 600})
    await fleet.add(1, options=SLOW)
    await policy.summary(nodes=7, compliant=7)
    # Another value does.
    await policy.edit(options={HOP: 3})
    found = await policy.when(lambda f: (f["status"].get("canary") or {}).get("phase") == "Soaking")
    assert len(fleet.modified()) == 7 + 2


def soaks(found: Json) -> bool:
    return (found["status"].get("canary") or {}).get("phase") == "Soaking"


def both_soak(found: Json) -> bool:
    """The operator may hear of the policy before it hears of a second Node, which joins the canary then."""
    return soaks(found) and len(found["status"]["canary"]["instances"]) == 2


def groups(found: Json) -> dict[str, list[str]]:
    """Canaries: group -> instances."""
    made = found["status"]["canary"].get("groups", [])
    return {one["name"]: [each["instance"] for each in one["instances"]] for one in made}


async def resumed(admin: Admin, policy: Policy) -> None:
    """As `caretaker resume` does it."""
    opened = (await policy.get())["status"]["breaker"]["openedAt"]
    later = f"{int(opened[:4]) + 1}{opened[4:]}"
    await admin.patch(policy.url, {"metadata": {"annotations": {"caretaker.dev/resume-at": later}}})


async def test_a_canary_that_is_lost_stops_all_and_no_other_takes_its_place(
    fleet: Fleet, admin: Admin
) -> None:
    made = dict(await fleet.add(3, options=SLOW))
    names = {instance: name for name, instance in made.items()}
    canary = {"instances": 1, "soak": "1h"}
    policy = await fleet.create(mode="Enforce", options=RAISE, safety={**OPEN, "canary": canary})
    found = await policy.when(soaks)
    (first,) = found["status"]["canary"]["instances"]
    fleet.control.remove([first])
    await fleet.delete(names[first])
    told = await policy.condition("Ready", "False", "BreakerOpen")
    assert told["message"].startswith(f"CanaryLost: instance {first} (node {names[first]}) was terminated")
    found = await policy.get()
    assert (found["status"]["breaker"]["instance"], len(fleet.modified())) == (first, 1)
    await resumed(admin, policy)
    await policy.when(lambda f: soaks(f) and f["status"]["canary"]["instances"] != [first])
    assert len(fleet.modified()) == 2


async def test_a_canary_that_is_set_back_by_hand_stops_all(fleet: Fleet) -> None:
    """A resync is far off: it is read again right before it would pass."""
    await fleet.add(4, options=SLOW)
    canary = {"instances": 1, "soak": "2m"}
    safety = {**OPEN, "canary": canary}
    policy = await fleet.create(mode="Enforce", options=RAISE, safety=safety, resyncInterval="24h")
    (first,) = (await policy.when(soaks))["status"]["canary"]["instances"]
    fleet.control.put_options([first], HttpPutResponseHopLimit=1)
    told = await policy.condition("Ready", "False", "BreakerOpen")
    assert told["message"].startswith(f"CanarySetBack: instance {first} ")
    assert [call["InstanceId"] for call in fleet.modified()] == [first]


async def test_what_a_policy_of_higher_priority_leaves_behind_needs_a_canary(fleet: Fleet) -> None:
    await fleet.add(4, options={**GOOD, "HttpPutResponseHopLimit": 3})
    safety = {"allowTightening": ["HopLimit"], "canary": {"instances": 1, "soak": "1m"}}
    high = await fleet.create("high", options={HOP: 3}, priority=200)
    await high.edit(mode="Enforce")
    policy = await fleet.create(mode="Enforce", options={HOP: 1}, safety=safety)
    await policy.summary(nodes=4, compliant=4, overridden=4)
    await high.delete()
    found = await policy.when(soaks)
    assert [call["InstanceId"] for call in fleet.modified()] == found["status"]["canary"]["instances"]
    told = await policy.condition("Ready", "False", "CanarySoaking")
    assert "a closing change soaks at least 15 min" in told["message"]


async def test_each_group_and_each_change_has_its_own_canary(fleet: Fleet) -> None:
    label = "eks.amazonaws.com/nodegroup"
    loose = {**GOOD, "HttpTokens": "required", "HttpPutResponseHopLimit": 3}
    for group, options in (("a", SLOW), ("a", loose), ("b", SLOW), ("b", loose)):
        await fleet.add(2, options=options, labels={label: group})
    safety = {"allowLoosening": ["HopLimit"], "allowTightening": ["HopLimit"], "canary": {"soak": "10s"}}
    policy = await fleet.create(mode="Enforce", options=RAISE, safety=safety)
    found = await policy.when(lambda f: soaks(f) and set(groups(f)) == {"a", "b"})
    assert len(fleet.modified()) == 2, "one of each group"
    # Raising passes; lowering in the same group is another change.
    found = await policy.when(lambda f: soaks(f) and len(f["status"]["canary"].get("passed", [])) == 2)
    assert len(fleet.modified()) <= 2 + 2 + 2
    changes = {(one["name"], one["from"], one["to"]) for one in found["status"]["canary"]["passed"]}
    assert changes in ({("a", "1", "2"), ("b", "1", "2")}, {("a", "3", "2"), ("b", "3", "2")})


async def test_while_a_changed_node_is_not_ready_nothing_is_changed(fleet: Fleet, admin: Admin) -> None:
    await fleet.add(16, options=SLOW)
    canary = {"instances": 1, "soak": "20s"}
    safety = {**OPEN, "canary": canary, "maxChangesPerMinute": 1}
    policy = await fleet.create(mode="Enforce", options=RAISE, safety=safety)
    await until(lambda: len(fleet.modified()) >= 2)
    # Until the node is not Ready, no other is changed, however long a busy machine takes.
    fleet.control.fault("refuse", operation=MODIFY, count=None, code="IncorrectInstanceState")
    found = await policy.when(lambda f: f["status"].get("changed"))
    accepted = [call["InstanceId"] for call in fleet.modified()[:2]]
    watched = [one for group in found["status"]["changed"] for one in group["instances"]]
    one = next(one for one in reversed(watched) if one["instance"] in accepted)
    await make_not_ready(admin, one["node"])
    told = await policy.condition("Ready", "False", "NodeNotReady")
    assert one["node"] in told["message"]
    fleet.control.clear_faults()
    sent = len(fleet.modified())
    await policy.edit(resyncInterval="1m", safety={**safety, "maxChangesPerMinute": 60})
    await policy.when(lambda f: f["status"]["observedGeneration"] == f["metadata"]["generation"])
    await policy.condition("Ready", "False", "NodeNotReady")
    assert len(fleet.modified()) == sent
    await make_ready(admin, one["node"])
    await policy.condition("Ready", "True", "Enforced")


async def test_a_canary_that_has_failed_is_given_back_where_that_is_asked_for(
    fleet: Fleet, admin: Admin
) -> None:
    made = dict(await fleet.add(5, options=SLOW))
    names = {instance: name for name, instance in made.items()}
    canary = {"instances": 2, "soak": "1h", "onFailure": "Restore"}
    policy = await fleet.create(mode="Enforce", options=RAISE, safety={**OPEN, "canary": canary})
    first, other = (await policy.when(both_soak))["status"]["canary"]["instances"]
    fleet.control.remove([first])
    await fleet.delete(names[first])
    await policy.condition("Ready", "False", "BreakerOpen")
    await until(lambda: len(fleet.modified()) == 3)
    assert fleet.modified()[2]["InstanceId"] == other
    await until(lambda: fleet.control.instance(other)["inForce"]["HttpPutResponseHopLimit"] == 1)
    await policy.edit(resyncInterval="1m")
    await policy.when(lambda f: f["status"]["observedGeneration"] == f["metadata"]["generation"])
    await policy.when(both_soak)  # a change of the spec closes it, and begins with another canary
    assert len(fleet.modified()) == 5


async def test_a_second_that_comes_while_a_canary_of_two_soaks_joins_it(fleet: Fleet) -> None:
    made = await fleet.add(3, options=SLOW, joined=False)
    await fleet.join(made[:1])
    canary = {"instances": 2, "soak": "1h"}
    policy = await fleet.create(mode="Enforce", options=RAISE, safety={**OPEN, "canary": canary})
    assert (await policy.when(soaks))["status"]["canary"]["instances"] == ids(made[:1])
    await fleet.join(made[1:])
    both = (await policy.when(both_soak))["status"]["canary"]["instances"]
    assert [call["InstanceId"] for call in fleet.modified()] == both


async def test_a_canary_on_a_node_that_is_not_ready_does_not_pass(fleet: Fleet, admin: Admin) -> None:
    await fleet.add(2, options=SLOW)
    fleet.control.settings(apply_seconds=3600)
    canary = {"instances": 1, "soak": "0"}
    policy = await fleet.create(mode="Enforce", options=RAISE, safety={**OPEN, "canary": canary})
    found = await policy.summary(nodes=2, pending=1, drifted=1)
    (first,) = found["status"]["canary"]["instances"]
    name = next(e["node"] for e in found["status"]["exceptions"] if e.get("instance") == first)
    await make_not_ready(admin, name)
    told = await policy.condition("Ready", "False", "NodeNotReady")
    assert f"Node {name} is not Ready after its instance {first} was changed" in told["message"]
    fleet.control.apply()
    await policy.summary(nodes=2, compliant=1, drifted=1)
    assert (await policy.get())["status"]["canary"]["phase"] == "Changing"
    fleet.control.settings(apply_seconds=0)
    await make_ready(admin, name)
    await policy.summary(nodes=2, compliant=2)


async def test_too_much_drift_is_not_touched(fleet: Fleet) -> None:
    await fleet.add(3, options=SLOW)
    await fleet.add(1)
    policy = await fleet.create(mode="Enforce", safety={**OPEN, "maxDriftPercent": 50})
    told = await policy.condition("Ready", "False", "DriftTooWide")
    assert "3 of 4 instances differ" in told["message"]
    await policy.condition("Stalled", "True", "DriftTooWide")
    await policy.condition("Enforcing", "False", "DriftTooWide")
    assert not fleet.modified()
    await policy.edit(safety={"maxDriftPercent": 80})
    await policy.condition("Ready", "True", "Enforced")


async def test_failures_in_a_row_stop_it_until_somebody_resumes(fleet: Fleet, admin: Admin) -> None:
    fleet.control.fault("refuse", count=None, code="InvalidParameterValue", message="no such luck")
    await fleet.add(3, options=SLOW)
    policy = await fleet.create(mode="Enforce", safety={**OPEN, "stopAfterConsecutiveFailures": 3})
    told = await policy.condition("Ready", "False", "BreakerOpen")
    assert "no such luck" in told["message"]
    found = await policy.summary(nodes=3, failed=3)
    assert reasons(found) == {"InvalidParameterValue"}
    assert len(fleet.modified()) == 3
    fleet.control.clear_faults()
    opened = found["status"]["breaker"]["openedAt"]
    later = f"{int(opened[:4]) + 1}{opened[4:]}"
    await admin.patch(policy.url, {"metadata": {"annotations": {"caretaker.dev/resume-at": later}}})
    await policy.condition("Ready", "True", "Enforced")
    assert "breaker" not in (await policy.get())["status"]


async def test_one_that_fails_is_tried_again_by_itself_while_the_others_are_changed(fleet: Fleet) -> None:
    bad, *_ = ids(await fleet.add(3, options=SLOW))
    permit(fleet)
    fleet.control.fault("refuse", instance=bad, count=2, code="InternalError", status=503)
    policy = await fleet.create(**ENFORCE)
    found = await policy.when(lambda f: f["status"]["summary"]["failed"] == 1)
    assert stands(found, "Ready", "False")
    assert {e["instance"] for e in found["status"]["exceptions"] if e["reason"] == "InternalError"} == {bad}
    await policy.condition("Ready", "True", "Enforced")
    calls = [c for c in fleet.control.calls(MODIFY) if c["params"]["InstanceId"] == bad]
    tried = [c["at"] for c in calls if not c["params"].get("DryRun")]
    assert len(tried) == 3
    assert tried[1] - tried[0] >= 30 * TIME_SCALE
    assert tried[2] - tried[1] >= 60 * TIME_SCALE


@pytest.mark.slow
async def test_an_answer_that_is_lost_is_looked_up_and_nothing_is_sent_twice(fleet: Fleet) -> None:
    await fleet.add(4, options=SLOW)
    fleet.control.fault("lose_reply", count=4)
    policy = await fleet.create(**ENFORCE)
    await policy.condition("Ready", "True", "Enforced")
    assert len(fleet.modified()) == 4


async def test_without_the_permission_nothing_is_sent_and_the_action_is_named(fleet: Fleet) -> None:
    await fleet.add(2, options=SLOW)
    fleet.control.deny(MODIFY, f"You are not authorized to perform: ec2:{MODIFY}")
    policy = await fleet.create(**ENFORCE)
    told = await policy.condition("PermissionOK", "False", "AccessDenied")
    assert f"allow ec2:{MODIFY} to the identity" in told["message"]
    await policy.condition("Ready", "False", "AccessDenied")
    assert not fleet.modified()
    fleet.control.allow(MODIFY)
    await policy.condition("Ready", "True", "Enforced")
    assert len(fleet.modified()) == 2


async def test_a_permission_that_is_taken_away_on_the_way_stops_it_and_nothing_is_lost(fleet: Fleet) -> None:
    await fleet.add(6, options=SLOW)
    safety = {**OPEN, "canary": {"instances": 1, "soak": "1m"}}
    policy = await fleet.create(mode="Enforce", options=RAISE, safety=safety)
    await policy.when(lambda f: (f["status"].get("canary") or {}).get("phase") == "Soaking")
    fleet.control.deny(MODIFY, f"You are not authorized to perform: ec2:{MODIFY}")
    await policy.condition("PermissionOK", "False", "AccessDenied")
    refused = [c for c in fleet.control.calls(MODIFY) if c["status"] != 200 and not c["params"].get("DryRun")]
    assert 1 <= len(refused) <= 5, "those of one batch"
    fleet.control.allow(MODIFY)
    await policy.condition("Ready", "True", "Enforced")
    done = [c["params"]["InstanceId"] for c in fleet.control.calls(MODIFY) if c["status"] == 200]
    assert len(done) == len(set(done)) == 6


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("UnsupportedOperation", "IMDSv2 is enforced for this account"),
        ("UnauthorizedOperation", "not authorized, with an explicit deny in a service control policy"),
    ],
)
async def test_what_the_account_forbids_waits_for_the_resync(fleet: Fleet, code: str, message: str) -> None:
    await fleet.add(1, options={**GOOD, "HttpPutResponseHopLimit": 1})
    permit(fleet)
    fleet.control.fault("refuse", operation=MODIFY, count=None, code=code, message=message)
    policy = await fleet.create(**ENFORCE)
    told = await policy.condition("Ready", "False", "BlockedByAccountPolicy")
    assert message in told["message"]
    sent = len(fleet.control.calls(MODIFY))
    await asyncio.sleep(3)  # a minute's time, of a resync of fifteen
    assert len(fleet.control.calls(MODIFY)) == sent


@pytest.mark.parametrize("read", [True, False], ids=["read", "not read"])
async def test_an_account_that_enforces_imdsv2_is_not_asked_again_and_again(fleet: Fleet, read: bool) -> None:
    """Where that could be read, never for optional tokens; else once until the resync."""
    await fleet.add(2, options={**GOOD, "HttpPutResponseHopLimit": 1})
    why = {"ManagedBy": "declarative-policy", "ManagedExceptionMessage": "ask the platform team"}
    fleet.control.defaults(HttpTokensEnforced="enabled", **why)
    if not read:
        fleet.control.deny("GetInstanceMetadataDefaults")
    safety = {**OPEN, "allowLoosening": ["HopLimit", "Tokens"]}
    wanted = {**RAISE, "httpTokens": "optional"}
    policy = await fleet.create(mode="Enforce", safety=safety, options=wanted)
    told = await policy.condition("Ready", "False", "BlockedByAccountPolicy")
    assert "the account enforces IMDSv2 (HttpTokensEnforced)" in told["message"]
    assert ("ask the platform team" in told["message"]) == read
    await policy.condition("PermissionOK", "True" if read else "False")
    await policy.summary(nodes=2, **{"drifted" if read else "failed": 2})
    sent = fleet.modified()
    assert [call.get("HttpTokens") for call in sent] == [None if read else "optional"] * 2
    if read:
        assert {one["options"]["HttpPutResponseHopLimit"] for one in fleet.control.instances()} == {2}
        assert len(fleet.control.calls("GetInstanceMetadataDefaults")) == 1
    await asyncio.sleep(3)  # a minute's time, of a resync of fifteen
    assert len(fleet.modified()) == 2


@pytest.mark.slow
async def test_what_is_set_back_is_mended_at_the_resync_and_left_alone_after_the_third_time(
    fleet: Fleet,
) -> None:
    (one,) = ids(await fleet.add(1, options=SLOW))
    policy = await fleet.create(**ENFORCE, resyncInterval="1m")
    for times in (1, 2, 3):
        await policy.summary(nodes=1, compliant=1)
        assert len(fleet.modified()) == times
        fleet.control.put_options([one], HttpPutResponseHopLimit=1)
        await policy.when(lambda f: f["status"]["summary"]["compliant"] == 0)
    told = await policy.condition("Ready", "False", "Fighting")
    assert "another client" in told["message"]
    assert reasons(await policy.summary(nodes=1, failed=1)) == {"Fighting"}
    assert len(fleet.modified()) == 3


async def test_throttling_slows_it_down_and_all_are_changed(fleet: Fleet) -> None:
    await fleet.add(5, options=SLOW)
    permit(fleet)
    fleet.control.fault("refuse", operation=MODIFY, count=4, code="RequestLimitExceeded", status=503)
    policy = await fleet.create(**ENFORCE)
    await policy.condition("Throttled", "True", "RequestLimitExceeded")
    await policy.summary(nodes=5, compliant=5)
    done = [c["params"]["InstanceId"] for c in fleet.control.calls(MODIFY) if c["status"] == 200]
    assert len(done) == len(set(done)) == 5
    found = await policy.get()
    assert "breaker" not in found["status"]


async def test_two_policies_each_send_their_own_option_one_after_the_other(fleet: Fleet) -> None:
    await fleet.add(2, options=SLOW)
    hops = await fleet.create("hops", options={HOP: 2}, **ENFORCE)
    tokens = await fleet.create("tokens", options={"httpTokens": "required"}, **ENFORCE)
    for policy in (hops, tokens):
        await policy.summary(nodes=2, compliant=2)
        await policy.condition("Ready", "True", "Enforced")
    sent = fleet.modified()
    assert len(sent) == 4
    assert all(("HttpTokens" in call) != ("HttpPutResponseHopLimit" in call) for call in sent)


async def test_equal_priorities_with_different_values_write_nothing(fleet: Fleet) -> None:
    await fleet.add(1, options={**GOOD, "HttpPutResponseHopLimit": 1})
    policies = [
        await fleet.create(f"p{hops}", options={HOP: hops}, **ENFORCE, suspend=True) for hops in (2, 3)
    ]
    for policy in policies:
        await policy.edit(suspend=False)
    for policy in policies:
        await policy.condition("Conflicted", "True", "Conflict")
    assert not fleet.modified()


async def test_an_audit_takes_no_part_in_what_is_written_and_a_suspended_policy_does(fleet: Fleet) -> None:
    await fleet.add(1, options={**GOOD, "HttpPutResponseHopLimit": 1})
    audit = await fleet.create("audit", options={HOP: 3}, priority=300)
    held = await fleet.create("held", options={HOP: 3}, priority=200, suspend=True, **ENFORCE)
    policy = await fleet.create(options={HOP: 2}, **ENFORCE)
    await policy.summary(nodes=1, compliant=1, overridden=1)
    assert not fleet.modified(), "the suspended one wins the option, and writes nothing"
    await held.delete()
    await policy.summary(nodes=1, compliant=1)
    assert [call["HttpPutResponseHopLimit"] for call in fleet.modified()] == [2]
    await audit.summary(nodes=1, drifted=1)


async def test_a_stopped_instance_is_changed_and_not_waited_for(fleet: Fleet) -> None:
    (one,) = ids(await fleet.add(1, options=SLOW))
    fleet.control.set_state("stopped", [one])
    policy = await fleet.create(**ENFORCE)
    await policy.summary(nodes=1, compliant=1)
    await policy.condition("Ready", "True", "Enforced")


async def test_tags_are_never_switched_on_where_a_key_has_a_slash(fleet: Fleet) -> None:
    await fleet.add(1, options=SLOW)
    options = {HOP: 2, "instanceMetadataTags": "enabled"}
    safety = {**OPEN, "allowLoosening": ["HopLimit", "Tags"]}
    policy = await fleet.create(mode="Enforce", options=options, safety=safety)
    await policy.condition("Ready", "False", "TagKeysUnfit")
    assert [set(call) for call in fleet.modified()] == [{"InstanceId", "HttpPutResponseHopLimit"}]


async def test_the_pace_of_a_policy_holds(fleet: Fleet) -> None:
    await fleet.add(8, options=SLOW)
    policy = await fleet.create(mode="Enforce", safety={**OPEN, "maxChangesPerMinute": 6})
    await policy.condition("Ready", "True", "Enforced")
    at = sorted(c["at"] for c in fleet.control.calls(MODIFY) if not c["params"].get("DryRun"))
    minute = 60 * TIME_SCALE
    assert all(later - earlier >= minute * 0.95 for earlier, later in zip(at, at[6:], strict=False))


@pytest.mark.slow
async def test_what_was_read_long_ago_is_read_again_before_it_is_changed(fleet: Fleet) -> None:
    made = ids(await fleet.add(3, options=SLOW))
    safety = {**OPEN, "canary": {"instances": 1, "soak": "3m"}}
    policy = await fleet.create(mode="Enforce", options=RAISE, safety=safety, resyncInterval="24h")
    found = await policy.when(lambda f: (f["status"].get("canary") or {}).get("phase") == "Soaking")
    others = [one for one in made if one not in found["status"]["canary"]["instances"]]
    fleet.control.put_options(others[:1], **{k: v for k, v in GOOD.items() if k != "HttpEndpoint"})
    await policy.condition("Ready", "True", "Enforced")
    assert sorted(call["InstanceId"] for call in fleet.modified()) == sorted(
        one for one in made if one != others[0]
    )


async def test_a_policy_that_is_deleted_calls_nothing(fleet: Fleet) -> None:
    await fleet.add(2, options=SLOW)
    policy = await fleet.create(mode="Enforce", safety={**OPEN, "canary": {"instances": 1, "soak": "1h"}})
    await policy.when(lambda f: (f["status"].get("canary") or {}).get("phase") == "Soaking")
    assert "finalizers" not in (await policy.get())["metadata"]
    before = len(fleet.control.calls())
    await policy.delete()
    other = await fleet.create("later", selector={"nodeSelector": {"matchLabels": {"none": "such"}}})
    await other.condition("Ready", "False", "NoMatchingNodes")
    assert len(fleet.control.calls()) == before


async def test_what_is_mended_shows_in_other_policies_at_once(fleet: Fleet) -> None:
    await fleet.add(2, options=SLOW)
    audit = await fleet.create("audit", resyncInterval="24h")
    await audit.summary(nodes=2, drifted=2)
    await fleet.create(**ENFORCE, resyncInterval="24h")
    await audit.summary(nodes=2, compliant=2)


async def test_nodes_that_are_no_instances_are_not_called_compliant(fleet: Fleet) -> None:
    await fleet.add(2, joined=False)
    policy = await fleet.create(**ENFORCE)
    # The operator may see the policy before the nodes.
    found = await policy.when(lambda f: condition(f, "Compliant")["message"].startswith("none of 2 node(s)"))
    assert stands(found, "Compliant", "Unknown", "NoMatchingNodes")
    await policy.condition("Ready", "False", "NoMatchingNodes")
    await policy.condition("PermissionOK", "Unknown", "NoMatchingNodes")
    assert not fleet.control.calls()


async def test_a_spec_that_opens_imdsv1_to_pods_is_warned_of(fleet: Fleet, admin: Admin) -> None:
    policy = await fleet.create(options={HOP: 2})
    await events_of(admin, policy, "IMDSv1ReachableFromPods")
