"""kopf, for the custom resources only: events become keys, nothing else happens here.

kopf runs in a thread and a loop of its own, because it cancels every task started after it and ends on
any in-stream error but 410; here it is started again with backoff. It writes nothing: no annotations, no
finalizers, no events.

    Presence   which kinds the cluster has and lets us list
       |
    kopf       watches those; started again when others come or go

A kind that is missing, or may not be listed, is logged in one line. The other kinds are watched without it.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final, cast

import aiohttp
import kopf
import msgspec

from caretaker.api.names import API_VERSION, GROUP, VERSION
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError, or_none
from caretaker.kube.metadata import MetadataSession
from caretaker.kube.rest_config import RestConfig
from caretaker.kube.transport import Request
from caretaker.registry import INSTALL_CRDS, KindInfo
from caretaker.runtime.work_queue import Key

logger = logging.getLogger(__name__)

DISCOVERY_SECONDS: Final = (1.0, 2.0, 5.0, 10.0)  # between looks while there is nothing to watch
ABSENT_SECONDS: Final = 10.0  # between looks for the kinds that are missing beside those that are watched
HALT_SECONDS: Final = 1.0
# aiohttp closes TLS connections a moment after close(), and not at all once the loop has ended.
CLOSING_SECONDS: Final = 0.1
BACKOFF_SECONDS: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
HEALTHY_SECONDS: Final = 60.0  # a watch that lasted so long starts the backoff anew
# Never set. kopf removes its finalizer from objects without handlers; with our name (onDelete: Flush) it
# would remove ours.
FINALIZER: Final = f"{GROUP}/kopf"
# kopf remembers as many credentials that it was refused with (kopf._cogs.structs.credentials, Vault).
SESSIONS: Final = 3
# A level of an object that is nested as deep as it goes takes some hundred bytes of a thread's stack; some C
# libraries give a new thread less than a megabyte.
STACK_BYTES: Final = 16 << 20

Kinds = tuple[KindInfo, ...]
Credentials = tuple[str, int, Mapping[str, Any]]  # Authorization, generation, TLS and proxy
Sessions = dict[tuple[str, int], MetadataSession]


class Presence:
    """Which kinds can be watched. The reason for each other kind is logged once."""

    def __init__(self, client: KubeClient, kinds: Kinds, namespace: str | None) -> None:
        self._client = client
        self._kinds = kinds
        self._namespace = namespace
        self._logged: frozenset[str] = frozenset()

    async def some(self) -> Kinds:
        """The kinds that can be watched, as soon as there is one."""
        attempt = 0
        while not (found := await self.look()):
            await asyncio.sleep(DISCOVERY_SECONDS[min(attempt, len(DISCOVERY_SECONDS) - 1)])
            attempt += 1
        return found

    async def look(self, watched: Kinds = ()) -> Kinds | None:
        """The kinds that can be watched; None when discovery failed. Those in `watched` are only looked up,
        not listed again."""
        try:
            problems = await self._problems(watched)
        except Exception as error:  # noqa: BLE001 - a proxy's web page, say; logged and tried again
            self._log(self._logged | {f"discovery failed: {type(error).__name__}: {error}"})
            return None
        self._log(frozenset(problems.values()))
        return tuple(kind for kind in self._kinds if kind not in problems)

    async def _problems(self, watched: Kinds) -> dict[KindInfo, str]:
        """Kind -> why it cannot be watched."""
        found: dict[str, Any] | None = await or_none(self._client.get(f"/apis/{API_VERSION}"))
        if found is None:
            return dict.fromkeys(self._kinds, f"no {API_VERSION} in this cluster: {INSTALL_CRDS}")
        plurals = {resource.get("name") for resource in found.get("resources", ())}
        asked = {
            kind: await self._problem(kind)
            for kind in self._kinds
            if kind.plural not in plurals or kind not in watched
        }
        return {kind: problem for kind, problem in asked.items() if problem}

    async def _problem(self, kind: KindInfo) -> str:
        """Why the kind cannot be listed, or "". Discovery lags: kopf would end on a 404, and only after a
        minute of tracebacks on 403s."""
        try:
            await self._client.call(Request("list", kind.path(self._namespace or ""), {"limit": 1}))
        except ApiError as error:
            return f"CRD missing: {kind.plural}: {INSTALL_CRDS}" if error.not_found else f"{error}"
        return ""

    def _log(self, lines: frozenset[str]) -> None:
        for line in sorted(lines - self._logged):
            logger.warning("%s; waiting for it", line)
        self._logged = lines


# uid, generation, deletionTimestamp, digest of the annotations, which may have 256 KiB
Observed = tuple[str, int, str, bytes]


class CustomResources:
    """Watches the kinds and calls `on_key` in the caller's loop for every change that is not our own."""

    def __init__(
        self,
        client: KubeClient,
        kinds: Iterable[KindInfo],
        namespace: str | None,
        on_key: Callable[[Key], None],
    ) -> None:
        self._client = client
        self._kinds = tuple(kinds)
        self._presence = Presence(client, self._kinds, namespace)
        self._namespace = namespace
        self._on_key = on_key
        self._observed: dict[Key, Observed] = {}
        self._stop = threading.Event()
        self._halt: Callable[[], None] = lambda: None  # from any thread: ask the running kopf to end
        self._thread: threading.Thread | None = None

    def enqueue_all(self) -> None:
        """Ask for a pass over every known resource. The pass of a deleted one finds it missing."""
        for key in tuple(self._observed):
            self._on_key(key)

    def forget(self, key: Key) -> None:
        """The resource is gone."""
        self._observed.pop(key, None)

    async def run(self) -> None:
        """Until cancelled; stop() must follow, since a thread cannot be cancelled."""
        attempt = 0
        watched = await self._presence.some()
        while True:
            logger.info("watching %s", ", ".join(kind.plural for kind in watched))
            started = time.monotonic()
            failure = await self._watch(watched)
            if time.monotonic() - started > HEALTHY_SECONDS:
                attempt = 0
            self.enqueue_all()  # a pass reads each, and finds those deleted meanwhile
            # The CRD was deleted: that ends kopf, and is no failure.
            if failure and await self._presence.look() in (None, watched):
                delay = BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)]
                attempt += 1
                logger.warning("the watch of custom resources ended (%s); again in %.0f s", failure, delay)
                await asyncio.sleep(delay)
            watched = await self._presence.some()

    async def stop(self, timeout: float = 5.0) -> None:
        """Ask kopf to end and wait for its thread."""
        self._stop.set()
        self._halt()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, timeout)

    async def _watch(self, watched: Kinds) -> str:
        """Runs kopf until it ends, and returns why; "" once there are other kinds to watch."""
        ended = self._start(watched)
        # Discovery is asked only while a kind is missing: kopf ends when a CRD is removed.
        wait = ABSENT_SECONDS if len(watched) < len(self._kinds) else None
        while not (await asyncio.wait([ended], timeout=wait))[0]:
            if await self._presence.look(watched) not in (None, watched):
                await self._end(ended)
                return ""
        return ended.result()

    async def _end(self, ended: asyncio.Future[str]) -> None:
        while not ended.done():
            self._halt()  # more than once: a thread that is only starting has nothing to halt yet
            await asyncio.wait([ended], timeout=HALT_SECONDS)

    def _start(self, watched: Kinds) -> asyncio.Future[str]:
        """Runs kopf in a thread; the result is why it ended."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()

        def end(reason: str) -> None:
            if not ended.done():
                ended.set_result(reason)

        def main() -> None:
            try:
                asyncio.run(self._operator(loop, watched))
                reason = "kopf ended"
            except Exception as error:  # noqa: BLE001 - kopf ends on errors of every kind
                reason = f"{type(error).__name__}: {error}"
            if not loop.is_closed():
                loop.call_soon_threadsafe(end, reason)

        self._thread = threading.Thread(target=main, name="kopf", daemon=True)
        usual = threading.stack_size(STACK_BYTES)
        self._thread.start()
        threading.stack_size(usual)
        return ended

    async def _operator(self, loop: asyncio.AbstractEventLoop, watched: Kinds) -> None:
        # Not the threading.Event itself: kopf waits for that in an executor's thread, which outlives kopf and
        # keeps asyncio.run() from returning, so that a kopf that failed would never be started again.
        own, stop = asyncio.get_running_loop(), asyncio.Event()

        def halt() -> None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself, and its loop is closed
                own.call_soon_threadsafe(stop.set)

        self._halt = halt
        if self._stop.is_set():
            return
        sessions: Sessions = {}
        try:
            await kopf.operator(
                registry=self._registry(loop, watched, sessions),
                settings=_settings(),
                standalone=True,
                stop_flag=stop,
                clusterwide=self._namespace is None,
                namespaces=[self._namespace] if self._namespace else [],
            )
        finally:
            for session in sessions.values():
                await session.close()
            await asyncio.sleep(CLOSING_SECONDS)

    def _registry(
        self,
        loop: asyncio.AbstractEventLoop,
        watched: Kinds,
        sessions: Sessions,
    ) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.AiohttpSession:
            refused = next((generation for _, generation in reversed(sessions)), None)
            asked = asyncio.run_coroutine_threadsafe(credentials(self._client.rest_config, refused), loop)
            authorization, generation, request = await asyncio.wrap_future(asked)
            key = authorization, generation
            # The same for the same credentials, by which kopf knows those that it was refused with.
            if key not in sessions:
                headers = {"Authorization": authorization} if authorization else {}
                sessions[key] = MetadataSession(headers, request, [kind.plural for kind in watched])
            while len(sessions) > SESSIONS:
                await sessions.pop(next(iter(sessions))).close()
            session = cast("aiohttp.ClientSession", sessions[key])
            return kopf.AiohttpSession(server=self._client.host, aiohttp_session=session)

        for info in watched:

            @kopf.on.event(GROUP, VERSION, info.plural, registry=registry)
            async def event(
                type: str | None,  # noqa: A002 - kopf's name
                body: kopf.Body,
                kind: str = info.kind,
                **_: Any,
            ) -> None:
                meta = dict(body.get("metadata", {}))
                loop.call_soon_threadsafe(self._changed, kind, type, meta)

        return registry

    def _changed(self, kind: str, change: str | None, meta: dict[str, Any]) -> None:
        """In the caller's loop: enqueue unless only our own status write is new."""
        key = Key(kind, meta.get("namespace") or "", meta["name"])
        if change == "DELETED":
            self._observed.pop(key, None)
            self._on_key(key)
            return
        observed = (
            str(meta.get("uid", "")),
            int(meta.get("generation", 0)),
            str(meta.get("deletionTimestamp", "")),
            _digest(meta.get("annotations") or {}),
        )
        if self._observed.get(key) != observed:
            self._observed[key] = observed
            self._on_key(key)


def _digest(annotations: Mapping[str, str]) -> bytes:
    return blake2b(msgspec.json.encode(dict(annotations), order="sorted"), digest_size=16).digest()


async def credentials(access: RestConfig, refused: int | None) -> Credentials:
    """Our own; asked for again by kopf after a 401, `refused` being the generation of those that got it.

    To be called in the loop that all other requests run in: the credentials' lock belongs to it.
    """
    if refused is not None:
        await access.reload(refused)
    return await access.authorization() or "", access.generation, access.request


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.watching.chunk_size = 500
    settings.queueing.idle_timeout = 0.5
    settings.persistence.finalizer = FINALIZER
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.persistence.progress_storage = _NoProgress()
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.process.ultimate_exiting_timeout = 25
    return settings


class _NoDiffBase(kopf.DiffBaseStorage):
    """kopf's last-handled annotation: never written."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


class _NoProgress(kopf.ProgressStorage):
    """kopf's progress annotations: never written."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence
