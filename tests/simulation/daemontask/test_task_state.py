"""What a process remembers between passes."""

import asyncio
from typing import Any

import pytest

from caretaker.api.objects import Node
from caretaker.daemontask import controller, pods
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.retention import ABSENCE, Absence
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.task_state import TaskState, cache_eligibility
from caretaker.runtime import tasks
from simulation.daemontask.operator import KEY
from simulation.daemontask.world import Make, SimWorld
from unit.daemontask.build import NOW, TEMPLATE, entry, node, pod

A, B = node("a"), node("b")
ENTRIES = {"a": entry(A), "b": entry(B)}


def looks(*seen: tuple[float, dict[str, Node]]) -> list[tuple[str, ...]]:
    """The nodes whose entries may go, at each of these times."""
    absence, found = Absence(), []
    for now, nodes in seen:
        absence = absence.look(ENTRIES, nodes, now)
        found.append(absence.due)
    return found


def test_the_entry_of_a_node_that_left_goes_when_it_has_been_away_for_ten_minutes() -> None:
    missed = NOW + ABSENCE
    there, left = {"a": A, "b": B}, {"a": A}
    times = ((NOW, there), (NOW + 1, left), (missed, left), (missed + 1, left), (missed + ABSENCE, left))
    assert looks(*times, (missed + ABSENCE + 1, left)) == [(), (), (), (), ("b",), ()]


def test_the_entry_of_a_node_that_came_back_stays() -> None:
    left = {"a": A}
    assert looks((NOW, left), (NOW + ABSENCE, {"a": A, "b": B}), (NOW + 2 * ABSENCE, left)) == [(), (), ()]


def test_a_taken_name_is_told_until_the_run_is_recorded() -> None:
    state = TaskState("uid")
    state.creation.conflicts = {"task-x-1": A.uid, "task-y-1": B.uid}
    state.recorded([entry(A)])
    assert list(state.creation.conflicts) == ["task-y-1"]
    state.node_gone(B)
    assert not state.creation.conflicts


async def test_other_tasks_go_on_while_many_nodes_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SLICE", 0.0)
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    await cache_eligibility(EligibilityRules(TEMPLATE), [node(f"n{number}") for number in range(50)])
    beside.cancel()
    assert len(turns) >= 50


def test_a_template_is_hashed_once_for_each_spec(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing takes up to 50 ms, and a pass runs every second."""
    asked: list[dict[str, Any]] = []

    def hashes_of(template: dict[str, Any]) -> tuple[str, str]:
        asked.append(template)
        return pods.hashes_of(template)

    monkeypatch.setattr(controller, "hashes_of", hashes_of)
    world = make(suspend=True)
    one, other = world.cluster.spec.template, {"spec": {"containers": []}}
    for template in (one, one, other, other, one):
        world.cluster.edit_raw(template=template)
        world.whole_pass(0)
        world.whole_pass(0)
    assert asked == [one, other, one]


def memory(state: TaskState) -> str:
    """All that is kept of a task, but caches of what was read."""
    ledger, refused_pods = state.ledger, vars(state.pacing.refused_pods)
    kept = (
        state.pacing,
        refused_pods,
        state.creation,
        state.order,
        state.deletions,
        state.absence,
    )
    return repr((*kept, ledger.unstarted, ledger.confirmed, ledger.flushed))


def gathered(world: SimWorld) -> Snapshot:
    """Gather alone, after all events."""
    one, begun = world.act(0), list[asyncio.Task[Snapshot | None]]()
    one.catch_up()

    async def begin() -> None:
        begun.append(asyncio.create_task(one._controller._kinds[KEY.kind].gather(KEY)))

    one._in_loop(begin)
    while not begun[0].done():
        one.answer()
    found = begun[0].result()
    assert found is not None
    return found


def test_what_gather_finds_is_kept_by_the_writes_that_follow(make: Make) -> None:
    world = make()
    world.whole_pass(0)
    state = world.act(0).task_states.find(KEY)
    assert state is not None
    state.deletions.ended["p"] = pod(node("gone"), phase="Succeeded")
    world.let_time_pass(ABSENCE)
    world.cluster.edit_raw(template={"spec": {"containers": [{"name": "main", "image": "other"}]}})
    before = memory(state)
    found = gathered(world)
    assert memory(state) == before
    assert found.revision == state.spec.revision != state.pacing.revision
    world.whole_pass(0)
    assert (state.pacing.revision, state.absence.checked) == (found.revision, world.clock.now)
    assert not state.deletions.ended
