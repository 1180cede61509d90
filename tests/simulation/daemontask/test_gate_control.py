"""Opening nodes: which are tried, the effect of a refusal on them and on the others, and reports."""

import asyncio
import time

import msgspec
import pytest

from caretaker.api.objects import Node
from caretaker.daemontask import gate_control
from caretaker.daemontask.gate_pacing import RETRIES, GatePacing
from caretaker.kube.errors import ApiError
from simulation.daemontask.gates import (
    BLIP,
    BUSY,
    MOVED,
    OTHER,
    POLICY,
    RIGHT,
    SHUT,
    Answer,
    Gates,
    many,
    shut,
)
from unit.daemontask.build import node

# ---------------------------------------------------------------- which nodes, and when


def test_nodes_are_opened_and_the_store_knows_it() -> None:
    gates = Gates(shut("a", "b")).passes()
    assert (gates.opened, gates.again, gates.wake) == ({"a", "b"}, False, 0.0)
    assert [one.taints for one in gates.store.values()] == [(), ()]
    assert not gates.passes().asked


def test_a_moment_without_an_answer_is_tried_again_within_seconds_and_not_reported() -> None:
    gates = Gates(many(50))
    gates.refuse(BLIP)
    gates.passes()
    assert len(gates.asked) <= gate_control.CONCURRENCY
    assert (gates.wait, gates.reported) == (1.0, {})
    for _ in range(8):
        gates.passes(gates.wait)
        assert gates.wait <= 5.0
        assert not gates.reported
    gates.server.refusals.clear()
    gates.passes(5.0)
    assert len(gates.opened) == 50


def test_a_failure_that_goes_on_for_a_minute_is_reported() -> None:
    gates = Gates(shut("a"))
    gates.refuse(BLIP)
    while not gates.passes(gates.wait).reported:
        assert gates.now < time.time() + 70
    assert gates.reported == {"a": "blip"}
    assert gates.now > time.time() + 50
    assert gates.wait == 5.0


def test_the_time_that_the_server_asks_for_is_kept() -> None:
    gates = Gates(shut("a"))
    gates.refuse(ApiError(429, "TooManyRequests", "slow", retry_after=20.0))
    assert gates.passes().wait == 20.0
    assert not gates.passes(19.0).asked
    assert gates.passes(1.0).asked


def test_a_refused_node_waits_twice_as_long_each_time_up_to_five_minutes() -> None:
    gates, waits = Gates(shut("a")), list[float]()
    gates.refuse(POLICY)
    gates.passes()
    for _ in range(11):
        waits.append(gates.wait)
        assert not gates.passes(gates.wait / 2).asked
        assert gates.passes(gates.wait).asked == ["a"]
        assert gates.reported == {"a": POLICY.message}
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_nodes_that_a_policy_keeps_shut_delay_no_node_that_joins() -> None:
    bad = many(20)
    gates = Gates(bad)
    gates.refuse(POLICY)
    gates.passes()
    assert gates.reported.keys() == {one.name for one in bad}
    patches = 0
    for second in range(600):
        if second % 60 == 0:
            gates.join(f"new{second}")
        gates.passes(1.0)
        assert gates.opened == ({f"new{second}"} if second % 60 == 0 else set())
        assert len(gates.reported) == 20, "the success of another says nothing of these"
        assert len([name for name in gates.asked if name.startswith("n0")]) <= RETRIES
        patches += len(gates.asked)
    assert patches < 20 * 11


def test_after_the_policy_is_gone_all_are_opened_soon() -> None:
    gates = Gates(many(300))
    gates.refuse(POLICY)
    for _ in range(30):
        gates.passes(60.0)
    assert len(gates.reported) == 300
    gates.server.refusals.clear()
    gates.passes(gates.wait)
    assert len(gates.opened) == RETRIES
    passes, first = 0, gates.now
    while any(one.taints for one in gates.server.nodes.values()):
        gates.passes(max(gates.wait, 0.0))
        passes += 1
    assert passes < 10
    assert gates.now == first, "none of them waits any longer"
    assert gates.wake == 0.0


def test_the_first_refused_node_that_is_opened_ends_the_wait_of_the_others() -> None:
    gates = Gates(shut("a"))
    gates.refuse(POLICY)
    for _ in range(7):
        gates.passes(gates.wait)
    gates.join("b")
    gates.refuse(POLICY)
    gates.passes()
    assert gates.asked == ["b"]
    gates.server.refusals.clear()
    assert gates.passes(1.0).opened == {"b"}
    assert gates.wake == gates.now
    assert gates.passes().opened == {"a"}


def test_of_many_refused_nodes_a_few_are_tried_and_then_there_is_a_pause() -> None:
    gates = Gates(many(40))
    gates.refuse(POLICY)
    gates.passes()
    assert len(gates.passes(2.0).asked) == RETRIES
    assert gates.wait == 5.0
    assert not gates.passes(4.0).asked
    assert len(gates.passes(1.0).asked) == RETRIES


def test_of_many_refused_nodes_each_has_its_turn() -> None:
    gates, asked = Gates(many(40)), list[str]()
    gates.refuse(POLICY)
    gates.passes()
    for _ in range(8):
        asked += gates.passes(gates.wait).asked
    assert len(set(asked)) == len(asked) == 40


def test_more_are_tried_while_they_succeed_and_fewer_again_after_a_refusal() -> None:
    gates = Gates(many(40))
    gates.refuse(POLICY)
    gates.passes()
    for one in list(gates.server.refusals)[: 3 * RETRIES]:
        del gates.server.refusals[one]
    assert len(gates.passes(1.0).opened) == RETRIES
    assert len(gates.passes().opened) == 2 * RETRIES
    assert (len(gates.passes().asked), gates.opened) == (4 * RETRIES, set())
    assert len(gates.passes(5.0).asked) == RETRIES


@pytest.mark.parametrize("status", [403, 409, 422, 500])
def test_a_policy_is_reported_at_once_with_any_status_but_a_failure_may_pass(status: int) -> None:
    gates = Gates(shut("a"))
    gates.refuse(ApiError(status, "", 'nodes "a" is forbidden: ValidatingAdmissionPolicy denied it'))
    gates.server.reads = {"a": node("a")}  # nobody has to look at it
    gates.passes()
    assert (gates.reported.keys(), gates.again) == (set() if status == 500 else {"a"}, False)


def test_a_refused_node_is_reported_also_while_the_server_does_not_answer() -> None:
    gates = Gates(shut("a"))
    gates.refuse(POLICY)
    for _ in range(5):
        gates.passes(gates.wait)
    assert gates.wait == 16.0
    gates.refuse(BLIP)
    gates.passes(16.0)
    assert (gates.reported, gates.wait) == ({"a": POLICY.message}, 5.0)
    gates.refuse(POLICY)
    assert gates.passes(5.0).wait == 32.0


def test_a_refusal_after_failures_is_reported_and_waits_from_the_beginning() -> None:
    gates = Gates(shut("a"))
    gates.refuse(BLIP)
    for _ in range(5):
        gates.passes(5.0)
    gates.refuse(POLICY)
    assert gates.passes(5.0).wait == 1.0
    assert gates.reported


def test_what_is_known_of_nodes_that_are_no_longer_shut_is_forgotten() -> None:
    """Somebody removed the taints by hand, and a new node joins."""
    gates = Gates(shut("a", "b", "c", "d", "e"))
    gates.refuse(RIGHT)
    for _ in range(8):
        gates.passes(60.0)
    gates.server.nodes.clear()
    gates.server.refusals.clear()
    gates.passes()
    assert gates.state.gates == GatePacing()
    gates.join("new")
    assert gates.passes(1.0).opened == {"new"}


def test_a_refused_node_that_was_opened_by_hand_and_shut_again_is_tried_at_once() -> None:
    gates = Gates(shut("a", "b"))
    gates.refuse(POLICY)
    gates.passes()
    gates.server.nodes["a"] = node("a")
    gates.passes()
    gates.join("a")
    assert gates.passes().asked == ["a"]


# ---------------------------------------------------------------- without the right to patch nodes


def test_without_the_right_one_node_is_tried_at_a_time_and_all_are_reported() -> None:
    gates = Gates(many(1000))
    gates.refuse(RIGHT)
    gates.passes()
    assert len(gates.asked) <= gate_control.CONCURRENCY
    assert len(gates.reported) == 1000
    waits, asked = [gates.wait], set[str]()
    for _ in range(8):
        gates.passes(gates.wait)
        asked.update(gates.asked)
        waits.append(gates.wait)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert len(asked) == 8, "each time another one"
    gates.join("new")
    assert not gates.passes(1.0).asked


def test_after_the_grant_all_are_opened() -> None:
    gates = Gates(many(40))
    gates.refuse(RIGHT)
    gates.passes()
    gates.server.refusals.clear()
    assert len(gates.passes(1.0).opened) == 1
    assert (gates.reported, gates.wait) == ({}, 1.0)
    assert len(gates.passes(1.0).opened) == 39


def test_a_try_that_nobody_answers_does_not_prove_that_the_right_is_there() -> None:
    gates = Gates(many(40))
    gates.refuse(RIGHT)
    gates.passes()
    gates.refuse(BLIP)
    gates.passes(1.0)
    assert (len(gates.asked), len(gates.reported), gates.wait) == (1, 40, 2.0)
    gates.refuse(POLICY)
    assert len(gates.passes(2.0).reported) == 1


# ---------------------------------------------------------------- nodes that are not as they were


@pytest.mark.parametrize(
    ("found", "again"),
    [
        pytest.param(node("a", taints=(OTHER, SHUT)), True, id="other taints"),
        pytest.param(node("a", taints=(SHUT,), boot_id="later"), True, id="another boot"),
        pytest.param(msgspec.structs.replace(node("a", taints=(SHUT,)), uid="new"), True, id="another node"),
        pytest.param(None, True, id="gone"),
        pytest.param(node("a", taints=(SHUT,)), False, id="the same"),
        pytest.param(ApiError(500, "", "boom"), False, id="it cannot be read"),
    ],
)
@pytest.mark.parametrize("error", [BUSY, MOVED], ids=["409", "422"])
def test_a_patch_that_no_longer_fits_asks_for_another_plan(
    error: ApiError, found: Answer, again: bool
) -> None:
    gates = Gates(shut("a", "b"))
    gates.refuse(error, "a")
    gates.server.reads = {"a": found}
    gates.passes()
    assert (gates.again, gates.opened) == (again, {"b"})
    assert (not gates.reported, gates.wait) == (True, 1.0)
    known = gates.store.get("", "a")
    if found is None:
        assert known is None
    elif isinstance(found, Node):
        assert known is not None
        assert (known.uid, known.boot_id, known.taints) == (found.uid, found.boot_id, found.taints)


def test_a_node_that_is_gone_is_forgotten_and_asks_for_another_plan() -> None:
    gates = Gates(shut("a"))
    gates.refuse(ApiError(404, "NotFound", "gone"))
    gates.server.reads = {"a": None}
    assert gates.passes().again
    assert gates.store.get("", "a") is None


def test_that_one_node_has_changed_is_not_lost_beside_a_slower_one() -> None:
    gates = Gates(shut("a", "b"))
    gates.refuse(BUSY)
    gates.server.reads = {"a": node("a")}

    async def pause(what: str) -> None:
        await asyncio.sleep({"get a": 0.01, "get b": 0.03}.get(what, 0))

    gates.server.pause = pause
    assert gates.passes().again


def test_nodes_behind_slow_ones_are_left_to_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_control, "SECONDS", 0.5)  # to begin as many as there may be at once
    gates = Gates(many(100))
    gates.server.pause = lambda _: asyncio.sleep(0.6)
    gates.passes()
    assert (len(gates.opened), gates.wait) == (gate_control.CONCURRENCY, 1.0)
