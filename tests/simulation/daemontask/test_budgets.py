"""What budgets allow at which time, and until when; what a rollout makes of it."""

import random
from typing import Any

import pytest

from caretaker.api import conditions as c
from caretaker.api import names
from caretaker.api.daemontask import Budget, Spec
from caretaker.api.objects import Node
from caretaker.api.times import format_time, parse_time
from caretaker.daemontask.budgets import allowance
from caretaker.daemontask.cron_calendar import Calendar
from caretaker.daemontask.intents import is_open
from caretaker.daemontask.plan import plan
from caretaker.daemontask.reports import decision_input
from caretaker.daemontask.slots import room_for
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from simulation.daemontask.world import SimWorld, virtual_time
from unit.daemontask.almanac import Almanac
from unit.daemontask.build import NOW, entry, node, planned, pod, snapshot, started, succeeded, task

OFFICE = Budget(0, "0 9 * * 1-5", "8h")


@pytest.mark.parametrize(
    ("budgets", "zone", "now", "nodes", "until", "budget_boundary"),
    [
        pytest.param([], "Etc/UTC", "2026-11-23T12:00:00Z", None, "", "", id="without any, everything goes"),
        pytest.param(
            [Budget(3)],
            "Etc/UTC",
            "2026-11-23T12:00:00Z",
            3,
            "",
            "",
            id="one without a schedule is always active",
        ),
        pytest.param(
            [Budget("10%")],
            "Etc/UTC",
            "2026-11-23T12:00:00Z",
            3,
            "",
            "",
            id="a percentage of 21 nodes rounds up",
        ),
        pytest.param([Budget("0%")], "Etc/UTC", "2026-11-23T12:00:00Z", 0, "", "", id="none of them is none"),
        pytest.param(
            [Budget("5")], "Etc/UTC", "2026-11-23T12:00:00Z", 5, "", "", id="a number as text is a number"
        ),
        pytest.param(
            [OFFICE],
            "Etc/UTC",
            "2026-11-23T08:59:59Z",
            None,
            "",
            "2026-11-23T09:00:00Z",
            id="before its window it is not active",
        ),
        pytest.param(
            [OFFICE],
            "Etc/UTC",
            "2026-11-23T09:00:00Z",
            0,
            "2026-11-23T17:00:00Z",
            "2026-11-23T17:00:00Z",
            id="it is from the window's first second",
        ),
        pytest.param(
            [OFFICE],
            "Etc/UTC",
            "2026-11-23T16:59:59Z",
            0,
            "2026-11-23T17:00:00Z",
            "2026-11-23T17:00:00Z",
            id="to its last",
        ),
        pytest.param(
            [OFFICE],
            "Etc/UTC",
            "2026-11-23T17:00:00Z",
            None,
            "",
            "2026-11-24T09:00:00Z",
            id="and then no longer",
        ),
        pytest.param(
            [OFFICE],
            "Europe/Berlin",
            "2026-11-23T08:30:00Z",
            0,
            "2026-11-23T16:00:00Z",
            "2026-11-23T16:00:00Z",
            id="windows are in the task's zone",
        ),
        pytest.param(
            [OFFICE],
            "Etc/UTC",
            "2026-11-21T12:00:00Z",
            None,
            "",
            "2026-11-23T09:00:00Z",
            id="at the week's end nothing holds",
        ),
        pytest.param(
            [Budget(5), OFFICE],
            "Etc/UTC",
            "2026-11-23T12:00:00Z",
            0,
            "2026-11-23T17:00:00Z",
            "2026-11-23T17:00:00Z",
            id="the smallest counts",
        ),
        pytest.param(
            [Budget(5), OFFICE],
            "Etc/UTC",
            "2026-11-23T18:00:00Z",
            5,
            "",
            "2026-11-24T09:00:00Z",
            id="then the other one",
        ),
        pytest.param(
            [Budget(0), OFFICE],
            "Etc/UTC",
            "2026-11-23T12:00:00Z",
            0,
            "",
            "2026-11-23T17:00:00Z",
            id="one that never ends tells no end",
        ),
        pytest.param(
            [Budget(1, "0 12 * * *", "1h"), Budget(1, "30 12 * * *", "1h")],
            "Etc/UTC",
            "2026-11-23T12:45:00Z",
            1,
            "2026-11-23T13:30:00Z",
            "2026-11-23T13:00:00Z",
            id="of two that are alike the later end counts",
        ),
        pytest.param(
            [Budget(0, "0 * * * *", "90m")],
            "Etc/UTC",
            "2026-11-23T12:45:00Z",
            0,
            "",
            "",
            id="windows that overlap for ever have no end",
        ),
        pytest.param(
            [Budget(0, "0 9,10,11 * * *", "1h")],
            "Etc/UTC",
            "2026-11-23T09:10:00Z",
            0,
            "2026-11-23T12:00:00Z",
            "2026-11-23T12:00:00Z",
            id="windows that follow at once are one",
        ),
        pytest.param(
            [Budget(0, "0 0 29 2 *", "40000h")],
            "Europe/Berlin",
            "2026-11-23T12:00:00Z",
            0,
            "",
            "",
            id="nobody looks a century ahead for the end of such windows",
        ),
        pytest.param(
            [Budget(0, "30 1 * * *", "2h")],
            "Europe/Berlin",
            "2026-03-29T02:00:00Z",
            0,
            "2026-03-29T02:30:00Z",
            "2026-03-29T02:30:00Z",
            id="a window is as long when clocks go forward",
        ),
        pytest.param(
            [Budget(2, "0 9 * * 1-5", None), Budget(3, None, "8h")],
            "Etc/UTC",
            "2026-11-21T12:00:00Z",
            2,
            "",
            "",
            id="half a window, which an older CRD let in, is always open",
        ),
    ],
)
def test_allowance(
    budgets: list[Budget], zone: str, now: str, nodes: int | None, until: str, budget_boundary: str
) -> None:
    spec = Spec(template={}, budgets=tuple(budgets), time_zone=zone)
    found = allowance(spec, 21, parse_time(now) or 0)
    reported = [format_time(at) if at else "" for at in (found.until, found.budget_boundary)]
    assert (found.nodes, *reported) == (nodes, until, budget_boundary)


@pytest.mark.parametrize(
    ("schedule", "duration"),
    [
        pytest.param("0 9 * * 1-5", "8h", id="windows apart"),
        pytest.param("0 9,10,11 * * *", "1h", id="windows that follow at once"),
        pytest.param("0 * * * *", "90m", id="windows without an end"),
        pytest.param("*/7 * * * *", "6m59s", id="windows that end a second before the next"),
    ],
)
def test_an_allowance_does_not_depend_on_the_moments_asked_before(schedule: str, duration: str) -> None:
    first, seed = parse_time("2026-03-27T00:00:00Z") or 0.0, f"{schedule} {duration}"
    rng = random.Random(seed)
    moments = [first + rng.choice((0, 1, 599, 3600, 86399)) * rng.randrange(72) for _ in range(200)]
    for count, now in enumerate([*sorted(moments), *reversed(moments), *moments]):
        spec, fresh = (
            Spec(template={}, budgets=(Budget(0, schedule + spaces, duration),), time_zone="Europe/Berlin")
            for spaces in ("", " " * (1 + count))  # the spaces make it a schedule that nobody asked for
        )
        assert allowance(spec, 21, now) == allowance(fresh, 21, now), (now, seed)


def test_a_window_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not in every pass: rare ticks take milliseconds to find."""
    looked, last = list[float](), Calendar.last

    def noted(self: Calendar, moment: float) -> float:
        looked.append(moment)
        return last(self, moment)

    monkeypatch.setattr(Calendar, "last", noted)
    spec = Spec(template={}, budgets=(Budget(0, "17 3 29 2 *", "1h"),), time_zone="Europe/Berlin")
    assert [allowance(spec, 21, NOW + ago).nodes for ago in range(9)] == [None] * 9
    assert looked == [NOW]


A, B, C = node("a"), node("b"), node("c")
HOUR = {"schedule": "0 13 * * *", "duration": "1h"}  # NOW is 13:46:40
CLOSED = NOW + 800


@pytest.mark.parametrize(
    ("budgets", "parallelism", "starts", "held"),
    [
        pytest.param([], 2, 2, None, id="without a budget parallelism limits"),
        pytest.param([Budget(2)], None, 2, 2, id="a budget limits where nothing else does"),
        pytest.param([Budget(2)], 1, 1, None, id="parallelism limits where it is smaller"),
        pytest.param([Budget("34%")], 3, 2, 2, id="a budget limits where it is smaller"),
        pytest.param([Budget(0, **HOUR)], None, 0, 0, id="a window of none starts none"),
        pytest.param(
            [Budget(0, "0 14 * * *", "1h")], None, 3, None, id="a window to come limits nothing yet"
        ),
        pytest.param([Budget(3)], None, 3, None, id="one that is wide enough holds nobody back"),
    ],
)
def test_the_smaller_of_budgets_and_parallelism_limits(
    budgets: list[Budget], parallelism: int | None, starts: int, held: int | None
) -> None:
    seen = snapshot(task(budgets=tuple(budgets), parallelism=parallelism), [A, B, C])
    found = plan(seen)
    assert len(found.launch.starts) == starts
    assert room_for(decision_input(seen, found.requests), 3, 3, invalid=False).beyond == (parallelism or 3)
    assert (found.launch.budget.nodes if found.launch.budget else None) == held


def test_a_window_that_opens_during_a_rollout_lets_active_pods_finish_and_starts_nothing() -> None:
    spec: dict[str, Any] = {"budgets": (Budget(0, **HOUR),)}
    found = planned(task(**spec), [A, B, C], [pod(A), succeeded(B)])
    assert (found.launch.starts, found.deletes, set(found.records)) == ((), (), {"b"})
    assert planned(task(**spec), [A, B, C], [pod(A)]).wake == CLOSED


def test_nothing_wakes_for_a_window_while_nobody_waits() -> None:
    spec: dict[str, Any] = {"budgets": (Budget(0, **HOUR),)}
    assert planned(task(**spec), [A], entries={"a": entry(A)}).wake == 0.0
    assert planned(task(**spec), [A], [pod(A)]).wake == 0.0


def test_what_waits_for_a_slot_is_woken_when_a_window_opens_or_closes() -> None:
    spec: dict[str, Any] = {"budgets": (Budget(2, "0 14 * * *", "1h"),), "parallelism": 1}
    assert planned(task(**spec), [A, B], [pod(A)]).wake == CLOSED
    found = planned(task(**spec), [A, B], [pod(A)], now=NOW + 900)
    assert (found.wake, found.launch.budget) == (CLOSED + 3600, None)


def test_more_that_run_than_a_window_allows_go_on_and_nothing_joins_them() -> None:
    found = planned(task(budgets=(Budget(1),)), [A, B, C], [pod(A), pod(B)])
    assert (started(found), found.launch.queued) == ([], 1)
    found = planned(task(budgets=(Budget(3),)), [A, B, C], [pod(A), pod(B)])
    assert started(found) == ["c"]


def test_a_rollout_that_is_held_back_says_so_until_when_and_goes_on_then() -> None:
    made = Almanac("2026-11-23T12:00:00Z", budgets=(OFFICE,))
    assert made.look("2026-11-23T12:00:00Z") == []
    assert made.condition(c.READY) == ("False", "RollingOut")
    assert made.condition(c.RECONCILING) == ("True", "RollingOut")
    assert made.condition(c.STALLED) == ("", "")
    assert made.condition(c.PROGRESSING) == ("False", "HeldByBudget")
    reported = c.find(made.task.status.conditions, c.PROGRESSING)
    assert reported is not None
    assert reported.message == "a budget lets no node run until 2026-11-23T17:00:00Z; 2 node(s) wait"
    assert made.wakes() == "2026-11-23T17:00:00Z"
    assert made.look("2026-11-23T14:00:00Z") == []
    assert made.look("2026-11-23T17:00:00Z") == ["a NewNode", "b NewNode"]
    assert made.condition(c.PROGRESSING) == ("True", "RolloutComplete")
    assert made.events == ["HeldByBudget", "RunStarted", "RunSucceeded", "RolloutComplete"]


@pytest.mark.parametrize(
    ("nodes", "pods", "reported"),
    [
        pytest.param(
            [A], [A], "1 active node(s) keep the run that is to be replaced", id="a run is outdated"
        ),
        pytest.param(
            [A, B, C],
            [A],
            "2 node(s) wait; 1 active node(s) keep the run that is to be replaced",
            id="others wait as well",
        ),
        pytest.param([A, B], [], "2 node(s) wait", id="none is active"),
    ],
)
def test_whom_a_budget_of_none_holds_back_is_told_truly(
    nodes: list[Node], pods: list[Node], reported: str
) -> None:
    seen = snapshot(
        task(budgets=(Budget(0),), concurrency_policy="Replace"),
        nodes,
        [pod(n, revision="old") for n in pods],
    )
    made = plan(seen)
    assert made.deletes == ()
    found = c.find(status_of(seen, made, Outcome()).conditions, c.PROGRESSING)
    assert found is not None
    assert (found.reason, found.message) == (
        "HeldByBudget",
        f"a budget lets no node run; {reported}",
    )


def test_a_tick_within_a_window_waits_for_its_end_and_leaves_the_task_ready() -> None:
    made = Almanac("2026-11-22T12:00:00Z", schedule="0 10 * * *", budgets=(OFFICE,))
    made.look("2026-11-22T12:00:00Z")
    assert made.look("2026-11-23T10:00:00Z") == []
    assert made.condition(c.READY) == ("True", "Running")
    assert made.condition(c.PROGRESSING) == ("False", "HeldByBudget")
    assert made.look("2026-11-23T17:00:00Z") == ["a NewNode", "b NewNode"]
    assert made.condition(c.READY) == ("True", "Succeeded")


def test_ticks_that_come_within_one_window_are_held_by_it_once() -> None:
    made = Almanac("2026-11-23T08:30:00Z", schedule="0 * * * *", budgets=(OFFICE,))
    made.look("2026-11-23T08:30:00Z")
    made.look("2026-11-23T10:00:00Z")
    held = c.find(made.task.status.conditions, c.PROGRESSING)
    assert held is not None
    since = len(made.statuses)
    for now in ("2026-11-23T11:00:00Z", "2026-11-23T12:00:00Z"):
        assert made.look(now) == []
    found = [c.find(status.conditions, c.PROGRESSING) for status in made.statuses[since:]]
    assert {(one.reason, one.last_transition_time) for one in found if one is not None} == {
        ("HeldByBudget", held.last_transition_time)
    }
    assert made.events == ["HeldByBudget"]


@pytest.mark.parametrize("guarantee", ["AtLeastOnce", "AtMostOnce"])
def test_a_window_that_opens_during_a_pass_ends_its_starts(guarantee: str) -> None:
    """At 14:00, 800 s after the clock's beginning."""
    budgets = [{"nodes": 0, "schedule": "0 14 * * *", "duration": "1h"}]
    with virtual_time() as clock:
        world = SimWorld(clock, budgets=budgets, runGuarantee=guarantee)
        try:
            world.let_time_pass(799)
            one = world.act(0)
            one.begin()
            while not any("create" in call.what and call.what.endswith("/pods") for call in one.client.calls):
                one.answer()
            world.let_time_pass(1)
            one.finish()
            (began,) = [pod.record().annotations[names.POD_NODE_NAME] for pod in world.cluster.pods.values()]
            assert all(
                is_open(entry) == (name == began) for name, entry in world.cluster.entries().items()
            ), "an intent of a Pod that was not tried is left open"
            world.whole_pass(0)
            assert len(world.cluster.pods) == 1
            assert progressing(world) == "HeldByBudget"
            world.run_pods()
            world.let_time_pass(3600)
            world.whole_pass(0)
            world.whole_pass(0)
            (after,) = world.live_pods()
            assert world.cluster.pods[after].record().annotations[names.POD_NODE_NAME] != began
        finally:
            world.close()


def progressing(world: SimWorld) -> str:
    found = c.find(world.cluster.status.conditions, c.PROGRESSING)
    return found.reason if found is not None else ""
