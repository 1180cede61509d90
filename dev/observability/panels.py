"""What the dashboard shows: rows of panels, each with its expressions.

Pure data. JOB restricts to the scraped operators that are chosen, HERE to the namespaces of resources; what
is cluster-scoped has an empty one. RATE is Grafana's: four scrapes at least.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

JOB: Final = 'job=~"$job"'
HERE: Final = 'namespace=~"$namespace|"'
RATE: Final = "[$__rate_interval]"
# What Grafana puts for its variables, where there is no Grafana.
VARIABLES: Final = {"$__rate_interval": "15s", "$job": ".*", "$namespace": ".*"}
PER_SECOND: Final = "reqps"
NUMBER: Final = "short"
# For names in legends that mean good or bad: a colour by chance would mislead.
GOOD, BAD, LATER, UNDER_WAY = "#73bf69", "#f2495c", "#f2cc0c", "#5794f2"
WAITS, CANNOT, OUTSIDE, NOT_KNOWN, DIFFERS = "#b4b7bd", "#7b8087", "#4d5158", "#b877d9", "#ff780a"
NODES: Final = {
    "succeeded": GOOD,
    "failed": BAD,
    "active": UNDER_WAY,
    "pending": WAITS,
    "blocked": CANNOT,
}
RUNS: Final = {"Succeeded": GOOD, "Failed": BAD, "Retry": LATER}
CALLS: Final = {"Accepted": GOOD, "Failed": BAD, "Unknown": NOT_KNOWN}
MESSAGES: Final = {
    "targets that wait": LATER,
    "messages visible": WAITS,
    "messages in_flight": UNDER_WAY,
    "messages dead": BAD,
}
HELD: Final = {
    "compliant": GOOD,
    "drifted": DIFFERS,
    "failed": BAD,
    "pending": WAITS,
    "unknown": NOT_KNOWN,
    "gone": CANNOT,
    "skipped": OUTSIDE,
}


class Panel(msgspec.Struct, frozen=True):
    """One graph: (expression, legend) pairs in one of Grafana's units, with a line that says what to see.
    Colours of legends, as #rrggbb, where a name has one of its own."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    about: str
    stacked: bool = False
    colours: Mapping[str, str] = {}


def plain(expression: str) -> str:
    """Without variables."""
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression


def rate(by: str, metric: str, *more: str) -> str:
    """What happens a second, by labels."""
    return f"sum by ({by}) (rate({metric}{{{','.join((JOB, *more))}}}{RATE}))"


def quantile(part: float, metric: str, by: str = "") -> str:
    """Of a histogram."""
    labels = ", ".join(filter(None, ("le", by)))
    return f"histogram_quantile({part}, {rate(labels, f'{metric}_bucket')})"


def quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    """The middle and the slow end."""
    return (quantile(0.5, metric), "median"), (quantile(0.95, metric), "95th percentile")


def count(kind: str, types: str, value: int, by: str = "type, reason") -> str:
    """How many resources have a condition that stands so."""
    chosen = f'{JOB},{HERE},kind="{kind}",type=~"{types}"'
    return f"count by ({by}) (caretaker_condition{{{chosen}}} == {value})"


OPERATOR: Final = (
    Panel(
        "Leader",
        NUMBER,
        ((f"sum by (pod) (caretaker_leader{{{JOB}}})", "{{pod}}"),),
        "Exactly one process has 1.",
    ),
    Panel(
        "CPU",
        NUMBER,
        ((rate("pod", "process_cpu_seconds_total"), "{{pod}}"),),
        "Cores in use.",
    ),
    Panel(
        "Memory",
        "bytes",
        ((f"sum by (pod) (process_resident_memory_bytes{{{JOB}}})", "{{pod}}"),),
        "Resident memory.",
    ),
    Panel(
        "Requests to the Kubernetes API",
        PER_SECOND,
        ((rate("verb, code", "caretaker_api_requests_total"), "{{verb}} {{code}}"),),
        "In a quiet minute only the Lease is written.",
    ),
    Panel(
        "Kubernetes API, 95th percentile",
        "s",
        ((quantile(0.95, "caretaker_api_request_seconds", "verb"), "{{verb}}"),),
        "Time until an answer was read.",
    ),
    Panel(
        "Errors of passes",
        PER_SECOND,
        ((rate("kind, reason", "caretaker_reconcile_errors_total"), "{{kind}} {{reason}}"),),
        "Passes that ended in an error and are tried again.",
    ),
    Panel(
        "Calls to AWS",
        PER_SECOND,
        ((rate("service, code", "caretaker_aws_requests_total"), "{{service}} {{code}}"),),
        "By service and answer; what is not OK is AWS's code.",
    ),
    Panel(
        "AWS, 95th percentile",
        "s",
        ((quantile(0.95, "caretaker_aws_request_seconds", "service"), "{{service}}"),),
        "Time until an answer was read; long polls excepted.",
    ),
    Panel(
        "Connections opened to AWS",
        PER_SECOND,
        ((rate("service", "caretaker_aws_connections_opened_total"), "{{service}}"),),
        "Hardly any: connections are kept.",
    ),
    Panel(
        "Loop lag",
        "s",
        (
            (f"max by (pod) (caretaker_loop_lag_max_seconds{{{JOB}}})", "{{pod}} largest of a minute"),
            (quantile(0.99, "caretaker_loop_lag_seconds", "pod"), "{{pod}} 99th percentile"),
        ),
        "How late the event loop wakes: more than a second is too little CPU.",
    ),
    Panel(
        "Wait in the queue",
        "s",
        quantiles("caretaker_queue_wait_seconds"),
        "What a resource that is due waits for the others.",
    ),
    Panel(
        "Silence of watches",
        "s",
        ((f"max by (resource) (caretaker_reflector_age_seconds{{{JOB}}})", "{{resource}}"),),
        "The API server sends something each minute.",
    ),
)

DAEMONTASK: Final = (
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
        "Conditions that wait for somebody",
        NUMBER,
        ((count("DaemonTask", "Stalled|Degraded", 1), "{{type}} {{reason}}"),),
        "Tasks by condition and reason.",
    ),
    Panel(
        "Duration of a pass",
        "s",
        quantiles("caretaker_daemontask_reconcile_seconds"),
        "Gather, plan, execute, status.",
    ),
    Panel(
        "Writes",
        PER_SECOND,
        ((rate("verb, resource", "caretaker_daemontask_api_writes_total"), "{{verb}} {{resource}}"),),
        "What rollouts cost the API server.",
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

S3REFRESH: Final = (
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

IMDS: Final = (
    Panel(
        "Nodes by state",
        NUMBER,
        ((f"sum by (state) (caretaker_imds_nodes{{{JOB}}})", "{{state}}"),),
        "Over all policies.",
        stacked=True,
        colours=HELD,
    ),
    Panel(
        "Changes of instances",
        PER_SECOND,
        ((rate("result", "caretaker_imds_changes_total"), "{{result}}"),),
        "Changed, or the code of EC2's refusal.",
    ),
    Panel(
        "Calls to EC2",
        PER_SECOND,
        (
            (
                rate("operation, code", "caretaker_aws_requests_total", 'service="ec2"'),
                "{{operation}} {{code}}",
            ),
        ),
        "One DescribeInstances for all policies each resyncInterval.",
    ),
    Panel(
        "Nodes that differ",
        NUMBER,
        ((f'max by (name) (caretaker_imds_nodes{{{JOB},state=~"drifted|failed"}})', "{{name}}"),),
        "By policy.",
    ),
    Panel(
        "Policies by what Ready says",
        NUMBER,
        (
            (
                f'count by (reason) (caretaker_condition{{{JOB},kind="IMDSPolicy",type="Ready"}})',
                "{{reason}}",
            ),
        ),
        "Audited and Enforced are the ends of all ways.",
        stacked=True,
    ),
    Panel(
        "Guards and proofs that say no",
        NUMBER,
        (
            (count("IMDSPolicy", "Enforcing|Verified|SourcesCompliant", 0), "{{type}}: {{reason}}"),
            (count("IMDSPolicy", "SlowAndOpen|Throttled|Conflicted", 1), "{{type}}"),
        ),
        "Enforce that has stopped, pods that find otherwise, sources of nodes that differ.",
    ),
)

ROWS: Final = {
    "Operator": OPERATOR,
    "DaemonTask": DAEMONTASK,
    "S3AggregatedRefresh": S3REFRESH,
    "IMDSPolicy": IMDS,
}
