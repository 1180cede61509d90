"""The whole messages of Ready and of the breaker in mode Enforce."""

from typing import Any

import msgspec
import pytest

from caretaker.api.imds import Options
from caretaker.api.times import format_time
from caretaker.imds.change_attempts import NO_ANSWER, ChangeAttempt, failed
from caretaker.imds.enforce import POLL_SECONDS, READY_SECONDS, Enforced, enforce
from unit.imds.enforcing import (
    BAD,
    CLOSE,
    GOOD,
    GROUP,
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

B, NONE = ("EKSManagedNodegroup", "b"), ("", "")
LEFT = "; 1 instance(s) left to change, 0 pending in EC2"
LONG_AGO = WALL - 86_400.0


# Instances, and the values of the EnforceInput.
Given = tuple[tuple[Any, ...], dict[str, Any]]


def given(*every: Any, **more: Any) -> Given:
    return every, more


def made(*every: Any, **more: Any) -> Enforced:
    return enforce(every, inputs(**{"canary": None, **more}))


def soaking(*numbers: int, **more: Any) -> Any:
    return canary("Soaking", *numbers, **more)


def unprobeable(number: int) -> Any:
    one = found(number, provable=False)
    return msgspec.structs.replace(
        one, result=msgspec.structs.replace(one.result, message="no probe runs there")
    )


@pytest.mark.parametrize(
    ("asked", "phase", "message"),
    [
        pytest.param(given(found(1, GOOD)), "Enforced", "no instance is left to change", id="all is done"),
        pytest.param(
            given(found(1, GOOD, pending=True)),
            "Changing",
            "0 instance(s) left to change, 1 pending in EC2",
            id="EC2 applies the last one",
        ),
        pytest.param(
            given(found(1)),
            "CanaryChanging",
            "Canary i-1 of EKSManagedNodegroup/a is being changed" + LEFT,
            id="the first is sent",
        ),
        pytest.param(
            given(found(1, group=NONE), proved=frozenset()),
            "CanaryChanging",
            "Canary i-1 is being changed, and has to pass the probe afterwards" + LEFT,
            id="of no group, with a probe",
        ),
        pytest.param(
            given(*(found(n) for n in range(1, 5)), canary_instances=4),
            "CanaryChanging",
            "Canary i-1, i-2, i-3 of EKSManagedNodegroup/a is being changed"
            "; 4 instance(s) left to change, 0 pending in EC2",
            id="three are named",
        ),
        pytest.param(
            given(found(1), found(2, group=B)),
            "CanaryChanging",
            "Canary i-1 of EKSManagedNodegroup/a is being changed; 1 more group(s) have a canary"
            "; 2 instance(s) left to change, 0 pending in EC2",
            id="two groups",
        ),
        pytest.param(
            given(found(1), found(2, GOOD, group=B), canary=canaries(soaking(2, group=B))),
            "CanaryChanging",
            "Canary i-1 of EKSManagedNodegroup/a is being changed; 1 more group(s) have a canary" + LEFT,
            id="the least advanced is told",
        ),
        pytest.param(
            given(found(1, GOOD), found(2, group=B), canary=canaries(soaking(1))),
            "CanaryChanging",
            "Canary i-2 of EKSManagedNodegroup/b is being changed; 1 more group(s) have a canary" + LEFT,
            id="whatever its name",
        ),
        pytest.param(
            given(found(1, GOOD), found(2), canary=canaries(soaking(1))),
            "CanarySoaking",
            f"Canary i-1 of EKSManagedNodegroup/a soaks until {format_time(WALL + 121)}, then the remaining "
            f"instances are changed{LEFT}",
            id="it soaks",
        ),
        pytest.param(
            given(found(1, GOOD), found(2), canary=canaries(soaking(1)), canary_soak=0.0, fresh_since=1e9),
            "Changing",
            "1 instance(s) left to change, 0 pending in EC2",
            id="without a soak the others follow",
        ),
        pytest.param(
            given(
                found(1, GOOD),
                found(2, GOOD, group=B),
                found(3),
                canary=canaries(soaking(1), soaking(2, group=B, changes=(CLOSE,))),
                canary_soak=900.0,
            ),
            "CanarySoaking",
            f"Canary i-1 of EKSManagedNodegroup/a soaks until {format_time(WALL + 901)}, then the remaining "
            f"instances are changed; 1 more group(s) have a canary{LEFT}",
            id="as long as a closing change",
        ),
        pytest.param(
            given(found(1, GOOD), found(2), canary=canaries(soaking(1, changes=(CLOSE,)))),
            "CanarySoaking",
            f"Canary i-1 of EKSManagedNodegroup/a soaks until {format_time(WALL + 901)} (a closing change "
            f"soaks at least 15 min: clients cache credentials), then the remaining instances are changed"
            f"{LEFT}",
            id="a closing change",
        ),
        pytest.param(
            given(
                *(found(1, GOOD), found(2)),
                canary=canaries(soaking(1, since=WALL - 121)),
                proved=frozenset(),
            ),
            "CanarySoaking",
            "Canary i-1 of EKSManagedNodegroup/a has soaked, and waits for its probe (condition Verified)"
            + LEFT,
            id="the probe is late",
        ),
        pytest.param(
            given(
                *(found(1, GOOD, at=0.0), found(2)),
                canary=canaries(soaking(1, since=WALL - 121)),
                fresh_since=995.0,
            ),
            "CanarySoaking",
            "Canary i-1 of EKSManagedNodegroup/a has soaked, and waits for a new reading of EC2" + LEFT,
            id="its reading is old",
        ),
        pytest.param(
            given(found(1), cap=0),
            "CanaryChanging",
            "No canary has been chosen yet" + LEFT,
            id="nothing is free",
        ),
        pytest.param(
            given(found(1, ready=False)),
            "CanaryChanging",
            "No instance is eligible as a canary: i-1 (node n1): its Node is not Ready" + LEFT,
            id="nobody is Ready",
        ),
        pytest.param(
            given(unprobeable(1)),
            "NotProbeable",
            "instance i-1 (node n1): no probe runs there" + LEFT,
            id="nobody can be probed",
        ),
        pytest.param(
            given(unprobeable(1), found(2, ready=False), found(3), cap=0),
            "CanaryChanging",
            "No canary has been chosen yet; 3 instance(s) left to change, 0 pending in EC2",
            id="nothing is free for the one that is eligible",
        ),
        pytest.param(
            given(unprobeable(1), found(2, state="stopped")),
            "CanaryChanging",
            "No instance is eligible as a canary: i-2 (node n2): it is not running"
            "; 2 instance(s) left to change, 0 pending in EC2",
            id="one cannot be probed, one does not run",
        ),
        pytest.param(
            given(found(9, GOOD, ready=False), found(1), canary=canaries(stood=(passed(RAISE),)),
                 watched=watched(changed(9, applied=True))),
            "NodeNotReady",
            "Node n9 is not Ready after its instance i-9 was changed. No instance is changed until the Node "
            "is Ready; if the change broke it, restore the instance's options",
            id="one that was changed is not Ready",
        ),
        pytest.param(
            given(*(found(n, GOOD, ready=False) for n in (7, 8)), found(1),
                  watched=watched(*(changed(n, applied=True) for n in (7, 8)))),
            "NodeNotReady",
            "Node n7 is not Ready after its instance i-7 was changed and 1 more. No instance is changed "
            "until the Node is Ready; if the change broke it, restore the instance's options",
            id="two of them",
        ),
        pytest.param(
            given(*(found(n, GOOD, ready=False) for n in (7, 8, 9)), found(1),
                 watched=watched(*(changed(n, applied=True) for n in (7, 8, 9)))),
            "NodeNotReady",
            "Node n7 is not Ready after its instance i-7 was changed and 2 more. No instance is changed "
            "until the Node is Ready; if the change broke it, restore the instance's options",
            id="three of them",
        ),
        pytest.param(
            given(found(1, GOOD, group=NONE, ungrouped_at=990.0), canary=canaries(soaking(1))),
            "NotAsked",
            "It is unknown whether instance i-1 (node n1) still has its change: EC2 has not confirmed its "
            "group. No instance is changed until EC2 reports it",
            id="EC2 reports a canary without its group",
        ),
        pytest.param(
            given(found(1), found(2, GOOD), found(3, GOOD, pending=True), max_drift_percent=33),
            "DriftTooWide",
            "1 of 3 instances differ; spec.safety.maxDriftPercent allows 33 %. No instance is changed. Check "
            "spec.selector and spec.options, then raise maxDriftPercent",
            id="too many differ",
        ),
        pytest.param(
            given(found(1), unproved=("Slow", "a pod waits")), "Slow", "a pod waits", id="what a probe found"
        ),
        pytest.param(given(found(1), unproved=("Slow", "")), "Slow", "", id="and does not explain"),
        pytest.param(
            given(found(1), failures=5, last_failure="i-9: no"),
            "BreakerOpen",
            "ChangesFailed: 5 changes failed in a row; the last error is: i-9: no. No instance is changed "
            "until you run `caretaker resume imdspolicy p` or change the spec",
            id="failures in a row",
        ),
        pytest.param(
            given(found(1), denied=("i-9", "no")),
            "BreakerOpen",
            "ChangeDenied: instance i-9: no. No instance is changed until you run `caretaker resume "
            "imdspolicy p` or change the spec",
            id="a denied change",
        ),
    ],
)  # fmt: skip
def test_what_it_does_and_what_stops_it(asked: Given, phase: str, message: str) -> None:
    result = made(*asked[0], **asked[1])
    assert (result.phase, result.message) == (phase, message)


def opened(*every: Any, **more: Any) -> tuple[str, int, str, str]:
    breaker = made(*every, **more).breaker
    assert breaker is not None
    return breaker.reason, breaker.failures, breaker.instance, breaker.node


def test_the_breaker_names_what_opened_it() -> None:
    failing = {"failures": 5, "last_failure": "x" * 2000}
    assert opened(found(1), **failing) == ("ChangesFailed", 5, "", "")
    assert opened(found(1), denied=("i-9", "no"), failures=1) == ("ChangeDenied", 0, "i-9", "")
    lost = canaries(canary("Changing", 9))
    assert opened(found(1), canary=lost, failures=1) == ("CanaryLost", 0, "i-9", "n9")
    breaker = made(found(1), **failing).breaker
    assert breaker is not None
    assert len(breaker.message) == 1024


RESTORE = {"on_failure": "Restore"}
AWAY = canaries(canary("Changing", 1, applied=True, unready=True, since=LONG_AGO))


@pytest.mark.parametrize(
    ("asked", "reason", "message"),
    [
        pytest.param(
            given(canary=canaries(canary("Changing", 1))),
            "CanaryLost",
            "was terminated or its Node was deleted after it was sent the change",
            id="a canary is gone",
        ),
        pytest.param(
            given(found(1, GOOD, managed=True), canary=canaries(canary("Changing", 1))),
            "CanaryLost",
            "left the policy by its labels or tags after it was sent the change",
            id="a canary is out of the policy",
        ),
        pytest.param(
            given(found(1), canary=canaries(canary("Soaking", 1))),
            "CanarySetBack",
            "had the change, and then another client reverted it",
            id="a canary is set back",
        ),
        pytest.param(
            given(found(1, GOOD, ready=False), canary=AWAY, **RESTORE),
            "CanaryNotReady",
            "has the change, and its Node has not been Ready for spec.pendingTimeout",
            id="the Node of a canary stays away",
        ),
        pytest.param(
            given(found(1, GOOD), canary=canaries(soaking(1)), faulty={"i-1": "no way"}, **RESTORE),
            "CanaryUnreachable",
            "has the change, and failed the probe: no way",
            id="a canary fails its probe",
        ),
        pytest.param(
            given(watched=watched(changed(1))),
            "InstanceLost",
            "was terminated or its Node was deleted after it was sent the change",
            id="one that follows is gone",
        ),
        pytest.param(
            given(found(1), watched=watched(changed(1, applied=True))),
            "InstanceSetBack",
            "had the change, and then another client or policy reverted it",
            id="one that follows is set back",
        ),
    ],
)
def test_the_breaker_tells_what_became_of_the_instance(asked: Given, reason: str, message: str) -> None:
    result = made(*asked[0], **asked[1])
    assert result.breaker is not None
    assert (result.breaker.reason, result.breaker.message) == (reason, f"instance i-1 (node n1) {message}")
    assert (result.breaker.instance, result.breaker.node) == ("i-1", "n1")


FAILED = failed(ChangeAttempt(), 990.0, "InvalidParameterValue", "no")
SILENT = failed(ChangeAttempt(), 990.0, "Timeout", "")
FOUGHT = ChangeAttempt(reversals=(1.0, 2.0, 3.0), not_before=1_020.0)
BLOCKED = failed(ChangeAttempt(), 990.0, "BlockedByAccountPolicy", "not here")


@pytest.mark.parametrize(
    ("attempt", "counts"),
    [
        (ChangeAttempt(), (0, 0, ())),
        (FAILED, (1, 0, ())),
        (SILENT, (1, 0, ())),
        (FOUGHT, (1, 1, ())),
        (BLOCKED, (1, 0, ("not here",))),
    ],
)
def test_what_fails_is_counted(attempt: ChangeAttempt, counts: tuple[int, int, tuple[str, ...]]) -> None:
    result = made(found(1), attempts={"i-1": attempt}, slowed=True)
    assert (result.failing, result.fighting, result.account_blocked) == counts
    assert result.slowed


@pytest.mark.parametrize(
    ("reading", "read"),
    [
        ({}, True),
        ({"unasked": "away"}, False),
        ({"managed": True}, False),
        ({"state": "terminated"}, False),
    ],
)
def test_what_is_watched_is_read_again_with_the_next_changes(reading: dict[str, Any], read: bool) -> None:
    """Those that have ended, and unknown and unmanaged ones are not: their readings would never be fresh."""
    old = found(9, GOOD, at=0.0, **reading)
    result = made(
        *(old, found(1)),
        canary=canaries(stood=(passed(RAISE),)),
        watched=watched(changed(9)),
        attempts={"i-9": FAILED},
        fresh_since=995.0,
    )
    assert {one for _, one in result.ahead} == ({"i-9", "i-1"} if read else set())


def test_a_failed_canary_is_not_told_as_one_that_runs() -> None:
    broken = canary("Failed", 9)
    result = made(found(1), canary=canaries(broken), cap=0)
    assert result.message.startswith("No canary has been chosen yet")


@pytest.mark.parametrize(("not_before", "wake"), [(1_000.0, 7.5), (1_000.5, 0.5), (1_001.0, 1.0)])
def test_a_backoff_is_waited_for(not_before: float, wake: float) -> None:
    attempt = msgspec.structs.replace(FAILED, not_before=not_before)
    more = {"canary": canaries(stood=(passed(RAISE),)), "wait": 7.5, "cap": 0}
    assert made(found(1), attempts={"i-1": attempt}, **more).wake == pytest.approx(wake)
    beside = made(found(1), found(2, GOOD, pending=True), attempts={"i-1": attempt}, **more)
    assert beside.wake == pytest.approx(min(wake, POLL_SECONDS))


@pytest.mark.parametrize(
    ("not_before", "wake"), [(1_000.0, READY_SECONDS), (1_000.5, 0.5), (1_040.0, READY_SECONDS)]
)
def test_without_an_eligible_canary_it_looks_again_soon(not_before: float, wake: float) -> None:
    attempt = msgspec.structs.replace(FAILED, not_before=not_before)
    assert made(found(1, ready=False), attempts={"i-1": attempt}).wake == pytest.approx(wake)


def test_only_a_canary_that_is_being_changed_wakes_for_its_backoff() -> None:
    late = msgspec.structs.replace(failed(ChangeAttempt(), 990.0, NO_ANSWER, "x"), not_before=1_002.0)
    stands = canaries(soaking(1, changes=(CLOSE,)))
    result = made(found(1, BAD), canary=stands, attempts={"i-1": late})
    assert result.wake == 60.0
    changes = canaries(canary("Changing", 1))
    attempts = {f"i-{n}": msgspec.structs.replace(late, not_before=1_050.0 - 10 * n) for n in (1, 2)}
    assert made(found(1), canary=changes, attempts=attempts).wake == 40.0
    two = found(2, Options(1, "optional", "enabled"))
    assert made(found(1), two, canary=changes, attempts=attempts, canary_instances=2).wake == 40.0, (
        "one that needs another change does not join"
    )
    assert GROUP in {(one.kind, one.name) for one in changes.groups}
