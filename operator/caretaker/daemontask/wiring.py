"""Puts DaemonTask's controller together: its two targets, and the handlers of Node and Pod changes."""

from typing import Final

from caretaker.api.names import LABEL_TASK
from caretaker.api.objects import Pod, WirePod
from caretaker.daemontask.ecs.controller import EcsTarget
from caretaker.daemontask.metrics import DaemonTaskMetrics
from caretaker.daemontask.resource import KIND
from caretaker.daemontask.targets import Targets
from caretaker.daemontask.task_state import TaskStates
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.runtime.wiring import NODES, Context, Watch, Wiring

PODS: Final = Watch("pods", WirePod, Pod, selector=LABEL_TASK, namespaced=True)


def make(context: Context) -> Targets:
    """The kind, with its handlers subscribed to the stores."""
    nodes, pods = context.store(NODES), context.store(PODS)
    states, scale = TaskStates(), context.scale
    metrics = DaemonTaskMetrics(context.metrics.registry)
    handlers = WatchHandlers(KIND, states, nodes, pods, context.queue.add, scale)
    kind = Targets(context.client, nodes, handlers.nodes, pods, states, metrics, scale)
    kind.unseen = context.unseen
    kind.ecs = EcsTarget(context.aws, context.settings.aws_grants, metrics, context.queue.add, scale)
    return kind


WIRING: Final = Wiring((NODES, PODS), make)
