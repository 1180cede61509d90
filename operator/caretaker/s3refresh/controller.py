"""S3AggregatedRefresh in the loop: gathers a snapshot, and acts once its status is stored.

Thin: no decision is made here. Messages and results are taken before the resource is read, so that the read
proves whether they are on record. after() deletes messages and makes calls, once the status is stored.
"""

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Final

from caretaker.api import names
from caretaker.api.conditions import RefreshReason as Reason
from caretaker.api.events import Event, ObjectRef
from caretaker.api.grants import Grants
from caretaker.api.s3refresh import Filter, Status
from caretaker.aws.calls import Aws
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import or_none
from caretaker.obs.metrics import Metrics
from caretaker.runtime.controller import Kind, Next, Subject
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh import plan as planning
from caretaker.s3refresh import queue_view, resource, status_codec, timing
from caretaker.s3refresh.admission import Admission
from caretaker.s3refresh.arrivals import Arrivals
from caretaker.s3refresh.concurrency import ConcurrencyLimiter, busy_of, waiting_of
from caretaker.s3refresh.conditions import queue_of, regained
from caretaker.s3refresh.credentials import KeyRing, max_age
from caretaker.s3refresh.debounce import UNKNOWN
from caretaker.s3refresh.events import given_up, transitions
from caretaker.s3refresh.locations import located
from caretaker.s3refresh.metrics import observe
from caretaker.s3refresh.options import at_once
from caretaker.s3refresh.queues import Queues
from caretaker.s3refresh.resource import FINALIZER, KIND, RawRefresh, Read
from caretaker.s3refresh.snapshot import Plan, PlanInput, Rejection, Snapshot
from caretaker.s3refresh.status import status_of
from caretaker.s3refresh.target_types import target_type_of
from caretaker.s3refresh.targets import Tools
from caretaker.s3refresh.targets.factory import make, registry
from caretaker.s3refresh.targets.lookups import Lookups
from caretaker.s3refresh.worker import Worker
from caretaker.s3refresh.worker_config import worker_config_of

MIN_DELAY: Final = 0.02
# Between two looks of a target that is due and waits for a slot at a gateway.
SLOT_SECONDS: Final = 5.0
# How long the deletion of a resource with onDelete: Flush waits while no refresh can be called.
FLUSH_SECONDS: Final = 300.0
# A gateway ignores a refresh that it accepts within this time of another refresh of the same share.
GATEWAY_SECONDS: Final = 60.0
LISTED_AT_ONCE: Final = 50  # resources in one page: the status of one may take close to 1 MB
NO_FILTER: Final = Filter()


class S3AggregatedRefreshKind(Kind[Snapshot, Plan, None]):
    """runtime.controller.Kind for S3AggregatedRefreshes. `add` asks for a pass, at once if urgent.

    namespace  the only namespace that is served; empty = all
    """

    kind = KIND
    stopped: Collection[str] = ()
    namespace = ""

    def __init__(
        self,
        client: KubeClient,
        aws: Aws,
        grants: Grants,
        metrics: Metrics,
        add: Callable[..., None],
        owner: str,
        egress_allow: Collection[str] = (),
        scale: float = 1.0,
    ) -> None:
        self._client = client
        self._aws = aws
        self._metrics = metrics
        self._add = add
        self._owner = owner
        self._egress_allow = egress_allow
        self._scale = scale
        self._admission = Admission(grants)
        self._queues = Queues(aws, self._admission.owner_absent)
        self._limiter = ConcurrencyLimiter()
        self._recalled = asyncio.Event()  # set when the limiter knows the calls of former leaders
        self._recalling = asyncio.Lock()
        self._key_ring = KeyRing(client, add)
        self._lookups = Lookups()
        self._workers: dict[Key, Worker] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._stopping = False  # no further call is begun

    # ---------------------------------------------------------------- life

    def forget(self, key: Key) -> None:
        """The resource is gone."""
        self._limiter.forget(key)
        self._admission.forget(key)
        self._key_ring.forget(key)
        self._metrics.s3refresh.forget(key.namespace, key.name)
        worker = self._workers.pop(key, None)
        if worker is not None:
            ending = asyncio.create_task(worker.end())
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def quiesce(self, patience: float) -> None:
        """A stop is near: receive nothing more, have the calls under way answered and that written."""
        self._stopping = True
        workers = list(self._workers.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await asyncio.gather(*(worker.quiesce() for worker in workers))

    async def stop(self) -> None:
        """Another process may lead from now on: nothing of this one's work counts any more."""
        workers, self._workers = list(self._workers.values()), {}
        await asyncio.gather(*(worker.end() for worker in workers))
        await self._queues.close()
        self._admission.clear()
        self._metrics.s3refresh.clear()
        self._limiter, self._recalled, self._stopping = ConcurrencyLimiter(), asyncio.Event(), False

    # ---------------------------------------------------------------- gather

    async def gather(self, key: Key) -> Snapshot | None:
        """Messages and results first, then the resource: the record that is read is no older than their
        arrival."""
        worker = self._workers.get(key)
        came = Arrivals.of(worker)
        await self._recall()
        raw = await self._read(key)
        if raw is None:
            return None
        read = resource.read(raw, registry().spec, self._scale)
        if worker is None or worker.uid != read.meta.uid:
            if worker is not None:
                self.forget(key)
                await asyncio.gather(*self._endings)
            worker = self._workers[key] = Worker(
                key, read.meta.uid, self._queues, lambda: self._add(key), self._scale
            )
            worker.on_result = lambda: self._add(key, urgent=True)
            came = Arrivals()
        rejection = await self._set_up(key, worker, read)
        discovery = located(worker.discovery, {one.id: one.location for one in read.status.targets})
        return self._snapshot(key, worker, read, await came.with_matches(read.spec, discovery), rejection)

    async def _recall(self) -> None:
        """Before the first pass: read from all resources when each file share may last have been called."""
        async with self._recalling:
            if self._recalled.is_set():
                return
            limiter, recalled, now, clock = self._limiter, self._recalled, time.time(), time.monotonic()
            every, _ = await self._client.list(
                resource.refresh_path(self.namespace),
                RawRefresh,
                each=lambda raw: resource.targets_of(raw, now),
                page=LISTED_AT_ONCE,
            )
            for targets in every:
                limiter.recall(targets, GATEWAY_SECONDS * self._scale, now, clock)
            recalled.set()

    async def _read(self, key: Key) -> RawRefresh | None:
        """The resource; None when it is gone, or going with nothing left to flush."""
        raw: RawRefresh | None = await or_none(self._client.get(self.path(key), RawRefresh))
        if raw is None:
            return None
        meta = raw.metadata
        if meta.deletion_timestamp is not None:
            return raw if FINALIZER in (meta.finalizers or ()) else None
        return await self._with_finalizer(key, raw)

    async def _with_finalizer(self, key: Key, raw: RawRefresh) -> RawRefresh:
        """The resource, with our finalizer while spec.onDelete is Flush and without it otherwise."""
        spec = resource.read(raw, registry().spec).spec
        if spec is None:
            return raw
        standing = raw.metadata.finalizers or []
        if (FINALIZER in standing) == (spec.on_delete == "Flush"):
            return raw
        wanted = [name for name in standing if name != FINALIZER]
        if spec.on_delete == "Flush":
            wanted.append(FINALIZER)
        return await self._set_finalizers(key, raw.metadata.resource_version, wanted)

    async def _set_finalizers(self, key: Key, version: str, wanted: Sequence[str]) -> RawRefresh:
        body = {"metadata": {"resourceVersion": version, "finalizers": list(wanted)}}
        return await self._client.patch(self.path(key), body, RawRefresh)

    async def _set_up(self, key: Key, worker: Worker, read: Read) -> Rejection | None:
        """Have the resource's tasks run as its spec says; why they do not."""
        spec, rejection, keys = read.spec, self._admission.refused(key, read, lambda: self._add(key)), None
        if read.flushing and rejection is not None and rejection.reason == Reason.QUEUE_CONFLICT:
            rejection = None  # a flush reads no queue
        if rejection is None and spec is not None and spec.aws.secret_name:
            age = max_age(doubted=worker.problem is not None, flushing=read.flushing) * self._scale
            found = await self._key_ring.get(key, spec.aws.secret_name, age)
            rejection, keys = (found, None) if isinstance(found, Rejection) else (None, found)
        if spec is None or rejection is not None or not read.active:
            if worker.config is not None:
                await worker.pause()
            return rejection
        config = worker_config_of(spec, keys, resource.user_of(read.meta))
        if worker.config != config:
            tools = Tools(self._aws, self._client, read.meta, keys, self._egress_allow, self._lookups)
            await worker.begin(config, self._aws.sqs(config.source.target), make(spec, tools))
        if read.flushing:  # it still refreshes dirty targets
            await worker.stop_receiving()
        return None

    def _snapshot(
        self, key: Key, worker: Worker, read: Read, came: Arrivals, rejection: Rejection | None
    ) -> Snapshot:
        now, clock = time.time(), time.monotonic()
        spec, status, target_type = read.spec, read.status, target_type_of(read.spec)
        targets = tuple(status_codec.decode(one, now) for one in status.targets)
        shares = {share.id: share for share in came.discovery.shares}
        busy = busy_of(targets, shares, read.options.assume_after, now)
        groups = {share.group for share in shares.values()} if target_type.limit else set()
        problem = worker.problem
        count, fault = worker.malformed(clock)
        blocked = rejection.message if rejection is not None else worker.discovery.blocked
        worker.block(read.flushing and bool(blocked), clock)
        return Snapshot(
            read=read,
            rejection=rejection,
            queue=worker.queue,
            problem=worker.complaint,
            code=str(problem.error_class) if problem is not None else "",
            polling=worker.polling,
            behind=worker.behind,
            blocked=blocked,
            flush_remaining=worker.blocked_since + FLUSH_SECONDS * self._scale - clock,
            reading=worker.reading,
            newest=came.newest,
            more=came.more,
            malformed=count,
            fault=fault,
            plan_input=PlanInput(
                targets=targets,
                first=read.first,
                discovery=came.discovery,
                filter=spec.filter if spec is not None else NO_FILTER,
                options=at_once(read.options) if read.flushing else read.options,
                owner=self._owner,
                pass_id=uuid.uuid4().hex,
                now=now,
                malformed=spec.source.sqs.malformed if spec is not None else "DeadLetter",
                whole=target_type.whole,
                suspended=rejection is not None or not read.active or self._stopping,
                resync_on_start=spec.resync.on_start if spec is not None else False,
                expired=regained(status, rejection)
                or (
                    worker.reading
                    and (
                        queue_view.unread(worker.queue, status.queue, now)
                        or (worker.inherited and queue_view.died(worker.queue, status.queue))
                    )
                ),
                messages=came.messages,
                matches=came.matches,
                results=came.results,
                ends=came.ends,
                idempotent=target_type.idempotent,
                running=worker.running,
                received=max(clock - came.newest, 0.0),
                times=worker.tracker.update(targets, clock),
                held=self._limiter.held(shares.values(), GATEWAY_SECONDS * self._scale, clock),
                free=self._limiter.free(key, busy, groups, target_type.limit, clock),
                rivals=self._limiter.rivals(key, groups),
                limit=target_type.limit,
                jitter=random.random(),
            ),
        )

    # ---------------------------------------------------------------- the rest of a pass

    def plan(self, snapshot: Snapshot) -> Plan:
        """See plan.py. Without a spec there is nothing to go by."""
        return Plan() if snapshot.read.spec is None else planning.plan(snapshot.plan_input)

    async def recheck(self, snapshot: Snapshot, plan: Plan) -> Snapshot | None:
        """The resource was read from etcd, and the status is written on condition. Only the limiter is
        informed now, before anything is awaited: another resource must not take the same slots."""
        key = _key(snapshot)
        discovered = snapshot.plan_input.discovery.shares if target_type_of(snapshot.read.spec).limit else ()
        shares = {share.id: share for share in discovered}
        busy = busy_of(plan.targets, shares, snapshot.read.options.assume_after, snapshot.plan_input.now)
        waiting = {} if snapshot.plan_input.suspended else waiting_of(plan, shares, snapshot.plan_input.now)
        wanting = {} if snapshot.plan_input.suspended else timing.wanting_of(plan.targets, shares)
        self._limiter.note(key, busy, waiting, wanting, time.monotonic(), lambda: self._add(key))
        return None

    async def before(self, snapshot: Snapshot, plan: Plan) -> None:
        """Nothing: the status is the record, see after()."""

    async def after(self, snapshot: Snapshot, plan: Plan, outcome: None) -> None:  # noqa: ARG002 - see the Protocol
        """The status stands as planned: messages may go, calls may be made."""
        key = _key(snapshot)
        worker = self._workers.get(key)
        if worker is None or worker.uid != snapshot.read.meta.uid:
            return
        clock = time.monotonic()
        taken = snapshot.plan_input
        self._limiter.recorded(key)
        worker.tracker.record_events(plan.with_events, snapshot.newest)
        worker.tracker.update(plan.targets, clock)
        worker.inherited = worker.inherited and not snapshot.queue.late
        worker.dead = queue_view.uncovered(queue_of(snapshot)) > 0
        worker.settle(plan, taken.results)
        worker.launch(plan.calls)
        if target_type_of(snapshot.read.spec).limit:
            self._called(plan, taken, clock)
        worker.set_in_flight(t.in_flight.notification_id for t in plan.targets if t.in_flight is not None)
        name = (key.namespace, key.name)
        worker.matched = observe(self._metrics.s3refresh, name, taken, plan, worker.matched)
        if (seen := snapshot.queue).checked:
            self._metrics.s3refresh.messages(name, seen.visible, seen.in_flight, seen.dead_letters or 0)
        if snapshot.read.flushing and (_flushed(snapshot, plan) or snapshot.flush_remaining <= 0):
            kept = [name for name in snapshot.read.meta.finalizers or () if name != FINALIZER]
            raw = await self._read(key)
            if raw is not None:
                await self._set_finalizers(key, raw.metadata.resource_version, kept)

    def _called(self, plan: Plan, taken: PlanInput, clock: float) -> None:
        """Record each call twice: when it is made, and when it may have been accepted."""
        accepted = [one.target for one in taken.results if one.code in ("", UNKNOWN)]
        for name in (*accepted, *(share.id for share, _ in plan.calls)):
            self._limiter.called(name, clock)

    def path(self, key: Key) -> str:
        """See resource.py."""
        return resource.refresh_path(key.namespace, key.name)

    def subject(self, snapshot: Snapshot) -> Subject:
        """The resource."""
        meta = snapshot.read.meta
        return Subject(
            ref=ObjectRef(names.API_VERSION, KIND, meta.namespace, meta.name, meta.uid),
            path=self.path(_key(snapshot)),
            resource_version=meta.resource_version,
            status=snapshot.read.status,
        )

    def status(self, snapshot: Snapshot, plan: Plan, outcome: None) -> Status:  # noqa: ARG002 - as above
        """See status.py."""
        return status_of(snapshot, plan)

    def events(self, snapshot: Snapshot, plan: Plan, status: Status) -> Sequence[Event]:
        """See events.py."""
        found = transitions(snapshot.read.status, status, expired=snapshot.plan_input.expired)
        over = snapshot.read.flushing and snapshot.flush_remaining <= 0
        if over and not _flushed(snapshot, plan):
            found.append(given_up(snapshot.blocked))
        return found

    def requeue(self, snapshot: Snapshot, plan: Plan, outcome: None) -> Next:  # noqa: ARG002 - as above
        """At the plan's time; soon while something due waits for a slot."""
        now = time.time()
        delays = [max(plan.wake - now, MIN_DELAY)] if plan.wake else []
        if snapshot.read.flushing and snapshot.blocked:
            delays.append(max(snapshot.flush_remaining, MIN_DELAY))
        shares = {share.id: share for share in snapshot.plan_input.discovery.shares}
        if not snapshot.plan_input.suspended and waiting_of(plan, shares, snapshot.plan_input.now):
            delays.append(SLOT_SECONDS * self._scale)
        if snapshot.more:
            delays.append(MIN_DELAY)
        return Next(delay=min(delays, default=None))


def _flushed(snapshot: Snapshot, plan: Plan) -> bool:
    """Whether the resource may go. A gateway finishes accepted refreshes by itself; a Job goes with its
    owner, so its end is waited for."""
    ends, discovery = target_type_of(snapshot.read.spec).idempotent, snapshot.plan_input.discovery
    there = {share.id for share in discovery.shares}
    left = [
        t for t in plan.targets if t.id in there or not discovery.complete
    ]  # a target that is gone is never refreshed
    return not any(t.dirty or t.claim or (ends and t.in_flight) for t in left)


def _key(snapshot: Snapshot) -> Key:
    return Key(KIND, snapshot.read.meta.namespace, snapshot.read.meta.name)
