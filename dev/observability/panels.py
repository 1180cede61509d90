"""What the dashboard shows: a row of panels for the operator, and one for each kind.

Pure data.
"""

from typing import Final

from observability.kinds import ROWS as OF_KINDS
from observability.panel import JOB, NUMBER, PER_SECOND, Panel, quantile, quantiles, rate

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
        "By service and answer; errors show AWS's code.",
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

ROWS: Final = {"Operator": OPERATOR, **OF_KINDS}
