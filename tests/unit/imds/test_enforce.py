"""What Enforce changes now, gate by gate."""

from typing import Any, Final

import msgspec
import pytest

from caretaker.api.imds import MAX_CANARIES, MAX_CHANGED, MAX_GROUPS, BreakerStatus, FieldChange, Options
from caretaker.api.times import format_time, parse_time
from caretaker.imds.cases import with_failure
from caretaker.imds.change_attempts import NEW, ChangeAttempt, failed, sent
from caretaker.imds.enforce import AHEAD, PASS_SECONDS, POLL_SECONDS, READY_SECONDS, Enforced, enforce
from caretaker.imds.enforce_input import BATCH, WATCH_SECONDS, CheckedInstance, Group
from caretaker.imds.merge import PolicyOptions
from unit.imds.enforcing import (
    BAD,
    CLOSE,
    GENERATION,
    GOOD,
    GROUP,
    HERE,
    HOP,
    LOWER,
    ME,
    RAISE,
    WALL,
    canaries,
    canary,
    changed,
    found,
    inputs,
    passed,
    watched,
)

CALL = {"HttpPutResponseHopLimit": 2}
WORST = Options(1, "optional", "enabled")
OTHER = ("KarpenterNodePool", "b")
FAILED = failed(ChangeAttempt(options=CALL), 990.0, "InternalError", "no luck")


def written(made: Enforced) -> list[str]:
    return [write.instance for write in made.writes]


def many(count: int, **more: Any) -> list[Any]:
    return [found(number, **more) for number in range(1, count + 1)]


def asked(made: Enforced) -> list[str]:
    return [write.instance for write in made.asks]


# ---------------------------------------------------------------- who is changed


def test_what_differs_is_changed_and_nothing_else_is_sent() -> None:
    made = enforce([found(1), found(2, GOOD)], inputs())
    (write,) = made.writes
    assert (write.instance, write.region, dict(write.options)) == ("i-1", HERE, CALL)
    assert (made.left, made.phase, made.ahead) == (1, "Changing", ())


def test_what_was_read_too_long_ago_is_read_again_with_what_comes_next() -> None:
    now = [found(1, at=995.0), found(2, at=995.0), found(3, at=1.0)]
    fresh = enforce(now, inputs(cap=2, fresh_since=995.0))
    assert (written(fresh), fresh.ahead) == (["i-1", "i-2"], ())
    old = enforce(now, inputs(cap=2, fresh_since=995.1))
    assert (written(old), old.ahead) == (["i-1", "i-2"], ((HERE, "i-1"), (HERE, "i-2"), (HERE, "i-3")))
    assert enforce(now, inputs(cap=0, fresh_since=995.1)).ahead == ()


def test_ec2_is_asked_of_what_is_to_be_sent_first_and_of_others_far_from_it() -> None:
    made = enforce(many(9), inputs())
    assert (asked(made), dict(made.asks[0].options)) == (["i-1", "i-4", "i-7"], CALL)
    assert [(one.region, dict(one.options)) for one in made.asks] == [(HERE, CALL)] * 3
    failing = enforce(many(9), inputs(attempts={"i-1": FAILED}, cap=1))
    assert asked(failing)[0] == written(failing)[0] == "i-2", "one that was denied comes last"
    first = enforce(many(9), inputs(first={"i-5"}, cap=1))
    assert asked(first)[0] == written(first)[0] == "i-5", "one that EC2 said may be changed comes first"
    refused = enforce(many(9), inputs(stopped=("AccessDenied", "no")))
    assert (written(refused), asked(refused)) == ([], ["i-1", "i-4", "i-7"])
    assert asked(enforce(many(2), inputs())) == ["i-1", "i-2"]
    assert asked(enforce([found(1, GOOD)], inputs(stopped=("AccessDenied", "no")))) == []
    assert asked(enforce(many(2), inputs(cap=0))) == [], "nothing is sent now"
    broken = inputs(breaker=BreakerStatus(GENERATION, 5, format_time(WALL), "x"))
    assert asked(enforce(many(2), broken)) == []


def test_what_ec2_denies_though_it_would_allow_it_opens_the_breaker() -> None:
    made = enforce(many(3), inputs(denied=("i-1", "EC2 denies it")))
    assert made.breaker is not None
    assert (made.writes, made.phase, made.breaker.message) == (
        (),
        "BreakerOpen",
        "instance i-1: EC2 denies it",
    )


def test_those_that_fail_never_take_the_place_of_others() -> None:
    failing = {f"i-{number}": FAILED for number in range(1, 501)}
    now = inputs(attempts=failing, now=9_999.0, cap=10, free={HERE: 10}, fresh_since=9_994.0)
    made = enforce(many(510, at=1.0), now)
    assert sorted(written(made)) == sorted(f"i-{number}" for number in range(501, 511))
    assert {f"i-{number}" for number in range(501, 511)} <= {one for _, one in made.ahead}
    assert len(made.ahead) == 200


def test_nothing_is_left_where_all_is_as_it_should_be() -> None:
    made = enforce([found(1, GOOD)], inputs())
    assert (made.phase, made.writes, made.wake, made.attempts) == ("Enforced", (), None, {})


def test_a_pending_instance_is_not_touched_before_its_timeout_and_once_after() -> None:
    one = found(1, GOOD, pending=True)
    attempts = {"i-1": sent(ChangeAttempt(), 900.0, CALL)}
    early = enforce([one], inputs(attempts=attempts, now=1_019.9))
    assert (early.writes, early.pending, early.wake) == ((), 1, POLL_SECONDS)
    late = enforce([one], inputs(attempts=attempts, now=1_020.0))
    assert (written(late), late.changed) == (["i-1"], ())
    first = enforce([one], inputs(attempts=attempts, now=1_020.0, canary=canaries(canary("Changing", 1))))
    assert (written(first), dict(first.writes[0].options)) == (["i-1"], CALL)
    again = {"i-1": sent(attempts["i-1"], 1_020.0, CALL)}
    assert written(enforce([one], inputs(attempts=again, now=1_139.0))) == []
    over = enforce([one], inputs(attempts=again, now=1_140.0))
    assert (over.writes, over.attempts["i-1"].trouble[0], over.pending) == ((), "NotApplied", 0)
    after = enforce([one], inputs(attempts=dict(over.attempts), now=1_150.0))
    assert (after.writes, after.pending, after.phase, after.wake) == ((), 0, "Enforced", None)


def test_another_process_repeats_the_fields_of_a_canary_alone() -> None:
    """Of all others, another client may have changed the values since the read."""
    one = found(1, GOOD, pending=True)
    attempts = {"i-1": ChangeAttempt(sent_at=900.0)}
    made = enforce([one], inputs(attempts=attempts, now=1_020.0, canary=canaries(canary("Changing", 1))))
    assert [dict(write.options) for write in made.writes] == [CALL]
    unknown = enforce([one], inputs(attempts=attempts, now=1_020.0, canary_instances=0))
    assert (unknown.writes, unknown.attempts["i-1"].trouble[0]) == ((), "NotApplied")


def test_what_another_policy_has_sent_is_not_sent_again_by_this_one() -> None:
    one = found(1, GOOD, pending=True)
    followed = enforce([one], inputs(others={"i-1"}))
    assert (followed.attempts, followed.pending) == ({}, 1)
    seen = enforce([one], inputs(now=500.0))
    later = inputs(attempts=dict(seen.attempts), now=1_000.0)
    other = enforce([one], later)
    assert (other.writes, other.pending, other.wake) == ((), 0, None), "nor changes of another client"
    assert other.attempts["i-1"].trouble[0] == "NotApplied"
    for known in ({"watched": watched(changed(1))}, {"canary": canaries(canary("Changing", 1))}):
        ours = msgspec.structs.replace(later, **known)
        assert written(enforce([one], ours)) == ["i-1"], "but what a process has sent that is no more"


def test_what_differs_while_another_change_is_pending_waits_for_it() -> None:
    made = enforce([found(1, pending=True)], inputs())
    assert (made.writes, made.left, made.pending, made.phase) == ((), 0, 1, "Changing")


def test_a_stopped_instance_is_changed_and_not_waited_for() -> None:
    made = enforce([found(1, state="stopped", pending=True)], inputs())
    assert written(made) == ["i-1"]
    assert enforce([found(1, GOOD, state="stopped", pending=True)], inputs()).phase == "Enforced"


def test_failing_ones_come_last_and_wait_for_their_backoff() -> None:
    later = enforce(many(3), inputs(attempts={"i-1": FAILED}))
    assert written(later) == ["i-2", "i-3"]
    again = enforce(many(3), inputs(attempts={"i-1": FAILED}, now=1_020.0))
    assert written(again) == ["i-2", "i-3", "i-1"]


@pytest.mark.parametrize(
    ("more", "count"), [({"cap": 2}, 2), ({"free": {HERE: 3}}, 3), ({"cap": 0}, 0), ({"free": {}}, 0)]
)
def test_no_more_are_changed_than_are_free(more: dict[str, Any], count: int) -> None:
    made = enforce(many(9), inputs(**more))
    assert len(made.writes) == count
    assert made.left == 9


def test_a_pass_changes_so_many() -> None:
    made = enforce(many(300), inputs(cap=1_000, free={HERE: 1_000}))
    assert (len(made.writes), made.ahead) == (BATCH, ())


def test_a_region_that_is_used_up_holds_up_no_other() -> None:
    far = "us-east-1"
    every = [found(1), found(2, region=far), found(3), found(4, region=far)]
    assert written(enforce(every, inputs(free={HERE: 0, far: 1}))) == ["i-2"]
    assert written(enforce(every, inputs(free={HERE: 1, far: 1}))) == ["i-1", "i-2"]


def test_each_policy_sends_its_own_options_and_the_losers_nothing() -> None:
    tokens = PolicyOptions("q", 200, Options(http_tokens="required"))
    made = enforce([found(1, Options(1, "optional", "enabled"), tokens)], inputs())
    assert [dict(w.options) for w in made.writes] == [CALL]
    loses = enforce([found(1, BAD, PolicyOptions("q", 200, Options(3)))], inputs())
    assert (loses.writes, loses.phase) == ((), "Enforced")


# ---------------------------------------------------------------- blocked changes


def test_a_held_change_is_told_and_the_others_are_made() -> None:
    made = enforce([found(1, WORST)], inputs(loosening=()))
    assert [dict(w.options) for w in made.writes] == [{"HttpTokens": "required"}]
    assert [(one, why.reason) for one, why in made.blocked] == [("i-1", "LooseningNotAllowed")]


def test_what_is_only_held_is_no_reversal_and_nothing_to_change() -> None:
    attempts = {"i-1": ChangeAttempt(sent_at=10.0, landed=True, options=CALL)}
    made = enforce([found(1)], inputs(loosening=(), attempts=attempts))
    assert (made.left, made.phase, made.fighting, made.attempts) == (0, "Enforced", 0, {})
    assert len(made.blocked) == 1


def test_where_nothing_may_be_changed_the_last_attempt_goes_on_by_what_is_seen() -> None:
    attempt = ChangeAttempt(sent_at=990.0, options=CALL)
    waits = enforce([found(1, pending=True)], inputs(loosening=(), attempts={"i-1": attempt}))
    assert (waits.pending, waits.attempts, len(waits.blocked)) == (1, {}, 1)
    landed = enforce([found(1)], inputs(loosening=(), attempts={"i-1": attempt}))
    assert landed.attempts == {"i-1": msgspec.structs.replace(attempt, landed=True)}
    done = enforce([found(1, GOOD)], inputs(attempts={"i-1": attempt}))
    assert done.attempts == landed.attempts
    of_another_process = enforce([found(1)], inputs(attempts={"i-1": ChangeAttempt(sent_at=990.0)}))
    assert of_another_process.attempts == {"i-1": ChangeAttempt()}
    gone = enforce([found(1, state="terminated")], inputs(attempts={"i-1": attempt}))
    assert gone.attempts == {"i-1": ChangeAttempt()}


def test_tags_that_the_metadata_service_cannot_show_are_not_enabled() -> None:
    tags = PolicyOptions(ME, 100, Options(instance_metadata_tags="enabled"))
    made = enforce([found(1, Options(2, instance_metadata_tags="disabled"), mine=tags)], inputs())
    assert [why.reason for _, why in made.blocked] == ["TagKeysUnfit"]
    fit = found(1, Options(2, instance_metadata_tags="disabled"), mine=tags, unfit_tags=False)
    assert enforce([fit], inputs(loosening=("Tags",), canary_instances=0)).blocked == ()


def test_an_account_that_enforces_imdsv2_is_not_asked_for_optional_tokens() -> None:
    both = PolicyOptions(ME, 100, Options(2, "optional"))
    one = found(1, Options(1, "required"), mine=both)
    open_all = ("HopLimit", "Tokens")
    made = enforce([one], inputs(loosening=open_all, enforced={one.region: "no way"}))
    assert [(why.change.field, why.reason, why.message) for _, why in made.blocked] == [
        ("httpTokens", "BlockedByAccountPolicy", "no way")
    ]
    assert [write.options for write in made.writes] == [{"HttpPutResponseHopLimit": 2}], "the rest is set"
    far = msgspec.structs.replace(one, instance="i-2", region="us-west-2")
    free = {one.region: 9, far.region: 9}
    made = enforce([one, far], inputs(loosening=open_all, enforced={one.region: "no way"}, free=free))
    assert {write.region: write.options.get("HttpTokens") for write in made.writes} == {
        one.region: None,
        far.region: "optional",
    }
    for enforced in ({one.region: ""}, {"us-west-2": "no way"}, {}):
        free = enforce([one], inputs(loosening=open_all, enforced=enforced))
        assert free.blocked == ()
        assert [write.options["HttpTokens"] for write in free.writes] == ["optional"]
    still = found(1, Options(1, "optional"), mine=both)
    open_still = enforce([still], inputs(loosening=open_all, enforced={one.region: "no way"}))
    assert open_still.blocked == (), "it keeps what it has"


def test_three_reversals_leave_it_alone_and_a_spec_edited_three_times_does_not() -> None:
    attempt = ChangeAttempt(sent_at=10.0, landed=True, options=CALL, reversals=(700.0, 800.0))
    fought = enforce([found(1)], inputs(attempts={"i-1": attempt}))
    assert (fought.fighting, written(fought)) == (1, [])
    assert fought.attempts["i-1"].not_before == 1_000.0 + 3_600.0
    edited = msgspec.structs.replace(attempt, options={**CALL, "HttpPutResponseHopLimit": 1})
    changed = enforce([found(1)], inputs(attempts={"i-1": edited}))
    assert (changed.fighting, written(changed)) == (0, ["i-1"])


def test_what_the_account_blocks_is_told_while_it_differs() -> None:
    attempt = failed(ChangeAttempt(options=CALL), 990.0, "BlockedByAccountPolicy", "no", wait=86_400.0)
    assert enforce([found(1)], inputs(attempts={"i-1": attempt})).account_blocked == ("no",)
    assert enforce([found(1, GOOD)], inputs(attempts={"i-1": attempt})).account_blocked == ()
    other = found(1, mine=PolicyOptions("p", 100, Options(3)))
    three = passed(FieldChange(HOP, "1", "3"))
    made = enforce(
        [other], inputs(attempts={"i-1": attempt}, options={HOP: 3}, canary=canaries(stood=(three,)))
    )
    assert written(made) == ["i-1"], "another call may be allowed"


def test_failures_are_told_in_place_of_drift() -> None:
    one = found(1)
    assert with_failure(one, None) is one
    assert with_failure(one, FAILED).result.state == "failed"
    assert (with_failure(one, FAILED).result.reason, with_failure(one, FAILED).result.message) == (
        "InternalError",
        "no luck",
    )
    fighting = ChangeAttempt(reversals=(1.0, 2.0, 3.0))
    fought = with_failure(one, fighting).result
    assert (fought.state, fought.reason, fought.message, fought.changes) == (
        *("failed", "Fighting", "another client reverted it 3 times in an hour"),
        one.result.changes,
    )
    pending, late = found(1, GOOD, pending=True), failed(ChangeAttempt(), 990.0, "NotApplied", "late")
    assert with_failure(pending, ChangeAttempt()) is pending
    assert (with_failure(pending, late).result.state, with_failure(pending, late).result.message) == (
        "failed",
        "late",
    )
    assert with_failure(found(1, GOOD), fighting).result.state == "compliant"


def test_a_closing_change_is_made_only_where_its_name_is_given() -> None:
    made = enforce([found(1, Options(2, "optional", "enabled"))], inputs(tightening=()))
    assert (made.writes, made.phase) == ((), "Enforced")
    assert [why.reason for _, why in made.blocked] == ["TighteningNotAllowed"]


def test_a_hop_limit_that_pods_were_measured_to_need_more_than_is_held() -> None:
    both = [found(1), found(2, group=OTHER)]
    made = enforce(
        both, inputs(needed={OTHER: 3}, canary=canaries(stood=(passed(RAISE), passed(RAISE, OTHER))))
    )
    assert written(made) == ["i-1"]
    assert [(one, why.reason) for one, why in made.blocked] == [("i-2", "HopLimitTooLow")]
    assert made.blocked[0][1].message == (
        "pods of KarpenterNodePool/b need hop limit 3, as measured by the probe: set "
        "spec.options.httpPutResponseHopLimit to 3, or exclude the group"
    )
    tokens = enforce([found(1, Options(2, "optional"))], inputs(needed={GROUP: 9}))
    assert (written(tokens), tokens.blocked) == (["i-1"], ())
    assert len(enforce(both, inputs(needed={OTHER: 2})).blocked) == 0


# ---------------------------------------------------------------- the canary


def chosen(made: Enforced) -> dict[tuple[str, str], list[str]]:
    groups = made.canary.groups if made.canary is not None else ()
    return {(one.kind, one.name): [each.instance for each in one.instances] for one in groups}


def test_before_a_canary_has_passed_nothing_else_is_changed() -> None:
    made = enforce(many(5), inputs(canary=None))
    assert (written(made), made.phase) == (["i-1"], "CanaryChanging")
    assert made.canary is not None
    assert (made.canary.instances, made.canary.phase) == (("i-1",), "Changing")
    assert chosen(made) == {GROUP: ["i-1"]}
    again = enforce(many(5), inputs(canary=made.canary))
    assert (written(again), chosen(again)) == (["i-1"], {GROUP: ["i-1"]})


def test_without_canaries_all_are_changed_and_none_is_watched() -> None:
    none = enforce(many(5), inputs(canary=None, canary_instances=0))
    assert (len(none.writes), none.canary, none.changed) == (5, None, ())


def test_each_group_has_its_own_canary() -> None:
    every = [*many(3), *(found(number, group=OTHER) for number in (4, 5)), found(6, group=("", ""))]
    made = enforce(every, inputs(canary=None))
    assert chosen(made) == {GROUP: ["i-1"], OTHER: ["i-4"], ("", ""): ["i-6"]}
    assert written(made) == ["i-1", "i-4", "i-6"]
    stood = enforce(every, inputs(canary=canaries(stood=(passed(RAISE),))))
    assert written(stood) == ["i-4", "i-6", "i-1", "i-2", "i-3"], "canaries first"


def test_each_change_has_its_own_canary_and_one_at_a_time() -> None:
    closing = Options(2, "optional", "enabled")
    every = [found(1), *(found(number, closing) for number in (2, 3))]
    made = enforce(every, inputs(canary=None))
    assert written(made) == ["i-1"]
    raised = [found(1, GOOD), *every[1:]]
    assert enforce(raised, inputs(canary=canaries(canary("Soaking", 1)))).writes == ()
    then = enforce(raised, inputs(canary=canaries(stood=(passed(RAISE),))))
    assert (written(then), chosen(then)) == (["i-2"], {GROUP: ["i-2"]})
    assert dict(then.writes[0].options) == {"HttpTokens": "required"}


def test_a_change_from_another_value_is_another_change() -> None:
    """As when a policy of higher priority is deleted."""
    from_three = [found(number, Options(3, "required", "enabled")) for number in (1, 2, 3)]
    lower = {"tightening": ("HopLimit", "Tokens"), "loosening": ("HopLimit",)}
    made = enforce(from_three, inputs(**lower))
    assert (written(made), chosen(made)) == (["i-1"], {GROUP: ["i-1"]})


def test_one_that_differs_in_more_than_what_has_passed_is_not_changed() -> None:
    both = [found(number, Options(1, "optional", "enabled")) for number in (1, 2, 3)]
    for change in (RAISE, CLOSE):
        made = enforce(both, inputs(canary=canaries(stood=(passed(change),))))
        assert (written(made), chosen(made)) == (["i-1"], {GROUP: ["i-1"]})


@pytest.mark.parametrize(("closed", "canary"), [(False, {GROUP: ["i-2"]}), (True, {})])
@pytest.mark.parametrize(
    ("mine", "change", "keeps", "loses"),
    [
        pytest.param(
            Options(1), LOWER, Options(2, "optional"), Options(2, "required"), id="a lower hop limit"
        ),
        pytest.param(
            *(Options(None, "required"), CLOSE, Options(2, "optional"), Options(1, "optional")),
            id="required tokens",
        ),
    ],
)
def test_what_pods_would_lose_all_by_has_passed_only_on_such_a_canary(
    mine: Options,
    change: FieldChange,
    keeps: Options,
    loses: Options,
    closed: bool,
    canary: dict[Group, list[str]],
) -> None:
    """Hop limit 1 stops IMDSv2 and required tokens stop IMDSv1. An older version did not record it."""
    policy = PolicyOptions(ME, 100, mine)
    every = [found(number, has, mine=policy) for number, has in enumerate((keeps, loses, loses), 1)]
    stood = canaries(stood=(passed(change, closed_to_pods=closed),))
    wanted = dict(mine.given())
    made = enforce(every, inputs(canary=stood, options=wanted, tightening=("HopLimit", "Tokens")))
    assert chosen(made) == canary
    assert sorted(written(made)) == (["i-1", "i-2", "i-3"] if closed else ["i-1", "i-2"])


@pytest.mark.parametrize(("group", "kept"), [(GROUP, True), (("", ""), True), (OTHER, False)])
def test_a_failed_canary_is_kept_while_an_unknown_instance_may_be_of_its_group(
    group: Group, kept: bool
) -> None:
    every = [found(1, GOOD), found(9, group=group, tagged=False)]
    made = enforce(every, inputs(canary=canaries(canary("Failed", 1))))
    assert chosen(made) == ({GROUP: ["i-1"]} if kept else {})


def test_canaries_have_so_many_instances_together() -> None:
    """Status lists each of them, and has to fit into a resource."""
    none: dict[str, Any] = {"canary": None, "free": {HERE: 5_000}, "cap": 5_000}
    groups = [("KarpenterNodePool", f"g{number}") for number in range(30)]
    every = [found(number, group=group) for number, group in enumerate(groups)]
    for size in (50, 91):  # one more would be missing to the last canary of 91
        assert len(enforce(every, inputs(**none, canary_instances=size)).writes) == MAX_CANARIES // size
    assert len(enforce(every, inputs(**none, canary_instances=10)).writes) == 30
    running = canaries(*(canary("Changing", 1_000 + n, group=group) for n, group in enumerate(groups[:20])))
    more = [*(found(1_000 + n, group=group) for n, group in enumerate(groups[:20])), *every]
    made = enforce(more, inputs(**{**none, "canary": running}, canary_instances=50))
    assert [len(instances) for instances in chosen(made).values()] == [2] * 20, "others join those that run"


def test_where_as_many_canaries_failed_as_fit_into_status_another_takes_the_place_of_each() -> None:
    groups = [("KarpenterNodePool", f"g{number}") for number in range(MAX_GROUPS)]
    lost = canaries(*(canary("Failed", 10_000 + n, group=group) for n, group in enumerate(groups)))
    every = [found(number, group=group) for number, group in enumerate(groups)]
    assert len(enforce(every, inputs(canary=lost)).writes) == 50
    assert len(enforce(every, inputs(canary=lost, canary_instances=3)).writes) == 50, "they take no place"
    one_more = [found(number, group=("AutoScalingGroup", "g")) for number in (1, 2)]
    assert enforce(one_more, inputs(canary=lost)).writes == ()


@pytest.mark.parametrize(("watches", "chooses"), [(MAX_CHANGED + MAX_CANARIES - 1, True), (0, False)])
def test_a_canary_waits_where_status_has_no_room_to_watch_its_instances(watches: int, chooses: bool) -> None:
    """As where those of hundreds of failed canaries still have their change."""
    count = watches or MAX_CHANGED + MAX_CANARIES
    full = watched(*(changed(number) for number in range(1_000, 1_000 + count)))
    there = [found(number, GOOD) for number in range(1_000, 1_000 + count)]
    made = enforce([found(1), *there], inputs(canary=None, watched=full))
    assert [one.instance for one in made.writes] == ["i-1"] * chooses
    away = enforce([found(1, ready=False), *there], inputs(canary=None, watched=full))
    assert ("changed instances are watched" in away.message) is not chooses
    full_text = (
        "; 2000 changed instances are watched until their change has passed, and status has room for 2000 "
        "with those of canaries: set spec.mode to Audit and back to Enforce, which ends the watches; 1 "
    )
    assert (full_text in made.message) is not chooses


def test_one_that_joins_in_a_group_whose_change_has_passed_is_changed_at_once() -> None:
    made = enforce([found(9), found(8, Options(1, "optional", "enabled"))], inputs())
    assert (written(made), chosen(made)) == (["i-8", "i-9"], {})
    changes = [
        ((one.kind, one.name), one.changes, [each.instance for each in one.instances]) for one in made.changed
    ]
    assert changes == [(GROUP, (RAISE, CLOSE), ["i-8"]), (GROUP, (RAISE,), ["i-9"])]
    assert written(enforce([found(9), found(7, group=OTHER)], inputs())) == ["i-7", "i-9"]


def test_a_canary_has_as_many_as_are_asked_for_with_the_same_changes() -> None:
    every = [found(1), found(2, WORST), found(3), found(4)]
    made = enforce(every, inputs(canary=None, canary_instances=2))
    assert chosen(made) == {GROUP: ["i-1", "i-3"]}
    one = canaries(canary("Changing", 1))
    joined = enforce(every, inputs(canary=one, canary_instances=2))
    assert chosen(joined) == {GROUP: ["i-1", "i-3"]}
    soaks = canaries(canary("Soaking", 1, since=WALL - 1_000))
    late = enforce([found(1, GOOD), *every[1:]], inputs(canary=soaks, canary_instances=2))
    assert (written(late), chosen(late)) == (["i-3"], {GROUP: ["i-1", "i-3"]}), "no canary of one passes"
    whole = canaries(canary("Soaking", 1, 3))
    full = enforce([found(1, GOOD), found(3, GOOD), *every[3:]], inputs(canary=whole, canary_instances=2))
    assert (written(full), chosen(full), full.phase) == ([], {GROUP: ["i-1", "i-3"]}, "CanarySoaking")


def test_a_canary_waits_for_the_pace_before_it_soaks() -> None:
    every = [found(1, GOOD), found(2), found(3)]
    given: dict[str, Any] = {"canary_instances": 2, "canary_soak": 60.0}
    waits = inputs(canary=canaries(canary("Changing", 1, since=WALL - 900)), cap=0, wait=40.0, **given)
    made = enforce(every, waits)
    assert (made.writes, made.phase, made.wake) == ((), "CanaryChanging", 40.0)
    assert made.canary is not None
    assert (made.canary.phase, chosen(made)) == ("Changing", {GROUP: ["i-1"]})
    joined = enforce(every, inputs(canary=made.canary, **given))
    assert (written(joined), chosen(joined)) == (["i-2"], {GROUP: ["i-1", "i-2"]})
    soaks = enforce([found(1, GOOD), found(2, GOOD), found(3)], inputs(canary=joined.canary, **given))
    assert soaks.canary is not None
    assert (soaks.writes, soaks.canary.phase, soaks.canary.since) == ((), "Soaking", format_time(WALL))


@pytest.mark.parametrize(
    ("other", "more"),
    [
        pytest.param(found(2, ready=False), {}, id="its Node is not Ready"),
        pytest.param(found(2, state="stopped"), {}, id="it does not run"),
        pytest.param(found(2, provable=False), {}, id="no probe can verify it"),
        pytest.param(found(2, GOOD), {}, id="it has the change"),
        pytest.param(found(2, pending=True), {}, id="another change of it is pending"),
        pytest.param(found(2, WORST), {}, id="it needs another change as well"),
        pytest.param(found(2, group=OTHER), {}, id="it is in another group"),
        pytest.param(found(2), {"attempts": {"i-2": FAILED}}, id="EC2 refused its change"),
        pytest.param(
            found(2),
            {"attempts": {"i-2": FAILED}, "now": 9_999.0},
            id="EC2 refused it, and it is to be retried",
        ),
        pytest.param(
            found(2),
            {"attempts": {"i-2": ChangeAttempt(reversals=(1.0, 2.0, 3.0), not_before=2_000.0)}},
            id="a fight",
        ),
        pytest.param(found(2), {"canary_instances": 1}, id="one is enough"),
        pytest.param(found(2), {"canary_instances": MAX_CANARIES + 1}, id="status has no room"),
    ],
)
def test_a_canary_waits_for_no_instance_that_may_never_join(other: Any, more: dict[str, Any]) -> None:
    """cap: no other canary may be chosen either."""
    given = {"canary_instances": 2, "cap": 0, **more}
    changing = canaries(canary("Changing", 1))
    made = enforce([found(1, GOOD), other], inputs(canary=changing, **given))
    assert made.canary is not None
    assert [one.phase for one in made.canary.groups] == ["Soaking"]


def test_a_canary_waits_for_another_instance_while_status_has_room_for_it() -> None:
    """A failed canary of another group takes none."""
    both = canaries(canary("Changing", 1), canary("Failed", 3, group=OTHER))
    made = enforce([found(1, GOOD), found(2)], inputs(canary=both, canary_instances=MAX_CANARIES, cap=0))
    assert made.canary is not None
    assert {(one.kind, one.name): one.phase for one in made.canary.groups}[GROUP] == "Changing"


def test_a_canary_that_soaks_is_given_no_more_instances_than_status_has_room_for() -> None:
    """spec.safety.canary.instances was raised."""
    groups = [("KarpenterNodePool", f"g{number}") for number in range(21)]
    soaking = canaries(*(canary("Soaking", 1_000 + n, group=group) for n, group in enumerate(groups)))
    every = [
        one
        for n, group in enumerate(groups)
        for one in (found(1_000 + n, GOOD, group=group), found(n, group=group))
    ]
    many_more: dict[str, Any] = {"canary": soaking, "free": {HERE: 5_000}, "cap": 5_000}
    made = enforce(every, inputs(**many_more, canary_instances=50))
    assert (made.writes, made.phase) == ((), "CanarySoaking")
    assert len(enforce(every, inputs(**many_more, canary_instances=47)).writes) == 21
    changing = canaries(*(canary("Changing", 1_000 + n, group=group) for n, group in enumerate(groups)))
    raised = enforce(every, inputs(**{**many_more, "canary": changing}, canary_instances=50))
    assert raised.canary is not None
    assert (raised.writes, raised.canary.phase) == ((), "Soaking")


def test_one_that_cannot_be_sent_is_not_chosen() -> None:
    late = failed(ChangeAttempt(options=CALL), 990.0, "InternalError", "no luck")
    made = enforce(many(3), inputs(canary=None, attempts={"i-1": late}))
    assert written(made) == ["i-2"]
    busy = enforce(many(3), inputs(canary=None, free={HERE: 0}))
    assert (busy.writes, busy.canary) == ((), None)
    again = enforce(many(1), inputs(canary=None, attempts={"i-1": late}, now=1_020.0))
    assert written(again) == ["i-1"], "where there is no other"


def test_while_it_soaks_nothing_is_changed() -> None:
    every = [found(1, GOOD), *many(5)[1:]]
    made = enforce(every, inputs(canary=canaries(canary("Soaking", 1, since=WALL - 60))))
    assert (made.writes, made.phase) == ((), "CanarySoaking")
    assert made.wake == 60.0, "it is read once a minute"
    soon = enforce(every, inputs(canary=canaries(canary("Soaking", 1, since=WALL - 90))))
    assert soon.wake == 31.0
    last = enforce(every, inputs(canary=canaries(canary("Soaking", 1, since=WALL - 120))))
    assert last.wake == 1.0
    later = enforce(every, inputs(canary=canaries(canary("Soaking", 1, since=WALL - 121))))
    assert (len(later.writes), later.canary and later.canary.phase) == (4, "Passed")


def test_why_a_closing_change_stands_longer_is_told() -> None:
    every = [found(1, GOOD), found(2, Options(2, "optional", "enabled"))]
    made = enforce(every, inputs(canary=canaries(canary("Soaking", 1, changes=(CLOSE,)))))
    assert "a closing change soaks at least 15 min" in made.message
    assert format_time(WALL + 901) in made.message


def test_a_canary_that_cannot_be_probed_any_more_is_told_after_its_soak() -> None:
    long, short = (canary("Soaking", 1, since=WALL - ago) for ago in (500, 30))
    given: dict[str, Any] = {"proved": frozenset[str](), "unprobed": {"i-1": "its endpoint is disabled"}}
    every = [found(1, GOOD), found(2)]
    made = enforce(every, inputs(canary=canaries(long), **given))
    assert (made.writes, made.phase, made.hold, chosen(made)) == ((), "NotProbeable", True, {GROUP: ["i-1"]})
    assert made.message.startswith(
        "Canary i-1 of EKSManagedNodegroup/a has soaked, and cannot be probed: its endpoint is disabled; 1"
    )
    assert made.wake == READY_SECONDS
    ends = inputs(canary=canaries(canary("Soaking", 1, since=WALL - 121)), **given)
    assert enforce(every, ends).phase == "NotProbeable"
    for canary_, more in (
        (short, {}),
        (long, {"proved": None}),
        (long, {"unprobed": {"i-2": "it is no canary"}}),
        (msgspec.structs.replace(long, phase="Changing"), {}),
    ):
        assert enforce(every, inputs(canary=canaries(canary_), **given | more)).phase != "NotProbeable"
    fresh = enforce(every, inputs(canary=canaries(long), **given | {"proved": frozenset(["i-1"])}))
    assert fresh.phase == "Changing"
    other = canary("Soaking", 3, since=WALL - 500, group=("KarpenterNodePool", "b"))
    both = enforce(
        [*every, found(3, GOOD, group=("KarpenterNodePool", "b"))],
        inputs(canary=canaries(long, other), **given),
    )
    assert both.phase == "CanarySoaking", "not while another one may go on"


def test_nothing_is_waited_for_beside_a_failed_canary_where_no_other_can_be_probed() -> None:
    left = msgspec.structs.replace(found(2), provable=False)
    made = enforce([found(1, GOOD), left], inputs(canary=canaries(canary("Failed", 1)), proved=frozenset()))
    assert (made.phase, made.hold, made.wake) == ("NotProbeable", True, None)


def test_one_canary_holds_up_no_other_group() -> None:
    every = [found(1, GOOD), found(2), found(3, group=OTHER), found(4, group=OTHER)]
    here = canaries(canary("Soaking", 1), stood=(passed(RAISE, OTHER),))
    made = enforce(every, inputs(canary=here))
    assert (written(made), made.phase) == (["i-3", "i-4"], "Changing")


def test_one_of_a_canary_that_has_its_change_is_sent_nothing_else() -> None:
    changing = canaries(canary("Changing", 1, 2, changes=(CLOSE,)))
    made = enforce([found(1), found(2, Options(2, "optional", "enabled"))], inputs(canary=changing))
    assert written(made) == ["i-2"]


def test_a_canary_sends_its_own_changes_alone() -> None:
    made = enforce([found(1, WORST)], inputs(canary=canaries(canary("Changing", 1, changes=(CLOSE,)))))
    assert [dict(one.options) for one in made.writes] == [{"HttpTokens": "required"}]


def test_nothing_else_is_changed_of_a_canary_while_it_stands() -> None:
    stands = canaries(canary("Soaking", 1, changes=(CLOSE,)), stood=(passed(RAISE),))
    made = enforce([found(1), found(2)], inputs(canary=stands))
    assert (written(made), chosen(made)) == (["i-2"], {GROUP: ["i-1"]})


@pytest.mark.parametrize(
    ("more", "phase", "why"),
    [
        ({"ready": False}, "CanaryChanging", "its Node is not Ready"),
        ({"state": "stopped"}, "CanaryChanging", "it is not running"),
        ({"state": "pending"}, "CanaryChanging", "it is not running"),
        ({"provable": False}, "NotProbeable", ""),
    ],
)
def test_a_canary_is_an_instance_that_runs_on_a_ready_node_and_can_be_proved(
    more: dict[str, Any], phase: str, why: str
) -> None:
    made = enforce([found(1, **more), found(2)], inputs(canary=None))
    assert written(made) == ["i-2"]
    none = enforce([found(1, **more)], inputs(canary=None))
    assert (none.writes, none.phase, none.canary) == ((), phase, None)
    assert f"i-1 (node n1): {why}" in none.message
    assert (none.hold, none.wake) == ((False, READY_SECONDS) if why else (True, None))


def test_a_canary_is_on_a_cordoned_node_only_if_there_is_no_other() -> None:
    assert written(enforce([found(1, cordoned=True), found(2)], inputs(canary=None))) == ["i-2"]
    assert written(enforce([found(1, cordoned=True)], inputs(canary=None))) == ["i-1"]


def test_of_two_nodes_with_one_instance_the_one_that_is_not_ready_counts() -> None:
    away, stood = found(1, GOOD, ready=False), inputs(watched=watched(changed(1, applied=True)))
    twin = msgspec.structs.replace(found(1, GOOD), node="n9")
    for every in ([away, twin], [twin, away]):
        made = enforce([*every, found(2)], stood)
        assert (made.writes, made.phase) == ((), "NodeNotReady")


def test_a_canary_that_is_lost_stops_all_and_another_one_follows_when_it_is_resumed() -> None:
    made = enforce(many(5)[1:], inputs(canary=canaries(canary("Changing", 1), stood=(passed(RAISE, OTHER),))))
    assert (made.writes, made.phase, made.hold) == ((), "BreakerOpen", True)
    assert made.breaker is not None
    assert (made.breaker.reason, made.breaker.instance, made.breaker.node) == ("CanaryLost", "i-1", "n1")
    assert made.message.startswith(
        "CanaryLost: instance i-1 (node n1) was terminated or its Node was deleted"
    )
    assert "`caretaker resume imdspolicy p`" in made.message
    stays = inputs(canary=made.canary, breaker=made.breaker)
    assert enforce(many(5)[1:], stays).writes == ()
    resumed = enforce(many(5)[1:], msgspec.structs.replace(stays, resumed_at=WALL + 1.0))
    assert (resumed.closed, resumed.breaker, written(resumed), chosen(resumed)) == (
        *(True, None, ["i-2"]),
        {GROUP: ["i-2"]},
    )


def test_after_a_canary_that_failed_another_instance_comes_first() -> None:
    failed_one = canaries(canary("Failed", 1))
    made = enforce(many(3), inputs(canary=failed_one))
    assert chosen(made) == {GROUP: ["i-2"]}
    alone = enforce(many(1), inputs(canary=failed_one))
    assert chosen(alone) == {GROUP: ["i-1"]}
    waits = enforce(many(3), inputs(canary=failed_one, free={}))
    assert chosen(waits) == {GROUP: ["i-1"]}, "it is known until there is another"
    nothing = enforce([found(1, GOOD)], inputs(canary=failed_one))
    assert nothing.canary is None


def test_what_is_not_known_of_a_canary_replaces_it_by_no_other() -> None:
    soaking = canaries(canary("Soaking", 1))
    made = enforce([found(1, GOOD, unasked="EC2 is away"), found(2)], inputs(canary=soaking))
    assert (chosen(made), made.writes) == ({GROUP: ["i-1"]}, ())
    unmeant = enforce([found(2)], inputs(canary=soaking), [found(1, GOOD, unasked="EC2 is away")])
    assert (chosen(unmeant), unmeant.writes) == ({GROUP: ["i-1"]}, ())


def test_one_that_is_meant_no_more_is_watched_and_another_is_the_canary() -> None:
    other = PolicyOptions("q", 100, Options(5))
    made = enforce([found(2)], inputs(canary=canaries(canary("Soaking", 1))), [found(1, GOOD, mine=other)])
    assert (written(made), chosen(made)) == (["i-2"], {GROUP: ["i-2"]})
    assert [one.instance for group in made.changed for one in group.instances] == ["i-1"]


def test_what_is_watched_is_bounded_and_the_others_wait() -> None:
    full = watched(*(changed(number) for number in range(1_000, 1_000 + MAX_CHANGED - 2)))
    there = [found(number, GOOD) for number in range(1_000, 1_000 + MAX_CHANGED - 2)]
    made = enforce([*there, *many(5)], inputs(watched=full))
    assert len(made.writes) == 2
    assert sum(len(group.instances) for group in made.changed) == MAX_CHANGED


# ---------------------------------------------------------------- fresh readings


def test_what_was_read_long_ago_is_read_again_before_it_is_changed_with_what_comes_next() -> None:
    old = many(300, at=994.9)
    made = enforce(old, inputs(fresh_since=995.0))
    assert len(made.ahead) == AHEAD
    assert made.ahead[0] == (HERE, "i-1")
    assert made.wake == 0.1
    fresh = [found(1, at=995.0), *old[1:]]
    assert enforce(fresh, inputs(fresh_since=995.0, cap=1)).ahead == ()


def test_a_canary_is_read_again_before_it_passes() -> None:
    due = canaries(canary("Soaking", 1, since=WALL - 121))
    made = enforce([found(1, GOOD, at=994.9), found(2, at=999.0)], inputs(canary=due, fresh_since=995.0))
    assert (made.writes, made.ahead, made.phase) == ((), ((HERE, "i-1"), (HERE, "i-2")), "CanarySoaking")


def test_what_was_changed_is_read_again_within_a_minute_while_more_is_changed() -> None:
    def ahead(at: float, count: int = 1) -> set[str]:
        every = [found(9, GOOD, at=at), *many(count, at=1_000.0)]
        made = enforce(every, inputs(fresh_since=995.0, watched=watched(changed(9))))
        return {instance for _, instance in made.ahead}

    assert ahead(940.0) == set()
    assert ahead(939.9) == {"i-9", "i-1"}
    assert ahead(939.9, count=0) == set(), "not while nothing is changed"


def test_with_one_whose_watch_ends_the_other_old_ones_are_read() -> None:
    """One call a minute is enough for all."""
    every = [found(7, GOOD, at=939.9), found(8, GOOD, at=939.9), found(9, GOOD, at=940.0)]
    late = watched(changed(7, at=WALL - 1_000, applied=True), changed(8), changed(9))
    made = enforce(every, inputs(fresh_since=995.0, watched=late))
    assert made.ahead == ((HERE, "i-7"), (HERE, "i-8"))


# ---------------------------------------------------------------- what stops it


def test_a_missing_permission_stops_it() -> None:
    made = enforce(many(2), inputs(stopped=("AccessDenied", "no")))
    assert (made.writes, made.hold, made.phase, made.message) == ((), True, "AccessDenied", "no")


def test_the_breaker_opens_after_so_many_failures_in_a_row() -> None:
    assert enforce(many(2), inputs(failures=4)).breaker is None
    made = enforce(many(2), inputs(failures=5, last_failure="i-1: no luck"))
    said = "5 changes failed in a row; the last error is: i-1: no luck"
    assert made.breaker == BreakerStatus(GENERATION, 5, format_time(WALL), said)
    assert (made.writes, made.phase, made.hold) == ((), "BreakerOpen", True)
    assert "`caretaker resume imdspolicy p`" in made.message


def test_a_change_that_is_denied_though_it_was_allowed_stops_it() -> None:
    made = enforce(many(2), inputs(denied=("i-1", "an explicit deny")))
    assert made.breaker is not None
    assert (made.breaker.reason, made.breaker.instance) == ("ChangeDenied", "i-1")
    assert "an explicit deny" in made.message


@pytest.mark.parametrize(("options", "reason"), [(None, "InstanceLost"), (BAD, "InstanceSetBack")])
def test_what_was_changed_and_is_lost_or_set_back_stops_it_and_takes_its_pass(
    options: Options | None, reason: str
) -> None:
    there = [found(9, options)] if options is not None else []
    after = inputs(watched=watched(changed(9, applied=True)))
    made = enforce([*there, *many(3)], after)
    assert (made.writes, made.phase, made.breaker and made.breaker.reason) == ((), "BreakerOpen", reason)
    again = inputs(breaker=made.breaker, canary=made.canary, watched=made.changed, resumed_at=WALL + 1.0)
    resumed = enforce([*there, *many(3)], again)
    assert (written(resumed), chosen(resumed)) == (["i-1"], {GROUP: ["i-1"]})


def test_while_a_node_that_was_changed_is_not_ready_nothing_is_changed() -> None:
    every = [found(9, GOOD, ready=False), *many(3)]
    made = enforce(every, inputs(watched=watched(changed(9))))
    assert (made.writes, made.phase, made.hold, made.breaker) == ((), "NodeNotReady", True, None)
    assert "Node n9 is not Ready after its instance i-9 was changed" in made.message
    assert made.wake == READY_SECONDS
    back = enforce([found(9, GOOD), *many(3)], inputs(watched=made.changed))
    assert len(back.writes) == 3
    rests = enforce(every[:1], inputs(watched=watched(changed(9))))
    assert (rests.phase, rests.wake) == ("NodeNotReady", 121.0), "until it need not be watched any more"
    over = enforce(every[:1], inputs(watched=watched(changed(9, at=WALL - 121, applied=True))))
    assert (over.phase, over.wake) == ("NodeNotReady", None), "the Node's event starts a pass"
    soon = enforce([found(9, GOOD)], inputs(watched=watched(changed(9, at=WALL - 120, applied=True))))
    assert soon.wake == 1.0


def test_while_ec2_does_not_report_what_was_changed_nothing_is_changed() -> None:
    one = found(9, BAD, tagged=False)
    made = enforce([one, *many(3)], inputs(watched=watched(changed(9, applied=True))))
    assert (made.writes, made.phase, made.hold, made.breaker) == ((), "NotAsked", True, None)
    assert "unknown whether instance i-9 (node n9) still has its change: EC2 reports no tags" in made.message
    assert made.wake == WATCH_SECONDS
    rests = enforce([one], inputs(watched=made.changed))
    assert (rests.phase, rests.wake) == ("NotAsked", WATCH_SECONDS)
    assert len(enforce([found(9, GOOD), *many(3)], inputs(watched=made.changed)).writes) == 3


def test_while_a_canary_soaks_it_is_looked_at_each_minute_whatever_keeps_the_others() -> None:
    soaking = canaries(canary("Soaking", 9))
    held = inputs(canary=soaking, unproved=("Slow", "why"), proved=frozenset(), canary_soak=3_600.0)
    made = enforce([found(9, GOOD), *many(3)], held)
    assert (made.phase, made.wake) == ("Slow", 3.0), "its probe is to be asked for"
    too_wide = inputs(canary=soaking, max_drift_percent=1, canary_soak=3_600.0)
    made = enforce([found(9, GOOD), *many(3)], too_wide)
    assert (made.phase, made.wake) == ("DriftTooWide", 60.0)


def test_while_a_probe_tells_otherwise_nothing_is_changed() -> None:
    made = enforce(many(3), inputs(unproved=("SetButUnreachable", "why"), proved=frozenset()))
    assert (made.writes, made.phase, made.message, made.hold) == ((), "SetButUnreachable", "why", True)
    assert enforce([found(1, GOOD)], inputs(unproved=("Slow", "why"))).phase == "Enforced"


# ---------------------------------------------------------------- restore


RESTORE: Final[dict[str, Any]] = {
    "on_failure": "Restore",
    "breaker": BreakerStatus(GENERATION, 0, format_time(WALL), "x", "CanaryLost"),
}


def restored(made: Enforced) -> list[str]:
    """Instances of canaries that were read without the change."""
    assert made.canary is not None
    return [one.instance for group in made.canary.groups for one in group.instances if one.restored]


def test_a_failed_canary_is_given_back_where_that_is_asked_for() -> None:
    lost = canaries(canary("Soaking", 1, 2, 3, changes=(RAISE, CLOSE)))
    every = [found(2, GOOD), found(3, Options(2, "optional", "enabled")), found(4)]
    assert enforce(every, inputs(canary=lost)).writes == ()
    made = enforce(every, inputs(canary=lost, on_failure="Restore"))
    assert (made.phase, made.breaker and made.breaker.reason) == ("BreakerOpen", "CanaryLost")
    assert {one.instance: dict(one.options) for one in made.writes} == {
        "i-2": {"HttpPutResponseHopLimit": 1},
        "i-3": {"HttpPutResponseHopLimit": 1},
    }
    half = [found(2, Options(1, "required", "enabled")), *every[1:]]
    made = enforce(half, inputs(canary=made.canary, **RESTORE))
    options = {one.instance: dict(one.options) for one in made.writes}
    assert options["i-2"] == {"HttpTokens": "optional"}, "which an account that enforces IMDSv2 refuses"
    shut = (FieldChange("httpEndpoint", "disabled", "enabled"), CLOSE)
    lost = canaries(canary("Soaking", 1, 2, changes=shut))
    want = PolicyOptions(ME, 100, Options(None, "required", "enabled"))
    every = [found(2, Options(2, "required", "enabled"), mine=want)]
    made = enforce(every, inputs(canary=lost, on_failure="Restore"))
    assert [dict(one.options) for one in made.writes] == [{"HttpEndpoint": "disabled"}]


def test_what_was_read_as_given_back_is_not_given_back_again() -> None:
    """Another client may set the change on purpose."""
    failed = canaries(canary("Failed", 1, 2))
    made = enforce([found(1, GOOD), found(2)], inputs(canary=failed, **RESTORE))
    assert (written(made), restored(made)) == (["i-1"], ["i-2"])
    again = enforce([found(1, GOOD), found(2, GOOD)], inputs(canary=made.canary, **RESTORE))
    assert (written(again), restored(again)) == (["i-1"], ["i-2"]), "the first one still has the change"
    for at, inherited in ((499.0, ()), (500.0, {"i-2"})):
        known: dict[str, Any] = {"canary": failed, "inherited": inherited, "believed_since": 500.0}
        assert restored(enforce([found(2, at=at)], inputs(**known, **RESTORE))) == ["i-2"]


@pytest.mark.parametrize(
    ("one", "more"),
    [
        pytest.param(found(1, confirmed=False), {}, id="its change may be made yet"),
        pytest.param(found(1, at=499.0), {"inherited": {"i-1"}, "believed_since": 500.0}, id="it is too old"),
        pytest.param(found(1, unasked="away"), {}, id="it is not known"),
        pytest.param(
            found(1, confirmed=False),
            {"attempts": {"i-1": sent(NEW, 990.0, CALL)}},
            id="EC2 has accepted the change itself",
        ),
    ],
)
def test_not_every_reading_tells_that_it_was_given_back(one: CheckedInstance, more: dict[str, Any]) -> None:
    made = enforce([one], inputs(canary=canaries(canary("Failed", 1)), **RESTORE, **more))
    assert (written(made), restored(made)) == ([], [])


def test_what_ec2_has_accepted_is_given_back() -> None:
    """Before the next description: the change may be another client's then."""
    accepted = {"i-1": sent(NEW, 990.0, {"HttpPutResponseHopLimit": 1})}
    failed = canaries(canary("Failed", 1))
    made = enforce([found(1, confirmed=False)], inputs(canary=failed, attempts=accepted, **RESTORE))
    assert restored(made) == ["i-1"]


def test_what_ec2_did_not_answer_is_given_back_again_once_it_is_read() -> None:
    failed = canaries(canary("Failed", 1))
    waits = enforce([found(1, GOOD, confirmed=False)], inputs(canary=failed, **RESTORE))
    assert (written(waits), waits.wake) == ([], 3.0)
    assert written(enforce([found(1, GOOD)], inputs(canary=failed, **RESTORE))) == ["i-1"]


def test_what_ec2_refuses_to_give_back_is_tried_again_after_its_backoff() -> None:
    options, known = {"HttpPutResponseHopLimit": 1}, canaries(canary("Failed", 1, 2))
    attempt = failed(ChangeAttempt(options=options), 1_000.0, "Refused", "no")
    both = {"i-1": attempt, "i-2": failed(attempt, 1_000.0, "Refused", "no")}
    waits = enforce([found(1, GOOD), found(2, GOOD)], inputs(canary=known, attempts=both, **RESTORE))
    assert (written(waits), waits.wake, waits.attempts) == ([], 30.0, {})
    other = enforce([found(1, GOOD)], inputs(canary=known, attempts={"i-1": FAILED}, **RESTORE))
    assert written(other) == ["i-1"], "that was another call"
    then = inputs(canary=known, attempts={"i-1": attempt}, **RESTORE | {"now": 1_030.0})
    assert (written(enforce([found(1, GOOD)], then)), enforce([found(1, GOOD)], then).attempts) == (
        ["i-1"],
        {},
    )
    often = inputs(canary=known, failures=5, stop_after=5, **RESTORE)
    assert (written(enforce([found(1, GOOD)], often)), enforce([found(1, GOOD)], often).wake) == ([], None)
    over = enforce([found(1, GOOD)], inputs(canary=known, attempts={"i-1": attempt}))
    assert over.attempts == {"i-1": NEW}, "the breaker is closed"


@pytest.mark.parametrize(
    "one",
    [
        found(1, GOOD, unasked="the region does not answer"),
        found(1, GOOD, lost=True),
        found(1, GOOD, state="terminated"),
    ],
    ids=["its region is not read", "it is not described", "it is gone"],
)
def test_what_is_not_known_is_not_given_back_and_waited_for(one: CheckedInstance) -> None:
    """A pass that chose it would find the reading too old, and begin again at once."""
    made = enforce([one], inputs(canary=canaries(canary("Failed", 1)), **RESTORE))
    assert (written(made), restored(made)) == ([], [])
    assert made.wake is None or made.wake > 1.0


def test_what_ec2_denies_is_not_given_back() -> None:
    """Its dry run was allowed: each pass would read the instance again."""
    denied = inputs(canary=canaries(canary("Failed", 1)), denied=("i-1", ""), **RESTORE)
    assert written(enforce([found(1, GOOD)], denied)) == []


def test_the_backoff_goes_on_while_the_instance_differs_in_another_option() -> None:
    mine = PolicyOptions(ME, 100, Options(2, "required"))
    both = canaries(canary("Failed", 1, changes=(RAISE, CLOSE)))
    attempt = failed(ChangeAttempt(options={"HttpPutResponseHopLimit": 1}), 1_000.0, "Refused", "no")
    one = found(1, Options(2, "optional", "enabled"), mine=mine)
    waits = enforce([one], inputs(canary=both, attempts={"i-1": attempt}, **RESTORE))
    assert (written(waits), waits.attempts) == ([], {})


def test_only_a_canary_that_has_failed_is_given_back_and_only_while_the_breaker_is_open() -> None:
    both = canaries(canary("Failed", 1, 2), canary("Soaking", 3, group=OTHER))
    every = [found(2, GOOD), found(3, GOOD, group=OTHER), found(4)]
    opened = BreakerStatus(GENERATION, 0, format_time(WALL), "x", "CanaryLost")
    assert written(enforce(every, inputs(canary=both, breaker=opened, on_failure="Restore"))) == ["i-2"]
    held = enforce(every, inputs(canary=both, on_failure="Restore", max_drift_percent=1))
    assert (held.phase, held.writes) == ("DriftTooWide", ())


@pytest.mark.parametrize(
    "mine", [PolicyOptions(ME, 100, Options(3)), PolicyOptions(ME, 100, Options(None, "required"))]
)
def test_what_the_policy_does_not_mean_any_more_is_not_given_back(mine: PolicyOptions) -> None:
    lost = canaries(canary("Failed", 1, 2))
    opened = BreakerStatus(GENERATION, 0, format_time(WALL), "x", "CanaryLost")
    given: dict[str, Any] = {"canary": lost, "breaker": opened, "on_failure": "Restore"}
    assert written(enforce([found(1, GOOD)], inputs(**given))) == ["i-1"]
    assert written(enforce([found(1, GOOD, mine=mine)], inputs(**given))) == []


def test_what_was_before_and_is_not_known_is_not_given_back() -> None:
    unknown = FieldChange(HOP, "unknown", "2")
    lost = canaries(canary("Soaking", 1, 2, changes=(unknown,)))
    assert enforce([found(2, GOOD)], inputs(canary=lost, on_failure="Restore")).writes == ()


def test_what_is_given_back_keeps_to_the_pace_and_is_read_again_before() -> None:
    lost = canaries(canary("Soaking", 1, 2, 3))
    every = [found(number, GOOD, at=994.9) for number in (2, 3)]
    given: dict[str, Any] = {"canary": lost, "on_failure": "Restore", "fresh_since": 995.0}
    made = enforce(every, inputs(**given, cap=1))
    assert (written(made), made.ahead) == (["i-2"], ((HERE, "i-2"),))
    waits = enforce([found(2, GOOD), found(3, GOOD)], inputs(**given, cap=0, wait=7.5))
    assert (written(waits), waits.wake) == ([], 7.5), "no other event would start a pass"
    after = msgspec.structs.replace(inputs(**given, cap=1), canary=made.canary, breaker=made.breaker)
    assert written(enforce([found(2), found(3, GOOD)], after)) == ["i-3"]
    assert enforce(every, inputs(**given, stopped=("AccessDenied", "no"))).writes == ()


OPENED = WALL - 600.0


@pytest.mark.parametrize(
    ("generation", "resumed", "closed"),
    [
        (GENERATION, 0.0, False),
        (GENERATION, OPENED - 1, False),
        (GENERATION, OPENED, False),
        (GENERATION, OPENED + 1, True),
        (GENERATION, WALL + 10**6, True),
        (GENERATION - 1, 0.0, True),
    ],
)
def test_an_open_breaker_stays_so_until_a_new_spec_or_a_later_resume(
    generation: int, resumed: float, closed: bool
) -> None:
    before = BreakerStatus(generation, 5, format_time(OPENED), "x")
    made = enforce(many(2), inputs(breaker=before, resumed_at=resumed, failures=9))
    assert (made.breaker is None, made.closed, bool(made.writes)) == (closed, closed, closed)


def test_what_was_resumed_in_the_future_does_not_keep_the_next_breaker_from_standing() -> None:
    for resumed in (WALL + 0.5, WALL + 31_536_000.25):
        opened = enforce(many(2), inputs(failures=5, resumed_at=resumed)).breaker
        assert opened is not None
        again = enforce(many(2), inputs(breaker=opened, resumed_at=resumed, canary=None))
        assert (again.breaker, again.writes) == (opened, ())
        fixed = inputs(breaker=opened, resumed_at=(parse_time(opened.opened_at) or 0.0) + 0.1)
        assert enforce(many(2), fixed).closed


@pytest.mark.parametrize(("percent", "stops"), [(50, True), (74, True), (75, False), (100, False)])
def test_too_much_drift_is_not_touched(percent: int, stops: bool) -> None:
    every = [found(1), found(2), found(3), found(4, GOOD), found(5, unasked="away")]
    made = enforce(every, inputs(max_drift_percent=percent))
    assert ((made.phase == "DriftTooWide"), bool(made.writes)) == (stops, not stops)


def test_drift_that_nobody_would_change_stops_nothing() -> None:
    assert enforce(many(3), inputs(loosening=(), max_drift_percent=1)).phase == "Enforced"


def test_gates_are_told_in_order() -> None:
    all_of_them = {"stopped": ("AccessDenied", "no"), "failures": 5, "max_drift_percent": 1}
    assert enforce(many(3), inputs(**all_of_them)).phase == "AccessDenied"
    del all_of_them["stopped"]
    assert enforce(many(3), inputs(**all_of_them)).phase == "BreakerOpen"
    del all_of_them["failures"]
    assert enforce(many(3), inputs(**all_of_them)).phase == "DriftTooWide"


# ---------------------------------------------------------------- when it looks again


@pytest.mark.parametrize(
    ("more", "wake"),
    [
        ({"cap": 0, "wait": 7.5}, 7.5),
        ({"cap": 0, "wait": 0.5}, PASS_SECONDS),
        ({"attempts": {"i-1": FAILED}}, 20.0),
        ({}, POLL_SECONDS),
        ({"max_drift_percent": 1, "cap": 50}, None),
        ({"failures": 9, "attempts": {"i-1": FAILED}}, None),
        ({"attempts": {"i-1": msgspec.structs.replace(FAILED, not_before=1_000.01)}}, 0.1),
    ],
)
def test_it_looks_again_when_something_is_due(more: dict[str, Any], wake: float | None) -> None:
    made = enforce([found(1), found(2, GOOD)], inputs(**more))
    assert made.wake == (None if wake is None else pytest.approx(wake))


def test_the_end_of_a_soak_is_waited_for() -> None:
    soaking = canaries(canary("Soaking", 1, since=WALL))
    made = enforce([found(1, GOOD), found(2)], inputs(canary=soaking, canary_soak=39.0))
    assert made.wake == 40.0


def test_a_probe_is_asked_for_soon_after_a_soak_has_begun() -> None:
    changing = canaries(canary("Changing", 1))
    made = enforce([found(1, GOOD), found(2)], inputs(canary=changing, proved=frozenset()))
    assert made.wake == POLL_SECONDS
    for ago in (121, 500):
        waits = canaries(canary("Soaking", 1, since=WALL - ago))
        later = enforce([found(1, GOOD), found(2)], inputs(canary=waits, proved=frozenset()))
        assert (later.wake, "waits for its probe" in later.message) == (READY_SECONDS, True)


# ---------------------------------------------------------------- without a group

NONE: Final = ("", "")


@pytest.mark.parametrize(
    ("since", "more", "wake"),
    [
        (995.0, {}, 25.0),
        (995.0, {"attempts": {"i-1": msgspec.structs.replace(FAILED, not_before=1_040.0)}}, 40.0),
        (995.0, {"canary": None}, READY_SECONDS),
        (1_010.0, {"canary": None}, 10.0),
        (1_019.0, {}, 1.0),
    ],
)
def test_one_without_a_group_waits_until_a_reading_may_confirm_that(
    since: float, more: dict[str, Any], wake: float
) -> None:
    one = found(1, group=NONE, at=1_000.0, ungrouped_at=990.0)
    stood = canaries(stood=(passed(RAISE, NONE),))
    made = enforce([one], inputs(**{"canary": stood, "fresh_since": since, "now": 1_000.0, **more}))
    assert (made.writes, made.ahead, made.left, made.wake) == ((), (), 1, wake)


def test_it_is_changed_by_that_reading() -> None:
    stood = canaries(stood=(passed(RAISE, NONE),))
    due = inputs(canary=stood, fresh_since=1_020.0)
    made = enforce([found(1, group=NONE, at=1_000.0, ungrouped_at=990.0)], due)
    assert (made.ahead, made.wake) == (((HERE, "i-1"),), 0.1)
    assert written(enforce([found(1, group=NONE, at=1_020.0)], due)) == ["i-1"]


@pytest.mark.parametrize(
    ("group", "more", "waits"),
    [
        (GROUP, {}, False),
        (GROUP, {"by_tag": True}, True),
        (NONE, {"canary_instances": 0}, False),
        (NONE, {"canary_instances": 0, "by_tag": True}, True),
    ],
)
def test_it_waits_only_where_something_depends_on_the_tag(
    group: Group, more: dict[str, Any], waits: bool
) -> None:
    one = found(1, group=group, at=1_000.0, ungrouped_at=990.0)
    assert written(enforce([one], inputs(fresh_since=995.0, **more))) == ([] if waits else ["i-1"])
