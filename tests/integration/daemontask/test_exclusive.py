"""`exclusive`: tasks that exclude each other on a node, and share the nodes of their group."""

from collections.abc import Callable
from typing import Any

from testbed.recorder import PodRecorder, run_place
from testing.kubelet import HOLD, SUCCEED, Outcome
from testing.world import World

Recorders = Callable[[], PodRecorder]
FAIL = Outcome("Failed", reason="Error", exit_code=1)


def group(width: int | None = None) -> dict[str, Any]:
    return {"group": "kernel"} if width is None else {"group": "kernel", "parallelism": width}


def most_on_a_node(record: PodRecorder) -> int:
    """The most unfinished Pods of any tasks that a node had at a moment."""
    return max(peak.count for peak in record.peaks(lambda pod: run_place(pod)[1]).values())


async def test_two_tasks_of_a_group_are_never_on_a_node_together(world: World, recorders: Recorders) -> None:
    """system-upgrade-controller #225."""
    names = await world.join(4)
    world.kubelet.default = HOLD
    async with recorders() as record:
        first = await world.task("first", exclusive=group())
        await first.counts(active=4)
        second = await world.task("second", exclusive=group())
        waits = await second.condition("Progressing", "True", "HeldByGroup")
        assert "4 node(s) wait for DaemonTask first of exclusive group kernel" in waits["message"]
        await world.kubelet.finish(names[0])
        await second.counts(active=1, pending=3)
        world.kubelet.default = SUCCEED
        await world.kubelet.finish_all()
        await first.done(4)
        await second.done(4)
        await record.settle()
    assert most_on_a_node(record) == 1
    assert record.runs_per_node() == dict.fromkeys(names, 2)


async def test_all_tasks_of_a_group_share_its_parallelism(world: World, recorders: Recorders) -> None:
    names = await world.join(3)
    async with recorders() as record:
        tasks = [
            await world.task(name, parallelism=1, exclusive=group(1)) for name in ("first", "second", "third")
        ]
        for task in tasks:
            await task.done(3)
        await record.settle()
    assert record.max_active() == 1
    assert record.runs_per_node() == dict.fromkeys(names, 3)


async def test_a_node_in_backoff_is_held(world: World) -> None:
    (name,) = await world.join(1)
    world.kubelet.default = HOLD
    first = await world.task("first", exclusive=group(), backoffLimit=6)
    await first.running()
    second = await world.task("second", exclusive=group())
    await second.condition("Progressing", "True", "HeldByGroup")
    for _ in range(2):
        await world.kubelet.finish(name, outcome=FAIL)
        await first.running()
    assert await second.pods() == []
    world.kubelet.default = SUCCEED
    await world.kubelet.finish_all()
    await first.done(1)
    await second.done(1)


async def test_a_task_joins_and_leaves_a_group_while_its_pods_run(world: World) -> None:
    await world.join(2)
    world.kubelet.default = HOLD
    first = await world.task("first")
    await first.running(2)
    edited = await first.edit(exclusive=group())
    await first.when(lambda t: t["status"]["observedGeneration"] == edited["metadata"]["generation"])
    second = await world.task("second", exclusive=group())
    await second.condition("Progressing", "True", "HeldByGroup")
    assert await second.pods() == []
    await first.edit(exclusive=None)
    await second.running(2)
    assert len(await first.pods()) == 2
