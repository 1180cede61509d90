"""Conditions of nodes as a gate, on a real API server: `healthGate`."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from testbed.admin import path
from testbed.recorder import PodRecorder
from testing.apiproxy import ApiProxy
from testing.customresource import condition, stands
from testing.kubelet import HOLD
from testing.world import World, blocked, holds_for

Recorders = Callable[[], PodRecorder]

GATE: Final[dict[str, Any]] = {
    "conditions": [{"type": "KernelDeadlock"}, {"type": "example.com/Net", "status": "True"}]
}


async def report(world: World, node: str, kind: str, status: str, beat: str = "") -> None:
    """The write of a problem detector."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    stated = {"type": kind, "status": status, "reason": "Test", "message": beat, "lastHeartbeatTime": now}
    if not beat:
        stated["lastTransitionTime"] = now
    url = path("nodes", name=node, sub="status")
    await world.admin.patch(url, {"status": {"conditions": [stated]}}, "strategic")


async def test_an_unhealthy_node_waits_without_a_slot_and_runs_once_it_is_healthy(world: World) -> None:
    well, dead, silent, apart = await world.join(4)
    await report(world, dead, "KernelDeadlock", "True")
    await report(world, silent, "example.com/Net", "Unknown")
    await report(world, apart, "DiskPressure", "True")  # is not listed
    task = await world.task(parallelism=1, healthGate=GATE)
    found = await task.counts(succeeded=2, blocked=2)
    assert blocked(found) == {dead: "NodeUnhealthy", silent: "NodeUnhealthy"}
    assert {node for node, _ in world.kubelet.ran} == {well, apart}
    words = "2 node(s) wait for healthGate: KernelDeadlock on 1, example.com/Net on 1"
    found = await task.when(lambda t: t["status"]["slots"]["held"] == 0)
    assert words in condition(found, "Ready")["message"]
    await report(world, dead, "KernelDeadlock", "False")
    await task.counts(succeeded=3, blocked=1)
    await report(world, silent, "example.com/Net", "True")
    await task.done(4)


async def test_a_run_that_breaks_its_node_stops_the_rollout_at_the_parallelism(world: World) -> None:
    await world.join(6)
    world.kubelet.default = HOLD
    policy = {"maxFailedNodes": 0, "action": "Pause"}
    task = await world.task(parallelism=2, minSuccessSeconds=20, healthGate=GATE, failurePolicy=policy)
    await task.running(2)
    first = {node for node, _ in world.kubelet.ran}
    await world.kubelet.finish_all()
    await task.counts(succeeded=2)
    for node in first:
        await report(world, node, "KernelDeadlock", "True")
    found = await task.when(lambda t: "2 node(s) are failing" in condition(t, "Ready")["message"])
    assert found["status"]["slots"]["held"] == 2
    await holds_for(3, lambda: len(world.kubelet.ran) == 2)
    await task.edit(progressDeadlineSeconds=1, minSuccessSeconds=1)
    await task.condition("Ready", "False", "Paused")
    for node in first:
        await report(world, node, "KernelDeadlock", "False")
    await task.done(6)


async def test_heartbeats_and_other_conditions_cause_no_request(world: World, proxy: ApiProxy) -> None:
    (node,) = await world.join()
    await report(world, node, "KernelDeadlock", "False")
    task = await world.task(healthGate=GATE)
    done = await task.done(1)

    def asked() -> int:
        return len([call for call in proxy.ledger.calls() if call.namespace == world.namespace])

    await holds_for(2, lambda: True)
    before = asked()
    for beat in range(5):
        await report(world, node, "KernelDeadlock", "False", beat=str(beat))
    await report(world, node, "DiskPressure", "True")
    await holds_for(2, lambda: True)
    assert asked() == before
    await report(world, node, "KernelDeadlock", "True")
    await world.until(lambda: asked() > before)
    after = await task.get()
    assert stands(after, "Ready")
    assert after["status"]["succeeded"] == done["status"]["succeeded"] == 1
