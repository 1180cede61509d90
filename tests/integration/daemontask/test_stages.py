"""Canary and domains on a real API server: `canary` and `topologyKey`, also across kills."""

import asyncio
from pathlib import Path
from typing import Final

from testbed.cluster import Cluster
from testing.cli import Cli
from testing.customresource import condition, stands
from testing.kubelet import HOLD, SUCCEED, fail
from testing.operator import OperatorProcess
from testing.world import World, holds_for

ZONE: Final = "topology.kubernetes.io/zone"


async def test_the_others_begin_once_the_canary_has_soaked_also_after_a_kill(
    world: World, operator: OperatorProcess
) -> None:
    await world.join(5)
    task = await world.task(canary={"soakSeconds": 3600})
    found = await task.counts(succeeded=1, pending=4)
    assert (
        "canary: 0 of 1 node(s) passed, 1 soak; 4 node(s) wait for it" in condition(found, "Ready")["message"]
    )
    assert not found["status"]["passedCanary"]
    operator.kill9()
    await asyncio.to_thread(operator.start)
    await holds_for(2, lambda: len(world.kubelet.ran) == 1)
    await task.edit(canary={"soakSeconds": 2})
    found = await task.done(5)
    assert found["status"]["passedCanary"] == found["status"]["finishedRollout"]
    await world.join()
    await task.done(6)


async def test_a_canary_that_fails_stops_the_rollout_until_a_person_resumes_it(
    world: World, cluster: Cluster
) -> None:
    """With any number of failures that failurePolicy allows."""
    await world.join(5)
    world.kubelet.default = fail()
    task = await world.task(canary={}, backoffLimit=0, failurePolicy={"maxFailedNodes": "100%"})
    found = await task.when(lambda t: stands(t, "Stalled", "True", "NodesFailed"))
    words = condition(found, "Ready")["message"]
    (first,) = (one["nodeName"] for one in found["status"]["failedNodes"])
    assert words.startswith(
        f"the canary failed on 1 of 1 node(s), first {first}: Error; no other node begins"
    )
    await holds_for(2, lambda: len(world.kubelet.ran) == 1)
    world.kubelet.default = HOLD
    said = await Cli(Path(cluster.kubeconfig), world.namespace)("resume", "daemontask", "t")
    assert (said.code, said.lines) == (0, ["DaemonTask t goes on with another canary"])
    await task.running(1)
    await holds_for(2, lambda: len(world.kubelet.ran) == 2)
    world.kubelet.default = SUCCEED
    await world.kubelet.finish_all()
    await task.counts(succeeded=4, failed=1)


async def test_a_correction_begins_with_a_canary_of_its_own(world: World) -> None:
    await world.join(4)
    world.kubelet.default = fail()
    task = await world.task(canary={}, backoffLimit=0)
    await task.when(lambda t: stands(t, "Stalled", "True", "NodesFailed"))
    world.kubelet.default = HOLD
    await task.put_template(world.template(labels={"corrected": "yes"}))
    await task.running(1)
    await holds_for(2, lambda: len(world.kubelet.ran) == 2)
    world.kubelet.default = SUCCEED
    await world.kubelet.finish_all()
    await task.done(4)


async def test_one_zone_goes_after_the_other(world: World) -> None:
    first = await world.join(2, labels={ZONE: "a"})
    await world.join(2, labels={ZONE: "b"})
    world.kubelet.default = HOLD
    task = await world.task(topologyKey=ZONE)
    found = await task.when(lambda t: t["status"].get("active") == 2)
    assert f"nodes with {ZONE}=a go first, 2 node(s) wait for them" in condition(found, "Ready")["message"]
    await task.running(2)
    await world.kubelet.finish(first[0])
    await task.counts(succeeded=1, active=1, pending=2)
    await holds_for(2, lambda: len(world.kubelet.ran) == 2)
    world.kubelet.default = SUCCEED
    await world.kubelet.finish(first[1])
    await task.done(4)
