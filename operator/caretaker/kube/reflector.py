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

from caretaker.api.objects import WireMeta
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError, error_from
from caretaker.kube.store import Record, Store, key_of
from caretaker.kube.transport import Params, resource_of

log = logging.getLogger(__name__)


class Wire(Protocol):
    """A wire struct: one that keeps the object's metadata."""

    @property
    def metadata(self) -> WireMeta:
        """As decoded."""
        ...


R = TypeVar("R", bound=Record)
StateHook = Callable[[str, str], None]


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
    metadata: WireMeta


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_metadata = msgspec.json.Decoder(_MetadataOnly).decode


def _record_of(wire: Any) -> Any:
    return wire.record()


class Reflector(Generic[R]):
    """Fills one Store from one collection.

    record     maps a wire struct to the Store's record
    on_state   called with ("synced" | "failing" | "denied", detail) at each change; the detail of denied is
               the missing verb and resource, "watch pods"; it is retried every 30 s
    on_event   called with the kind of each event: ADDED, MODIFIED, DELETED, BOOKMARK, LIST, WATCH (one was
               opened), RESUME, EXPIRED, STALLED, ERROR, UNDECODABLE
    counts     the number of events of each kind
    state      the last state, "starting" at first
    due        start of the current step, or end of the current wait, on the monotonic clock. The reflector
               waits for an API server that is away; long past this time it is stuck
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        wire_type: type[Wire],
        store: Store[R],
        record: Callable[[Any], R] = _record_of,
        *,
        label_selector: str | None = None,
        on_state: StateHook | None = None,
        options: ReflectorOptions | None = None,
    ) -> None:
        self.on_state = on_state
        self.on_event: Callable[[str], None] | None = None
        self.counts: Counter[str] = Counter()
        self.state = "starting"
        self.due = time.monotonic()
        self.resource = resource_of(path)
        self._client = client
        self._path = path
        self._wire_type = wire_type
        self._decode = msgspec.json.Decoder(wire_type).decode
        self._record = record
        self._store = store
        self._selector: Params = {"labelSelector": label_selector} if label_selector else {}
        self._options = options or ReflectorOptions()
        self._version = ""  # where the next watch starts; "" = list first
        self._failures: Counter[bool] = Counter()  # in a row; 410s apart, see _pause()
        self._last_state = ("", "")
        self._stalls = 0  # watches in a row that ended without a byte
        self._waiting: list[asyncio.Future[None]] = []  # relist() calls that no list has answered
        self._attempt: asyncio.Task[ApiError | None] | None = None
        self._wake = asyncio.Event()

    # ---------------------------------------------------------------- running

    async def run(self) -> None:
        """List and watch until cancelled."""
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
            now = time.monotonic()
            pause = self._pause(self._attempt.result(), now - started)
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
                self._count("RESUME")
            await self._watch()
        except ApiError as error:
            return error
        # A subscriber or an unexpected object may raise anything: the reflector must survive it, and only a
        # list repairs a Store that may have missed an event.
        except Exception as error:
            log.exception("watch of %s failed", self.resource)
            self._version = ""
            return ApiError(0, "Internal", str(error), verb="watch", path=self._path)
        return None

    def _pause(self, error: ApiError | None, lasted: float) -> float:
        """Seconds until the next attempt, after taking note of how this one ended."""
        low, high = self._options.backoff
        if lasted >= self._options.healthy:
            self._failures.clear()
        if error is None and lasted >= low:  # shorter: a proxy closes watches as fast as we open them
            return 0.0
        asked, expired = 0.0, False
        if error is not None:
            self._note_error(error)
            if error.forbidden:
                return self._options.denied
            # After a restart of the API server come refusals, then one 410. The 410 comes from a server that
            # is back, so the backoff that the refusals have built up does not apply to it.
            asked, expired = error.retry_after or 0.0, error.gone
        pause = min(high, low * 2.0 ** min(self._failures[expired], 16)) * random.uniform(0.5, 1)
        self._failures[expired] += 1
        return max(low, pause, asked)

    def _note_error(self, error: ApiError) -> None:
        if error.forbidden:
            self._store.touch()  # a refusal is a response, too
            self._set_state("denied", f"{error.verb} {self.resource}")
            return
        self._set_state("failing", str(error))
        if error.gone:
            self._count("EXPIRED")
            self._version = ""
        elif error.reason == "StreamStalled":
            self._count("STALLED")
            self._stalls += 1
            # Silence after a resume may mean a resourceVersion from a history that etcd lost.
            if self._stalls >= 2:
                self._version = ""
        else:
            self._count("ERROR")

    # --------------------------------------------------------------- listing

    async def _list(self) -> None:
        waiting_before = len(self._waiting)  # calls during this list need another one
        items, version = await self._client.list(
            self._path, self._wire_type, params=self._selector, each=self._listed
        )
        self._store.replace_all(items, int(version))
        self._version = version
        self._count("LIST")
        self._set_state("synced", "")
        done, self._waiting = self._waiting[:waiting_before], self._waiting[waiting_before:]
        for waiter in done:
            if not waiter.done():
                waiter.set_result(None)

    def _listed(self, wire: Wire) -> tuple[R, int]:
        self.due = time.monotonic()
        return self._record(wire), int(wire.metadata.resource_version)

    # -------------------------------------------------------------- watching

    async def _watch(self) -> None:
        params = {
            **self._selector,
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": random.randint(*self._options.watch),
        }
        lines = self._client.stream(
            self._path, params, dead_after=self._options.dead_after, on_open=self._opened
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
        self._count("WATCH")
        self._contacted()
        self._set_state("synced", "")

    def _handle_line(self, line: bytes) -> None:
        event = _decode_event(line)
        kind = event.type
        if kind == "ERROR":
            self._version = ""
            raise error_from(0, bytes(event.object), verb="watch", path=self._path)
        self._count(kind)
        try:
            self._version = self._apply(kind, event.object)
        except msgspec.ValidationError as error:
            # One object that does not fit its schema must not hide all others.
            self._count("UNDECODABLE")
            log.warning("%s: an object cannot be read and is ignored: %s", self.resource, error)
            self._version = _decode_metadata(event.object).metadata.resource_version
            self._store.passed(int(self._version))

    def _apply(self, kind: str, encoded: msgspec.Raw) -> str:
        """Apply an event to the Store; returns its resourceVersion."""
        if kind == "BOOKMARK":
            version = _decode_metadata(encoded).metadata.resource_version
            self._store.passed(int(version))
            return version
        wire = self._decode(encoded)
        version = wire.metadata.resource_version
        record = self._record(wire)
        if kind == "DELETED":
            self._store.remove(key_of(record), record.uid, int(version))
        else:
            self._store.apply(record, int(version))
        return version

    # -------------------------------------------------------------- reporting

    def _count(self, kind: str) -> None:
        self.counts[kind] += 1
        if self.on_event is not None:
            self.on_event(kind)

    def _set_state(self, state: str, detail: str) -> None:
        new_state = (state, detail if state == "denied" else "")
        if new_state == self._last_state:
            return
        self._last_state, self.state = new_state, state
        if self.on_state is not None:
            self.on_state(state, detail)


@contextlib.asynccontextmanager
async def _closing(lines: AsyncIterator[bytes]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await lines.aclose()  # type: ignore[attr-defined]  # an async generator, typed by its interface
