"""The alerts about DaemonTasks."""

from typing import Final

from testing.alertcases.notation import POD, Case, Cases, condition, series
from testing.alertcases.s3refresh import REFRESH

TASK: Final = {**POD, "namespace": "batch", "name": "task"}
BY_TASK: Final = {"namespace": "batch", "name": "task"}


def task(what: str, reason: str) -> str:
    """A DaemonTask's condition."""
    return condition("DaemonTask", TASK, what, reason)


def nodes(state: str, **more: str) -> str:
    """A DaemonTask's nodes."""
    return series("caretaker_daemontask_nodes", {**TASK, **more}, state=state)


def gated(state: str) -> str:
    """Nodes with the taint of a DaemonTask's gate."""
    return series("caretaker_daemontask_gated_nodes", TASK, state=state)


def cordoned(state: str) -> str:
    """Nodes that a DaemonTask has cordoned."""
    return series("caretaker_daemontask_cordoned_nodes", TASK, state=state)


LATE: Final = task("Progressing", "ProgressDeadlineExceeded")
PROGRESSING: Final = task("Progressing", "RollingOut")

CASES: Final[Cases] = {
    "DaemonTaskStalled": {
        "nodes have failed": Case(
            {task("Stalled", "NodesFailed"): "1x20"}, "6m", {**BY_TASK, "reason": "NodesFailed"}
        ),
        "a rollout goes on": Case({task("Ready", "RollingOut"): "0x20"}, "15m"),
        "the condition is False": Case({task("Stalled", "NodesFailed"): "0x20"}, "15m"),
        "a ledger is lost, for which there is another alert": Case(
            {task("Stalled", "LedgerLost"): "1x20"}, "15m"
        ),
    },
    "DaemonTaskDegraded": {
        "failures within what is allowed": Case(
            {task("Degraded", "NodesFailed"): "1x30"}, "16m", {**BY_TASK, "reason": "NodesFailed"}
        ),
        "the condition is False": Case({task("Degraded", "NodesFailed"): "0x30"}, "20m"),
        "it was resumed": Case({task("Degraded", "NodesFailed"): "1x10 stale"}, "16m"),
    },
    "DaemonTaskLedgerTrouble": {
        "a shard is gone": Case(
            {task("Ready", "LedgerLost"): "0x20", task("Stalled", "LedgerLost"): "1x20"},
            "6m",
            {**BY_TASK, "reason": "LedgerLost"},
        ),
        "an entry could not be read, and was written anew at once": Case(
            {task("Degraded", "LedgerCorrupt"): "1 stale"}, "6m", {**BY_TASK, "reason": "LedgerCorrupt"}
        ),
        "the same under a leader that has just taken over": Case(
            {
                task("Degraded", "NodesFailed"): "1x4 stale",
                condition("DaemonTask", {**TASK, "pod": "b"}, "Degraded", "LedgerCorrupt"): "_x4 1 stale",
            },
            "10m",
            {**BY_TASK, "reason": "LedgerCorrupt"},
        ),
        "it could not be written for a moment": Case(
            {
                task("Ready", "LedgerWriteRefused"): "0x3 stale",
                task("Degraded", "LedgerWriteRefused"): "1x3 stale",
            },
            "30m",
        ),
        "all is well": Case({task("Ready", "RolloutComplete"): "1x20"}, "15m"),
    },
    "DaemonTaskECSNotReady": {
        "a right is withdrawn while tasks run": Case(
            {
                task("Ready", "InStep"): "1x3 stale",
                task("Ready", "AccessDenied"): "_x4 0x40",
                task("Reconciling", "AccessDenied"): "_x4 1x40",
                nodes("active"): "3x44",
                nodes("pending"): "1x44",
            },
            "20m",
            BY_TASK,
        ),
        "one refusal after the other": Case(
            {task("Ready", "Throttled"): "0x8 stale", task("Ready", "Unreachable"): "_x9 0x40"},
            "16m",
            BY_TASK,
        ),
        "no cluster runs the service": Case({task("Ready", "NoClusters"): "0x30"}, "16m", BY_TASK),
        "throttled for ten minutes": Case(
            {task("Ready", "Throttled"): "0x10 stale", task("Ready", "InStep"): "_x11 1x30"}, "30m"
        ),
        "it is kept, and events do not come, for which there is another alert": Case(
            {task("Ready", "InStep"): "1x30", task("Degraded", "AccessDenied"): "1x30"}, "25m"
        ),
        "its service is not there, for which there is another alert": Case(
            {task("Ready", "ServiceNotFound"): "0x30", task("Stalled", "ServiceNotFound"): "1x30"}, "25m"
        ),
        "a rollout on nodes goes on": Case({task("Ready", "RollingOut"): "0x30"}, "25m"),
        "a refresh may not read its queue, for which there is another alert": Case(
            {condition("S3AggregatedRefresh", REFRESH, "Ready", "AccessDenied"): "0x30"}, "25m"
        ),
    },
    "DaemonTaskStuck": {
        "nodes wait and none runs": Case({nodes("pending"): "3x40", nodes("active"): "0x40"}, "31m", BY_TASK),
        "one runs at a time": Case({nodes("pending"): "3x40", nodes("active"): "1x40"}, "35m"),
        "it is suspended": Case(
            {
                nodes("pending"): "3x40",
                nodes("active"): "0x40",
                task("Suspended", "Suspended"): "1x40",
            },
            "35m",
        ),
        "it waits for its first tick": Case(
            {
                nodes("pending"): "3x40",
                nodes("active"): "0x40",
                task("Progressing", "AwaitingSchedule"): "1x40",
            },
            "35m",
        ),
        "a budget holds it back": Case(
            {
                nodes("pending"): "3x40",
                nodes("active"): "0x40",
                task("Progressing", "HeldByBudget"): "0x40",
            },
            "35m",
        ),
        "another task is to succeed first": Case(
            {
                nodes("pending"): "3x40",
                nodes("active"): "0x40",
                task("Progressing", "AwaitingDependency"): "1x40",
            },
            "35m",
        ),
        "the task that has to succeed first is missing": Case(
            {
                nodes("pending"): "3x40",
                nodes("active"): "0x40",
                task("Progressing", "AwaitingDependency"): "0x40",
            },
            "31m",
            BY_TASK,
        ),
        "its nodes wait for another task of its group": Case(
            {
                nodes("pending"): "3x40",
                nodes("active"): "0x40",
                task("Progressing", "HeldByGroup"): "1x40",
            },
            "35m",
        ),
        "the leader changes, and it goes on standing still": Case(
            {
                nodes("pending"): "3x15 stale",
                nodes("active"): "0x15 stale",
                nodes("pending", pod="b"): "_x15 3x30",
                nodes("active", pod="b"): "_x15 0x30",
            },
            "31m",
            BY_TASK,
        ),
    },
    "DaemonTaskNodesGated": {
        "a node has failed": Case({gated("failed"): "1x30", gated("active"): "2x30"}, "16m", BY_TASK),
        "a node is not selected": Case({gated("excluded"): "1x30"}, "16m", BY_TASK),
        "the operator may not change nodes": Case({gated("succeeded"): "3x30"}, "16m", BY_TASK),
        "the task is suspended": Case(
            {gated("pending"): "3x30", task("Progressing", "Suspended"): "0x30"}, "16m", BY_TASK
        ),
        "nodes join all the time": Case(
            {
                gated("active"): "2x60",
                gated("blocked"): "1x60",
                gated("succeeded"): "0x60",
                task("Progressing", "Running"): "1x60",
            },
            "50m",
        ),
        "another node has failed, which has no taint": Case({nodes("failed"): "1x30"}, "20m"),
    },
    "DaemonTaskNodesCordoned": {
        "a node has failed": Case({cordoned("failed"): "1x60", cordoned("active"): "1x60"}, "31m", BY_TASK),
        "the operator may not uncordon": Case(
            {cordoned("succeeded"): "3x60", task("Degraded", "DrainRefused"): "1x60"}, "31m", BY_TASK
        ),
        "the task is paused between two attempts": Case(
            {cordoned("pending"): "1x60", task("Progressing", "Paused"): "0x60"}, "31m", BY_TASK
        ),
        "nodes are drained and run one after the other": Case(
            {
                cordoned("active"): "2x90",
                cordoned("succeeded"): "1x90",
                task("Progressing", "RollingOut"): "1x90",
            },
            "80m",
        ),
    },
    "DaemonTaskNodesBlocked": {
        "a node of three is NotReady for long": Case(
            {nodes("blocked"): "1x80", nodes("desired"): "3x80"}, "61m", BY_TASK
        ),
        "a tenth of the nodes, whichever": Case(
            {nodes("blocked"): "20+1x80", nodes("desired"): "200x80"}, "61m", BY_TASK
        ),
        "one of many is late, while others join": Case(
            {nodes("blocked"): "2x130", nodes("desired"): "200x130", LATE: "1x30 0x100"}, "92m", BY_TASK
        ),
        "first many, then a few that stay": Case(
            {nodes("blocked"): "20x40 2x60", nodes("desired"): "200x100", LATE: "1x30 0x70"}, "61m", BY_TASK
        ),
        "for half an hour": Case({nodes("blocked"): "1x30 0x40", nodes("desired"): "3x70"}, "61m"),
        "at any time some of many nodes join": Case(
            {nodes("blocked"): "2x180", nodes("desired"): "200x180", PROGRESSING: "1x180"}, "170m"
        ),
        "pods wait for long, for which there is another alert": Case(
            {nodes("blocked"): "0x180", nodes("desired"): "200x180", LATE: "0x180"}, "170m"
        ),
        "no node is meant": Case({nodes("blocked"): "0x80", nodes("desired"): "0x80"}, "70m"),
    },
}
