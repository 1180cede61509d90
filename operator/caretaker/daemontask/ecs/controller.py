"""The ECS target in the reconcile loop: gathers the state of clusters, starts and stops their workers.

Thin: plan.py decides, and no pass waits for AWS. A check runs beside the passes and asks for a pass at its
end. Setting a desired count twice does no harm, so nothing is recorded before it.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from caretaker.api.conditions import EcsReason as Reason
from caretaker.api.conditions import Event
from caretaker.api.daemontask import DaemonTask, Status
from caretaker.api.ecs import EcsSpec
from caretaker.api.grants import Grants, refusals
from caretaker.aws.calls import Aws
from caretaker.aws.identity import ClientKey, User
from caretaker.daemontask.ecs import plan as planning
from caretaker.daemontask.ecs.plan import QUEUE, Plan
from caretaker.daemontask.ecs.reader import Readers
from caretaker.daemontask.ecs.snapshot import Snapshot, unchecked
from caretaker.daemontask.ecs.status import status_of, transitions
from caretaker.daemontask.ecs.worker import Worker
from caretaker.daemontask.metrics import DaemonTaskMetrics
from caretaker.daemontask.resource import KIND
from caretaker.registry import DAEMON_TASK
from caretaker.runtime.controller import Kind, Next, Subject
from caretaker.runtime.tasks import cancel
from caretaker.runtime.work_queue import Key

AWS: Final = "spec.ecs.aws"
MIN_DELAY: Final = 0.02


class EcsTarget(Kind[Snapshot, Plan, None]):
    """runtime.controller.Kind for tasks with spec.ecs. `add` asks for a pass.

    Nothing is left for recheck(): a check reads ECS right before it changes a count.
    """

    kind = KIND
    stopped: Collection[str] = ()

    def __init__(
        self,
        aws: Aws,
        grants: Grants,
        metrics: DaemonTaskMetrics,
        add: Callable[[Key], None],
    ) -> None:
        self._aws = aws
        self._grants = grants
        self._metrics = metrics
        self._add = add
        self._readers = Readers(aws, metrics.ecs.message)
        self._workers: dict[Key, Worker] = {}
        self._endings: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """End all workers: another process may lead from now on."""
        workers, self._workers = list(self._workers.values()), {}
        await asyncio.gather(*(worker.end() for worker in workers))
        await self._readers.close()

    def forget(self, key: Key) -> None:
        """The task is gone. Desired counts stay as they are."""
        worker = self._workers.pop(key, None)
        if worker is not None:
            # At once: a new task of this name may join before the worker has ended.
            ending = asyncio.create_task(_end(worker, self._readers.drop(key)))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def gather(self, key: Key, task: DaemonTask, invalid: str) -> Snapshot:  # type: ignore[override]
        """The present state of the clusters. Targets has read the task."""
        snapshot = Snapshot(
            meta=task.metadata,
            spec=task.spec.ecs,
            status=task.status,
            suspend=task.spec.suspend,
            now=time.time(),
            clock=time.monotonic(),
            refusal=self._refused(key, task.spec.ecs, invalid),
        )
        if snapshot.idle or snapshot.spec is None:
            return snapshot
        worker = self._workers.get(key)
        if worker is None or not worker.serves(snapshot):
            return replace(snapshot, clusters=unchecked(snapshot.spec))
        return replace(snapshot, clusters=dict(worker.clusters), listing=worker.listing, queue=worker.queue)

    def _refused(self, key: Key, spec: EcsSpec | None, invalid: str) -> tuple[str, str] | None:
        if spec is None:
            return Reason.INVALID_SPEC, invalid
        found = refusals(
            self._grants, key.namespace, spec.aws.spec, {QUEUE: spec.events.sqs_queue_url}, at=AWS
        )
        return (Reason.NOT_GRANTED, "; ".join(map(str, found))) if found else None

    def plan(self, snapshot: Snapshot) -> Plan:
        """See plan.py."""
        return planning.plan(snapshot)

    async def before(self, snapshot: Snapshot, plan: Plan) -> None:
        """Replace the worker of another task or spec, and start the checks."""
        key = _key(snapshot)
        worker = self._workers.get(key)
        if worker is not None and (snapshot.idle or not worker.serves(snapshot)):
            del self._workers[key]
            await worker.end()
            await self._readers.leave(key)
            worker = None
        if not snapshot.idle:
            (worker or self._start(key, snapshot)).begin(plan)

    def _start(self, key: Key, snapshot: Snapshot) -> Worker:
        def on_news() -> None:
            self._add(key)

        assert snapshot.spec is not None  # noqa: S101 - it is not idle
        spec, aws = snapshot.spec, snapshot.spec.aws.spec
        user = User(key.namespace, DAEMON_TASK.short, key.name)
        ecs = self._aws.ecs(ClientKey.of(aws, "ecs", user=user))
        worker = self._workers[key] = Worker(snapshot, ecs, self._metrics.ecs, on_news)
        queue, url = ClientKey.of(aws, "sqs", user=user), spec.events.sqs_queue_url
        worker.reader = self._readers.join(key, queue, url, worker.hear, on_news)
        return worker

    def subject(self, snapshot: Snapshot) -> Subject:
        """The task."""
        return Subject(snapshot.meta, snapshot.status)

    def status(self, snapshot: Snapshot, plan: Plan, outcome: None) -> Status:  # noqa: ARG002
        """See status.py."""
        return status_of(snapshot)

    def observe(self, snapshot: Snapshot, plan: Plan, status: Status) -> None:  # noqa: ARG002
        """The counts of container instances."""
        counts = {state: getattr(status, state) for state in self._metrics.STATES}
        self._metrics.set_nodes(snapshot.meta.namespace, snapshot.meta.name, counts)

    def events(self, snapshot: Snapshot, plan: Plan, status: Status) -> Sequence[Event]:  # noqa: ARG002
        """See status.py."""
        service = snapshot.spec.service if snapshot.spec is not None else ""
        return transitions(snapshot.status, status, service)

    def requeue(self, snapshot: Snapshot, plan: Plan, outcome: None) -> Next:  # noqa: ARG002
        """At the plan's time; a check under way asks for a pass itself."""
        if plan.wake is None:
            return Next()
        return Next(delay=max(plan.wake - time.monotonic(), MIN_DELAY))


async def _end(worker: Worker, readers: "Iterable[asyncio.Task[None]]") -> None:
    await worker.end()
    await cancel(*readers)


def _key(snapshot: Snapshot) -> Key:
    return Key(KIND, snapshot.meta.namespace, snapshot.meta.name)
