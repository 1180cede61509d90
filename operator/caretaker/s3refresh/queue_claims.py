"""The claims of resources to queues. Memory only, no I/O.

A queue has one owner: the first resource whose source it is. The others' completion queue may be the same
queue, or one that many resources share; but all read it alike, as one reader, or they would take each other's
messages and leave them to the dead-letter queue. A resource without a grant for the queue comes last, for
events and for ends: else every user could keep the others from their queue.
"""

from collections.abc import Callable, Hashable, Mapping

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

    def owner(self, key: Key, queue: str, claim: QueueClaim) -> Key:
        """The resource that reads this queue as its source, if `key` claims it. Changes nothing."""
        return self._first(key, queue, claim)

    def reader(self, key: Key, queue: str, claim: QueueClaim) -> Key:
        """The resource that decides how this completion queue is read, if `key` claims it: `key` itself
        unless that is another way. Changes nothing."""
        first = self._first(key, queue, claim)
        return key if first == key or self._claims[queue][first].alike == claim.alike else first

    def declare(self, key: Key, wanted: Mapping[str, QueueClaim], on_news: Callable[[], None]) -> None:
        """`key` claims these queues and no others. `on_news` is called when others' claims to one of them
        change."""
        self._on_news[key] = on_news
        self._declare(key, wanted)

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

    def _first(self, key: Key, queue: str, claim: QueueClaim) -> Key:
        claims = {**self._claims.get(queue, {}), key: claim}

        def rank(key: Key) -> tuple[bool, bool, str, str, str]:
            ungranted, created = claims[key].rank
            return ungranted, not claims[key].source, created, key.namespace, key.name

        return min(claims, key=rank)

    def _declare(self, key: Key, wanted: Mapping[str, QueueClaim]) -> None:
        before = self._of.pop(key, {})
        if wanted:
            self._of[key] = dict(wanted)
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
