"""How far one bad thing reaches on 1,000 fake nodes: a template that fails everywhere, and nodes whose
Pods an admission policy refuses. And how many Events a careful rollout over 5,000 nodes has.

The failing task is examples/patch-sysctl.yaml with Pods that always fail. With a backoffLimit of 6 the
backoffs alone take ten minutes: there the operator's waits are a tenth as long, and the seconds no measure.
"""

import time
from contextlib import AsyncExitStack
from typing import Any, Final

import yaml

from bench.figures import Figure
from bench.parts import PodWatch, clean, cluster, say, succeeded, task
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testbed.steer import behaviour
from testing.operator import OperatorProcess
from testing.policies import denied

NODES: Final = 1000
FLEET: Final = 5000  # nodes of the rollout whose Events are counted
FAST: Final = 5000  # QPS that bounds nothing here
SHARE: Final = 10  # parallelism, per cent of the nodes, as in the example
REFUSED: Final = 1  # per cent of the nodes
RETRIES: Final = ((0, 1.0), (1, 1.0), (6, 0.1))  # backoffLimit, how long the operator's waits are
ROUNDS: Final = 2  # of rollouts with and without refused nodes
TIMEOUT: Final = 900.0
OURS: Final = "caretaker.dev/daemontask"
EXAMPLE: Final = CHECKOUT / "examples" / "patch-sysctl.yaml"


async def radius(nodes: int = NODES, fleet: int = FLEET) -> list[Figure]:
    """All figures."""
    found: list[Figure] = []
    async with cluster(nodes, FAST, FAST) as (made, admin):
        for retries, scale in RETRIES:
            found += await _failing(made, admin, nodes, retries, scale)
        with OperatorProcess(made.kubeconfig, "bench"):
            found += await _refused(admin, nodes)
    async with cluster(fleet, FAST, FAST) as (made, admin):
        with OperatorProcess(made.kubeconfig, "bench"):
            found += await _events(admin, fleet)
    return found


async def _failing(made: Cluster, admin: Admin, nodes: int, retries: int, scale: float) -> list[Figure]:
    """The example with a template that fails on every node, until it pauses by itself."""
    name = f"failing-{retries}"
    body = _example(name, retries)
    width, allowed = nodes * SHARE // 100, body["spec"]["failurePolicy"]["maxFailedNodes"]
    with OperatorProcess(made.kubeconfig, "bench", leader_elect=scale == 1, time_scale=scale):
        started = time.monotonic()
        await admin.create(path("daemontasks", "default"), body)
        await admin.wait_for(path("daemontasks", "default", name), _is_paused, TIMEOUT)
        seconds = time.monotonic() - started
        # A node keeps its last Pod: the next one replaces it.
        pods = await admin.list(path("pods", "default"), labels=f"{OURS}={name}")
        events = await _events_of(admin, name)
        await clean(admin, "daemontasks", name, f"{OURS}={name}")
    hit = {pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}
    say(f"backoffLimit {retries}: {len(hit)} nodes hit, Paused after {seconds:.1f} s")
    what = f"a template that fails, backoffLimit {retries}"
    waits = "" if scale == 1 else f"waits x {scale:g}"
    return [
        Figure(f"{what}: nodes of {nodes:,} hit", len(hit), "", f"<= {width + allowed}"),
        Figure(f"{what}: apply to Paused", seconds, "s", note=waits),
        Figure(f"{what}: Events of the task", events, "", "<= 10"),
    ]


def _example(name: str, retries: int) -> Json:
    body: Json = yaml.safe_load(EXAMPLE.read_text())
    body["metadata"] = {"name": name}
    template = task(name, behaviour("fail"))["spec"]["template"]
    body["spec"] |= {"parallelism": f"{SHARE}%", "backoffLimit": retries, "template": template}
    return body


def _is_paused(found: Json) -> bool:
    conditions = found.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["reason"] == "Paused" for c in conditions)


async def _refused(admin: Admin, nodes: int) -> list[Figure]:
    """The same rollout with and without nodes whose Pods are refused, until the others have succeeded."""
    listed = await admin.list(path("nodes"))
    bad = sorted(node["metadata"]["name"] for node in listed)[:: 100 // REFUSED]
    others = nodes - len(bad)
    none, refused = [], []
    for number in range(ROUNDS):
        none.append(await _rollout(admin, f"none-{number}", others))
        refused.append(await _rollout(admin, f"refused-{number}", others, bad))
    what = f"other nodes' time, {REFUSED} % of {nodes:,} refused / none, parallelism {SHARE} %"
    told = (" and ".join(f"{seconds:.1f} s" for seconds in each) for each in (refused, none))
    # The shortest of each: what else the machine does only adds to them.
    return [Figure(what, min(refused) / min(none), "x", "<= 1.05", " / ".join(told))]


async def _rollout(admin: Admin, name: str, others: int, bad: list[str] | None = None) -> float:
    """Seconds until so many nodes have succeeded."""
    async with AsyncExitStack() as stack:
        if bad:
            await stack.enter_async_context(denied(admin, "default", "CREATE", "not on this node", bad))
        pods = await stack.enter_async_context(PodWatch(admin, f"{OURS}={name}"))
        started = time.monotonic()
        await admin.create(path("daemontasks", "default"), task(name, parallelism=f"{SHARE}%"))
        seconds = await pods.reach("Succeeded", others, TIMEOUT) - started
        if bad:
            found = await admin.wait_for(
                path("daemontasks", "default", name), lambda t: t["status"]["blocked"] == len(bad), TIMEOUT
            )
            assert {one["nodeName"] for one in found["status"]["blockedNodes"]} == set(bad)
    say(f"{name}: {others} nodes succeeded after {seconds:.1f} s")
    await clean(admin, "daemontasks", name, f"{OURS}={name}")
    return seconds


async def _events(admin: Admin, nodes: int) -> list[Figure]:
    """A rollout of a hundred rounds."""
    name = "rounds"
    await admin.create(
        path("daemontasks", "default"),
        task(name, behaviour(run_seconds=0), parallelism="1%", minSuccessSeconds=1),
    )
    await succeeded(admin, name)
    return [
        Figure(
            f"Events of a rollout over {nodes:,} nodes, parallelism 1 %",
            await _events_of(admin, name),
            "",
            "<= 10",
        )
    ]


async def _events_of(admin: Admin, name: str) -> int:
    """How often the API server was told of something that happened to the task."""
    found: list[dict[str, Any]] = await admin.list(
        path("events", "default"), fields=f"involvedObject.kind=DaemonTask,involvedObject.name={name}"
    )
    return sum(event.get("count") or (event.get("series") or {}).get("count") or 1 for event in found)
