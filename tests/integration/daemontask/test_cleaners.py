"""Somebody deletes Pods the moment they have ended, before their ends are recorded."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager

from caretaker.daemontask.decision import BACKOFF_BASE
from testbed.admin import ApiError, path
from testing.apicalls import Call
from testing.apiproxy import ApiProxy
from testing.kubelet import HOLD, SUCCEED, Outcome, fail
from testing.operator import OperatorProcess
from testing.world import Task, World, holds_for

from .conftest import TIME_SCALE


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


async def test_pods_that_somebody_keeps_deleting_come_back_ever_later(world: World, proxy: ApiProxy) -> None:
    """Or two controllers would keep each other busy."""
    (node,) = await world.join()
    world.kubelet.default = HOLD
    world.kubelet.silent.add(node)  # the Pod goes without having ended, as when a node is drained by force
    task = await world.task(backoffLimit=0)
    waits: list[float] = []
    for deleted in range(1, 5):
        (pod,) = await task.pods_when(bool)
        asked = time.time()
        await world.delete_pods([pod], grace=0)
        waits.append(await created(world, proxy, after=deleted) - asked)
    assert waits[1] >= BACKOFF_BASE * TIME_SCALE
    assert waits[2] >= BACKOFF_BASE * 2 * TIME_SCALE
    assert waits[3] >= BACKOFF_BASE * 4 * TIME_SCALE


async def created(world: World, proxy: ApiProxy, *, after: int) -> float:
    """When the operator created the Pod that follows so many."""

    def creations() -> list[Call]:
        mine = (c for c in proxy.ledger.calls() if c.namespace == world.namespace)
        return [c for c in mine if c.is_write and (c.verb, c.resource, c.code) == ("create", "pods", 201)]

    await world.until(lambda: len(creations()) > after)
    return creations()[after].time
