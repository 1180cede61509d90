"""caretaker rerun, resume and logs on a real API server."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.cli import Cli
from testing.customresource import stands
from testing.faults import Exchange, Match, Run
from testing.kubelet import HOLD, fail
from testing.kubeletlogs import KubeletLogs
from testing.world import Task, World

pytestmark = pytest.mark.slow

RERUN_AT, RERUN_NODES = "caretaker.dev/rerun-at", "caretaker.dev/rerun-nodes"


@pytest.fixture
def watched(cluster: Cluster) -> Iterator[ApiProxy]:
    with ApiProxy(cluster.kubeconfig, "cli") as proxy:
        yield proxy


@pytest.fixture
def cli(watched: ApiProxy, namespace: str, tmp_path: Path) -> Cli:
    return Cli(watched.write_kubeconfig(tmp_path / "kubeconfig"), namespace)


@pytest.fixture
async def logs(cluster: Cluster, admin: Admin) -> AsyncIterator[KubeletLogs]:
    keys = cluster.folder / "pki"  # the API server's own: any certificate will do
    async with KubeletLogs(admin, keys / "apiserver.crt", keys / "apiserver.key") as serving:
        yield serving


async def marks(task: Task) -> dict[str, str]:
    return dict((await task.get())["metadata"].get("annotations") or {})


def seqs(ledger: dict[str, Any]) -> dict[str, int]:
    """Node name -> how many of its runs are recorded."""
    return {node: entry["seq"] for node, entry in ledger.items()}


class TestRerun:
    async def test_every_node_runs_once_more(self, world: World, cli: Cli, watched: ApiProxy) -> None:
        a, b = await world.join(2)
        task = await world.task()
        await task.done(2)
        said = await cli("rerun", "daemontask", "t")
        assert (said.code, said.err) == (0, "")
        assert said.lines == [f"DaemonTask {world.namespace}/t: 2 nodes will run again"]
        await task.ledger_when(lambda ledger: seqs(ledger) == {a: 2, b: 2})
        asked = datetime.fromisoformat((await marks(task))[RERUN_AT])
        assert asked.microsecond
        assert abs((datetime.now(UTC) - asked).total_seconds()) < 60
        assert [(call.verb, call.resource) for call in watched.ledger.writes()] == [("patch", "daemontasks")]

    async def test_a_clock_that_is_behind_asks_for_a_later_run_all_the_same(
        self, world: World, cli: Cli
    ) -> None:
        (node,) = await world.join()
        task = await world.task(annotations={RERUN_AT: "2040-01-01T00:00:00Z"})
        await task.done(1)
        await cli("rerun", "dtask/t", "--nodes", node)
        await task.ledger_when(lambda ledger: seqs(ledger).get(node) == 2)
        await cli("rerun", "dtask/t")
        await task.ledger_when(lambda ledger: seqs(ledger).get(node) == 3)

    async def test_named_nodes_run_and_what_keeps_others_is_told(self, world: World, cli: Cli) -> None:
        a, b, c = await world.join(3)
        task = await world.task()
        await task.done(3)
        await world.cordon(c)
        said = await cli("rerun", "dtask/t", "--nodes", f"{a},{c}")
        assert said.lines[0].endswith(": 1 node will run again")
        assert [line.split()[:4] for line in said.lines[1:]] == [
            [a, "will", "run"],
            [c, "is", "blocked", "Cordoned"],
        ]
        await task.ledger_when(lambda ledger: seqs(ledger) == {a: 2, b: 1, c: 1})
        await cli("rerun", "dtask/t", "--nodes", b)
        assert set(msgspec.json.decode((await marks(task))[RERUN_NODES])) == {a, b, c}

    async def test_failed_nodes_run_again(self, world: World, cli: Cli) -> None:
        bad, good = await world.join(2)
        world.kubelet.script(bad, fail())
        task = await world.task(backoffLimit=0)
        await task.counts(failed=1, succeeded=1)
        await task.ledger_when(lambda ledger: len(ledger) == 2)
        said = await cli("rerun", "dtask/t", "--failed")
        assert [line.split() for line in said.lines[1:]] == [[bad, "will", "run"]]
        await task.ledger_when(lambda ledger: seqs(ledger) == {bad: 2, good: 1})
        await task.done(2)
        again = await cli("rerun", "dtask/t", "--failed")
        assert (again.code, again.out) == (0, "no node of DaemonTask t has failed: nothing to run again\n")

    async def test_unknown_nodes_are_told_with_those_that_look_like_them(
        self, world: World, cli: Cli
    ) -> None:
        a, b = await world.join(2)
        task = await world.task(suspend=True)
        said = await cli("rerun", "dtask/t", "--nodes", f"{a},{b}x,zzz")
        assert (said.code, said.out) == (1, "")
        first, second = said.err.splitlines()
        assert f"there is no node {b}x; did you mean {b}" in first
        assert second.endswith("there is no node zzz; see kubectl get nodes")
        assert RERUN_NODES not in await marks(task)

    async def test_what_changes_meanwhile_is_not_overwritten(
        self, world: World, cli: Cli, watched: ApiProxy
    ) -> None:
        a, b = await world.join(2)
        task = await world.task(suspend=True)
        await task.when(lambda t: stands(t, "Suspended"))  # the operator has no more to write to it
        loop = asyncio.get_running_loop()

        def somebody_else(_: Exchange) -> None:
            mark = task.annotate(rerun_nodes=f'{{"{b}": "2040-01-01T00:00:00Z"}}')
            asyncio.run_coroutine_threadsafe(mark, loop).result(10)

        with watched.fault(Match(verb="patch", resource="daemontasks", times=1), Run(somebody_else)):
            said = await cli("rerun", "dtask/t", "--nodes", a)
        assert said.code == 0
        assert set(msgspec.json.decode((await marks(task))[RERUN_NODES])) == {a, b}
        assert [call.code for call in watched.ledger.writes()] == [409, 200]


class TestResume:
    async def test_a_paused_task_goes_on(self, world: World, cli: Cli) -> None:
        nodes = await world.join(3)
        for node in nodes:
            world.kubelet.script(node, fail())
        policy = {"action": "Pause", "maxFailedNodes": 0}
        task = await world.task(parallelism=1, backoffLimit=0, failurePolicy=policy)
        await task.condition("Ready", "False", "Paused")
        for node in nodes:
            world.kubelet.script(node)
        said = await cli("resume", "daemontask", "t")
        assert (said.code, said.err) == (0, "")
        assert said.out == "DaemonTask t goes on; 1 failed node up to now no longer hold it\n"
        await task.counts(failed=1, succeeded=2)

    async def test_one_that_is_never_paused_is_told_so(
        self, world: World, cli: Cli, watched: ApiProxy
    ) -> None:
        await world.task()
        said = await cli("resume", "dtask/t")
        assert (said.code, said.out) == (1, "")
        assert "its failurePolicy.action is Continue: nothing to resume" in said.err
        assert watched.ledger.writes() == []

    async def test_one_that_is_not_paused_now_is_told_so(self, world: World, cli: Cli) -> None:
        await world.task(suspend=True, failurePolicy={"action": "Pause", "maxFailedNodes": 0})
        said = await cli("resume", "dtask/t")
        assert said.code == 0
        assert "was not paused (it is suspended: set spec.suspend to false)" in said.out


class TestLogs:
    async def test_the_last_run_of_each_failed_node_is_printed(
        self, world: World, cli: Cli, logs: KubeletLogs
    ) -> None:
        bad, worse, good = await world.join(3)
        await logs.serve([bad, worse, good])
        for node in (bad, worse):
            world.kubelet.script(node, fail(), fail())
        task = await world.task(backoffLimit=1)
        found = await task.counts(failed=2, succeeded=1)
        pods = {f["nodeName"]: f["podName"] for f in found["status"]["failedNodes"]}
        logs.texts[pods[bad], "main"] = "one\ntwo\nthree\n"
        logs.texts[pods[worse], "main"] = ""
        said = await cli("logs", "daemontask", "t", "--failed", "--tail", "2")
        assert (said.code, said.err) == (0, "")
        assert said.lines == [f"{bad} | two", f"{bad} | three", f"{worse} | (it wrote nothing)"]

    async def test_named_nodes_give_their_newest_pod_and_every_container(
        self, world: World, cli: Cli, logs: KubeletLogs
    ) -> None:
        node, idle = await world.join(2)
        await logs.serve([node, idle])
        await world.cordon(idle)
        world.kubelet.script(node, HOLD)
        containers = [{"name": "one", "image": "test:1"}, {"name": "two", "image": "test:1"}]
        task = await world.task(template=world.template(containers=containers), suspend=True)
        await task.counts(blocked=1)  # the operator has heard of the cordon
        await task.edit(suspend=False)
        (pod,) = await task.running()
        name = pod["metadata"]["name"]
        said = await cli("logs", "dtask/t", "--nodes", f"{node},{idle}")
        assert said.lines == [
            f"{node} one | {name} one",
            f"{node} two | {name} two",
            f"{idle} | no logs: it has not run",
        ]
        assert said.code == 1

    async def test_what_cannot_be_had_is_told_and_the_rest_is_printed(
        self, world: World, cli: Cli, logs: KubeletLogs
    ) -> None:
        away, gone, here = await world.join(3)
        await logs.serve([gone, here])
        await logs.serve([away], closed_port())
        for node in (away, gone, here):
            world.kubelet.script(node, fail())
        task = await world.task(backoffLimit=0)
        await task.counts(failed=3)
        await task.ledger_when(lambda ledger: len(ledger) == 3)
        pods = {pod["spec"]["nodeName"]: pod for pod in await task.pods()}
        await world.delete_pods([pods[gone]], grace=0)
        await world.gone([pods[gone]])
        said = await cli("logs", "dtask/t", "--failed")
        first, second, third = said.lines
        assert first.startswith(f"{away} | no logs: ")
        assert "connection refused" in first
        assert second.startswith(f"{gone} | no logs: its pod {name_of(pods[gone])} is gone (deleted, or ")
        assert third == f"{here} | {name_of(pods[here])} main"
        assert (said.code, said.err) == (1, "")

    async def test_without_failures_there_is_nothing_to_print(self, world: World, cli: Cli) -> None:
        await world.join(1)
        await (await world.task()).done(1)
        said = await cli("logs", "dtask/t", "--failed")
        assert (said.code, said.out) == (0, "no node of DaemonTask t has failed\n")


def name_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
