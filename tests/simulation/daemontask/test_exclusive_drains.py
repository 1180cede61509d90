"""spec.exclusive with drains, retries and intents: nodes that a task holds or reserves."""

from typing import Any

import pytest
from msgspec.structs import replace

from caretaker.api.daemontask import Drain
from caretaker.api.objects import Node
from caretaker.daemontask.apply import Applier
from caretaker.daemontask.exclusion_reader import read_groups
from caretaker.daemontask.group_view import GroupView, Hold, Holding
from caretaker.daemontask.plan import Plan, plan
from caretaker.daemontask.pods import Start
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.task_state import TaskState
from caretaker.kube.errors import ApiError
from caretaker.kube.store import Store
from simulation.daemontask.group import GROUP, group_world
from simulation.daemontask.world import virtual_time
from unit.daemontask.build import NOW, entry, node, planned, pod, snapshot, task
from unit.daemontask.test_exclusive import KERNEL, Place, one_of

A, B = node("a"), node("b")
CORDONED = replace(A, unschedulable=True, cordon="default/task/task-uid/1")
RETRY = entry(A, "Retry", attempts=1, finished_at=int(NOW - 60))
WAITS = entry(A, "Retry", attempts=1, finished_at=int(NOW - 1))
DRAINS: dict[str, Any] = {"parallelism": 1, "drain": Drain()}


def held(of: Snapshot) -> Holding:
    found = plan(replace(of, exclusion=of.exclusion or GroupView())).holding
    assert found is not None
    return found


def test_two_tasks_that_drain_cordon_no_node_together() -> None:
    place = Place()
    first, second = place.joined("a"), place.joined("b")
    first.run(), second.run()
    plans = first.look(A, **DRAINS), second.look(A, **DRAINS)
    claimed = [
        place.registry.claim(of.key, made, (), NOW).launch.cordons
        for of, made in zip((first, second), plans, strict=True)
    ]
    assert [len(cordons) for cordons in claimed] == [1, 0]


def test_a_cordon_that_was_refused_lets_go_at_once() -> None:
    place = Place()
    first, second = place.joined("a"), place.joined("b")
    first.run(), second.run()
    claimed = place.registry.claim(first.key, first.look(A, **DRAINS), (), NOW)
    assert second.run(A) == []
    place.registry.settled(first.key, claimed, lambda _: False, (), NOW)
    assert second.run(A) == ["a"]


def test_a_node_that_the_task_has_cordoned_keeps_its_slot_while_another_runs_there() -> None:
    """As after a task joined the group."""
    view = GroupView(held={A.uid: Hold("other", always=True)})
    found = planned(task(exclusive=KERNEL, **DRAINS), [CORDONED, B], exclusion=view)
    assert [report.node.name for report in found.nodes.kept_out] == ["a"]
    assert [report.node.name for report in found.nodes.holders] == ["a"]
    assert [found.launch.starts, found.launch.cordons, found.drains] == [(), (), ()]


def test_a_cordon_goes_before_an_offer_of_its_node() -> None:
    view = GroupView(held={A.uid: Hold("other", always=False)})
    found = planned(task(exclusive=KERNEL, **DRAINS), [CORDONED], exclusion=view)
    assert not found.nodes.kept_out
    assert [report.node.name for report in found.drains] == ["a"]


@pytest.mark.parametrize(
    ("of", "nodes"),
    [
        pytest.param(
            snapshot(task(exclusive=KERNEL, suspend=True, **DRAINS), [CORDONED]), {A.uid}, id="a cordon"
        ),
        pytest.param(
            snapshot(
                task(exclusive=KERNEL, suspend=True, run_guarantee="AtMostOnce"),
                [A],
                entries={"a": entry(A, "Failed", intent="token", started_at=int(NOW - 5), finished_at=0)},
            ),
            {A.uid},
            id="a Pod that is to be seen yet",
        ),
    ],
)
def test_a_suspended_task_holds_what_it_has_begun(of: Snapshot, nodes: set[str]) -> None:
    assert held(of).nodes.keys() == nodes


def test_a_pod_that_is_deleted_for_its_slot_holds_its_node_until_it_is_gone() -> None:
    gone = pod(A, phase="Pending", node_name="", unschedulable=True, created=NOW - 9000)
    of = snapshot(task(exclusive=KERNEL), [A], [gone])
    assert plan(replace(of, exclusion=GroupView())).nodes.freed_slots
    assert held(of).slots == {A.uid}


@pytest.mark.parametrize("retry", [RETRY, WAITS], ids=["due", "in backoff"])
def test_a_node_in_backoff_has_a_slot_and_is_not_busy(retry: Any) -> None:
    of = snapshot(task(exclusive=KERNEL), [A], entries={"a": retry})
    assert (held(of).slots, held(of).busy) == ({A.uid}, set())


def test_a_retry_that_waits_for_another_task_is_not_busy() -> None:
    view = GroupView(held={A.uid: Hold("other", always=True)})
    of = snapshot(task(exclusive=KERNEL), [A], entries={"a": RETRY}, exclusion=view)
    assert (held(of).slots, held(of).busy) == ({A.uid}, set())


def test_a_retry_whose_pod_was_refused_keeps_its_place() -> None:
    place = Place()
    first, second = place.joined("a", one_of(2)), place.joined("b", one_of(2))
    first.run(), second.run()
    view = place.registry.view(first.key, (), NOW)
    found = planned(task(exclusive=one_of(2)), [A], entries={"a": RETRY}, exclusion=view)
    claimed = place.registry.claim(first.key, found, (), NOW)
    assert len(claimed.launch.starts) == 1
    place.registry.settled(first.key, claimed, lambda _: False, (), NOW)
    assert second.run(A) == []
    seen = place.registry.view(second.key, (), NOW)
    assert seen is not None
    assert (seen.slots, seen.busy) == (1, 0)


class Answers:
    """A client whose lists are given."""

    def __init__(self, **listed: list[Any]) -> None:
        self.listed = listed

    async def list(self, path: str, *_: Any, **__: Any) -> tuple[list[Any], str]:
        return self.listed.get(path.rpartition("/")[2], []), "9"


class Wire:
    """A node as it is listed."""

    def __init__(self, record: Node, version: str) -> None:
        self._record = record
        self.metadata = type("Meta", (), {"resource_version": version})

    def record(self) -> Node:
        return self._record


async def test_cordons_of_the_last_leader_are_seen_before_the_first_start() -> None:
    nodes: Store[Node] = Store()
    nodes.apply(A, 3)
    client: Any = Answers(nodes=[Wire(CORDONED, "7")])
    place = Place()
    await read_groups(client, place.registry, "default", place.pods, nodes)
    found = nodes.get("", "a")
    assert found is not None
    assert found.cordon == CORDONED.cordon


def test_starts_of_a_plan_are_known_by_their_node() -> None:
    """Of several starts those that made nothing let go."""
    place = Place()
    first, second = place.joined("a"), place.joined("b")
    first.run(), second.run()
    claimed = place.registry.claim(first.key, first.look(A, B), (), NOW)

    def made(start: Start) -> bool:
        return start.node_uid == A.uid

    place.registry.settled(first.key, claimed, made, (), NOW)
    assert second.run(A, B) == ["b"]


def test_a_cordon_that_was_set_is_held_beyond_the_pass_that_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one without an answer: of one pass that cordons two nodes, and fails before its end."""
    specs = {name: {"exclusive": {"group": GROUP}, "parallelism": 3, "drain": {}} for name in "ab"}

    async def apply(_: Applier, found: Snapshot, made: Plan, state: TaskState) -> None:
        if asked := [start for start in made.launch.cordons if found.task.metadata.name == "a"]:
            for start in asked[:1]:
                seen = found.nodes[start.node_name]
                cordon = replace(seen, unschedulable=True, cordon="default/a/a-uid/1")
                world.leader.nodes.apply(cordon, 1 << 20)
            unsure = {start.node_uid: (start.node_name, 1) for start in asked[1:2]}
            state.drains.cordons = replace(state.drains.cordons, unsure=unsure)
            held.update(start.node_uid for start in asked[:2])
        raise ApiError(503, "ServiceUnavailable", "by the test")

    monkeypatch.setattr(Applier, "apply", apply)
    held = set[str]()
    with virtual_time() as clock, group_world(clock, 3, specs) as world:
        for name in "aba":
            clock.now += 7
            world.leader.begin(name)
            world.leader.finish()
        view = world.leader.kind._exclusion.view(world.key("b"), (), clock.now)
        assert view is not None
        assert len(held) == 2
        assert view.held.keys() == held
