"""Somebody deletes Pods the moment they have ended, before their ends are recorded."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager

from testbed.admin import ApiError, path
from testing.kubelet import HOLD, SUCCEED, Outcome, fail
from testing.operator import OperatorProcess
from testing.world import Task, World, holds_for


@contextmanager
def held_up(operator: OperatorProcess) -> Iterator[None]:
    """It hears of everything in order, and late: nothing can be recorded in between."""
    operator.pause()
    try:
        yield
    finally:
        operator.resume()


async def end_and_delete(world: World, task: Task, node: str, outcome: Outcome) -> None:
    await world.kubelet.finish(node, outcome=outcome)
    pods = await task.pods_when(lambda pods: all(p["status"]["phase"] == outcome.phase for p in pods))
    await world.delete_pods(pods)
    await world.gone(pods)


async def test_a_success_whose_pod_is_gone_at_once_is_recorded_and_not_repeated(
    world: World, operator: OperatorProcess
) -> None:
    (node,) = await world.join()
    world.kubelet.default = HOLD
    task = await world.task()
    await task.running()
    with held_up(operator):
        await end_and_delete(world, task, node, SUCCEED)
    await task.done(1)
    await holds_for(2, lambda: len(world.kubelet.ran) == 1)
    assert (await task.ledger())[node]["result"] == "Succeeded"


async def test_failures_whose_pods_are_gone_at_once_are_counted(
    world: World, operator: OperatorProcess
) -> None:
    (node,) = await world.join()
    world.kubelet.default = HOLD
    task = await world.task(backoffLimit=1)
    for _ in range(2):
        await task.running()
        with held_up(operator):
            await end_and_delete(world, task, node, fail(3, "disk is full"))
    found = await task.counts(failed=1)
    (failed,) = found["status"]["failedNodes"]
    assert (failed["attempts"], failed["exitCode"], failed["message"]) == (2, 3, "disk is full")
    await holds_for(2, lambda: len(world.kubelet.ran) == 2)


@asynccontextmanager
async def cleaner(world: World) -> AsyncIterator[None]:
    """Deletes what has failed, as soon as it hears of it."""

    async def clean() -> None:
        async with aclosing(world.admin.states(path("pods", world.namespace))) as states:
            async for pods in states:
                for pod in list(pods.values()):
                    if pod["status"].get("phase") == "Failed":
                        await remove(pod["metadata"]["name"])

    async def remove(name: str) -> None:
        try:
            await world.admin.delete(path("pods", world.namespace, name))
        except ApiError as error:
            if error.status != 404:
                raise

    cleaning = asyncio.create_task(clean())
    try:
        yield
    finally:
        cleaning.cancel()
        await asyncio.gather(cleaning, return_exceptions=True)


async def test_a_cleaner_of_failed_pods_does_not_get_round_the_backoff_limit(world: World) -> None:
    nodes = await world.join(3)
    world.kubelet.default = fail(3)
    async with cleaner(world):
        task = await world.task(backoffLimit=1)
        found = await task.counts(failed=3)
        assert {node["attempts"] for node in found["status"]["failedNodes"]} == {2}
        await holds_for(2, lambda: len(world.kubelet.ran) == 2 * len(nodes))
