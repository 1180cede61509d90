"""Every metric as people should know it: labels with the values that they may have, and when to look at it.

Pure. The name, the type and the help text stand with the code (caretaker/obs/); a test compares both sides,
and the tests of operators hold every series that they scrape to it.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

import msgspec

from caretaker.obs.imds_metrics import STATES as POLICY_STATES
from caretaker.obs.metrics import DaemonTaskMetrics
from caretaker.obs.s3refresh_metrics import STATES as QUEUE_STATES
from observability import labels as known
from observability.labels import Label, one_of


class Metric(msgspec.Struct, frozen=True):
    """What the code does not say of a metric itself."""

    when: str  # to look at it, a sentence or two
    labels: Mapping[str, Label] = {}


_OBJECT: Final = {"namespace": known.NAMESPACE, "name": known.NAME}
_REQUEST: Final = {"verb": known.VERB, "resource": known.RESOURCE}
_AWS: Final = {"service": known.SERVICE, "operation": known.OPERATION}
_WATCHED: Final = {"resource": one_of("nodes", "pods")}

OPERATOR: Final = {
    "caretaker_build_info": Metric(
        "Which version runs, and whether an upgrade has reached all replicas.",
        {"version": Label(re.compile(r"[\w.+-]+"), "the version")},
    ),
    "caretaker_leader": Metric(
        "First of all: the sum over the replicas is 1, else nothing is done or two do it."
    ),
    "caretaker_missing_permission": Metric(
        "When something does not happen and no condition says why: the role lacks this.",
        {
            "verb": Label(known.WORD, "as in a role; the first 100 words that refusals name"),
            "resource": Label(known.WORD, "as in a role, with its subresource; bounded likewise"),
        },
    ),
    "caretaker_reconcile_errors_total": Metric(
        "Resources stand still: a steady rate means that passes fail again and again; the log says why.",
        {
            "kind": known.KIND,
            "reason": Label(
                known.WORD,
                "`Retry`, `Unexpected` (a bug), or the API server's reason, such as `Conflict` or `Timeout`; "
                "the first 100 only are told apart",
            ),
        },
    ),
    "caretaker_queue_depth": Metric("The operator is slow: it rises while more is to be done than can be."),
    "caretaker_paused_resources": Metric(
        "Changes take effect late: resources with much CPU or large pods are named by caretaker_condition, "
        'type="CPUThrottled" and reason="LargePods".',
        {"kind": known.KIND},
    ),
    "caretaker_queue_wait_seconds": Metric("As the queue's depth: what one resource waits for the others."),
    "caretaker_plan_cpu_seconds": Metric(
        "The loop lags: long plans (thousands of nodes) hold everything else up.", {"kind": known.KIND}
    ),
    "caretaker_pass_cpu_seconds": Metric(
        "A resource is CPUThrottled, or the operator takes much CPU: this metric names the kind.",
        {"kind": known.KIND},
    ),
    "caretaker_long_steps_total": Metric(
        "The loop lags: whether it is the passes of a kind that hold it.", {"kind": known.KIND}
    ),
    "caretaker_loop_lag_seconds": Metric("The operator is slow, and neither the API server nor AWS is."),
    "caretaker_loop_lag_max_seconds": Metric(
        "As before, for alerts: above a second the process has too little CPU, or a bug; from 10 s on "
        "`/healthz` fails."
    ),
    "caretaker_api_requests_total": Metric(
        "What the operator costs the API server, and what is refused (403), throttled (429) or not answered.",
        {**_REQUEST, "code": known.STATUS},
    ),
    "caretaker_api_request_seconds": Metric("The API server is suspected of being slow.", _REQUEST),
    "caretaker_reflector_events_total": Metric(
        "What nodes and pods cost in CPU: each event is decoded.", _WATCHED
    ),
    "caretaker_reflector_relists_total": Metric(
        "Memory or the API server's load rises in steps: each is a list of everything.",
        {**_WATCHED, "reason": one_of("start", "expired", "stalled", "error")},
    ),
    "caretaker_reflector_age_seconds": Metric(
        "New nodes or finished pods are not noticed. The API server sends something each minute, so that "
        "more than 70 s tell of one that is away.",
        _WATCHED,
    ),
}

RESOURCES: Final = {
    "caretaker_ready": Metric(
        "How many resources need somebody, by kind and namespace.", {"kind": known.KIND, **_OBJECT}
    ),
    "caretaker_condition": Metric(
        "Why a resource is not Ready, and what else it tells: most alerts are made of this.",
        {"kind": known.KIND, **_OBJECT, "type": known.CONDITION, "reason": known.REASON},
    ),
}

DAEMONTASK: Final = {
    "caretaker_daemontask_nodes": Metric(
        "How far a rollout is, and whether nodes have failed.",
        {**_OBJECT, "state": one_of(*DaemonTaskMetrics.STATES)},
    ),
    "caretaker_daemontask_result": Metric(
        "What tasks measure, such as the fullest disk: alert on it as on any other metric.",
        {
            **_OBJECT,
            "result": Label(
                re.compile(r"[a-z]([-A-Za-z0-9_]*[A-Za-z0-9])?"),
                "a name in `spec.results`, at most 8 of a task",
            ),
            "unit": Label(re.compile(r"[^\x00-\x1f]{0,16}"), "its unit there"),
            "statistic": one_of("count", "min", "median", "p95", "max"),
        },
    ),
    "caretaker_daemontask_run_duration_seconds": Metric("Rollouts take longer than they did."),
    "caretaker_daemontask_runs_total": Metric(
        "Runs fail, or are repeated, across all tasks.", {"result": one_of("Succeeded", "Failed", "Retry")}
    ),
    "caretaker_daemontask_reconcile_seconds": Metric("Rollouts are slow though pods are quick."),
    "caretaker_daemontask_api_writes_total": Metric(
        "What rollouts cost the API server; in a quiet minute it does not move.",
        {
            "verb": one_of("create", "patch", "delete"),
            "resource": one_of("pods", "configmaps", "daemontasks", "events"),
        },
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

S3REFRESH: Final = {
    "caretaker_s3refresh_due_timestamp_seconds": Metric(
        "Files do not show: `time()` minus this, where it is not 0, is how much later than promised.",
        _OBJECT,
    ),
    "caretaker_s3refresh_dirty_targets": Metric("As before: how many targets wait.", _OBJECT),
    "caretaker_s3refresh_queue_messages": Metric(
        "Messages pile up, or end in the dead-letter queue.", {**_OBJECT, "state": one_of(*QUEUE_STATES)}
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

IMDS: Final = {
    "caretaker_imds_nodes": Metric(
        "How many nodes are not as a policy says.", {"name": known.NAME, "state": one_of(*POLICY_STATES)}
    ),
    "caretaker_imds_changes_total": Metric(
        "Enforce changes instances: how many, and what EC2 refuses.",
        {"result": Label(known.WORD, "`Changed`, or EC2's code; the first 100 only are told apart")},
    ),
}

AWS: Final = {
    "caretaker_aws_requests_total": Metric(
        "AWS refuses, throttles or does not answer, and what the operator's calls cost.",
        {**_AWS, "code": known.AWS_CODE},
    ),
    "caretaker_aws_request_seconds": Metric("AWS, or the network to it, is suspected of being slow.", _AWS),
    "caretaker_aws_connections_opened_total": Metric(
        "It should hardly move: connections are kept, and a steady rate means that something closes them.",
        {"service": known.SERVICE},
    ),
    "caretaker_aws_long_polls": Metric("Whether queues are read: three polls for each."),
}

# In the order of the page.
SECTIONS: Final[Mapping[str, Mapping[str, Metric]]] = {
    "The operator": OPERATOR,
    "Every kind": RESOURCES,
    "DaemonTask": DAEMONTASK,
    "S3AggregatedRefresh": S3REFRESH,
    "IMDSPolicy": IMDS,
    "Calls to AWS": AWS,
}
METRICS: Final = {name: metric for section in SECTIONS.values() for name, metric in section.items()}
# What Prometheus' client adds to a metric, by its type.
_PARTS: Final = ("_bucket", "_sum", "_count", "_created")
_LE: Final = Label(re.compile(r"\+Inf|[0-9.e+]+"), "")


def family(sample: str) -> str:
    """The metric that a sample belongs to: caretaker_loop_lag_seconds of its _bucket, _sum and _count."""
    if sample in METRICS:
        return sample
    for part in _PARTS:
        name = sample.removesuffix(part)
        if name != sample:
            return name if name in METRICS else f"{name}_total"
    return sample


def unexpected(sample: str, labels: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with a series of ours: a metric or label that is not known, a value not allowed."""
    if not sample.startswith("caretaker_"):
        return
    metric = METRICS.get(family(sample))
    if metric is None:
        yield f"{sample} is not in dev/observability/catalogue.py"
        return
    for label, value in labels.items():
        allowed = _LE if label == "le" and sample.endswith("_bucket") else metric.labels.get(label)
        if allowed is None:
            yield f"{sample} has a label {label} that is not in dev/observability/catalogue.py"
        elif not _allows(allowed, value):
            yield f"{sample} has {label}={value!r}: not among {allowed.words}"


@cache
def _allows(label: Label, value: str) -> bool:
    return label.allows(value)
