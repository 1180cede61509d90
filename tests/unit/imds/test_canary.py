"""The next state of canaries and of watched instances."""

import math
from typing import Any, Final

import msgspec
import pytest

from caretaker.api.imds import MAX_PASSED, BreakerStatus, FieldChange, GroupCanary, Options
from caretaker.api.times import format_time
from caretaker.imds.canary import step
from caretaker.imds.canary_record import Record, status
from caretaker.imds.change_attempts import NO_ANSWER, ChangeAttempt, failed, sent, unanswered
from caretaker.imds.change_state import change_state
from caretaker.imds.checks import CheckResult
from caretaker.imds.enforce import enforce
from caretaker.imds.enforce_input import CheckedInstance
from caretaker.imds.merge import PolicyOptions
from caretaker.imds.soak import floor, soak, soaked_at
from unit.imds.enforcing import (
    BAD,
    CLOSE,
    GENERATION,
    GOOD,
    GROUP,
    HOP,
    LOWER,
    ME,
    RAISE,
    READY_SINCE,
    WALL,
    canaries,
    canary,
    changed,
    found,
    inputs,
    passed,
    watched,
)

LONG_AGO = WALL - 86_400.0
OPEN: Final = BreakerStatus(GENERATION, 0, format_time(WALL), reason="CanaryLost")
NOT_MINE: Final = PolicyOptions(ME, 1, Options(None, None, "enabled"))
REFUSED = failed(ChangeAttempt(), 990.0, "InvalidParameterValue", "no")
UNKNOWN_FATE = failed(ChangeAttempt(), 990.0, NO_ANSWER, "no answer")


def stepped(
    *every: CheckedInstance, blocked: dict[str, set[FieldChange]] | None = None, **more: Any
) -> Record:
    return step({one.instance: one for one in every}, blocked or {}, inputs(**more))


def of(record: Record) -> GroupCanary | None:
    return record.canaries.get(GROUP)


def phase(record: Record) -> str:
    one = of(record)
    return one.phase if one is not None else ""


def reasons(record: Record) -> list[str]:
    return [one.reason for one in record.faults]


def instances(record: Record) -> list[str]:
    return [one.instance for group in record.changed for one in group.instances]


# ---------------------------------------------------------------- state of an instance


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (None, "gone"),
        (found(1, GOOD, state="terminated"), "gone"),
        (found(1, GOOD, state="shutting-down"), "gone"),
        (found(1, GOOD, unasked="away"), "unknown"),
        (found(1, GOOD, tagged=False), "unknown"),
        (found(1, GOOD, managed=True), "out"),
        (found(1, GOOD, mine=PolicyOptions(ME, 1, Options(3))), "left"),
        (found(1, GOOD, mine=PolicyOptions(ME, 1, Options(None, "required"))), "out"),
        (found(1, GOOD, PolicyOptions("q", 200, Options(2))), "left"),
        (found(1, GOOD, PolicyOptions("q", 100, Options(3))), "left"),
        (found(1, Options(5)), "strayed"),
        (found(1, Options()), "strayed"),
        (found(1, BAD), "differs"),
        (found(1, BAD, pending=True), "differs"),
        (found(1, GOOD, pending=True), "pending"),
        (found(1, GOOD, pending=True, state="stopped"), "pending"),
        (found(1, GOOD, state="stopped"), "applied"),
        (found(1, GOOD), "applied"),
    ],
)
def test_an_instance_is_compared_with_its_change_by_the_values_of_ec2(
    one: CheckedInstance | None, expected: str
) -> None:
    assert change_state(one, (RAISE,), ME) == expected


def test_all_changes_of_an_instance_count() -> None:
    half = found(1, Options(2, "optional", "enabled"))
    assert change_state(half, (RAISE, CLOSE), ME) == "differs"
    assert change_state(half, (RAISE,), ME) == "applied"


@pytest.mark.parametrize("options", [BAD, GOOD, Options(3, "required", "enabled")])
def test_nobody_is_judged_by_what_no_description_has_told(options: Options) -> None:
    """It may lag behind a change of ours: neither applied nor set back."""
    assert change_state(found(1, options, confirmed=False), (RAISE,), ME) == "pending"


# ---------------------------------------------------------------- soak


@pytest.mark.parametrize(
    ("field", "before", "after", "seconds"),
    [
        ("httpTokens", "optional", "required", 900.0),
        ("httpTokens", "unknown", "required", 900.0),
        ("httpTokens", "required", "optional", 0.0),
        (HOP, "3", "1", 900.0),
        (HOP, "unknown", "2", 900.0),
        (HOP, "9" * 5000, "a", 900.0),
        (HOP, "9", "10", 0.0),
        ("httpEndpoint", "enabled", "disabled", 1800.0),
        ("httpEndpoint", "disabled", "enabled", 0.0),
        ("httpProtocolIpv6", "enabled", "disabled", 300.0),
        ("instanceMetadataTags", "enabled", "disabled", 300.0),
    ],
)
def test_a_closing_change_stands_longer(field: str, before: str, after: str, seconds: float) -> None:
    change = FieldChange(field, before, after)
    assert floor([change]) == seconds
    assert soak([change], inputs(canary_soak=120.0)) == max(seconds, 120.0)
    assert soak([RAISE, change], inputs(canary_soak=7200.0)) == 7200.0
    assert soak([change], inputs(canary_soak=0.0)) == seconds


# ---------------------------------------------------------------- Changing


def test_it_soaks_once_all_were_read_as_applied_on_ready_nodes() -> None:
    changing = canary("Changing", 1, 2, since=LONG_AGO)
    both = canaries(changing)
    half = of(stepped(found(1, GOOD), found(2), canary=both))
    assert half is not None
    assert (half.phase, half.since, [one.applied for one in half.instances]) == (
        "Changing",
        changing.since,
        [True, False],
    )
    whole = of(stepped(found(1, GOOD), found(2, GOOD), canary=both))
    assert whole is not None
    assert (whole.phase, whole.since, whole.started_at) == (
        "Soaking",
        format_time(WALL),
        changing.started_at,
    )
    assert {one.ready_since for one in whole.instances} == {format_time(READY_SINCE)}


@pytest.mark.parametrize("one", [found(1, GOOD, pending=True), found(1, GOOD, unasked="away"), found(1)])
def test_what_was_not_read_as_applied_does_not_soak(one: CheckedInstance) -> None:
    assert phase(stepped(one, canary=canaries(canary("Changing", 1)))) == "Changing"


def test_one_that_ec2_refuses_or_another_hand_changes_gives_its_place() -> None:
    both = canaries(canary("Changing", 1, 2))
    refused = of(stepped(found(1), found(2), canary=both, attempts={"i-1": REFUSED}))
    assert refused is not None
    assert [one.instance for one in refused.instances] == ["i-2"]
    alone = stepped(found(1), canary=canaries(canary("Changing", 1)), attempts={"i-1": REFUSED})
    assert (of(alone), instances(alone)) == (None, [])
    strayed = stepped(found(1, Options(7, "required")), found(2), canary=both)
    kept = of(strayed)
    assert kept is not None
    assert ([one.instance for one in kept.instances], instances(strayed)) == (["i-2"], ["i-1"])
    broken = stepped(found(1, Options(7, "required"), ready=False), found(2), canary=both)
    assert [one.instance for one in broken.unready] == ["i-1"]


# ---------------------------------------------------------------- lost and set back


@pytest.mark.parametrize("when", ["Changing", "Soaking"])
@pytest.mark.parametrize("gone", [[], [found(1, state="terminated")]])
def test_one_that_may_have_been_sent_its_change_and_is_gone_fails_the_canary(
    when: str, gone: list[CheckedInstance]
) -> None:
    made = stepped(*gone, found(2, GOOD), canary=canaries(canary(when, 1, 2)))
    assert (phase(made), reasons(made)) == ("Failed", ["CanaryLost"])
    assert (made.faults[0].instance, made.faults[0].node) == ("i-1", "n1")
    one = of(made)
    assert one is not None
    assert "instance i-1 (node n1) was terminated or its Node was deleted" in one.message


def test_one_that_ec2_refused_to_change_may_go() -> None:
    made = stepped(canary=canaries(canary("Changing", 1)), attempts={"i-1": REFUSED})
    assert (made.faults, made.canaries) == ((), {})
    unsure = stepped(canary=canaries(canary("Changing", 1)), attempts={"i-1": UNKNOWN_FATE})
    assert reasons(unsure) == ["CanaryLost"], "without an answer it may have been changed"
    applied = stepped(canary=canaries(canary("Soaking", 1)), attempts={"i-1": REFUSED})
    assert reasons(applied) == ["CanaryLost"]


@pytest.mark.parametrize("options", [BAD, Options(7, "required", "enabled")])
@pytest.mark.parametrize("when", ["Changing", "Soaking"])
def test_one_that_was_applied_and_is_set_back_fails_the_canary(options: Options, when: str) -> None:
    made = stepped(found(1, options), canary=canaries(canary(when, 1, applied=True, since=LONG_AGO)))
    assert (phase(made), reasons(made)) == ("Failed", ["CanarySetBack"])


@pytest.mark.parametrize("when", ["Changing", "Soaking"])
def test_one_that_labels_take_out_of_the_policy_gives_its_place_to_no_other(when: str) -> None:
    """Such as the label that a node gets because it is broken."""
    out = found(1, GOOD, mine=PolicyOptions("q", 1, Options(None, "required")))
    before = canaries(canary(when, 1))
    made = stepped(out, canary=before)
    assert (phase(made), reasons(made)) == ("Failed", ["CanaryLost"])
    assert "left the policy by its labels" in made.faults[0].message
    refused = stepped(out, canary=canaries(canary("Changing", 1)), attempts={"i-1": REFUSED})
    assert (refused.canaries, refused.faults) == ({}, ())
    edited = stepped(out, canary=msgspec.structs.replace(before, generation=GENERATION - 1))
    assert (edited.canaries, instances(edited), edited.faults) == ({}, ["i-1"], ())


@pytest.mark.parametrize("when", ["Changing", "Soaking"])
def test_one_that_moves_to_another_group_stands_for_neither(when: str) -> None:
    moved, before = found(1, GOOD, group=("AutoScalingGroup", "b")), canaries(canary(when, 1, since=LONG_AGO))
    made = stepped(moved, canary=before)
    assert (phase(made), reasons(made), list(made.passed)) == ("Failed", ["CanaryLost"], [])
    assert "left its node group by its labels or tags" in made.faults[0].message
    edited = stepped(moved, canary=msgspec.structs.replace(before, generation=GENERATION - 1))
    assert (edited.canaries, edited.faults, list(edited.passed)) == ({}, (), [])
    for one in (found(1, GOOD, group=("", ""), unasked="away"), found(1, GOOD, group=("", ""), tagged=False)):
        unknown = stepped(one, canary=before)
        assert (phase(unknown), unknown.faults) == (when, ()), "nor is its group known"


@pytest.mark.parametrize("when", ["Changing", "Soaking"])
def test_one_that_moves_as_another_policy_wins_it_ends_its_canary_without_a_fault(when: str) -> None:
    moved = found(1, GOOD, PolicyOptions("q", 200, Options(3)), group=("AutoScalingGroup", "b"))
    made = stepped(moved, canary=canaries(canary(when, 1)))
    assert (made.canaries, instances(made), made.faults) == ({}, ["i-1"], ())


@pytest.mark.parametrize("others", [("q", 200, 2), ("q", 100, 3)], ids=["wins", "is a rival"])
@pytest.mark.parametrize(
    ("is_ready", "was_ready", "edits", "expected"),
    [
        (False, False, False, ["CanaryLost"]),
        (True, False, False, ["CanaryLost"]),
        (False, True, False, ["CanaryLost"]),
        (True, True, False, []),
        (False, False, True, []),
    ],
)
def test_one_that_another_policy_wins_while_its_node_is_not_ready_fails_the_canary(
    others: tuple[str, int, int], is_ready: bool, was_ready: bool, edits: bool, expected: list[str]
) -> None:
    """A Node that is NotReady may get the label of that policy."""
    taken = found(1, GOOD, PolicyOptions(*others[:2], Options(others[2])), ready=is_ready)
    before = canaries(canary("Changing", 1, applied=True, unready=not was_ready))
    before = msgspec.structs.replace(before, generation=GENERATION - edits)
    made = stepped(taken, canary=before)
    assert (reasons(made), phase(made)) == (expected, "Failed" if expected else "")
    refused = canaries(canary("Changing", 1, unready=True))
    assert stepped(taken, canary=refused, attempts={"i-1": REFUSED}).faults == ()


@pytest.mark.parametrize(
    ("was_ready", "wanted", "has", "expected"),
    [(False, 2, 1, ["InstanceSetBack"]), (True, 2, 1, []), (False, 3, 1, []), (False, 2, 2, [])],
)
def test_one_that_another_policy_reverts_after_its_node_was_not_ready_counts_as_reverted(
    was_ready: bool, wanted: int, has: int, expected: list[str]
) -> None:
    """Not if the spec wants another value by then, nor while it has the change."""
    taken = found(1, Options(has, "required", "enabled"), PolicyOptions("q", 200, Options(1)), ready=has == 1)
    ones = watched(changed(1, applied=True, unready=not was_ready))
    made = stepped(taken, watched=ones, options={HOP: wanted})
    assert (reasons(made), instances(made)) == (expected, ["i-1"] if has == 2 else [])


def test_one_that_may_not_be_changed_any_more_and_is_not_ready_ends_its_canary_without_a_fault() -> None:
    away, before = found(1, ready=False), canaries(canary("Changing", 1, unready=True))
    assert stepped(away, blocked={"i-1": {RAISE}}, canary=before).faults == ()


@pytest.mark.parametrize("when", ["Changing", "Soaking"])
@pytest.mark.parametrize(
    ("mine", "reason"),
    [
        pytest.param(PolicyOptions(ME, 1, Options(2, "required")), ["CanaryLost"], id="of another group"),
        pytest.param(PolicyOptions(ME, 1, Options(3, "required")), [], id="another value is wanted"),
    ],
)
def test_one_without_the_tag_of_its_group_is_unknown_until_a_second_response_confirms_it(
    mine: PolicyOptions, reason: list[str], when: str
) -> None:
    before = canaries(canary(when, 1, since=LONG_AGO))
    first = stepped(found(1, GOOD, group=("", ""), mine=mine, ungrouped_at=990.0), canary=before)
    assert (phase(first), reasons(first)) == (when, [])
    assert [one.instance for one in first.unreported] == ["i-1"]
    second = stepped(found(1, GOOD, group=("", ""), mine=mine), canary=before)
    assert (phase(second), reasons(second)) == ("Failed" if reason else "", reason)
    assert second.unreported == ()


def test_one_without_the_tag_of_its_group_passes_in_the_group_that_a_label_names() -> None:
    soaking = canaries(canary("Soaking", 1, since=LONG_AGO))
    made = stepped(found(1, GOOD, ungrouped_at=990.0), canary=soaking, by_tag=True)
    assert (made.canaries, list(made.passed), made.unreported) == ({}, [(GROUP, RAISE)], ())


def test_one_that_has_ended_is_lost_whatever_its_group() -> None:
    """Its last description may lack its tags."""
    for since in (0.0, 990.0):
        one = found(1, GOOD, group=("", ""), state="terminated", ungrouped_at=since)
        made = stepped(one, canary=canaries(canary("Soaking", 1)))
        assert (phase(made), reasons(made)) == ("Failed", ["CanaryLost"])
        assert "was terminated" in made.faults[0].message


def test_one_that_another_hand_sets_to_a_third_value_after_ec2_took_the_change_fails_the_canary() -> None:
    both, third = canaries(canary("Changing", 1)), found(1, Options(7, "required"))
    taken = sent(ChangeAttempt(), 990.0, {"HttpPutResponseHopLimit": 2})
    assert reasons(stepped(third, canary=both, attempts={"i-1": taken})) == ["CanarySetBack"]
    unsure = unanswered(ChangeAttempt(), 990.0, {"HttpPutResponseHopLimit": 2})
    other = sent(ChangeAttempt(), 990.0, {"HttpTokens": "required"})
    for attempt in (ChangeAttempt(), unsure, other, REFUSED):
        assert reasons(stepped(third, canary=both, attempts={"i-1": attempt})) == []


def test_one_that_another_process_may_have_sent_its_change_is_not_refused_by_a_second_call() -> None:
    """EC2's first answers after a restart may not know of the first one."""
    both = canaries(canary("Changing", 1))
    later = {"attempts": {"i-1": REFUSED}, "inherited": {"i-1"}, "believed_since": 500.0}
    early = stepped(found(1, at=499.0), canary=both, **later)
    assert phase(early) == "Changing"
    assert reasons(stepped(canary=both, **later)) == ["CanaryLost"]
    assert stepped(found(1, at=500.0), canary=both, **later).canaries == {}


def test_a_canary_that_has_failed_is_judged_no_more() -> None:
    before = canary("Failed", 1)
    made = stepped(found(1, GOOD), canary=canaries(before))
    assert (of(made), made.faults) == (before, ())


@pytest.mark.parametrize(
    ("one", "more", "counts"),
    [
        pytest.param(found(1, GOOD, ready=False), {}, True, id="it has the change"),
        pytest.param(
            found(1, Options(2, "optional"), ready=False),
            {"changes": (RAISE, CLOSE)},
            True,
            id="it has a part of the change",
        ),
        pytest.param(found(1, GOOD), {}, False, id="it is Ready"),
        pytest.param(found(1, GOOD, ready=False, state="stopped"), {}, False, id="it does not run"),
        pytest.param(
            found(1, GOOD, ready=False, state="stopped"),
            {"unready": True},
            True,
            id="it was stopped afterwards",
        ),
        pytest.param(found(1, ready=False), {}, False, id="it was set back"),
        pytest.param(found(1, GOOD, ready=False, state="terminated"), {}, False, id="it is lost"),
        pytest.param(found(1, GOOD, ready=False), {"restored": True}, True, id="it has the change again"),
        pytest.param(found(1, ready=False), {"restored": True}, False, id="it was restored"),
        pytest.param(found(1, GOOD, ready=False), {"ready_since": ""}, False, id="it never was Ready"),
    ],
)
def test_one_of_a_failed_canary_counts_while_its_node_is_not_ready(
    one: CheckedInstance, more: dict[str, Any], counts: bool
) -> None:
    """Once the breaker is closed, and from then on."""
    made = stepped(one, canary=canaries(canary("Failed", 1, **more)), breaker=OPEN, resumed_at=WALL + 1)
    assert [broken.instance for broken in made.unready] == (["i-1"] if counts else [])
    later = stepped(one, canary=canaries(canary("Failed", 1, **more)), watched=made.changed)
    assert [broken.instance for broken in later.unready] == (["i-1"] if counts else [])


BOTH: Final = (RAISE, CLOSE)
HALF: Final = Options(2, "optional", "enabled")


@pytest.mark.parametrize(
    ("one", "noted", "kept"),
    [
        pytest.param(found(1, GOOD), True, BOTH, id="it has the change"),
        pytest.param(found(1, HALF), True, (RAISE,), id="one of its options was reverted"),
        pytest.param(found(1, Options(2, "optional")), False, (RAISE,), id="and the other set since"),
        pytest.param(found(1, Options(1, "optional")), True, (), id="it was set back"),
        pytest.param(found(1, Options(9, "optional")), True, (), id="it has a third value"),
        pytest.param(found(1, Options(9, "optional"), confirmed=False), False, BOTH, id="it may have it"),
        pytest.param(found(1, GOOD, unasked="away"), True, BOTH, id="it had the change, and is unknown"),
        pytest.param(found(1, GOOD, unasked="away"), False, (), id="it had no change, and is unknown"),
        pytest.param(found(1, GOOD, mine=NOT_MINE), True, BOTH, id="it has left the policy"),
        pytest.param(found(1, GOOD, mine=NOT_MINE), False, BOTH, id="it was set since, and has left it"),
        pytest.param(found(1, GOOD, group=("", "")), True, BOTH, id="it has left its group"),
    ],
)
def test_one_of_a_failed_canary_is_watched_for_what_it_still_has_once_the_breaker_is_closed(
    one: CheckedInstance, noted: bool, kept: tuple[FieldChange, ...]
) -> None:
    before = canaries(canary("Failed", 1, changes=BOTH, applied=noted))
    assert stepped(one, canary=before, breaker=OPEN).changed == ()
    made = stepped(one, canary=before, breaker=OPEN, resumed_at=WALL + 1)
    sure = noted or (one.observed is not None and one.observed.confirmed)
    found_so = [(group.changes, *(one.applied for one in group.instances)) for group in made.changed]
    assert found_so == ([(kept, sure)] if kept else [])
    assert (made.faults, [*made.canaries]) == ((), [GROUP])
    edited = stepped(one, canary=before, breaker=msgspec.structs.replace(OPEN, generation=1))
    assert edited.changed == made.changed


@pytest.mark.parametrize(
    ("one", "applied"),
    [
        (found(1, GOOD), True),
        (found(1, HALF), True),
        (found(1, Options(1, "optional")), False),
        (found(1, GOOD, state="terminated"), False),
        (None, False),
    ],
)
def test_a_failed_canary_tells_who_still_has_a_part_of_its_change(
    one: CheckedInstance | None, applied: bool
) -> None:
    """An unknown one is as it was."""
    every = [one] if one is not None else []
    for noted in (True, False):
        before = canaries(canary("Failed", 1, changes=BOTH, applied=noted))
        made = of(stepped(*every, canary=before, breaker=OPEN))
        assert made is not None
        assert made.instances[0].applied == applied
        away = of(stepped(found(1, unasked="away"), canary=before, breaker=OPEN))
        assert away is not None
        assert away.instances[0].applied == noted


@pytest.mark.parametrize("every", [[], [found(1, GOOD, state="terminated")]])
@pytest.mark.parametrize(("noted", "expected"), [(True, ["InstanceLost"]), (False, [])])
def test_a_loss_that_no_breaker_has_told_opens_it_again_as_it_is_closed(
    every: list[CheckedInstance], noted: bool, expected: list[str]
) -> None:
    """Once."""
    before = canaries(canary("Failed", 1, applied=noted))
    made = stepped(*every, canary=before, breaker=OPEN, resumed_at=WALL + 1)
    assert (reasons(made), made.changed) == (expected, ())
    assert all("was terminated or its Node was deleted" in one.message for one in made.faults)
    again = stepped(*every, canary=status(made, inputs()), breaker=OPEN, resumed_at=WALL + 1)
    assert reasons(again) == []


def test_what_closes_the_breaker_is_judged_by_a_new_reading() -> None:
    late = found(1, GOOD, at=-6.0)
    ones = watched(changed(2, applied=True), changed(3, applied=True))
    both = {"canary": canaries(canary("Failed", 1)), "watched": ones}
    away = found(3, GOOD, at=-6.0, unasked="away")
    made = stepped(late, found(2, GOOD, at=-6.0), away, breaker=OPEN, resumed_at=WALL + 1, **both)
    assert [one.instance for one in made.stale] == ["i-1", "i-2"]
    assert stepped(late, found(2, GOOD, at=-6.0), breaker=OPEN, **both).stale == ()


def test_one_that_was_reverted_before_the_breaker_is_closed_opens_it_no_more() -> None:
    ones = watched(changed(1, applied=True), changes=BOTH)
    made = stepped(found(1, HALF), watched=ones, breaker=OPEN, resumed_at=WALL + 1)
    assert (made.faults, [*made.passed]) == ((), [])
    assert [group.changes for group in made.changed] == [(RAISE,)], "what is left of it"
    later = stepped(found(1, HALF), watched=ones)
    assert (reasons(later), later.changed) == (["InstanceSetBack"], made.changed)
    assert stepped(found(1, HALF), watched=later.changed).faults == ()


@pytest.mark.parametrize(
    ("others", "more", "kept"),
    [
        pytest.param([found(2)], {}, True, id="another one is left"),
        pytest.param([], {}, False, id="none is left"),
        pytest.param([found(2, GOOD)], {}, False, id="the other one has it"),
        pytest.param([found(2, group=("EKSManagedNodegroup", "b"))], {}, False, id="of another group"),
        pytest.param([found(2)], {"canary": canaries(stood=(passed(RAISE),))}, False, id="it has passed"),
        pytest.param([found(2)], {"options": {HOP: 3}}, False, id="it is not wanted any more"),
        pytest.param([found(2)], {"blocked": {"i-2": {RAISE}}}, False, id="it may not be made"),
        pytest.param([found(2, unasked="away")], {}, True, id="another one is unknown"),
        pytest.param([found(2, unasked="away", group=("", ""))], {}, True, id="its group is unknown"),
        pytest.param([found(2, unasked="away", group=("G", "b"))], {}, False, id="unknown, of another group"),
        pytest.param([found(2, group=("", ""))], {}, False, id="of no group"),
    ],
)
def test_one_that_has_an_unproven_change_is_watched_while_others_are_left_for_it(
    others: list[CheckedInstance], more: dict[str, Any], kept: bool
) -> None:
    given = {"canary": canaries(stood=()), "blocked": None, **more}
    mine, blocked = found(1, GOOD), given.pop("blocked")
    late = watched(changed(1, applied=True, at=LONG_AGO))
    every = [mine, *others]
    made = step({one.instance: one for one in every}, blocked or {}, inputs(watched=late, **given), {}, every)
    assert instances(made) == (["i-1"] if kept else [])
    assert made.stale == (), "it is read with the next change"


def test_what_is_not_wanted_any_more_is_no_canary_and_watched_all_the_same() -> None:
    three = found(1, GOOD, mine=PolicyOptions(ME, 1, Options(3)))
    both = canaries(canary("Soaking", 1, 2))
    made = stepped(three, found(2, GOOD), canary=both)
    assert (made.canaries, sorted(instances(made)), made.faults) == ({}, ["i-1", "i-2"], ())
    broken = stepped(three, found(2, GOOD, ready=False), canary=both)
    assert [one.instance for one in broken.unready] == ["i-2"], "from the first pass on"
    over = stepped(three, found(2, GOOD), canary=canaries(canary("Soaking", 1, 2, since=LONG_AGO)))
    assert (over.canaries, instances(over)) == ({}, [])
    blocked = stepped(found(1), blocked={"i-1": {RAISE}}, canary=canaries(canary("Changing", 1)))
    assert (blocked.canaries, instances(blocked)) == ({}, ["i-1"])
    assert [(one.kind, one.name, one.changes) for one in blocked.changed] == [(*GROUP, (RAISE,))]


@pytest.mark.parametrize("now", [Options(1, "required", "enabled"), Options(3, "required", "enabled")])
def test_a_reversal_counts_though_the_policy_may_not_change_it_again(now: Options) -> None:
    """Neither to raise nor to lower the hop limit is allowed any more."""
    every, kept = [found(1, now), found(2, GOOD)], {"loosening": (), "tightening": ()}
    made = enforce(every, inputs(canary=canaries(canary("Soaking", 1, 2)), **kept))
    assert made.breaker is not None
    assert (made.breaker.reason, made.breaker.instance) == ("CanarySetBack", "i-1")
    made = enforce(every, inputs(watched=watched(changed(1, applied=True), changed(2, applied=True)), **kept))
    assert made.breaker is not None
    assert (made.breaker.reason, made.breaker.instance) == ("InstanceSetBack", "i-1")


# ---------------------------------------------------------------- Soaking


def test_it_passes_only_after_its_soak_and_for_its_group_alone() -> None:
    soaking = canary("Soaking", 1, since=WALL - 120.0)
    assert soaked_at(soaking, inputs()) == WALL + 1.0
    early = stepped(found(1, GOOD), canary=canaries(soaking))
    assert (of(early), early.passed) == (soaking, {})
    over = canary("Soaking", 1, since=WALL - 121.0)
    late = stepped(found(1, GOOD), canary=canaries(over, stood=(passed(CLOSE),)))
    assert (late.canaries, list(late.passed)) == ({}, [(GROUP, CLOSE), (GROUP, RAISE)])
    assert instances(late) == ["i-1"], "and is watched with those that follow"
    assert late.changed[0].instances[0].at == format_time(WALL)
    closing = canary("Soaking", 1, since=WALL - 899.0, changes=(CLOSE,))
    assert phase(stepped(found(1, GOOD), canary=canaries(closing))) == "Soaking"


def test_without_a_soak_it_passes_at_once() -> None:
    made = stepped(found(1, GOOD), canary=canaries(canary("Changing", 1)), canary_soak=0.0)
    assert list(made.passed) == [(GROUP, RAISE)]


def test_it_passes_only_by_a_reading_of_the_last_seconds() -> None:
    soaking = canaries(canary("Soaking", 1, since=LONG_AGO))
    old = stepped(found(1, GOOD, at=994.9), canary=soaking, fresh_since=995.0)
    assert (phase(old), [one.instance for one in old.stale]) == ("Soaking", ["i-1"])
    new = stepped(found(1, GOOD, at=995.0), canary=soaking, fresh_since=995.0)
    assert (phase(new), new.stale) == ("", ())


@pytest.mark.parametrize(("at", "read"), [(939.9, ["i-1"]), (940.0, [])])
def test_while_it_soaks_it_is_read_once_a_minute(at: float, read: list[str]) -> None:
    """One that is set back, and again as it was, has not stood."""
    made = stepped(found(1, GOOD, at=at), canary=canaries(canary("Soaking", 1)), fresh_since=995.0)
    assert (phase(made), [one.instance for one in made.stale]) == ("Soaking", read)


@pytest.mark.parametrize(
    ("since", "began", "passes"),
    [
        pytest.param(LONG_AGO, (format_time(LONG_AGO), 1_000.0 - 119.0), False, id="the clock was set ahead"),
        pytest.param(LONG_AGO, (format_time(LONG_AGO), 1_000.0 - 120.0), True, id="it has stood"),
        pytest.param(LONG_AGO, (format_time(LONG_AGO + 5), 1_000.0), True, id="of another soak"),
    ],
)
def test_a_clock_that_is_set_ends_no_soak(since: float, began: tuple[str, float], passes: bool) -> None:
    one = canary("Soaking", 1, since=since)
    made = stepped(found(1, GOOD), canary=canaries(one), soaks={(one.kind, one.name): began}, now=1_000.0)
    assert (of(made) is None) is passes


@pytest.mark.parametrize(("sent_at", "kept"), [(900.0, True), (600.0, False), (None, False)])
def test_a_clock_that_is_set_ends_no_watch(sent_at: float | None, kept: bool) -> None:
    group = watched(changed(1, at=LONG_AGO, applied=True))
    attempts = {"i-1": ChangeAttempt(sent_at=sent_at, landed=True)}
    made = stepped(found(1, GOOD), watched=group, attempts=attempts, now=1_000.0)
    assert bool(instances(made)) is kept


@pytest.mark.parametrize("one", [found(1, GOOD, unasked="away"), found(1, GOOD, pending=True)])
def test_a_soak_begins_only_by_what_is_read_as_applied_now(one: CheckedInstance) -> None:
    before = canary("Changing", 1, applied=True)
    assert phase(stepped(one, canary=canaries(before))) == "Changing"
    moved = msgspec.structs.replace(one, ready_since=READY_SINCE + 1.0)
    assert phase(stepped(moved, canary=canaries(canary("Soaking", 1, since=LONG_AGO)))) == "Changing"


def test_one_that_stops_does_not_pass() -> None:
    soaking = canaries(canary("Soaking", 1, since=LONG_AGO))
    assert phase(stepped(found(1, GOOD, state="stopping"), canary=soaking)) == "Soaking"


@pytest.mark.parametrize("one", [found(1, GOOD, unasked="away"), found(1, GOOD, pending=True)])
def test_what_is_not_known_neither_passes_nor_fails_it(one: CheckedInstance) -> None:
    soaking = canary("Soaking", 1, since=LONG_AGO)
    made = stepped(one, canary=canaries(soaking))
    assert (of(made), made.faults, made.stale) == (soaking, (), ())


@pytest.mark.parametrize("seen", [{"tagged": False}, {"lost": True}])
@pytest.mark.parametrize(("at", "stale"), [(939.9, ["i-1"]), (940.0, [])])
def test_what_an_answer_lacks_of_one_that_was_changed_is_told_and_read_once_a_minute(
    seen: dict[str, bool], at: float, stale: list[str]
) -> None:
    one = found(1, BAD, at=at, **seen)
    for given in (
        {"canary": canaries(canary("Soaking", 1))},
        {"canary": canaries(canary("Changing", 1, applied=False))},
        {"watched": watched(changed(1, applied=True))},
    ):
        made = stepped(one, fresh_since=995.0, **given)
        assert ([one.instance for one in made.unreported], made.faults) == (["i-1"], ())
        assert [one.instance for one in made.stale] == stale
    away = stepped(found(1, unasked="away"), watched=watched(changed(1, applied=True)))
    assert away.unreported == (), "other regions go on while one does not answer"


def test_it_soaks_anew_after_its_node_was_not_ready_though_nobody_saw_it() -> None:
    soaking = canaries(canary("Soaking", 1, since=LONG_AGO))
    for since in (READY_SINCE + 1.0, READY_SINCE - 1.0):
        made = of(stepped(found(1, GOOD, ready_since=since), canary=soaking))
        assert made is not None
        assert (made.phase, made.since) == ("Soaking", format_time(WALL))
        assert made.instances[0].ready_since == format_time(since)


def test_while_its_node_is_not_ready_it_does_not_soak_and_is_told() -> None:
    made = stepped(found(1, GOOD, ready=False), canary=canaries(canary("Soaking", 1, since=LONG_AGO)))
    shaken = of(made)
    assert shaken is not None
    assert (shaken.phase, shaken.since) == ("Changing", format_time(WALL))
    assert [one.instance for one in made.unready] == ["i-1"]
    again = of(stepped(found(1, GOOD), canary=canaries(shaken)))
    assert again is not None
    assert (again.phase, again.since) == ("Soaking", format_time(WALL))


def test_a_soak_that_began_by_a_clock_that_was_ahead_begins_anew() -> None:
    made = of(stepped(found(1, GOOD), canary=canaries(canary("Soaking", 1, since=WALL + 86_400.0))))
    assert made is not None
    assert (made.phase, made.since) == ("Soaking", format_time(WALL))


@pytest.mark.parametrize(
    ("since", "asked", "soaks_since"),
    [
        pytest.param(LONG_AGO, WALL + 600.5, WALL + 600.0, id="it begins at the time of the request"),
        pytest.param(WALL + 600.0, WALL + 600.5, WALL + 600.0, id="and stays there"),
        pytest.param(WALL + 600.0, WALL + 601.0, WALL + 600.0, id="and is probed as soon as it begins"),
        pytest.param(WALL + 600.0, WALL + 602.0, WALL + 602.0, id="a later request puts it off"),
        pytest.param(WALL + 600.0, 0.0, WALL, id="that clock is as it was"),
        pytest.param(WALL - 5.0, 0.0, WALL - 5.0, id="no request is ahead"),
    ],
)
def test_a_soak_begins_after_a_probe_request_by_a_clock_that_was_ahead(
    since: float, asked: float, soaks_since: float
) -> None:
    soaking = canaries(canary("Soaking", 1, 2, since=since))
    ahead = {"i-2": asked} if asked else {}
    made = stepped(found(1, GOOD), found(2, GOOD), canary=soaking, proved=frozenset(), asked_ahead=ahead)
    one = of(made)
    assert one is not None
    assert (one.phase, one.since) == ("Soaking", format_time(soaks_since))


def test_where_it_is_probed_it_passes_only_once_that_is_proved() -> None:
    soaking = canaries(canary("Soaking", 1, 2, since=LONG_AGO))
    both = (found(1, GOOD), found(2, GOOD))
    assert phase(stepped(*both, canary=soaking, proved=frozenset({"i-1"}))) == "Soaking"
    assert phase(stepped(*both, canary=soaking, proved=frozenset({"i-1", "i-2"}))) == ""


@pytest.mark.parametrize(("on_failure", "expected"), [("Keep", []), ("Restore", ["CanaryNotReady"])])
def test_a_canary_that_is_to_be_restored_fails_when_its_node_stays_away(
    on_failure: str, expected: list[str]
) -> None:
    away, late = found(1, GOOD, ready=False), WALL - 121.0
    just = canaries(canary("Changing", 1, applied=True, unready=True, since=WALL - 119.0))
    assert reasons(stepped(away, canary=just, on_failure=on_failure)) == []
    long = canaries(canary("Changing", 1, applied=True, unready=True, since=late))
    assert reasons(stepped(away, canary=long, on_failure=on_failure)) == expected
    back = stepped(found(1, GOOD), canary=long, on_failure=on_failure)
    assert reasons(back) == []
    first = of(stepped(away, canary=canaries(canary("Soaking", 1, since=late)), on_failure=on_failure))
    assert first is not None
    assert (first.instances[0].unready, first.instances[0].at) == (True, format_time(WALL))


@pytest.mark.parametrize(("on_failure", "expected"), [("Keep", []), ("Restore", ["CanaryUnreachable"])])
def test_a_canary_that_is_to_be_restored_fails_by_its_probe(on_failure: str, expected: list[str]) -> None:
    made = stepped(
        found(1, GOOD),
        canary=canaries(canary("Soaking", 1)),
        proved=frozenset(),
        faulty={"i-1": "no"},
        on_failure=on_failure,
    )
    assert reasons(made) == expected


# ---------------------------------------------------------------- those that follow


def test_what_follows_is_watched_for_some_minutes() -> None:
    def kept(seconds: float, *changes: FieldChange) -> list[str]:
        one = changed(1, at=WALL - seconds, applied=True)
        return instances(stepped(found(1, GOOD), watched=watched(one, changes=changes)))

    assert (kept(120.0, RAISE), kept(121.0, RAISE)) == (["i-1"], [])
    assert (kept(300.0, CLOSE), kept(301.0, CLOSE)) == (["i-1"], [])


@pytest.mark.parametrize(("ago", "left"), [(119.0, 2.0), (120.0, 1.0), (121.0, None)])
def test_a_watch_that_goes_on_starts_a_pass_at_its_end(ago: float, left: float | None) -> None:
    """By the wall clock it is long over."""
    attempts = {"i-1": sent(ChangeAttempt(), 1_000.0 - ago, {"HttpPutResponseHopLimit": 2})}
    group = watched(changed(1, at=LONG_AGO, applied=True))
    here: dict[str, Any] = {"attempts": attempts, "now": 1_000.0}
    assert instances(stepped(found(1, GOOD), watched=group, **here)) == (["i-1"] if left else [])
    assert enforce([found(1, GOOD)], inputs(watched=group, **here)).wake == left


def test_its_time_begins_once_it_was_read_as_applied() -> None:
    late = watched(changed(1, at=LONG_AGO))
    waits = found(1, GOOD, pending=True)
    assert instances(stepped(waits, watched=late)) == ["i-1"], "EC2 takes long"
    given_up = failed(ChangeAttempt(), 990.0, "NotApplied", "no")
    assert instances(stepped(waits, watched=late, attempts={"i-1": given_up})) == []
    stopped = found(1, GOOD, pending=True, state="stopped")
    assert instances(stepped(stopped, watched=late)) == [], "in force when it starts, whenever that is"
    assert instances(stepped(found(1), watched=late)) == [], "never taken"
    (came,) = stepped(found(1, GOOD), watched=late).changed
    assert (came.instances[0].at, came.instances[0].applied) == (format_time(WALL), True)


def test_what_is_not_known_is_watched_until_it_is() -> None:
    late = watched(changed(1, at=LONG_AGO, applied=True))
    assert instances(stepped(found(1, GOOD, unasked="away"), watched=late)) == ["i-1"]


@pytest.mark.parametrize(("at", "left"), [(939.9, ["i-1"]), (940.0, [])])
def test_its_watch_ends_by_a_reading_of_the_last_minute(at: float, left: list[str]) -> None:
    """It may have been lost without a word since an older one."""
    late = watched(changed(1, at=LONG_AGO, applied=True))
    made = stepped(found(1, GOOD, at=at), watched=late, fresh_since=995.0)
    assert (instances(made), [one.instance for one in made.stale]) == (left, left)


def test_the_watch_of_one_that_is_not_read_any_more_ends_all_the_same() -> None:
    skipped = msgspec.structs.replace(found(1), observed=None, result=CheckResult("skipped"))
    made = stepped(skipped, watched=watched(changed(1, at=LONG_AGO, applied=True)), fresh_since=995.0)
    assert (instances(made), made.stale, made.faults) == ([], (), ())
    managed = found(1, GOOD, managed=True, at=0.0)
    made = stepped(managed, watched=watched(changed(1, at=LONG_AGO, applied=True)), fresh_since=995.0)
    assert made.stale == ()


def test_a_clock_that_was_ahead_does_not_have_it_watched_for_ever() -> None:
    for applied in (False, True):
        group = watched(changed(1, at=WALL + 86_400.0, applied=applied))
        made = stepped(found(1, GOOD), watched=group)
        assert made.changed[0].instances[0].at == format_time(WALL)


@pytest.mark.parametrize(
    ("every", "reason"),
    [
        ([], "InstanceLost"),
        ([found(1, GOOD, state="shutting-down")], "InstanceLost"),
        ([found(1)], "InstanceSetBack"),
        ([found(1, Options(9))], "InstanceSetBack"),
    ],
)
def test_one_that_is_lost_or_set_back_takes_the_pass_of_its_change(
    every: list[CheckedInstance], reason: str
) -> None:
    made = stepped(*every, watched=watched(changed(1, applied=True)))
    assert (reasons(made), list(made.passed), instances(made)) == ([reason], [(GROUP, CLOSE)], [])
    late = stepped(*every, watched=watched(changed(1, applied=True, at=LONG_AGO)))
    assert reasons(late) == [reason], "nobody has looked since, as while no operator ran"


def test_what_was_never_applied_was_not_set_back_and_what_was_refused_is_not_lost() -> None:
    made = stepped(found(1), watched=watched(changed(1)))
    assert (made.faults, instances(made)) == ((), ["i-1"])
    refused = stepped(watched=watched(changed(1)), attempts={"i-1": REFUSED})
    assert (refused.faults, instances(refused)) == ((), [])


def test_a_node_that_was_ready_and_is_not_any_more_is_told_until_it_is() -> None:
    away = found(1, GOOD, ready=False)
    made = stepped(away, watched=watched(changed(1)))
    assert [one.instance for one in made.unready] == ["i-1"]
    (group,) = made.changed
    assert group.instances[0].unready
    late = watched(changed(1, at=LONG_AGO, unready=True, applied=True))
    assert [one.instance for one in stepped(away, watched=late).unready] == ["i-1"], "its time over or not"
    back = stepped(found(1, GOOD), watched=late)
    assert (back.unready, instances(back)) == ((), [])
    assert reasons(stepped(watched=late)) == ["InstanceLost"]


def test_a_node_that_was_not_ready_before_says_nothing() -> None:
    joins = watched(changed(1, ready_since=""))
    away = stepped(found(1, GOOD, ready=False), watched=joins)
    assert (away.unready, away.changed[0].instances[0].ready_since) == ((), "")
    came = stepped(found(1, GOOD), watched=joins)
    assert came.changed[0].instances[0].ready_since == format_time(READY_SINCE)
    stops = stepped(found(1, GOOD, ready=False, state="stopped"), watched=watched(changed(1)))
    assert stops.unready == ()


@pytest.mark.parametrize(
    ("ago", "started", "is_watched", "counts"),
    [
        (300.0, 60.0, True, False),
        (302.0, 60.0, True, True),
        (302.0, 890.0, True, True),
        (302.0, 910.0, False, False),
        (302.0, None, True, True),
        (86_400.0, 60.0, True, True),
    ],
)
def test_a_node_that_joins_counts_after_5_minutes(
    ago: float, started: float | None, is_watched: bool, counts: bool
) -> None:
    """`started`: seconds from the start of its instance to the change; None: EC2 does not report it."""
    joins = watched(changed(1, at=WALL - ago, applied=True, ready_since=""))
    launched = WALL - ago - started if started is not None else 0.0
    made = stepped(found(1, GOOD, ready=False, launched=launched), watched=joins)
    assert ([one.instance for one in made.unready], instances(made)) == (
        ["i-1"] if counts else [],
        ["i-1"] if is_watched else [],
    )
    pool = stepped(found(1, GOOD, ready=False, launched=launched, state="stopped"), watched=joins)
    assert pool.unready == ()


def test_a_node_that_joins_and_does_not_have_the_change_stops_nothing() -> None:
    """Its call was not made: it is not the change that keeps the Node from being Ready."""
    joins = watched(changed(1, at=WALL - 400.0, ready_since=""))
    made = stepped(found(1, ready=False, launched=WALL - 460.0), watched=joins)
    assert (made.unready, instances(made)) == ((), [])


@pytest.mark.parametrize(("at", "known"), [(math.inf, True), (-1.0, False)])
def test_one_that_was_not_ready_as_it_ran_stays_so_when_it_is_stopped(at: float, known: bool) -> None:
    """By a reading of now: before, it may have been stopped already."""
    both = [found(number, GOOD, ready=False, at=at) for number in (1, 2)]
    away = stepped(*both, watched=watched(*(changed(number, applied=True) for number in (1, 2))))
    (group,) = away.changed
    assert [one.instance for one in away.unready] == ["i-1", "i-2"]
    assert [one.unready for one in group.instances] == [known, known]
    assert [one.instance for one in away.stale] == ([] if known else ["i-1", "i-2"])
    silent = stepped(found(1, GOOD, ready=False, at=at, unasked="away"), watched=watched(changed(1)))
    assert ([one.instance for one in silent.unready], silent.stale) == (["i-1"], ()), "it is not asked"
    late = msgspec.structs.replace(group.instances[0], at=format_time(LONG_AGO))
    stops = stepped(found(1, GOOD, ready=False, state="stopped"), watched=watched(late))
    assert [one.instance for one in stops.unready] == (["i-1"] if known else [])


# ---------------------------------------------------------------- passed changes


def test_what_has_passed_is_forgotten_with_the_value_that_was_wanted() -> None:
    assert list(stepped().passed) == [(GROUP, RAISE), (GROUP, CLOSE)]
    assert list(stepped(options={HOP: 3, "httpTokens": "required"}).passed) == [(GROUP, CLOSE)]
    assert stepped(options={}).passed == {}


def test_what_passed_without_a_probe_does_not_count_once_nodes_are_probed() -> None:
    assert stepped(proved=frozenset()).passed == {}
    proved = msgspec.structs.replace(passed(RAISE), proved=True)
    both = canaries(stood=(proved, passed(CLOSE)))
    assert list(stepped(canary=both, proved=frozenset()).passed) == [(GROUP, RAISE)]
    assert len(stepped(canary=both).passed) == 2, "and a proof is no fault where none is asked for"


Q: Final = PolicyOptions("q", 200, Options(1))
FREED: Final = found(2)


@pytest.mark.parametrize(
    ("held", "every", "counts"),
    [
        pytest.param(1, [found(1, BAD, Q), FREED], 1, id="it holds as many"),
        pytest.param(0, [found(1, BAD, Q), FREED], 1, id="it holds more"),
        pytest.param(2, [found(1, BAD, Q), FREED], None, id="it releases one"),
        pytest.param(2, [found(1, BAD, Q)], 2, id="one is not selected any more"),
        pytest.param(1, [found(2, GOOD)], 1, id="one has the value"),
        pytest.param(1, [found(2, group=("G", "b"))], 1, id="another group differs"),
        pytest.param(1, [found(2, GOOD, unasked="away")], None, id="one is unknown"),
        pytest.param(1, [found(2, state="terminated")], 1, id="one has ended"),
        pytest.param(1, [found(2, managed=True)], 1, id="AWS manages one"),
        pytest.param(1, [found(2, Options(3, "required", "enabled"))], 1, id="one has a third value"),
    ],
)
def test_what_another_policy_releases_has_to_pass_again(
    held: int, every: list[CheckedInstance], counts: int | None
) -> None:
    """A new process knows the number alone."""
    before = inputs(canary=canaries(stood=(msgspec.structs.replace(passed(RAISE), held=held),)))
    made = step({}, {}, before, every=every)
    assert [one.held for one in made.passed.values()] == ([] if counts is None else [counts])


OTHER: Final = found(4, BAD, Q)


@pytest.mark.parametrize(
    ("nodes", "every", "counts"),
    [
        pytest.param("12", [found(1, BAD, Q), FREED], None, id="one is released"),
        pytest.param("124", [found(1, BAD, Q), FREED, OTHER], None, id="another is taken"),
        pytest.param("1234", [found(1, BAD, Q), found(2, GOOD), found(3), OTHER], 2, id="as many are held"),
        pytest.param("13", [found(1, BAD, Q), found(3)], 1, id="its Node is deleted"),
        pytest.param("123", [found(1, BAD, Q), found(3)], None, id="it is not selected, and one differs"),
        pytest.param("123", [found(1, BAD, Q), found(3, GOOD)], 2, id="it is not selected"),
        pytest.param("3", [found(3)], 0, id="both Nodes are deleted"),
        pytest.param("23", [FREED, found(3)], None, id="one is deleted, the other is released"),
        pytest.param("12", [found(1, BAD, Q), found(2, group=("G", "b"))], None, id="with another group"),
    ],
)
def test_what_another_policy_releases_is_known_by_its_name(
    nodes: str, every: list[CheckedInstance], counts: int | None
) -> None:
    """The other policy held it on i-1 and i-2."""
    before = inputs(
        canary=canaries(stood=(msgspec.structs.replace(passed(RAISE), held=2),)),
        held={(GROUP, HOP, "1"): {"i-1", "i-2"}, (GROUP, HOP, "3"): {"i-3"}},
        instances={f"i-{number}" for number in nodes},
    )
    made = step({}, {}, before, every=every)
    assert [one.held for one in made.passed.values()] == ([] if counts is None else [counts])


def test_what_another_policy_has_just_changed_may_have_its_value() -> None:
    before = canaries(stood=(msgspec.structs.replace(passed(RAISE), held=1),))
    assert step({}, {}, inputs(canary=before, others={"i-2"}), every=[found(2, GOOD)]).passed == {}


@pytest.mark.parametrize(("at", "counts"), [(99.0, False), (100.0, True)])
def test_a_value_that_is_released_may_be_missing_in_the_first_readings_of_a_process(
    at: float, counts: bool
) -> None:
    before = canaries(stood=(msgspec.structs.replace(passed(RAISE), held=1),))
    after = step({}, {}, inputs(canary=before, believed_since=100.0), every=[found(2, GOOD, at=at)])
    assert bool(after.passed) == counts


def test_what_passes_tells_on_how_many_nodes_another_policy_holds_the_old_value() -> None:
    every = [found(1, GOOD), found(2, BAD, Q), found(3, BAD, Q), found(4, BAD, Q, group=("G", "b"))]
    stood = inputs(canary=canaries(canary("Soaking", 1, since=LONG_AGO)))
    made = step({"i-1": every[0]}, {}, stood, every=every)
    assert made.passed[GROUP, RAISE].held == 2


@pytest.mark.parametrize(
    ("before", "expect", "counts"),
    [
        ("PodReachable", "PodReachable", True),
        ("PodReachable", "Any", True),
        ("PodReachable", "PodBlocked", False),
        ("Any", "PodReachable", False),
        ("Any", "Any", True),
        ("", "PodReachable", False),
        ("", "Any", True),
    ],
)
def test_what_passed_counts_for_the_result_that_was_expected(before: str, expect: str, counts: bool) -> None:
    """An older version did not record it."""
    stood = canaries(stood=(msgspec.structs.replace(passed(RAISE), proved=True, expected=before),))
    made = stepped(canary=stood, proved=frozenset(), expect=expect)
    assert list(made.passed) == ([(GROUP, RAISE)] if counts else [])
    assert list(stepped(canary=stood, expect=expect).passed) == [(GROUP, RAISE)], "without a probe"


@pytest.mark.parametrize("proved", [None, frozenset({"i-1"})])
def test_what_passes_tells_whether_a_probe_proved_it(proved: frozenset[str] | None) -> None:
    made = stepped(
        found(1, GOOD),
        canary=canaries(canary("Soaking", 1, since=LONG_AGO)),
        proved=proved,
        expect="PodBlocked",
    )
    one = made.passed[GROUP, RAISE]
    assert (one.proved, one.expected) == ((True, "PodBlocked") if proved else (False, ""))


CLOSED, OPEN_STILL = Options(1, "required"), Options(1, "optional")


@pytest.mark.parametrize(
    ("has", "closed"),
    [
        pytest.param([CLOSED], True, id="hop limit 1 and required tokens"),
        pytest.param([OPEN_STILL], False, id="optional tokens"),
        pytest.param([CLOSED, OPEN_STILL], False, id="one of two has optional tokens"),
    ],
)
def test_what_passes_tells_whether_its_canary_was_closed_to_pods(has: list[Options], closed: bool) -> None:
    lowers = PolicyOptions(ME, 100, Options(1))
    ones = [found(number, options, mine=lowers) for number, options in enumerate(has, 1)]
    soaks = canary("Soaking", *range(1, len(has) + 1), since=LONG_AGO, changes=(LOWER,))
    made = stepped(*ones, canary=canaries(soaks), options={HOP: 1})
    assert made.passed[GROUP, LOWER].closed_to_pods is closed


def test_a_later_canary_that_keeps_a_way_to_imds_takes_no_pass_back() -> None:
    """It needed a canary for another option."""
    soaks = canary("Soaking", 1, since=LONG_AGO, changes=(LOWER,))
    stood = passed(LOWER, closed_to_pods=True)
    one = found(1, OPEN_STILL, mine=PolicyOptions(ME, 100, Options(1)))
    left = found(2, Options(2, "required"), mine=PolicyOptions(ME, 100, Options(1)))
    made = stepped(one, left, canary=canaries(soaks, stood=(stood,)), options={HOP: 1})
    assert made.passed[GROUP, LOWER].closed_to_pods


@pytest.mark.parametrize(("closed", "kept"), [(False, ["i-1"]), (True, [])])
def test_one_that_is_closed_to_pods_is_watched_until_that_has_passed(closed: bool, kept: list[str]) -> None:
    lowers = PolicyOptions(ME, 100, Options(1))
    one, left = found(1, CLOSED, mine=lowers), found(2, Options(2, "required"), mine=lowers)
    given = inputs(
        canary=canaries(stood=(passed(LOWER, closed_to_pods=closed),)),
        watched=watched(changed(1, at=LONG_AGO, applied=True), changes=(LOWER,)),
        options={HOP: 1},
    )
    assert instances(step({"i-1": one}, {}, given, every=[one, left])) == kept


def test_without_canaries_nothing_is_known() -> None:
    made = stepped(canary=canaries(canary("Soaking", 1)), watched=watched(changed(2)), canary_instances=0)
    assert made == Record()


# ---------------------------------------------------------------- status


def test_status_has_the_least_advanced_of_all_groups() -> None:
    other = ("KarpenterNodePool", "b")
    groups = {
        GROUP: canary("Soaking", 1, since=WALL - 60.0),
        other: canary("Changing", 2, since=WALL - 90.0, group=other),
    }
    reported = status(Record(groups), inputs(canary=None))
    assert reported is not None
    assert (reported.phase, reported.instances, reported.generation) == (
        "Changing",
        ("i-1", "i-2"),
        GENERATION,
    )
    assert (reported.started_at, reported.since) == (format_time(WALL - 90.0), format_time(WALL - 60.0))
    assert [(one.kind, one.name) for one in reported.groups] == [GROUP, other]
    failed_one = {**groups, other: canary("Failed", 2, group=other)}
    assert (status(Record(failed_one), inputs()) or reported).phase == "Failed"


def test_status_keeps_who_passed_last() -> None:
    record = Record(passed={(GROUP, RAISE): passed(RAISE)})
    soaking = canaries(canary("Soaking", 1, since=LONG_AGO))
    first = status(record, inputs(canary=soaking))
    assert first is not None
    assert (first.phase, first.instances, first.since) == ("Passed", ("i-1",), format_time(WALL))
    assert first.started_at == soaking.started_at
    later = status(record, inputs(canary=first))
    assert later == first
    assert status(Record(), inputs(canary=first)) is None


def test_status_is_bounded() -> None:
    many = {(GROUP, FieldChange(HOP, str(n), "2")): passed(RAISE) for n in range(MAX_PASSED + 5)}
    reported = status(Record(passed=many), inputs(canary=None))
    assert reported is not None
    assert len(reported.passed) == MAX_PASSED


def test_a_status_of_an_older_version_counts_as_nothing_passed() -> None:
    old = msgspec.structs.replace(canaries(), instances=("i-1",))
    assert stepped(found(1, GOOD), canary=old) == Record()
    assert status(Record(), inputs(canary=old)) is None
