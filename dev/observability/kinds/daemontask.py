"""What people watch DaemonTasks with.

Pure data.
"""

import re
from typing import Final

from caretaker.api.conditions import EcsReason, Reason
from caretaker.daemontask.metrics import DaemonTaskMetrics
from observability.labels import Label, one_of
from observability.metric import OBJECT, Metric
from observability.panel import (
    BAD,
    CANNOT,
    GOOD,
    HERE,
    JOB,
    LATER,
    NUMBER,
    PER_SECOND,
    UNDER_WAY,
    WAITS,
    Panel,
    count,
    quantiles,
    rate,
)

REASONS: Final = (Reason, EcsReason)
register = DaemonTaskMetrics

METRICS: Final = {
    "caretaker_daemontask_nodes": Metric(
        "How far a rollout is, and whether nodes have failed.",
        {**OBJECT, "state": one_of(*DaemonTaskMetrics.STATES)},
    ),
    "caretaker_daemontask_result": Metric(
        "What tasks measure, such as the fullest disk: alert on it as on any other metric.",
        {
            **OBJECT,
            "result": Label(
                re.compile(r"[a-z]([-A-Za-z0-9_]*[A-Za-z0-9])?"),
                "a name in `spec.results`, at most 8 of a task",
            ),
            "unit": Label(re.compile(r"[^\x00-\x1f]{0,16}"), "its unit there"),
            "statistic": one_of("count", "min", "median", "p95", "max"),
        },
    ),
    "caretaker_daemontask_gated_nodes": Metric(
        "Whether nodes keep a startup taint that a task is to remove, and workloads stay away from them.",
        {**OBJECT, "state": one_of("excluded", *DaemonTaskMetrics.STATES[1:])},
    ),
    "caretaker_daemontask_cordoned_nodes": Metric(
        "Whether nodes stay cordoned by a task, after a failure or because nothing moves.",
        {**OBJECT, "state": one_of("excluded", *DaemonTaskMetrics.STATES[1:])},
    ),
    "caretaker_daemontask_evictions_total": Metric(
        "Drains wait for PodDisruptionBudgets, or cannot evict.",
        {"result": one_of("Evicted", "Gone", "Refused", "Failed")},
    ),
    "caretaker_daemontask_run_duration_seconds": Metric("Rollouts take longer than they did."),
    "caretaker_daemontask_runs_total": Metric(
        "Runs fail, or are repeated, across all tasks.", {"result": one_of("Succeeded", "Failed", "Retry")}
    ),
    "caretaker_daemontask_ecs_messages_total": Metric(
        "Whether events of container instances come at all, and something else than they does.",
        {"result": one_of("Event", "Other", "Malformed")},
    ),
    "caretaker_daemontask_ecs_events_total": Metric(
        "How many of them are agents that reconnect: those cost no call.",
        {"result": one_of("Changed", "Unchanged", "Foreign")},
    ),
    "caretaker_daemontask_ecs_looks_total": Metric(
        "Desired counts are set, or cannot be.",
        {"result": one_of("InStep", "Updated", "LeftAlone", "Failed")},
    ),
    "caretaker_daemontask_ecs_lag_seconds": Metric("Services follow their clusters late."),
}

NODES: Final = {
    "succeeded": GOOD,
    "failed": BAD,
    "active": UNDER_WAY,
    "pending": WAITS,
    "blocked": CANNOT,
}
WRITES: Final = 'verb=~"create|patch|delete",resource=~"pods|configmaps|daemontasks|events"'
RUNS: Final = {"Succeeded": GOOD, "Failed": BAD, "Retry": LATER}
PANELS: Final = (
    Panel(
        "Nodes by state",
        NUMBER,
        (
            (
                f'sum by (state) (caretaker_daemontask_nodes{{{JOB},{HERE},state!="desired"}})',
                "{{state}}",
            ),
        ),
        "Over all tasks chosen.",
        stacked=True,
        colours=NODES,
    ),
    Panel(
        "Runs that ended",
        PER_SECOND,
        ((rate("result", "caretaker_daemontask_runs_total"), "{{result}}"),),
        "Each attempt apart.",
        colours=RUNS,
    ),
    Panel(
        "Duration of a run",
        "s",
        quantiles("caretaker_daemontask_run_duration_seconds"),
        "From the creation of a Pod to its end.",
    ),
    Panel(
        "Conditions that wait for a person",
        NUMBER,
        ((count("DaemonTask", "Stalled|Degraded", 1), "{{type}} {{reason}}"),),
        "Tasks by condition and reason.",
    ),
    Panel(
        "Duration of a pass",
        "s",
        quantiles("caretaker_reconcile_seconds", 'kind="DaemonTask"'),
        "From gather to after.",
    ),
    Panel(
        "Writes",
        PER_SECOND,
        ((rate("verb, resource", "caretaker_api_requests_total", WRITES), "{{verb}} {{resource}}"),),
        "What rollouts cost the API server; none in a quiet minute.",
    ),
    Panel(
        "ECS: events and looks at clusters",
        PER_SECOND,
        (
            (rate("result", "caretaker_daemontask_ecs_events_total"), "event {{result}}"),
            (rate("result", "caretaker_daemontask_ecs_looks_total"), "look {{result}}"),
        ),
        "Unchanged ones are agents that reconnect, and cost no call.",
    ),
    Panel(
        "ECS: from the event to the end of the look",
        "s",
        quantiles("caretaker_daemontask_ecs_lag_seconds"),
        "A second of it is merging.",
    ),
)
