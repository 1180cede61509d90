"""What people watch IMDSPolicies with.

Pure data.
"""

from typing import Final

from caretaker.api.conditions import PolicyReason
from caretaker.imds.metrics import STATES as POLICY_STATES
from caretaker.imds.metrics import PolicyMetrics
from observability import labels as known
from observability.labels import Label, one_of
from observability.metric import Metric
from observability.panel import (
    BAD,
    CANNOT,
    DIFFERS,
    GOOD,
    JOB,
    NOT_KNOWN,
    NUMBER,
    OUTSIDE,
    PER_SECOND,
    WAITS,
    Panel,
    count,
    rate,
)

REASONS: Final = (PolicyReason,)
register = PolicyMetrics

METRICS: Final = {
    "caretaker_imds_nodes": Metric(
        "How many nodes are not as a policy says.", {"name": known.NAME, "state": one_of(*POLICY_STATES)}
    ),
    "caretaker_imds_changes_total": Metric(
        "Enforce changes instances: how many, and what EC2 refuses.",
        {"result": Label(known.WORD, "`Changed`, or EC2's code; `other` beyond 100 values")},
    ),
    "caretaker_imds_token_gate_metrics_total": Metric(
        "The cost of `spec.tokenGate`: CloudWatch charges for each metric of GetMetricData."
    ),
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
PANELS: Final = (
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
