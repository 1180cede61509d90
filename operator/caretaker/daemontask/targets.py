"""DaemonTask's two targets behind one runtime.controller.Kind: nodes, by Pods, and ECS services.

It decides only the target of a task: ECS where there is a spec.ecs. A snapshot's type is that of its target.
"""

import time
from typing import Any

from caretaker.daemontask.controller import DaemonTaskKind
from caretaker.daemontask.ecs.controller import EcsTarget
from caretaker.daemontask.ecs.snapshot import Snapshot as EcsSnapshot
from caretaker.daemontask.plan import Plan
from caretaker.daemontask.resource import has_ecs, read_ecs, size_of
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.status_input import Outcome
from caretaker.runtime.controller import Kind, Postponed
from caretaker.runtime.work_queue import Key


class Targets(DaemonTaskKind):
    """See the module. Nodes are its own target."""

    ecs: EcsTarget  # set by wiring.py

    def forget(self, key: Key) -> None:
        """The task is gone."""
        super().forget(key)
        self.ecs.forget(key)

    async def stop(self) -> None:
        """Another process may lead from now on."""
        await self.ecs.stop()
        await super().stop()

    def admit(self, key: Key) -> float:
        """See PassTurn.wait()."""
        return self._task_states.pass_turn(key).wait(time.monotonic())

    async def gather(self, key: Key) -> Snapshot | EcsSnapshot | None:  # type: ignore[override]
        """The snapshot of the task by its target."""
        raw = await self.read(key)
        if raw is None:
            return None
        if seconds := self._task_states.pass_turn(key).read(size_of(raw), time.monotonic()):
            raise Postponed(seconds)
        if has_ecs(raw):
            return await self.ecs.gather(key, *read_ecs(raw))
        return await super().gather(key, raw)

    def target(self, snapshot: Snapshot | EcsSnapshot) -> Kind[Any, Any, Any]:
        """The target of the task."""
        return self.ecs if isinstance(snapshot, EcsSnapshot) else self

    async def before(self, snapshot: Snapshot, plan: Plan) -> Outcome:
        """As for nodes, once the worker of an earlier task of this name is gone."""
        meta = snapshot.task.metadata
        self.ecs.forget(Key(self.kind, meta.namespace, meta.name))
        return await super().before(snapshot, plan)
