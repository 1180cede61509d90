"""Rollouts under faults: a task on fake nodes, an operator behind a proxy of its own, and how both end.

Inputs: the shared cluster, a namespace, nodes of the test. Operators watch that namespace only, at
TIME_SCALE, so that rollouts of different tests never meet. Blocking helpers of the testbed run in threads.
"""

import asyncio
import contextlib
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testbed.steer import behaviour, steer_node
from testing.apiproxy import ApiProxy
from testing.cluster import Nodes
from testing.customresource import TIMEOUT, stands
from testing.faults import Match, Rule, Run
from testing.history import History
from testing.operator import OperatorProcess
from testing.world import Task

TIME_SCALE: Final = 0.1


class Rollouts:
    """One test's place: namespace, nodes, operators and the history of it all."""

    def __init__(
        self, cluster: Cluster, admin: Admin, namespace: str, nodes: Nodes, history: History, folder: Path
    ) -> None:
        self.cluster = cluster
        self.admin = admin
        self.namespace = namespace
        self.nodes = nodes
        self.history = history
        self._folder = folder
        self._stack = contextlib.ExitStack()

    async def task(self, name: str = "t", *, marks: Mapping[str, str] | None = None, **spec: Any) -> Task:
        """Create a DaemonTask on this test's nodes; `marks` are annotations of its Pods."""
        await self.admin.create(
            path("daemontasks", self.namespace),
            {
                "apiVersion": "caretaker.dev/v1alpha1",
                "kind": "DaemonTask",
                "metadata": {"name": name},
                "spec": {"template": self.template(marks), **spec},
            },
        )
        return Task(self.admin, self.namespace, name)

    def template(self, marks: Mapping[str, str] | None = None, image: str = "test:1") -> Json:
        """A Pod template for this test's nodes; another image is another revision."""
        marks = behaviour(run_seconds=0.3) if marks is None else marks
        pod = {"nodeSelector": self.nodes.selector, "containers": [{"name": "main", "image": image}]}
        return {"metadata": {"annotations": dict(marks)}, "spec": pod}

    async def operator(self, name: str = "operator", **how: Any) -> tuple[OperatorProcess, ApiProxy]:
        """An operator behind its own proxy, both ended with the test. Not started with `start=False`."""
        start = how.pop("start", True)
        proxy = await asyncio.to_thread(self._proxy, name)
        self.history.operators.append(proxy.ledger)
        config = proxy.write_kubeconfig(self._folder / f"{name}.kubeconfig")
        how = {"leader_elect": False, "time_scale": TIME_SCALE, "namespace": self.namespace, **how}
        lease = ("--operator-namespace", self.namespace, "--lease-name", "test")
        process = OperatorProcess(config, name, args=lease, **how)
        self._stack.callback(process.assert_clean_logs)
        self._stack.callback(process.kill9)
        if start:
            await asyncio.to_thread(process.start)
        return process, proxy

    def _proxy(self, name: str) -> ApiProxy:
        return self._stack.enter_context(ApiProxy(self.cluster.kubeconfig, name))

    def gate(self, task: str = "t") -> Json:
        """The taint that a task of this namespace removes."""
        return {"key": f"{self.namespace}.gate.caretaker.dev/{task}", "effect": "NoSchedule"}

    async def shut(self) -> dict[str, list[str]]:
        """The keys of each node's taints."""
        found = [await self.admin.get(path("nodes", name=name)) for name in self.nodes.names]
        return {
            one["metadata"]["name"]: [taint["key"] for taint in one["spec"].get("taints") or []]
            for one in found
        }

    async def fail_on(self, *names: str) -> None:
        """Every run on these nodes fails."""
        for name in names:
            await steer_node(self.admin, name, behaviour("fail", exit_code=3))

    async def converged(self, task: Task, timeout: float = TIMEOUT, **wanted: int) -> Json:
        """The task once every node is done with the current revision: `succeeded=5, failed=1`."""
        wanted = {"active": 0, "pending": 0, "blocked": 0, "failed": 0, **wanted}
        found = await task.counts(timeout, **wanted)
        results, revision = (wanted["succeeded"], wanted["failed"]), found["status"]["currentRevision"]
        # The ledger's next write may be put off for a moment, while the Pods are there to be counted.
        await task.ledger_when(lambda ledger: _results(ledger, revision) == results, timeout)
        return found

    def close(self) -> None:
        """End what was started, newest first."""
        self._stack.close()


def _results(ledger: Mapping[str, Json], revision: str) -> tuple[int, int]:
    found = [entry["result"] for entry in ledger.values() if entry["revision"] == revision]
    return found.count("Succeeded"), found.count("Failed")


@asynccontextmanager
async def rollouts(cluster: Cluster, admin: Admin, folder: Path) -> AsyncIterator[Rollouts]:
    """A place of its own, and everything ended afterwards. Many may be open side by side."""
    name = secrets.token_hex(4)
    nodes = Nodes(admin, name)
    async with own_namespace(admin, f"r-{name}") as namespace, History(admin, namespace) as history:
        (folder / name).mkdir()
        place = Rollouts(cluster, admin, namespace, nodes, history, folder / name)
        try:
            yield place
        finally:
            await asyncio.to_thread(place.close)
            await nodes.delete(*nodes.names)


@asynccontextmanager
async def own_namespace(admin: Admin, name: str) -> AsyncIterator[str]:
    """A namespace in which Pods can be created; deleted afterwards without waiting."""
    await admin.create(path("namespaces"), {"metadata": {"name": name}})
    await admin.wait_for(path("serviceaccounts", name, "default"), lambda _: True)
    try:
        yield name
    finally:
        for kind in ("daemontasks", "pods"):
            await admin.delete(path(kind, name), grace=0)
        await admin.delete(path("namespaces", name=name))


async def happened(rule: Rule, count: int = 1, timeout: float = TIMEOUT) -> None:
    """Return once the fault was applied `count` times."""
    await asyncio.to_thread(rule.wait, count, timeout)


async def die_at(step: Match, when: str, operator: OperatorProcess, proxy: ApiProxy) -> None:
    """Start the operator, and kill it with SIGKILL `before` or `after` the call."""
    dead = threading.Event()

    def kill(_: object) -> None:
        operator.kill9()
        dead.set()

    action = Run(run_before=kill, forward=False) if when == "before" else Run(run_after=kill)
    with proxy.fault(step, action):
        await asyncio.to_thread(operator.start)
        assert await asyncio.to_thread(dead.wait, TIMEOUT), f"no {step} to be killed at"


async def ready(task: Task, timeout: float = TIMEOUT) -> Json:
    """The task once Ready=True at its current generation."""
    return await task.when(lambda body: stands(body, "Ready"), timeout)


async def until(condition: Callable[[], Any], timeout: float = TIMEOUT) -> None:
    """Return once `condition`, which needs no API server, holds."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110  what it asks for sets no event
            await asyncio.sleep(0.02)


def fresh_image() -> str:
    """An image name that no template had before."""
    return f"test:{secrets.token_hex(4)}"


async def together(work: Iterable[Any]) -> list[Any]:
    """Run coroutines side by side; the first error ends all."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
    return [task.result() for task in tasks]
