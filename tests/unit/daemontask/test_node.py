"""What one node needs: each field of the decision about it."""

from typing import Any, Final

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.objects import ContainerEnd, Pod
from caretaker.daemontask.decision import Decision
from caretaker.daemontask.ledger import Entry, Fault
from caretaker.daemontask.node import decide
from caretaker.daemontask.node_eligibility import FITS, Eligibility
from caretaker.daemontask.pod_failure_policy import REBOOT_WINDOW
from caretaker.daemontask.pods import run_key
from caretaker.daemontask.refused_pods import RefusedPod
from unit.daemontask.build import NOW, REVISION, UID, decision_input, entry, failed, node, pod

A = node("a")
DEADLINE: Final = 1800
REBOOTS: Final = ("TemplateChange", "NodeReboot")
ONCE: Final = {"run_guarantee": "AtMostOnce", "backoff_limit": 0}


def decided(
    of: Entry | None = None,
    *pods: Pod,
    eligibility: Eligibility = FITS,
    at: Any = A,
    spec: dict[str, Any] | None = None,
    **changes: Any,
) -> Decision:
    known = msgspec.structs.replace(decision_input(**(spec or {})), **changes)
    return decide(known, at, eligibility, {p.name: p for p in pods}, of)


def last(result: str = "Retry", ago: float = 5, **changes: Any) -> Entry:
    return entry(A, result, **{"finished_at": int(NOW - ago), **changes})


def blocked(since: float) -> Eligibility:
    return Eligibility("blocked", "NodeNotReady", "no heartbeat", since)


@pytest.mark.parametrize(
    ("asked", "decision"),
    [
        pytest.param({}, Decision("pending", "Queued", start="NewNode", seq=1), id="it has never run"),
        pytest.param(
            {"seq_skips": {A.uid: 2}},
            Decision("pending", "Queued", start="NewNode", seq=3),
            id="others have taken two names",
        ),
        pytest.param(
            {"of": last("Succeeded", attempts=2, disruptions=1, seq=3, revision="old", nonce="2026")},
            Decision("pending", "Queued", start="TemplateChange", seq=4, nonce="2026"),
            id="the template has changed since it succeeded: the re-run before stays answered",
        ),
        pytest.param(
            {"of": last("Succeeded", attempts=1, boot_id="before"), "spec": {"rerun_on": REBOOTS}},
            Decision("pending", "Queued", start="NodeReboot", seq=2),
            id="it has rebooted since it succeeded",
        ),
        pytest.param({"of": last("Succeeded")}, Decision("succeeded", since=NOW - 5), id="it has succeeded"),
        pytest.param(
            {"of": last("Failed", reason="Error", message="no")},
            Decision("failed", "Error", "no", since=NOW - 5),
            id="it has failed",
        ),
        pytest.param(
            {"of": last("Succeeded"), "spec": {"min_success_seconds": 60}},
            Decision(
                "succeeded",
                "MinSuccessSeconds",
                since=NOW - 5,
                slot=True,
                slot_until=NOW + 55,
                wake=NOW + 55,
            ),
            id="it is watched after its success",
        ),
        pytest.param(
            {"eligibility": Eligibility("held", "Tainted", "a taint")},
            Decision("excluded", "Tainted", "a taint"),
            id="a taint keeps it out",
        ),
    ],
)
def test_a_node_without_a_pod(asked: dict[str, Any], decision: Decision) -> None:
    assert decided(**asked) == decision


@pytest.mark.parametrize(
    ("of", "inputs", "decision"),
    [
        pytest.param(
            last(attempts=1, disruptions=2, reason="Error", message="no"),
            {},
            Decision("pending", "Backoff", "Error: no", since=NOW - 5, slot=True, failing=NOW - 5),
            id="both ways to fail",
        ),
        pytest.param(
            last(attempts=1, disruptions=2),
            {},
            Decision("pending", "Backoff", since=NOW - 5, slot=True, failing=NOW - 5),
            id="without a reason",
        ),
        pytest.param(
            last(attempts=1, disruptions=2, reason="Error", message="no"),
            {"unplaced": frozenset({A.uid})},
            Decision("pending", "Backoff", "Error: no", since=NOW - 5, failing=NOW - 5),
            id="its last Pod was given up without a node: others go first",
        ),
        pytest.param(
            last(rejections=3, reason="OutOfcpu", message="no room", started_at=7),
            {},
            Decision("blocked", "OutOfcpu", "no room", since=7),
            id="its kubelet rejects",
        ),
        pytest.param(
            last(attempts=3),
            {"refused": {A.uid: RefusedPod("no quota", 7, NOW + 1)}},
            Decision("blocked", "PodRefused", "no quota", since=7, failing=NOW - 5),
            id="the API server refuses",
        ),
    ],
)
def test_a_node_whose_backoff_is_not_over(of: Entry, inputs: dict[str, Any], decision: Decision) -> None:
    """Of three attempts: 40 s."""
    wake = NOW + 35
    until = wake if decision.slot else 0.0
    expected = msgspec.structs.replace(decision, wake=wake, slot_until=until)
    assert decided(of, **inputs) == expected


def test_a_node_whose_backoff_is_over() -> None:
    of = last(ago=40, attempts=1, disruptions=2, seq=3, reason="Error", message="no")
    assert decided(of) == Decision(
        "pending", "Queued", since=NOW - 40, slot=True, failing=NOW - 40, start="Retry", seq=4, attempt=4
    )


@pytest.mark.parametrize("of", [last(attempts=1), last(disruptions=1)], ids=["failed", "disrupted"])
@pytest.mark.parametrize("given_up", ["a", "another"])
def test_a_pod_that_has_ended_had_been_placed(of: Entry, given_up: str) -> None:
    """Its node keeps the slot, though an earlier Pod was given up."""
    found = decided(of, failed(A, 2), unplaced=frozenset({f"uid-{given_up}"}))
    assert (found.state, found.reason, found.slot) == ("pending", "Backoff", True)
    assert (found.start, found.record is None) == ("", False)


@pytest.mark.parametrize(
    ("of", "since", "inputs", "times"),
    [
        pytest.param(None, NOW - 60, {}, (0, NOW - 60 + DEADLINE), id="it is late then"),
        pytest.param(None, NOW - DEADLINE, {}, (0, 0), id="it is late now"),
        pytest.param(None, NOW - 60, {"waiting_since": NOW - 9}, (0, NOW - 9 + DEADLINE), id="waited for"),
        pytest.param(None, 0, {"waiting_since": NOW - 9}, (0, 0), id="nobody knows since when"),
        pytest.param(
            last(ago=90, attempts=1), NOW - 60, {}, (NOW - 90 + DEADLINE, NOW - 90 + DEADLINE), id="failed"
        ),
        pytest.param(
            last(ago=DEADLINE, attempts=1), NOW - 60, {}, (0, NOW - 60 + DEADLINE), id="failed long ago"
        ),
        pytest.param(last(ago=90), NOW - 60, {}, (0, NOW - 60 + DEADLINE), id="disrupted"),
    ],
)
def test_a_node_on_which_nothing_may_start(
    of: Entry | None, since: float, inputs: dict[str, Any], times: tuple[float, float]
) -> None:
    until, wake = times
    assert decided(of, eligibility=blocked(since), **inputs) == Decision(
        "blocked",
        "NodeNotReady",
        "no heartbeat",
        since=since,
        slot=until > 0,
        slot_until=until,
        failing=float(of.finished_at) if of is not None and of.attempts else 0.0,
        wake=wake,
    )


@pytest.mark.parametrize(
    ("ago", "since", "until", "failing"),
    [
        pytest.param(90, NOW - 60, NOW - 90 + DEADLINE, 0, id="it may come back"),
        pytest.param(DEADLINE, NOW - 60, 0, NOW - 60, id="it is late now"),
        pytest.param(DEADLINE + 60, NOW - 60, 0, NOW - 60, id="NotReady at the deadline"),
        pytest.param(DEADLINE + 60, NOW - 59, 0, 0, id="NotReady after the deadline"),
        pytest.param(DEADLINE + 60, NOW - 9000, 0, NOW - DEADLINE - 60, id="NotReady before its run ended"),
    ],
)
def test_a_node_whose_run_was_disrupted_is_not_ready(
    ago: float, since: float, until: float, failing: float
) -> None:
    found = decided(last(ago=ago, disruptions=1), eligibility=blocked(since))
    assert (found.slot, found.slot_until, found.failing) == (until > 0, until, failing)


@pytest.mark.parametrize(
    ("before", "since", "until", "failing"),
    [
        pytest.param({"disruptions": 1}, NOW - 60, NOW - 60 + DEADLINE, 0, id="it was disrupted before"),
        pytest.param({"disruptions": 1}, NOW - DEADLINE, 0, NOW - DEADLINE, id="disrupted, and late now"),
        pytest.param({}, NOW - 60, 0, 0, id="nothing has run"),
    ],
)
@pytest.mark.parametrize("ago", [5, 900])
def test_a_node_whose_kubelet_rejects_its_pods(
    before: dict[str, int], since: float, until: float, failing: float, ago: float
) -> None:
    """`ago`: before or after the time of its next attempt."""
    of = last(
        ago=ago, rejections=1, reason="Evicted", message="DiskPressure", started_at=int(since), **before
    )
    found = decided(of)
    assert (found.state, found.reason, found.message) == ("blocked", "Evicted", "DiskPressure")
    assert (found.slot, found.slot_until, found.since, found.failing) == (until > 0, until, since, failing)
    assert (found.start, found.wake) == (("", NOW - 5 + 10) if ago == 5 else ("Retry", until))


@pytest.mark.parametrize(
    ("asked", "wake"),
    [(0, 0), (NOW - 100, NOW - 100 + DEADLINE), (NOW - DEADLINE, 0)],
    ids=["it is not deleted", "it is late then", "it is late now"],
)
def test_a_node_waits_for_the_pod_of_the_node_that_it_replaced(asked: float, wake: float) -> None:
    left = pod(A, deletion=asked and asked + 30, deletion_asked=asked)
    assert decided(namesakes={A.uid: left}) == Decision(
        "blocked",
        "PredecessorTerminating",
        f"waiting for Pod {left.name} of an earlier node of this name to go",
        since=asked,
        slot=True,
        slot_for="PredecessorTerminating",
        slot_since=asked,
        wake=wake,
    )


def test_a_node_waits_for_the_pod_of_an_earlier_task_and_holds_no_slot() -> None:
    left = pod(A, owner_uid="earlier", deletion=NOW, deletion_asked=NOW - 30)
    message = f"waiting for Pod {left.name} of an earlier task of this name to go"
    found = decided(namesakes={A.uid: left})
    assert found == Decision("blocked", "PredecessorTerminating", message, since=NOW - 30)


def test_a_run_whose_pod_is_still_to_be_seen_is_active_and_goes_on_failing() -> None:
    """The task was changed to AtMostOnce after an attempt had failed."""
    of = entry(A, "Failed", intent="token", started_at=int(NOW - 3), finished_at=0)
    of = msgspec.structs.replace(of, attempts=1, failing_since=50)
    assert decided(of, spec=ONCE) == Decision(
        "active", "Starting", since=NOW - 3, slot=True, failing=50, wake=NOW - 3 + 31
    )


def test_a_reboot_too_many_is_recorded_as_the_last_run() -> None:
    of = last(
        "Succeeded",
        boot_id="before",
        reboot_runs=(int(NOW - REBOOT_WINDOW + 1), int(NOW - 60), int(NOW - 30)),
        results={"ms": 1},
        fault=Fault("", "NoMessage"),
    )
    message = "reboots started 3 runs within 6 h; fix the node, then rerun it"
    loop = msgspec.structs.replace(
        of,
        result="Failed",
        reason="RebootLoop",
        message=message,
        run_key=run_key(UID, REVISION, A.uid, "", "boot-a"),
        boot_id="boot-a",
        results=None,
        fault=None,
    )
    assert decided(of, spec={"rerun_on": REBOOTS}) == Decision(
        "failed", "RebootLoop", message, since=NOW - 5, record=loop, wake=NOW
    )


def test_a_run_that_is_over_the_limit_goes_on_from_the_attempt_before_and_its_own_reboot() -> None:
    crash = ContainerEnd("main", 3, "Error")
    live = pod(A, 2, marks={names.POD_BOOT_ID: "before"}, failures=4, crash=crash)
    spec = {"rerun_on": REBOOTS, "reboots_node": True}
    record = decided(last(attempts=1), live, at=node("a", ready_since=NOW - 30), spec=spec).record
    assert record is not None
    assert (record.attempts, record.boot_absorbed) == (5, True)
    assert record.run_key == run_key(UID, REVISION, A.uid, "", "boot-a")
