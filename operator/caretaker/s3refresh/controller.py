"""S3AggregatedRefresh in the loop. It makes no decision, reads in gather.py and writes in apply.py.

after() deletes messages and makes calls, once the status is stored.
"""

import asyncio
import contextlib
import time
from collections.abc import Collection, Sequence
from typing import Final

from caretaker.api.conditions import Event
from caretaker.api.s3refresh import Status
from caretaker.runtime.controller import Kind, Next, Subject
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh import plan as planning
from caretaker.s3refresh.apply import Writer
from caretaker.s3refresh.concurrency import waiting_of
from caretaker.s3refresh.gather import Reader
from caretaker.s3refresh.metrics import show
from caretaker.s3refresh.resource import KIND
from caretaker.s3refresh.shared import Dependencies, Shared
from caretaker.s3refresh.snapshot import Plan, Snapshot
from caretaker.s3refresh.status import given_up, status_of, transitions
from caretaker.s3refresh.target_types import target_type_of

MIN_DELAY: Final = 0.02
# Between two looks of a target that is due and waits for a slot at a gateway.
SLOT_SECONDS: Final = 5.0


class S3AggregatedRefreshKind(Kind[Snapshot, Plan, None]):
    """runtime.controller.Kind for S3AggregatedRefreshes."""

    kind = KIND
    stopped: Collection[str] = ()

    def __init__(self, of: Dependencies) -> None:
        self._metrics = of.metrics
        self._shared = Shared(of)
        self._reader = Reader(of, self._shared)
        self._writer = Writer(of, self._shared)

    # ---------------------------------------------------------------- life

    def forget(self, key: Key) -> None:
        """The resource is gone."""
        self._writer.forget(key)

    async def quiesce(self, patience: float) -> None:
        """A stop is near: receive nothing more, have the calls under way answered and that written."""
        self._writer.begin_no_call()
        workers = list(self._shared.workers.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await asyncio.gather(*(worker.quiesce() for worker in workers))

    async def stop(self) -> None:
        """See apply.py."""
        await self._writer.stop()

    # ---------------------------------------------------------------- a pass

    async def gather(self, key: Key) -> Snapshot | None:
        """See gather.py."""
        return await self._reader.gather(key)

    def plan(self, snapshot: Snapshot) -> Plan:
        """See plan.py. Without a spec there is nothing to go by."""
        return Plan() if snapshot.read.spec is None else planning.plan(snapshot.plan_input)

    async def before(self, snapshot: Snapshot, plan: Plan) -> None:
        """Claims to queues and slots, the finalizer, the resource's tasks."""
        await self._writer.before(_key(snapshot), snapshot, plan)

    def observe(self, snapshot: Snapshot, plan: Plan, status: Status) -> None:  # noqa: ARG002 - as below
        """See metrics.py."""
        show(self._metrics, snapshot, plan)

    async def after(self, snapshot: Snapshot, plan: Plan, outcome: None) -> None:  # noqa: ARG002 - see the Protocol
        """The status stands as planned: messages may go, calls may be made."""
        over = snapshot.read.flushing and (_flushed(snapshot, plan) or snapshot.flush_remaining <= 0)
        await self._writer.after(_key(snapshot), snapshot, plan, over=over)

    def subject(self, snapshot: Snapshot) -> Subject:
        """The resource."""
        return Subject(snapshot.read.meta, snapshot.read.status)

    def status(self, snapshot: Snapshot, plan: Plan, outcome: None) -> Status:  # noqa: ARG002 - as above
        """See status.py."""
        return status_of(snapshot, plan)

    def events(self, snapshot: Snapshot, plan: Plan, status: Status) -> Sequence[Event]:
        """See status.py."""
        expired, before = snapshot.plan_input.expired, snapshot.read.status
        found = transitions(before, status, expired=expired, concerned=plan.requested)
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
        inputs = snapshot.plan_input
        if not inputs.suspended and waiting_of(plan, inputs.discovery.by_id, inputs.now):
            delays.append(SLOT_SECONDS)
        if snapshot.cost.wake:
            delays.append(max(snapshot.cost.wake - now, MIN_DELAY))
        if snapshot.more:
            delays.append(MIN_DELAY)
        return Next(delay=min(delays, default=None))


def _flushed(snapshot: Snapshot, plan: Plan) -> bool:
    """Whether the resource may go. A gateway finishes accepted refreshes by itself; a Job goes with its
    owner, so its end is waited for."""
    ends, discovery = target_type_of(snapshot.read.spec).idempotent, snapshot.plan_input.discovery
    # A target that is gone is never refreshed.
    left = [t for t in plan.targets if not discovery.gone(t.id)]
    return not any(t.dirty or t.claim or (ends and t.in_flight) for t in left)


def _key(snapshot: Snapshot) -> Key:
    return Key(KIND, snapshot.read.meta.namespace, snapshot.read.meta.name)
