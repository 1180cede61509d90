"""Reads of the tasks that a task depends on. I/O only."""

from collections.abc import Sequence

from caretaker.daemontask.dependencies import Dependencies, identity_of
from caretaker.daemontask.task_order import TaskOrder
from caretaker.daemontask.task_state import cache_eligibility
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.kube.client import KubeClient, PartialObjectMetadata
from caretaker.kube.errors import or_none
from caretaker.registry import DAEMON_TASK
from caretaker.runtime.work_queue import Key


async def read_dependencies(watched: WatchHandlers, key: Key, names: Sequence[str]) -> Dependencies:
    """The progress of other tasks by their passes in this process; TaskOrder.took() asks for a first one."""
    found = watched.order.of(key, names)
    for one in found.each:
        if one.progress is not None and one.progress.rules.costly:
            await cache_eligibility(one.progress.rules, list(watched.nodes.values()))
    return found


async def are_current(client: KubeClient, order: TaskOrder, key: Key, dependencies: Dependencies) -> bool:
    """Whether the other tasks are as the passes over them have read them."""
    current = True
    for one in dependencies.each:
        if one.progress is not None:
            other = Key(key.kind, key.namespace, one.name)
            path = DAEMON_TASK.path(other.namespace, other.name)
            found = await or_none(client.get(path, PartialObjectMetadata))
            if found is None or identity_of(found.metadata) != one.progress.identity:
                order.outdated(other, one.progress)
                current = False
    return current
