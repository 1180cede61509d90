"""DaemonTask's two targets behind one runtime.controller.Kind: nodes, by Pods, and ECS services.

It decides only the target of a task: ECS where there is a spec.ecs.
"""

import time
from collections.abc import Collection, Sequence
from typing import Any

from caretaker.api.daemontask import Status
from caretaker.api.events import Event
from caretaker.daemontask.controller import DaemonTaskKind
from caretaker.daemontask.ecs.controller import EcsTarget
from caretaker.daemontask.ecs.snapshot import Snapshot as EcsSnapshot
from caretaker.daemontask.resource import has_ecs, read_ecs
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.task_state import TaskStates
from caretaker.runtime.controller import Kind, Next, Subject
from caretaker.runtime.work_queue import Key

TargetSnapshot = Snapshot | EcsSnapshot


class Targets(Kind[TargetSnapshot, Any, Any]):
    """See the module. A snapshot's type is that of its target."""

    def __init__(self, nodes: DaemonTaskKind, ecs: EcsTarget, task_states: TaskStates) -> None:
        self.kind = nodes.kind
        self.stopped: Collection[str] = nodes.stopped
        self._nodes = nodes
        self._ecs = ecs
        self._task_states = task_states

    def _of(self, snapshot: TargetSnapshot) -> Kind[Any, Any, Any]:
        return self._ecs if isinstance(snapshot, EcsSnapshot) else self._nodes

    def forget(self, key: Key) -> None:
        """The task is gone."""
        self._nodes.forget(key)
        self._ecs.forget(key)

    async def stop(self) -> None:
        """Another process may lead from now on."""
        await self._ecs.stop()
        await self._nodes.stop()

    def admit(self, key: Key) -> float:
        """See TaskState.wait()."""
        return self._task_states.wait(key, time.monotonic())

    async def gather(self, key: Key) -> TargetSnapshot | None:
        """The snapshot of the task by its target."""
        raw = await self._nodes.read(key)
        if raw is None:
            return None
        if has_ecs(raw):
            return await self._ecs.gather(key, *read_ecs(raw))
        return await self._nodes.gather(key, raw)

    def plan(self, snapshot: TargetSnapshot) -> Any:
        """The target's plan."""
        return self._of(snapshot).plan(snapshot)

    async def recheck(self, snapshot: TargetSnapshot, plan: Any) -> TargetSnapshot | None:
        """The target's quorum reads."""
        newer: TargetSnapshot | None = await self._of(snapshot).recheck(snapshot, plan)
        return newer

    async def before(self, snapshot: TargetSnapshot, plan: Any) -> Any:
        """The target's writes."""
        if not isinstance(snapshot, EcsSnapshot):
            meta = snapshot.task.metadata
            self._ecs.forget(Key(self.kind, meta.namespace, meta.name))  # of an earlier task of this name
        return await self._of(snapshot).before(snapshot, plan)

    async def after(self, snapshot: TargetSnapshot, plan: Any, outcome: Any) -> None:
        """The target's writes once the status is stored."""
        await self._of(snapshot).after(snapshot, plan, outcome)

    def path(self, key: Key) -> str:
        """See resource.py."""
        return self._nodes.path(key)

    def subject(self, snapshot: TargetSnapshot) -> Subject:
        """The task."""
        return self._of(snapshot).subject(snapshot)

    def status(self, snapshot: TargetSnapshot, plan: Any, outcome: Any) -> Status:
        """The target's status."""
        status: Status = self._of(snapshot).status(snapshot, plan, outcome)
        return status

    def observe(self, snapshot: TargetSnapshot, plan: Any, status: Status) -> None:
        """The target's gauges."""
        self._of(snapshot).observe(snapshot, plan, status)

    def events(self, snapshot: TargetSnapshot, plan: Any, status: Status) -> Sequence[Event]:
        """The target's transitions."""
        return self._of(snapshot).events(snapshot, plan, status)

    def requeue(self, snapshot: TargetSnapshot, plan: Any, outcome: Any) -> Next:
        """The time of the target's next pass."""
        return self._of(snapshot).requeue(snapshot, plan, outcome)
