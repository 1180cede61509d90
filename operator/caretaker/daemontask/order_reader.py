"""Reads the tasks that a task depends on, where no pass of this process has read them, or they may be newer.

I/O only.
"""

from collections.abc import Sequence

from caretaker.daemontask.dependencies import Dependencies, identity_of
from caretaker.daemontask.task_order import TaskOrder
from caretaker.daemontask.task_state import cache_eligibility
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.kube.client import KubeClient, PartialObjectMetadata
from caretaker.kube.errors import or_none
from caretaker.registry import DAEMON_TASK
from caretaker.runtime.work_queue import Key


async def read_dependencies(
    client: KubeClient, watched: WatchHandlers, key: Key, names: Sequence[str]
) -> Dependencies:
    """The progress of other tasks by their passes in this process. One without a pass is looked for."""
    order = watched.order
    for other in order.unknown(key, names):
        if await _metadata_of(client, other) is None:
            order.missing(other)
    found = order.of(key, names)
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
            found = await _metadata_of(client, other)
            if found is None or identity_of(found.metadata) != one.progress.identity:
                order.outdated(other, one.progress)
                current = False
    return current


async def _metadata_of(client: KubeClient, key: Key) -> PartialObjectMetadata | None:
    found: PartialObjectMetadata | None = await or_none(
        client.get(DAEMON_TASK.path(key.namespace, key.name), PartialObjectMetadata)
    )
    return found
