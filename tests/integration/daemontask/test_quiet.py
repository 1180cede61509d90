"""Quiet: when there is nothing to do, nothing is written, whoever looks or applies again."""

import time

from testbed.admin import path
from testing.apicalls import Call
from testing.apiproxy import ApiProxy
from testing.customresource import condition, stands
from testing.kubelet import HOLD, IMAGE_PULL, fail
from testing.world import Task, World, holds_for

QUIET_SECONDS = 8


async def settled(world: World, proxy: ApiProxy) -> float:
    """When nothing has been written for a while: the time from which on nothing may be."""
    await world.until(lambda: not concerning(world, proxy.ledger.writes(since=time.time() - 2)))
    return time.time()


def concerning(world: World, calls: list[Call]) -> list[str]:
    """Those that are not of another test's namespace: the operator still ends tasks of earlier tests."""
    return [
        f"{call.verb} {call.resource} {call.namespace}/{call.name}: {call.code}"
        for call in calls
        if call.namespace.startswith(world.namespace) or not call.namespace.startswith("t-")
    ]


async def lose_the_ledger(world: World, task: Task) -> None:
    """Status says that there was a shard, and there is none."""
    await task.when(lambda t: stands(t, "Ready", "False", "NoMatchingNodes"))
    sub = path("daemontasks", world.namespace, task.name, "status")
    await world.admin.patch(sub, {"status": {"ledger": {"shards": 1, "recorded": 1}}})
    await task.edit(parallelism=1)
    await task.condition("Stalled", reason="LedgerLost")


async def test_a_quiet_time_has_no_writes_and_no_not_found_loops(world: World, proxy: ApiProxy) -> None:
    """Faults 18 and 29 (system-upgrade-controller #125, #134; NodeWright #603)."""
    bad, *_ = await world.join(4)
    world.kubelet.script(bad, fail())
    finished = await world.task("finished", backoffLimit=0, failurePolicy={"maxFailedNodes": 1})
    suspended = await world.task("suspended", suspend=True)
    lonely = await world.task("lonely", template=world.template(nodeSelector={"no": "node"}))
    invalid = await world.task("invalid", template=world.template(dnsPolicy="Never"))
    await finished.counts(succeeded=3, failed=1, active=0)
    world.kubelet.default = IMAGE_PULL
    stuck = await world.task("stuck", progressDeadlineSeconds=1)
    await stuck.when(lambda t: "4 ImagePullBackOff" in condition(t, "Stalled").get("message", ""))
    world.kubelet.default = HOLD
    running = await world.task("running")
    await running.counts(active=4)
    await suspended.when(lambda t: stands(t, "Suspended"))
    await lonely.condition("Ready", "False", "NoMatchingNodes")
    await invalid.condition("Stalled", reason="InvalidSpec")
    await stuck.condition("Stalled", reason="ProgressDeadlineExceeded")
    await stuck.event("ProgressDeadlineExceeded")
    lost = await world.task("lost", template=world.template(nodeSelector={"no": "node"}))
    await lose_the_ledger(world, lost)
    since = await settled(world, proxy)

    def quiet() -> bool:
        assert concerning(world, proxy.ledger.writes(since=since)) == []
        assert concerning(world, proxy.ledger.calls(lambda c: c.code == 404, since=since)) == []
        assert concerning(world, proxy.ledger.calls(lambda c: c.verb in ("get", "list"), since=since)) == []
        return True

    await holds_for(QUIET_SECONDS, quiet)


async def test_applying_the_same_manifest_again_causes_no_write_by_us(world: World, proxy: ApiProxy) -> None:
    await world.join(2)
    body = {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "DaemonTask",
        "metadata": {"name": "t", "namespace": world.namespace},
        "spec": {"template": world.template(), "parallelism": 1},
    }
    task = world.handle("t")
    await world.admin.apply(task.url, body)
    await task.done(2)
    since = await settled(world, proxy)
    before = await task.get()
    for _ in range(3):
        await world.admin.apply(task.url, body)

    def quiet() -> bool:
        assert concerning(world, proxy.ledger.writes(since=since)) == []
        return True

    await holds_for(3, quiet)
    after = await task.get()
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert len(world.kubelet.ran) == 2


async def test_nothing_is_ever_written_to_a_node(world: World, proxy: ApiProxy) -> None:
    """Faults 20 and 33, of a task without drain and gate: no cordon is undone, no mark left behind."""
    names = await world.join(4)
    cordoned, tainted, failing, _ = names
    await world.cordon(cordoned)
    await world.taint(tainted, "NoExecute")
    world.kubelet.script(failing, fail())
    task = await world.task(backoffLimit=0)
    await task.counts(succeeded=1, failed=1, blocked=1)
    await world.cordon(cordoned, on=False)
    await world.taint(tainted, None)
    await task.counts(succeeded=3, failed=1)
    await world.kubelet.reboot(failing)
    writes = proxy.ledger.calls(
        lambda call: call.is_write and call.resource == "nodes" and call.name in names
    )
    assert concerning(world, writes) == []
