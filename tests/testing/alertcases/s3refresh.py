"""The alerts about S3AggregatedRefreshes."""

from typing import Final

from testing.alertcases.imds import READY_POLICY
from testing.alertcases.notation import POD, Case, Cases, condition, series

REFRESH: Final = {**POD, "namespace": "media", "name": "share"}
BY_REFRESH: Final = {"namespace": "media", "name": "share"}
DUE: Final = series("caretaker_s3refresh_due_timestamp_seconds", REFRESH)
DEAD: Final = series("caretaker_s3refresh_queue_messages", REFRESH, state="dead")
READY_REFRESH: Final = series("caretaker_ready", REFRESH, kind="S3AggregatedRefresh")

CASES: Final[Cases] = {
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
}
