"""Prometheus metrics of DaemonTasks and of their ECS targets.

Inputs: numbers from the kind's controllers. Gauges name a task: forget() drops its series, clear() those of
all. It must not do I/O.
"""

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry

from caretaker.obs.series import GaugeSeries, makers

# Buckets in seconds.
RUNS: Final = (1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 24 * 3600)
# Events are merged for one, and a queue that cannot be read makes it a resync.
LAG: Final = (0.5, 1, 1.25, 1.5, 2, 3, 5, 10, 30, 60, 300)


class EcsMetrics:
    """Metrics of ECS targets. No series names an object."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, _, histogram = makers(registry)
        self.messages = counter(
            "caretaker_daemontask_ecs_messages_total",
            "Messages of ECS targets' queues, repetitions included, by result: Event, Other, Malformed.",
            ("result",),
        )
        self.events = counter(
            "caretaker_daemontask_ecs_events_total",
            "Events of container instances, for each task that reads the queue, by result: Changed (the "
            "number may be another one), Unchanged (an agent, a task, a repetition), Foreign (of no cluster "
            "of the task).",
            ("result",),
        )
        self.looks = counter(
            "caretaker_daemontask_ecs_looks_total",
            "Looks at a cluster by result: InStep, Updated (desiredCount was set), LeftAlone (there is no "
            "service that could be kept, or a second look has to confirm a decrease), Failed.",
            ("result",),
        )
        self.lag = histogram(
            "caretaker_daemontask_ecs_lag_seconds",
            "Time from the first event that was received of a change to the end of the look that it led to.",
            buckets=LAG,
        )

    def message(self, result: str, number: int) -> None:
        """Count messages."""
        self.messages.labels(result).inc(number)


class DaemonTaskMetrics:
    """Metrics of the DaemonTask controller."""

    STATES: Final = ("desired", "active", "succeeded", "failed", "pending", "blocked")

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge, histogram = makers(registry)
        self.ecs = EcsMetrics(registry)
        self.nodes = gauge(
            "caretaker_daemontask_nodes",
            "Nodes of a DaemonTask by state, as in its status; state=desired is the sum of the others.",
            ("namespace", "name", "state"),
        )
        self.run_duration = histogram(
            "caretaker_daemontask_run_duration_seconds",
            "Time from the creation of a run's Pod to its end.",
            buckets=RUNS,
        )
        self.runs = counter(
            "caretaker_daemontask_runs_total",
            "Pods that ended and were recorded, each attempt apart, by result: Succeeded, Failed, Retry.",
            ("result",),
        )
        self.result = gauge(
            "caretaker_daemontask_result",
            "What runs of a DaemonTask report of their nodes, as in status.results: each Number's statistic, "
            "count, min, median, p95 or max.",
            ("namespace", "name", "result", "unit", "statistic"),
        )
        self.gated = gauge(
            "caretaker_daemontask_gated_nodes",
            "Nodes that carry the taint of a DaemonTask's spec.nodeGate, by state; excluded: the template "
            "does not select them, or does not tolerate another taint, so they keep it.",
            ("namespace", "name", "state"),
        )
        self.cordoned = gauge(
            "caretaker_daemontask_cordoned_nodes",
            "Nodes that a DaemonTask has cordoned for spec.drain, by state; excluded: it is not for them.",
            ("namespace", "name", "state"),
        )
        self.evictions = counter(
            "caretaker_daemontask_evictions_total",
            "Requests to evict a Pod for spec.drain, by result: Evicted, Gone (it was gone already), Refused "
            "(by a PodDisruptionBudget), Failed.",
            ("result",),
        )
        self._cordoned = GaugeSeries(self.cordoned)
        self._results = GaugeSeries(self.result)
        self._gated = GaugeSeries(self.gated)

    def set_results(self, namespace: str, name: str, figures: Mapping[tuple[str, str, str], float]) -> None:
        """Set the results of a task's runs, by (result, unit, statistic); all other series of the task are
        dropped."""
        self._results.show((namespace, name), figures)

    def set_gated(self, namespace: str, name: str, counts: Mapping[str, int]) -> None:
        """Set the gated nodes by state; all other series of the task are dropped."""
        self._gated.show((namespace, name), {(state,): count for state, count in counts.items()})

    def set_cordoned(self, namespace: str, name: str, counts: Mapping[str, int]) -> None:
        """Set the nodes that a task has cordoned by state; all other series of the task are dropped."""
        self._cordoned.show((namespace, name), {(state,): count for state, count in counts.items()})

    def set_nodes(self, namespace: str, name: str, counts: Mapping[str, int]) -> None:
        """Show a task's counts; states that `counts` leaves out are 0. Keys are STATES."""
        for state in self.STATES:
            self.nodes.labels(namespace, name, state).set(counts.get(state, 0))

    def forget(self, namespace: str, name: str) -> None:
        """Drop the series of a deleted task. Does nothing if there are none."""
        for state in self.STATES:
            self.nodes.remove(namespace, name, state)
        self.set_results(namespace, name, {})
        self.set_gated(namespace, name, {})
        self.set_cordoned(namespace, name, {})

    def clear(self) -> None:
        """Drop the series of all tasks."""
        self.nodes.clear()
        self._results.clear()
        self._gated.clear()
        self._cordoned.clear()
