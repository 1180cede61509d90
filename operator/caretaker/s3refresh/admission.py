"""Whether a resource may do anything: its spec, the grants of its namespace, the owners of its queues.

Inputs: the grants of the operator's settings. Memory only, no I/O.
"""

from collections.abc import Callable, Mapping

import msgspec

from caretaker.api.conditions import RefreshReason as Reason
from caretaker.api.grants import Grants, refusals
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh.queue_claims import QueueClaim, QueueClaims
from caretaker.s3refresh.resource import Read
from caretaker.s3refresh.snapshot import Rejection
from caretaker.s3refresh.target_types import TargetType, target_type_of
from caretaker.s3refresh.worker_config import SOURCE, alike, queue_of


class QueueAccess(msgspec.Struct, frozen=True):
    """The queues that a resource claims (by ARN), and why nothing is done for it; None when all may be."""

    claims: Mapping[str, QueueClaim] = {}
    rejection: Rejection | None = None


class Admission:
    """See the module."""

    def __init__(self, grants: Grants) -> None:
        self._grants = grants
        self._claims = QueueClaims()

    def access(self, key: Key, read: Read) -> QueueAccess:
        """What the resource may do, by the claims that others have declared. Changes nothing."""
        spec = read.spec
        if spec is None:
            return QueueAccess(rejection=Rejection(Reason.INVALID_SPEC, read.invalid))
        target_type = target_type_of(spec)
        source, ends = spec.source.sqs.queue_url, target_type.ends_url
        used = {SOURCE: source}
        if ends:
            used[target_type.ends_field] = ends
        found = refusals(self._grants, key.namespace, spec.aws, used)
        if found:
            return QueueAccess(rejection=Rejection(Reason.NOT_GRANTED, "; ".join(map(str, found))))
        rank = (bool(spec.aws.secret_name), read.meta.creation_timestamp or "")
        queue = queue_of(source, spec)
        claims = {queue: QueueClaim(rank, alike(spec, key.namespace, source))}
        owner = self._claims.owner(key, queue, claims[queue])
        if owner != key:  # which reads nothing at all
            return QueueAccess(claims, Rejection(Reason.QUEUE_CONFLICT, _taken(owner, key)))
        if ends in ("", source):
            return QueueAccess(claims)
        other, claim = queue_of(ends, spec), QueueClaim(rank, alike(spec, key.namespace, ends), source=False)
        if other == queue:
            return QueueAccess(claims, Rejection(Reason.QUEUE_CONFLICT, _spelt_twice(target_type)))
        claims[other], reader = claim, self._claims.reader(key, other, claim)
        message = _read_otherwise(target_type, reader, key)
        return QueueAccess(claims, None if reader == key else Rejection(Reason.QUEUE_CONFLICT, message))

    def declare(self, key: Key, claims: Mapping[str, QueueClaim], on_news: Callable[[], None]) -> None:
        """The resource claims these queues and no others. `on_news` is called when its access may have
        changed."""
        if claims:
            self._claims.declare(key, claims, on_news)
        else:
            self._claims.drop(key)

    def owner_absent(self, queue: str) -> bool:
        """Whether the queue (its ARN) is the source of a resource: until its owner reads, no other may."""
        return self._claims.has_source(queue)

    def forget(self, key: Key) -> None:
        """The resource is gone."""
        self._claims.drop(key)

    def clear(self) -> None:
        """Every resource is gone, for this process."""
        self._claims.clear()


def _spelt_twice(target_type: TargetType) -> str:
    return f"{target_type.ends_field} is {SOURCE} spelt otherwise: write the same URL in both"


def _named(other: Key, key: Key) -> str:
    same = other.namespace == key.namespace
    return f"{other.namespace}/{other.name}" if same else "a resource of another namespace"


def _taken(owner: Key, key: Key) -> str:
    return (
        f"{SOURCE}: {_named(owner, key)} reads this queue already, and two would take each "
        "other's events: give each its own queue, filled by one SNS topic or rule"
    )


def _read_otherwise(target_type: TargetType, first: Key, key: Key) -> str:
    return (
        f"{target_type.ends_field}: {_named(first, key)} reads this queue under another spec.aws or URL, and "
        "two readers would take each other's messages: make them the same, or give each its own queue"
    )
