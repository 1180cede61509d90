"""Every metric as people should know it: labels with the values that they may have, and when to look at it.

Pure. The name, the type and the help text stand with the code (caretaker/obs/); a test compares both sides,
and the tests of operators hold every series that they scrape to it.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from caretaker.api.conditions import CpuReason
from observability import kinds
from observability import labels as known
from observability.labels import Label, one_of
from observability.metric import OBJECT, Metric

_REASON: Final = one_of(
    *sorted({*known.constants(CpuReason), *kinds.REASONS}),
    words="its reason, as in the pages of the kinds",
)
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
                "`other` beyond 100 values",
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
    "caretaker_reconcile_seconds": Metric(
        "Resources follow changes late, though pods and AWS are quick.", {"kind": known.KIND}
    ),
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
        "Requests to the API server, and those that are refused (403), throttled (429) or not answered.",
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
        "Resources that need a person, by kind and namespace.", {"kind": known.KIND, **OBJECT}
    ),
    "caretaker_condition": Metric(
        "Why a resource is not Ready, and what else it tells: most alerts are made of this.",
        {"kind": known.KIND, **OBJECT, "type": known.CONDITION, "reason": _REASON},
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
    **kinds.SECTIONS,
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
        yield f"{sample} is not in the catalogue of dev/observability"
        return
    for label, value in labels.items():
        allowed = _LE if label == "le" and sample.endswith("_bucket") else metric.labels.get(label)
        if allowed is None:
            yield f"{sample} has a label {label} that is not in the catalogue of dev/observability"
        elif not _allows(allowed, value):
            yield f"{sample} has {label}={value!r}: not among {allowed.words}"


@cache
def _allows(label: Label, value: str) -> bool:
    return label.allows(value)
