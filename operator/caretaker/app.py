"""Wiring and life cycle of `caretaker run`: http -> reflectors -> lease -> controller -> kopf, and back.

One process, one loop. A standby keeps its caches warm and decides nothing; with the Lease it lists again
before its first plan. SIGTERM: passes that have begun are finished, the Lease is released, all within 10 s.
"""

import asyncio
import gc
import importlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from caretaker import __version__
from caretaker.aws.calls import Aws
from caretaker.aws.connections import EgressCheck
from caretaker.aws.session import Options
from caretaker.handlers import CustomResources
from caretaker.kube.authorizer import DelegatingAuthorizer
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.kube.metadata import RECURSION_LIMIT
from caretaker.kube.reflector import Collection, Hooks, Reflector, ReflectorOptions
from caretaker.kube.store import Store
from caretaker.obs.looplag import LoopLag
from caretaker.obs.metrics import Metrics, create_metrics
from caretaker.obs.server import Check, ListenError, ObsServer
from caretaker.registry import KINDS, KindInfo
from caretaker.runtime.controller import Controller, Kind
from caretaker.runtime.events import EventRecorder
from caretaker.runtime.lease import Lease, NoLease
from caretaker.runtime.tasks import cancel
from caretaker.runtime.wiring import Context, Watch, Wiring
from caretaker.runtime.work_queue import WorkQueue
from caretaker.settings import Settings

logger = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 4.0  # with the Lease's release, kopf's thread and HTTP below the 10 s of a clean stop
STUCK_SECONDS: Final = 180.0  # well above the longest step of a reflector: 70 s, see ReflectorOptions


def _wiring_of(info: KindInfo) -> Wiring:
    wiring: Wiring = importlib.import_module(f"caretaker.{info.package}.wiring").WIRING
    return wiring


# By kind. Loaded with this module, so that serve() freezes their imports.
WIRINGS: Final = {info.kind: _wiring_of(info) for info in KINDS}


class WatchedResource:
    """A collection of the core API that kinds watch: its Store, the reflector that fills it, and the refusal
    while RBAC denies the watch. `on_change` is called when it is denied, and when it is synced."""

    def __init__(
        self,
        client: KubeClient,
        collection: Collection[Any],
        metrics: Metrics,
        options: ReflectorOptions,
        on_change: Callable[[], None],
    ) -> None:
        self.store = Store[Any]()
        self.reflector = Reflector(client, collection, self.store, Hooks(self._state, self._event), options)
        self._resource = collection.resource
        self._metrics = metrics
        self._on_change = on_change
        self._denied = asyncio.Event()
        self._refused = "list"  # the verb
        self._relist_reason = "start"
        metrics.watches.age.labels(self._resource).set_function(
            lambda: time.monotonic() - self.store.last_contact
        )

    async def read_again(self) -> None:
        """A list that begins now. A refused one is not waited for: passes report that and do not plan."""
        listing = asyncio.create_task(self.reflector.relist())
        denied = asyncio.create_task(self._denied.wait())
        try:
            await asyncio.wait([listing, denied], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(listing, denied)

    @property
    def refusal(self) -> ApiError | None:
        """RBAC's, even if the watch fails otherwise since."""
        message = f'the operator cannot {self._refused} resource "{self._resource}"'
        return ApiError(403, "Forbidden", message) if self._denied.is_set() else None

    def stuck(self, limit: float) -> str | None:
        """A fault that a restart repairs. An unreachable API server is none."""
        seconds = time.monotonic() - self.reflector.due
        return None if seconds < limit else f"it has been stuck for {seconds:.0f} s"

    def unlisted(self) -> str | None:
        """Why plans cannot begin."""
        return None if self.store.synced.is_set() else "not listed yet"

    def _event(self, kind: str) -> None:
        self._metrics.watches.events.labels(self._resource).inc()
        if kind in ("EXPIRED", "STALLED", "ERROR"):
            self._relist_reason = kind.lower()
        elif kind == "LIST":
            self._metrics.watches.relists.labels(self._resource, self._relist_reason).inc()
            self._relist_reason = "start"

    def _state(self, state: str, detail: str) -> None:
        level = logging.INFO if state == "synced" else logging.WARNING
        logger.log(level, "watch of %s: %s%s", self._resource, state, f": {detail}" if detail else "")
        if state == "denied":
            self._refused = detail.partition(" ")[0]
            self._denied.set()
            self._on_change()
        elif state == "synced":
            self._denied.clear()
            # Passes that failed while the API server was away may have backed off for minutes.
            self._on_change()


class Leadership:
    """The work of the process while it holds the Lease."""

    def __init__(
        self,
        controller: Controller,
        kinds: Sequence[Kind[Any, Any, Any]],
        watched: Sequence[WatchedResource],
        resources: CustomResources,
        metrics: Metrics,
    ) -> None:
        self._controller = controller
        self._kinds = kinds
        self._watched = watched
        self._resources = resources
        self._metrics = metrics
        self._task: asyncio.Task[None] | None = None

    async def started(self) -> None:
        """The Lease is held: everything is read again before the first plan."""
        logger.info("leading")
        self._metrics.leader.set(1)
        self._task = asyncio.create_task(self._lead(), name="leading")
        # Shielded: when the Lease goes, stopped() lets passes that have begun finish.
        await asyncio.shield(self._task)

    async def _lead(self) -> None:
        await asyncio.gather(*(one.read_again() for one in self._watched))
        self._resources.enqueue_all()
        await self._controller.run()

    async def stopped(self) -> None:
        """The Lease is lost, or about to be released."""
        self._metrics.leader.set(0)
        logger.info("not leading")
        if self._task is not None:
            leading, self._task = self._task, None
            if self._controller.working:  # else everything is still being read: nothing has begun
                await asyncio.gather(*(kind.quiesce(DRAIN_SECONDS / 2) for kind in self._kinds))
                self._controller.stop()
                await asyncio.wait([leading], timeout=DRAIN_SECONDS)
            await cancel(leading)
        for kind in reversed(self._kinds):
            await kind.stop()
        self._metrics.resources.clear()


class App:
    """The operator; run() ends on SIGTERM or SIGINT."""

    def __init__(self, settings: Settings, client: KubeClient) -> None:
        self._settings = settings
        self._client = client
        self._metrics: Metrics = create_metrics(__version__)
        self._lag = LoopLag(self._metrics)
        self._queue = WorkQueue()
        self._metrics.passes.queue_depth.set_function(lambda: len(self._queue))
        for info in settings.kinds:
            self._metrics.passes.paused.labels(info.kind).set_function(partial(self._queue.paused, info.kind))
        self._resources = CustomResources(client, settings.kinds, settings.namespace, self._queue.add)
        wirings = [WIRINGS[info.kind] for info in settings.kinds]
        watches = {watch.resource: watch for wiring in wirings for watch in wiring.watches}
        self._watched = {name: self._watch(watch) for name, watch in watches.items()}
        self._aws = self._make_aws()
        kinds = tuple(wiring.make(self._context(wiring)) for wiring in wirings)
        controller = Controller(
            client,
            self._queue,
            kinds,
            EventRecorder(client, identity=settings.identity),
            self._metrics,
            self._resources.forget,
        )
        self._leadership = Leadership(
            controller, kinds, tuple(self._watched.values()), self._resources, self._metrics
        )
        self._lease = self._make_lease()
        client.guard = self._aws.hooks.guard = self._lease.guard
        client.observe = self._metrics.api.request
        client.permissions.on_change = self._permission
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Until a signal; then everything is undone in reverse."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        settings = self._settings
        server = ObsServer(
            self._metrics.registry,
            self._health(),
            [(name, one.unlisted) for name, one in self._watched.items()],
            authorize=DelegatingAuthorizer(self._client) if settings.metrics_authentication else None,
        )
        try:
            bound = await server.start(settings.bind_host, settings.metrics_port, settings.health_port)
        except ListenError:
            await self._client.close()
            raise
        logger.info(
            "ready",
            extra={
                "version": __version__,
                "metrics_port": bound.metrics_port,
                "health_port": bound.health_port,
                "api_server": self._client.host,
            },
        )
        tasks = [
            asyncio.create_task(self._lag.run(), name="loop-lag"),
            *(
                asyncio.create_task(one.reflector.run(), name=f"reflector-{name}")
                for name, one in self._watched.items()
            ),
            asyncio.create_task(self._resources.run(), name="custom-resources"),
        ]
        lease = asyncio.create_task(self._lease.run(self._leadership.started, self._stopped), name="lease")
        try:
            await self._wait([*tasks, lease])
        finally:
            started = time.monotonic()
            await cancel(lease)  # drains, then releases the Lease: a standby takes over at once
            await cancel(*tasks)
            await self._resources.stop(2.0)
            await server.stop()
            await self._aws.close()
            await self._client.close()
            logger.info("stopped", extra={"seconds": round(time.monotonic() - started, 2)})

    async def _wait(self, tasks: list[asyncio.Task[None]]) -> None:
        """Until a signal, or until a task that never ends has ended: then the Pod is better restarted."""
        stopping = asyncio.create_task(self._stopping.wait())
        done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task in done - {stopping}:
            raise RuntimeError(f"{task.get_name()} ended") from task.exception()

    async def _stopped(self) -> None:
        await self._leadership.stopped()
        # The next leader shows its refusals. Watches go on here, and report theirs again.
        self._client.permissions.clear()

    def _watch(self, watch: Watch[Any]) -> WatchedResource:
        collection = watch.collection(self._settings.namespace)
        on_change = self._resources.enqueue_all
        return WatchedResource(self._client, collection, self._metrics, ReflectorOptions(), on_change)

    def _context(self, wiring: Wiring) -> Context:
        return Context(
            client=self._client,
            aws=self._aws,
            stores={name: one.store for name, one in self._watched.items()},
            queue=self._queue,
            metrics=self._metrics,
            settings=self._settings,
            unseen=partial(_refusal, [self._watched[watch.resource] for watch in wiring.watches]),
        )

    def _make_aws(self) -> Aws:
        settings = self._settings
        made = Aws(
            Options(
                instance_identity=settings.aws_instance_identity,
                egress_check=EgressCheck(settings.egress_allow, urlsplit(self._client.host).hostname or ""),
                cluster=settings.cluster_name,
            )
        )
        made.hooks.observer = self._metrics.aws
        return made

    def _make_lease(self) -> Lease | NoLease:
        settings = self._settings
        if not settings.leader_elect:
            return NoLease()
        return Lease(self._client, (settings.operator_namespace, settings.lease_name), settings.identity)

    def _permission(self, verb: str, resource: str, missing: bool) -> None:
        if missing:
            logger.warning("permission missing: %s %s; grant it in the operator's role", verb, resource)
        self._metrics.api.permission(verb, resource, missing=missing)

    def _health(self) -> list[Check]:
        stuck = ((f"watch-{name}", partial(one.stuck, STUCK_SECONDS)) for name, one in self._watched.items())
        return [("loop", self._lag.check), *stuck]


def _refusal(watched: Sequence[WatchedResource]) -> ApiError | None:
    """Of the first of these watches that RBAC denies."""
    return next((one.refusal for one in watched if one.refusal is not None), None)


async def serve(settings: Settings) -> None:
    """`caretaker run`."""
    sys.setrecursionlimit(RECURSION_LIMIT)
    # Imported objects are never garbage. Frozen, they are left out of full collections, which block the loop:
    # two thirds of all objects of an operator with 20 resources.
    gc.collect()
    gc.freeze()
    client = await KubeClient.connect(settings.kubeconfig, settings.context, settings.namespace)
    await App(settings, client).run()
