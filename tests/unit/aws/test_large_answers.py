"""Large answers take turns, and so do their owners."""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from caretaker.aws.large_answers import Hold, Turns


def waiting(turns: Turns, owner: str, then: Callable[[], None]) -> threading.Thread:
    """A thread that waits for its turn, and is known to wait when this returns."""
    before = len(turns._waiting)

    def wait() -> None:
        assert turns.take(owner, 30)
        then()

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + 30
    while len(turns._waiting) == before:
        assert time.monotonic() < deadline
        thread.join(0.001)
    return thread


def test_owners_take_turns_however_many_answers_one_has() -> None:
    turns, begun, order = Turns(1), SimpleQueue[str](), list[str]()
    assert turns.take("first", 0)
    for one in ("a", "a", "a", "b", "c"):
        waiting(turns, one, lambda one=one: begun.put(one))
    for _ in range(5):
        turns.end()
        order.append(begun.get(timeout=30))
    assert order == ["a", "b", "c", "a", "a"]
    turns.end()
    assert turns.take("a", 0)


def test_an_owner_that_comes_late_has_no_turns_in_advance() -> None:
    turns, begun, order = Turns(1), SimpleQueue[str](), list[str]()
    assert turns.take("first", 0)
    for one in "aaaabbbb":
        waiting(turns, one, lambda one=one: begun.put(one))
    for late in ("", "", "", "ccc", *[""] * 7):
        for one in late:
            waiting(turns, one, lambda one=one: begun.put(one))
        turns.end()
        order.append(begun.get(timeout=30))
    assert "".join(order) == "abacbacbacb"


def test_who_gets_no_turn_in_time_takes_none_from_the_next() -> None:
    turns, order = Turns(1), list[str]()
    assert turns.take("a", 0)
    assert not turns.take("b", 0.01)
    thread = waiting(turns, "c", lambda: order.append("c"))
    turns.end()
    thread.join(30)
    assert order == ["c"]


def test_a_turn_lasts_until_the_call_and_the_use_of_its_answer_have_ended() -> None:
    turns, hold = Turns(1), Hold("a")
    with hold:
        with hold:
            assert hold.take(turns)
            assert hold.take(turns)
        assert not turns.take("b", 0)
    assert turns.take("b", 0)


def test_a_call_without_a_large_answer_takes_none() -> None:
    turns = Turns(1)
    with Hold("a"):
        assert turns.take("b", 0)
