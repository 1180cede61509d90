"""A cluster in memory with several tasks of an exclusive group, one leader at a time, and a judge.

The judge goes by the specs alone, whenever a Pod is created: of the tasks of the group at most one has an
unfinished Pod, or a failed run to retry, on a node; and all of them on no more nodes than the group may have.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import msgspec

from caretaker.api import names
from caretaker.api.daemontask import resolve
from caretaker.api.objects import Node, Pod
from caretaker.daemontask.controller import KIND, DaemonTaskKind
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.kube.errors import ApiError
from caretaker.kube.store import Store
from caretaker.runtime.controller import Controller
from caretaker.runtime.events import EventRecorder
from caretaker.runtime.work_queue import Key, WorkQueue
from simulation.daemontask.cluster import NAMESPACE, PODS, TASKS, Change, Clock
from simulation.daemontask.kubelets import SlowCluster
from simulation.daemontask.operator import METRICS, READ_SECONDS, Call, SimClient, StepLoop, apply_change

GROUP: Final = "kernel"


class Task(SlowCluster):
    """One task. Nodes, Pods, watches and versions are those of all."""

    def __init__(self, clock: Clock, name: str, shared: "Task | None", **spec: Any) -> None:
        self.task_name, self.task_uid = name, f"{name}-uid"
        self.gone = False
        # (task's UID, node's UID) -> seq of the last Pod that ended
        self.ended: dict[tuple[str, str], int] = {}
        self.put_off: set[str] = set()  # UIDs of nodes whose Pod was refused or not answered: no slot
        self.let_go: set[tuple[str, int]] = set()  # (node UID, seq) of entries
        self._versions = shared._versions if shared is not None else [1]
        super().__init__(clock, **spec)
        if shared is not None:
            self.nodes, self.pods, self._serial = shared.nodes, shared.pods, shared._serial
            self.node_log, self.pod_log = shared.node_log, shared.pod_log
            self.unready, self._records, self.ended = shared.unready, shared._records, shared.ended
        else:
            self.on_end.append(self._note_end)

    @property
    def version(self) -> int:
        return self._versions[0]

    @version.setter
    def version(self, version: int) -> None:
        self._versions[0] = max(self._versions[0], version)

    def get(self, path: str, wanted: Any) -> Any:
        if path == self.task_path and self.gone:
            raise ApiError(404, "NotFound", self.task_name, path=path)
        return super().get(path, wanted)

    def edit(self, **spec: Any) -> None:
        """A suspended task lets go of the nodes where it is to retry."""
        if self.spec.suspend:
            self.let_go.update((entry.node_uid, entry.seq) for entry in self.entries().values())
        super().edit(**spec)

    def _note_end(self, pod: Pod) -> None:
        self.ended[pod.owner_uid, pod.node_uid] = pod.seq

    def live(self) -> list[Pod]:
        """Its unfinished Pods."""
        found = (self.record(pod) for pod in self.pods.values())
        return [pod for pod in found if pod.owner_uid == self.task_uid and not pod.terminal]

    def held(self, *, live: bool = False) -> set[str]:
        """UIDs of nodes with an unfinished Pod, or unless `live` a failed run that is to be retried. A retry
        of a task with dependsOn may wait for another task, which goes first."""
        free = live or self.spec.suspend or self.gone or bool(self.spec.depends_on)
        entries = {} if free else self.entries()
        uids = {node.metadata.uid for node in self.nodes.values()}
        same = (e for e in entries.values() if e.revision == self.revision)
        last = (e for e in same if e.seq >= self.ended.get((self.task_uid, e.node_uid), 0))
        failed = (e for e in last if e.result == "Retry" and e.attempts)
        retried = {e.node_uid for e in failed if (e.node_uid, e.seq) not in self.let_go} - self.put_off
        return {pod.node_uid for pod in self.live()} | (retried & uids)


class GroupClient(SimClient):
    """Requests go to the task that they are about."""

    def __init__(self, world: "GroupWorld") -> None:
        super().__init__(world.first)
        self._world = world

    async def get(self, path: str, type: Any = None, **_: Any) -> Any:  # noqa: A002
        return await self._call(f"get {path}", lambda: self._of(path).get(path, type), READ_SECONDS)

    async def list(
        self,
        path: str,
        item: Any = None,
        *_: Any,
        params: Mapping[str, str] | None = None,
        **__: Any,
    ) -> Any:
        selector = (params or {}).get("labelSelector", "")

        def listed() -> Any:
            if path == PODS:
                return self._world.first.list_pods("" if selector == names.LABEL_TASK else selector)
            if path == TASKS:
                found = [
                    task.get(task.task_path, None) for task in self._world.tasks.values() if not task.gone
                ]
                return [msgspec.json.decode(msgspec.json.encode(raw), type=item) for raw in found], "1"
            if path == "/api/v1/nodes":
                return [], "1"
            return self._world.tasks[selector.partition(f"{names.LABEL_TASK}=")[2]].list_shards()

        return await self._call(f"list {path}", listed, READ_SECONDS)

    async def create(self, path: str, body: Any, type: Any = None, *, params: Any = None, **_: Any) -> Any:  # noqa: A002
        if params:
            return {}
        labels = body["metadata"].get("labels") or {}
        task = self._world.tasks.get(labels.get(names.LABEL_TASK, ""), self._world.first)
        node = (body["metadata"].get("annotations") or {}).get(names.POD_NODE_UID, "")
        try:
            made = await self._call(f"create {path}", lambda: task.create(path, body, type))
        except ApiError:
            task.put_off.add(node)
            raise
        task.put_off.discard(node)
        return made

    async def patch(self, path: str, body: Any, type: Any = None, **_: Any) -> Any:  # noqa: A002
        return await self._call(f"patch {path}", lambda: self._of(path).patch(path, body, type))

    def _of(self, path: str) -> Task:
        for task in self._world.tasks.values():
            own = path.startswith(f"{task.task_path}/") or path == task.task_path
            if own or path.rpartition("/")[2] in task.configmaps:
                return task
        return self._world.first


class Leader:
    """One process that leads, with passes over all tasks under way."""

    def __init__(self, world: "GroupWorld", behind: int) -> None:
        self._world, self._loop = world, world.loop
        self._passes: dict[Key, asyncio.Task[None]] = {}
        self._seen = {"nodes": len(world.first.node_log), "pods": max(len(world.first.pod_log) - behind, 0)}
        self._in_loop(self._start)

    async def _start(self) -> None:
        world, clock = self._world, self._world.clock
        self.client = client = GroupClient(world)
        self.nodes: Store[Node] = Store(clock.time)
        self.pods: Store[Pod] = Store(clock.time)
        self.queue = WorkQueue(clock=clock.time, jitter=lambda: 0.5)
        watched = WatchHandlers(self.nodes, self.pods, self.queue.add)
        self.kind = DaemonTaskKind(client, watched, METRICS.daemontask)  # type: ignore[arg-type]
        recorder = EventRecorder(client, clock=clock.time)  # type: ignore[arg-type]
        self._controller = Controller(client, self.queue, [self.kind], recorder, METRICS, lambda _: None)  # type: ignore[arg-type]
        for what, store in (("nodes", self.nodes), ("pods", self.pods)):
            found: dict[str, tuple[Any, int]] = {}
            version = 1
            for change, version, item in self._log(what)[: self._seen[what]]:
                if change == "put":
                    found[item.metadata.name] = (item.record(), version)
                else:
                    found.pop(item.metadata.name, None)
            store.replace_all(list(found.values()), version)  # type: ignore[attr-defined]
        for name in world.tasks:
            self.queue.add(Key(KIND, NAMESPACE, name))

    @property
    def busy(self) -> bool:
        return any(not one.done() for one in self._passes.values())

    def begin(self, name: str) -> None:
        """A pass begins, unless one over this task is under way; it runs to its first call."""
        key = Key(KIND, NAMESPACE, name)
        if key not in self._passes or self._passes[key].done():
            self.queue.forget(key)

            async def start() -> None:
                work = self._controller.run_pass(key)
                self._passes[key] = asyncio.get_running_loop().create_task(work)

            self._in_loop(start)

    def due(self) -> list[str]:
        """Names of the tasks whose pass is due now."""
        now = self._world.clock.now
        return [key.name for key, at in self.queue._due.items() if at <= now]

    def run_due(self) -> bool:
        """Passes that are due run to their end. Whether there were any."""
        found = self.due()
        for name in found:
            self.queue._due.pop(Key(KIND, NAMESPACE, name))
            self.begin(name)
        self.finish()
        return bool(found)

    def finish(self) -> None:
        while self.busy:
            self.answer(0)

    def answer(self, number: int, *, lose_reply: bool = False) -> None:
        if calls := self.client.calls:
            call = calls[number % len(calls)]
            self._in_loop(lambda: _go(call, lose_reply=lose_reply))

    def fail(self, number: int, status: int) -> Call | None:
        """A call fails as its client sees it."""
        if not (calls := self.client.calls):
            return None
        call = calls[number % len(calls)]

        async def failed() -> None:
            call.fail(ApiError(status, "Refused", "by the test"))

        self._in_loop(failed)
        return call

    def deliver(self, what: str, count: int) -> None:
        """The next events of a watch arrive."""
        store: Any = self.nodes if what == "nodes" else self.pods
        log, at = self._log(what), self._seen[what]
        for change in log[at : at + count]:
            self._in_loop(lambda change=change: _apply(store, change))
        self._seen[what] = min(at + count, len(log))

    def crash(self, executed: int) -> None:
        """kill -9: bit i of `executed` says whether the i-th call still reached the API server."""
        calls = list(self.client.calls)
        for one in self._passes.values():
            one.cancel()
        for number, call in enumerate(calls):
            if executed >> number & 1:
                _try(call)
        self._in_loop(_nothing)

    def _log(self, what: str) -> list[Change]:
        return self._world.first.node_log if what == "nodes" else self._world.first.pod_log

    def _in_loop(self, step: Callable[[], Any]) -> None:
        async def turn() -> None:
            await step()

        self._loop.step(turn())


class GroupWorld:
    """`specs`: name of a task -> its spec without a template."""

    made_of: ClassVar[type[Task]] = Task

    def __init__(self, clock: Clock, nodes: int, specs: Mapping[str, Mapping[str, Any]]) -> None:
        self.clock, self.loop = clock, StepLoop()
        self.tasks: dict[str, Task] = {}
        for name, spec in specs.items():
            shared = next(iter(self.tasks.values()), None)
            self.tasks[name] = self.made_of(clock, name, shared, **{"backoffLimit": 1, **spec})
        self.first = next(iter(self.tasks.values()))
        for number in range(nodes):
            self.first.add_node(f"n{number}")
        self.both = self.over = self.most = 0
        for task in self.tasks.values():
            task.on_create.append(self._judge)
        self.late: list[Call] = []  # failed for their client, and executed a moment later
        self.leader = Leader(self, 0)

    def close(self) -> None:
        self.leader.crash(0)
        self.loop.close()

    def key(self, name: str) -> Key:
        return Key(KIND, NAMESPACE, name)

    def ticket(self, name: str) -> int:
        return self.leader.kind._exclusion._tasks[NAMESPACE][self.key(name)].ticket

    def width(self) -> int | None:
        """The group's, by the specs."""
        found = [
            max(resolve(e.parallelism, len(self.first.nodes), up=True), 1)
            for task in self.tasks.values()
            if not task.gone and (e := task.spec.exclusive) is not None and e.parallelism is not None
        ]
        return min(found, default=None)

    def _judge(self, pod: Pod) -> None:
        """Before the Pod is there. Of the retries of a task that was suspended only Pods are ahead."""
        mine = pod.labels[names.LABEL_TASK]
        resumed = pod.node_uid in {uid for uid, _ in self.tasks[mine].let_go}
        held = {name: task.held(live=resumed) for name, task in self.tasks.items()}
        others = [name for name, found in held.items() if name != mine and pod.node_uid in found]
        self.both += bool(others)
        assert not others, f"{mine} starts on {pod.annotations[names.POD_NODE_NAME]}, which {others} hold"
        total = sum(len(found | ({pod.node_uid} if name == mine else set())) for name, found in held.items())
        width = self.width()
        self.most = max(self.most, total)
        assert width is None or total <= width, f"{total} nodes, not {width}: {held}"

    def run_pods(self, dice: random.Random, chance: float = 1.0, bad: float = 0.0) -> None:
        """The kubelets do their work."""
        for name in sorted(self.first.pods):
            if dice.random() < chance and name in self.first.pods:
                self.first.run(name, "Failed" if dice.random() < bad else "Succeeded")

    def delete_task(self, name: str) -> None:
        self.tasks[name].gone = True
        self.leader.queue.add(self.key(name))

    def collect(self, dice: random.Random, chance: float = 1.0) -> None:
        """The garbage collector deletes Pods of tasks that are gone."""
        for pod in [pod for task in self.tasks.values() if task.gone for pod in task.live()]:
            if not pod.deletion and dice.random() < chance:
                self.first.delete_pod(pod.name)

    def execute_late(self) -> None:
        """Requests that were given up by their client are executed yet."""
        while self.late:
            _try(self.late.pop())

    def take_over(self, executed: int, behind: int) -> None:
        """The leader is killed; another one leads when the Lease has run out, with a store that may lag."""
        self.leader.crash(executed)
        self.execute_late()
        self.clock.now += 16
        self.leader = Leader(self, behind)

    def converge(self) -> None:
        """The chaos ends: every task runs on every node, and all Pods end."""
        dice = random.Random(0)
        for _ in range(400):
            for _ in range(20):
                self.leader.finish()
                for what in ("nodes", "pods"):
                    self.leader.deliver(what, 1 << 30)
                if not self.leader.run_due():
                    break
            self.run_pods(dice)
            self.clock.now += 5
            if self._is_done():
                return
        waits = {name: task.status.conditions[-1].message for name, task in self.tasks.items()}
        raise AssertionError(f"no end: {waits}")

    def _is_done(self) -> bool:
        return all(task.gone or self._has_run(task) for task in self.tasks.values())

    def _has_run(self, task: Task) -> bool:
        entries = task.entries()
        ended = [
            (e := entries.get(node.name)) is not None
            and (e.node_uid, e.revision) == (node.uid, task.revision)
            and e.result != "Retry"
            for node in map(task.record, task.nodes.values())
        ]
        return all(ended) and not task.live()


def _try(call: Call) -> None:
    try:
        call.execute()
    except ApiError:
        return


async def _nothing() -> None:
    return None


async def _go(call: Call, *, lose_reply: bool) -> None:
    call.go(lose_reply=lose_reply)


async def _apply(store: Any, change: Change) -> None:
    apply_change(store, change)


@contextmanager
def group_world(clock: Clock, nodes: int, specs: Mapping[str, Mapping[str, Any]]) -> Iterator[GroupWorld]:
    """A world that is closed."""
    world = GroupWorld(clock, nodes, specs)
    try:
        yield world
    finally:
        world.close()
