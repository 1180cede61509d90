"""How long a node stays shut after the run that opens it: spec.nodeGate, on fake nodes that join.

Times are those at which one watcher sees the Pod succeed and the node without its taint.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final

from bench.figures import Figure
from bench.parts import cluster, operator, percentile, say, task
from testbed.admin import Admin, path
from testbed.nodes import node, register
from testbed.steer import behaviour

SINGLE: Final = 40
SINGLE_GAP: Final = 1.5
BURSTS: Final = 2
BURST: Final = 50
TAINT: Final = {"key": "default.gate.caretaker.dev/gate", "effect": "NoSchedule"}


async def gate() -> list[Figure]:
    """All figures."""
    async with cluster(0) as (made, admin), Watches(admin).running() as watches:
        with operator(made):
            await admin.create(
                path("daemontasks", "default"), task("gate", behaviour(run_seconds=0.2), nodeGate={})
            )
            single: list[float] = []
            for number in range(SINGLE):
                began = time.monotonic()
                single += await _join(admin, watches, [f"single-{number}"])
                await asyncio.sleep(max(SINGLE_GAP - (time.monotonic() - began), 0))
            burst: list[float] = []
            for number in range(BURSTS):
                burst += await _join(admin, watches, [f"burst{number}-{place}" for place in range(BURST)])
    say(f"single joins: p50 {percentile(single, 0.5):.2f} s; bursts: p50 {percentile(burst, 0.5):.2f} s")
    return [
        Figure(
            f"run's end -> taint removed, p99, {SINGLE} single joins", percentile(single, 0.99), "s", "<= 1"
        ),
        Figure(f"run's end -> taint removed, p99, bursts of {BURST}", percentile(burst, 0.99), "s", "<= 1"),
    ]


async def _join(admin: Admin, watches: "Watches", names: list[str]) -> list[float]:
    await asyncio.gather(*(register(admin, node(name, taints=[TAINT])) for name in names))
    return await asyncio.gather(*(watches.latency(name) for name in names))


class Watches:
    """When each node's Pod was seen to succeed, and the node to be open."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._ended: dict[str, float] = {}
        self._open: dict[str, float] = {}
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Watches"]:
        """While it watches."""
        followers = [asyncio.create_task(self._nodes()), asyncio.create_task(self._pods())]
        try:
            yield self
        finally:
            for follower in followers:
                follower.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await follower

    async def latency(self, name: str) -> float:
        """Seconds from the end of the node's run to its opening."""
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: name in self._ended and name in self._open)
        return max(self._open[name] - self._ended[name], 0.0)

    async def _nodes(self) -> None:
        async for event in self._admin.watch(path("nodes"), "0"):
            taints = [taint["key"] for taint in event.object["spec"].get("taints") or []]
            if event.type != "BOOKMARK" and TAINT["key"] not in taints:
                await self._note(self._open, event.object["metadata"]["name"])

    async def _pods(self) -> None:
        async for event in self._admin.watch(path("pods", "default"), "0"):
            if event.object.get("status", {}).get("phase") == "Succeeded":
                name = event.object["metadata"]["annotations"]["caretaker.dev/node-name"]
                await self._note(self._ended, name)

    async def _note(self, table: dict[str, float], name: str) -> None:
        async with self._changed:
            table.setdefault(name, time.monotonic())
            self._changed.notify_all()
