"""Canaries and watched instances in status, and how long they stay there."""

from typing import Any

import msgspec
import pytest

from caretaker.api.imds import CanaryStatus, ChangedInstance
from caretaker.api.times import format_time
from caretaker.imds.canary import step
from caretaker.imds.canary_record import Record, chosen, status
from caretaker.imds.change_attempts import ChangeAttempt, failed
from caretaker.imds.change_state import change_state
from caretaker.imds.enforce_input import CheckedInstance
from caretaker.imds.soak import soaked_at
from unit.imds.enforcing import (
    BAD,
    CLOSE,
    GENERATION,
    GOOD,
    GROUP,
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

B, C = ("EKSManagedNodegroup", "b"), ("EKSManagedNodegroup", "c")
LONG_AGO = WALL - 86_400.0


def stepped(*every: CheckedInstance, **more: Any) -> Record:
    return step({one.instance: one for one in every}, {}, inputs(**more))


def of(*running: str) -> Record:
    """Canaries of several groups, in these phases."""
    made = [
        canary(phase, number, group=group, since=WALL - number)
        for number, (phase, group) in enumerate(zip(running, (GROUP, B, C), strict=False), 1)
    ]
    return Record(canaries={(one.kind, one.name): one for one in made})


@pytest.mark.parametrize(
    ("running", "phase"),
    [
        (("Soaking", "Changing"), "Changing"),
        (("Changing", "Soaking", "Failed"), "Failed"),
        (("Soaking", "Soaking"), "Soaking"),
    ],
)
def test_the_least_advanced_group_is_the_phase_of_all(running: tuple[str, ...], phase: str) -> None:
    reported = status(of(*running), inputs())
    assert reported is not None
    assert (reported.phase, reported.instances) == (
        phase,
        tuple(f"i-{n}" for n in range(1, len(running) + 1)),
    )
    assert reported.started_at == format_time(WALL - len(running))
    assert reported.since == format_time(WALL - 1)


def test_what_has_passed_is_kept_while_others_run_and_after() -> None:
    stood = passed(RAISE)
    record = msgspec.structs.replace(of("Soaking"), passed={(GROUP, RAISE): stood})
    running = status(record, inputs())
    assert running is not None
    assert running.passed == (stood,)
    before = CanaryStatus(GENERATION, ("i-7",), "Passed", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
    stale = msgspec.structs.replace(before, groups=running.groups, generation=GENERATION - 1)
    after = status(Record(passed={(GROUP, RAISE): stood}), inputs(canary=stale))
    assert after == msgspec.structs.replace(before, passed=(stood,)), "nothing is written without a reason"


def test_a_canary_that_fails_tells_since_when() -> None:
    made = stepped(canary=canaries(canary("Soaking", 1, since=LONG_AGO))).canaries[GROUP]
    assert (made.phase, made.since, made.message) == ("Failed", format_time(WALL), made.message)
    assert made.message


def test_a_node_that_is_not_ready_has_no_period() -> None:
    assert chosen(found(1, ready=False), inputs()).ready_since == ""
    since = format_time(READY_SINCE)
    assert chosen(found(1), inputs()) == ChangedInstance("i-1", "n1", format_time(WALL), ready_since=since)


def test_a_node_that_no_policy_can_hold_is_out_though_ec2_was_not_asked() -> None:
    one = found(1, GOOD, managed=True)
    assert change_state(msgspec.structs.replace(one, observed=None), (RAISE,), ME) == "out"


@pytest.mark.parametrize(("elapsed", "left"), [(119.0, 1.0), (30.0, 90.0)])
def test_a_soak_is_measured_by_the_clock_that_never_goes_back(elapsed: float, left: float) -> None:
    """By the wall clock it is long over."""
    soaking = canary("Soaking", 1, since=LONG_AGO)
    began = {GROUP: (soaking.since, 1_000.0 - elapsed)}
    here = inputs(soaks=began, now=1_000.0, canary_soak=120.0)
    assert soaked_at(soaking, here) == WALL + left


def test_a_soak_that_begins_now_goes_on() -> None:
    soaking = canary("Soaking", 1, since=WALL)
    for one in (found(1, GOOD), found(1, GOOD, pending=True)):
        made = stepped(one, canary=canaries(soaking)).canaries[GROUP]
        assert (made.phase, made.since) == ("Soaking", soaking.since)


def test_all_that_is_old_is_read_again() -> None:
    two = [canary("Soaking", 1, since=LONG_AGO), canary("Soaking", 2, since=LONG_AGO, group=B)]
    old = [found(1, GOOD, at=0.0), found(2, GOOD, at=0.0, group=B)]
    made = stepped(*old, canary=canaries(*two), fresh_since=995.0)
    assert [one.instance for one in made.stale] == ["i-1", "i-2"]


@pytest.mark.parametrize(("was", "options", "applied"), [(True, GOOD, True), (False, GOOD, True)])
def test_one_that_follows_was_applied_once_it_was_seen_so(was: bool, options: Any, applied: bool) -> None:
    made = stepped(found(1, options), watched=watched(changed(1, applied=was)))
    assert [one.applied for group in made.changed for one in group.instances] == [applied]


def test_one_that_follows_and_another_process_may_have_changed_is_refused_by_what_is_believed() -> None:
    attempt = failed(ChangeAttempt(), 990.0, "InvalidParameterValue", "no")
    more = {"attempts": {"i-1": attempt}, "inherited": {"i-1"}, "believed_since": 500.0}
    for at, kept in ((499.0, ["i-1"]), (500.0, [])):
        assert still(stepped(found(1, at=at), watched=watched(changed(1)), **more)) == kept


def test_one_that_follows_is_not_set_back_before_it_was_applied() -> None:
    made = stepped(found(1, BAD), watched=watched(changed(1)))
    assert [one.applied for group in made.changed for one in group.instances] == [False]
    assert made.faults == ()


def test_what_has_not_passed_can_be_lost() -> None:
    made = stepped(watched=watched(changed(1), changes=(CLOSE,)), canary=canaries(stood=(passed(RAISE),)))
    assert [one.reason for one in made.faults] == ["InstanceLost"]
    assert [change for _, change in made.passed] == [RAISE]


def still(record: Record) -> list[str]:
    return [one.instance for group in record.changed for one in group.instances]


@pytest.mark.parametrize(("ago", "kept"), [(300.0, ["i-1"]), (301.0, [])])
def test_after_a_long_soak_the_watch_is_shorter(ago: float, kept: list[str]) -> None:
    group = watched(changed(1, at=WALL - ago, applied=True))
    assert still(stepped(found(1, GOOD), watched=group, canary_soak=900.0)) == kept


@pytest.mark.parametrize(("ago", "kept"), [(120.0, ["i-1"]), (121.0, [])])
def test_what_this_process_sent_is_watched_by_its_own_clock(ago: float, kept: list[str]) -> None:
    group = watched(changed(1, at=LONG_AGO, applied=True))
    attempts = {"i-1": ChangeAttempt(sent_at=1_000.0 - ago, landed=True)}
    assert still(stepped(found(1, GOOD), watched=group, attempts=attempts, now=1_000.0)) == kept


@pytest.mark.parametrize(("ago", "fails"), [(20.0, False), (21.0, True)])
def test_a_node_may_be_away_for_pending_timeout(ago: float, fails: bool) -> None:
    one = ChangedInstance("i-1", "n1", format_time(WALL - ago), applied=True, unready=True)
    group = msgspec.structs.replace(canary("Changing", 1), instances=(one,))
    more = {"on_failure": "Restore", "pending_timeout": 20.0}
    made = stepped(found(1, GOOD, ready=False), canary=canaries(group), **more)
    assert [one.reason for one in made.faults] == (["CanaryNotReady"] if fails else [])
