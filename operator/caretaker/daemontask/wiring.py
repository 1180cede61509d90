"""Puts DaemonTask's controller together: its two targets, and the handlers of Node and Pod changes.

Nodes and ECS services are behind one runtime.controller.Kind. Targets decides only the target of a task: ECS
where there is a spec.ecs. A snapshot's type is that of its target.
"""

import time
from typing import Any, Final

from caretaker.api.names import LABEL_TASK
from caretaker.api.objects import Pod, WirePod
from caretaker.daemontask.controller import DaemonTaskKind
from caretaker.daemontask.dependencies import on_ecs
from caretaker.daemontask.ecs.controller import EcsTarget
from caretaker.daemontask.ecs.snapshot import Snapshot as EcsSnapshot
from caretaker.daemontask.metrics import DaemonTaskMetrics
from caretaker.daemontask.plan import Plan
from caretaker.daemontask.resource import has_ecs, read_ecs, size_of
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.status_input import Outcome
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.runtime.controller import Kind, Postponed
from caretaker.runtime.wiring import NODES, Context, Watch, Wiring
from caretaker.runtime.work_queue import Key

PODS: Final = Watch("pods", WirePod, Pod, selector=LABEL_TASK, namespaced=True)


class Targets(DaemonTaskKind):
    """See the module. Nodes are its own target."""

    ecs: EcsTarget  # set by make()

    async def forget(self, key: Key) -> None:
        """The task is gone."""
        self.ecs.forget(key)
        await super().forget(key)

    async def stop(self) -> None:
        """Another process may lead from now on."""
        await self.ecs.stop()
        await super().stop()

    def admit(self, key: Key) -> float:
        """See PassTurn.wait()."""
        return self._watched.task_states.pass_turn(key).wait(time.monotonic())

    async def gather(self, key: Key) -> Snapshot | EcsSnapshot | None:  # type: ignore[override]
        """The snapshot of the task by its target."""
        raw = await self.read(key)
        if raw is None:
            return None
        if seconds := self._watched.task_states.pass_turn(key).read(size_of(raw), time.monotonic()):
            raise Postponed(seconds)
        if has_ecs(raw):
            await self.release(key)  # of an earlier task of this name
            self._watched.order.took(key, (), on_ecs(raw.metadata))
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


def make(context: Context) -> Targets:
    """The kind, with its handlers subscribed to the stores."""
    metrics = DaemonTaskMetrics(context.metrics.registry)
    nodes, pods, namespace = context.store(NODES), context.store(PODS), context.settings.namespace or ""
    watched = WatchHandlers(nodes, pods, context.queue.add, namespace)
    kind = Targets(context.client, watched, metrics, context.settings.operator_namespace)
    kind.unseen = context.unseen
    kind.later = context.queue.add_after
    kind.ecs = EcsTarget(context.aws, context.settings.aws_grants, metrics, context.queue.add)
    return kind


WIRING: Final = Wiring((NODES, PODS), make)
