"""caretaker status on a real API server: what it tells, how it follows, when it ends."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.cli import Cli, Said, spawn
from testing.customresource import TIMEOUT
from testing.kubelet import HOLD, fail
from testing.world import World

pytestmark = pytest.mark.slow


@pytest.fixture
def watched(cluster: Cluster) -> Iterator[ApiProxy]:
    with ApiProxy(cluster.kubeconfig, "cli") as proxy:
        yield proxy


@pytest.fixture
def cli(watched: ApiProxy, namespace: str, tmp_path: Path) -> Cli:
    return Cli(watched.write_kubeconfig(tmp_path / "kubeconfig"), namespace)


async def test_each_node_has_its_state(world: World, cli: Cli, watched: ApiProxy) -> None:
    bad, busy, good = await world.join(3)
    (cordoned,) = await world.join()
    await world.cordon(cordoned)
    world.kubelet.script(bad, fail(3, "disk is full"))
    world.kubelet.script(busy, HOLD)
    task = await world.task(backoffLimit=0)
    found = await task.counts(failed=1, active=1, succeeded=1, blocked=1)
    await task.running()
    said = await cli("status", "daemontask", "t", "-o", "json")
    assert (said.code, said.err) == (0, "")
    nodes = {row["node"]: row for row in said.json["nodes"]}
    (failed,) = found["status"]["failedNodes"]
    ledger = await task.ledger_when(lambda entries: {bad, good} <= entries.keys())
    assert nodes[bad] == {
        "node": bad,
        "state": "failed",
        "reason": "Error",
        "message": "disk is full",
        "attempts": 1,
        "lastFinishTime": failed["lastFinishTime"],
        "exitCode": 3,
        "pod": failed["podName"],
        "runKey": ledger[bad]["runKey"],
        "results": None,
        "slot": False,
    }
    assert (nodes[busy]["state"], nodes[busy]["reason"]) == ("active", "Running")
    assert (nodes[good]["state"], nodes[good]["runKey"]) == ("succeeded", ledger[good]["runKey"])
    assert (nodes[cordoned]["state"], nodes[cordoned]["reason"]) == ("blocked", "Cordoned")
    assert {row["reason"] for name, row in nodes.items() if name not in world.nodes.names} == {"NodeSelector"}
    assert said.json["counts"] | {"excluded": 0} == {
        "succeeded": 1,
        "failed": 1,
        "active": 1,
        "pending": 0,
        "blocked": 1,
        "excluded": 0,
    }
    assert watched.ledger.writes() == []


async def test_people_are_told_what_is_wrong_and_what_to_do(world: World, cli: Cli) -> None:
    (bad,) = await world.join()
    world.kubelet.script(bad, fail(3, "disk is full"))
    task = await world.task(backoffLimit=0)
    await task.condition("Stalled")
    said = await cli("status", "dtask/t")
    assert said.code == 0
    assert "1 failed" in said.lines[1]
    assert f"  -> caretaker logs daemontask t -n {world.namespace} --failed; fix it, then" in said.out
    row = next(line for line in said.lines if line.startswith(bad))
    assert row.split()[1:4] == ["failed", "Error", "1"]
    assert row.endswith("disk is full")


async def test_a_task_that_is_not_there_is_told_with_those_that_are(world: World, cli: Cli) -> None:
    await world.task("hello", suspend=True)
    near = await cli("status", "dtask/helo")
    assert (near.code, near.out) == (1, "")
    assert near.err.endswith(f"no DaemonTask helo in namespace {world.namespace}; did you mean hello?\n")
    elsewhere = await cli("status", "dtask/hello", namespace="default")
    assert f"there is one in {world.namespace}: add -n {world.namespace}" in elsewhere.err


async def until_watching(watched: ApiProxy, watching: "asyncio.Task[Said]") -> None:
    """Return once the four watches are open."""
    async with asyncio.timeout(TIMEOUT):
        while watched.open_watches() < 4:
            assert not watching.done(), watching.result()
            await asyncio.sleep(0.05)


async def test_a_watch_follows_to_the_end_without_polling(world: World, cli: Cli, watched: ApiProxy) -> None:
    world.kubelet.default = HOLD
    nodes = await world.join(3)
    task = await world.task(parallelism=1)
    await task.counts(active=1, pending=2)
    watching = asyncio.create_task(cli("status", "dtask/t", "--watch"))
    await until_watching(watched, watching)
    await world.kubelet.finish_all()
    said = await asyncio.wait_for(watching, TIMEOUT)
    assert (said.code, said.err) == (0, "")
    progress, final = said.out.split("\n\n", 1)
    assert progress.splitlines()[0] == "3 nodes: 1 active, 2 pending"
    assert progress.splitlines()[-1] == "3 nodes: 3 succeeded"
    assert all(node in final for node in nodes)
    reads = [call for call in watched.ledger.calls() if call.verb == "list"]
    assert sorted(call.resource for call in reads) == ["configmaps", "daemontasks", "nodes", "pods"]
    assert watched.ledger.writes() == []


async def test_a_watch_ends_with_1_when_nodes_failed(world: World, cli: Cli, watched: ApiProxy) -> None:
    world.kubelet.default = HOLD
    await world.join(1)
    task = await world.task(backoffLimit=0)
    await task.counts(active=1)
    watching = asyncio.create_task(cli("status", "dtask/t", "--watch", "-o", "json"))
    await until_watching(watched, watching)
    await world.kubelet.finish_all(fail(5))
    said = await asyncio.wait_for(watching, TIMEOUT)
    assert said.code == 1
    states = [msgspec.json.decode(line) for line in said.lines]
    assert states[0]["counts"]["active"] == 1
    (last,) = (row for row in states[-1]["nodes"] if row["state"] != "excluded")
    assert (last["state"], last["exitCode"]) == ("failed", 5)


async def test_a_watch_lives_through_lost_connections(world: World, cli: Cli, watched: ApiProxy) -> None:
    world.kubelet.default = HOLD
    await world.join(1)
    task = await world.task()
    await task.counts(active=1)
    watching = asyncio.create_task(cli("status", "dtask/t", "--watch"))
    await until_watching(watched, watching)
    with watched.partition():
        await world.kubelet.finish_all()
        await task.done(1)
    said = await asyncio.wait_for(watching, TIMEOUT)
    assert said.code == 0
    assert "trying again" in said.err
    assert "1 node: 1 succeeded" in said.out


async def test_a_task_deleted_under_a_watch_is_told(world: World, cli: Cli, watched: ApiProxy) -> None:
    world.kubelet.default = HOLD
    await world.join(1)
    task = await world.task()
    await task.counts(active=1)
    watching = asyncio.create_task(cli("status", "dtask/t", "--watch"))
    await until_watching(watched, watching)
    await task.delete()
    said = await asyncio.wait_for(watching, TIMEOUT)
    assert said.code == 1
    assert said.err.endswith("DaemonTask t was deleted\n")


def read_until(reader: int, process: "subprocess.Popen[bytes]", words: bytes) -> bytes:
    """What the command has printed once `words` are in it."""
    seen = b""
    while words not in seen:
        try:
            part = os.read(reader, 65536)
        except OSError:  # the terminal's other end is closed
            part = b""
        if not part:
            told = process.stderr.read() if process.stderr else b""
            raise AssertionError(f"ended without {words!r}: {seen!r} {told!r}")
        seen += part
    return seen


async def test_on_a_terminal_a_bar_moves_until_ctrl_c(world: World, cli: Cli) -> None:
    _, held = await world.join(2)
    world.kubelet.script(held, HOLD)
    task = await world.task()
    await task.counts(active=1, succeeded=1)
    argv = ("status", "dtask/t", "-w", "-n", world.namespace, "--kubeconfig", str(cli.kubeconfig))
    process, terminal = spawn(*argv, terminal=True)
    try:
        bar = await asyncio.to_thread(read_until, terminal, process, b"1 active")
        assert b"\r\x1b[K[############------------]  1/2  1 active" in bar
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, TIMEOUT) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.communicate()
        os.close(terminal)


@pytest.mark.parametrize(
    "output",
    [pytest.param(("-o", "json"), id="a long answer"), pytest.param((), id="one below a buffer's size")],
)
async def test_a_reader_that_goes_away_is_no_error(world: World, cli: Cli, output: tuple[str, ...]) -> None:
    await world.join(1)
    await (await world.task()).done(1)
    argv = ("status", "dtask/t", *output, "-n", world.namespace, "--kubeconfig", str(cli.kubeconfig))
    process, reader = spawn(*argv)
    os.close(reader)  # as `| true` does
    _, err = await asyncio.to_thread(process.communicate, None, TIMEOUT)
    assert (process.returncode, err) == (1, b"")


async def test_a_gate_has_a_line_with_its_taint_and_the_nodes_that_carry_it(
    world: World, cli: Cli, tmp_path: Path
) -> None:
    key = f"{world.namespace}.gate.caretaker.dev/t"
    shut, _ = await world.join(2, taints=[{"key": key, "effect": "NoSchedule"}])
    template = world.template(nodeSelector={**world.selector, "kubernetes.io/hostname": shut})
    file = tmp_path / "task.json"
    meta = {"name": "t", "namespace": world.namespace}
    head = {"apiVersion": "caretaker.dev/v1alpha1", "kind": "DaemonTask", "metadata": meta}
    file.write_text(json.dumps({**head, "spec": {"template": template, "nodeGate": {}}}))
    counted = {"taint": key, "gatedNodes": 2, "excludedNodes": 1}
    line = (
        f"gate {key}: 2 nodes with this taint, 1 of them not for this task (not selected, or another taint)"
    )
    said = await cli("plan", "-f", str(file))
    assert line in said.out
    assert "1 of 1 node it is for would run" in said.out, "the task tolerates its own taint"
    said = await cli("plan", "-f", str(file), "-o", "json")
    assert said.json["tasks"][0]["nodeGate"] == counted
    world.kubelet.default = HOLD
    task = await world.task(template=template, nodeGate={})
    await task.running()
    assert line in (await cli("status", "daemontask", "t")).out
    assert (await cli("status", "daemontask", "t", "-o", "json")).json["nodeGate"] == counted
    await world.kubelet.finish(shut)
    await task.when(lambda t: t["status"]["nodeGate"]["gatedNodes"] == 1)
    assert "1 node with this taint" in (await cli("status", "daemontask", "t")).out
