"""200 tasks on 1,000 nodes, all done: what they cost while nothing happens, a start, and a node that joins.

200,000 runs would take hours here. Their ledgers are made instead (ledgers.py), as they stand once the Pods
are deleted at their TTL; the operator then begins beside them as after any restart, and must start nothing.
"""

import asyncio
import time
from typing import Final

from bench.figures import Figure
from bench.ledgers import record_runs
from bench.parts import (
    PodWatch,
    Usage,
    cluster,
    done,
    operator,
    quantile,
    say,
    shown,
    task,
    writes,
)
from caretaker.api import names
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testbed.nodes import is_ready
from testing.operator import OperatorProcess, Samples

TASKS: Final = 200
NODES: Final = 1000
TTL: Final = 30
FAST: Final = 5000  # QPS that bounds nothing here
LIMIT: Final = "<= 320"  # MiB: what helm/caretaker/values.yaml lets a Pod of the operator have
SETTLE: Final = 300.0
_LAG: Final = "caretaker_loop_lag_seconds"
_PLANNED: Final = "caretaker_plan_cpu_seconds"


async def many(tasks: int = TASKS, nodes: int = NODES) -> list[Figure]:
    """All figures."""
    every = [f"task-{number:03d}" for number in range(tasks)]
    async with cluster(nodes, FAST, FAST) as (made, admin):
        url = path("daemontasks", "default")
        bodies = [task(name, ttlSecondsAfterFinished=TTL) for name in every]
        await asyncio.gather(*(admin.create(url, body) for body in bodies))
        began = time.monotonic()
        await record_runs(made.kubeconfig, every, time.time() - 3600)
        say(f"{tasks * nodes:,} runs on record after {time.monotonic() - began:.1f} s")
        with operator(made) as process:
            await _settled(process, tasks * nodes)
            await admin.wait_for_all(url, _all_ready, SETTLE)
            assert not await admin.list(path("pods", "default")), "it did not take the ledgers for its own"
            say("every task was looked at and is Ready")
            found = await _start(process, tasks * nodes)
            found += await _idle(process)
            found += await _look(admin, process, every)
            found += await _join(made, admin, process, tasks, nodes)
            found.append(Figure("RSS after that", Usage(process.pid).rss(), "MiB", LIMIT))
            return found


async def _start(process: OperatorProcess, runs: int) -> list[Figure]:
    """The operator ends and begins anew, with everything to read and nothing to do."""
    process.terminate()
    began = time.monotonic()
    process.start()
    usage = Usage(process.pid)
    await _settled(process, runs)
    seconds, samples = time.monotonic() - began, process.metrics()
    say(f"settled {seconds:.1f} s after the start of the process")
    return [
        Figure("start of the process until every task is settled", seconds, "s"),
        Figure("CPU for that", usage.cpu_seconds(), "s"),
        Figure("loop lag p99, start", 1000 * quantile({}, samples, _LAG, 0.99), "ms", "<= 250"),
        Figure("API writes for that, dry runs of the templates", writes(samples, "pods"), ""),
        Figure("API writes for that, all others", writes(samples) - writes(samples, "pods"), "", "= 0"),
    ]


async def _idle(process: OperatorProcess) -> list[Figure]:
    """A minute in which nothing happens."""
    await asyncio.sleep(5)
    before, usage = process.metrics(), Usage(process.pid)
    await asyncio.sleep(60)
    share, after = usage.cpu_share(), process.metrics()
    return [
        Figure("writes in an idle minute", writes(after) - writes(before), "", "= 0"),
        Figure("passes in that minute", _passes(after) - _passes(before), ""),
        Figure("CPU of one core in that minute", share, "%", "<= 1", done(before, after)),
        Figure("loop lag p99 in that minute", 1000 * quantile(before, after, _LAG, 0.99), "ms", "<= 100"),
        Figure("RSS", usage.rss(), "MiB", LIMIT),
    ]


async def _look(admin: Admin, process: OperatorProcess, every: list[str]) -> list[Figure]:
    """A pass over every task in which there is nothing to do, as the resync makes one in 10 min: asked for by
    an annotation that means nothing, so that the watch of the tasks is in the figures too."""
    before, usage = process.metrics(), Usage(process.pid)
    wanted = _passes(before) + len(every)
    patch = {"metadata": {"annotations": {"bench.example/look": "1"}}}
    await asyncio.gather(*(admin.patch(path("daemontasks", "default", name), patch) for name in every))
    after = await shown(process, lambda samples: _passes(samples) >= wanted, SETTLE)
    spent = usage.cpu_seconds()
    return [
        Figure(
            "one pass over every task, CPU",
            spent,
            "s",
            "",
            f"{100 * spent / 600:.2g} % of one core, each 10 min",
        ),
        Figure("planning pass, CPU p99", 1000 * quantile(before, after, _PLANNED, 0.99), "ms", "<= 50"),
        Figure("writes for them", writes(after) - writes(before), "", "= 0"),
    ]


async def _join(
    made: Cluster, admin: Admin, process: OperatorProcess, tasks: int, nodes: int
) -> list[Figure]:
    """One node joins, and every task runs there."""
    before, usage = process.metrics(), Usage(process.pid)
    async with PodWatch(admin, names.LABEL_TASK) as pods:
        (name,) = await made.add_nodes(1, "joins", wait=False)
        await admin.wait_for(path("nodes", name=name), is_ready)
        ready = time.monotonic()
        created = await pods.until(lambda: pods.count >= tasks) - ready
        ended = await pods.reach("Succeeded", tasks) - ready
        say(f"all created {created:.1f} s, all Succeeded {ended:.1f} s after the node was Ready")
        await admin.wait_for_all(
            path("pods", "default"), lambda found: not found, SETTLE, labels=names.LABEL_TASK
        )
    await _settled(process, tasks * (nodes + 1))
    after = process.metrics()
    return [
        Figure("node Ready -> the last of its Pods created", created, "s"),
        Figure(
            "node Ready -> the last of its Pods Succeeded", ended, "s", "", "the node takes 110 at a time"
        ),
        Figure("loop lag p99 meanwhile", 1000 * quantile(before, after, _LAG, 0.99), "ms", "<= 250"),
        Figure("API writes per run, TTL delete included", (writes(after) - writes(before)) / tasks, ""),
        Figure("CPU for a run, TTL delete included", 1000 * usage.cpu_seconds() / tasks, "ms"),
    ]


async def _settled(process: OperatorProcess, runs: int) -> None:
    """Until the operator shows all of these runs as succeeded."""
    await shown(process, lambda samples: _succeeded(samples) >= runs, SETTLE)


def _all_ready(found: list[Json]) -> bool:
    def ready(one: Json) -> bool:
        conditions = one.get("status", {}).get("conditions", [])
        return any(c["type"] == "Ready" and c["reason"] == "Succeeded" for c in conditions)

    return all(ready(one) for one in found)


def _passes(samples: Samples) -> float:
    return samples.get('caretaker_reconcile_seconds_count{kind="DaemonTask"}', 0.0)


def _succeeded(samples: Samples) -> float:
    nodes = "caretaker_daemontask_nodes{"
    return sum(
        n for series, n in samples.items() if series.startswith(nodes) and 'state="succeeded"' in series
    )
