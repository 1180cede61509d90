"""Prometheus metrics of IMDSPolicies: nodes by what was found, and changes by what became of them.

Inputs: numbers from the kind's controller. Only caretaker_imds_nodes names an object: forget() drops its
series, clear() those of all. Codes come from whatever answers at an endpoint, so only the first hundred have
a series of their own. It must not do I/O.
"""

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from caretaker.obs.label_limiter import LabelLimiter

STATES: Final = ("compliant", "drifted", "pending", "failed", "unknown", "gone", "skipped")


class PolicyMetrics:
    """What the IMDSPolicy controller tells of its work."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.nodes = Gauge(
            "caretaker_imds_nodes",
            f"Nodes that a policy means, by state: {', '.join(STATES)}.",
            ("name", "state"),
            registry=registry,
        )
        self.changes = Counter(
            "caretaker_imds_changes_total",
            "Changes of an instance's metadata options by result: Changed, or the code of EC2's refusal.",
            ("result",),
            registry=registry,
        )
        self._codes = LabelLimiter()

    def found(self, name: str, counts: Mapping[str, int]) -> None:
        """What a pass found."""
        for state in STATES:
            self.nodes.labels(name, state).set(counts[state])

    def changed(self, result: str) -> None:
        """What became of a change."""
        self.changes.labels(self._codes(result)).inc()

    def forget(self, name: str) -> None:
        """Drop the series of a deleted policy. Does nothing if there are none."""
        for state in STATES:
            self.nodes.remove(name, state)

    def clear(self) -> None:
        """Drop what names any policy."""
        self.nodes.clear()
