"""Every state of a DaemonTask that Ready tells apart, by a sentence: tables for whoever reads them."""

from typing import Any, Final

import msgspec

from caretaker.api import names
from caretaker.api.daemontask import Budget, DataRef, Exclusive, FailurePolicy, Rollout, Status
from caretaker.api.objects import Node, Pod
from caretaker.api.times import format_time
from caretaker.daemontask.decision import WriteRefusal
from caretaker.daemontask.dependencies import Dependencies, Dependency
from caretaker.daemontask.group_view import GroupView, Hold
from caretaker.daemontask.intents import UNREADABLE
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN, Ledger
from caretaker.daemontask.plan import plan
from caretaker.daemontask.referenced_data import ReferencedData
from caretaker.daemontask.refused_pods import RefusedPod
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from unit.daemontask.build import NOW, REVISION, entry, node, pod, progress, snapshot, task

A, B, C, D = (node(name) for name in "abcd")
NOT_READY = node("c", ready=False)
WELL = Outcome()
TIMED = Status(current_revision=REVISION, rollout=Rollout(start_time=format_time(NOW - 3600)))


def status(of: Snapshot, outcome: Outcome = WELL) -> Status:
    return status_of(of, plan(of), outcome)


def done(**changes: Any) -> Status:
    """The status of a rollout that was complete."""
    complete = status(snapshot(task(), [A, B], entries={"a": entry(A), "b": entry(B)}))
    return msgspec.structs.replace(complete, **changes)


def ordered(*others: Dependency, circle: tuple[str, ...] = (), **seen: Any) -> Snapshot:
    """Of a task that depends on these, with three nodes."""
    return snapshot(task(), [A, B, C], dependencies=Dependencies(others, circle), **seen)


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
    "all blocked after the rollout have not succeeded": (
        snapshot(task(status=done()), [NOT_READY]),
        WELL,
        "Running",
        {},
    ),
    "exhausted retries stall, or GitOps waits for ever": (
        snapshot(task(), [A, B], entries={"a": entry(A), "b": entry(B, "Failed", reason="Error")}),
        WELL,
        "NodesFailed",
        {"Stalled": "NodesFailed", "Degraded": "NodesFailed"},
    ),
    "Continue within maxFailedNodes is ready and degraded": (
        snapshot(
            task(failure_policy=FailurePolicy(1)),
            [A, B],
            entries={"a": entry(A), "b": entry(B, "Failed", reason="Error")},
        ),
        WELL,
        "Succeeded",
        {"Degraded": "NodesFailed"},
    ),
    "all failed within maxFailedNodes is the end, too": (
        snapshot(
            task(failure_policy=FailurePolicy("100%")),
            [A, B],
            entries={"a": entry(A, "Failed", reason="Error"), "b": entry(B, "Failed", reason="Error")},
        ),
        WELL,
        "Succeeded",
        {"Degraded": "NodesFailed"},
    ),
    "Pause lets no failure pass as success": (
        snapshot(
            task(failure_policy=FailurePolicy(1, "Pause")),
            [A, B],
            entries={"a": entry(A), "b": entry(B, "Failed", reason="Error")},
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
        snapshot(
            task(failure_policy=FailurePolicy(0)), [A, B], [pod(B)], {"a": entry(A, "Failed", reason="Error")}
        ),
        WELL,
        "NodesFailed",
        {"Reconciling": "RollingOut", "Degraded": "NodesFailed"},
    ),
    "a policy of Fail ends the task": (
        snapshot(
            task(failure_policy=FailurePolicy(0, "Fail")),
            [A, B],
            entries={"a": entry(A, "Failed", reason="Error")},
        ),
        WELL,
        "NodesFailed",
        {"Stalled": "NodesFailed", "Degraded": "NodesFailed"},
    ),
    "a policy of Pause holds the rollout": (
        snapshot(
            task(failure_policy=FailurePolicy(0, "Pause")),
            [A, B],
            entries={"a": entry(A, "Failed", reason="Error")},
        ),
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
            ledger=Ledger({"b": entry(B, "Failed", reason="Error")}, {"a": "Expected `str`"}, shards=1),
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
    "a rollout whose deadline is over stalls": (
        snapshot(
            task(rollout_deadline_seconds=3600, parallelism=1, status=TIMED), [A, B], entries={"a": entry(A)}
        ),
        WELL,
        "RolloutDeadlineExceeded",
        {"Stalled": "RolloutDeadlineExceeded"},
    ),
    "a run goes on after the deadline": (
        snapshot(task(rollout_deadline_seconds=3600, status=TIMED), [A, B], [pod(A)]),
        WELL,
        "RolloutDeadlineExceeded",
        {"Reconciling": "RollingOut"},
    ),
    "a task that waits for its first tick is current": (
        snapshot(task(schedule="0 3 * * *"), [A]),
        WELL,
        "AwaitingSchedule",
        {},
    ),
    "nodes that wait for another task are reconciling": (
        ordered(Dependency("first", progress(waiting=[A], failed=[B], done=[C])), entries={"c": entry(C)}),
        WELL,
        "AwaitingDependency",
        {"Reconciling": "RollingOut"},
    ),
    "nodes wait for a task that is missing": (
        ordered(Dependency("first", missing=True)),
        WELL,
        "AwaitingDependency",
        {"Reconciling": "RollingOut"},
    ),
    "others run while a node waits for another task": (
        ordered(
            Dependency("first", progress(waiting=[A], done=[B, C])), pods=[pod(B)], entries={"c": entry(C)}
        ),
        WELL,
        "RollingOut",
        {"Reconciling": "RollingOut"},
    ),
    "a retry is to come while a node waits for another task": (
        ordered(
            Dependency("first", progress(waiting=[A], done=[B, C])),
            entries={"b": entry(B, "Retry", attempts=1, finished_at=int(NOW - 1)), "c": entry(C)},
        ),
        WELL,
        "RollingOut",
        {"Reconciling": "RollingOut"},
    ),
    "tasks that depend on each other stall": (
        ordered(Dependency("first", progress(waiting=[A, B, C])), circle=("task", "first", "task")),
        WELL,
        "DependencyCycle",
        {"Stalled": "DependencyCycle"},
    ),
    "data that cannot be read": (
        snapshot(
            task(rerun_on=("ReferencedDataChange",), data_refs=(DataRef("Secret", "token"),)),
            [A],
            data=ReferencedData((), (), "", "spec.dataRefs[0]: the operator may not get Secret token"),
        ),
        WELL,
        "ReferencedDataUnavailable",
        {"Reconciling": "RollingOut"},
    ),
    "a rollout that a budget holds back is reconciling": (
        snapshot(task(budgets=(Budget(0),)), [A]),
        WELL,
        "RollingOut",
        {"Reconciling": "RollingOut"},
    ),
    "nodes that another task of the group holds": (
        snapshot(
            task(exclusive=Exclusive("kernel")),
            [A, B],
            entries={"b": entry(B)},
            exclusion=GroupView(held={A.uid: Hold("other", always=True)}),
        ),
        WELL,
        "RollingOut",
        {"Reconciling": "RollingOut"},
    ),
    "a quota that refuses pods is tried again": (
        snapshot(task(), [A]),
        Outcome(refusal=WriteRefusal("PodCreationRefused", "exceeded quota")),
        "PodCreationRefused",
        {"Reconciling": "RollingOut", "Degraded": "PodCreationRefused"},
    ),
    "a quota that refuses the ledger is tried again": (
        snapshot(task(), [A]),
        Outcome(refusal=WriteRefusal("LedgerWriteRefused", "exceeded quota")),
        "LedgerWriteRefused",
        {"Reconciling": "RollingOut", "Degraded": "LedgerWriteRefused"},
    ),
    "a permission that is missing is tried again": (
        snapshot(task(), [A]),
        Outcome(refusal=WriteRefusal("PermissionDenied", "cannot create pods")),
        "PermissionDenied",
        {"Reconciling": "RollingOut", "Degraded": "PermissionDenied"},
    ),
}

DOWN = {name: node(name, ready=False, ready_since=NOW - 100) for name in "de"}
LONG_DOWN = {name: node(name, ready=False, ready_since=NOW - 9000) for name in "de"}
FAILING = entry(A, "Retry", attempts=1, finished_at=int(NOW - 1), failing_since=int(NOW - 1))
LOST = entry(
    D, "Retry", attempts=1, finished_at=int(NOW - 9000), failing_since=int(NOW - 9000), node_uid="uid-d"
)
PAUSE, FAIL = FailurePolicy(0, "Pause"), FailurePolicy(0, "Fail")
FINISHED = Status(finished_rollout=f"{REVISION}/-/-", current_revision=REVISION)
BAD = entry(B, "Failed", reason="Error", exit_code=3, finished_at=int(NOW - 9))
ROLLING = Status(current_revision=REVISION, start_time=format_time(NOW - 9000))
REFUSED = {of.uid: RefusedPod("no Pods here", NOW - 50, NOW + 50) for of in (B, A)}


def waiting(of: Node, reason: str, **changes: Any) -> Pod:
    return pod(of, phase="Pending", waiting=reason, **changes)


# More of what conditions say, beyond Ready's reason.
FURTHER: Final[dict[str, tuple[Snapshot, Outcome]]] = {
    "nodes in every state": (
        snapshot(
            task(failure_policy=FailurePolicy(2)),
            [A, B, C, D, DOWN["e"]],
            [pod(C)],
            {"a": entry(A), "b": BAD},
        ),
        WELL,
    ),
    "slots that rest": (
        snapshot(task(parallelism=1, min_success_seconds=7200), [A, B], entries={"a": entry(A)}),
        WELL,
    ),
    "the last slot rests": (
        snapshot(task(parallelism=1, min_success_seconds=7200), [A], entries={"a": entry(A)}),
        WELL,
    ),
    "a budget of one": (snapshot(task(budgets=(Budget(1),)), [A, B], [pod(A)]), WELL),
    "failures gate a rollout that may pause": (
        snapshot(task(backoff_limit=6, failure_policy=PAUSE), [A, B], entries={"a": FAILING}),
        WELL,
    ),
    "failures gate a rollout that may fail": (
        snapshot(task(backoff_limit=6, failure_policy=FAIL), [A, B], entries={"a": FAILING}),
        WELL,
    ),
    "a failing node and one that is lost": (
        snapshot(
            task(backoff_limit=6, failure_policy=FailurePolicy(1, "Pause")),
            [A, B, LONG_DOWN["d"]],
            entries={"a": FAILING, "d": LOST},
        ),
        WELL,
    ),
    "failures of a suspended task": (
        snapshot(task(backoff_limit=6, failure_policy=PAUSE, suspend=True), [A, B], entries={"a": FAILING}),
        WELL,
    ),
    "a lost node pauses": (
        snapshot(
            task(backoff_limit=6, failure_policy=PAUSE),
            [A, LONG_DOWN["d"]],
            entries={"a": entry(A), "d": LOST},
        ),
        WELL,
    ),
    "a lost node fails the task": (
        snapshot(
            task(backoff_limit=6, failure_policy=FAIL),
            [A, LONG_DOWN["d"]],
            entries={"a": entry(A), "d": LOST},
        ),
        WELL,
    ),
    "nodes that joined fail after the rollout": (
        snapshot(
            task(failure_policy=PAUSE, status=FINISHED),
            [A, B, C],
            entries={"a": entry(A, finished_at=int(NOW - 99)), "b": BAD},
        ),
        WELL,
    ),
    "and no other waits": (
        snapshot(
            task(failure_policy=PAUSE, status=FINISHED),
            [A, B],
            entries={"a": entry(A, finished_at=int(NOW - 99)), "b": BAD},
        ),
        WELL,
    ),
    "Pods that wait for images": (
        snapshot(
            task(),
            [A, B, C, D],
            [
                waiting(A, "ImagePullBackOff"),
                waiting(B, "ImagePullBackOff"),
                waiting(C, "ErrImagePull"),
                waiting(D, "ContainerCreating"),
            ],
        ),
        WELL,
    ),
    "all slots stuck": (
        snapshot(task(parallelism=1), [A, B], [waiting(A, "ErrImagePull", created=NOW - 9000)]),
        WELL,
    ),
    "two of three stuck": (
        snapshot(
            task(),
            [A, B, C],
            [
                waiting(B, "ErrImagePull", created=NOW - 9000),
                waiting(A, "ImagePullBackOff", created=NOW - 9000),
                pod(C),
            ],
        ),
        WELL,
    ),
    "refused nodes": (snapshot(task(), [A, B, C], entries={"c": entry(C)}, refused=REFUSED), WELL),
    "refused nodes, and one that waits": (snapshot(task(), [A, B, C], refused=REFUSED), WELL),
    "a quota of the rest": (
        snapshot(task(status=done()), [A, B], entries={"a": entry(A), "b": entry(B)}),
        Outcome(refusal=WriteRefusal("PodCreationRefused", "exceeded quota")),
    ),
    "nodes without room for so long": (
        snapshot(
            task(status=ROLLING),
            [A, B, *LONG_DOWN.values()],
            entries={"b": entry(B)},
            unplaced=frozenset({A.uid}),
        ),
        WELL,
    ),
    "all refused": (snapshot(task(), [A, B, C], refused=REFUSED, refused_until=NOW + 9), WELL),
    "all refused, and tried": (
        snapshot(task(), [A, B, C], refused=REFUSED, refused_until=NOW + 9),
        Outcome(refusal=WriteRefusal("PodCreationRefused", "no Pods here")),
    ),
    "blocked for long": (
        snapshot(task(), [A, *LONG_DOWN.values()], entries={"a": entry(A, revision="old")}),
        WELL,
    ),
    "unread entries under AtMostOnce": (
        snapshot(
            task(run_guarantee="AtMostOnce", backoff_limit=0),
            [A, B],
            entries={
                "a": entry(A),
                "b": entry(B, "Failed", reason=OUTCOME_UNKNOWN, pod_uid="", message=UNREADABLE),
            },
        ),
        WELL,
    ),
    "an entry that is broken, AtMostOnce": (
        snapshot(
            task(run_guarantee="AtMostOnce", backoff_limit=0),
            [A, B],
            [pod(A)],
            ledger=Ledger({"b": entry(B)}, {"a": "Expected `str`"}, shards=1),
        ),
        WELL,
    ),
    "a decision that is not carried out": (
        snapshot(
            task(annotations={names.LEDGER_DECISION: "assume-done: x"}),
            [A],
            ledger=Ledger({}, lost=1, loss="x is gone"),
        ),
        WELL,
    ),
    "names of Pods that are taken": (
        snapshot(task(), [A], entries={"a": entry(A)}),
        Outcome(conflicts=("t-1", "t-2")),
    ),
    "a Pod without its label": (
        snapshot(task(), [A], entries={"a": entry(A)}),
        Outcome(conflicts=("t-1",), unlabelled=frozenset({"t-1"})),
    ),
    "annotations with slips": (
        snapshot(
            task(annotations={names.RERUN_AT: "soon", names.RESUME_AT: "later"}), [A], entries={"a": entry(A)}
        ),
        WELL,
    ),
    "a template not checked yet": (snapshot(task(), [A], entries={"a": entry(A)}, checked=False), WELL),
    "runs that are to make way, and no budget for them": (
        snapshot(task(budgets=(Budget(0),), concurrency_policy="Replace"), [A, B], [pod(A, revision="old")]),
        WELL,
    ),
    "throttled": (
        snapshot(task(), [A], refused=REFUSED),
        Outcome(refusal=WriteRefusal("PermissionDenied", "cannot create pods")),
    ),
    "Pods that stay": (
        snapshot(task(), [A], entries={"a": entry(A)}),
        Outcome(refusal=WriteRefusal("PodDeletionRefused", "Pod t-1: evidence")),
    ),
}
