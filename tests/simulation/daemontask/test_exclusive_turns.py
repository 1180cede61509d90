"""spec.exclusive: whose turn it is where several tasks of a group wait."""

from typing import Any

import pytest

from caretaker.daemontask.exclusion import OFFER_SECONDS
from caretaker.daemontask.group_view import Holding
from caretaker.kube.errors import ApiError
from simulation.daemontask.group import GROUP, GroupWorld, group_world
from simulation.daemontask.world import virtual_time
from unit.daemontask.build import NOW, node, pod, started
from unit.daemontask.test_exclusive import KERNEL, Member, Place, one_of

NODES = tuple(node(name) for name in "abcdefgh")
FURTHER = tuple(node(name) for name in "uvwxyz")  # where no task has been


def group(width: int, names: str = "abc") -> tuple[Place, list[Member]]:
    """Tasks that have been read; the first runs on as many nodes as it can, the others wait."""
    place = Place()
    tasks = [place.joined(name, one_of(width)) for name in names]
    for one in tasks:
        one.run()
    for one in tasks:
        one.run(*NODES)
    place.woken.clear()
    return place, tasks


@pytest.mark.parametrize("waiting", [1, 40])
def test_the_end_of_a_run_wakes_one_task_however_many_wait(waiting: int) -> None:
    place, (first, *_) = group(1, "".join(chr(ord("a") + number) for number in range(1 + waiting)))
    assert first.run(*NODES) == []
    assert place.woken == ["b"]


def test_the_one_that_let_go_takes_none_of_the_places_before_the_next_has_looked() -> None:
    _, (first, second, _) = group(4)
    assert first.run(*FURTHER) == []
    assert len(second.run(*NODES)) == 4


def test_places_that_the_first_leaves_go_on_to_the_next() -> None:
    place, (first, second, third) = group(4)
    third.run(*FURTHER)
    first.run(*NODES)
    assert len(second.run(*NODES[:1])) == 1
    assert place.woken[:2] == ["b", "c"]
    assert len(third.run(*FURTHER)) == 3


def test_a_task_that_comes_too_late_for_a_node_keeps_its_turn() -> None:
    place, (first, second, third) = group(1)
    first.run(*FURTHER[:1])
    plan = second.look(*FURTHER[:1])
    taken = Holding({FURTHER[0].uid: True}, frozenset(), frozenset())
    place.registry.note(third.key, "c", "kernel").holding = taken
    late = place.registry.claim(second.key, plan, (), NOW)
    assert (started(late), late.more) == ([], True)
    assert first.run(*FURTHER[1:]) == []
    assert len(second.run(*FURTHER[1:])) == 1


def test_nodes_that_the_first_leaves_go_on_to_the_next() -> None:
    place = Place()
    first, second, third = (place.joined(name) for name in "abc")
    for one in (first, second, third):
        one.run()
    for one in (first, second, third):
        one.run(*NODES[:2])
    first.run()
    assert second.run(*NODES[:2], parallelism=1) != []
    assert place.woken[-2:] == ["b", "c"]
    assert len(third.run(*NODES[:2])) == 1


def test_a_task_that_does_not_look_holds_up_the_others_once() -> None:
    place, (first, _, third) = group(1)
    first.run(*NODES)
    assert third.run(*NODES) == []
    assert place.registry.next_end(first.key) == NOW + OFFER_SECONDS
    later = NOW + OFFER_SECONDS
    place.woken.clear()
    assert first.run(*NODES, now=later) == []
    assert place.woken == ["c"]
    assert len(third.run(*NODES, now=later)) == 1
    third.run(now=later)
    assert len(first.run(*NODES, now=later)) == 1, "the second is not waited for again"


def test_an_offer_keeps_only_those_out_that_wait_for_less_time() -> None:
    place = Place()
    first, second, third = (place.joined(name) for name in "abc")
    for one in (first, second, third):
        one.run()
    first.run(*NODES[:2])
    second.run(NODES[0])
    third.run(NODES[1])
    first.run()  # the second node is offered to the third task
    assert second.run(*NODES[:2]) == ["a", "b"]


def test_a_wider_group_offers_its_places() -> None:
    place, (first, *others) = group(1)
    for one in others:
        one.exclusive = KERNEL
        one.run(*NODES)
    place.woken.clear()
    first.exclusive = one_of(3)
    first.run(*NODES[:1], pods=(pod(NODES[0]),))
    assert set(place.woken) == {"b"}
    assert len(others[0].run(*NODES[1:])) == 2


# ---------------------------------------------------------------- whole passes


def run_for(world: GroupWorld, seconds: int) -> None:
    for _ in range(seconds):
        for what in ("nodes", "pods"):
            world.leader.deliver(what, 1 << 30)
        world.leader.run_due()
        world.clock.now += 1


def test_the_others_go_on_though_the_passes_of_the_next_one_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = {name: {"exclusive": {"group": GROUP, "parallelism": 1}} for name in "abc"}
    with virtual_time() as clock, group_world(clock, 1, specs) as world:
        run_for(world, 12)
        owner = {"a-uid": "a", "b-uid": "b", "c-uid": "c"}
        ((name, wire),) = world.first.pods.items()
        running = owner[world.first.record(wire).owner_uid]
        (bad, good) = sorted({"a", "b", "c"} - {running}, key=world.ticket)

        def fail(*_: object) -> None:
            raise ApiError(503, "ServiceUnavailable", "by the test")

        monkeypatch.setattr(world.tasks[bad], "get", fail)
        world.first.run(name, "Succeeded")
        run_for(world, 20)
        assert world.tasks[good].live() == []
        run_for(world, 20)
        assert len(world.tasks[good].live()) == 1


REBOOTS: dict[str, Any] = {"rerunOn": ["TemplateChange", "NodeReboot"], "backoffLimit": 3}


def go_on(world: GroupWorld, seconds: int, *, run: bool = True) -> None:
    for _ in range(seconds):
        for what in ("nodes", "pods"):
            world.leader.deliver(what, 1 << 30)
        world.leader.run_due()
        for name in sorted(world.first.pods) if run else ():
            world.first.run(name, "Succeeded")
        world.clock.now += 1


@pytest.mark.parametrize("width", [{}, {"parallelism": 1}], ids=["any width", "width 1"])
def test_a_node_that_reboots_in_a_run_is_free_for_the_task_that_has_to_run_there_first(
    width: dict[str, int],
) -> None:
    """The failed run keeps the slot of its own task, and waits for the other task's run after the reboot."""
    both = {**REBOOTS, "exclusive": {"group": GROUP, **width}}
    specs = {"last": {**both, "dependsOn": [{"name": "first"}]}, "first": both}
    with virtual_time() as clock, group_world(clock, 1, specs) as world:
        go_on(world, 60)
        last = world.tasks["last"]
        last.edit(template=True)
        world.leader.queue.add(world.key("last"))
        go_on(world, 3, run=False)
        (pod,) = last.live()
        world.first.bind(pod.name)
        world.first.reboot("n0")
        world.first.run(pod.name, "Failed")
        go_on(world, 120)
        assert {name: task.entries()["n0"].seq for name, task in world.tasks.items()} == {
            "last": 3,
            "first": 2,
        }
        assert [task.status.succeeded for task in world.tasks.values()] == [1, 1]
