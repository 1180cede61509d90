"""A stale view of the world: what the API server said some seconds ago.

Inputs: the API server's resourceVersion, sampled over time. Lists are answered by the API server itself
from etcd's history (`resourceVersionMatch=Exact`), so that a stale list is consistent to the revision;
watch events are kept back until they are old enough. It reaches as far back as etcd's compaction (5 min).
https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
"""

import bisect
import time
from dataclasses import dataclass

import msgspec

from testing.faults import Action, Exchange, Reply, status_body


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _WatchEvent(msgspec.Struct):
    object: _Object = msgspec.field(default_factory=_Object)


class _List(msgspec.Struct, rename="camel"):
    api_version: str = "v1"
    kind: str = "List"
    items: tuple[msgspec.Raw, ...] = ()


_event = msgspec.json.Decoder(_WatchEvent).decode
_object = msgspec.json.Decoder(_Object).decode
_list = msgspec.json.Decoder(_List).decode


def revision_of(body: bytes) -> int:
    """metadata.resourceVersion of an object or list; 0 if there is none."""
    try:
        text = _object(body).metadata.resource_version
    except msgspec.MsgspecError:
        return 0
    return int(text) if text.isdigit() else 0


class RevisionClock:
    """Which resourceVersion was current when. etcd has one counter for all resources."""

    INTERVAL = 0.1  # seconds between samples

    def __init__(self) -> None:
        self._times: list[float] = []
        self._revisions: list[int] = []

    def sample(self, revision: int) -> None:
        """Note that `revision` is current."""
        if revision and (not self._revisions or revision >= self._revisions[-1]):
            self._times.append(time.monotonic())
            self._revisions.append(revision)

    def at(self, moment: float) -> int:
        """The revision that was current then; the first sample's for earlier moments; 0 without samples."""
        index = bisect.bisect_right(self._times, moment) - 1
        return self._revisions[max(index, 0)] if self._revisions else 0

    def time_of(self, revision: int) -> float | None:
        """When `revision` was first seen to be there (at most INTERVAL late); None if it is newer."""
        index = bisect.bisect_left(self._revisions, revision)
        return self._times[index] if index < len(self._times) else None


@dataclass(frozen=True)
class Stale(Action):
    """Watches, and as asked lists and gets, show the world `seconds` ago, but never before `clock` began.

    Whether lists and gets lie too is the test's choice: a cache may be stale, while a real API server
    answers a quorum read truly.
    """

    seconds: float
    clock: RevisionClock
    lists: bool = True
    gets: bool = False

    async def before(self, exchange: Exchange) -> None:
        if self._lists(exchange):
            self._ask_exactly(exchange)
        elif self._gets(exchange):
            # A get knows no past; a list of one does.
            exchange.path = exchange.path.rpartition("/")[0]
            exchange.query["fieldSelector"] = f"metadata.name={exchange.call.name}"
            self._ask_exactly(exchange)

    async def after(self, exchange: Exchange) -> None:
        reply = exchange.reply
        if self._gets(exchange) and reply is not None and reply.status == 200:
            exchange.reply = _only_item(reply, exchange.call.name)

    def hold(self, arrived: float, line: bytes) -> float:
        try:
            version = _event(line).object.metadata.resource_version if line else ""
        except msgspec.MsgspecError:
            version = ""
        happened = self.clock.time_of(int(version)) if version.isdigit() else None
        return (happened or arrived) + self.seconds

    def _lists(self, exchange: Exchange) -> bool:
        # A continue token carries its revision already.
        return self.lists and exchange.call.verb == "list" and "continue" not in exchange.query

    def _gets(self, exchange: Exchange) -> bool:
        call = exchange.call
        return self.gets and call.verb == "get" and bool(call.name) and not call.subresource

    def _ask_exactly(self, exchange: Exchange) -> None:
        exchange.headers.pop("Accept-Encoding", None)
        exchange.query["resourceVersion"] = str(self.clock.at(time.monotonic() - self.seconds))
        exchange.query["resourceVersionMatch"] = "Exact"


def _only_item(reply: Reply, name: str) -> Reply:
    """A list of at most one, as the answer to a get."""
    found = _list(reply.body)
    if not found.items:
        return Reply(404, status_body(404, "NotFound", f"{name} not found"))
    item = msgspec.json.decode(found.items[0])
    # Items of a list leave out their type.
    item.setdefault("apiVersion", found.api_version)
    item.setdefault("kind", found.kind.removesuffix("List"))
    return Reply(200, msgspec.json.encode(item), dict(reply.headers))
