"""Pods that were to be deleted and live on: what starts in their pass and after it never exceeds parallelism,
and they hold up nothing else."""

from typing import Any

import pytest

from caretaker.api.conditions import Condition
from caretaker.api.objects import Node, Pod
from caretaker.daemontask.intents import is_open
from caretaker.daemontask.plan import BATCH, keep_slots
from caretaker.daemontask.task_state import TaskState
from simulation.daemontask.operator import KEY
from simulation.daemontask.world import Make, SimWorld
from unit.daemontask.build import NOW, node, planned, pod, started, task

ONCE: dict[str, Any] = {"runGuarantee": "AtMostOnce", "backoffLimit": 0}


def with_late_pod(make: Make, *others: str, **spec: Any) -> tuple[SimWorld, str]:
    """A Pod of the node a is past the progress deadline without a node; the others have just joined."""
    world = make(**spec)
    world.cluster.remove_node("b")
    world.whole_pass(0)
    (late,) = world.live_pods()
    world.let_time_pass(1801)
    for name in others:
        world.cluster.add_node(name)
    return world, late


def refused_pass(world: SimWorld, status: int) -> None:
    """A whole pass, each of whose deletes is answered so and not executed."""
    one = world.act(0)
    one.catch_up()
    one.begin()
    while one.busy:
        deletes = [n for n, call in enumerate(one.client.calls) if call.what.startswith("delete")]
        if deletes:
            one.refuse(deletes[0], status)
        else:
            one.answer()


def state_of(world: SimWorld) -> TaskState:
    found = world.operators[0].task_states.find(KEY)
    assert found is not None
    return found


def degraded(world: SimWorld) -> Condition | None:
    return next((c for c in world.cluster.status.conditions if c.type == "Degraded"), None)


@pytest.mark.parametrize("guarantee", [{}, ONCE], ids=["AtLeastOnce", "AtMostOnce"])
def test_a_live_pod_whose_deletion_is_refused_keeps_its_slot_until_it_is_gone(
    make: Make, guarantee: dict[str, Any]
) -> None:
    world, late = with_late_pod(make, "c", parallelism=1, **guarantee)
    refused_pass(world, 403)
    assert world.live_pods() == [late]
    told = degraded(world)
    assert told is not None
    assert (told.reason, "by the test" in told.message) == ("PodDeletionRefused", True)
    assert state_of(world).order.queued, "the node that waits for the slot gets it as soon as it is free"
    entry = world.cluster.entries().get("c")
    assert entry is None or not is_open(entry), "the intent of what was not started is taken back"

    writes = world.cluster.shard_writes
    for _ in range(3):
        world.let_time_pass(60)
        refused_pass(world, 403)
        assert world.live_pods() == [late]
    assert world.cluster.shard_writes == writes, "no intents are written for what cannot start"

    for _ in range(2):
        world.let_time_pass(60)
        world.whole_pass(0)
    (other,) = world.live_pods()
    assert other != late
    assert degraded(world) is None


def test_a_live_pod_that_may_not_be_deleted_costs_no_more_than_its_own_slot(make: Make) -> None:
    world, late = with_late_pod(make, "c", "d", "e", parallelism=3)
    for _ in range(3):
        refused_pass(world, 403)
        world.let_time_pass(60)
        assert len(world.live_pods()) == 3
    assert late in world.live_pods()


def test_without_parallelism_it_holds_up_nothing(make: Make) -> None:
    world, _ = with_late_pod(make, "c", "d")
    refused_pass(world, 403)
    assert len(world.live_pods()) == 3


def test_a_webhook_that_answers_409_refuses_like_any_other(make: Make) -> None:
    """The Pod is what it was: another look would find it so for ever."""
    world, _ = with_late_pod(make, "c", "d", parallelism=2)
    refused_pass(world, 409)
    assert len(world.live_pods()) == 2
    told = degraded(world)
    assert told is not None
    assert (told.reason, "by the test" in told.message) == ("PodDeletionRefused", True)


@pytest.mark.parametrize("guarantee", [{}, ONCE], ids=["AtLeastOnce", "AtMostOnce"])
def test_a_pod_that_has_changed_costs_one_start_of_many(make: Make, guarantee: dict[str, Any]) -> None:
    world, late = with_late_pod(make, "c", "d", "e", "f", parallelism=3, **guarantee)
    one = world.act(0)
    one.catch_up()
    one.begin()
    one.answer()  # the task
    world.cluster.bind(late)
    one.finish()
    assert late in world.live_pods()
    assert len(world.live_pods()) == 3
    assert degraded(world) is None
    world.let_time_pass(60)
    world.whole_pass(0)
    assert len(world.live_pods()) == 3


def test_how_a_pod_ends_counts_though_its_deletion_was_once_asked_for(make: Make) -> None:
    world, late = with_late_pod(make)
    refused_pass(world, 403)
    world.run_pods()
    world.cluster.drop_pod(late)  # by somebody else
    world.whole_pass(0)
    world.let_time_pass(60)
    world.whole_pass(0)
    assert [entry.result for entry in world.cluster.entries().values()] == ["Succeeded"]
    assert not world.live_pods()


# ------------------------------------------------------------------ the plan


def unplaced(of: Node) -> Pod:
    return pod(of, node_name="", phase="Pending", created=NOW - 4000)


def nodes(count: int, prefix: str = "n") -> list[Node]:
    return [node(f"{prefix}{number}") for number in range(count)]


def test_pods_beyond_what_a_pass_deletes_hold_their_slots_too() -> None:
    late, others = nodes(BATCH + 10, "late"), nodes(20)
    plan = planned(task(parallelism=15), [*late, *others], [unplaced(one) for one in late])
    assert (len(plan.deletes), len(plan.launch.starts), plan.launch.queued) == (BATCH, 15, 5)
    first = started(plan)
    plan = keep_slots(plan, {pod.uid for pod in plan.deletes})
    assert (len(plan.launch.starts), plan.launch.queued) == (5, 15)
    assert set(started(plan)) < set(first)


def test_a_pod_that_is_still_active_is_not_counted_twice() -> None:
    """Bound, waiting for its image, and to make way for a changed template: its slot is kept anyway."""
    a, b = nodes(2)
    stuck = pod(a, revision="old", phase="Pending", waiting="ImagePullBackOff")
    plan = planned(task(parallelism=2), [a, b], [stuck])
    assert (plan.deletes, plan.freed_slots) == ((stuck,), ())
    plan = keep_slots(plan, ())
    assert started(plan) == [b.name]


def test_a_node_holds_one_slot_whatever_it_has_of_pods() -> None:
    a, *others = nodes(4)
    two = [pod(a, seq, node_name="", phase="Pending", created=NOW - 4000) for seq in (1, 2)]
    undeletable = frozenset(one.uid for one in two)
    plan = planned(task(parallelism=3), [a, *others], two)
    plan = keep_slots(plan, ())
    assert len(plan.launch.starts) == 2
    for some in (undeletable, frozenset({two[0].uid})):
        plan = planned(task(parallelism=3), [a, *others], two, undeletable=some)
        plan = keep_slots(plan, ())
        assert (len(plan.launch.starts), plan.launch.queued) == (2, 1)
        assert [report.node.name for report in plan.nodes.holders] == [a.name]


@pytest.mark.parametrize(("named", "starts"), [("gone", 1), ("a", 0)])
def test_an_orphan_holds_a_slot_where_a_node_may_get_it(named: str, starts: int) -> None:
    before, a = node(named, uid="uid-before"), node("a")
    orphan = pod(before, node_name="", phase="Pending")
    plan = planned(task(parallelism=1), [a], [orphan])
    assert (plan.deletes, started(plan)) == ((orphan,), ["a"])
    plan = keep_slots(plan, ())
    assert len(plan.launch.starts) == starts
    undeletable = frozenset({orphan.uid})
    assert len(planned(task(parallelism=1), [a], [orphan], undeletable=undeletable).launch.starts) == starts
    assert len(planned(task(), [a], [orphan], undeletable=undeletable).launch.starts) == 1
    running = pod(a, revision="old")
    spec: dict[str, Any] = {"parallelism": 1, "concurrency_policy": "Replace"}
    replacing = planned(task(**spec), [a], [orphan, running], undeletable=undeletable)
    assert (running in replacing.deletes, replacing.launch.outdated) == (starts == 1, 1 - starts)
