"""A tick of a schedule that touches 5,000 nodes, a tenth of them at a time.

Every node has run before: the ledger of that is made (ledgers.py), and the Pods of it are gone. The Pods of
the tick run as long as it takes for `parallelism`, and not the machine, to be what bounds it.
"""

import asyncio
import json
import math
import time
from datetime import UTC, datetime
from typing import Any, Final

from bench.figures import Figure
from bench.ledgers import record_runs
from bench.parts import (
    IDLE_SECONDS,
    PodWatch,
    Usage,
    cluster,
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
from caretaker.api import names
from testbed.admin import Admin, path
from testbed.steer import behaviour
from testing.operator import OperatorProcess, Samples

NODES: Final = 5000
SHARE: Final = 10  # parallelism, per cent of the nodes
RUN_SECONDS: Final = 20.0
TTL: Final = 30
FAST: Final = 5000  # QPS that bounds nothing here
NAME: Final = "tick"
LEAD: Final = 8.0  # seconds before the tick within which the schedule must be known
TIMEOUT: Final = 1200.0
_LAG: Final = "caretaker_loop_lag_seconds"
_PLANNED: Final = "caretaker_plan_cpu_seconds"


async def tick(nodes: int = NODES, run_seconds: float = RUN_SECONDS) -> list[Figure]:
    """All figures of one tick and of the idle minutes after it."""
    async with cluster(nodes, FAST, FAST) as (made, admin):
        body = task(
            NAME,
            behaviour(run_seconds=run_seconds),
            parallelism=f"{SHARE}%",
            ttlSecondsAfterFinished=TTL,
        )
        await admin.create(path("daemontasks", "default"), body)
        await record_runs(made.kubeconfig, [NAME], time.time() - 3600)
        with operator(made) as process:
            await succeeded(admin, NAME)
            assert not await admin.list(path("pods", "default")), "it did not take the ledger for its own"
            found = await _run(admin, process, nodes, run_seconds)
            return found + await _idle(process, nodes)


class Runs(PodWatch):
    """What became of each Pod of the task, and how many were active at a time."""

    def __init__(self, admin: Admin) -> None:
        super().__init__(admin, f"{names.LABEL_TASK}={NAME}")
        self.created: dict[str, float] = {}  # Pod name -> when it was first seen
        self.ended: dict[str, float] = {}
        self.places: dict[str, tuple[str, str]] = {}  # Pod name -> (node, tick)
        self.failed = 0
        self.most = 0  # active at a time
        self._active: set[str] = set()

    def seconds(self) -> list[float]:
        """How long each Pod took, from being created to its end."""
        return [at - self.created[name] for name, at in self.ended.items()]

    def _note(self, pod: dict[str, Any], *, gone: bool = False) -> None:
        super()._note(pod, gone=gone)
        meta, phase, now = pod["metadata"], pod["status"]["phase"], time.monotonic()
        name, marks = meta["name"], meta["annotations"]
        self.created.setdefault(name, now)
        self.places[name] = marks[names.POD_NODE_NAME], marks.get(names.POD_SCHEDULED_AT, "")
        if gone or phase in ("Succeeded", "Failed"):
            self._active.discard(name)
            if name not in self.ended:
                self.ended[name] = now
                self.failed += phase != "Succeeded"
        else:
            self._active.add(name)
        self.most = max(self.most, len(self._active))


async def _run(admin: Admin, process: OperatorProcess, nodes: int, run_seconds: float) -> list[Figure]:
    """The tick, until the operator has recorded and told all of it."""
    due = _next_minute(time.time() + LEAD)
    at = datetime.fromtimestamp(due, UTC)
    text = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    url = path("daemontasks", "default", NAME)
    async with Runs(admin) as runs:
        await admin.patch(url, {"spec": {"schedule": f"{at.minute} {at.hour} * * *"}})
        known = await admin.wait_for(url, lambda found: "nextScheduleTime" in found.get("status", {}))
        assert known["status"]["nextScheduleTime"] == text, known["status"]
        tick_at = time.monotonic() + due - time.time()
        await asyncio.sleep(due - time.time())
        before, usage = process.metrics(), Usage(process.pid)
        ended = await runs.until(lambda: len(runs.ended) >= nodes, TIMEOUT)
        after, busy = process.metrics(), usage.cpu_share()
        say(f"all ended {ended - tick_at:.1f} s after the tick")
        await admin.wait_for_all(
            path("pods", "default"), lambda pods: not pods, 300, labels=f"{names.LABEL_TASK}={NAME}"
        )
        told = await admin.wait_for(url, lambda found: _told(found, nodes), 60)
        last, over = process.metrics(), usage.seconds()
    assert told["status"]["lastScheduleTime"] == text, told["status"]
    assert {tick for _, tick in runs.places.values()} == {text}
    of_all = f"{nodes:,} nodes"
    return [
        *_pace(runs, of_all, nodes, run_seconds, ended - tick_at),
        Figure(f"{of_all}: tick to the first Pod", 1000 * (min(runs.created.values()) - tick_at), "ms"),
        Figure(f"{of_all}: nodes that did not succeed", nodes - told["status"]["succeeded"], "", "= 0"),
        Figure(
            f"{of_all}: nodes whose record is not of one run for the tick",
            await _not_as_run_once(admin, int(due)),
            "",
            "= 0",
        ),
        *_writes(before, last, of_all, nodes, over),
        Figure(f"{of_all}: loop lag p99, tick", 1000 * quantile(before, after, _LAG, 0.99), "ms", "<= 250"),
        Figure(
            f"{of_all}: planning pass, CPU p99, tick",
            1000 * quantile(before, after, _PLANNED, 0.99),
            "ms",
            "<= 50",
        ),
        Figure(f"{of_all}: planning pass, CPU mean, tick", 1000 * mean(before, after, _PLANNED), "ms"),
        Figure(f"{of_all}: CPU of one core, tick", busy, "%"),
    ]


def _pace(runs: Runs, of_all: str, nodes: int, run_seconds: float, seconds: float) -> list[Figure]:
    """How fast it was beside what `parallelism` allows, and whether it kept to that."""
    took, slots = runs.seconds(), math.ceil(nodes * SHARE / 100)
    rounds, slowest = math.ceil(nodes / slots), max(took)
    twice = len(runs.created) - len({node for node, _ in runs.places.values()})
    return [
        Figure(f"{of_all}: tick to the end of the last run", seconds, "s"),
        Figure(
            f"{of_all}: that time / rounds x slowest Pod",
            seconds / (rounds * slowest),
            "x",
            "",
            f"{rounds} x {slowest:.1f} s; of all Pods p50 {percentile(took, 0.5):.1f} s, "
            f"p99 {percentile(took, 0.99):.1f} s",
        ),
        Figure(
            f"{of_all}: that time / rounds x what a Pod runs",
            seconds / (rounds * run_seconds),
            "x",
            "",
            f"{rounds} x {run_seconds:g} s",
        ),
        Figure(
            f"{of_all}: slots in use, mean of the time from tick to end",
            100 * sum(took) / (seconds * slots),
            "%",
        ),
        Figure(f"{of_all}: active at a time, the most", runs.most, "", f"<= {slots}"),
        Figure(f"{of_all}: Pods that failed", runs.failed, "", "= 0"),
        Figure(f"{of_all}: runs beyond one a node for the tick", twice, "", "= 0"),
    ]


def _writes(before: Samples, last: Samples, of_all: str, nodes: int, over: float) -> list[Figure]:
    batches = ("configmaps", "daemontasks")
    batched = writes(last, *batches) - writes(before, *batches)
    return [
        Figure(
            f"{of_all}: API writes per node-run, TTL delete included",
            (writes(last) - writes(before)) / nodes,
            "",
        ),
        Figure(
            f"{of_all}: of them to the ledger and the status, a second",
            batched / over,
            "/s",
            "",
            f"{batched:.0f} in {over:.0f} s, from the tick to the last deletion",
        ),
    ]


async def _idle(process: OperatorProcess, nodes: int) -> list[Figure]:
    """Minutes in which nothing is due."""
    await asyncio.sleep(5)  # the last records are a second behind the last Pod
    before, usage = process.metrics(), Usage(process.pid)
    await asyncio.sleep(IDLE_SECONDS)
    share, after = usage.cpu_share(), process.metrics()
    of_all = f"{nodes:,} nodes"
    return [
        Figure(f"{of_all}: writes in the idle minutes after it", writes(after) - writes(before), "", "= 0"),
        Figure(f"{of_all}: CPU of one core in those minutes", share, "%", "<= 1", done(before, after)),
        Figure(f"{of_all}: RSS after it", usage.rss(), "MiB", "<= 220"),
    ]


async def _not_as_run_once(admin: Admin, due: int) -> int:
    """Nodes whose record does not say: succeeded, for this tick, by the second Pod that there ever was."""
    listed = await admin.list(path("configmaps", "default"), labels=f"{names.LABEL_TASK}={NAME}")
    entries = [json.loads(text) for shard in listed for text in shard["data"].values()]
    return sum(1 for e in entries if (e["result"], e.get("tick"), e["seq"]) != ("Succeeded", due, 2))


def _told(found: dict[str, Any], nodes: int) -> bool:
    status = found.get("status", {})
    return bool(
        status.get("succeeded", 0) + status.get("failed", 0) == nodes and "lastScheduleTime" in status
    )


def _next_minute(moment: float) -> float:
    """The first full minute that is not earlier."""
    return 60.0 * math.ceil(moment / 60)
