"""Operators of the model test: the real DaemonTask controller, whose every API call waits to be let go.

Inputs: a SimCluster and the order in which a test lets calls, events and passes happen. Between any two
calls anything may happen, a crash included, so every interleaving that a real cluster could show is one
sequence of steps here. Nothing in it waits for real time.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec

from caretaker.api.objects import Node, Pod
from caretaker.daemontask.controller import KIND, DaemonTaskKind
from caretaker.daemontask.plan import Plan
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.kube.errors import ApiError, NotLeader
from caretaker.kube.store import Store, key_of
from caretaker.kube.transport import Request
from caretaker.runtime.controller import Controller
from caretaker.runtime.events import EventRecorder
from caretaker.runtime.work_queue import Key, WorkQueue
from simulation.daemontask.cluster import NAMESPACE, PODS, TASK, Change, SimCluster
from testing.allmetrics import AllMetrics

KEY = Key(KIND, NAMESPACE, TASK)


class AskedTwice(DaemonTaskKind):
    """The kind itself; what it remembers of earlier plans must change no plan."""

    # Told to the cluster: what is raised in a pass is the controller's to deal with.
    tell: Callable[[Plan, Plan], None]

    def plan(self, snapshot: Snapshot) -> Plan:
        """Held against the plan of one who asks every node."""
        found = super().plan(snapshot)
        fresh = super().plan(msgspec.structs.replace(snapshot, decision_cache=None))
        if found != fresh:
            self.tell(found, fresh)
        return found


WRITE_SECONDS, READ_SECONDS = 5.0, 30.0  # kube/transport.py
METRICS = AllMetrics()


class _Selector(selectors.DefaultSelector):
    """Asks the system for nothing while there is something to do."""

    rest: Callable[[], None] | None = None  # instead of waiting

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:
            return []
        if self.rest is None:
            return super().select(timeout)
        self.rest()
        return []


class StepLoop(asyncio.SelectorEventLoop):
    """Runs one step at a time, with all that follows from it."""

    def __init__(self) -> None:
        self._steps = _Selector()
        super().__init__(self._steps)

    def step(self, work: Coroutine[Any, Any, None]) -> None:
        """Until every task waits for an answer or a timer."""
        task = self.create_task(work)
        self._steps.rest = self.stop
        try:
            self.run_forever()
        finally:
            self._steps.rest = None
        task.result()


class Call:
    """A request that is on its way."""

    def __init__(self, what: str, execute: Callable[[], Any], seconds: float, now: float) -> None:
        self.what = what
        self.execute = execute
        self.deadline = now + seconds
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def execute_now(self) -> None:
        """The API server executes it; go() brings the answer."""
        try:
            result = self.execute()
        except ApiError as error:
            failure = error  # `error` goes with its clause

            def answer() -> Any:
                raise failure
        else:

            def answer() -> Any:
                return result

        self.execute = answer

    def go(self, *, lose_reply: bool = False) -> None:
        """The API server executes it; the answer arrives unless it is lost."""
        try:
            result = self.execute()
        except ApiError as error:
            self.fail(ApiError(0, "Unreachable", "cut") if lose_reply else error)
            return
        if lose_reply:
            self.fail(ApiError(0, "Unreachable", "cut"))
        elif not self.answer.done():
            self.answer.set_result(result)

    def fail(self, error: ApiError | NotLeader) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class SimClient:
    """The verbs of KubeClient, as far as the controller uses them."""

    def __init__(self, cluster: SimCluster) -> None:
        self.calls: list[Call] = []
        self.write_seconds = WRITE_SECONDS
        self._cluster = cluster

    async def get(self, path: str, type: Any = None, **_: Any) -> Any:  # noqa: A002
        return await self._call(f"get {path}", lambda: self._cluster.get(path, type), READ_SECONDS)

    async def call(self, request: Request) -> Any:
        read = partial(self._cluster.get, request.path, request.accept)
        return await self._call(f"get {request.path}", read, READ_SECONDS)

    async def list(self, path: str, *_: Any, params: Mapping[str, str] | None = None, **__: Any) -> Any:
        listed = self._cluster.list_shards
        if path == PODS:
            listed = partial(self._cluster.list_pods, (params or {}).get("labelSelector", ""))
        return await self._call(f"list {path}", listed, READ_SECONDS)

    async def create(
        self,
        path: str,
        body: Any,
        type: Any = None,  # noqa: A002
        *,
        params: Any = None,
        timeout: float = WRITE_SECONDS,
    ) -> Any:
        if params:
            return {}  # the dry run: no state, no decision
        return await self._call(f"create {path}", lambda: self._cluster.create(path, body, type), timeout)

    async def patch(self, path: str, body: Any, type: Any = None, *, timeout: float = WRITE_SECONDS) -> Any:  # noqa: A002
        return await self._call(f"patch {path}", lambda: self._cluster.patch(path, body, type), timeout)

    async def delete(self, path: str, *, body: Any, **_: Any) -> Any:
        return await self._call(f"delete {path}", lambda: self._cluster.delete(path, body))

    async def _call(self, what: str, execute: Callable[[], Any], seconds: float = WRITE_SECONDS) -> Any:
        call = Call(what, execute, seconds, self._cluster.clock.now)
        self.calls.append(call)
        try:
            return await call.answer
        finally:
            self.calls.remove(call)


class SimOperator:
    """One process. Its caches lag behind the cluster until deliver() is called."""

    def __init__(self, cluster: SimCluster, loop: StepLoop) -> None:
        self._cluster = cluster
        self._loop = loop
        self._pass: asyncio.Task[None] | None = None
        self.began = 0  # the cluster's version when the pass began
        self.began_at = 0.0
        self.saw = {"nodes": 0, "pods": 0}  # up to which versions each watch had told then
        self.start()

    def start(self) -> None:
        """As the process does: list everything, then look at the task."""
        self._in_loop(self._start)

    async def _start(self) -> None:
        cluster = self._cluster
        self.client = client = SimClient(cluster)
        self._nodes: Store[Node] = Store(cluster.clock.time)
        self._pods: Store[Pod] = Store(cluster.clock.time)
        self.queue = WorkQueue(clock=cluster.clock.time, jitter=lambda: 0.5)
        watch_handlers = WatchHandlers(self._nodes, self._pods, self.queue.add)
        self.task_states = watch_handlers.task_states
        kind = AskedTwice(client, watch_handlers, METRICS.daemontask)  # type: ignore[arg-type]
        kind.tell = lambda *plans: cluster.unequal.append(plans)
        recorder = EventRecorder(client, clock=cluster.clock.time)  # type: ignore[arg-type]
        self._controller = Controller(client, self.queue, [kind], recorder, METRICS, lambda _: None)  # type: ignore[arg-type]
        for store, items in ((self._nodes, cluster.nodes), (self._pods, cluster.pods)):
            listed = [(item.record(), int(item.metadata.resource_version)) for item in items.values()]
            store.replace_all(listed, cluster.version)  # type: ignore[attr-defined]
        self._told = {"nodes": len(cluster.node_log), "pods": len(cluster.pod_log)}
        self.heard: dict[int, float] = {}  # version of an event -> when the watch delivered it
        self._listed = self.remembers = cluster.version  # what it saw before that, it does not know
        self.queue.add(KEY)

    # ---------------------------------------------------------------- steps

    @property
    def busy(self) -> bool:
        """Whether a pass is under way."""
        return self._pass is not None and not self._pass.done()

    def begin(self) -> None:
        """A pass begins and runs to its first call."""
        if not self.busy:
            self.began, self.began_at = self._cluster.version, self._cluster.clock.now
            self.saw = {what: self.seen(what) for what in ("nodes", "pods")}
            self.queue.forget(KEY)
            self._in_loop(self._begin)

    def answer(self, number: int = 0, *, lose_reply: bool = False) -> None:
        """One of the calls under way is executed and answered."""
        if self.client.calls:
            call = self.client.calls[number % len(self.client.calls)]
            self._in_loop(lambda: _done(call.go(lose_reply=lose_reply)))

    def execute(self) -> None:
        """The calls under way are executed now; their answers are still on their way."""
        for call in self.client.calls:
            call.execute_now()

    def refuse(self, number: int, status: int, reason: str = "Refused") -> None:
        """One of the calls under way fails without having been executed."""
        if self.client.calls:
            call = self.client.calls[number % len(self.client.calls)]
            self._in_loop(lambda: _done(call.fail(ApiError(status, reason, "by the test"))))

    def depose(self) -> None:
        """The Lease is lost: what is under way is not sent any more; then it is held again."""
        for call in list(self.client.calls):
            self._in_loop(lambda call=call: _done(call.fail(NotLeader("by the test"))))
        self.finish()
        self.task_states.clear()
        self.remembers = self._cluster.version

    def expire(self) -> None:
        """Calls whose time is over fail; the API server has not executed them."""
        for call in [c for c in self.client.calls if c.deadline <= self._cluster.clock.now]:
            error = ApiError(0, "Timeout", "no answer")
            self._in_loop(lambda call=call, error=error: _done(call.fail(error)))

    def deliver(self, what: str, count: int) -> None:
        """The next events of one watch arrive."""
        log, store = (
            (self._cluster.node_log, self._nodes) if what == "nodes" else (self._cluster.pod_log, self._pods)
        )
        at = self._told[what]
        for change in log[at : at + count]:
            self._in_loop(lambda change=change, store=store: _done(apply_change(store, change)))
            self.heard[change[1]] = self._cluster.clock.now
        self._told[what] = min(at + count, len(log))

    def seen(self, what: str) -> int:
        """Up to which version one watch has told."""
        log = self._cluster.node_log if what == "nodes" else self._cluster.pod_log
        told = log[: self._told[what]]
        return max(self._listed, told[-1][1]) if told else self._listed

    def catch_up(self) -> None:
        """All events arrive."""
        for what in ("nodes", "pods"):
            self.deliver(what, len(self._cluster.node_log) + len(self._cluster.pod_log))

    def finish(self) -> None:
        """The pass under way goes on to its end; every call succeeds."""
        while self.busy:
            self.answer()

    def crash(self, executed: int) -> None:
        """kill -9: bit i of `executed` says whether the i-th call under way still reached the API server."""
        calls = list(self.client.calls)
        if self._pass is not None:
            self._pass.cancel()
        for number, call in enumerate(calls):
            if executed >> number & 1:
                try:
                    call.execute()
                except ApiError:
                    continue
        self._in_loop(lambda: _done(None))
        self._pass = None

    # ---------------------------------------------------------------- inside

    async def _begin(self) -> None:
        self._pass = asyncio.get_running_loop().create_task(self._controller.run_pass(KEY))

    def _in_loop(self, step: Callable[[], Any]) -> None:
        async def turn() -> None:
            await step()

        self._loop.step(turn())


async def _done(_: Any) -> None:
    return None


def apply_change(store: Store[Any], change: Change) -> None:
    """As a watch does."""
    kind, version, item = change
    record = item.record()
    if kind == "put":
        store.apply(record, version)
    else:
        store.remove(key_of(record), record.uid, version)
