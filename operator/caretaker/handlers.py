"""kopf, for the custom resources only: events become keys, nothing else happens here.

kopf runs in a thread and a loop of its own, because it cancels every task started after it and ends on
any in-stream error but 410; here it is started again with backoff. It writes nothing: no annotations, no
finalizers, no events. A first start without the CRDs says so in one line and waits.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import kopf
import msgspec

from caretaker.api.names import API_VERSION, GROUP, VERSION
from caretaker.kube.access import Access
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.registry import KindInfo
from caretaker.runtime.queue import Key

logger = logging.getLogger(__name__)

DISCOVERY_SECONDS: Final = (1.0, 2.0, 5.0, 10.0)
BACKOFF_SECONDS: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
HEALTHY_SECONDS: Final = 60.0  # a watch that lasted so long starts the backoff anew
FINALIZER: Final = f"{GROUP}/finalizer"


class _Nothing(msgspec.Struct):
    """An object of which nothing is read."""


Seen = tuple[str, int, str, bytes]


class CustomResources:
    """Watches the kinds and calls `on_key` in the caller's loop for every change that is not our own.

    `known` holds the keys that exist as far as is known; a deletion that was missed is found by the pass
    that reads the resource.
    """

    def __init__(
        self,
        client: KubeClient,
        kinds: Iterable[KindInfo],
        namespace: str | None,
        on_key: Callable[[Key], None],
    ) -> None:
        self._client = client
        self._kinds = tuple(kinds)
        self._namespace = namespace
        self._on_key = on_key
        self._seen: dict[Key, Seen] = {}
        self._stop = threading.Event()
        self._halt: Callable[[], None] = lambda: None  # from any thread: ask the running kopf to end
        self._thread: threading.Thread | None = None

    @property
    def known(self) -> tuple[Key, ...]:
        """Keys that exist as far as is known."""
        return tuple(self._seen)

    def forget(self, key: Key) -> None:
        """The resource is gone."""
        self._seen.pop(key, None)

    async def run(self) -> None:
        """Until cancelled; stop() must follow, since a thread cannot be cancelled."""
        attempt = 0
        while True:
            await self._wait_for_kinds()
            started = time.monotonic()
            ended = await self._one_watch()
            if time.monotonic() - started > HEALTHY_SECONDS:
                attempt = 0
            for key in self.known:  # what was deleted meanwhile is found by reading it
                self._on_key(key)
            delay = BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)]
            attempt += 1
            logger.warning("the watch of custom resources ended (%s); again in %.0f s", ended, delay)
            await asyncio.sleep(delay)

    async def stop(self, timeout: float = 5.0) -> None:
        """Ask kopf to end and wait for its thread."""
        self._stop.set()
        self._halt()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, timeout)

    async def _wait_for_kinds(self) -> None:
        told, attempt = "", 0
        while True:
            try:
                problem = await self._missing()
            except Exception as error:  # noqa: BLE001 - a proxy's web page, say; it is told and tried again
                problem = f"discovery failed: {type(error).__name__}: {error}"
            if not problem:
                return
            if problem != told:
                logger.warning("%s; waiting for it", problem)
                told = problem
            await asyncio.sleep(DISCOVERY_SECONDS[min(attempt, len(DISCOVERY_SECONDS) - 1)])
            attempt += 1

    async def _missing(self) -> str:
        try:
            found = await self._client.get(f"/apis/{API_VERSION}")
        except ApiError as error:
            if error.not_found:
                return f"no {API_VERSION} in this cluster: kubectl apply -f crds/"
            return f"discovery failed: {error}"
        plurals = {resource.get("name") for resource in found.get("resources", ())}
        absent = [kind.plural for kind in self._kinds if kind.plural not in plurals]
        if absent:
            return f"CRD missing: {', '.join(absent)}: kubectl apply -f crds/"
        return await self._refused()

    async def _refused(self) -> str:
        """Why the kinds cannot be listed: kopf would go on for a minute of tracebacks before it ends."""
        scope = f"/namespaces/{self._namespace}" if self._namespace else ""
        try:
            for kind in self._kinds:
                await self._client.list(f"/apis/{API_VERSION}{scope}/{kind.plural}", _Nothing)
        except ApiError as error:
            return f"{error}"
        return ""

    async def _one_watch(self) -> str:
        """Runs kopf in a thread until it ends; returns why."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()

        def tell(reason: str) -> None:
            if not ended.done():
                ended.set_result(reason)

        def main() -> None:
            try:
                asyncio.run(self._operator(loop))
                reason = "kopf ended"
            except Exception as error:  # noqa: BLE001 - kopf ends on errors of every kind
                reason = f"{type(error).__name__}: {error}"
            if not loop.is_closed():
                loop.call_soon_threadsafe(tell, reason)

        self._thread = threading.Thread(target=main, name="kopf", daemon=True)
        self._thread.start()
        return await ended

    async def _operator(self, loop: asyncio.AbstractEventLoop) -> None:
        # Not the threading.Event itself: kopf waits for that in an executor's thread, which outlives kopf and
        # keeps asyncio.run() from returning, so that a kopf that failed would never be started again.
        own, stop = asyncio.get_running_loop(), asyncio.Event()

        def halt() -> None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself, and its loop is closed
                own.call_soon_threadsafe(stop.set)

        self._halt = halt
        if self._stop.is_set():
            return
        await kopf.operator(
            registry=self._registry(loop),
            settings=_settings(),
            standalone=True,
            stop_flag=stop,
            clusterwide=self._namespace is None,
            namespaces=[self._namespace] if self._namespace else [],
        )

    def _registry(self, loop: asyncio.AbstractEventLoop) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.ConnectionInfo:
            # In the loop that all other requests run in: the credentials' lock belongs to it.
            asked = asyncio.run_coroutine_threadsafe(connection(self._client.access), loop)
            return await asyncio.wrap_future(asked)

        for info in self._kinds:

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
            self._seen.pop(key, None)
            self._on_key(key)
            return
        seen = (
            str(meta.get("uid", "")),
            int(meta.get("generation", 0)),
            str(meta.get("deletionTimestamp", "")),
            msgspec.json.encode(dict(meta.get("annotations") or {}), order="sorted"),
        )
        if self._seen.get(key) != seen:
            self._seen[key] = seen
            self._on_key(key)


async def connection(access: Access) -> kopf.ConnectionInfo:
    """Our own credentials, as kopf takes them; asked for again by kopf after a 401."""
    configuration = access.configuration
    scheme, _, token = (await access.authorization() or "").partition(" ")
    return kopf.ConnectionInfo(
        server=access.host,
        ca_path=configuration.ssl_ca_cert or None,
        ca_data=None if configuration.ssl_ca_cert else configuration.ca_cert_data or None,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file or None,
        private_key_path=configuration.key_file or None,
        default_namespace=access.namespace,
    )


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
