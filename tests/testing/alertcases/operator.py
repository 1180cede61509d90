"""The alerts about the operator itself."""

from typing import Final

from testing.alertcases.daemontask import BY_TASK, task
from testing.alertcases.notation import OPERATOR, Case, Cases, series

HERE: Final = {"job": "caretaker", "namespace": "caretaker-system"}
ERRORS: Final = series("caretaker_reconcile_errors_total", OPERATOR, kind="DaemonTask", reason="Timeout")
MISSING: Final = series("caretaker_missing_permission", OPERATOR, verb="create", resource="pods")
AGE: Final = series("caretaker_reflector_age_seconds", OPERATOR, resource="pods")
LAG: Final = series("caretaker_loop_lag_max_seconds", OPERATOR)
BUSY: Final = series("caretaker_api_requests_total", OPERATOR, verb="create", resource="pods", code="429")


def leader(pod: str = "a", **more: str) -> str:
    """Whether a pod leads."""
    return series("caretaker_leader", {**OPERATOR, "pod": pod, **more})


def sqs(code: str) -> str:
    """Calls to SQS."""
    return series(
        "caretaker_aws_requests_total", OPERATOR, service="sqs", operation="ReceiveMessage", code=code
    )


CASES: Final[Cases] = {
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
}
