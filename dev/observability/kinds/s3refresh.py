"""What people watch S3AggregatedRefreshes with.

Pure data.
"""

from typing import Final

from caretaker.api.conditions import RefreshReason
from caretaker.s3refresh.metrics import STATES as QUEUE_STATES
from caretaker.s3refresh.metrics import S3RefreshMetrics
from observability.labels import one_of
from observability.metric import OBJECT, Metric
from observability.panel import (
    BAD,
    GOOD,
    HERE,
    JOB,
    LATER,
    NOT_KNOWN,
    NUMBER,
    PER_SECOND,
    RATE,
    UNDER_WAY,
    WAITS,
    Panel,
    quantiles,
    rate,
)

REASONS: Final = (RefreshReason,)
register = S3RefreshMetrics

METRICS: Final = {
    "caretaker_s3refresh_due_timestamp_seconds": Metric(
        "Files do not show: `time()` minus this, where it is not 0, is how much later than promised.",
        OBJECT,
    ),
    "caretaker_s3refresh_dirty_targets": Metric("As before: how many targets wait.", OBJECT),
    "caretaker_s3refresh_queue_messages": Metric(
        "Messages pile up, or end in the dead-letter queue.", {**OBJECT, "state": one_of(*QUEUE_STATES)}
    ),
    "caretaker_s3refresh_estimated_refresh_cost": Metric(
        "The bill grows: the most that a refresh of everything costs.", OBJECT
    ),
    "caretaker_s3refresh_min_interval_seconds": Metric(
        "Files show late: how long the budget of `spec.cost` lets changes wait.", OBJECT
    ),
    "caretaker_s3refresh_lag_seconds": Metric("How late refreshes are, and whether that changes."),
    "caretaker_s3refresh_refreshes_total": Metric(
        "Calls fail, or are refused.", {"result": one_of("Accepted", "Failed", "Unknown")}
    ),
    "caretaker_s3refresh_refresh_duration_seconds": Metric("Gateways take longer than they did."),
    "caretaker_s3refresh_events_total": Metric(
        "Whether events come at all, and whether the filter lets them through.",
        {"result": one_of("Matched", "Filtered", "Unmatched")},
    ),
    "caretaker_s3refresh_events_per_refresh": Metric("What aggregation saves: events for one call."),
    "caretaker_s3refresh_folders_refreshed_total": Metric("What refreshes cost the gateways."),
    "caretaker_s3refresh_malformed_messages_total": Metric(
        "Something else than S3 sends to a queue; the log has each message's id."
    ),
}

CALLS: Final = {"Accepted": GOOD, "Failed": BAD, "Unknown": NOT_KNOWN}
MESSAGES: Final = {
    "targets that wait": LATER,
    "messages visible": WAITS,
    "messages in_flight": UNDER_WAY,
    "messages dead": BAD,
}
PANELS: Final = (
    Panel(
        "Events",
        PER_SECOND,
        ((rate("result", "caretaker_s3refresh_events_total"), "{{result}}"),),
        "Of objects, by what became of them.",
    ),
    Panel(
        "Refreshes",
        PER_SECOND,
        ((rate("result", "caretaker_s3refresh_refreshes_total"), "{{result}}"),),
        "Calls by result.",
        colours=CALLS,
    ),
    Panel(
        "From the first event to the refresh",
        "s",
        quantiles("caretaker_s3refresh_lag_seconds"),
        "The quiet period is part of it.",
    ),
    Panel(
        "Targets that wait, and messages",
        NUMBER,
        (
            (f"sum(caretaker_s3refresh_dirty_targets{{{JOB},{HERE}}})", "targets that wait"),
            (
                f"sum by (state) (caretaker_s3refresh_queue_messages{{{JOB},{HERE}}})",
                "messages {{state}}",
            ),
        ),
        "Queues are looked at once a minute at most.",
        colours=MESSAGES,
    ),
    Panel(
        "Overdue",
        "s",
        (
            (
                "clamp_min(time() - max by (namespace, name) "
                f"(caretaker_s3refresh_due_timestamp_seconds{{{JOB},{HERE}}} > 0), 0)",
                "{{namespace}}/{{name}}",
            ),
        ),
        "How much longer than maxDelay the oldest change waits.",
    ),
    Panel(
        "Events for one refresh",
        NUMBER,
        (
            (
                f"sum(rate(caretaker_s3refresh_events_per_refresh_sum{{{JOB}}}{RATE})) / "
                f"sum(rate(caretaker_s3refresh_events_per_refresh_count{{{JOB}}}{RATE}))",
                "mean",
            ),
        ),
        "What aggregation saves.",
    ),
)
