"""Writes the plan of a pass over one resource. The only writer.

before() brings the resource's tasks into the state that the spec asks for; after() deletes messages and makes
calls, once the status is stored.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Status
from caretaker.aws.identity import ClientKey
from caretaker.kube.errors import or_none
from caretaker.registry import S3_AGGREGATED_REFRESH
from caretaker.runtime.controller import Conflict
from caretaker.runtime.tasks import in_pieces
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh import queue_view, resource, timing
from caretaker.s3refresh.admission import QueueAccess, access_of, rank_of
from caretaker.s3refresh.concurrency import (
    GATEWAY_SECONDS,
    ConcurrencyLimiter,
    Demand,
    calls_of,
    waiting_of,
)
from caretaker.s3refresh.conditions import queue_of
from caretaker.s3refresh.debounce import TargetState
from caretaker.s3refresh.metrics import count
from caretaker.s3refresh.object_counts import Signer
from caretaker.s3refresh.resource import FINALIZER, ParsedRefresh, RawRefresh
from caretaker.s3refresh.shared import Dependencies, Shared
from caretaker.s3refresh.snapshot import Plan, Snapshot
from caretaker.s3refresh.target_types import target_type_of
from caretaker.s3refresh.targets import Tools, make, registry
from caretaker.s3refresh.targets.access_points import AccessPoints
from caretaker.s3refresh.targets.call_slots import CallSlots
from caretaker.s3refresh.targets.lookups import Lookups
from caretaker.s3refresh.worker import Worker

LISTED_AT_ONCE: Final = 50  # resources in one page: the status of one may take close to 1 MB


class Writer:
    """See the module."""

    def __init__(self, of: Dependencies, shared: Shared) -> None:
        self._of = of
        self._shared = shared
        self._lookups, self._call_slots = Lookups(), CallSlots()
        self._access_points = AccessPoints()
        self._recalled = asyncio.Event()  # set when the claims and calls of all resources are known
        self._recalling = asyncio.Lock()
        self._endings: set[asyncio.Task[None]] = set()

    # ---------------------------------------------------------------- before the status

    async def before(self, key: Key, snapshot: Snapshot, plan: Plan) -> None:
        """The finalizer ends the pass if it has to change. Then claims and slots, before anything is awaited:
        another resource must not take the same. Raises Conflict if a stop has begun and the plan has calls:
        none of them would be made, and the next pass plans none."""
        await self._keep_finalizer(key, snapshot)
        await self._recall()
        worker = self._shared.workers.get(key)
        if worker is not None and worker.uid != snapshot.read.meta.uid:  # another resource had this name
            self.forget(key)
        self._declare(key, snapshot)
        self._note(key, snapshot, plan)
        worker = await self._worker(key, snapshot.read.meta)
        await self._set_up(worker, snapshot)
        worker.memory.blocked_since = snapshot.blocked_since
        worker.memory.tracker.update(snapshot.plan_input.targets, snapshot.clock)
        if self._shared.stopping and plan.calls:
            raise Conflict("the operator stops")

    def _declare(self, key: Key, snapshot: Snapshot) -> None:
        """Raises Conflict if others have claimed or left its queues since the snapshot."""
        access = self._access(key, snapshot.read)
        if access.rejection != snapshot.setup.access:
            raise Conflict("the claims to its queues have changed")
        self._shared.claims.declare(key, access.claims, partial(self._of.add, key))
        if snapshot.setup.secret is not None:
            self._shared.key_ring.store(key, snapshot.setup.secret)

    def _access(self, key: Key, read: ParsedRefresh) -> QueueAccess:
        return access_of(key, read, self._of.grants, self._shared.claims)

    def _note(self, key: Key, snapshot: Snapshot, plan: Plan) -> None:
        inputs, clock = snapshot.plan_input, time.monotonic()
        shares = inputs.discovery.by_id if target_type_of(snapshot.read.spec).limit else {}
        known, worker = shares, self._shared.workers.get(key)
        if worker is not None:  # a refresh takes its turn even if its share is not looked up now
            names = {target.id for target in (*inputs.targets, *plan.targets)}
            every = {**worker.memory.shares, **shares}
            known = worker.memory.shares = {name: every[name] for name in names & every.keys()}
        busy = calls_of(plan.targets, known, snapshot.read.options.assume_after, inputs.now, clock)
        waiting = {} if inputs.suspended else waiting_of(plan, shares, inputs.now)
        wanting = {} if inputs.suspended else timing.wanting_of(plan.targets, shares)
        self._shared.limiter.note(key, Demand(busy, waiting, wanting), clock, partial(self._of.add, key))

    async def _keep_finalizer(self, key: Key, snapshot: Snapshot) -> None:
        """Our finalizer stands while spec.onDelete is Flush, and not otherwise. Raises Conflict after a
        change: the status can only be written to the version that the snapshot has."""
        meta, spec = snapshot.read.meta, snapshot.read.spec
        standing = meta.finalizers or []
        if spec is None or meta.deletion_timestamp is not None:
            return
        if (FINALIZER in standing) == (spec.on_delete == "Flush"):
            return
        wanted = [name for name in standing if name != FINALIZER]
        if spec.on_delete == "Flush":
            wanted.append(FINALIZER)
        # A webhook that takes the change back leaves the version: the resource goes on without it.
        if await self._set_finalizers(key, meta.resource_version, wanted) != meta.resource_version:
            raise Conflict("its finalizers have changed")

    async def _set_finalizers(self, key: Key, version: str, wanted: Sequence[str]) -> str:
        """The version of the resource after the write."""
        body = {"metadata": {"resourceVersion": version, "finalizers": list(wanted)}}
        url = S3_AGGREGATED_REFRESH.path(key.namespace, key.name)
        written = await self._of.client.patch(url, body, RawRefresh)
        return written.metadata.resource_version

    async def _recall(self) -> None:
        """Before the first worker begins: read from all resources which queues they claim, and when each file
        share may last have been called."""
        async with self._recalling:
            if self._recalled.is_set():
                return
            limiter, recalled = self._shared.limiter, self._recalled
            now, clock, types = time.time(), time.monotonic(), registry().spec

            def recorded(raw: RawRefresh) -> tuple[ParsedRefresh, tuple[TargetState, ...]]:
                read, meta = resource.read(raw, types), raw.metadata
                limiter.recall_lost(read.lost_at(now), GATEWAY_SECONDS, now, clock)
                if read.spec is not None:
                    signer = Signer.of(read.spec.aws, meta.namespace)
                    self._shared.counts.recall(meta.namespace, signer, read.status.cost, now)
                # Without the parts that may be large.
                kept = replace(read, meta=replace(meta, annotations=None), status=Status())
                return kept, resource.targets_of(read, now)

            every, _ = await self._of.client.list(
                S3_AGGREGATED_REFRESH.path(self._of.namespace),
                RawRefresh,
                each=recorded,
                page=LISTED_AT_ONCE,
            )
            for _, targets in every:
                limiter.recall(targets, GATEWAY_SECONDS, now, clock)
            # In this order each finds the claims of those that come before it.
            async for read in in_pieces(sorted((read for read, _ in every), key=rank_of)):
                key = Key(resource.KIND, read.meta.namespace, read.meta.name)
                self._shared.claims.declare(key, self._access(key, read).claims, partial(self._of.add, key))
                self._of.add(key)  # it may be gone meanwhile, and its claims with it
            recalled.set()

    async def _worker(self, key: Key, meta: WireMeta) -> Worker:
        worker = self._shared.workers.get(key)
        if worker is not None:
            return worker
        if self._endings:
            await asyncio.wait(self._endings)
        of, shared = self._of, self._shared
        made = Worker(meta, shared.queues, of.add, shared.limiter.called)
        shared.workers[key] = made
        return made

    async def _set_up(self, worker: Worker, snapshot: Snapshot) -> None:
        """Have the resource's tasks run as its spec says. Once a stop has begun, none begin any more."""
        setup, read, of = snapshot.setup, snapshot.read, self._of
        if read.spec is None or setup.config is None:
            if worker.config is not None:
                await worker.pause()
            return
        if worker.config != setup.config and not self._shared.stopping:
            shared = self._lookups, self._call_slots, self._access_points
            tools = Tools(of.aws, of.client, read.meta, setup.keys, of.egress_allow, *shared)
            sqs = of.aws.sqs(setup.config.source.target)
            await worker.begin(setup.config, sqs, make(read.spec, tools))
        if read.flushing:  # it still refreshes dirty targets
            await worker.receiver.pause(stopped=True)
        elif snapshot.plan_input.discovery.complete:  # perhaps by the record alone
            worker.receive()

    # ---------------------------------------------------------------- after the status

    async def after(self, key: Key, snapshot: Snapshot, plan: Plan, *, over: bool) -> None:
        """The status stands as planned: messages may go, calls may be made. `over`: the resource may go."""
        worker = self._shared.workers.get(key)
        if worker is None or worker.uid != snapshot.read.meta.uid:
            return
        clock = time.monotonic()
        taken = snapshot.plan_input
        self._shared.limiter.recorded(key)
        memory = worker.memory
        memory.tracker.record_events(plan.matches.found, snapshot.newest)
        memory.tracker.update(plan.targets, clock)
        memory.inherited = memory.inherited and not snapshot.queue.late
        worker.inspector.dead = queue_view.uncovered(queue_of(snapshot)) > 0
        worker.settle(plan, taken.results)
        self._count(key, snapshot)
        memory.matched = count(self._of.metrics, taken, plan, memory.matched)
        if over:
            await self._release(key)

    def _count(self, key: Key, snapshot: Snapshot) -> None:
        """Ask CloudWatch for the buckets that are due, now that this is on record."""
        spec, meta, due = snapshot.read.spec, snapshot.read.meta, snapshot.cost.due
        if spec is None or self._shared.stopping or not due:
            return
        keys, user = snapshot.setup.keys, resource.user_of(meta)
        clients = {
            region: self._of.aws.cloudwatch(
                ClientKey.of(spec.aws, "cloudwatch", keys, region=region, user=user)
            )
            for region, _ in due
        }
        signer = Signer.of(spec.aws, meta.namespace)
        self._shared.counts.ask(signer, clients, due, partial(self._of.add, key))

    async def _release(self, key: Key) -> None:
        """Take our finalizer off: the resource goes."""
        path = S3_AGGREGATED_REFRESH.path(key.namespace, key.name)
        raw: RawRefresh | None = await or_none(self._of.client.get(path, RawRefresh))
        if raw is not None and FINALIZER in (raw.metadata.finalizers or ()):
            kept = [name for name in raw.metadata.finalizers or () if name != FINALIZER]
            await self._set_finalizers(key, raw.metadata.resource_version, kept)

    # ---------------------------------------------------------------- life

    def forget(self, key: Key) -> None:
        """The resource is gone, or another one has its name."""
        self._shared.limiter.forget(key)
        self._shared.claims.drop(key)
        self._shared.key_ring.forget(key)
        self._of.metrics.forget(key.namespace, key.name)
        worker = self._shared.workers.pop(key, None)
        if worker is not None:
            ending = asyncio.create_task(worker.end())
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    def begin_no_call(self) -> None:
        """A stop is near. Calls that wait for a slot are not made, and no queue begins to be read."""
        self._shared.stopping = True
        for worker in self._shared.workers.values():
            worker.calls.stopping = True
        self._call_slots.close()

    async def stop(self) -> None:
        """Another process may lead from now on: nothing of this one's work counts any more."""
        shared = self._shared
        workers, shared.workers = list(shared.workers.values()), {}
        await asyncio.gather(*(worker.end() for worker in workers))
        await shared.queues.close()
        await shared.counts.stop()
        shared.claims.clear()
        self._of.metrics.clear()
        shared.limiter, self._recalled, shared.stopping = ConcurrencyLimiter(), asyncio.Event(), False
        self._call_slots = CallSlots()
