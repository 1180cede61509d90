"""An IMDSPolicy audits: what it finds, when it asks EC2, and what it says when it cannot."""

import asyncio
import itertools
import json
from collections.abc import Iterator

import pytest

from testbed.admin import Admin, Json, path
from testing.imds import MODIFY, SLOW, Fleet
from testing.operator import OperatorProcess
from testing.rollouts import until

from .conftest import TIME_SCALE

HOP = "httpPutResponseHopLimit"


@pytest.fixture(autouse=True)
def nothing_is_written(fleet: Fleet) -> Iterator[None]:
    """Whatever a test finds."""
    yield
    assert not fleet.control.calls(MODIFY), "an audit writes nothing"


def listed(found: Json) -> list[tuple[str, ...]]:
    fields = ("node", "instance", "reason", "field", "current", "desired")
    return [tuple(entry.get(name, "") for name in fields) for entry in found["status"].get("exceptions", [])]


async def test_what_differs_is_told_by_node_group_and_field(fleet: Fleet, admin: Admin) -> None:
    await fleet.add(3, labels={"eks.amazonaws.com/nodegroup": "apps-a"})
    bad = await fleet.add(2, labels={"eks.amazonaws.com/nodegroup": "apps-b"}, options=SLOW)
    policy = await fleet.create()
    found = await policy.summary(nodes=5, compliant=3, drifted=2)
    assert listed(found) == sorted(
        (*one, "Drifted", field, now, then)
        for one in bad
        for field, now, then in ((HOP, "1", "2"), ("httpTokens", "optional", "required"))
    )
    groups = found["status"]["groups"]
    assert {group.pop("source")["state"] for group in groups} == {"EKSOwned"}, "see test_sources.py"
    assert groups == [
        {"kind": "EKSManagedNodegroup", "name": "apps-a", "nodes": 3, "compliant": 3, "drifted": 0},
        {"kind": "EKSManagedNodegroup", "name": "apps-b", "nodes": 2, "compliant": 0, "drifted": 2},
    ]
    told = await policy.condition("Compliant", "False", "Drifted")
    assert told["message"] == f"2 of 5 node(s) differ: {HOP} of 2, httpTokens of 2"
    await policy.condition("Ready", "True", "Audited")
    await policy.condition("SlowAndOpen", reason="HopLimitOneTokensOptional")

    def told_of(events: list[Json]) -> bool:
        mine = {e["reason"] for e in events if e["involvedObject"]["name"] == policy.name}
        return {"Drifted", "SlowAndOpen"} <= mine

    await admin.wait_for_all(path("events", "default"), told_of, 30)  # they follow the status

    fleet.control.put_options([instance for _, instance in bad], HttpPutResponseHopLimit=2)
    await policy.edit(resyncInterval="1m")  # 3 s here
    found = await policy.when(lambda f: {e["field"] for e in f["status"]["exceptions"]} == {"httpTokens"})
    fleet.control.put_options([instance for _, instance in bad], HttpTokens="required")
    await policy.condition("Compliant", "True", "Compliant")


async def test_nodes_that_join_are_asked_for_in_one_call_and_nodes_that_go_in_none(
    fleet: Fleet, operator: OperatorProcess
) -> None:
    first = await fleet.add(2)
    policy = await fleet.create(resyncInterval="24h")
    await policy.summary(nodes=2, compliant=2)
    before = fleet.described()
    operator.pause()  # it sees them at once, however long it takes to make them
    try:
        await fleet.add(5, options=SLOW)
    finally:
        operator.resume()
    await policy.summary(nodes=7, compliant=2, drifted=5)
    assert fleet.described() - before <= 2, "one for those that were seen within 3 s, scaled to 0.15"
    before = fleet.described()
    await fleet.delete(first[0][0])
    await policy.summary(nodes=6, compliant=1, drifted=5)
    assert fleet.described() == before


async def test_a_provider_id_that_comes_late_is_noticed(fleet: Fleet) -> None:
    made = await fleet.add(2, joined=False)
    policy = await fleet.create()
    found = await policy.summary(nodes=2, skipped=2)
    assert {entry["reason"] for entry in found["status"]["exceptions"]} <= {"NoProviderID", "NotEC2"}
    await fleet.join(made)
    await policy.summary(nodes=2, compliant=2)


async def test_a_quiet_time_asks_nothing_and_writes_nothing(fleet: Fleet, admin: Admin) -> None:
    """But for one call for all policies, each resync."""
    await fleet.add(3)
    policies = [await fleet.create(f"p{n}", resyncInterval="24h") for n in range(3)]
    for policy in policies:
        await policy.summary(nodes=3, compliant=3)
    before = fleet.described()
    versions = [(await policy.get())["metadata"]["resourceVersion"] for policy in policies]
    # A heartbeat, a taint: nothing that a policy reads.
    items = await admin.list(
        path("nodes"), labels=f"{next(iter(fleet.body()['spec']['selector']['nodeSelector']['matchLabels']))}"
    )
    for item in items:
        await admin.patch(
            path("nodes", None, item["metadata"]["name"]), {"metadata": {"annotations": {"beat": "1"}}}
        )
    late = await fleet.create("late")  # its pass shows that the others' would have been by now
    await late.summary(nodes=3, compliant=3)
    await asyncio.sleep(0.3)  # twice the time after which a node's change is looked at
    assert fleet.described() == before
    # The newcomer brought the others into the queue; they found the same.
    assert [(await policy.get())["metadata"]["resourceVersion"] for policy in policies] == versions


async def test_by_the_clusters_tag_one_call_serves_all_policies(
    fleet: Fleet, operator: OperatorProcess
) -> None:
    await fleet.add(4)
    policies = [await fleet.create(f"p{n}", resyncInterval="1m") for n in range(3)]
    for policy in policies:
        await policy.summary(nodes=4, compliant=4)

    def looks() -> list[float]:
        return [entry["began"] for entry in fleet.told(operator, "whole") if entry["whole"]]

    before = len(looks())
    fleet.control.clear_calls()
    made = await fleet.add(1, options=SLOW, joined=False)
    fleet.control.apply()
    await fleet.join(made)
    for policy in policies:
        await policy.summary(nodes=5, compliant=4, drifted=1)
    await until(lambda: len(looks()) >= before + 2)
    calls = fleet.control.calls("DescribeInstances")
    assert all(call["status"] == 200 for call in calls)
    whole = [call for call in calls if "tag-key" in str(call["params"])]
    began = looks()
    assert abs(len(began) - before - len(whole)) <= 1, "one may have been under way at either end"
    for earlier, later in itertools.pairwise(began):
        assert later - earlier >= 60 * TIME_SCALE, "1m, scaled, whoever asks"


async def test_the_higher_priority_wins_each_option_and_equals_conflict(
    fleet: Fleet, operator: OperatorProcess
) -> None:
    await fleet.add(2, labels={"karpenter.sh/nodepool": "apps"})
    await fleet.add(
        1,
        labels={"karpenter.sh/nodepool": "builders"},
        options={**SLOW, "HttpPutResponseHopLimit": 3, "HttpTokens": "required"},
    )
    base = await fleet.create("base", resyncInterval="24h")  # what another policy changes is not waited for
    await base.summary(nodes=3, compliant=2, drifted=1)
    builders = {"groups": [{"kind": "KarpenterNodePool", "names": ["build*"]}]}
    other = await fleet.create("other", options={HOP: 3}, selector=builders, priority=200)
    await other.summary(nodes=1, compliant=1)
    await base.summary(nodes=3, compliant=3, overridden=1)

    await other.edit(priority=100)
    for policy in (base, other):
        told = await policy.condition("Ready", "False", "Conflict")
        assert told["message"].startswith(
            f"spec.options.{HOP}: {base.name}, {other.name} want different values"
        )
        await policy.condition("Stalled", reason="Conflict")
    series = {"kind": "IMDSPolicy", "namespace": "", "name": base.name}
    assert operator.metric("caretaker_ready", **series) == 0
    await other.delete()
    await base.condition("Ready", "True", "Audited")
    assert operator.metric("caretaker_ready", **series) == 1
    await base.summary(nodes=3, compliant=2, drifted=1)


async def test_without_the_permission_nothing_is_called_compliant_until_it_is_there(fleet: Fleet) -> None:
    await fleet.add(2)
    fleet.control.deny("DescribeInstances", "You are not authorized to perform: ec2:DescribeInstances")
    policy = await fleet.create()
    told = await policy.condition("PermissionOK", "False", "AccessDenied")
    assert told["message"].endswith("allow ec2:DescribeInstances to the identity that spec.aws names")
    await policy.condition("Compliant", "Unknown", "Unknown")
    await policy.summary(nodes=2, unknown=2)
    await policy.condition("Ready", "False", "AccessDenied")
    fleet.control.allow("DescribeInstances")
    await policy.condition("PermissionOK", "True", "Permitted")
    await policy.summary(nodes=2, compliant=2)


async def test_instances_that_are_gone_ending_managed_or_pending_are_told_apart(fleet: Fleet) -> None:
    made = await fleet.add(4)
    (gone, ending, stopped, _) = (instance for _, instance in made)
    fleet.control.remove([gone])
    fleet.control.set_state("shutting-down", [ending])
    fleet.control.set_state("stopped", [stopped])
    policy = await fleet.create()
    found = await policy.summary(nodes=4, compliant=2, gone=2)
    assert {(one[1], one[2]) for one in listed(found)} == {
        (gone, "InstanceNotFound"),
        (ending, "shutting-down"),
    }


async def test_suspended_it_asks_nothing_and_keeps_what_it_wins(fleet: Fleet) -> None:
    await fleet.add(1, options={**SLOW, "HttpPutResponseHopLimit": 3, "HttpTokens": "required"})
    high = await fleet.create("high", options={HOP: 3}, priority=200)
    low = await fleet.create("low")
    await low.summary(nodes=1, compliant=1, overridden=1)
    await high.edit(suspend=True)
    await high.condition("Suspended")
    await high.condition("Compliant", "Unknown", "Suspended")
    await low.edit(resyncInterval="1m")
    await low.summary(nodes=1, compliant=1, overridden=1)


async def test_an_auto_scaling_group_is_known_by_its_instances_tag(fleet: Fleet) -> None:
    await fleet.add(1, options=SLOW, tags={"aws:autoscaling:groupName": "spot-1"})
    await fleet.add(1, options=SLOW, tags={"aws:autoscaling:groupName": "other"})
    policy = await fleet.create(selector={"groups": [{"kind": "AutoScalingGroup", "names": ["spot-?"]}]})
    found = await policy.summary(nodes=1, drifted=1)
    assert [(g["kind"], g["name"]) for g in found["status"]["groups"]] == [("AutoScalingGroup", "spot-1")]


@pytest.mark.parametrize(
    "fault",
    [
        {"action": "cut_body"},
        pytest.param({"action": "html"}, marks=pytest.mark.slow),
        pytest.param({"action": "without"}, marks=pytest.mark.slow),
        pytest.param({"action": "without", "member": "reservationSet"}, marks=pytest.mark.slow),
        {"action": "without", "member": "instanceId"},
    ],
    ids=lambda fault: " ".join(fault.values()),
)
async def test_instances_that_cannot_be_read_are_not_gone(
    fleet: Fleet, operator: OperatorProcess, fault: dict[str, str]
) -> None:
    await fleet.add(2)
    policy = await fleet.create(resyncInterval="1m")  # 3 s here
    await policy.summary(nodes=2, compliant=2)
    fleet.control.fault(operation="DescribeInstances", count=None, **fault)
    told = await policy.condition("PermissionOK", "Unknown", "NotAsked")
    assert "DescribeInstances: UnreadableAnswer: the answer cannot be read" in told["message"]
    found = await policy.get()
    assert found["status"]["summary"].get("gone", 0) == 0
    assert "hunter2" not in json.dumps(found["status"])
    fleet.control.clear_faults()
    await policy.condition("PermissionOK", "True")
    await policy.summary(nodes=2, compliant=2)
    assert "hunter2" not in "\n".join(operator.lines)
    operator.assert_clean_logs()


async def test_nodes_whose_tags_are_not_told_are_no_drift(fleet: Fleet) -> None:
    """A group may be known by tags alone, and what its nodes should have with it."""
    await fleet.add(2, options=SLOW)
    fleet.control.fault("without", operation="DescribeInstances", count=None, member="tagSet")
    policy = await fleet.create(resyncInterval="1m")
    found = await policy.summary(nodes=2, unknown=2)
    assert {(one[2]) for one in listed(found)} == {"TagsNotTold"}
    fleet.control.clear_faults()
    await policy.summary(nodes=2, drifted=2)
