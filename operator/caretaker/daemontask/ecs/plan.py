"""The state of an ECS target, the clusters to check now, and the time of the next check.

Pure: Snapshot -> Plan; `clock` is time.monotonic(). A check is due at the start; MERGE_SECONDS after the
first event that changes a number; resyncSeconds after the last check, since events get lost; and to confirm a
decrease. A failed check is repeated after a backoff; an error of AWS becomes the reason, the message and the
remedy that are shown.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from caretaker.api.conditions import EcsReason as Reason
from caretaker.api.daemontask import EcsSpec, Status
from caretaker.api.objects import WireMeta
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.daemontask.ecs.check import ABSENT, ServiceState, UnclearError

MERGE_SECONDS: Final = 1.0
# Seconds until a second check confirms a large decrease: by then agents that lost ECS are back, and answers
# are up to date.
CONFIRM_SECONDS: Final = 60.0
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


class CallFailure(msgspec.Struct, frozen=True):
    """A failed call: the reason to show, AWS's words, and whether the error is transient."""

    reason: str
    message: str
    transient: bool
    absent: bool = False  # the object does not exist


class ClusterState(msgspec.Struct, frozen=True):
    """The state of one cluster. Times are by `clock`, 0 = never; `*_at` are Unix seconds."""

    service: ServiceState | None = None  # of the last check that succeeded
    checked: float = 0.0  # when the last check began
    dirty: float = 0.0  # when the first event came that no check covers
    busy: bool = False  # a check is under way
    failure: CallFailure | None = None  # of the last check, if it failed
    failures: int = 0  # in a row
    retry: float = 0.0  # the next check, after a failed one; 0 = the last one succeeded
    confirm: float = 0.0  # when a check can confirm a decrease; 0 = there is none to confirm
    event_at: float = 0.0
    update_at: float = 0.0
    calls: int = 0  # of the last check


def unchecked(spec: EcsSpec) -> dict[str, ClusterState]:
    """The clusters that the spec names, before their first check."""
    return {name: ClusterState() for name in spec.clusters}


class Listing(msgspec.Struct, frozen=True):
    """The clusters of the account, where spec.ecs.clusters is empty."""

    at: float = 0.0  # when the last list came, 0 = never
    busy: bool = False
    failure: CallFailure | None = None
    failures: int = 0
    retry: float = 0.0


class Queue(msgspec.Struct, frozen=True):
    """The state of the queue. `received`: a receive has succeeded."""

    received: bool = False
    failure: CallFailure | None = None
    malformed: str = ""  # the fault of a message of the last hour


class Snapshot(msgspec.Struct, frozen=True):
    """The input of a plan. Without a spec, `refusal` has the reason."""

    meta: WireMeta
    spec: EcsSpec | None
    status: Status
    suspend: bool
    now: float
    clock: float
    refusal: tuple[str, str] | None = None  # (reason, message): nothing is done
    clusters: Mapping[str, ClusterState] = {}
    listing: Listing = Listing()
    queue: Queue = Queue()
    scale: float = 1.0  # of waits; 1 but in tests

    @property
    def idle(self) -> bool:
        """Whether AWS must not be called."""
        return self.spec is None or self.refusal is not None or self.suspend


class Plan(msgspec.Struct, frozen=True):
    """`checks`: clusters to check; `list`: list the clusters; `wake`: the next pass, None = on an event."""

    checks: tuple[str, ...] = ()
    list: bool = False
    wake: float | None = None


def plan(snapshot: Snapshot) -> Plan:
    """The checks that are due, see the module."""
    if snapshot.idle or snapshot.spec is None:
        return Plan()
    due = {
        name: at for name, cluster in snapshot.clusters.items() if (at := _due(snapshot, cluster)) is not None
    }
    listing = _list_due(snapshot)
    later = [at for at in (*due.values(), *(() if listing is None else (listing,))) if at > snapshot.clock]
    return Plan(
        checks=tuple(sorted(name for name, at in due.items() if at <= snapshot.clock)),
        list=listing is not None and listing <= snapshot.clock,
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


def _due(snapshot: Snapshot, cluster: ClusterState) -> float | None:
    if cluster.busy:
        return None
    if cluster.retry:
        return cluster.retry
    if not cluster.checked:
        return snapshot.clock
    at = cluster.checked + _resync(snapshot)
    if cluster.dirty:
        at = min(at, cluster.dirty + MERGE_SECONDS * snapshot.scale)
    return min(at, cluster.confirm) if cluster.confirm else at


def _list_due(snapshot: Snapshot) -> float | None:
    listing: Listing = snapshot.listing
    assert snapshot.spec is not None  # noqa: S101 - the caller has checked
    if snapshot.spec.clusters or listing.busy:
        return None
    if listing.failures:
        return listing.retry
    return listing.at + _resync(snapshot) if listing.at else snapshot.clock


def _resync(snapshot: Snapshot) -> float:
    assert snapshot.spec is not None  # noqa: S101 - the caller has checked
    return snapshot.spec.resync_seconds * snapshot.scale


def call_failure(error: AwsError, field: str) -> CallFailure:
    """The trouble of a failed call. `field`: the field of the spec that the call is about."""
    about = ROLE if error.service == "sts" else field
    remedy = error.remedy("spec.ecs.aws", "give the operator credentials, or set spec.ecs.aws.roleARN")
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
