"""Prometheus metrics of every custom resource: its conditions, as its status has them.

Inputs: conditions, from their writers. One series for each condition that a resource has: forget()
drops those of one, clear() all. It must not do I/O.
"""

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from caretaker.api.conditions import READY, Condition, ConditionStatus
from caretaker.obs.gauge_series import GaugeSeries

VALUES: Final[dict[ConditionStatus, int]] = {"True": 1, "False": 0, "Unknown": -1}
Key = tuple[str, str, str]  # kind, namespace ("" if cluster-scoped), name


class ResourceMetrics:
    """Metrics of the resources' conditions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.ready = Gauge(
            "caretaker_ready",
            "1 where a resource's Ready condition is True, else 0; caretaker_condition has the reason.",
            ("kind", "namespace", "name"),
            registry=registry,
        )
        self.condition = Gauge(
            "caretaker_condition",
            "The conditions of a resource: 1 True, 0 False, -1 Unknown; its status has the message.",
            ("kind", "namespace", "name", "type", "reason"),
            registry=registry,
        )
        self._conditions = GaugeSeries(self.condition)

    def show(self, key: Key, conditions: Iterable[Condition]) -> None:
        """Set the current conditions; series of earlier conditions and reasons are dropped."""
        now = {(one.type, one.reason): VALUES[one.status] for one in conditions}
        self._conditions.show(key, now)
        ready = any(kind == READY and value == 1 for (kind, _), value in now.items())
        self.ready.labels(*key).set(1 if ready else 0)

    def forget(self, key: Key) -> None:
        """Drop the series of a deleted resource. Does nothing if there are none."""
        self._conditions.show(key, {})
        self.ready.remove(*key)

    def clear(self) -> None:
        """Drop the series of all resources."""
        self.ready.clear()
        self._conditions.clear()
