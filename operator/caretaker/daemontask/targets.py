"""DaemonTask's two targets behind one runtime.controller.Kind: nodes, by Pods, and ECS services.

It decides nothing but whose a task is: that of spec.ecs where there is one.
"""

import time
from collections.abc import Collection, Sequence
from typing import Any

from caretaker.api.daemontask import Status
from caretaker.api.events import Event
from caretaker.daemontask.controller import DaemonTaskKind
from caretaker.daemontask.ecs.controller import EcsTarget
from caretaker.daemontask.ecs.plan import Plan as EcsPlan
from caretaker.daemontask.ecs.snapshot import Snapshot as EcsSnapshot
from caretaker.daemontask.resource import has_ecs, read_ecs
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.task_state import TaskStates
from caretaker.runtime.controller import Later, Next, Subject
from caretaker.runtime.work_queue import Key

Gathered = Snapshot | EcsSnapshot


class Targets:
    """See the module."""

    def __init__(self, nodes: DaemonTaskKind, ecs: EcsTarget, task_states: TaskStates) -> None:
        self.kind = nodes.kind
        self.stopped: Collection[str] = nodes.stopped
        self._nodes = nodes
        self._ecs = ecs
        self._task_states = task_states

    def forget(self, key: Key) -> None:
        """The task is gone."""
        self._nodes.forget(key)
        self._ecs.forget(key)

    async def gather(self, key: Key) -> Gathered | None:
        """The task, and what its target knows."""
        if wait := self._task_states.wait(key, time.monotonic()):
            raise Later(wait)
        raw = await self._nodes.read(key)
        if raw is None:
            return None
        if has_ecs(raw):
            return await self._ecs.gather(key, *read_ecs(raw))
        self._ecs.forget(key)
        return await self._nodes.gather(key, raw)

    def plan(self, snapshot: Gathered) -> Any:
        """Pure, whichever it is."""
        if isinstance(snapshot, EcsSnapshot):
            return self._ecs.plan(snapshot)
        return self._nodes.plan(snapshot)

    async def recheck(self, snapshot: Gathered, plan: Any) -> Gathered | None:
        """What a look finds is read from ECS a moment before it acts on it."""
        if isinstance(snapshot, EcsSnapshot):
            return None
        return await self._nodes.recheck(snapshot, plan)

    async def before(self, snapshot: Gathered, plan: Any) -> Any:
        """Do what the plan says."""
        if isinstance(snapshot, EcsSnapshot):
            return self._ecs.before(snapshot, plan)
        return await self._nodes.before(snapshot, plan)

    async def after(self, snapshot: Gathered, plan: Any, outcome: Any) -> None:
        """Runs are on record in the ledger, and what was set in ECS can be seen there."""

    def path(self, key: Key) -> str:
        """See resource.py."""
        return self._nodes.path(key)

    def subject(self, snapshot: Gathered) -> Subject:
        """The task."""
        if isinstance(snapshot, EcsSnapshot):
            return self._ecs.subject(snapshot)
        return self._nodes.subject(snapshot)

    def status(self, snapshot: Gathered, plan: Any, outcome: Any) -> Status:
        """What the target says of it."""
        if isinstance(snapshot, EcsSnapshot):
            return self._ecs.status(snapshot)
        return self._nodes.status(snapshot, plan, outcome)

    def events(self, snapshot: Gathered, plan: Any, status: Status) -> Sequence[Event]:
        """Transitions only."""
        if isinstance(snapshot, EcsSnapshot):
            return self._ecs.events(snapshot, status)
        return self._nodes.events(snapshot, plan, status)

    def requeue(self, snapshot: Gathered, plan: Any, outcome: Any) -> Next:
        """When to look again."""
        if isinstance(plan, EcsPlan):
            return self._ecs.requeue(plan)
        return self._nodes.requeue(snapshot, plan, outcome)  # type: ignore[arg-type] # a plan of the nodes' own
