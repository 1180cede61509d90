"""kill -9 while one task follows another: the order holds, and each node runs each task once."""

import asyncio
from pathlib import Path

import pytest

from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testbed.steer import behaviour
from testing.faults import Match
from testing.rollouts import Rollouts, die_at, rollouts, together
from testing.world import Task, node_of

NODES = 2
STEPS = {
    "the record of the first task": Match(
        verb=("create", "patch"), resource="configmaps", where=lambda call: call.is_write, nth=1
    ),
    "a pod of the second task": Match(
        verb="create", resource="pods", subresource="", where=lambda call: call.is_write, nth=NODES + 1
    ),
}


def ended(pod: Json) -> str:
    (one,) = pod["status"]["containerStatuses"]
    return str(one["state"]["terminated"]["finishedAt"])


async def in_order(place: Rollouts, first: Task, second: Task) -> None:
    await place.converged(first, succeeded=NODES)
    await place.converged(second, succeeded=NODES)
    before, after = await first.pods(), await second.pods()
    nodes = sorted(place.nodes.names)
    assert [[node_of(pod) for pod in pods] for pods in (before, after)] == [nodes, nodes], "once on each node"
    for one, other in zip(before, after, strict=True):
        assert ended(one) <= other["metadata"]["creationTimestamp"], "it began before the first had ended"


@pytest.mark.parametrize("step", STEPS)
async def test_killed_between_two_tasks(step: str, cluster: Cluster, admin: Admin, tmp_path: Path) -> None:
    """Before the API server sees it, and after it was executed and before the answer."""

    async def one(when: str) -> None:
        async with rollouts(cluster, admin, tmp_path) as place:
            operator, proxy = await place.operator(start=False)
            await place.nodes.add(NODES)
            second = await place.task("second", dependsOn=[{"name": "first"}])
            first = await place.task("first", marks=behaviour(run_seconds=2))
            await die_at(STEPS[step], when, operator, proxy)
            await asyncio.to_thread(operator.start)
            await in_order(place, first, second)
            left = await admin.list(path("daemontasks", place.namespace))
            assert len(left) == 2

    await together([one("before"), one("after")])
