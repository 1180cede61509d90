"""What a process remembers between passes."""

import asyncio
from typing import Any

import pytest

from caretaker.daemontask import pods, task_state
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.task_state import ABSENCE, TaskState, cache_eligibility
from caretaker.runtime import tasks
from unit.daemontask.build import NOW, TEMPLATE, entry, node

A, B = node("a"), node("b")
ENTRIES = {"a": entry(A), "b": entry(B)}


def test_the_entry_of_a_node_that_left_goes_when_it_has_been_away_for_ten_minutes() -> None:
    state = TaskState("uid")
    assert state.absent(ENTRIES, {"a": A, "b": B}, NOW) == ()
    assert state.absent(ENTRIES, {"a": A}, NOW + 1) == ()
    first_seen_missing = NOW + ABSENCE
    assert state.absent(ENTRIES, {"a": A}, first_seen_missing) == ()
    assert state.absent(ENTRIES, {"a": A}, first_seen_missing + 1) == ()
    assert state.absent(ENTRIES, {"a": A}, first_seen_missing + ABSENCE) == ("b",)


def test_the_entry_of_a_node_that_came_back_stays() -> None:
    state = TaskState("uid")
    assert state.absent(ENTRIES, {"a": A}, NOW) == ()
    assert state.absent(ENTRIES, {"a": A, "b": B}, NOW + ABSENCE) == ()
    assert state.absent(ENTRIES, {"a": A}, NOW + 2 * ABSENCE) == ()


def test_a_taken_name_is_told_until_the_run_is_recorded() -> None:
    state = TaskState("uid")
    state.conflicts = {"task-x-1": A.uid, "task-y-1": B.uid}
    state.recorded([entry(A)])
    assert list(state.conflicts) == ["task-y-1"]
    state.node_gone(B)
    assert not state.conflicts


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


def test_a_template_is_hashed_once_for_each_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing takes up to 50 ms, and a pass runs every second."""
    asked: list[dict[str, Any]] = []

    def hashes_of(template: dict[str, Any]) -> tuple[str, str]:
        asked.append(template)
        return pods.hashes_of(template)

    monkeypatch.setattr(task_state, "hashes_of", hashes_of)
    state, other = TaskState("uid"), {"spec": {"containers": []}}
    for spec, template in (
        (b"1", TEMPLATE),
        (b"1", TEMPLATE),
        (b"2", other),
        (b"2", other),
        (b"1", TEMPLATE),
    ):
        assert state.hashes(spec, template) == pods.hashes_of(template)
    assert asked == [TEMPLATE, other, TEMPLATE]
