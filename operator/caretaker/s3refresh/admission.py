"""Whether a resource may do anything: its spec, the grants of its namespace, the owners of its queues.

Inputs: the grants of the operator's settings. Memory only, no I/O.
"""

from collections.abc import Callable

from caretaker.api.conditions import RefreshReason as Reason
from caretaker.api.grants import Grants, refusals
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh.queue_claims import QueueClaim, QueueClaims
from caretaker.s3refresh.resource import Read
from caretaker.s3refresh.snapshot import Rejection
from caretaker.s3refresh.target_types import TargetType, target_type_of
from caretaker.s3refresh.worker_config import SOURCE, alike, queue_of


class Admission:
    """See the module."""

    def __init__(self, grants: Grants) -> None:
        self._grants = grants
        self._claims = QueueClaims()

    def refused(self, key: Key, read: Read, on_news: Callable[[], None]) -> Rejection | None:
        """Why nothing is done for the resource; None when all may be. `on_news` is called when that may have
        changed."""
        spec = read.spec
        if spec is None:
            self._claims.drop(key)
            return Rejection(Reason.INVALID_SPEC, read.invalid)
        target_type = target_type_of(spec)
        source, ends = spec.source.sqs.queue_url, target_type.ends_url
        used = {SOURCE: source}
        if ends:
            used[target_type.ends_field] = ends
        found = refusals(self._grants, key.namespace, spec.aws, used)
        if found:
            self._claims.drop(key)
            return Rejection(Reason.NOT_GRANTED, "; ".join(map(str, found)))
        rank = (bool(spec.aws.secret_name), read.meta.creation_timestamp or "")
        claim = QueueClaim(rank, alike(spec, key.namespace, source))
        owner = self._claims.claim(key, queue_of(source, spec), claim, on_news)
        if owner != key:
            return Rejection(Reason.QUEUE_CONFLICT, _taken(owner, key))
        queue = queue_of(ends, spec) if ends not in ("", source) else ""
        if queue == queue_of(source, spec):
            return Rejection(Reason.QUEUE_CONFLICT, _spelt_twice(target_type))
        claim = QueueClaim(rank, alike(spec, key.namespace, ends), source=False)
        first = self._claims.claim_ends(key, queue, claim)
        if first == key:
            return None
        return Rejection(Reason.QUEUE_CONFLICT, _read_otherwise(target_type, first, key))

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
