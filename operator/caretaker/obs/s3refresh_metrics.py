"""Prometheus metrics of S3AggregatedRefreshes: events in, refreshes out, and how late they are.

Inputs: numbers from the kind's controller. Gauges name an object: forget() drops its series, clear() those of
all. It must not do I/O.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# Buckets in seconds: from a quiet period to a listing of millions of objects.
SECONDS: Final = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600)
EVENTS: Final = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
STATES: Final = ("visible", "in_flight", "dead")


class S3RefreshMetrics:
    """Metrics of the S3AggregatedRefresh controller."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter(
            "caretaker_s3refresh_events_total",
            "Object events that are on record or need not be, by result: Matched, Filtered, Unmatched.",
            ("result",),
            registry=registry,
        )
        self.malformed = Counter(
            "caretaker_s3refresh_malformed_messages_total",
            "Messages that could not be read, repetitions included.",
            registry=registry,
        )
        self.refreshes = Counter(
            "caretaker_s3refresh_refreshes_total",
            "Calls by result: Accepted, Failed, Unknown; a Job that fails is both Accepted and Failed.",
            ("result",),
            registry=registry,
        )
        self.events_per_refresh = Histogram(
            "caretaker_s3refresh_events_per_refresh",
            "Matched events since the resource's last accepted refresh.",
            buckets=EVENTS,
            registry=registry,
        )
        self.folders = Counter(
            "caretaker_s3refresh_folders_refreshed_total",
            "Folders named in accepted refreshes.",
            registry=registry,
        )
        self.duration = Histogram(
            "caretaker_s3refresh_refresh_duration_seconds",
            "Time from a refresh's acceptance to its end, where that is told.",
            buckets=SECONDS,
            registry=registry,
        )
        self.lag = Histogram(
            "caretaker_s3refresh_lag_seconds",
            "Time from the first event of a refresh to its acceptance.",
            buckets=SECONDS,
            registry=registry,
        )
        self.dirty = Gauge(
            "caretaker_s3refresh_dirty_targets",
            "Targets of a resource whose refresh is still to come.",
            ("namespace", "name"),
            registry=registry,
        )

        self.due = Gauge(
            "caretaker_s3refresh_due_timestamp_seconds",
            "When the oldest change that waits for a refresh is spec.debounce.maxDelay old, in seconds since "
            "1970; 0 while nothing waits, or suspended.",
            ("namespace", "name"),
            registry=registry,
        )
        self.queue = Gauge(
            "caretaker_s3refresh_queue_messages",
            "Messages of a resource's queue as in status.queue, looked at once a minute at most: visible, "
            "in_flight, and dead, those in its dead-letter queue.",
            ("namespace", "name", "state"),
            registry=registry,
        )

    def show(self, name: tuple[str, str], dirty: int, due: float) -> None:
        """The waiting targets of the resource `name` (namespace, name), and until when; 0 = none waits."""
        self.dirty.labels(*name).set(dirty)
        self.due.labels(*name).set(due)

    def messages(self, name: tuple[str, str], *counts: int) -> None:
        """Set the messages of its queues, in the order of STATES."""
        for state, count in zip(STATES, counts, strict=True):
            self.queue.labels(*name, state).set(count)

    def forget(self, namespace: str, name: str) -> None:
        """Drop the series of a deleted resource. Does nothing if there are none."""
        self.dirty.remove(namespace, name)
        self.due.remove(namespace, name)
        for state in STATES:
            self.queue.remove(namespace, name, state)

    def clear(self) -> None:
        """Drop the series of all resources."""
        for gauge in (self.dirty, self.due, self.queue):
            gauge.clear()
