"""The status of an ECS target after a pass, and the Events of its transitions.

Pure: Snapshot -> Status, equal to the present one when nothing has changed. A chain of small rules decides
Ready; the first that applies wins. Ready is about the services; a queue that cannot be read delays changes,
and makes the task Degraded. docs/operations.md explains the conditions.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, ConditionState, Event
from caretaker.api.conditions import EcsReason as Reason
from caretaker.api.daemontask import MAX_CLUSTERS, EcsCluster, Status
from caretaker.api.times import format_micros, format_time
from caretaker.daemontask.ecs.plan import CallFailure, ClusterState, Snapshot, shown

# Looks in a row that fail for a transient cause before Ready turns False.
FAILURES_REPORTED: Final = 3
SHOWN: Final = 3
# Reasons of Ready=False that need an action of the user.
STALLING: Final = frozenset(
    (
        Reason.INVALID_SPEC,
        Reason.NOT_GRANTED,
        Reason.CLUSTER_NOT_FOUND,
        Reason.SERVICE_NOT_FOUND,
        Reason.SERVICE_INACTIVE,
        Reason.DAEMON_SERVICE,
        Reason.FARGATE_SERVICE,
        Reason.MANAGED_SCALING,
        Reason.SEVERAL_CAPACITY_PROVIDERS,
        Reason.PLACEMENT_BY_TASKS,
    )
)


def conditions_of(snapshot: Snapshot) -> Iterable[Condition]:
    """Every condition of the target; Reconciling, Stalled, Degraded, MalformedMessages and Suspended only
    while True."""
    condition = partial(Condition, observed_generation=snapshot.meta.generation)
    status, reason, message = ready(snapshot)
    yield condition(c.READY, status, reason, message)
    yield condition(c.SPEC_VALID, *_spec_valid(snapshot))
    yield condition(c.QUEUE_REACHABLE, *_queue(snapshot))
    if status != "True" and reason in STALLING:
        yield condition(c.STALLED, "True", reason, message)
    elif status != "True" and reason != Reason.NO_CLUSTERS:
        yield condition(c.RECONCILING, "True", reason, message)
    if degraded := _degraded(snapshot):
        yield condition(c.DEGRADED, "True", *degraded)
    if snapshot.queue.malformed and not snapshot.idle:
        text = f"messages of the last hour could not be read, the latest: {snapshot.queue.malformed}"
        yield condition(c.MALFORMED_MESSAGES, "True", Reason.UNREADABLE, text)
    if snapshot.suspend:
        text = "spec.suspend is true: nothing is asked of AWS, nothing received"
        yield condition(c.SUSPENDED, "True", Reason.SUSPENDED, text)


def ready(snapshot: Snapshot) -> ConditionState:
    """The first rule that applies."""
    return next(service for rule in _READY_RULES if (service := rule(snapshot)) is not None)


# ---------------------------------------------------------------- Ready


def _refused(snapshot: Snapshot) -> ConditionState | None:
    return None if snapshot.refusal is None else ("False", *snapshot.refusal)


def _suspended(snapshot: Snapshot) -> ConditionState | None:
    if not snapshot.suspend:
        return None
    return "True", Reason.SUSPENDED, "suspended; desired counts stay as they are"


def _unlisted(snapshot: Snapshot) -> ConditionState | None:
    listing = snapshot.listing
    known = bool(listing.at) or _stands(snapshot)
    if listing.failure is None or not _lasting(listing.failure, listing.failures, known=known):
        return None
    return "False", listing.failure.reason, listing.failure.message


def _failing(snapshot: Snapshot) -> ConditionState | None:
    stands = _stands(snapshot)
    found = [
        cluster.failure
        for cluster in snapshot.clusters.values()
        if cluster.failure is not None
        and _lasting(cluster.failure, cluster.failures, known=cluster.service is not None or stands)
    ]
    if not found:
        return None
    more = f" (and {len(found) - 1} more clusters)" if len(found) > 1 else ""
    return "False", found[0].reason, f"{found[0].message}{more}"


def _unfit(snapshot: Snapshot) -> ConditionState | None:
    found = [cluster for _, cluster in shown(snapshot) if _problem(cluster)]
    if not found:
        return None
    found.sort(key=lambda cluster: _problem(cluster) not in STALLING)
    return "False", _problem(found[0]), _summary(found)


def _starting(snapshot: Snapshot) -> ConditionState | None:
    if not _waits(snapshot):
        return None
    starting: ConditionState = ("False", Reason.STARTING, "the clusters have not all been looked at yet")
    return _said(snapshot, c.READY) or starting


def _waits(snapshot: Snapshot) -> bool:
    """Whether the list of clusters is unknown, or a cluster was never checked."""
    unlisted = snapshot.spec is not None and not snapshot.spec.clusters and not snapshot.listing.at
    return unlisted or any(cluster.service is None for cluster in snapshot.clusters.values())


def _said(snapshot: Snapshot, kind: str) -> ConditionState | None:
    """The present condition, if it is about this spec. A new leader, or a new cluster, changes it only after
    a check."""
    before = c.find(snapshot.status.conditions, kind)
    if before is None or before.observed_generation != snapshot.meta.generation:
        return None
    return before.status, before.reason, before.message


def _stands(snapshot: Snapshot) -> bool:
    """Whether Ready has a result for this spec, from another process or from before a new cluster appeared.
    One failed check, as after an upgrade of the operator, does not change it."""
    message = _said(snapshot, c.READY)
    return message is not None and message[1] != Reason.STARTING


def _nowhere(snapshot: Snapshot) -> ConditionState | None:
    if snapshot.spec is None or any(True for _ in shown(snapshot)):
        return None
    return (
        "False",
        Reason.NO_CLUSTERS,
        f"no cluster in {snapshot.spec.aws.region} runs the service {snapshot.spec.service}",
    )


def _in_step(snapshot: Snapshot) -> ConditionState | None:
    kept = [cluster.service for _, cluster in shown(snapshot) if cluster.service is not None]
    instances = sum(service.counted or 0 for service in kept)
    clusters = "1 cluster" if len(kept) == 1 else f"{len(kept)} clusters"
    message = f"desiredCount is the number of container instances in {clusters}, {instances} altogether"
    held = sum(service.reason == Reason.MAX_COUNT_REACHED for service in kept)
    return (
        "True",
        Reason.IN_STEP,
        message + (f"; spec.ecs.maxCount holds {held} of them lower" if held else ""),
    )


_READY_RULES: Final[tuple[Callable[[Snapshot], ConditionState | None], ...]] = (
    _refused,
    _suspended,
    _unlisted,
    _failing,
    _unfit,
    _starting,
    _nowhere,
    _in_step,
)


def _lasting(failure: CallFailure, failures: int, *, known: bool) -> bool:
    """Whether Ready reports it: at once if it is not transient or nothing is known, else when it lasts."""
    return not failure.transient or failures >= FAILURES_REPORTED or not known


def _problem(cluster: ClusterState) -> str:
    """The reason for which its service is left as it is."""
    return "" if cluster.service is None or cluster.service.doubt else cluster.service.reason


def _summary(found: Iterable[ClusterState]) -> str:
    messages = [cluster.service.message for cluster in found if cluster.service is not None]
    more = f"; and {len(messages) - SHOWN} more" if len(messages) > SHOWN else ""
    return "; ".join(messages[:SHOWN]) + more


# ---------------------------------------------------------------- the others


def _spec_valid(snapshot: Snapshot) -> ConditionState:
    if snapshot.spec is None:
        return "False", Reason.INVALID_SPEC, snapshot.refusal[1] if snapshot.refusal is not None else ""
    return "True", Reason.ACCEPTED, "the spec can be read"


def _queue(snapshot: Snapshot) -> ConditionState:
    queue = snapshot.queue
    unchecked: ConditionState = ("Unknown", Reason.NOT_CHECKED, "the queue has not been asked yet")
    if snapshot.idle:
        return unchecked
    if not (queue.received or queue.failure):
        return _said(snapshot, c.QUEUE_REACHABLE) or unchecked
    if queue.failure is not None:
        return "False", queue.failure.reason, queue.failure.message
    return "True", Reason.REACHABLE, "messages are received"


def _degraded(snapshot: Snapshot) -> tuple[str, str] | None:
    """(reason, message) of the most serious fault."""
    if snapshot.idle:
        return None
    problems = [cluster for _, cluster in shown(snapshot) if _problem(cluster) in STALLING]
    if problems:
        return _problem(problems[0]), _summary(problems)
    queue = snapshot.queue.failure
    if queue is not None:
        seconds = snapshot.spec.resync_seconds if snapshot.spec is not None else 0
        return queue.reason, f"no events come, clusters are looked at every {seconds} s only: {queue.message}"
    doubts = [
        cluster for _, cluster in shown(snapshot) if cluster.service is not None and cluster.service.doubt
    ]
    if doubts and doubts[0].service is not None:
        return doubts[0].service.reason, _summary(doubts)
    message = _said(snapshot, c.DEGRADED) if _waits(snapshot) or not snapshot.queue.received else None
    return message[1:] if message is not None else None


_SHOWN = 5


def status_of(snapshot: Snapshot) -> Status:
    """The status to write. It counts container instances; those with a running task are active."""
    before = _standing(snapshot)
    old = {one.cluster: one for one in before.ecs}
    checked = {name: _cluster(name, cluster, old.get(name)) for name, cluster in shown(snapshot)}
    if snapshot.idle or not (checked or snapshot.listing.at):  # nothing is known: the last counts stay
        clusters, omitted = list(before.ecs), before.ecs_omitted
        instances, active = before.desired, before.active
    else:
        kept = {name: one for name, one in old.items() if _unseen(snapshot, name)} | checked
        clusters = [kept[name] for name in sorted(kept)]
        omitted = max(len(clusters) - MAX_CLUSTERS, 0)
        instances, active = _counts(clusters)
    return Status(
        observed_generation=snapshot.meta.generation,
        current_revision=before.current_revision,
        conditions=c.merge(before.conditions, conditions_of(snapshot), format_time(snapshot.now)),
        desired=instances,
        active=active,
        pending=instances - active,
        ecs=tuple(clusters[:MAX_CLUSTERS]),
        ecs_omitted=omitted,
    )


def _standing(snapshot: Snapshot) -> Status:
    """The present status without clusters of another service, role or region, and without clusters that
    spec.ecs no longer names. The generation does not decide, since suspend raises it as well."""
    before, spec = snapshot.status, snapshot.spec
    if spec is None:  # the target cannot be read
        return before
    if before.current_revision != spec.revision:
        return msgspec.structs.replace(
            before, current_revision=spec.revision, ecs=(), ecs_omitted=0, desired=0, active=0
        )
    meant = tuple(one for one in before.ecs if not spec.clusters or one.cluster in spec.clusters)
    if meant == before.ecs:
        return before
    instances, active = _counts(meant)
    return msgspec.structs.replace(before, ecs=meant, ecs_omitted=0, desired=instances, active=active)


def _counts(clusters: Iterable[EcsCluster]) -> tuple[int, int]:
    """(container instances, those with a running task)."""
    found = [(one.registered_container_instances or 0, one.running_count or 0) for one in clusters]
    return sum(instances for instances, _ in found), sum(min(one) for one in found)


def _unseen(snapshot: Snapshot, name: str) -> bool:
    """Whether another process has checked the cluster and this one, which checks all, has not yet."""
    if snapshot.spec is None or snapshot.spec.clusters:
        return False
    cluster = snapshot.clusters.get(name)
    return not snapshot.listing.at if cluster is None else cluster.service is None


def _cluster(name: str, cluster: ClusterState, before: EcsCluster | None) -> EcsCluster:
    service = cluster.service
    if service is None:  # this process has not checked yet; another may have
        return before if before is not None else EcsCluster(name)
    event, update = cluster.event_at, cluster.update_at
    return EcsCluster(
        name,
        service.desired,
        service.running,
        service.counted,
        format_micros(event) if event else before.last_event_time if before is not None else None,
        format_micros(update) if update else before.last_update_time if before is not None else None,
        cluster.calls,
        service.reason,
        service.message,
    )


def transitions(before: Status, after: Status, service: str) -> list[Event]:
    """The Events between two statuses, aggregated over clusters."""
    return [*_updates(before, after, service), *_conditions(before, after)]


def _updates(before: Status, after: Status, service: str) -> Iterator[Event]:
    old = {one.cluster: one for one in before.ecs}
    found = []
    for one in after.ecs:
        was = old.get(one.cluster)
        if one.last_update_time and (was is None or one.last_update_time != was.last_update_time):
            found.append(f"{one.cluster}: {one.desired_count}")
    if found:
        more = f" and {len(found) - _SHOWN} more clusters" if len(found) > _SHOWN else ""
        yield Event("Normal", "DesiredCountSet", f"service {service}: {', '.join(found[:_SHOWN])}{more}")


def _conditions(before: Status, after: Status) -> Iterator[Event]:
    was, now = _is_true(before, c.SUSPENDED), _is_true(after, c.SUSPENDED)
    if now and not was:
        yield Event("Normal", "Suspended", "desired counts stay as they are until spec.suspend is false")
    if was and not now:
        yield Event("Normal", "Resumed", "desired counts are kept again")
    reported = set()
    for kind in (c.STALLED, c.DEGRADED):
        reason = _reason(after, kind)
        if reason and reason != _reason(before, kind) and reason not in reported:
            reported.add(reason)
            yield Event("Warning", reason, _message(after, kind))
    ready = _reason(after, c.READY)
    if ready in _REPORTED and ready not in reported and ready != _reason(before, c.READY):
        yield Event("Warning", ready, _message(after, c.READY))


# Reasons of Ready=False without Stalled that need an action in AWS.
_REPORTED = frozenset((c.EcsReason.ACCESS_DENIED, c.EcsReason.NO_IDENTITY))


def _reason(status: Status, kind: str) -> str:
    found = c.find(status.conditions, kind)
    return found.reason if found is not None else ""


def _message(status: Status, kind: str) -> str:
    found = c.find(status.conditions, kind)
    return found.message if found is not None else ""


def _is_true(status: Status, kind: str) -> bool:
    found = c.find(status.conditions, kind)
    return found is not None and found.status == "True"
