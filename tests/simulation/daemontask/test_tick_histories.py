"""Ticks under two operators, one of which is late, and under crashes: each as one small history.

The judge of world.py objects to every Pod that should not have been created, and every plan is held
against that of one who remembers nothing; the rest is asserted here.
"""

from collections.abc import Iterator

import pytest

from caretaker.api import names
from simulation.daemontask.world import SimWorld, virtual_time


@pytest.fixture
def world() -> Iterator[SimWorld]:
    """A tick every minute; the first one has run."""
    with virtual_time() as clock:
        made = SimWorld(clock, schedule="* * * * *")
        for one in (0, 1):
            made.whole_pass(one)
        assert not made.cluster.pods
        tick(made)
        yield made
        made.close()
        assert not made.cluster.unequal, made.cluster.unequal[0]


def tick(world: SimWorld) -> str:
    """One comes, both nodes run for it, and operator 0 records it. Returns the stored tick."""
    world.let_time_pass(60)
    world.whole_pass(0)
    assert not world.cluster.pods
    world.whole_pass(0)
    assert len(world.live_pods()) == 2
    finish(world)
    return stored(world)


def finish(world: SimWorld) -> None:
    world.run_pods()
    world.whole_pass(0)
    world.let_time_pass(31)
    world.whole_pass(0)  # TTL takes the Pods
    assert not world.cluster.pods


def stored(world: SimWorld) -> str:
    return world.cluster.status.last_schedule_time or ""


def test_each_tick_runs_once_on_each_node(world: SimWorld) -> None:
    world.let_time_pass(29)
    ticks = {stored(world)}
    for _ in range(3):
        ticks.add(tick(world))
        world.let_time_pass(29)
    assert len(ticks) == 4
    assert {entry.seq for entry in world.cluster.entries().values()} == {4}


def test_one_who_has_not_heard_of_the_tick_runs_nothing_again(world: SimWorld) -> None:
    world.let_time_pass(29)
    late = world.act(1)
    late.catch_up()
    late.begin()
    late.answer()  # the task, before the tick is stored
    tick(world)
    world.act(1).finish()
    assert not world.cluster.pods


def test_the_status_of_one_who_is_late_does_not_bring_back_the_tick_before(world: SimWorld) -> None:
    before = stored(world)
    late = world.act(1)
    late.catch_up()
    world.cluster.edit(parallelism=2)  # so that its status is another
    late.begin()
    late.answer()  # the task
    assert tick(world) > before
    now = stored(world)
    world.act(1).finish()
    assert stored(world) == now


def test_a_template_that_cannot_be_read_for_a_while_forgets_no_tick(world: SimWorld) -> None:
    before = stored(world)
    mended = world.cluster.edit_raw(template={"spec": {"containers": "none"}})
    world.let_time_pass(60)
    world.whole_pass(0)
    assert stored(world) == before
    world.cluster.edit_raw(**mended)
    for _ in range(2):
        world.whole_pass(0)
    assert stored(world) > before
    assert len(world.live_pods()) == 2


@pytest.mark.parametrize("executed", [0, 1])
def test_a_kill_while_the_tick_is_stored_loses_and_repeats_nothing(world: SimWorld, executed: int) -> None:
    world.let_time_pass(60)
    one = world.act(0)
    one.begin()
    while not any(call.what.endswith("/status") for call in one.client.calls):
        one.answer()
    one.crash(executed)
    one.start()
    for _ in range(2):
        world.whole_pass(0)
    assert len(world.live_pods()) == 2
    finish(world)
    world.whole_pass(0)
    assert not world.cluster.pods


def test_a_run_that_is_still_active_at_the_tick_finishes_first(world: SimWorld) -> None:
    world.let_time_pass(29)
    world.let_time_pass(60)
    for _ in range(2):
        world.whole_pass(0)
    first = set(world.live_pods())
    world.let_time_pass(60)
    for _ in range(2):
        world.whole_pass(0)
    assert set(world.live_pods()) == first
    finish(world)
    for _ in range(2):
        world.whole_pass(0)
    marks = [world.cluster.pods[name].record().annotations for name in world.live_pods()]
    assert [mark[names.POD_SCHEDULED_AT] for mark in marks] == [stored(world)] * 2


def test_replace_deletes_it_and_runs_for_the_new_tick(world: SimWorld) -> None:
    world.cluster.edit(concurrencyPolicy="Replace")
    world.let_time_pass(89)
    for _ in range(2):
        world.whole_pass(0)
    first = {pod.metadata.uid for pod in world.cluster.pods.values()}
    assert len(first) == 2
    world.let_time_pass(60)
    for _ in range(4):
        world.whole_pass(0)
    assert {pod.metadata.uid for pod in world.cluster.pods.values()}.isdisjoint(first)
    assert len(world.live_pods()) == 2


def test_replace_deletes_nothing_while_nothing_may_start(world: SimWorld) -> None:
    world.cluster.edit(concurrencyPolicy="Replace", budgets=[{"nodes": "50%"}])
    world.let_time_pass(89)
    for _ in range(2):
        world.whole_pass(0)
    (running,) = world.live_pods()
    world.cluster.edit(budgets=[{"nodes": 0}], template=True)
    for _ in range(3):
        world.whole_pass(0)
    assert world.live_pods() == [running]
    world.cluster.edit(suspend=True, budgets=[])
    world.whole_pass(0)
    assert world.live_pods() == [running]
