"""Two candidates for one Lease on a real API server: hand-over, kill, partition."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import pytest

from caretaker.kube.client import KubeClient
from caretaker.kube.errors import NotLeader
from caretaker.runtime.lease import Lease, LeaseTimes
from testing.apiproxy import ApiProxy
from testing.faults import LoseReply, Match

# A third of the real times. The API server stores whole seconds.
DURATION, DEADLINE, RETRY = 5.0, 3.0, 0.6
REAL_TIMES = 15.0, 10.0, 2.0
LATENCY = 2.0  # what a loaded machine may add

PROCESS = """
import asyncio, sys
from caretaker.kube.client import KubeClient
from caretaker.runtime.lease import Lease, LeaseTimes

async def main(kubeconfig, namespace, *times):
    async with await KubeClient.connect(kubeconfig) as client:
        lease = Lease(client, (namespace, "caretaker"), "process", LeaseTimes(*times))
        await lease.run(lambda: print("leading", flush=True), lambda: None)

asyncio.run(main(sys.argv[1], sys.argv[2], *map(float, sys.argv[3:])))
"""


class ACluster(Protocol):
    kubeconfig: Path


@pytest.fixture
async def client(cluster: ACluster) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(str(cluster.kubeconfig)) as connected:
        yield connected


class Candidate:
    """A lease that is stood for, and what it was told."""

    def __init__(self, client: KubeClient, namespace: str, name: str, *, real_times: bool = False) -> None:
        times = REAL_TIMES if real_times else (DURATION, DEADLINE, RETRY)
        self.lease = Lease(client, (namespace, "caretaker"), name, LeaseTimes(*times))
        self.client = client
        client.guard = self.lease.guard
        client.write_seconds = times[1] / 4
        self.leading = asyncio.Event()
        self.stopped = asyncio.Event()
        self._task = asyncio.create_task(self.lease.run(self.leading.set, self.stopped.set))

    async def leads(self, within: float) -> float:
        """Seconds until it does."""
        started = time.monotonic()
        async with asyncio.timeout(within):
            await self.leading.wait()
        return time.monotonic() - started

    async def stop(self) -> None:
        """A clean stop."""
        self._task.cancel()
        await asyncio.wait({self._task})


@asynccontextmanager
async def candidates(*made: Callable[[], Candidate]) -> AsyncIterator[list[Candidate]]:
    """Start them one after the other, the first as leader; no two ever hold the Lease at a time."""
    standing: list[Candidate] = []

    async def never_two() -> None:
        while True:
            held = [c.lease.identity for c in standing if c.lease.held]
            assert len(held) < 2, f"{held} hold the Lease"
            await asyncio.sleep(0.01)

    referee = asyncio.create_task(never_two())
    try:
        for number, make in enumerate(made):
            standing.append(make())
            if number == 0:
                await standing[0].leads(within=10)
        yield standing
    finally:
        await asyncio.gather(*(candidate.stop() for candidate in standing))
        referee.cancel()
        await asyncio.wait({referee})
    assert referee.cancelled(), referee.exception()


async def stored(client: KubeClient, namespace: str) -> dict[str, Any]:
    """The Lease's spec."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/caretaker"
    spec: dict[str, Any] = (await client.get(path))["spec"]
    return spec


def cluster_client(cluster: ACluster) -> Awaitable[KubeClient]:
    return KubeClient.connect(str(cluster.kubeconfig))


async def test_a_clean_stop_hands_over_within_3_seconds(
    cluster: ACluster, client: KubeClient, namespace: str
) -> None:
    async with (
        await cluster_client(cluster) as one,
        await cluster_client(cluster) as two,
        candidates(
            lambda: Candidate(one, namespace, "a", real_times=True),
            lambda: Candidate(two, namespace, "b", real_times=True),
        ) as (a, b),
    ):
        taken = await stored(client, namespace)
        assert (taken["holderIdentity"], taken["leaseDurationSeconds"]) == ("a", 15)
        await a.stop()
        # Released; b may have found it so by now.
        assert (await stored(client, namespace)).get("holderIdentity") in (None, "b")
        assert await b.leads(within=10) < 3.0
        after = await stored(client, namespace)
        assert (after["holderIdentity"], after["leaseTransitions"]) == ("b", 1)


async def test_after_kill_9_a_standby_takes_over_when_the_lease_has_run_out(
    cluster: ACluster, client: KubeClient, namespace: str
) -> None:
    times = map(str, (DURATION, DEADLINE, RETRY))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROCESS,
        str(cluster.kubeconfig),
        namespace,
        *times,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"leading\n"
        b = Candidate(client, namespace, "b")
        await asyncio.sleep(RETRY * 3)  # so that it has seen a renewal
        process.send_signal(signal.SIGKILL)
        await process.wait()
        killed, spec = time.time(), await stored(client, namespace)
        await b.leads(within=30)
        led, renewed = time.time(), datetime.fromisoformat(spec["renewTime"]).timestamp()
        assert led - renewed > DURATION, "not before it has run out, however long ago it was renewed"
        assert led - killed < DURATION + RETRY * 1.1 + LATENCY
        await b.stop()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_of_two_candidates_with_one_cut_off_never_both_write(
    cluster: ACluster, client: KubeClient, namespace: str, tmp_path: Path
) -> None:
    proxy = await asyncio.to_thread(ApiProxy(cluster.kubeconfig, "a").start)
    try:
        async with (
            await KubeClient.connect(str(proxy.write_kubeconfig(tmp_path / "proxied"))) as cut_off,
            await cluster_client(cluster) as other,
            candidates(
                lambda: Candidate(cut_off, namespace, "a"), lambda: Candidate(other, namespace, "b")
            ) as (a, b),
        ):
            maps = f"/api/v1/namespaces/{namespace}/configmaps"
            await a.client.create(maps, {"metadata": {"name": "by-a"}})
            with pytest.raises(NotLeader):
                await b.client.create(maps, {"metadata": {"name": "by-b"}})
            with proxy.partition(silent=True):
                async with asyncio.timeout(DEADLINE + LATENCY):
                    await a.stopped.wait()
                assert await b.leads(within=DURATION + 2 * RETRY + LATENCY) > 0
                with pytest.raises(NotLeader):
                    await a.client.create(maps, {"metadata": {"name": "by-a-again"}})
                await b.client.create(maps, {"metadata": {"name": "by-b"}})
            await asyncio.sleep(2 * RETRY)
            assert (a.lease.held, b.lease.held) == (False, True)
    finally:
        await asyncio.to_thread(proxy.stop)


async def test_lost_answers_cost_no_leadership(cluster: ACluster, namespace: str, tmp_path: Path) -> None:
    proxy = await asyncio.to_thread(ApiProxy(cluster.kubeconfig, "a").start)
    try:
        async with (
            await KubeClient.connect(str(proxy.write_kubeconfig(tmp_path / "proxied"))) as through,
            candidates(lambda: Candidate(through, namespace, "a", real_times=True)) as (a,),
        ):
            rule = proxy.add(Match(verb="patch", resource="leases", times=3), LoseReply())
            await asyncio.to_thread(rule.wait, 3)
            await asyncio.sleep(2 * REAL_TIMES[2])
            assert a.lease.held
            assert not a.stopped.is_set()
            a.lease.guard(DURATION + 3)
    finally:
        await asyncio.to_thread(proxy.stop)
