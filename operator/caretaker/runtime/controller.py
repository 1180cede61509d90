"""The one reconcile loop: gather -> plan -> recheck -> before -> one status patch -> after -> requeue.

Knows no kind. Errors are typed by the next step, and only this module maps them to backoff and metrics:
NotLeader ends a pass in silence, a conflict runs it again, anything else backs off. A pass never raises: user
data must not crash the operator.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from caretaker.api.conditions import Condition, Event, ObjectRef, Reason
from caretaker.api.names import API_VERSION, GROUP
from caretaker.api.objects import WireMeta
from caretaker.api.times import format_time
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError, NotLeader
from caretaker.obs import log
from caretaker.obs.metrics import Metrics
from caretaker.registry import KINDS
from caretaker.runtime import permission_conditions
from caretaker.runtime.cpu import CpuThrottle, new_task, with_condition
from caretaker.runtime.events import EventRecorder
from caretaker.runtime.work_queue import CONFLICT_MAX, WORKERS, Key, WorkQueue

logger = logging.getLogger(__name__)

RESYNC: Final = 600.0
STATUS_INTERVAL: Final = 1.0  # between two status writes of a key while passes follow each other at once
RECHECKS: Final = 3
_KINDS: Final = {kind.kind: kind for kind in KINDS}

S = TypeVar("S")
P = TypeVar("P")
O = TypeVar("O")  # noqa: E741


class Conflict(Exception):  # noqa: N818
    """The inputs of the plan have changed; the pass runs again after a short, growing pause."""


class Retry(Exception):  # noqa: N818
    """The pass could not finish; it runs again after the key's backoff."""


class Postponed(Exception):  # noqa: N818
    """gather() has read that the pass may not go on yet; it begins after `seconds`, and no event makes these
    fewer."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"in {seconds:.1f} s")
        self.seconds = seconds


class Subject(msgspec.Struct, frozen=True):
    """The custom resource of a pass, as the loop needs to know it."""

    meta: WireMeta
    status: Any  # the status that stands, as a struct


class Next(msgspec.Struct, frozen=True):
    """When a pass has to be repeated without any event."""

    delay: float | None = None  # seconds; None = at the resync
    at_once: bool = False  # work is left now
    retry: bool = False  # refused calls are tried again with backoff
    after: float = 0.0  # at least this many seconds, as a Retry-After asked


class Kind(Protocol, Generic[S, P, O]):
    """The contract of a kind: S is its snapshot, P its plan, O the outcome of its writes.

    A pass calls gather, plan, recheck, before, requeue, status, observe, after and events. It may end after
    any of them, and with it the process: the next pass starts from the stored state. A kind subclasses this
    class: methods that have nothing to do in it are left to the defaults.
    """

    kind: str
    # Types of conditions that are False, beside Ready, while a permission is missing.
    stopped: Collection[str]

    def path(self, key: Key) -> str:
        """The API path of the resource. Pure. The default: by the registry."""
        return _KINDS[self.kind].path(key.namespace, key.name)

    def admit(self, key: Key) -> float:  # noqa: ARG002
        """Seconds until a pass may begin, which no event makes fewer; 0 = it begins. The default: 0."""
        return 0.0

    async def gather(self, key: Key) -> S | None:
        """Read everything that the plan needs, and change nothing but caches of what was read. None: the
        resource is gone, or needs nothing. Raises Postponed where what was read has to wait."""

    def target(self, snapshot: S) -> "Kind[Any, Any, Any]":  # noqa: ARG002
        """The kind whose steps follow, where a kind has several targets. Pure. The default: this one."""
        return self

    def plan(self, snapshot: S) -> P:
        """All decisions, with their reasons. Pure: no I/O, no clock, no chance."""

    async def recheck(self, snapshot: S, plan: P) -> S | None:  # noqa: ARG002
        """Read again, from the source of truth, the inputs of irreversible steps. None: nothing differs; else
        the newer snapshot, which is planned again. Called up to RECHECKS times."""
        return None

    async def before(self, snapshot: S, plan: P) -> O:
        """The writes that must precede the status: ledger, Pods, tasks that run beside the passes. Called
        once for each pass."""

    def subject(self, snapshot: S) -> Subject:
        """The resource itself. Pure."""

    def status(self, snapshot: S, plan: P, outcome: O) -> Any:
        """The status to write, a struct that can be compared with the stored one. Writes nothing, and sets no
        metric."""

    def observe(self, snapshot: S, plan: P, status: Any) -> None:  # noqa: ARG002
        """Show the status in the kind's gauges. Counters of recorded facts belong into after(). The default
        does nothing."""
        return

    async def after(self, snapshot: S, plan: P, outcome: O) -> None:  # noqa: ARG002
        """The writes that only a stored status allows: AWS calls, deletion of messages. Called after the
        status was written, or read and found equal; not if the write failed or was put off. The default
        does nothing."""
        return

    def events(self, snapshot: S, plan: P, status: Any) -> Sequence[Event]:
        """The transitions between the stored status and this one. Pure."""

    def requeue(self, snapshot: S, plan: P, outcome: O) -> Next:
        """The time of the next pass. Called before status; decides nothing else."""

    def forget(self, key: Key) -> Awaitable[None] | None:
        """The resource is gone: drop its entries from memory. A coroutine where I/O belongs to that; the pass
        runs again if it fails."""

    async def quiesce(self, patience: float) -> None:  # noqa: ARG002
        """A stop is near: begin no further call, and have those under way answered and recorded, for at most
        `patience` seconds. Passes go on meanwhile. The default does nothing."""
        return

    async def stop(self) -> None:
        """No pass is under way, and another process may lead from now on: end the work between passes and
        drop all memory of resources, with the series that name one. It may lead again later. The default
        does nothing."""
        return


class Controller:
    """Works off the queue with a few workers, each one pass at a time."""

    def __init__(
        self,
        client: KubeClient,
        queue: WorkQueue,
        kinds: Sequence[Kind[Any, Any, Any]],
        recorder: EventRecorder,
        metrics: Metrics,
        on_gone: Callable[[Key], None],
    ) -> None:
        self._client = client
        self._queue = queue
        self._kinds = {kind.kind: kind for kind in kinds}
        self._recorder = recorder
        self._metrics = metrics
        self._on_gone = on_gone
        self._cpu = CpuThrottle(metrics, queue.clock)
        self._stopping = asyncio.Event()
        self._status_written: dict[Key, float] = {}
        self._working: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Work until stop(), or until cancelled. Every run starts with an empty memory of status writes."""
        self._stopping = asyncio.Event()
        self._status_written.clear()
        asyncio.get_running_loop().set_task_factory(new_task)
        self._working = [asyncio.create_task(self._work(self._stopping)) for _ in range(WORKERS)]
        try:
            await asyncio.gather(*self._working)
        finally:
            self.stop()  # one that has failed leaves the others at work

    @property
    def working(self) -> bool:
        """Whether a pass may be under way, or may begin."""
        return any(not worker.done() for worker in self._working)

    def stop(self) -> None:
        """Begin no further pass; run() ends when those that have begun are finished."""
        self._stopping.set()
        self._queue.wake()

    async def _work(self, stopping: asyncio.Event) -> None:
        while (found := await self._queue.get(stopping)) is not None:
            key, waited = found
            self._metrics.passes.queue_wait.observe(waited)
            try:
                await self.run_pass(key)
            finally:
                if pause := self._cpu.pause(key):
                    self._queue.pause(key, pause)
                self._queue.done(key)

    async def run_pass(self, key: Key) -> None:
        """One pass; decides when the next one comes."""
        reconcile_id = log.new_reconcile_id()
        with log.bind(kind=key.kind, namespace=key.namespace, name=key.name, reconcile_id=reconcile_id):
            try:
                kind = self._kinds[key.kind]
                if seconds := kind.admit(key):
                    self._postpone(key, seconds)
                    return
                follow = await self._cpu.timed(key, self._pass(key, kind))
            except Postponed as postponed:
                self._postpone(key, postponed.seconds)
            except NotLeader:
                # Usually the Lease is lost, and no pass follows; it may still be renewed.
                self._queue.retry(key)
            except Conflict as conflict:
                logger.debug("conflict, running again: %s", conflict)
                self._queue.retry(key, at_most=CONFLICT_MAX)
            except Retry as retry:
                delay = self._queue.retry(key)
                self._metrics.passes.error(key.kind, "Retry")
                logger.warning("%s; again in %.1f s", retry, delay)
            except ApiError as error:
                await self._api_error(key, error)
            except Exception:
                delay = self._queue.retry(key)
                self._metrics.passes.error(key.kind, "Unexpected")
                logger.exception("the pass failed; again in %.1f s", delay)
            else:
                self._schedule(key, follow)

    def _postpone(self, key: Key, seconds: float) -> None:
        self._queue.pause(key, seconds)
        self._queue.add_after(key, seconds)

    async def _pass(self, key: Key, kind: Kind[Any, Any, Any]) -> Next | None:
        started = time.perf_counter()
        snapshot = await kind.gather(key)
        if snapshot is None:
            if (cleaning := kind.forget(key)) is not None:
                await cleaning
            if not self._queue.pending(key):  # else its successor may be there already
                self._on_gone(key)
            self._status_written.pop(key, None)
            self._metrics.resources.forget((key.kind, key.namespace, key.name))
            self._cpu.forget(key)
            return None
        kind = kind.target(snapshot)
        plan = self._plan(kind, snapshot)
        for _ in range(RECHECKS):
            newer = await kind.recheck(snapshot, plan)
            if newer is None:
                break
            snapshot, kind = newer, kind.target(newer)
            plan = self._plan(kind, newer)
        else:
            raise Conflict("the ledger keeps changing under the plan")
        outcome = await kind.before(snapshot, plan)
        follow = kind.requeue(snapshot, plan, outcome)
        subject, more = kind.subject(snapshot), list[Event]()
        status = kind.status(snapshot, plan, outcome)
        if self._cpu.throttled(key):
            status, more = with_condition(subject.status, status, format_time(time.time()))
        kind.observe(snapshot, plan, status)
        self._show(key, status.conditions)
        if await self._write_status(key, subject, status, follow):
            try:
                await kind.after(snapshot, plan, outcome)
            finally:  # after() must not wait for Events; they are posted even if it fails
                await self._recorder.post(
                    _ref(key, subject.meta.uid), [*kind.events(snapshot, plan, status), *more]
                )
        self._metrics.passes.seconds.labels(key.kind).observe(time.perf_counter() - started)
        return follow

    def _show(self, key: Key, conditions: Iterable[Condition]) -> None:
        self._metrics.resources.show((key.kind, key.namespace, key.name), conditions)

    def _plan(self, kind: Kind[Any, Any, Any], snapshot: Any) -> Any:
        started = time.thread_time()
        plan = kind.plan(snapshot)
        self._metrics.passes.plan_cpu.labels(kind.kind).observe(time.thread_time() - started)
        return plan

    async def _write_status(self, key: Key, subject: Subject, status: Any, follow: Next) -> bool:
        """The one status patch of a pass, none when nothing changed. Returns whether the status stands as
        planned."""
        if status == subject.status:
            return True
        now = time.monotonic()
        if follow.at_once and now - self._status_written.get(key, 0.0) < STATUS_INTERVAL:
            return False  # the next pass follows at once and writes it
        body = {
            "metadata": {"uid": subject.meta.uid, "resourceVersion": subject.meta.resource_version},
            "status": status,
        }
        try:
            await self._client.patch(f"{self._kinds[key.kind].path(key)}/status", body)
        except ApiError as error:
            if error.invalid:  # the stored spec breaks a rule of a newer CRD: no status can be written
                event = Event("Warning", Reason.INVALID_SPEC, error.message)
                await self._recorder.post(_ref(key, subject.meta.uid), [event])
            raise
        self._status_written[key] = now
        return True

    def _schedule(self, key: Key, follow: Next | None) -> None:
        if follow is None:
            self._queue.forget(key)
            return
        if follow.retry:
            self._queue.retry(key, follow.after)
            if follow.delay is not None:  # calls that were not refused keep their time
                self._queue.add_after(key, max(follow.delay, follow.after))
            return
        self._queue.succeeded(key)
        delay = 0.0 if follow.at_once else RESYNC if follow.delay is None else min(follow.delay, RESYNC)
        self._queue.add_after(key, delay)

    async def _api_error(self, key: Key, error: ApiError) -> None:
        if error.conflict or _is_deleted(key, error):
            self._queue.retry(key, at_most=CONFLICT_MAX)
            return
        delay = self._queue.retry(key, error.retry_after or 0.0)
        self._metrics.passes.error(key.kind, error.reason or str(error.status))
        logger.warning("%s; again in %.1f s", error, delay)
        if error.missing_permission is not None:
            await self._show_denied(key, error)

    async def _show_denied(self, key: Key, error: ApiError) -> None:
        """No plan, so no status: the conditions alone can say why."""
        kind = self._kinds[key.kind]
        self._show(key, permission_conditions.conditions((), kind.stopped, 0, error.message, ""))
        try:
            now = format_time(time.time())
            uid = await permission_conditions.write(self._client, kind.path(key), kind.stopped, error, now)
        except (ApiError, NotLeader) as problem:
            logger.debug("the missing permission could not be shown: %s", problem)
            return
        except Exception:  # a pass never raises: it would end the process
            logger.exception("the missing permission could not be shown")
            return
        if uid:
            event = Event("Warning", Reason.PERMISSION_DENIED, error.message)
            await self._recorder.post(_ref(key, uid), [event])


def _ref(key: Key, uid: str) -> ObjectRef:
    return ObjectRef(API_VERSION, key.kind, key.namespace, key.name, uid)


def _is_deleted(key: Key, error: ApiError) -> bool:
    """Whether the resource was deleted before it was written. A missing CRD has other words."""
    return error.not_found and error.message == f'{_KINDS[key.kind].plural}.{GROUP} "{key.name}" not found'
