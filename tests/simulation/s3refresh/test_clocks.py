"""Operators whose wall clocks differ: what one writes of its times must not mislead another."""

import pytest

from caretaker.s3refresh.options import DebounceOptions
from simulation.s3refresh.world import Operator, World, until

SKEWS = [0.0, -40.0, 250.0, -250.0]


def two(skew: float) -> tuple[World, Operator, Operator]:
    """One event, claimed by the first operator, whose clock is off; the second has seen that."""
    world = World(DebounceOptions(quiet_period=0.0, max_delay=120.0))
    first, second = Operator(world, "first", skew), Operator(world, "second", 0.0)
    world.put("a/1")
    for operator in (first, second):
        operator.receive(1)
    for operator in (first, second):
        operator.begin()
        operator.finish()
    return world, first, second


@pytest.mark.parametrize("skew", SKEWS)
def test_a_call_that_was_accepted_late_is_not_followed_too_early(skew: float) -> None:
    """The first operator's answer is lost, and its clock says when to try again; the second knows of the call
    since before it was accepted."""
    world, first, second = two(skew)
    (call,) = first.calls
    world.now += 9
    world.take_effect(call)
    first.answer(call, "unknown")
    first.begin()
    first.finish()
    world.put("a/2")
    assert until(world, second, world.all_fresh, 600)
    assert world.lost() == []


@pytest.mark.parametrize("skew", SKEWS)
def test_a_call_of_a_dead_process_that_was_accepted_late_is_not_followed_too_early(skew: float) -> None:
    """The first operator died with its call on the way, and its successor writes that nobody knows."""
    world, first, second = two(skew)
    (call,) = first.calls
    first.crash()
    first.begin()
    first.finish()
    second.begin()
    second.finish()
    world.now += 9
    world.take_effect(call)
    world.put("a/2")
    assert until(world, second, world.all_fresh, 600)
    assert world.lost() == []
