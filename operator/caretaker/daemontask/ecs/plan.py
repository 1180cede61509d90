"""The clusters to check now, and the time of the next check.

Pure: Snapshot -> Plan. A check is due at the start; MERGE_SECONDS after the first event that changes a
number; resyncSeconds after the last check, since events get lost; and to confirm a decrease. A failed check
is repeated after a backoff; an error of AWS becomes the reason, the message and the remedy that are shown.
An event of an unknown cluster leads to a list, and to a check only if the list has the cluster.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from caretaker.api.conditions import EcsReason as Reason
from caretaker.api.ecs import EcsSpec
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.daemontask.ecs.check import ABSENT, UnclearError
from caretaker.daemontask.ecs.snapshot import CallFailure, ClusterState, Listing, Snapshot

MERGE_SECONDS: Final = 1.0
# Seconds until a second check confirms a large decrease: by then agents that lost ECS are back, and answers
# are up to date.
CONFIRM_SECONDS: Final = 60.0
# Checks at a time: the others wait in the order in which they are due.
CHECKS: Final = 16
# Between two lists for events of unknown clusters. A list may lag: one that was requested so long after the
# event counts.
LIST_SECONDS: Final = 30.0
# Seconds until the next try, by failures in a row: for transient errors (throttled, no answer), and for
# errors that need an action (no permission).
BACKOFF: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
BACKOFF_REFUSED: Final = (15.0, 30.0, 60.0, 120.0, 300.0)
ECS: Final = "spec.ecs"
QUEUE: Final = "spec.ecs.events.sqsQueueURL"
ROLE: Final = "spec.ecs.aws.roleARN"
_REASONS: Final = {
    ErrorClass.ACCESS_DENIED: Reason.ACCESS_DENIED,
    ErrorClass.NO_IDENTITY: Reason.NO_IDENTITY,
    ErrorClass.THROTTLED: Reason.THROTTLED,
    ErrorClass.INVALID_REQUEST: Reason.REQUEST_REFUSED,
}


class Plan(msgspec.Struct, frozen=True):
    """`checks`: clusters to check; `list`: list the clusters; `wake`: the next pass, None = on an event."""

    checks: tuple[str, ...] = ()
    list: bool = False
    wake: float | None = None


def plan(snapshot: Snapshot) -> Plan:
    """The checks that are due, see the module."""
    spec, clock = snapshot.spec, snapshot.clock
    if snapshot.idle or spec is None:
        return Plan()
    due = {
        name: at
        for name, cluster in snapshot.clusters.items()
        if (at := _due(spec, cluster, clock)) is not None
    }
    listing = _list_due(spec, snapshot.listing, clock)
    later = [at for at in (*due.values(), *(() if listing is None else (listing,))) if at > clock]
    now = sorted((at, name) for name, at in due.items() if at <= clock)
    free = max(CHECKS - sum(cluster.busy for cluster in snapshot.clusters.values()), 0)
    return Plan(
        checks=tuple(name for _, name in now[:free]),
        list=listing is not None and listing <= clock,
        wake=min(later, default=None),
    )


def backoff(failures: int, *, transient: bool) -> float:
    """Seconds until the next try after this many failures in a row, at least 1."""
    waits = BACKOFF if transient else BACKOFF_REFUSED
    return waits[min(failures, len(waits)) - 1]


def shown(snapshot: Snapshot) -> Iterator[tuple[str, ClusterState]]:
    """The clusters of the task by name: those that it names, or else all that run the service."""
    named = set(snapshot.spec.clusters) if snapshot.spec is not None else set()
    for name, cluster in sorted(snapshot.clusters.items()):
        if name in named or (
            not named and cluster.service is not None and cluster.service.reason not in ABSENT
        ):
            yield name, cluster


def _due(spec: EcsSpec, cluster: ClusterState, clock: float) -> float | None:
    if cluster.busy:
        return None
    if cluster.retry:
        return cluster.retry
    if not cluster.checked:
        return clock
    at = cluster.checked + resync_of(spec)
    if cluster.dirty:
        at = min(at, cluster.dirty + MERGE_SECONDS)
    return min(at, cluster.confirm) if cluster.confirm else at


def _list_due(spec: EcsSpec, listing: Listing, clock: float) -> float | None:
    if spec.clusters or listing.busy:
        return None
    if listing.failures:
        return listing.retry
    if not listing.at:
        return clock
    wait = resync_of(spec)
    if listing.named and not covers(listing, listing.named):
        wait = min(wait, LIST_SECONDS)
    return listing.at + wait


def covers(listing: Listing, event: float) -> bool:
    """Whether the last list has each cluster that existed at the time of the event."""
    return listing.begun >= event + LIST_SECONDS


def resync_of(spec: EcsSpec) -> float:
    """Seconds after which a cluster is checked, and the clusters are listed, without an event."""
    return spec.resync_seconds


def call_failure(error: AwsError, field: str) -> CallFailure:
    """The trouble of a failed call. `field`: the field of the spec that the call is about."""
    about = ROLE if error.service == "sts" else field
    remedy = error.remedy(
        "spec.ecs.aws",
        "give the operator credentials, or set spec.ecs.aws.roleARN",
        "the identity that spec.ecs.aws names",
    )
    reason = _REASONS.get(error.error_class, Reason.UNREACHABLE)
    if error.not_found:
        reason = _absent(error)
    message = f"{about}: {error}{f'; {remedy}' if remedy else ''}"
    absent = error.not_found and error.service == "ecs"
    return CallFailure(reason, message, error.transient, absent=absent)


def unclear(error: UnclearError) -> CallFailure:
    """The trouble of an answer that lacks required members."""
    return CallFailure(Reason.UNREACHABLE, f"{ECS}: {error}", transient=True)


def _absent(error: AwsError) -> str:
    if error.service == "sqs":
        return Reason.QUEUE_NOT_FOUND
    return Reason.SERVICE_NOT_FOUND if error.code.startswith("ServiceNotFound") else Reason.CLUSTER_NOT_FOUND
