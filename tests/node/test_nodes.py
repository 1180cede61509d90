"""Two real nodes, which come, go, restart, run full and hang. In kind alone, which has a second one."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from caretaker.api.names import LABEL_TASK
from realnode.kind import KindNode
from testbed.admin import Admin, Json, Jsons, path
from testbed.nodes import is_ready
from testbed.recorder import PodRecorder
from testing.cli import Cli
from testing.customresource import Resource, condition, stands
from testing.nodetasks import task
from testing.release import NAMESPACE, Release, complete, kill, leader
from testing.release import PODS as OPERATOR

# A pipe in a folder of the node: a reader waits until a test writes.
HELD: Final = "/var/lib/held"
# Told to end it ends, which the first process of a container does not by itself.
WORK: Final = f"""
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
open("{HELD}/pipe").read()
"""
KUBELET: Final = "/var/lib/kubelet/config.yaml"
# The disk counts as full, and the kubelet reports it within a second.
FULL: Final = (
    r"s/^\( *nodefs.available:\).*/\1 99%/",
    r"s/^\(nodeStatusUpdateFrequency:\).*/\1 1s/",
)
TASKS: Final = path("daemontasks", "default")
WEB: Final = {"app": "web"}
WEBS: Final = path("deployments", "default", "web")
BUDGET: Final = path("poddisruptionbudgets", "default", "web")
PODS: Final = path("pods", "default")
REPLICAS: Final = 2
SERVE: Final = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
time.sleep(3600)
"""
# What later tests look at.
KEPT: Final = {"hello"}


class Worker:
    """The second worker. It joins for the first test that asks for it and stays for the others: a kubelet
    whose Node was deleted may take 20 s until it is Ready again."""

    def __init__(self, release: Release, node: KindNode) -> None:
        self._release = release
        self._node = node
        (self.name,) = node.others
        self._joined = False

    async def join(self, admin: Admin) -> None:
        """Return once it takes pods."""
        if not self._joined:
            self._joined = True
            await asyncio.to_thread(self._node.join, self.name)
            await admin.wait_for(path("nodes", name=self.name), is_ready, 90)

    def leave(self) -> None:
        """A Node that is deleted leaves its pods behind for a minute, the operator's among them, so it is
        drained before."""
        if self._joined:
            drain(self._release, self.name)
            self._node.leave(self.name)
            self._joined = False


@pytest.fixture(scope="module")
def worker(_release: Release, node: KindNode) -> Iterator[Worker]:
    """Not in the cluster before and after these tests."""
    made = Worker(_release, node)
    yield made
    made.leave()


@pytest.fixture
async def alone(release: Release, admin: Admin) -> None:
    """What earlier tests have run the second worker need not run, too."""
    for body in await admin.list(TASKS):
        if body["metadata"]["name"] not in KEPT:
            await admin.delete(f"{TASKS}/{body['metadata']['name']}")


@pytest.fixture
async def second(alone: None, worker: Worker, admin: Admin) -> str:
    """The name of the second worker, which is in the cluster."""
    await worker.join(admin)
    return worker.name


def drain(release: Release, name: str) -> None:
    """As `kubectl drain` does."""
    release.shell(f"kubectl drain {name} --ignore-daemonsets --delete-emptydir-data --timeout=60s")


async def run(admin: Admin, body: Json) -> Resource:
    """A task that is created."""
    await admin.create(TASKS, body)
    return Resource(admin, f"{TASKS}/{body['metadata']['name']}")


async def work(admin: Admin, node: KindNode, name: str, **spec: Any) -> Resource:
    """A task whose runs last until they are released."""
    for place in node.places.values():
        place.run(["sh", "-ec", f"mkdir -p {HELD}; test -p {HELD}/pipe || mkfifo -m 644 {HELD}/pipe"])
    body = task(name, WORK, pod={"volumes": [{"name": "held", "hostPath": {"path": HELD}}]}, **spec)
    (container,) = body["spec"]["template"]["spec"]["containers"]
    container["volumeMounts"] = [{"name": "held", "mountPath": HELD}]
    return await run(admin, body)


async def let_end(node: KindNode, name: str) -> None:
    """Release the run on a node; waits for one that has come so far."""
    await asyncio.to_thread(node.places[name].run, ["sh", "-c", f"echo > {HELD}/pipe"])


async def end(admin: Admin, resource: Resource) -> None:
    """Have it gone, so that no later node runs it."""
    await resource.delete()
    await admin.wait_gone(resource.url)


def counts(**wanted: int) -> Callable[[Json], bool]:
    """Whether a task's status has these numbers."""
    return lambda body: all(body["status"].get(name) == number for name, number in wanted.items())


async def running(admin: Admin, name: str, nodes: set[str]) -> None:
    """Until the task's pods run on these nodes."""

    def there(pods: list[Json]) -> bool:
        return nodes <= {pod["spec"].get("nodeName") for pod in pods if pod["status"]["phase"] == "Running"}

    await admin.wait_for_all(path("pods", "default"), there, 60, labels=f"{LABEL_TASK}={name}")


async def test_a_node_that_joins_runs_the_task(
    alone: None, node: KindNode, admin: Admin, worker: Worker
) -> None:
    comers = await run(admin, task("comers"))
    await comers.when(lambda body: stands(body, "Ready") and counts(desired=1, succeeded=1)(body))
    await worker.join(admin)
    await comers.when(counts(desired=2, succeeded=2))
    said = await Cli(node.kubeconfig, "default")("logs", "daemontask", "comers", "--nodes", worker.name)
    assert f"hello from {worker.name}" in said.out
    await end(admin, comers)


async def test_a_drain_in_the_middle_of_a_rollout_costs_no_attempt(
    release: Release, node: KindNode, admin: Admin, second: str
) -> None:
    """The run that the drain cut off is made good once the node takes pods again; the other node's is left
    alone."""
    async with PodRecorder(admin, "default", labels=f"{LABEL_TASK}=drained") as record:
        drained = await work(admin, node, "drained", backoffLimit=0)
        await running(admin, "drained", {node.name, second})
        await asyncio.to_thread(drain, release, second)
        await let_end(node, node.name)
        held = await drained.when(counts(succeeded=1, blocked=1, failed=0))
        (blocked,) = held["status"]["blockedNodes"]
        assert (blocked["nodeName"], blocked["reason"]) == (second, "Cordoned")
        await asyncio.to_thread(release.shell, f"kubectl uncordon {second}")
        await let_end(node, second)
        await drained.when(lambda body: stands(body, "Ready") and counts(succeeded=2, failed=0)(body))
        await record.settle()
        assert record.runs_per_node("Succeeded") == {node.name: 1, second: 1}
        assert record.runs_per_node() == {node.name: 1, second: 2}
    await end(admin, drained)
    await complete(admin)


async def test_a_kubelet_that_restarts_in_the_middle_of_a_run_repeats_nothing(
    release: Release, node: KindNode, admin: Admin, second: str
) -> None:
    nodes = {node.name, second}
    async with PodRecorder(admin, "default", labels=f"{LABEL_TASK}=restarted") as record:
        restarted = await work(admin, node, "restarted")
        await running(admin, "restarted", nodes)
        for name in nodes:
            await asyncio.to_thread(node.systemctl, name, "restart")
            since = datetime.now(UTC)
            await admin.wait_for(path("leases", "kube-node-lease", name), renewed(since))
            await let_end(node, name)
        await restarted.when(lambda body: stands(body, "Ready") and counts(succeeded=2)(body))
        await record.settle()
        assert record.runs_per_node() == dict.fromkeys(nodes, 1)
    await end(admin, restarted)


def renewed(since: datetime) -> Callable[[Json], bool]:
    """Whether a kubelet has renewed its Lease since then."""
    return lambda lease: datetime.fromisoformat(lease["spec"]["renewTime"]) > since


async def test_a_kubelet_with_a_full_disk_rejects_the_pod_and_the_node_runs_later(
    release: Release, node: KindNode, admin: Admin, second: str
) -> None:
    place = node.places[second]
    before = place.run(["cat", KUBELET])
    await asyncio.to_thread(place.run, ["sed", "-i", "-e", FULL[0], "-e", FULL[1], KUBELET])
    try:
        await asyncio.to_thread(node.systemctl, second, "restart")
        await admin.wait_for(path("nodes", name=second), pressed, 60)
        full = await run(admin, task("full", backoffLimit=0))
        held = await full.when(counts(succeeded=1, blocked=1, failed=0))
        (blocked,) = held["status"]["blockedNodes"]
        assert (blocked["nodeName"], blocked["reason"]) == (second, "Evicted")
        assert "DiskPressure" in blocked["message"]
    finally:
        await asyncio.to_thread(place.run, ["tee", KUBELET], before)
        await asyncio.to_thread(node.systemctl, second, "restart")
    await full.when(lambda body: stands(body, "Ready") and counts(succeeded=2, failed=0)(body))
    await end(admin, full)


def pressed(body: Json) -> bool:
    """Whether the node says that its disk is full."""
    return any(
        one["type"] == "DiskPressure" and one["status"] == "True" for one in body["status"]["conditions"]
    )


async def test_the_standby_on_another_node_acts_within_20_seconds_when_the_leaders_node_hangs(
    release: Release, node: KindNode, admin: Admin, second: str
) -> None:
    led = await leader(admin)
    standby, _ = await standby_of(admin, led)
    await admin.delete(path("pods", NAMESPACE, standby))
    await admin.wait_gone(path("pods", NAMESPACE, standby))
    await complete(admin)
    where = (await admin.get(path("pods", NAMESPACE, led)))["spec"]["nodeName"]
    standby, elsewhere = await standby_of(admin, led)
    assert {where, elsewhere} == {node.name, second}, "the new standby runs on the other node"
    since = time.monotonic()
    await asyncio.to_thread(node.freeze, where)
    try:
        hung = await run(admin, task("hung"))
        await admin.wait_for_all(path("pods", "default"), bool, 60, labels=f"{LABEL_TASK}=hung")
        assert time.monotonic() - since < 20
        await hung.when(lambda body: body["status"].get("succeeded", 0) >= 1)
        assert await leader(admin) == standby
        await kill(admin, led)
    finally:
        await asyncio.to_thread(node.freeze, where, thaw=True)
    await hung.when(lambda body: stands(body, "Ready") and counts(succeeded=2)(body))
    assert release.logged(led), "the log of the leader that hung is checked, too"
    await end(admin, hung)
    await complete(admin)


async def standby_of(admin: Admin, led: str) -> tuple[str, str]:
    """The pod that is not the leader, and its node."""
    pods = await admin.list(path("pods", NAMESPACE), labels=OPERATOR)
    (found,) = (pod for pod in pods if pod["metadata"]["name"] != led)
    return found["metadata"]["name"], found["spec"]["nodeName"]


def available(pod: Json) -> bool:
    """Whether it serves, and goes on to."""
    ready = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}.get("Ready") == "True"
    return ready and "deletionTimestamp" not in pod["metadata"]


def all_serve(pods: Jsons) -> bool:
    return sum(available(pod) for pod in pods) == REPLICAS == len(pods)


@asynccontextmanager
async def web(admin: Admin) -> AsyncIterator[list[int]]:
    """An application of two pods, none of which may be disrupted; how many served after each event."""
    pod = task("web", SERVE)["spec"]["template"]["spec"]
    spec: dict[str, Any] = {"replicas": REPLICAS, "selector": {"matchLabels": WEB}}
    spec["template"] = {"metadata": {"labels": WEB}, "spec": pod}
    await admin.create(path("deployments", "default"), {"metadata": {"name": "web"}, "spec": spec})
    budget = {"minAvailable": REPLICAS, "selector": {"matchLabels": WEB}}
    await admin.create(path("poddisruptionbudgets", "default"), {"metadata": {"name": "web"}, "spec": budget})
    await admin.wait_for_all(PODS, all_serve, 60, labels="app=web")
    await admin.wait_for(
        BUDGET, lambda found: (found.get("status") or {}).get("currentHealthy") == REPLICAS, 60
    )
    served: list[int] = []

    async def follow() -> None:
        async with aclosing(admin.states(PODS, labels="app=web")) as states:
            async for pods in states:
                served.append(sum(map(available, pods.values())))  # noqa: PERF401  it never ends

    following = asyncio.create_task(follow())
    try:
        yield served
    finally:
        following.cancel()
        await asyncio.wait({following})
        await admin.delete(WEBS)
        await admin.delete(BUDGET)
        await admin.wait_for_all(PODS, lambda pods: not pods, 60, labels="app=web")


def is_cordoned(node: Json) -> bool:
    return bool(node["spec"].get("unschedulable"))


def names(pods: Jsons) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


async def test_a_drain_keeps_to_a_disruption_budget_and_gives_every_node_back(
    release: Release, node: KindNode, admin: Admin, second: str
) -> None:
    async with web(admin) as served:
        before = names(await admin.list(PODS, labels="app=web"))
        how = {"podSelector": {"matchLabels": WEB}, "gracePeriodSeconds": 5}
        drained = await run(admin, task("budgeted", parallelism=1, drain=how))
        held = await drained.when(
            lambda body: "disruption budget" in condition(body, "Ready").get("message", "").lower()
        )
        assert held["status"].get("succeeded", 0) < REPLICAS
        assert sum(map(is_cordoned, await admin.list(path("nodes")))) == 1
        assert names(await admin.list(PODS, labels="app=web")) == before
        assert set(served) == {REPLICAS}
        await admin.patch(BUDGET, {"spec": {"minAvailable": REPLICAS - 1}})
        await drained.when(lambda body: stands(body, "Ready") and counts(succeeded=2, failed=0)(body), 180)
        await admin.wait_for_all(path("nodes"), lambda nodes: not any(map(is_cordoned, nodes)), 30)
        assert min(served) >= REPLICAS - 1
        assert not before & names(await admin.list(PODS, labels="app=web")), "each node was drained"
        await end(admin, drained)
    await complete(admin)


async def test_a_node_that_is_deleted_counts_no_more(
    release: Release, admin: Admin, worker: Worker, second: str
) -> None:
    goers = await run(admin, task("goers"))
    await goers.when(lambda body: stands(body, "Ready") and counts(desired=2, succeeded=2)(body))
    await asyncio.to_thread(worker.leave)
    await goers.when(lambda body: stands(body, "Ready") and counts(desired=1, succeeded=1)(body))
    await end(admin, goers)
    await complete(admin)
