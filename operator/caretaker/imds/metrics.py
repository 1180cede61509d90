"""Prometheus metrics of IMDSPolicies: nodes by state, and changes by result.

Inputs: numbers from the kind's controller. Only caretaker_imds_nodes names an object: forget() drops its
series, clear() those of all. Codes come from endpoints, so only the first hundred have
a series of their own. It must not do I/O.
"""

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry

from caretaker.obs.series import LabelLimiter, makers

STATES: Final = ("compliant", "drifted", "pending", "failed", "unknown", "gone", "skipped")


class PolicyMetrics:
    """Metrics of the IMDSPolicy controller."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge, _ = makers(registry)
        self.nodes = gauge(
            "caretaker_imds_nodes",
            f"Nodes that a policy means, by state: {', '.join(STATES)}.",
            ("name", "state"),
        )
        self.changes = counter(
            "caretaker_imds_changes_total",
            "Changes of an instance's metadata options by result: Changed, or the code of EC2's refusal.",
            ("result",),
        )
        self.gate_metrics = counter(
            "caretaker_imds_token_gate_metrics_total",
            "Metrics that spec.tokenGate has requested of CloudWatch, which charges for each.",
        )
        self._codes = LabelLimiter()

    def found(self, name: str, counts: Mapping[str, int]) -> None:
        """Set the counts of a pass."""
        for state in STATES:
            self.nodes.labels(name, state).set(counts[state])

    def changed(self, result: str) -> None:
        """Count the result of a change."""
        self.changes.labels(self._codes(result)).inc()

    def requested(self, count: int) -> None:
        """Count the metrics of a call to CloudWatch."""
        self.gate_metrics.inc(count)

    def forget(self, name: str) -> None:
        """Drop the series of a deleted policy. Does nothing if there are none."""
        for state in STATES:
            self.nodes.remove(name, state)

    def clear(self) -> None:
        """Drop the series of all policies."""
        self.nodes.clear()
