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
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from caretaker import __version__
from caretaker.aws.calls import Aws
from caretaker.aws.egress_check import EgressCheck
from caretaker.aws.services import scaled_rate
from caretaker.aws.session import Options
from caretaker.handlers import CustomResources
from caretaker.kube.authorizer import DelegatingAuthorizer
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.kube.metadata import RECURSION_LIMIT
from caretaker.kube.reflector import Reflector, ReflectorOptions
from caretaker.kube.store import Store
from caretaker.obs.looplag import LoopLag
from caretaker.obs.metrics import Metrics, create_metrics
from caretaker.obs.server import Check, ListenError, ObsServer
from caretaker.registry import KINDS, KindInfo
from caretaker.runtime.controller import Controller
from caretaker.runtime.events import EventRecorder
from caretaker.runtime.lease import Lease, LeaseTimes, NoLease
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


class App:
    """The operator; run() ends on SIGTERM or SIGINT. `scale`: factor on backoffs, floors and Lease times."""

    def __init__(self, settings: Settings, client: KubeClient, scale: float = 1.0) -> None:
        self._settings = settings
        self._scale = scale
        self._client = client
        self._metrics: Metrics = create_metrics(__version__)
        self._lag = LoopLag(self._metrics)
        self._relist_reasons: dict[str, str] = {}
        self._refusals: dict[str, str] = {}  # resource -> verb and resource that RBAC refuses
        self._queue = WorkQueue(backoff_scale=scale)
        self._metrics.queue_depth.set_function(lambda: len(self._queue))
        for info in settings.kinds:
            self._metrics.paused.labels(info.kind).set_function(partial(self._queue.paused, info.kind))
        self._denied: dict[str, asyncio.Event] = {}  # resource -> set while RBAC refuses its watch
        self._stores: dict[str, Store[Any]] = {}  # by resource: every one that a kind served watches
        wirings = [WIRINGS[info.kind] for info in settings.kinds]
        watches = {watch.resource: watch for wiring in wirings for watch in wiring.watches}
        self._reflectors = tuple(map(self._reflector, watches.values()))
        self._aws = self._make_aws()
        self._kinds = tuple(wiring.make(self._context(wiring)) for wiring in wirings)
        self._resources = CustomResources(client, settings.kinds, settings.namespace, self._queue.add, scale)
        self._controller = Controller(
            client,
            self._queue,
            self._kinds,
            EventRecorder(client, identity=settings.identity),
            self._metrics,
            self._resources.forget,
        )
        self._lease = self._make_lease()
        client.guard = self._aws.guard = self._lease.guard
        if settings.leader_elect:
            client.write_seconds *= scale  # a write must end before the Lease may
        client.observe = self._metrics.api_request
        client.permissions.on_change = self._permission
        self._leading: asyncio.Task[None] | None = None
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
            self._readiness(),
            authorize=DelegatingAuthorizer(self._client) if settings.metrics_authentication else None,
            metrics_every=self._scale,
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
            *(asyncio.create_task(r.run(), name=f"reflector-{r.resource}") for r in self._reflectors),
            asyncio.create_task(self._resources.run(), name="custom-resources"),
        ]
        lease = asyncio.create_task(self._lease.run(self._started, self._stopped), name="lease")
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

    async def _started(self) -> None:
        """The Lease is held: everything is read again before the first plan."""
        logger.info("leading")
        self._metrics.leader.set(1)
        self._leading = asyncio.create_task(self._lead(), name="leading")
        # Shielded: when the Lease goes, _stopped lets passes that have begun finish.
        await asyncio.shield(self._leading)

    async def _lead(self) -> None:
        await asyncio.gather(*(self._read_again(reflector) for reflector in self._reflectors))
        self._enqueue_all()
        await self._controller.run()

    async def _read_again(self, reflector: Reflector) -> None:  # type: ignore[type-arg]
        """A list that begins now. A refused one is not waited for: passes report that and do not plan."""
        listing = asyncio.create_task(reflector.relist())
        denied = asyncio.create_task(self._denied[reflector.resource].wait())
        try:
            await asyncio.wait([listing, denied], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(listing, denied)

    def _enqueue_all(self) -> None:
        for key in self._resources.known:
            self._queue.add(key)

    async def _stopped(self) -> None:
        """The Lease is lost, or about to be released."""
        self._metrics.leader.set(0)
        logger.info("not leading")
        await self._drain()

    async def _drain(self) -> None:
        if self._leading is not None:
            leading, self._leading = self._leading, None
            if self._controller.working:  # else everything is still being read: nothing has begun
                await asyncio.gather(*(kind.quiesce(DRAIN_SECONDS / 2) for kind in self._kinds))
                self._controller.stop()
                await asyncio.wait([leading], timeout=DRAIN_SECONDS)
            await cancel(leading)
        for kind in reversed(self._kinds):
            await kind.stop()
        self._metrics.not_leading()
        # The next leader shows its refusals. Watches go on here, and report theirs again.
        self._client.permissions.clear()

    def _context(self, wiring: Wiring) -> Context:
        return Context(
            client=self._client,
            aws=self._aws,
            stores=self._stores,
            queue=self._queue,
            metrics=self._metrics,
            settings=self._settings,
            unseen=partial(self._unseen, *(watch.resource for watch in wiring.watches)),
            scale=self._scale,
        )

    def _make_aws(self) -> Aws:
        settings, seconds = self._settings, Options()
        # A write must end before the Lease may.
        scale = self._scale if settings.leader_elect else 1.0
        made = Aws(
            Options(
                instance_identity=settings.aws_instance_identity,
                connect_seconds=seconds.connect_seconds * scale,
                read_seconds=seconds.read_seconds * scale,
                egress_check=EgressCheck(settings.egress_allow, urlsplit(self._client.host).hostname or ""),
                cluster=settings.cluster_name,
            ),
            rates={"ec2": scaled_rate("ec2", self._scale)},
        )
        made.observer = self._metrics.aws
        return made

    def _make_lease(self) -> Lease | NoLease:
        settings = self._settings
        if not settings.leader_elect:
            return NoLease()
        return Lease(
            self._client,
            (settings.operator_namespace, settings.lease_name),
            settings.identity,
            LeaseTimes().scaled(self._scale),
        )

    def _reflector(self, watch: Watch[Any]) -> Reflector[Any]:
        options = ReflectorOptions(denied=ReflectorOptions.denied * self._scale)
        resource, store = watch.resource, Store[Any]()
        path = watch.path(self._settings.namespace)
        reflector: Reflector[Any] = Reflector(
            self._client, path, watch.wire, store, label_selector=watch.selector, options=options
        )
        self._stores[resource] = store
        self._denied[resource] = asyncio.Event()
        reflector.on_state = lambda state, detail: self._reflector_state(resource, state, detail)
        reflector.on_event = lambda kind: self._reflector_event(resource, kind)
        self._metrics.watch_reflector(resource, lambda: time.monotonic() - store.last_contact)
        return reflector

    def _reflector_event(self, resource: str, kind: str) -> None:
        self._metrics.reflector_events.labels(resource).inc()
        if kind in ("EXPIRED", "STALLED", "ERROR"):
            self._relist_reasons[resource] = kind.lower()
        elif kind == "LIST":
            reason = self._relist_reasons.pop(resource, "start")
            self._metrics.reflector_relists.labels(resource, reason).inc()

    def _reflector_state(self, resource: str, state: str, detail: str) -> None:
        level = logging.INFO if state == "synced" else logging.WARNING
        logger.log(level, "watch of %s: %s%s", resource, state, f": {detail}" if detail else "")
        if state == "denied":
            self._refusals[resource] = detail
            self._denied[resource].set()
            self._enqueue_all()
        elif state == "synced":
            self._denied[resource].clear()
            # Passes that failed while the API server was away may have backed off for minutes.
            self._enqueue_all()

    def _unseen(self, *resources: str) -> ApiError | None:
        """The refusal of the first of these watches that RBAC denies, even if it fails otherwise since."""
        resource = next((name for name in resources if self._denied[name].is_set()), None)
        if resource is None:
            return None
        verb = self._refusals.get(resource, "list").partition(" ")[0]
        return ApiError(403, "Forbidden", f'the operator cannot {verb} resource "{resource}"')

    def _permission(self, verb: str, resource: str, missing: bool) -> None:
        if missing:
            logger.warning("permission missing: %s %s; grant it in the operator's role", verb, resource)
        self._metrics.permission(verb, resource, missing=missing)

    def _health(self) -> list[Check]:
        """Faults that a restart repairs. An unreachable API server is none of them."""
        limit = STUCK_SECONDS * self._scale
        watches = [(f"watch-{one.resource}", partial(_stuck, one, limit)) for one in self._reflectors]
        return [("loop", self._lag.check), *watches]

    def _readiness(self) -> list[Check]:
        def synced(store: Store) -> str | None:  # type: ignore[type-arg]
            return None if store.synced.is_set() else "not listed yet"

        return [(name, partial(synced, store)) for name, store in self._stores.items()]


def _stuck(reflector: Reflector, limit: float) -> str | None:  # type: ignore[type-arg]
    seconds = time.monotonic() - reflector.due
    return None if seconds < limit else f"it has been stuck for {seconds:.0f} s"


async def serve(settings: Settings, scale: float = 1.0) -> None:
    """`caretaker run`."""
    sys.setrecursionlimit(RECURSION_LIMIT)
    # Imported objects are never garbage. Frozen, they are left out of full collections, which block the loop:
    # two thirds of all objects of an operator with 20 resources.
    gc.collect()
    gc.freeze()
    client = await KubeClient.connect(settings.kubeconfig, settings.context, settings.namespace)
    await App(settings, client, scale).run()
