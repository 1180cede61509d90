"""What an operator believes may be old: each look that it takes before it acts, as one small history.

Operator 0 is up to date, operator 1 is behind in one respect. The judge of world.py objects to every Pod
that should not have been created; the rest is asserted here.
"""

from collections.abc import Iterator

import pytest

from caretaker.api import names
from caretaker.api.times import format_time
from caretaker.daemontask.pod_failure_policy import BACKOFF_LIMIT_EXCEEDED
from simulation.daemontask.world import SimWorld, SlowWorld, virtual_time


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with virtual_time() as clock:
        made = SimWorld(clock)
        yield made
        made.close()


def rolled_out(world: SimWorld) -> None:
    """Both nodes have run; operator 0 has recorded it and its TTL has taken the Pods."""
    world.whole_pass(0)
    world.whole_pass(1)
    world.run_pods()
    world.whole_pass(0)
    world.let_time_pass(31)
    world.whole_pass(0)
    assert sorted(world.cluster.entries()) == ["a", "b"]
    assert not world.cluster.pods


def test_a_ledger_that_was_read_before_the_other_recorded_starts_nothing(world: SimWorld) -> None:
    rolled_out(world)
    world.whole_pass(1)
    assert not world.cluster.pods


def test_a_shard_that_the_other_made_is_not_a_lost_one(world: SimWorld) -> None:
    rolled_out(world)
    world.whole_pass(1)
    assert {c.reason for c in world.cluster.status.conditions if c.type == "Ready"} == {"Succeeded"}


def test_a_task_that_was_read_before_its_ledger_starts_nothing_of_the_old_template(world: SimWorld) -> None:
    rolled_out(world)
    late = world.act(1)
    late.crash(0)
    late.start()
    late.begin()
    late.answer()  # the task, as it is before the edit
    world.cluster.edit(template=True)
    rolled_out_again(world)
    world.act(1).finish()
    assert not world.cluster.pods


def rolled_out_again(world: SimWorld) -> None:
    began = world.operators[1].began
    for _ in range(3):
        world.whole_pass(0)
        world.run_pods()
        world.let_time_pass(0 if world.cluster.pods else 31)
    for _ in range(2):
        world.clock.now += 31
        world.whole_pass(0)
    assert not world.live_pods()
    assert world.operators[1].began == began


def test_a_ledger_that_changes_under_the_plan_brings_the_newer_task_along(world: SimWorld) -> None:
    rolled_out(world)
    world.whole_pass(1)
    world.cluster.edit(suspend=True)
    late = world.act(1)
    late.begin()
    world.cluster.edit(template=True, suspend=False)
    late.answer()
    world.cluster.edit(template=True)
    rolled_out_again(world)
    world.act(1).finish()
    assert not world.cluster.pods


@pytest.mark.parametrize("change", ["reboot", "replace"])
def test_a_node_that_was_seen_before_it_changed_runs_nothing(world: SimWorld, change: str) -> None:
    rolled_out(world)
    world.let_time_pass(700)  # a reboot sooner would be the run's own
    if change == "reboot":
        world.cluster.reboot("a")
    else:
        world.cluster.add_node("a")
    rolled_out_again(world)
    world.whole_pass(1, nodes=False)
    assert not world.cluster.pods
    node = world.cluster.nodes["a"].record()
    entry = world.cluster.entries()["a"]
    assert (entry.node_uid, entry.boot_id, entry.result) == (node.uid, node.boot_id, "Succeeded")


def test_a_pod_of_a_node_not_yet_seen_is_not_deleted(world: SimWorld) -> None:
    world.whole_pass(1)
    world.cluster.add_node("c")
    world.whole_pass(0)
    of_c = set(world.live_pods())
    world.whole_pass(1, nodes=False)
    assert set(world.live_pods()) == of_c


def test_a_pod_that_finished_since_it_was_found_unschedulable_is_recorded_not_deleted(
    world: SimWorld,
) -> None:
    world.whole_pass(0)
    world.let_time_pass(1801)  # past the progress deadline: unbound Pods are given up
    one = world.act(0)
    one.begin()
    one.answer()  # the task
    world.run_pods()
    one.finish()
    assert len(world.cluster.pods) == 2
    world.whole_pass(0)
    assert {entry.result for entry in world.cluster.entries().values()} == {"Succeeded"}


def test_a_look_at_the_ledger_that_is_too_old_starts_nothing(world: SimWorld) -> None:
    """Its answer took nearly as long as a read may, and meanwhile the other ran and recorded everything."""
    late = world.act(1)
    late.begin()
    while not any(call.what.startswith("get") and "configmaps" in call.what for call in late.client.calls):
        late.answer()
    late.execute()
    world.whole_pass(0)
    world.run_pods()
    world.whole_pass(0)
    world.let_time_pass(29)
    world.act(1).answer()
    world.let_time_pass(2)
    world.whole_pass(0)  # its TTL takes the Pods
    assert not world.cluster.pods
    world.act(1).finish()
    assert not world.cluster.pods


def test_a_pod_that_is_heard_to_have_finished_before_its_deletion_is_sent_stays(world: SimWorld) -> None:
    world.whole_pass(0)
    of_a, of_b = sorted(world.cluster.pods, key=lambda name: world.cluster.pods[name].record().node_uid)
    world.cluster.drop_pod(of_b)  # so that the pass has something to start, and looks at the ledger first
    one = world.act(0)
    one.catch_up()
    world.let_time_pass(1801)  # past the progress deadline: unbound Pods are given up
    one.begin()
    one.answer()  # the task
    world.run_pods()
    one.catch_up()
    one.finish()
    assert of_a in world.cluster.pods


def test_a_pod_that_lives_on_though_its_run_is_recorded_has_no_other_beside_it() -> None:
    """Its retries are used up, a re-run is asked for, and the late operator has not heard of the Pod."""
    with virtual_time() as clock:
        world = SlowWorld(clock, backoffLimit=0)
        world.whole_pass(0)
        for name in world.live_pods():
            world.cluster.crash(name, restarts=0)
        world.whole_pass(0)
        assert {entry.reason for entry in world.cluster.entries().values()} == {BACKOFF_LIMIT_EXCEEDED}
        before = world.live_pods()
        world.clock.now += 1
        world.cluster.annotate(names.RERUN_AT, format_time(world.clock.now))
        world.whole_pass(1, pods=False)
        assert world.live_pods() == before
        world.close()


def test_a_node_that_is_heard_of_while_the_pass_goes_on_keeps_its_pod(world: SimWorld) -> None:
    rolled_out(world)
    world.whole_pass(1)
    world.cluster.add_node("a")  # in place of the one that the late operator knows
    world.whole_pass(0)
    world.run_pods()
    (of_a,) = world.cluster.pods
    world.cluster.edit(template=True)  # so that the pass has something to start
    late = world.act(1)
    late.deliver("pods", 100)
    late.begin()
    late.answer()  # the task
    late.deliver("nodes", 100)
    late.finish()
    assert of_a in world.cluster.pods
