"""Every state of a DaemonTask that Ready tells apart, by a sentence: tables for whoever reads them."""

from typing import Any, Final

import msgspec

from caretaker.api.daemontask import Budget, FailurePolicy, Status
from caretaker.daemontask.facts import Outcome
from caretaker.daemontask.ledger import Ledger
from caretaker.daemontask.plan import plan
from caretaker.daemontask.snapshot import Snapshot, Trouble
from caretaker.daemontask.status import status_of
from unit.daemontask.build import entry, node, pod, snapshot, task

A, B = node("a"), node("b")
NOT_READY = node("c", ready=False)
WELL = Outcome()


def status(of: Snapshot, outcome: Outcome = WELL) -> Status:
    return status_of(of, plan(of), outcome)


def done(**changes: Any) -> Status:
    """The status of a rollout that was complete."""
    complete = status(snapshot(task(), [A, B], entries={"a": entry(A), "b": entry(B)}))
    return msgspec.structs.replace(complete, **changes)


# What is seen, what became of the plan, Ready's reason, which abnormal conditions are True.
CASES: Final[dict[str, tuple[Snapshot, Outcome, str, dict[str, str]]]] = {
    "no node matches: never complete": (snapshot(task(), []), WELL, "NoMatchingNodes", {}),
    "a rollout under way is reconciling": (
        snapshot(task(), [A, B], entries={"a": entry(A)}),
        WELL,
        "RollingOut",
        {"Reconciling": "RollingOut"},
    ),
    "blocked nodes do not hold up Ready": (
        snapshot(task(), [A, NOT_READY], entries={"a": entry(A)}),
        WELL,
        "Succeeded",
        {},
    ),
    "all blocked is not done": (
        snapshot(task(), [NOT_READY]),
        WELL,
        "NodesBlocked",
        {"Reconciling": "RollingOut"},
    ),
    "exhausted retries stall, or GitOps waits for ever": (
        snapshot(task(), [A, B], entries={"a": entry(A), "b": entry(B, "Failed")}),
        WELL,
        "NodesFailed",
        {"Stalled": "NodesFailed", "Degraded": "NodesFailed"},
    ),
    "Continue within maxFailedNodes is ready and degraded": (
        snapshot(
            task(failure_policy=FailurePolicy(1)),
            [A, B],
            entries={"a": entry(A), "b": entry(B, "Failed")},
        ),
        WELL,
        "Succeeded",
        {"Degraded": "NodesFailed"},
    ),
    "all failed within maxFailedNodes is the end, too": (
        snapshot(
            task(failure_policy=FailurePolicy("100%")),
            [A, B],
            entries={"a": entry(A, "Failed"), "b": entry(B, "Failed")},
        ),
        WELL,
        "Succeeded",
        {"Degraded": "NodesFailed"},
    ),
    "Pause lets no failure pass as success": (
        snapshot(
            task(failure_policy=FailurePolicy(1, "Pause")),
            [A, B],
            entries={"a": entry(A), "b": entry(B, "Failed")},
        ),
        WELL,
        "NodesFailed",
        {"Stalled": "NodesFailed", "Degraded": "NodesFailed"},
    ),
    "suspended counts as current": (
        snapshot(task(suspend=True), [A]),
        WELL,
        "Suspended",
        {"Suspended": "Suspended"},
    ),
    "an invalid spec stalls": (
        snapshot(task(), [A], invalid="spec.template.spec.x: no"),
        WELL,
        "InvalidSpec",
        {"Stalled": "InvalidSpec"},
    ),
    "a node that joins later leaves the task ready": (
        snapshot(task(status=done()), [A, B], [pod(B)], {"a": entry(A)}),
        WELL,
        "Running",
        {},
    ),
    "one node failed for good while others still run": (
        snapshot(task(failure_policy=FailurePolicy(0)), [A, B], [pod(B)], {"a": entry(A, "Failed")}),
        WELL,
        "NodesFailed",
        {"Reconciling": "RollingOut", "Degraded": "NodesFailed"},
    ),
    "a policy of Fail ends the task": (
        snapshot(task(failure_policy=FailurePolicy(0, "Fail")), [A, B], entries={"a": entry(A, "Failed")}),
        WELL,
        "NodesFailed",
        {"Stalled": "NodesFailed", "Degraded": "NodesFailed"},
    ),
    "a policy of Pause holds the rollout": (
        snapshot(task(failure_policy=FailurePolicy(0, "Pause")), [A, B], entries={"a": entry(A, "Failed")}),
        WELL,
        "Paused",
        {"Stalled": "NodesFailed", "Degraded": "NodesFailed"},
    ),
    "a lost ledger stalls": (
        snapshot(task(), [A], ledger=Ledger(entries={}, shards=0, lost=1)),
        WELL,
        "LedgerLost",
        {"Stalled": "LedgerLost"},
    ),
    "an entry that cannot be read counts as not run": (
        snapshot(task(), [A, B], ledger=Ledger({"b": entry(B)}, {"a": "Expected `str`"}, shards=1)),
        WELL,
        "RollingOut",
        {"Reconciling": "RollingOut", "Degraded": "LedgerCorrupt"},
    ),
    "one that cannot be read is graver than one that failed": (
        snapshot(
            task(failure_policy=FailurePolicy(1)),
            [A, B],
            ledger=Ledger({"b": entry(B, "Failed")}, {"a": "Expected `str`"}, shards=1),
        ),
        WELL,
        "RollingOut",
        {"Reconciling": "RollingOut", "Degraded": "LedgerCorrupt"},
    ),
    "a pod that cannot start stalls after the deadline, when nothing else moves": (
        snapshot(task(progress_deadline_seconds=30), [A], [pod(A, phase="Pending", waiting="ErrImagePull")]),
        WELL,
        "ProgressDeadlineExceeded",
        {"Stalled": "ProgressDeadlineExceeded"},
    ),
    "a task that waits for its first tick is current": (
        snapshot(task(schedule="0 3 * * *"), [A]),
        WELL,
        "AwaitingSchedule",
        {},
    ),
    "a rollout that a budget holds back is reconciling": (
        snapshot(task(budgets=(Budget(0),)), [A]),
        WELL,
        "RollingOut",
        {"Reconciling": "RollingOut"},
    ),
    "a quota that refuses pods is tried again": (
        snapshot(task(), [A]),
        Outcome(trouble=Trouble("PodCreationRefused", "exceeded quota")),
        "PodCreationRefused",
        {"Reconciling": "RollingOut", "Degraded": "PodCreationRefused"},
    ),
    "a quota that refuses the ledger is tried again": (
        snapshot(task(), [A]),
        Outcome(trouble=Trouble("LedgerWriteRefused", "exceeded quota")),
        "LedgerWriteRefused",
        {"Reconciling": "RollingOut", "Degraded": "LedgerWriteRefused"},
    ),
    "a permission that is missing is tried again": (
        snapshot(task(), [A]),
        Outcome(trouble=Trouble("PermissionDenied", "cannot create pods")),
        "PermissionDenied",
        {"Reconciling": "RollingOut", "Degraded": "PermissionDenied"},
    ),
}
