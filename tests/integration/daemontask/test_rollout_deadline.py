"""The deadline of a rollout on a real API server: `rolloutDeadlineSeconds`, also across a kill."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.cli import Cli
from testing.customresource import condition, stands
from testing.kubelet import HOLD
from testing.operator import OperatorProcess
from testing.world import Task, World, holds_for

OVER: Final = "RolloutDeadlineExceeded"
HOUR: Final = 3600


@asynccontextmanager
async def an_hour_later(
    killed: OperatorProcess, namespace: str, kubeconfig: Path
) -> AsyncIterator[OperatorProcess]:
    """This operator is killed, and one whose clock is ahead takes its place meanwhile."""
    killed.kill9()
    late = OperatorProcess(
        kubeconfig, "late", namespace=namespace, leader_elect=False, time_scale=0.1, skew=HOUR + 1
    )
    try:
        await asyncio.to_thread(late.start)
        yield late
    finally:
        await asyncio.to_thread(late.terminate)
        await asyncio.to_thread(killed.start)


async def first_of_three(world: World) -> Task:
    """One node runs, two wait for its slot. Nodes that join in the second of the beginning are part of it."""
    await world.join(3)
    await world.until(lambda: time.time() % 1 > 0.5)
    world.kubelet.default = HOLD
    task = await world.task(parallelism=1, rolloutDeadlineSeconds=HOUR)
    await task.counts(active=1, pending=2)
    await task.running(1)
    return task


async def test_the_deadline_passes_while_the_operator_is_killed(
    world: World, operator: OperatorProcess, proxy: ApiProxy, tmp_path: Path
) -> None:
    """Nothing of the rollout begins, the active run finishes, a node that joins runs; a resume continues."""
    task = await first_of_three(world)
    began = (await task.get())["status"]["rollout"]["startTime"]
    kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")
    async with an_hour_later(operator, world.namespace, kubeconfig):
        found = await task.when(lambda t: stands(t, "Ready", "False", OVER))
        assert (found["status"]["active"], found["status"]["pending"]) == (1, 2)
        assert found["status"]["rollout"]["startTime"] == began
        assert stands(found, "Reconciling")
        await world.kubelet.finish_all()
        found = await task.when(lambda t: stands(t, "Stalled", reason=OVER))
        assert (found["status"]["succeeded"], found["status"]["pending"]) == (1, 2)
        assert stands(found, "Progressing", "False", OVER)
        await task.event(OVER)
        await holds_for(2, lambda: len(world.kubelet.ran) == 1)
        await world.join()
        found = await task.counts(succeeded=2, pending=2)
        assert condition(found, "Ready")["reason"] == OVER
        await task.annotate(resume_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        await task.done(4)
    assert len(world.kubelet.ran) == 4


async def test_a_kill_before_the_deadline_leaves_its_clock_as_it_was(
    world: World, operator: OperatorProcess
) -> None:
    task = await first_of_three(world)
    began = (await task.get())["status"]["rollout"]["startTime"]
    operator.kill9()
    await world.kubelet.finish_all()
    await asyncio.to_thread(operator.start)
    found = await task.done(3)
    assert found["status"]["rollout"]["startTime"] == began


@pytest.mark.slow
async def test_the_deadline_comes_by_itself_and_the_command_line_resumes_after_it(
    world: World, cluster: Cluster
) -> None:
    task = await first_of_three(world)
    cli = Cli(cluster.kubeconfig, world.namespace)
    assert "deadline of the rollout: " in (await cli("status", "daemontask", task.name)).out
    await task.edit(rolloutDeadlineSeconds=60)
    found = await task.when(lambda t: stands(t, "Ready", "False", OVER), 90)
    began = datetime.fromisoformat(found["status"]["rollout"]["startTime"]).timestamp()
    assert time.time() >= began + 60
    await world.kubelet.finish_all()
    await task.when(lambda t: stands(t, "Stalled", reason=OVER))
    assert len(world.kubelet.ran) == 1
    planned = await cli("status", "daemontask", task.name)
    assert OVER in planned.out
    resumed = await cli("resume", "daemontask", task.name)
    assert "rolloutDeadlineSeconds count from now" in resumed.out
    await task.done(3)
