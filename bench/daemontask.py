"""DaemonTask beside plain POSTs and beside a DaemonSet, on 1,000 and 5,000 fake nodes.

Everything compared runs in one process of measurement, on one control plane, one after the other; all
times are taken by the same watch.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from bench.figures import Figure
from bench.parts import (
    IDLE_SECONDS,
    RUN_ON,
    PodWatch,
    Usage,
    clean,
    cluster,
    daemonset,
    done,
    mean,
    operator,
    percentile,
    quantile,
    say,
    succeeded,
    task,
    writes,
)
from caretaker.api.daemontask import Spec
from caretaker.api.objects import WireMeta
from caretaker.daemontask.pods import Start, build, revision_of
from testbed.admin import Admin, WatchEvent, path
from testbed.cluster import Cluster
from testing.operator import OperatorProcess

NODES: Final = 1000
FAST: Final = 5000  # QPS that bounds nothing here
OURS: Final = "caretaker.dev/daemontask"
SINGLE_JOINS: Final = 200
SINGLE_GAP: Final = 1.5
BURSTS: Final = 4
BURST: Final = 50


async def thousand() -> list[Figure]:
    """All figures on 1,000 nodes; three control planes, since QPS is a flag of theirs."""
    found: list[Figure] = []
    async with cluster(NODES) as (made, admin):
        with operator(made):
            posts = await _posts(admin)
            ours = await _succeeded(admin, "ours")
            found.append(
                _ratio("apply to all Succeeded, ours / plain POSTs, defaults", ours, posts, "<= 1.15")
            )
            running = await _running(admin)
            ready = await _daemonset(admin)
            found.append(_ratio("DaemonSet ready / ours Running, defaults", ready, running, ">= 2.3"))
    async with cluster(NODES, scheduler_qps=FAST) as (made, admin):
        with operator(made):
            running = await _running(admin)
            ready = await _daemonset(admin)
            found.append(_ratio("DaemonSet ready / ours Running, scheduler raised", ready, running, ">= 3"))
    async with cluster(NODES, FAST, FAST) as (made, admin):
        with operator(made) as process:
            found += await _raised(admin)
            found += await _writes(admin, process)
            found += await _idle(admin, process)
            found += await _joins(made, admin)
    return found


async def five_thousand() -> list[Figure]:
    """All figures on 5,000 nodes."""
    async with cluster(5000, FAST, FAST) as (made, admin):
        with operator(made) as process:
            before, usage = process.metrics(), Usage(process.pid)
            started = time.monotonic()
            async with PodWatch(admin, f"{OURS}=big") as pods:
                await admin.create(path("daemontasks", "default"), task("big"))
                seconds = await pods.reach("Succeeded", 5000) - started
            await succeeded(admin, "big")
            busy, after = usage.cpu_share(), process.metrics()
            say(f"converged in {seconds:.1f} s")
            await asyncio.sleep(5)  # the last records are a second behind the last Pod
            steady = process.metrics()
            idle = Usage(process.pid)
            await asyncio.sleep(IDLE_SECONDS)
            share, last = idle.cpu_share(), process.metrics()
            lag, planned = "caretaker_loop_lag_seconds", "caretaker_plan_cpu_seconds"
            return [
                Figure("5,000 nodes: apply to all Succeeded", seconds, "s"),
                Figure("5,000 nodes: RSS", idle.rss(), "MiB", "<= 220"),
                Figure(
                    "5,000 nodes: loop lag p99, rollout",
                    1000 * quantile(before, after, lag, 0.99),
                    "ms",
                    "<= 250",
                ),
                Figure(
                    "5,000 nodes: loop lag p99, steady",
                    1000 * quantile(steady, last, lag, 0.99),
                    "ms",
                    "<= 100",
                ),
                Figure(
                    "5,000 nodes: planning pass, CPU p99",
                    1000 * quantile(before, after, planned, 0.99),
                    "ms",
                    "<= 50",
                ),
                Figure("5,000 nodes: planning pass, CPU mean", 1000 * mean(before, after, planned), "ms"),
                Figure("5,000 nodes: CPU of one core, rollout", busy, "%"),
                Figure("5,000 nodes: CPU of one core, idle", share, "%", "<= 1", done(steady, last)),
                Figure("5,000 nodes: writes in those idle minutes", writes(last) - writes(steady), "", "= 0"),
            ]


async def _raised(admin: Admin) -> list[Figure]:
    """All QPS raised: three alternating runs of each, and the plain POSTs."""
    ratios, posts, ours = [], [], []
    for number in range(3):
        posts.append(await _posts(admin))
        ours.append(await _succeeded(admin, f"ours-{number}"))
        running = await _running(admin)
        ratios.append(await _daemonset(admin) / running)
    return [
        _ratio(
            "apply to all Succeeded, ours / plain POSTs, QPS raised, medians of 3",
            statistics.median(ours),
            statistics.median(posts),
            "<= 1.15",
        ),
        Figure("DaemonSet / ours Running, QPS raised, median of 3", statistics.median(ratios), "x", ">= 0.9"),
    ]


async def _posts(admin: Admin) -> float:
    """The same Pods by plain concurrent POSTs, watched to Succeeded: the floor on this machine."""
    nodes = await admin.list(path("nodes"))
    spec = Spec(template=task("plain")["spec"]["template"])
    meta = WireMeta(name="plain", namespace="default", uid="plain")
    bodies = []
    for node in nodes:
        name, uid = node["metadata"]["name"], node["metadata"]["uid"]
        body = build(meta, spec, revision_of(spec), Start(name, uid, 1, 1, "", "", "", "NewNode"))
        del body["metadata"]["ownerReferences"]
        body["metadata"]["labels"]["app"] = "plain"
        bodies.append(body)
    async with PodWatch(admin, "app=plain") as pods:
        started = time.monotonic()
        await asyncio.gather(*(admin.create(path("pods", "default"), body) for body in bodies))
        posted = time.monotonic() - started
        seconds = await pods.reach("Succeeded", len(nodes)) - started
    say(f"plain POSTs: all created {posted:.1f} s, all Succeeded {seconds:.1f} s")
    await clean(admin, "pods", "none", "app=plain")
    return seconds


async def _succeeded(admin: Admin, name: str) -> float:
    async with PodWatch(admin, f"{OURS}={name}") as pods:
        started = time.monotonic()
        await admin.create(path("daemontasks", "default"), task(name))
        seconds = await pods.reach("Succeeded", NODES) - started
    say(f"ours: all Succeeded {seconds:.1f} s")
    await clean(admin, "daemontasks", name, f"{OURS}={name}")
    return seconds


async def _running(admin: Admin) -> float:
    async with PodWatch(admin, f"{OURS}=running") as pods:
        started = time.monotonic()
        await admin.create(path("daemontasks", "default"), task("running", RUN_ON))
        seconds = await pods.reach("Running", NODES) - started
    say(f"ours: all Running {seconds:.1f} s")
    await clean(admin, "daemontasks", "running", f"{OURS}=running")
    return seconds


async def _daemonset(admin: Admin) -> float:
    async with PodWatch(admin, "app=ds") as pods:
        started = time.monotonic()
        await admin.create(path("daemonsets", "default"), daemonset("ds"))
        seconds = await pods.reach("Running", NODES) - started
    say(f"DaemonSet: all Running {seconds:.1f} s")
    await clean(admin, "daemonsets", "ds", "app=ds")
    return seconds


async def _writes(admin: Admin, process: OperatorProcess) -> list[Figure]:
    """A whole life: created, run, recorded, deleted at its TTL."""
    before = writes(process.metrics())
    async with PodWatch(admin, f"{OURS}=counted") as pods:
        await admin.create(path("daemontasks", "default"), task("counted", ttlSecondsAfterFinished=30))
        await pods.reach("Succeeded", NODES)
    await admin.wait_for_all(path("pods", "default"), lambda found: not found, 300, labels=f"{OURS}=counted")
    await succeeded(admin, "counted")
    each = (writes(process.metrics()) - before) / NODES
    return [Figure("API writes per node-run, TTL delete included", each, "", "<= 2.1")]


async def _idle(admin: Admin, process: OperatorProcess) -> list[Figure]:
    """Three tasks on 1,000 nodes, all done, for a minute."""
    for number in range(2):
        await _done(admin, f"rss-{number}")
    await asyncio.sleep(5)
    before, usage = writes(process.metrics()), Usage(process.pid)
    await asyncio.sleep(60)
    return [
        Figure("writes in an idle minute, the Lease apart", writes(process.metrics()) - before, "", "= 0"),
        Figure("RSS with 1,000 nodes and 3 tasks", usage.rss(), "MiB", "<= 150"),
        Figure("CPU of one core in that minute", usage.cpu_share(), "%"),
    ]


async def _done(admin: Admin, name: str) -> None:
    await admin.create(path("daemontasks", "default"), task(name))
    await succeeded(admin, name)


async def _joins(made: Cluster, admin: Admin) -> list[Figure]:
    """node Ready -> Pod created, as one watcher sees both."""
    for name in ("counted", "rss-0", "rss-1"):
        await clean(admin, "daemontasks", name, f"{OURS}={name}")
    await _done(admin, "joins")
    single: list[float] = []
    async with Joins(admin) as joins:
        for number in range(SINGLE_JOINS):
            began = time.monotonic()
            (name,) = await made.add_nodes(1, "single", first=number, wait=False)
            single.append(await joins.latency(name))
            await asyncio.sleep(max(SINGLE_GAP - (time.monotonic() - began), 0))
        say(f"{SINGLE_JOINS} single joins: p50 {1000 * percentile(single, 0.5):.0f} ms")
        burst: list[float] = []
        for number in range(BURSTS):
            names = await made.add_nodes(BURST, f"burst{number}", wait=False)
            burst += await asyncio.gather(*(joins.latency(name) for name in names))
            await asyncio.sleep(3)
    return [
        Figure(
            "node Ready -> Pod created, p99, 200 single joins",
            1000 * percentile(single, 0.99),
            "ms",
            "<= 250",
        ),
        Figure("node Ready -> Pod created, p99, bursts of 50", percentile(burst, 0.99), "s", "<= 1.3"),
    ]


class Joins:
    """When each node was seen Ready and when its Pod was seen, of this task."""

    def __init__(self, admin: Admin, of: str = "joins") -> None:
        self._admin = admin
        self._labels = f"{OURS}={of}"
        self._ready: dict[str, float] = {}
        self._pods: dict[str, float] = {}
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> "Joins":
        nodes, pods = await self._version(path("nodes")), await self._version(path("pods", "default"))
        self._tasks = [asyncio.create_task(self._nodes(nodes)), asyncio.create_task(self._follow_pods(pods))]
        return self

    async def __aexit__(self, *_: object) -> None:
        for follower in self._tasks:
            follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await follower

    async def latency(self, node: str) -> float:
        """Seconds from Ready to Pod."""
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: node in self._ready and node in self._pods)
        return self._pods[node] - self._ready[node]

    async def _nodes(self, version: str) -> None:
        async for event in self._events(path("nodes"), version):
            conditions = event.object.get("status", {}).get("conditions", [])
            if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
                await self._note(self._ready, event.object["metadata"]["name"])

    async def _follow_pods(self, version: str) -> None:
        async for event in self._events(path("pods", "default"), version, self._labels):
            if event.type == "ADDED":
                await self._note(
                    self._pods, event.object["metadata"]["annotations"]["caretaker.dev/node-name"]
                )

    async def _events(
        self, url: str, version: str, labels: str | None = None
    ) -> AsyncGenerator[WatchEvent, None]:
        while True:  # a busy API server ends watches
            async with aclosing(self._admin.watch(url, version, labels=labels)) as events:
                async for event in events:
                    version = event.object["metadata"]["resourceVersion"]
                    yield event

    async def _version(self, url: str) -> str:
        listed = await self._admin.request("GET", url, params={"limit": "1"})
        return str(listed["metadata"]["resourceVersion"])

    async def _note(self, table: dict[str, float], name: str) -> None:
        async with self._changed:
            table.setdefault(name, time.monotonic())
            self._changed.notify_all()


def _ratio(figure: str, value: float, reference: float, target: str) -> Figure:
    return Figure(figure, value / reference, "x", target, f"{value:.1f} s / {reference:.1f} s")
