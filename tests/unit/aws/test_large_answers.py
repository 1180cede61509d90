"""Large answers take turns, and so do their owners."""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from caretaker.aws.large_answers import Hold, ThreadSlots


def waiting(slots: ThreadSlots, owner: str, then: Callable[[], None]) -> threading.Thread:
    """A thread that waits for its turn, and is known to wait when this returns."""
    before = len(slots._waiting)

    def wait() -> None:
        assert slots.acquire(owner, 30)
        then()

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + 30
    while len(slots._waiting) == before:
        assert time.monotonic() < deadline
        thread.join(0.001)
    return thread


def test_owners_take_turns_however_many_answers_one_has() -> None:
    slots, begun, order = ThreadSlots(1), SimpleQueue[str](), list[str]()
    assert slots.acquire("first", 0)
    for one in ("a", "a", "a", "b", "c"):
        waiting(slots, one, lambda one=one: begun.put(one))
    for _ in range(5):
        slots.release()
        order.append(begun.get(timeout=30))
    assert order == ["a", "b", "c", "a", "a"]
    slots.release()
    assert slots.acquire("a", 0)


def test_an_owner_that_comes_late_has_no_turns_in_advance() -> None:
    slots, begun, order = ThreadSlots(1), SimpleQueue[str](), list[str]()
    assert slots.acquire("first", 0)
    for one in "aaaabbbb":
        waiting(slots, one, lambda one=one: begun.put(one))
    for late in ("", "", "", "ccc", *[""] * 7):
        for one in late:
            waiting(slots, one, lambda one=one: begun.put(one))
        slots.release()
        order.append(begun.get(timeout=30))
    assert "".join(order) == "abacbacbacb"


def test_who_gets_no_turn_in_time_takes_none_from_the_next() -> None:
    slots, order = ThreadSlots(1), list[str]()
    assert slots.acquire("a", 0)
    assert not slots.acquire("b", 0.01)
    thread = waiting(slots, "c", lambda: order.append("c"))
    slots.release()
    thread.join(30)
    assert order == ["c"]


def test_a_turn_lasts_until_the_call_and_the_use_of_its_answer_have_ended() -> None:
    slots, hold = ThreadSlots(1), Hold("a")
    with hold:
        with hold:
            assert hold.acquire(slots)
            assert hold.acquire(slots)
        assert not slots.acquire("b", 0)
    assert slots.acquire("b", 0)


def test_a_call_without_a_large_answer_takes_none() -> None:
    slots = ThreadSlots(1)
    with Hold("a"):
        assert slots.acquire("b", 0)
