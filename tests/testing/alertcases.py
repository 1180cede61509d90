"""The chart's alerts, and when each fires and when not: series as they are scraped, one sample a minute.

Data in the notation of `promtool test rules`: "0x30" is 0 thirty-one times, "0+2x30" counts up by 2.
Every series comes from pod `a` unless it says otherwise.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

FILE: Final = Path(__file__).resolve().parents[2] / "helm" / "caretaker" / "files" / "alerts.yaml"
RULES: Final[dict[str, dict[str, Any]]] = {
    rule["alert"]: rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
}
POD: Final = {"job": "caretaker", "pod": "a"}
OPERATOR: Final = {**POD, "namespace": "caretaker-system"}
TASK: Final = {**POD, "namespace": "batch", "name": "task"}
REFRESH: Final = {**POD, "namespace": "media", "name": "share"}
POLICY: Final = {**POD, "name": "workers"}
HERE: Final = {"job": "caretaker", "namespace": "caretaker-system"}
BY_TASK: Final = {"namespace": "batch", "name": "task"}
BY_REFRESH: Final = {"namespace": "media", "name": "share"}


class Case(msgspec.Struct, frozen=True):
    """Series, and what comes of them at a time: the labels of the alert that fires, beside its severity. Two
    minutes earlier it does not fire yet, which is what its `for` is. Without labels it has never fired until
    then."""

    series: Mapping[str, str]
    at: str
    fires: Mapping[str, str] | None = None


def series(metric: str, labels: Mapping[str, str], **more: str) -> str:
    """As PromQL writes it."""
    inside = ",".join(f'{key}="{value}"' for key, value in {**labels, **more}.items())
    return f"{metric}{{{inside}}}"


def condition(kind: str, of: Mapping[str, str], what: str, reason: str) -> str:
    """A resource's condition."""
    return series("caretaker_condition", of, kind=kind, type=what, reason=reason)


def task(what: str, reason: str) -> str:
    """A DaemonTask's condition."""
    return condition("DaemonTask", TASK, what, reason)


def policy(what: str, reason: str) -> str:
    """An IMDSPolicy's condition."""
    return condition("IMDSPolicy", POLICY, what, reason)


def nodes(state: str, **more: str) -> str:
    """A DaemonTask's nodes."""
    return series("caretaker_daemontask_nodes", {**TASK, **more}, state=state)


def leader(pod: str = "a", **more: str) -> str:
    """Whether a pod leads."""
    return series("caretaker_leader", {**OPERATOR, "pod": pod, **more})


def sqs(code: str) -> str:
    """Calls to SQS."""
    return series(
        "caretaker_aws_requests_total", OPERATOR, service="sqs", operation="ReceiveMessage", code=code
    )


DUE: Final = series("caretaker_s3refresh_due_timestamp_seconds", REFRESH)
DEAD: Final = series("caretaker_s3refresh_queue_messages", REFRESH, state="dead")
READY_REFRESH: Final = series("caretaker_ready", REFRESH, kind="S3AggregatedRefresh")
READY_POLICY: Final = series("caretaker_ready", POLICY, kind="IMDSPolicy")
ERRORS: Final = series("caretaker_reconcile_errors_total", OPERATOR, kind="DaemonTask", reason="Timeout")
MISSING: Final = series("caretaker_missing_permission", OPERATOR, verb="create", resource="pods")
AGE: Final = series("caretaker_reflector_age_seconds", OPERATOR, resource="pods")
LAG: Final = series("caretaker_loop_lag_max_seconds", OPERATOR)
BUSY: Final = series("caretaker_api_requests_total", OPERATOR, verb="create", resource="pods", code="429")

LATE: Final = task("Progressing", "ProgressDeadlineExceeded")
PROGRESSING: Final = task("Progressing", "RollingOut")


def drifted(state: str) -> str:
    """A policy's nodes."""
    return series("caretaker_imds_nodes", POLICY, state=state)


# alert -> what happens -> what is seen
CASES: Final[Mapping[str, Mapping[str, Case]]] = {
    "CaretakerDown": {
        "nothing is scraped": Case({"up": "1x20"}, "6m", {}),
        "it was just restarted": Case({leader(): "1x5 _x3 1x20"}, "9m"),
        "a standby is still there": Case({leader(): "0x20"}, "15m"),
        "one of two installations is gone": Case(
            {leader(): "1x4 stale", leader("b", namespace="team-b"): "1x20"}, "11m", HERE
        ),
        "its pods are others now": Case({leader(): "1x5 stale", leader("b"): "_x6 1x30"}, "30m"),
    },
    "CaretakerNoStandby": {
        "one of two processes is gone": Case({leader("a"): "1x40", leader("b"): "0x4 stale"}, "21m", HERE),
        "one of two installations has lost its standby": Case(
            {
                leader("a"): "1x40",
                leader("b"): "0x4 stale",
                leader("c", namespace="team-b"): "1x40",
                leader("d", namespace="team-b"): "0x40",
            },
            "21m",
            HERE,
        ),
        "both run": Case({leader("a"): "1x40", leader("b"): "0x40"}, "35m"),
        "an upgrade takes their places": Case(
            {
                leader("a"): "1x10 stale",
                leader("b"): "0x4 stale",
                leader("c"): "_x10 0x30",
                leader("d"): "_x11 1x30",
            },
            "35m",
        ),
        "nothing runs, for which there is another alert": Case({leader(): "1x4 stale"}, "35m"),
    },
    "CaretakerNoLeader": {
        "two standbys": Case(
            {leader("a"): "0x20", leader("b"): "0x20"},
            "3m",
            HERE,
        ),
        "one leads": Case({leader("a"): "0x20", leader("b"): "1x20"}, "15m"),
        "the Lease moves, which takes less than a minute": Case(
            {leader("a"): "1x5 0x15", leader("b"): "0x6 1x14"}, "7m"
        ),
    },
    "CaretakerTwoLeaders": {
        "two lead": Case(
            {leader("a"): "1x20", leader("b"): "1x20"},
            "3m",
            HERE,
        ),
        "each of two installations has its own": Case(
            {leader("a"): "1x20", leader("b", namespace="team-b"): "1x20"}, "15m"
        ),
    },
    "CaretakerPermissionMissing": {
        "a verb is refused": Case({MISSING: "1x20"}, "11m", {"verb": "create", "resource": "pods"}),
        "it was granted": Case({MISSING: "1x9 0x20"}, "20m"),
    },
    "CaretakerReconcileErrors": {
        "a pass fails every two minutes": Case(
            {ERRORS: "0+0.5x90"}, "35m", {"kind": "DaemonTask", "reason": "Timeout"}
        ),
        "passes fail for long, at the longest backoff": Case(
            {ERRORS: "0x5 " + " ".join(f"{count}x4" for count in range(1, 20))},
            "42m",
            {"kind": "DaemonTask", "reason": "Timeout"},
        ),
        "two failures": Case({ERRORS: "0x10 2x80"}, "60m"),
        "fifty within a minute, and none after": Case({ERRORS: "0x10 50x80"}, "80m"),
        "ten minutes without an API server": Case({ERRORS: "0x10 10+10x9 100x80"}, "90m"),
    },
    "CaretakerWatchStale": {
        "nothing is heard of pods": Case({AGE: "0+60x20"}, "6m", {"resource": "pods"}),
        "the API server is away, for both processes, which nobody restarts": Case(
            {AGE: "0+60x60", AGE.replace('pod="a"', 'pod="b"'): "0+60x60"}, "6m", {"resource": "pods"}
        ),
        "a bookmark a minute": Case({AGE: "60x40"}, "30m"),
    },
    "CaretakerLoopLag": {
        "it stands still for two seconds again and again": Case({LAG: "2x20"}, "11m", OPERATOR),
        "one long stall": Case({LAG: "0x5 3 0x30"}, "20m"),
    },
    "CaretakerCPUThrottled": {
        "the passes over a task are paused again and again": Case(
            {task("CPUThrottled", "CPUShareExceeded"): "1x30"}, "16m", {**BY_TASK, "kind": "DaemonTask"}
        ),
        "a rollout took more for some minutes": Case(
            {task("CPUThrottled", "CPUShareExceeded"): "1x10 stale"}, "30m"
        ),
        "large pods": Case({task("Progressing", "LargePods"): "1x40"}, "35m"),
    },
    "CaretakerAPIThrottled": {
        "one request in six seconds": Case({BUSY: "0+10x60"}, "22m", {}),
        "a few in an hour": Case({BUSY: "0x20 5x40"}, "40m"),
    },
    "CaretakerAWSThrottled": {
        "a fifth of the calls": Case(
            {sqs("OK"): "0+80x60", sqs("Throttling"): "0+20x60"},
            "17m",
            {"service": "sqs", "operation": "ReceiveMessage"},
        ),
        "one in a hundred": Case({sqs("OK"): "0+99x60", sqs("RequestThrottled"): "0+1x60"}, "40m"),
        "other errors": Case({sqs("OK"): "0+80x60", sqs("AccessDenied"): "0+20x60"}, "40m"),
    },
    "CaretakerAWSFailing": {
        "two of three calls are refused": Case(
            {sqs("OK"): "0+10x60", sqs("AccessDenied"): "0+20x60"}, "17m", {"service": "sqs"}
        ),
        "nobody answers": Case({sqs("<error>"): "0+10x60"}, "17m", {"service": "sqs"}),
        "dry runs, whose success has a code of its own": Case(
            {sqs("OK"): "0+1x60", sqs("DryRunOperation"): "0+20x60"}, "40m"
        ),
        "one in ten": Case({sqs("OK"): "0+90x60", sqs("AccessDenied"): "0+10x60"}, "40m"),
    },
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
    "S3AggregatedRefreshNotReady": {
        "the queue cannot be read": Case({READY_REFRESH: "0x20"}, "16m", BY_REFRESH),
        "another kind is not ready": Case({READY_POLICY: "0x20"}, "16m"),
        "it starts": Case({READY_REFRESH: "0x5 1x20"}, "16m"),
    },
    "S3AggregatedRefreshOverdue": {
        "a change was due an hour ago": Case({DUE: "60x90"}, "23m", BY_REFRESH),
        "nothing waits": Case({DUE: "0x90"}, "80m"),
        "each change is refreshed in time": Case({DUE: "600+60x90"}, "80m"),
    },
    "S3AggregatedRefreshLongOverdue": {
        "a change was due hours ago": Case({DUE: "60x200"}, "128m", BY_REFRESH),
        "one was due an hour ago": Case({DUE: "3600x200"}, "120m"),
        "nothing waits": Case({DUE: "0x200"}, "180m"),
    },
    "S3AggregatedRefreshDeadLetters": {
        "one lies there": Case({DEAD: "1x20"}, "16m", BY_REFRESH),
        "it was redriven": Case({DEAD: "1x10 0x20"}, "16m"),
    },
    "S3AggregatedRefreshMalformedMessages": {
        "messages cannot be read": Case(
            {condition("S3AggregatedRefresh", REFRESH, "MalformedMessages", "Unreadable"): "1x20"},
            "6m",
            BY_REFRESH,
        ),
        "the condition is False": Case(
            {condition("S3AggregatedRefresh", REFRESH, "MalformedMessages", "Unreadable"): "0x20"}, "15m"
        ),
        "the condition is gone": Case(
            {condition("S3AggregatedRefresh", REFRESH, "MalformedMessages", "Unreadable"): "1x3 stale"}, "6m"
        ),
    },
    "IMDSPolicyNotReady": {
        "EC2 cannot be asked": Case({policy("Ready", "NotAsked"): "0x40"}, "31m", {"name": "workers"}),
        "one refusal after the other": Case(
            {policy("Ready", "NotAsked"): "0x15 stale", policy("Ready", "AccessDenied"): "_x15 0x40"},
            "31m",
            {"name": "workers"},
        ),
        "it means no node": Case({policy("Ready", "NoMatchingNodes"): "0x40"}, "31m", {"name": "workers"}),
        "a canary soaks for long": Case({policy("Ready", "CanarySoaking"): "0x90"}, "80m"),
        "instances are changed, a few a minute": Case({policy("Ready", "Changing"): "0x90"}, "80m"),
        "it enforces": Case({policy("Ready", "Enforced"): "1x90"}, "80m"),
    },
    "IMDSPolicyEnforceStopped": {
        "the breaker is open": Case(
            {policy("Enforcing", "BreakerOpen"): "0x20"}, "6m", {"name": "workers", "reason": "BreakerOpen"}
        ),
        "too much has drifted": Case(
            {policy("Enforcing", "DriftTooWide"): "0x20"}, "6m", {"name": "workers", "reason": "DriftTooWide"}
        ),
        "it changes instances": Case({policy("Enforcing", "Changing"): "1x20"}, "15m"),
        "an audit": Case({policy("Ready", "Audited"): "1x20"}, "15m"),
    },
    "IMDSPolicyFighting": {
        "something sets instances back": Case(
            {policy("Ready", "Fighting"): "0x20"}, "6m", {"name": "workers"}
        ),
        "it holds them": Case({policy("Ready", "Enforced"): "1x20"}, "15m"),
    },
    "IMDSPolicySlowAndOpen": {
        "hop limit 1 with optional tokens": Case(
            {policy("SlowAndOpen", "HopLimitOneTokensOptional"): "1x30"}, "16m", {"name": "workers"}
        ),
        "the condition is False": Case({policy("SlowAndOpen", "HopLimitOneTokensOptional"): "0x30"}, "20m"),
        "it was mended": Case(
            {policy("SlowAndOpen", "HopLimitOneTokensOptional"): "1x10 stale", READY_POLICY: "1x30"}, "16m"
        ),
    },
    "IMDSPolicyDrifted": {
        "for an hour": Case({drifted("drifted"): "2x80"}, "61m", {"name": "workers"}),
        "all are compliant": Case({drifted("drifted"): "0x80", drifted("compliant"): "9x80"}, "70m"),
    },
    "IMDSPolicyInstancesFailing": {
        "one fails": Case({drifted("failed"): "1x40"}, "31m", {"name": "workers"}),
        "it succeeded at last": Case({drifted("failed"): "1x20 0x20"}, "31m"),
    },
    "IMDSPolicyThrottled": {
        "for long": Case({policy("Throttled", "RequestLimitExceeded"): "1x40"}, "31m", {"name": "workers"}),
        "the condition is False": Case({policy("Throttled", "RequestLimitExceeded"): "0x40"}, "35m"),
        "for some minutes": Case({policy("Throttled", "RequestLimitExceeded"): "1x10 stale"}, "31m"),
    },
    "IMDSPolicyNotVerified": {
        "pods get no token": Case(
            {policy("Verified", "SetButUnreachable"): "0x20"},
            "16m",
            {"name": "workers", "reason": "SetButUnreachable"},
        ),
        "the probe is under way": Case({policy("Verified", "Probing"): "-1x20"}, "16m"),
        "proved": Case({policy("Verified", "Proved"): "1x20"}, "16m"),
    },
}
