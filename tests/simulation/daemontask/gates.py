"""An API server that opens nodes or refuses to, and passes over a task with a gate."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from caretaker.api.daemontask import NodeGate
from caretaker.api.objects import Node, WireNode
from caretaker.daemontask.gate_control import GateControl
from caretaker.daemontask.plan import plan
from caretaker.daemontask.task_state import TaskStates
from caretaker.kube.errors import ApiError
from caretaker.kube.store import Store
from caretaker.runtime.work_queue import Key
from unit.daemontask.build import UID, entry, node, snapshot, taint, task

SHUT = taint("default.gate.caretaker.dev/task")
OTHER = taint("x", "PreferNoSchedule")
BLIP = ApiError(503, "ServiceUnavailable", "blip")
POLICY = ApiError(403, "Forbidden", 'nodes "n" is forbidden: a policy keeps it')
RIGHT = ApiError(403, "Forbidden", 'cannot patch resource "nodes"')
BUSY = ApiError(409, "Conflict", "busy")
MOVED = ApiError(422, "Invalid", "the test failed")

Answer = ApiError | Node | None


def shut(*names: str, **fields: Any) -> list[Node]:
    return [node(name, taints=(SHUT,), **fields) for name in names]


def many(count: int, prefix: str = "n") -> list[Node]:
    return shut(*[f"{prefix}{number:04}" for number in range(count)])


def wire(of: Node) -> WireNode:
    taints = [{"key": one.key, "effect": one.effect, "value": one.value} for one in of.taints]
    return msgspec.convert(
        {
            "metadata": {"name": of.name, "uid": of.uid, "resourceVersion": "100"},
            "spec": {"taints": taints},
            "status": {"nodeInfo": {"bootID": of.boot_id}},
        },
        WireNode,
    )


class Server:
    """The API server's answers about nodes."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: dict[str, Node] = {one.name: one for one in nodes}
        self.refusals: dict[str, ApiError] = {}
        self.reads: Mapping[str, Answer] = {}
        self.pause: Callable[[str], Awaitable[None]] = lambda _: asyncio.sleep(0)
        self.asked: list[str] = []
        self.sent: list[Any] = []  # the steps of each patch
        self.write_seconds = 5.0

    async def patch(self, at: str, steps: object, _: object) -> WireNode:
        name = at.rsplit("/", 1)[1]
        self.sent.append(steps)
        self.asked.append(name)
        await self.pause(name)
        if (error := self.refusals.get(name)) is not None:
            raise error
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], taints=())
        return wire(self.nodes[name])

    async def get(self, at: str, _: object) -> WireNode:
        name = at.rsplit("/", 1)[1]
        answer = self.reads.get(name, self.nodes[name])
        await self.pause("get " + name)
        if isinstance(answer, ApiError):
            raise answer
        if answer is None:
            raise ApiError(404, "NotFound", "gone")
        return wire(answer)

    async def delete(self, at: str, **_: object) -> object:
        await self.pause("delete")
        raise ApiError(404, "NotFound", "gone", path=at)

    async def create(self, at: str, *_: object, **__: object) -> object:
        raise ApiError(500, "", "boom", path=at)


class Gates:
    """Passes over one task, at times of their own."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.server = Server(nodes)
        self.state = TaskStates().of(Key("DaemonTask", "default", "task"), UID)
        self.store = Store[Node]()
        self.task = task(node_gate=NodeGate())
        self.wake = 0.0
        self.now = time.time()
        for number, one in enumerate(self.server.nodes.values()):
            self.store.apply(one, number + 1)

    def passes(self, seconds: float = 0.0) -> "Gates":
        """One pass, so many seconds later. `asked` are the nodes of that pass."""
        self.now += seconds
        nodes = list(self.server.nodes.values())
        found = snapshot(
            self.task,
            nodes,
            [],
            {one.name: entry(one) for one in nodes},
            now=self.now,
            gates=self.state.gates,
        )
        made = plan(found)
        self.server.asked.clear()
        control = GateControl(self.server, self.store, lambda: self.now)  # type: ignore[arg-type]
        self.opened, self.again = asyncio.run(
            control.open(found.eligibility_rules.gate, found.task.spec.rerun_on, made, self.state)
        )
        left = [one for one in made.shut if one.name not in self.opened]
        self.reported = self.state.gates.reported(left, self.now)
        self.wake = self.state.gates.wake(left, self.now)
        self.asked = list(self.server.asked)
        return self

    @property
    def wait(self) -> float:
        return round(self.wake - self.now, 1) if self.wake else 0.0

    def refuse(self, error: ApiError, *names: str) -> None:
        self.server.refusals.update(dict.fromkeys(names or self.server.nodes, error))

    def join(self, *names: str) -> None:
        self.server.nodes.update({one.name: one for one in shut(*names)})
