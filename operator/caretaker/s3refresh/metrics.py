"""Prometheus metrics of S3AggregatedRefreshes: events in, refreshes out, and how late they are.

Pure but for the series: those of a pass follow from the difference between two records. Gauges name an
object: forget() drops its series, clear() those of all.
"""

from typing import Final

from prometheus_client import CollectorRegistry

from caretaker.api.s3refresh import CostStatus
from caretaker.obs.series import makers
from caretaker.s3refresh.costs import amount_of
from caretaker.s3refresh.debounce import BUSY, NOT_MADE, UNKNOWN, TargetState
from caretaker.s3refresh.snapshot import Plan, PlanInput, Snapshot

# Buckets in seconds: from a quiet period to a listing of millions of objects.
SECONDS: Final = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600)
EVENTS: Final = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
STATES: Final = ("visible", "in_flight", "dead")


class S3RefreshMetrics:
    """Metrics of the S3AggregatedRefresh controller."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge, histogram = makers(registry)
        self.events = counter(
            "caretaker_s3refresh_events_total",
            "Object events that are on record or need not be, by result: Matched, Filtered, Unmatched.",
            ("result",),
        )
        self.malformed = counter(
            "caretaker_s3refresh_malformed_messages_total",
            "Messages that could not be read, repetitions included.",
        )
        self.refreshes = counter(
            "caretaker_s3refresh_refreshes_total",
            "Calls by result: Accepted, Failed, Unknown; a Job that fails is both Accepted and Failed.",
            ("result",),
        )
        self.events_per_refresh = histogram(
            "caretaker_s3refresh_events_per_refresh",
            "Matched events since the resource's last accepted refresh.",
            buckets=EVENTS,
        )
        self.folders = counter(
            "caretaker_s3refresh_folders_refreshed_total",
            "Folders named in accepted refreshes.",
        )
        self.duration = histogram(
            "caretaker_s3refresh_refresh_duration_seconds",
            "Time from a refresh's acceptance to its end, where that is reported.",
            buckets=SECONDS,
        )
        self.lag = histogram(
            "caretaker_s3refresh_lag_seconds",
            "Time from the first event of a refresh to its acceptance.",
            buckets=SECONDS,
        )
        self.dirty = gauge(
            "caretaker_s3refresh_dirty_targets",
            "Targets of a resource whose refresh is still to come.",
            ("namespace", "name"),
        )

        self.due = gauge(
            "caretaker_s3refresh_due_timestamp_seconds",
            "When the oldest change that waits for a refresh is spec.debounce.maxDelay old, in seconds since "
            "1970; 0 while nothing waits, or suspended.",
            ("namespace", "name"),
        )
        self.queue = gauge(
            "caretaker_s3refresh_queue_messages",
            "Messages of a resource's queue as in status.queue, looked at once a minute at most: visible, "
            "in_flight, and dead, those in its dead-letter queue.",
            ("namespace", "name", "state"),
        )

        self.cost = gauge(
            "caretaker_s3refresh_estimated_refresh_cost",
            "Estimated cost of one refresh of everything in all targets of a resource with spec.cost, in the "
            "currency of its prices; absent while it is not known.",
            ("namespace", "name"),
        )
        self.interval = gauge(
            "caretaker_s3refresh_min_interval_seconds",
            "Least time between two refreshes of a target of a resource with spec.cost, by its budget or "
            "spec.debounce.minInterval.",
            ("namespace", "name"),
        )

    def costs(self, name: tuple[str, str], cost: CostStatus | None, interval: float) -> None:
        """Set the cost of the resource's refreshes, and the interval by its budget; None = no spec.cost."""
        amount = amount_of(cost.refresh_cost) if cost is not None else None
        if amount is None:
            self.cost.remove(*name)
        else:
            self.cost.labels(*name).set(amount)
        if cost is None:
            self.interval.remove(*name)
        else:
            self.interval.labels(*name).set(interval)

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
        self.costs((namespace, name), None, 0.0)
        for state in STATES:
            self.queue.remove(namespace, name, state)

    def clear(self) -> None:
        """Drop the series of all resources."""
        for gauge in (self.dirty, self.due, self.queue, self.cost, self.interval):
            gauge.clear()


def show(metrics: S3RefreshMetrics, snapshot: Snapshot, plan: Plan) -> None:
    """Show the targets and the queue of the resource as planned."""
    name, queue = (snapshot.read.meta.namespace, snapshot.read.meta.name), snapshot.queue
    dirty = sum(target.dirty is not None for target in plan.targets)
    metrics.show(name, dirty, due(snapshot.plan_input, plan))
    options = snapshot.plan_input.options
    metrics.costs(name, snapshot.cost.status, max(options.min_interval, options.budget_interval))
    if queue.checked:
        metrics.messages(name, queue.visible, queue.in_flight, queue.dead_letters or 0)


def count(metrics: S3RefreshMetrics, inputs: PlanInput, plan: Plan, since: int) -> int:
    """Count a pass whose status stands. `since` and the result: matched events since the last accepted
    refresh of the resource."""
    matches = plan.matches
    for result, number in (
        ("Matched", matches.matched),
        ("Filtered", matches.filtered),
        ("Unmatched", matches.unmatched),
    ):
        if number:
            metrics.events.labels(result).inc(number)
    malformed = sum(message.malformed for message in inputs.messages)
    if malformed:
        metrics.malformed.inc(malformed)
    for ended in (one for one in inputs.results if one.code not in (NOT_MADE, *BUSY)):
        how = "Accepted" if not ended.code else "Unknown" if ended.code == UNKNOWN else "Failed"
        metrics.refreshes.labels(how).inc()
    broken = sum(bool(end.code) for end in inputs.ends)
    if broken:
        metrics.refreshes.labels("Failed").inc(broken)
    since += matches.matched
    before = {target.id: target for target in inputs.targets}
    for target in plan.targets:
        if (old := before.get(target.id)) is not None and _change(metrics, old, target):
            metrics.events_per_refresh.observe(since)
            since = 0
    return since


def due(inputs: PlanInput, plan: Plan) -> float:
    """When the change that waits longest should be refreshed, in seconds since the epoch; 0 = nothing waits.

    Between two calls lies minInterval, or a budget's, even where maxDelay is shorter."""
    if inputs.suspended:
        return 0.0
    waiting = [
        one.since for target in plan.targets for one in (target.dirty, target.claim) if one is not None
    ]
    options = inputs.options
    patience = max(options.max_delay, options.min_interval, options.budget_interval)
    return min(waiting) + patience if waiting else 0.0


def _change(metrics: S3RefreshMetrics, old: TargetState, now: TargetState) -> bool:
    """Whether a refresh of the target was accepted."""
    if now.last.result == "Succeeded" and now.last.completed_at > max(old.last.completed_at, 0.0):
        metrics.duration.observe(max(now.last.completed_at - now.last.accepted_at, 0.0))
    if old.claim is None or now.last.accepted_at <= old.last.accepted_at:
        return False
    metrics.folders.inc(len(old.claim.request.folders))
    metrics.lag.observe(max(now.last.accepted_at - old.claim.since, 0.0))
    return True
