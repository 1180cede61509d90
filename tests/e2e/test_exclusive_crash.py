"""Tasks of an exclusive group over crashes and takeovers: no node has two of them, and no two nodes have any
where the group may have one."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

from testbed.admin import Admin
from testbed.cluster import Cluster
from testbed.recorder import run_place
from testbed.steer import behaviour
from testing.faults import Action, Match, Run, Stall
from testing.operator import OperatorProcess
from testing.rollouts import Rollouts, rollouts, until
from testing.world import Task

NODES = 3
ELECT_SCALE = 0.4


@pytest.fixture
async def place(cluster: Cluster, admin: Admin, tmp_path: Path) -> AsyncIterator[Rollouts]:
    async with rollouts(cluster, admin, tmp_path) as made:
        yield made


async def tasks_of(place: Rollouts, **spec: Any) -> list[Task]:
    marks = behaviour(run_seconds=0.5)
    return [await place.task(name, marks=marks, backoffLimit=0, **spec) for name in ("first", "second")]


def killing(operator: OperatorProcess, when: Literal["before", "after"], dead: threading.Event) -> Action:
    """kill -9 around a request."""

    def kill(_: object) -> None:
        operator.kill9()
        dead.set()

    return Run(run_before=kill, forward=False) if when == "before" else Run(run_after=kill)


def creates(nth: int) -> Match:
    return Match(verb="create", resource="pods", where=lambda call: call.is_write, nth=nth)


async def check(place: Rollouts, most: int) -> None:
    """Every node ran both tasks, one after the other."""
    await place.history.check(backoff_limit=0)
    pods = place.history.pods
    assert max(peak.count for peak in pods.peaks(lambda pod: run_place(pod)[1]).values()) == 1
    assert pods.max_active() <= most
    assert pods.runs_per_node() == dict.fromkeys(place.nodes.names, 2)


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
async def test_killed_while_it_creates_the_pods_of_a_group(
    place: Rollouts, when: Literal["before", "after"]
) -> None:
    await place.nodes.add(NODES)
    operator, proxy = await place.operator(start=False)
    tasks = await tasks_of(place, exclusive={"group": "kernel", "parallelism": 2})
    for nth in (1, 3):
        dead = threading.Event()
        with proxy.fault(creates(nth), killing(operator, when, dead)):
            await asyncio.to_thread(operator.start)
            assert await asyncio.to_thread(dead.wait, 60), "no Pod to be killed at"
    await asyncio.to_thread(operator.start)
    for task in tasks:
        await place.converged(task, succeeded=NODES)
    await check(place, 2)


@pytest.mark.slow
async def test_the_next_leader_starts_no_other_task_where_the_last_one_had_begun(place: Rollouts) -> None:
    """Killed at the answer to a create, the standby's watches of Pods standing still."""
    await place.nodes.add(NODES)
    how: dict[str, Any] = {"leader_elect": True, "time_scale": ELECT_SCALE}
    leader, proxy = await place.operator("leader", **how)
    await until(lambda: leader.metric("caretaker_leader") == 1)
    standby, other = await place.operator("standby", **how)
    await until(lambda: standby.readyz()[0] == 200)
    stood_still, dead = time.time(), threading.Event()
    other.add(Match(verb="watch", resource="pods", where=lambda call: call.time < stood_still), Stall())
    with proxy.fault(creates(2), killing(leader, "after", dead)):
        tasks = await tasks_of(place, parallelism=1, exclusive={"group": "kernel", "parallelism": 1})
        assert await asyncio.to_thread(dead.wait, 60)
    for task in tasks:
        await place.converged(task, succeeded=NODES)
    await check(place, 1)
