"""kill -9 and two operators while nodes are drained: no node stays cordoned for nothing, none runs twice."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testbed.steer import behaviour
from testing.customresource import TIMEOUT
from testing.faults import Match
from testing.rollouts import Rollouts, die_at, rollouts, together
from testing.world import Task, node_of, seq_of

NODES = 2
MARK = "caretaker.dev/cordoned-by"
STEPS = {
    "cordon": Match(verb="patch", resource="nodes", nth=1),
    "eviction": Match(verb="create", resource="pods", subresource="eviction", nth=1),
    "pod": Match(verb="create", resource="pods", subresource="", where=lambda call: call.is_write, nth=1),
    "uncordon": Match(verb="patch", resource="nodes", nth=2),
}


def is_free(node: Json) -> bool:
    marks = node["metadata"].get("annotations") or {}
    return not node["spec"].get("unschedulable") and MARK not in marks


class Drains:
    """A rollout that drains its nodes, each with a Pod of a ReplicaSet."""

    def __init__(self, place: Rollouts) -> None:
        self.place = place
        self.most = 0
        self.pods: list[str] = []

    async def begin(self, **spec: object) -> Task:
        place = self.place
        for name in await place.nodes.add(NODES):
            labels = {"app": name}
            pod = {
                "nodeSelector": {"kubernetes.io/hostname": name},
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": "test:1"}],
            }
            template = {"metadata": {"labels": labels, "annotations": behaviour("hang")}, "spec": pod}
            body = {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "metadata": {"name": name},
                "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
            }
            await place.admin.create(f"/apis/apps/v1/namespaces/{place.namespace}/replicasets", body)
            (made,) = await place.admin.wait_for_all(
                path("pods", place.namespace),
                lambda pods: [one["status"].get("phase") for one in pods] == ["Running"],
                TIMEOUT,
                labels=f"app={name}",
            )
            self.pods.append(made["metadata"]["uid"])
        return await place.task(drain={}, parallelism=1, **spec)

    async def watch(self) -> None:
        """Note how many nodes are cordoned at once."""
        while True:
            found = [await self.place.admin.get(path("nodes", name=name)) for name in self.place.nodes.names]
            self.most = max(self.most, sum(not is_free(one) for one in found))
            await asyncio.sleep(0.05)

    async def free(self) -> None:
        for name in self.place.nodes.names:
            await self.place.admin.wait_for(path("nodes", name=name), is_free, TIMEOUT)

    async def done(self, task: Task) -> None:
        await self.place.converged(task, succeeded=NODES)
        await self.free()
        assert self.most <= 1
        runs = [(node_of(pod), seq_of(pod)) for pod in await task.pods()]
        assert runs == [(name, 1) for name in sorted(self.place.nodes.names)], "once on each node"
        left = await self.place.admin.list(path("pods", self.place.namespace))
        assert not {one["metadata"]["uid"] for one in left} & set(self.pods), "a run began beside a workload"


@pytest.fixture
async def place(cluster: Cluster, admin: Admin, tmp_path: Path) -> AsyncIterator[Rollouts]:
    async with rollouts(cluster, admin, tmp_path) as one:
        yield one


@pytest.mark.parametrize(
    "step",
    [
        "cordon",
        pytest.param("eviction", marks=pytest.mark.slow),
        pytest.param("pod", marks=pytest.mark.slow),
        "uncordon",
    ],
)
async def test_killed_at_a_step(step: str, cluster: Cluster, admin: Admin, tmp_path: Path) -> None:
    """Before the API server sees it, and after it was executed and before the answer."""

    async def one(when: str) -> None:
        async with rollouts(cluster, admin, tmp_path) as place:
            drains = Drains(place)
            operator, proxy = await place.operator(start=False)
            task = await drains.begin()
            seen = asyncio.create_task(drains.watch())
            try:
                await die_at(STEPS[step], when, operator, proxy)
                await asyncio.to_thread(operator.start)
                await drains.done(task)
            finally:
                seen.cancel()

    await together([one("before"), one("after")])


@pytest.mark.parametrize("step", ["cordon", pytest.param("pod", marks=pytest.mark.slow)])
async def test_a_task_that_goes_while_no_operator_runs_leaves_no_node_cordoned(
    step: str, place: Rollouts
) -> None:
    drains = Drains(place)
    operator, proxy = await place.operator(start=False)
    task = await drains.begin()
    await die_at(STEPS[step], "after", operator, proxy)
    await task.delete()
    await place.admin.wait_gone(task.url)
    await asyncio.to_thread(operator.start)
    await drains.free()


async def test_a_task_that_is_made_again_meanwhile_begins_anew(place: Rollouts) -> None:
    drains = Drains(place)
    operator, proxy = await place.operator(start=False)
    task = await drains.begin()
    await die_at(STEPS["cordon"], "after", operator, proxy)
    await task.delete()
    await place.admin.wait_gone(task.url)
    again = await place.task(drain={}, parallelism=1)
    seen = asyncio.create_task(drains.watch())
    try:
        await asyncio.to_thread(operator.start)
        await place.converged(again, succeeded=NODES)
        await drains.free()
    finally:
        seen.cancel()
    assert drains.most <= 2, "the old cordon, and one of its own"


@pytest.mark.slow
async def test_two_operators_drain_no_more_and_run_once(place: Rollouts) -> None:
    drains = Drains(place)
    for name in ("one", "two"):
        await place.operator(name)
    task = await drains.begin()
    await drains.done(task)
