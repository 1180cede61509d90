"""The claims of resources to queues. Memory only, no I/O.

A queue has one owner: the first resource whose source it is. The others' completion queue may be the same
queue, or one that many resources share; but all read it alike, as one reader, or they would take each other's
messages and leave them to the dead-letter queue. A resource without a grant for the queue comes last, for
events and for ends: else every user could keep the others from their queue.
"""

from collections.abc import Callable, Hashable

import msgspec

from caretaker.runtime.work_queue import Key


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
        self._of: dict[Key, dict[str, QueueClaim]] = {}
        self._on_news: dict[Key, Callable[[], None]] = {}

    def claim(self, key: Key, queue: str, claim: QueueClaim, on_news: Callable[[], None]) -> Key:
        """`key`'s source is this queue and no other; returns the resource that may read it. `on_news` is
        called when others' claims to a queue of `key`'s change."""
        self._on_news[key] = on_news
        ends = {name: one for name, one in self._of.get(key, {}).items() if not one.source and name != queue}
        self._declare(key, {queue: claim, **ends})
        owner = self._first(queue)
        if owner != key:  # which reads nothing at all
            self._declare(key, {queue: claim})
        return owner

    def claim_ends(self, key: Key, queue: str, claim: QueueClaim) -> Key:
        """`key`'s completion queue is this one and no other; returns the resource that decides how it is
        read: `key` itself unless that is another way. An empty `queue`: it has none."""
        standing = self._of[key]
        source = {name: one for name, one in standing.items() if one.source}
        self._declare(key, {queue: claim, **source} if queue else source)
        first = self._first(queue) if queue else key
        return key if not queue or self._claims[queue][first].alike == claim.alike else first

    def has_source(self, queue: str) -> bool:
        """Whether the queue is the source of a resource, which may not read it just now."""
        return any(claim.source for claim in self._claims.get(queue, {}).values())

    def drop(self, key: Key) -> None:
        """`key` is gone, or may read nothing."""
        self._declare(key, {})
        self._on_news.pop(key, None)

    def clear(self) -> None:
        """Remove all claims."""
        self._claims.clear()
        self._of.clear()
        self._on_news.clear()

    def _first(self, queue: str) -> Key:
        claims = self._claims[queue]

        def rank(key: Key) -> tuple[bool, bool, str, str, str]:
            ungranted, created = claims[key].rank
            return ungranted, not claims[key].source, created, key.namespace, key.name

        return min(claims, key=rank)

    def _declare(self, key: Key, wanted: dict[str, QueueClaim]) -> None:
        before = self._of.pop(key, {})
        if wanted:
            self._of[key] = wanted
        for queue in {*before, *wanted}:
            if before.get(queue) == wanted.get(queue):
                continue
            claims = self._claims.setdefault(queue, {})
            claims.pop(key, None)
            for other in claims:
                self._on_news[other]()
            if queue in wanted:
                claims[key] = wanted[queue]
            if not claims:
                del self._claims[queue]
