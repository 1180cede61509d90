"""The status of an ECS target after a pass, and the Events of its transitions.

Pure: Snapshot -> Status, equal to the present one when nothing has changed.
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from caretaker.api import conditions as c
from caretaker.api.conditions import Event
from caretaker.api.daemontask import Status
from caretaker.api.ecs import MAX_CLUSTERS, EcsCluster
from caretaker.api.times import format_micros, format_time
from caretaker.daemontask.ecs.conditions import conditions_of
from caretaker.daemontask.ecs.plan import shown
from caretaker.daemontask.ecs.snapshot import ClusterState, Snapshot

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
        return replace(before, current_revision=spec.revision, ecs=(), ecs_omitted=0, desired=0, active=0)
    meant = tuple(one for one in before.ecs if not spec.clusters or one.cluster in spec.clusters)
    if meant == before.ecs:
        return before
    instances, active = _counts(meant)
    return replace(before, ecs=meant, ecs_omitted=0, desired=instances, active=active)


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
    for kind in (c.STALLED, c.DEGRADED, c.READY):
        found, old = c.find(after.conditions, kind), c.find(before.conditions, kind)
        if found is None or (kind == c.READY and found.reason not in _REPORTED):
            continue
        if found.reason not in reported and (old is None or found.reason != old.reason):
            reported.add(found.reason)
            yield Event("Warning", found.reason, found.message)


# Reasons of Ready=False without Stalled that need an action in AWS.
_REPORTED = frozenset((c.EcsReason.ACCESS_DENIED, c.EcsReason.NO_IDENTITY))


def _is_true(status: Status, kind: str) -> bool:
    found = c.find(status.conditions, kind)
    return found is not None and found.status == "True"
