"""Prometheus metrics of DaemonTasks with an ECS target: events in, looks at clusters, and how late they are.

Inputs: numbers from the target's work. No series names an object. It must not do I/O.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

# Buckets in seconds: events are merged for one, and a queue that cannot be read makes it a resync.
SECONDS: Final = (0.5, 1, 1.25, 1.5, 2, 3, 5, 10, 30, 60, 300)


class EcsMetrics:
    """Metrics of ECS targets."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.messages = Counter(
            "caretaker_daemontask_ecs_messages_total",
            "Messages of ECS targets' queues, repetitions included, by result: Event, Other, Malformed.",
            ("result",),
            registry=registry,
        )
        self.events = Counter(
            "caretaker_daemontask_ecs_events_total",
            "Events of container instances, for each task that reads the queue, by result: Changed (the "
            "number may be another one), Unchanged (an agent, a task, a repetition), Foreign (of no cluster "
            "of the task).",
            ("result",),
            registry=registry,
        )
        self.looks = Counter(
            "caretaker_daemontask_ecs_looks_total",
            "Looks at a cluster by result: InStep, Updated (desiredCount was set), LeftAlone (there is no "
            "service that could be kept, or a second look is to confirm what is gone), Failed.",
            ("result",),
            registry=registry,
        )
        self.lag = Histogram(
            "caretaker_daemontask_ecs_lag_seconds",
            "Time from the first event that was received of a change to the end of the look that it led to.",
            buckets=SECONDS,
            registry=registry,
        )

    def message(self, result: str, number: int) -> None:
        """Count messages."""
        self.messages.labels(result).inc(number)
