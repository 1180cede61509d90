"""Keeps a Store equal to the API server's objects: list, watch, and recovery from every error between.

Inputs: a client, the path of a collection, the wire struct of its items. It must not end (a task that runs
it lives as long as the process), and never lists and watches at a time (the Store relies on it).

        +--> list --> watch --> (end of the watch) -----+
        |      ^                 resume where it ended  |
        |      |                        ^---------------+
        |   410, ERROR event, silent twice
        +-- relist()
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from caretaker.api.objects import WireBareMeta
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError, error_from
from caretaker.kube.store import Record, Store, key_of
from caretaker.kube.transport import Params, resource_of

log = logging.getLogger(__name__)


class Wire(Protocol):
    """A wire struct: one that keeps the object's metadata."""

    @property
    def metadata(self) -> WireBareMeta:
        """As decoded."""
        ...


R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class ReflectorOptions:
    """Seconds. Ranges are drawn from at random, so that many watches do not end at once."""

    watch: tuple[int, int] = (280, 340)  # how long the server is asked to keep a watch
    dead_after: float = 70.0  # a watch without a byte; bookmarks come each 60 s (k8s.io/apiserver cacher.go)
    backoff: tuple[float, float] = (0.5, 30.0)
    healthy: float = 60.0  # a watch that lasted so long starts the backoff anew
    denied: float = 30.0  # between tries without the permission


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _MetadataOnly(msgspec.Struct):
    metadata: WireBareMeta


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_metadata = msgspec.json.Decoder(_MetadataOnly).decode


def _record_of(wire: Any) -> Any:
    return wire.record()


class Collection(Generic[R]):
    """What is listed and watched: the items at `path` that `label_selector` selects, each decoded as `wire`,
    which `record` maps to the Store's record."""

    def __init__(
        self,
        path: str,
        wire: type[Wire],
        record: Callable[[Any], R] = _record_of,
        label_selector: str | None = None,
    ) -> None:
        self.path = path
        self.resource = resource_of(path)
        self.wire = wire
        self.record = record
        self.params: Params = {"labelSelector": label_selector} if label_selector else {}
        self.decode = msgspec.json.Decoder(wire).decode


class Hooks:
    """The callbacks of a reflector.

    on_state  called with ("synced" | "failing" | "denied", detail) at each change; the detail of denied is
              the missing verb and resource, "watch pods"; it is retried every 30 s
    on_event  called with the kind of each event: ADDED, MODIFIED, DELETED, BOOKMARK, LIST, WATCH (one was
              opened), RESUME, EXPIRED, STALLED, ERROR, UNDECODABLE
    """

    def __init__(
        self, on_state: Callable[[str, str], None], on_event: Callable[[str], None] = lambda _: None
    ) -> None:
        self._on_state = on_state
        self.event = on_event
        self._last = ("", "")

    def state(self, state: str, detail: str = "") -> None:
        """Note the state."""
        new = (state, detail if state == "denied" else "")
        if new != self._last:
            self._last = new
            self._on_state(state, detail)


class _Backoff:
    """The pauses between attempts."""

    def __init__(self, options: ReflectorOptions) -> None:
        self._options = options
        # In a row, 410s apart. After a restart of the API server come refusals, then one 410. The 410 comes
        # from a server that is back, so the backoff that the refusals have built up does not apply to it.
        self._failures: Counter[bool] = Counter()

    def pause(self, error: ApiError | None, lasted: float) -> float:
        """Seconds until the next attempt, after one that ended so."""
        low, high = self._options.backoff
        if lasted >= self._options.healthy:
            self._failures.clear()
        if error is None and lasted >= low:  # shorter: a proxy closes watches as fast as we open them
            return 0.0
        asked, expired = 0.0, False
        if error is not None:
            if error.forbidden:
                return self._options.denied
            asked, expired = error.retry_after or 0.0, error.gone
        pause = min(high, low * 2.0 ** min(self._failures[expired], 16)) * random.uniform(0.5, 1)
        self._failures[expired] += 1
        return max(low, pause, asked)


class Reflector(Generic[R]):
    """Fills one Store from one collection.

    due  start of the current step, or end of the current wait, on the monotonic clock. The reflector waits
         for an API server that is away; long past this time it is stuck
    """

    def __init__(
        self,
        client: KubeClient,
        collection: Collection[R],
        store: Store[R],
        hooks: Hooks,
        options: ReflectorOptions | None = None,
    ) -> None:
        self.due = time.monotonic()
        self.resource = collection.resource
        self._client = client
        self._of = collection
        self._store = store
        self._hooks = hooks
        self._options = options or ReflectorOptions()
        self._version = ""  # where the next watch starts; "" = list first
        self._stalls = 0  # watches in a row that ended without a byte
        self._waiting: list[asyncio.Future[None]] = []  # relist() calls that no list has answered
        self._attempt: asyncio.Task[ApiError | None] | None = None
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """List and watch until cancelled."""
        backoff = _Backoff(self._options)
        while True:
            started = self.due = time.monotonic()
            self._wake.clear()
            self._attempt = asyncio.create_task(self._list_and_watch())
            try:
                await asyncio.wait({self._attempt})
            finally:
                self._attempt.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._attempt
            if self._attempt.cancelled():  # by relist()
                continue
            now, error = time.monotonic(), self._attempt.result()
            if error is not None:
                self._note_error(error)
            pause = backoff.pause(error, now - started)
            self.due = now + pause
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def relist(self) -> None:
        """Compare with a consistent list taken from now on; returns when the Store has the list.

        The watch is interrupted and starts anew from the list. Waits through failures.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._version = ""
        self._wake.set()
        if self._attempt is not None:
            self._attempt.cancel()
        await waiter

    async def _list_and_watch(self) -> ApiError | None:
        """One attempt; returns its error, None when the server ended the watch in order."""
        try:
            if not self._version:
                await self._list()
            else:
                self._hooks.event("RESUME")
            await self._watch()
        except ApiError as error:
            return error
        # A subscriber or an unexpected object may raise anything: the reflector must survive it, and only a
        # list repairs a Store that may have missed an event.
        except Exception as error:
            log.exception("watch of %s failed", self.resource)
            self._version = ""
            return ApiError(0, "Internal", str(error), verb="watch", path=self._of.path)
        return None

    def _note_error(self, error: ApiError) -> None:
        if error.forbidden:
            self._store.touch()  # a refusal is a response, too
            self._hooks.state("denied", f"{error.verb} {self.resource}")
            return
        self._hooks.state("failing", str(error))
        if error.gone:
            self._hooks.event("EXPIRED")
            self._version = ""
        elif error.reason == "StreamStalled":
            self._hooks.event("STALLED")
            self._stalls += 1
            # Silence after a resume may mean a resourceVersion from a history that etcd lost.
            if self._stalls >= 2:
                self._version = ""
        else:
            self._hooks.event("ERROR")

    async def _list(self) -> None:
        waiting_before = len(self._waiting)  # calls during this list need another one
        of = self._of
        items, version = await self._client.list(of.path, of.wire, params=of.params, each=self._listed)
        self._store.replace_all(items, int(version))
        self._version = version
        self._hooks.event("LIST")
        self._hooks.state("synced")
        done, self._waiting = self._waiting[:waiting_before], self._waiting[waiting_before:]
        for waiter in done:
            if not waiter.done():
                waiter.set_result(None)

    def _listed(self, wire: Wire) -> tuple[R, int]:
        self.due = time.monotonic()
        return self._of.record(wire), int(wire.metadata.resource_version)

    async def _watch(self) -> None:
        params = {
            **self._of.params,
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": random.randint(*self._options.watch),
        }
        lines = self._client.stream(
            self._of.path, params, dead_after=self._options.dead_after, on_open=self._opened
        )
        async with _closing(lines):
            async for line in lines:
                self._stalls = 0
                self._handle_line(line)
                self._contacted()

    def _contacted(self) -> None:
        self._store.touch()
        self.due = time.monotonic() + self._options.dead_after

    def _opened(self) -> None:
        self._hooks.event("WATCH")
        self._contacted()
        self._hooks.state("synced")

    def _handle_line(self, line: bytes) -> None:
        event = _decode_event(line)
        kind = event.type
        if kind == "ERROR":
            self._version = ""
            raise error_from(0, bytes(event.object), verb="watch", path=self._of.path)
        self._hooks.event(kind)
        try:
            self._version = self._apply(kind, event.object)
        except msgspec.ValidationError as error:
            # One object that does not fit its schema must not hide all others.
            self._hooks.event("UNDECODABLE")
            log.warning("%s: an object cannot be read and is ignored: %s", self.resource, error)
            self._version = _decode_metadata(event.object).metadata.resource_version
            self._store.passed(int(self._version))

    def _apply(self, kind: str, encoded: msgspec.Raw) -> str:
        """Apply an event to the Store; returns its resourceVersion."""
        if kind == "BOOKMARK":
            version = _decode_metadata(encoded).metadata.resource_version
            self._store.passed(int(version))
            return version
        wire = self._of.decode(encoded)
        version = wire.metadata.resource_version
        record = self._of.record(wire)
        if kind == "DELETED":
            self._store.remove(key_of(record), record.uid, int(version))
        else:
            self._store.apply(record, int(version))
        return version


@contextlib.asynccontextmanager
async def _closing(lines: AsyncIterator[bytes]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await lines.aclose()  # type: ignore[attr-defined]  # an async generator, typed by its interface
