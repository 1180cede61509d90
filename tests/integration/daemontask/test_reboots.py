"""Reboots: those that ask for a run, and those that a run causes itself and says so."""

from collections.abc import Callable

import pytest

from testbed.recorder import PodRecorder
from testing.apiproxy import ApiProxy
from testing.customresource import stands
from testing.faults import Answer, Match
from testing.kubelet import EVICTED, HOLD, SUCCEED, Outcome, fail
from testing.world import Task, World, holds_for

pytestmark = pytest.mark.slow

Recorders = Callable[[], PodRecorder]

ON_REBOOT = {"rerunOn": ["TemplateChange", "NodeReboot"]}
REBOOTING = {**ON_REBOOT, "rebootsNode": True}


async def rebooted(world: World, task: Task, node: str) -> str:
    """Reboot the node and wait until the ledger knows of it."""
    boot_id = await world.kubelet.reboot(node)
    await task.ledger_when(lambda entries: entries.get(node, {}).get("bootID") == boot_id)
    return boot_id


async def test_a_task_that_does_not_ask_for_it_ignores_reboots(world: World) -> None:
    (node,) = await world.join()
    task = await world.task()
    await task.done(1)
    for _ in range(2):
        await world.kubelet.reboot(node)
    await holds_for(1.5, lambda: len(world.kubelet.ran) == 1)


async def test_every_reboot_runs_again_however_soon_it_comes(world: World) -> None:
    """Or a sysctl that the run has set would be gone, and the node Succeeded."""
    node, other = await world.join(2)
    task = await world.task(**ON_REBOOT)
    await task.done(2)
    for runs in (2, 3):
        boot_id = await rebooted(world, task, node)
        await task.done(2)
        entry = (await task.ledger())[node]
        assert (entry["bootID"], entry["seq"], entry["result"]) == (boot_id, runs, "Succeeded")
    assert [on for on, _ in world.kubelet.ran].count(other) == 1


async def test_a_run_that_a_reboot_cuts_off_runs_again_though_no_retry_is_allowed(
    world: World, recorders: Recorders
) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, HOLD)
    async with recorders() as record:
        task = await world.task(backoffLimit=0, **ON_REBOOT)
        await task.running()
        await world.kubelet.reboot(node)
        await world.kubelet.finish(node, outcome=fail(137))
        await task.ledger_when(lambda entries: entries.get(node, {}).get("result") == "Succeeded")
        await task.done(1)
        await record.settle()
    assert record.runs_per_node() == {node: 2}
    assert record.max_active_per_place() == 1


async def test_the_first_reboot_after_a_run_is_its_own_and_the_next_one_runs_again(world: World) -> None:
    """Fault 30 (NodeWright #633): `exit 0`, then the reboot that the task asked for."""
    node, other = await world.join(2)
    task = await world.task(**REBOOTING)
    await task.done(2)
    await rebooted(world, task, node)
    await holds_for(1.5, lambda: len(world.kubelet.ran) == 2)
    await rebooted(world, task, node)
    found = await task.done(2)
    assert stands(found, "Ready")
    entries = await task.ledger()
    assert (entries[node]["seq"], entries[other]["seq"]) == (2, 1)


@pytest.mark.parametrize(
    ("policy", "killed"),
    [
        pytest.param("Never", EVICTED, id="killed by the reboot, restartPolicy Never"),
        pytest.param("OnFailure", EVICTED, id="killed by the reboot, restartPolicy OnFailure"),
        pytest.param("OnFailure", None, id="restarted in the same pod by the kubelet"),
        pytest.param("Never", SUCCEED, id="exit 0 just before the reboot"),
        pytest.param("OnFailure", SUCCEED, id="exit 0 just before the reboot, restartPolicy OnFailure"),
    ],
)
async def test_a_task_that_reboots_its_node_ends_succeeded_once(
    world: World, recorders: Recorders, policy: str, killed: Outcome | None
) -> None:
    """Fault 30 (NodeWright #633, system-upgrade-controller #433)."""
    (node,) = await world.join()
    world.kubelet.script(node, HOLD)
    async with recorders() as record:
        task = await world.task(template=world.template(restartPolicy=policy), backoffLimit=0, **REBOOTING)
        await task.running()
        await world.kubelet.ready(node, "False")
        if killed is not None:
            await world.kubelet.finish(node, outcome=killed)
        await world.kubelet.reboot(node)
        await world.kubelet.ready(node)
        if killed is None:
            await world.kubelet.finish(node)
        await task.done(1)
        await holds_for(1.5, lambda: len(world.kubelet.ran) <= 2)
        await record.settle()
    assert record.runs_per_node("Succeeded") == {node: 1}
    assert record.max_active_per_place() == 1


async def test_a_reboot_while_a_pod_is_active_never_starts_a_second_one(
    world: World, recorders: Recorders
) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, HOLD)
    async with recorders() as record:
        task = await world.task(**ON_REBOOT)
        await task.running()
        await world.kubelet.reboot(node)
        await holds_for(1.5, lambda: len(world.kubelet.ran) == 1)
        await world.kubelet.finish(node)
        await task.ledger_when(lambda entries: entries.get(node, {}).get("seq") == 2)
        await task.done(1)
        await record.settle()
    assert record.runs_per_node() == {node: 2}, "the one that the reboot asked for came afterwards"
    assert record.max_active_per_place() == 1


async def test_a_fourth_run_by_reboots_within_six_hours_is_refused_as_a_loop(world: World) -> None:
    (node,) = await world.join()
    task = await world.task(**ON_REBOOT)
    await task.done(1)
    for run in range(2, 5):
        await rebooted(world, task, node)
        await task.ledger_when(lambda entries, run=run: entries[node]["seq"] == run)
    await world.kubelet.reboot(node)
    found = await task.counts(failed=1)
    (failed,) = found["status"]["failedNodes"]
    assert failed["reason"] == "RebootLoop"
    assert len(world.kubelet.ran) == 4
    await task.annotate(rerun_at="2030-01-01T00:00:00Z")
    await task.done(1)
    assert len(world.kubelet.ran) == 5


async def test_a_reboot_whose_record_cannot_be_written_at_first_makes_one_run_and_resets_nothing(
    world: World, proxy: ApiProxy
) -> None:
    """Fault 31 (NodeWright): it is handled in one write that may be repeated."""
    node, other = await world.join(2)
    world.kubelet.script(other, fail(5), fail(5))
    task = await world.task(backoffLimit=0, **ON_REBOOT)
    await task.counts(succeeded=1, failed=1)
    await task.ledger_when(lambda entries: len(entries) == 2)
    failing = Match(verb="patch", resource="configmaps", namespace=world.namespace, times=3)
    with proxy.fault(failing, Answer(500, "InternalError")) as rule:
        boot_id = await world.kubelet.reboot(node)
        entries = await task.ledger_when(lambda entries: entries[node]["bootID"] == boot_id)
        assert len(rule.hits) == 3
    assert entries[node]["seq"] == 2
    assert entries[other]["result"] == "Failed"
    assert [on for on, _ in world.kubelet.ran].count(node) == 2
    await task.counts(succeeded=1, failed=1, active=0)
