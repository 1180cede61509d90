"""How many nodes run at once: `parallelism` and `minSuccessSeconds`."""

import time
from collections.abc import Callable

import pytest

from testbed.admin import Json
from testbed.recorder import PodRecorder, is_active
from testing.kubelet import HOLD, SUCCEED
from testing.world import World, holds_for

Recorders = Callable[[], PodRecorder]


async def test_fifty_nodes_that_become_eligible_in_one_call_never_exceed_parallelism(
    world: World, recorders: Recorders
) -> None:
    """Fault 1 (system-upgrade-controller #38, #77)."""
    names = await world.join(50)
    world.kubelet.default = HOLD
    async with recorders() as record:
        task = await world.task(parallelism=10)
        await task.counts(active=10, pending=40)
        await world.kubelet.finish_all()
        await task.done(50)
        await record.settle()
    assert record.max_active() == 10
    assert record.max_active_per_place() == 1
    assert record.runs_per_node() == dict.fromkeys(names, 1)


async def test_a_percentage_of_the_desired_nodes_is_rounded_up_and_is_at_least_one(
    world: World, recorders: Recorders
) -> None:
    world.kubelet.default = HOLD
    await world.join(5)
    quarter = await world.task("quarter", parallelism="25%")
    least = await world.task("least", parallelism="1%")
    await quarter.counts(active=2, pending=3)
    await least.counts(active=1, pending=4)
    world.kubelet.default = SUCCEED
    await world.kubelet.finish_all()
    await quarter.done(5)
    await least.done(5)


async def test_without_parallelism_all_nodes_run_at_once(world: World) -> None:
    world.kubelet.default = HOLD
    await world.join(12)
    task = await world.task()
    await task.counts(active=12)
    await world.kubelet.finish_all()
    await task.done(12)


async def test_a_higher_parallelism_starts_more_without_a_new_revision(world: World) -> None:
    world.kubelet.default = HOLD
    await world.join(4)
    task = await world.task(parallelism=1)
    before = await task.counts(active=1, pending=3)
    await task.edit(parallelism=3)
    after = await task.counts(active=3, pending=1)
    assert after["status"]["currentRevision"] == before["status"]["currentRevision"]


async def test_a_slot_is_kept_until_the_node_has_stayed_ready_for_min_success_seconds(
    world: World, recorders: Recorders
) -> None:
    await world.join(2)
    async with recorders() as record:
        task = await world.task(parallelism=1, minSuccessSeconds=3)
        await task.done(2)
        await record.settle()
    first, second = sorted(record.first_seen().values())
    assert second - first >= 2  # the kubelet tells the end in whole seconds
    assert record.max_active() == 1


async def test_a_node_that_goes_not_ready_after_its_success_keeps_the_next_one_waiting(world: World) -> None:
    a, b = await world.join(2)
    task = await world.task(parallelism=1, minSuccessSeconds=4, progressDeadlineSeconds=600)
    await task.ledger_when(lambda entries: len(entries) == 1)
    (first,) = await task.ledger()
    await world.kubelet.ready(first, "False")
    await holds_for(6, lambda: len(world.kubelet.ran) == 1)
    began = time.monotonic()
    await world.kubelet.ready(first)
    await task.done(2)
    assert time.monotonic() - began >= 3  # the kubelet tells its Ready condition's time in whole seconds
    assert {node for node, _ in world.kubelet.ran} == {a, b}


async def test_two_tasks_on_the_same_nodes_both_progress(world: World, recorders: Recorders) -> None:
    """Fault 6 (kruise #1528)."""
    names = await world.join(3)
    async with recorders() as record:
        one = await world.task("one", parallelism=1)
        two = await world.task("two", parallelism=1)
        await one.done(3)
        await two.done(3)
        await record.settle()
    assert record.runs_per_node() == dict.fromkeys(names, 2)

    def of(name: str) -> Callable[[Json], bool]:
        return lambda pod: is_active(pod) and pod["metadata"]["labels"]["caretaker.dev/daemontask"] == name

    assert record.peak(of("one")).count == 1
    assert record.peak(of("two")).count == 1


@pytest.mark.slow
async def test_the_nodes_of_a_first_rollout_are_taken_in_an_order_that_does_not_depend_on_their_names(
    world: World,
) -> None:
    names = await world.join(12)
    task = await world.task(parallelism=1)
    await task.counts(succeeded=4)
    await task.edit(suspend=True)
    taken = [node for node, _ in world.kubelet.ran]
    assert taken != names[: len(taken)]
