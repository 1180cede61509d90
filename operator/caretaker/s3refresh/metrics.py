"""Pure but for the series that it gets: counters of a pass, by the difference of two records, and gauges."""

from caretaker.obs.s3refresh_metrics import S3RefreshMetrics
from caretaker.s3refresh.debounce import UNKNOWN, TargetState
from caretaker.s3refresh.snapshot import Plan, PlanInput, Snapshot


def show(metrics: S3RefreshMetrics, snapshot: Snapshot, plan: Plan) -> None:
    """Show the targets and the queue of the resource as planned."""
    name, queue = (snapshot.read.meta.namespace, snapshot.read.meta.name), snapshot.queue
    dirty = sum(target.dirty is not None for target in plan.targets)
    metrics.show(name, dirty, due(snapshot.plan_input, plan))
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
    for ended in inputs.results:
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

    Between two calls lies minInterval, even where maxDelay is shorter."""
    if inputs.suspended:
        return 0.0
    waiting = [
        one.since for target in plan.targets for one in (target.dirty, target.claim) if one is not None
    ]
    patience = max(inputs.options.max_delay, inputs.options.min_interval)
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
