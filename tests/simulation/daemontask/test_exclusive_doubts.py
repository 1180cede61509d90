"""spec.exclusive where it is not known what came of a request, or which task a Pod is of."""

from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from caretaker.api.names import POD_EXCLUSIVE
from caretaker.api.objects import Node, Pod, WireMeta
from caretaker.daemontask.drain_control import DrainControl
from caretaker.daemontask.group_view import GroupView
from caretaker.daemontask.plan import plan
from caretaker.daemontask.resource import RawTask, read_task
from caretaker.kube.errors import ApiError
from simulation.daemontask.cluster import PODS
from simulation.daemontask.group import GROUP, GroupWorld, group_world
from simulation.daemontask.world import virtual_time
from unit.daemontask.build import NOW, node, pod, snapshot, task
from unit.daemontask.test_exclusive import KERNEL, Member, Place

A, B = node("a"), node("b")
AFTER = 32.0  # seconds after which a create without an answer is not executed any more


def two() -> tuple[Place, Member, Member]:
    place = Place()
    first, second = place.joined("a"), place.joined("b")
    first.run(), second.run()
    return place, first, second


def asked(of: Member, *nodes: Node, now: float = NOW, unsure: Collection[str] = ()) -> None:
    """A pass whose creates have no answer."""
    claimed = of.place.registry.claim(of.key, of.look(*nodes, now=now), unsure, now)
    of.place.registry.settled(of.key, claimed, lambda _: False, {one.uid for one in nodes}, now)


def test_a_second_create_without_an_answer_holds_the_node_for_as_long_again() -> None:
    _, first, second = two()
    asked(first, A)
    asked(first, A, now=NOW + 20)
    first.run(now=NOW + 40)
    assert second.run(A, now=NOW + 40) == []
    first.run(now=NOW + 20 + AFTER)
    assert second.run(A, now=NOW + 20 + AFTER) == ["a"]


def test_a_task_that_changes_its_group_holds_the_nodes_of_its_creates_without_an_answer() -> None:
    place, first, second = two()
    asked(first, A)
    for group in ("other", "kernel"):
        place.registry.note(first.key, "a", group)
    first.run()
    assert second.run(A) == []


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "deleted and made again"])
def test_the_creates_of_a_deleted_task_without_an_answer_hold_their_nodes(again: bool) -> None:
    place, first, second = two()
    asked(first, A)
    if again:
        place.registry.note(first.key, "another", "kernel")
        first.run()
    else:
        place.registry.forget(first.key)
    assert second.run(A, B) == ["b"]
    view = place.registry.view(second.key, (), NOW)
    assert view is not None
    assert NOW + 30 <= view.wake <= NOW + AFTER, "the pass that finds it free"
    assert second.run(A, now=NOW + AFTER) == ["a"]


def test_each_pod_of_a_deleted_task_counts_by_its_own_mark() -> None:
    """The first was created before its task had a group; this process has not seen that task."""
    place, _, second = two()
    for number, of in enumerate([pod(A, owner_uid="gone"), pod(B, owner_uid="gone", marks=MARK)]):
        place.pods.apply(of, 5 + number)
    assert second.run(A, B) == ["a"]


MARK = {POD_EXCLUSIVE: "kernel"}


def test_a_pod_of_a_deleted_task_that_loses_its_mark_lets_the_others_go_on() -> None:
    place, _, second = two()
    marked = pod(A, owner_uid="gone", marks=MARK)
    place.pods.apply(marked, 5)
    assert second.run(A) == []
    place.woken.clear()
    place.pods.apply(replace(marked, annotations={**marked.annotations, POD_EXCLUSIVE: ""}), 6)
    assert place.woken == ["b"]
    assert second.run(A) == ["a"]


def test_a_pod_holds_the_node_that_has_the_name_of_its_node_now() -> None:
    """On the same machine, perhaps; also where that node is lost, and holds no slot of the task."""
    heir = replace(node("a", uid="a2"), ready=False, ready_since=NOW - 9000)
    old: Pod = pod(A, created=NOW - 9000)
    found = plan(snapshot(task(exclusive=KERNEL), [heir], [old], exclusion=GroupView())).holding
    assert found is not None
    assert found.nodes == {A.uid: True, "a2": True}
    assert found.slots == frozenset()


def test_a_task_whose_exclusive_parallelism_cannot_be_read_stays_in_its_group() -> None:
    spec = {"template": {"spec": {}}, "exclusive": {"group": "kernel", "parallelism": "many"}}
    found, invalid = read_task(RawTask(WireMeta(name="a"), msgspec.Raw(msgspec.json.encode(spec))))
    assert "spec.exclusive.parallelism" in invalid
    assert found.spec.exclusive == KERNEL


# ---------------------------------------------------------------- whole passes

SPECS: dict[str, Any] = {name: {"exclusive": {"group": GROUP}} for name in "ab"}


def first_creates(world: GroupWorld, name: str) -> None:
    """The pass of the task goes on until it creates a Pod."""
    world.leader.begin(name)
    while not any(call.what == f"create {PODS}" for call in world.leader.client.calls):
        assert world.leader.busy
        world.leader.answer(0)


def look(world: GroupWorld, *names: str) -> None:
    """Whole passes."""
    for name in names:
        world.leader.begin(name)
        world.leader.finish()


def begun(world: GroupWorld) -> None:
    """Both tasks are read, and nothing runs yet."""
    for task_ in world.tasks.values():
        task_.edit(suspend=True)
    for _ in range(5):
        look(world, "a", "b")
        world.clock.now += 2
    world.tasks["a"].edit(suspend=False)


def test_a_pass_that_fails_after_a_create_without_an_answer_holds_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: Any) -> Any:
        raise ApiError(503, "ServiceUnavailable", "by the test")

    monkeypatch.setattr(DrainControl, "drain", fail)  # comes after the creates
    with virtual_time() as clock, group_world(clock, 1, SPECS) as world:
        begun(world)
        first_creates(world, "a")
        (create,) = world.leader.client.calls
        world.leader.fail(0, 0)
        world.leader.finish()
        world.tasks["a"].edit(suspend=True)
        monkeypatch.undo()
        world.tasks["b"].edit(suspend=False)
        for _ in range(5):
            look(world, "a", "b")
            clock.now += 1
        create.execute()  # the judge looks at it
        assert [one.owner_uid for one in map(world.first.record, world.first.pods.values())] == ["a-uid"]


def test_a_pod_that_is_there_and_cannot_be_looked_at_holds_its_node() -> None:
    """A create without an answer was executed late; the next one finds its name taken, and no answer comes
    to the look at it."""
    with virtual_time() as clock, group_world(clock, 1, SPECS) as world:
        begun(world)
        first_creates(world, "a")
        world.leader.client.calls[0].execute()
        world.leader.answer(0)  # 409
        assert world.leader.client.calls[0].what.startswith(f"get {PODS}")
        world.leader.fail(0, 503)
        world.leader.finish()
        world.tasks["a"].edit(suspend=True)
        world.tasks["b"].edit(suspend=False)
        look(world, "a", "b")
        assert [one.owner_uid for one in map(world.first.record, world.first.pods.values())] == ["a-uid"]


def test_a_pod_that_is_there_and_was_looked_at_leaves_no_doubt() -> None:
    with virtual_time() as clock, group_world(clock, 1, SPECS) as world:
        begun(world)
        first_creates(world, "a")
        world.leader.client.calls[0].execute()
        world.leader.finish()
        view = world.leader.kind._exclusion.view(world.key("a"), (), clock.now)
        assert view is not None
        assert not view.unsure


def test_a_new_leader_waits_for_the_requests_of_the_last_one_before_it_reads_a_group() -> None:
    """As after a clean stop, where the Lease is free at once."""
    with virtual_time() as clock, group_world(clock, 1, SPECS) as world:
        begun(world)
        first_creates(world, "a")
        (create,) = world.leader.client.calls
        world.take_over(0, behind=0)
        world.tasks["a"].edit(suspend=True)
        world.tasks["b"].edit(suspend=False)
        look(world, "a", "b")
        clock.now += world.leader.client.write_seconds
        look(world, "a", "b")
        create.execute()
        clock.now += 1.0
        for _ in range(3):
            look(world, "a", "b")
        assert [one.owner_uid for one in map(world.first.record, world.first.pods.values())] == ["a-uid"]
