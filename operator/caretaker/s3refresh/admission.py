"""Whether a resource may do anything: its spec, the grants of its namespace, and the claims to its queues.

A queue has one owner: the first resource whose source it is. The others' completion queue may be the same
queue, or one that many resources share; but all read it alike, as one reader, or they would take each other's
messages and leave them to the dead-letter queue. A resource without a grant for the queue comes last, for
events and for ends: else every user could keep the others from their queue. Memory only, no I/O.
"""

from collections.abc import Callable, Hashable, Mapping

import msgspec

from caretaker.api.conditions import RefreshReason as Reason
from caretaker.api.grants import Grants, refusals
from caretaker.api.s3refresh import Spec
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh.queue_view import SOURCE
from caretaker.s3refresh.resource import ParsedRefresh, alike, arn_of_queue
from caretaker.s3refresh.snapshot import Rejection
from caretaker.s3refresh.target_types import TargetType, target_type_of


class QueueClaim(msgspec.Struct, frozen=True):
    """The claim of a resource to a queue.

    rank    (whether the queue is not granted, creationTimestamp): own credentials are no claim to a queue
            that another resource was granted
    alike   equal for those that can share one reader: URL, endpoint, credentials
    source  whether events are wanted; else the ends of refreshes only
    """

    rank: tuple[bool, str]
    alike: Hashable
    source: bool = True


class QueueClaims:
    """Claims by queue (its ARN): one queue has many URLs, and two identities that reach it compete, too."""

    def __init__(self) -> None:
        self._claims: dict[str, dict[Key, QueueClaim]] = {}
        self._of: dict[Key, tuple[Mapping[str, QueueClaim], Callable[[], None]]] = {}

    def owner(self, key: Key, queue: str, claim: QueueClaim) -> Key:
        """The resource that reads this queue as its source, if `key` claims it. Changes nothing."""
        claims = {**self._claims.get(queue, {}), key: claim}

        def rank(key: Key) -> tuple[bool, bool, str, str, str]:
            ungranted, created = claims[key].rank
            return ungranted, not claims[key].source, created, key.namespace, key.name

        return min(claims, key=rank)

    def reader(self, key: Key, queue: str, claim: QueueClaim) -> Key:
        """The resource that decides how this completion queue is read, if `key` claims it: `key` itself
        unless that is another way. Changes nothing."""
        first = self.owner(key, queue, claim)
        return key if first == key or self._claims[queue][first].alike == claim.alike else first

    def has_source(self, queue: str) -> bool:
        """Whether the queue is the source of a resource: until its owner reads, no other may."""
        return any(claim.source for claim in self._claims.get(queue, {}).values())

    def declare(self, key: Key, wanted: Mapping[str, QueueClaim], on_news: Callable[[], None]) -> None:
        """`key` claims these queues and no others. `on_news` is called when others' claims to one of them
        change."""
        before, _ = self._of.pop(key, ({}, None))
        if wanted:
            self._of[key] = (wanted, on_news)
        for queue in {*before, *wanted}:
            if before.get(queue) == wanted.get(queue):
                continue
            claims = self._claims.setdefault(queue, {})
            claims.pop(key, None)
            for other in claims:
                self._of[other][1]()
            if queue in wanted:
                claims[key] = wanted[queue]
            if not claims:
                del self._claims[queue]

    def drop(self, key: Key) -> None:
        """`key` is gone."""
        self.declare(key, {}, lambda: None)

    def clear(self) -> None:
        """Every resource is gone, for this process."""
        self._claims.clear()
        self._of.clear()


class QueueAccess(msgspec.Struct, frozen=True):
    """The queues that a resource claims (by ARN), and why nothing is done for it; None when all may be."""

    claims: Mapping[str, QueueClaim] = {}
    rejection: Rejection | None = None


def rank_of(read: ParsedRefresh) -> tuple[bool, str, str, str]:
    """The place of a resource among those that have one queue as their source: QueueClaim.rank, its name."""
    own, meta = read.spec is not None and bool(read.spec.aws.secret_name), read.meta
    return own, meta.creation_timestamp or "", meta.namespace, meta.name


def access_of(key: Key, read: ParsedRefresh, grants: Grants, claims: QueueClaims) -> QueueAccess:
    """What the resource may do, by the claims that others have declared. Changes nothing."""
    spec = read.spec
    if spec is None:
        return QueueAccess(rejection=Rejection(Reason.INVALID_SPEC, read.invalid))
    target_type = target_type_of(spec)
    source, ends = spec.source.sqs.queue_url, target_type.ends_url
    used = {SOURCE: source, **target_type.called(spec.aws.region)}
    if ends:
        used[target_type.ends_field] = ends
    found = refusals(grants, key.namespace, spec.aws, used)
    refused = Rejection(Reason.NOT_GRANTED, "; ".join(map(str, found))) if found else _ring(spec, target_type)
    if refused is not None:
        return QueueAccess(rejection=refused)
    rank = rank_of(read)[:2]
    queue = arn_of_queue(source, spec)
    own = {queue: QueueClaim(rank, alike(spec, key.namespace, source))}
    owner = claims.owner(key, queue, own[queue])
    if owner != key:  # which reads nothing at all
        return QueueAccess(own, Rejection(Reason.QUEUE_CONFLICT, _taken(owner, key)))
    if ends in ("", source):
        return QueueAccess(own)
    other, claim = arn_of_queue(ends, spec), QueueClaim(rank, alike(spec, key.namespace, ends), source=False)
    if other == queue:
        message = f"{target_type.ends_field} is {SOURCE} spelt otherwise: write the same URL in both"
        return QueueAccess(own, Rejection(Reason.QUEUE_CONFLICT, message))
    own[other], reader = claim, claims.reader(key, other, claim)
    message = _read_otherwise(target_type, reader, key)
    return QueueAccess(own, None if reader == key else Rejection(Reason.QUEUE_CONFLICT, message))


def _ring(spec: Spec, target_type: TargetType) -> Rejection | None:
    """Why its refreshes would be its events."""
    queue = arn_of_queue(spec.source.sqs.queue_url, spec)
    field = next((at for at, arn in target_type.called(spec.aws.region).items() if arn == queue), "")
    message = f"{field} is the queue of {SOURCE}, which this resource reads itself: use another queue"
    return Rejection(Reason.INVALID_SPEC, message) if field else None


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
