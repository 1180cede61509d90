"""Some minutes of everything at once, then quiet: the promises hold all the time, and all of it converges.

SOAK_MINUTES says how long (default 0.5; half a minute more until it is quiet). The seed is printed, and
SOAK_SEED takes it again.
"""

import asyncio
import contextlib
import json
import math
import os
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from testbed.admin import Admin, ApiError, Json, Jsons, path
from testbed.cluster import Cluster
from testbed.recorder import run_place
from testbed.steer import behaviour
from testing.chaos import POOL, Chaos, Replica, rerun
from testing.rollouts import Rollouts, rollouts, together
from testing.world import Task, node_of

NODES, BACKOFF_LIMIT, PARALLELISM = 10, 2, 3
BUDGETED = "minutely"
PERCENT = {"pool": 25, BUDGETED: 60, "once": 50}  # of its nodes that may run at a time
TIME_SCALE = 0.4
CONVERGE_SECONDS = 300.0
REPEATS = 5  # of runs whose outcome a lost answer has made unknown; a busy machine loses some each time
QUIET_SECONDS = 10.0


@pytest.fixture
async def place(cluster: Cluster, admin: Admin, tmp_path: Path) -> AsyncIterator[Rollouts]:
    async with rollouts(cluster, admin, tmp_path) as made:
        yield made


async def five_tasks(place: Rollouts) -> list[Task]:
    """Rolling and forgetful, everywhere at once, slow in a part of the cluster, every minute, and at most
    once a run."""
    await place.nodes.add(NODES, labels={POOL: "in"})
    reboot = ["TemplateChange", "NodeReboot"]
    rolling = await place.task(
        "rolling",
        parallelism=PARALLELISM,
        backoffLimit=BACKOFF_LIMIT,
        ttlSecondsAfterFinished=0,
        rerunOn=reboot,
    )
    wide = await place.task("wide", backoffLimit=BACKOFF_LIMIT)
    slow = place.template(behaviour(run_seconds=2))
    slow["spec"]["nodeSelector"] = {**slow["spec"]["nodeSelector"], POOL: "in"}
    pool = await place.task(
        "pool",
        template=slow,
        parallelism=f"{PERCENT['pool']}%",
        backoffLimit=BACKOFF_LIMIT,
        ttlSecondsAfterFinished=2,
    )
    minutely = await place.task(
        BUDGETED,
        schedule="* * * * *",
        budgets=[{"nodes": f"{PERCENT[BUDGETED]}%"}],
        backoffLimit=BACKOFF_LIMIT,
        ttlSecondsAfterFinished=0,
    )
    once = await place.task(
        "once",
        runGuarantee="AtMostOnce",
        backoffLimit=0,
        parallelism=f"{PERCENT['once']}%",
        ttlSecondsAfterFinished=0,
    )
    place.history.at_most_once.add(await once.uid())
    return [rolling, wide, pool, minutely, once]


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_everything_at_once(place: Rollouts) -> None:
    minutes = float(os.environ.get("SOAK_MINUTES", "0.5"))
    seed = int(os.environ.get("SOAK_SEED") or secrets.randbelow(2**32))
    print(f"\nSOAK_SEED={seed} SOAK_MINUTES={minutes:g}", flush=True)
    tasks = await five_tasks(place)
    replicas = await together(
        place.operator(name, leader_elect=True, time_scale=TIME_SCALE) for name in ("one", "two")
    )
    chaos = Chaos(place, tasks, replicas, seed, keeping=frozenset({BUDGETED}))
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(keep_checking(place))
        await chaos.run(minutes * 60)
        await chaos.end()
        watching.cancel()
    try:
        await converged(place, tasks, chaos, replicas)
    except (TimeoutError, AssertionError):
        await tell(place, tasks, replicas)
        raise
    await promises(place, tasks, chaos.most_nodes)
    await quiet(replicas)
    print(f"{place.history.statuses} statuses, {len(place.history.pods.pods)} states of Pods", flush=True)


async def keep_checking(place: Rollouts) -> None:
    """The promises on all that happened until now, again and again: the first breach ends the run."""
    while True:
        await asyncio.sleep(5)
        with contextlib.suppress(aiohttp.ClientError, ApiError):  # the API server is being restarted
            await place.history.check(backoff_limit=BACKOFF_LIMIT)


async def converged(place: Rollouts, tasks: list[Task], chaos: Chaos, replicas: list[Replica]) -> None:
    """Every node has run every task for the last time it was asked to, and nothing is left behind."""
    since = [len(process.lines) for process, _ in replicas]
    asked = [await rerun(task) for task in tasks]
    nodes, failed = chaos.nodes, chaos.failing
    for task, at in zip(tasks, asked, strict=True):
        entries = await recorded(task, at, nodes, failed)
        for _ in range(REPEATS):
            if not any(_is_unknown(task, entries[name]) for name in nodes):
                break
            assert lost_answers(replicas, since), "the outcome of a run is unknown without a reason"
            since = [len(process.lines) for process, _ in replicas]
            entries = await recorded(task, await rerun(task), nodes, failed)
        assert not any(_is_unknown(task, entries[name]) for name in nodes)
        counts = {"active": 0, "pending": 0, "blocked": 0, "failed": len(failed)}
        found = await task.counts(CONVERGE_SECONDS, succeeded=len(nodes - failed), **counts)
        assert {entries[name]["revision"] for name in nodes} == {found["status"]["currentRevision"]}
        uids = {name: await place.nodes.uid(name) for name in nodes}
        assert {name: entries[name]["nodeUID"] for name in nodes} == uids
        keeps = nodes if task.name == "wide" else failed

        def settled(pods: Jsons, uids: dict[str, str] = uids, keeps: set[str] = keeps) -> bool:
            """Those of nodes that are gone are the garbage collector's, which takes a minute."""
            left = [pod for pod in pods if run_place(pod)[1] in uids.values()]
            return {node_of(pod) for pod in left} == keeps and len(left) == len(keeps)

        await task.pods_when(settled)


async def recorded(task: Task, at: str, nodes: set[str], failed: set[str]) -> dict[str, Json]:
    """The ledger once it has the end of each node's run that was asked for at that time."""

    def all_ended(ledger: dict[str, Json]) -> bool:
        return all(
            name in ledger
            and ledger[name].get("nonce", "")[:19] == at[:19]  # the ledger has it normalised
            and (
                ledger[name]["result"] == ("Failed" if name in failed else "Succeeded")
                or _is_unknown(task, ledger[name])
            )
            for name in nodes
        )

    return await task.ledger_when(all_ended, CONVERGE_SECONDS)


def lost_answers(replicas: list[Replica], since: list[int]) -> list[str]:
    """Log lines about API calls beyond their scaled time limit, or about a lost Lease."""
    lines = [line for (process, _), at in zip(replicas, since, strict=True) for line in process.lines[at:]]
    return [line for line in lines if "no answer" in line or "no longer leading" in line]


def _is_unknown(task: Task, entry: Json) -> bool:
    """AtMostOnce: such a run is repeated only on request."""
    return task.name == "once" and entry.get("reason") == "OutcomeUnknown"


async def tell(place: Rollouts, tasks: list[Task], replicas: list[Replica]) -> None:
    """How things stand, for whoever looks into a failure."""
    nodes = {name: await place.admin.find(path("nodes", name=name)) for name in place.nodes.names}
    for name, node in sorted(nodes.items()):
        if node is not None:
            conditions = {c["type"]: c["status"] for c in node["status"]["conditions"]}
            print(name, node["metadata"]["uid"], node["metadata"]["labels"], node["spec"], conditions)
    for task in tasks:
        print(json.dumps(await task.get()))
        for pod in await task.pods():
            print(json.dumps({"metadata": pod["metadata"], "status": pod["status"]}))
        print(json.dumps(await task.ledger()))
    for process, _ in replicas:
        print(*process.lines[-60:], sep="\n")


async def promises(place: Rollouts, tasks: list[Task], most_nodes: int) -> None:
    """The last word on all of them, parallelism and budgets. Allowed was a percentage of the nodes of each
    moment, rounded up: never more than of the most that there were."""
    await place.history.check(backoff_limit=BACKOFF_LIMIT)
    allowed = {name: math.ceil(most_nodes * percent / 100) for name, percent in PERCENT.items()}
    allowed["rolling"] = PARALLELISM
    for task in tasks:
        if (limit := allowed.get(task.name)) is not None:
            together_at_most = place.history.most_at_once(await task.uid())
            print(f"{task.name}: {len(together_at_most)} at once, allowed {limit}", flush=True)
            assert len(together_at_most) <= limit, (limit, together_at_most)


async def quiet(replicas: list[Replica]) -> None:
    """Nobody writes anything but the Lease."""
    began = time.time()
    await asyncio.sleep(QUIET_SECONDS)
    for process, proxy in replicas:
        assert proxy.ledger.writes(since=began) == [], process.name
