"""The first instances of a generation."""

import msgspec
import pytest

from caretaker.api.imds import CanaryStatus
from caretaker.api.times import format_time
from caretaker.imds.canary import State, Trial, soaked_at, step

NOW = 1_000_000.0
SOAK = 120.0


def trial(
    states: dict[str, State], *candidates: str, now: float = NOW, number: int = 1, generation: int = 3
) -> Trial:
    return Trial(generation, number, SOAK, states, candidates, now)


def canary(phase: str, *instances: str, since: float = NOW, generation: int = 3) -> CanaryStatus:
    at = format_time(since)
    return CanaryStatus(generation, instances or ("a",), phase, at, at)  # type: ignore[arg-type]


def test_there_is_none_where_none_is_wanted_or_nothing_has_to_change() -> None:
    assert step(None, trial({"a": "to change"}, "a", number=0)) is None
    assert step(canary("Soaking"), trial({"a": "done"}, number=0)) is None
    assert step(None, trial({"a": "done"})) is None


def test_it_is_chosen_in_the_order_of_the_candidates() -> None:
    made = step(None, trial({"a": "to change", "b": "to change", "c": "to change"}, "c", "a", "b", number=2))
    assert made is not None
    assert (made.instances, made.phase, made.generation) == (("c", "a"), "Changing", 3)
    assert made.started_at == made.since == format_time(NOW)


def test_fewer_are_chosen_where_fewer_have_to_change() -> None:
    made = step(None, trial({"a": "to change"}, "a", number=5))
    assert made is not None
    assert made.instances == ("a",)


@pytest.mark.parametrize("state", ["to change", "under way"])
def test_it_soaks_once_all_are_applied_and_ready(state: State) -> None:
    before = canary("Changing", "a", "b")
    assert step(before, trial({"a": "done", "b": state}, number=2, now=NOW + 60)) == before
    made = step(before, trial({"a": "done", "b": "done"}, number=2, now=NOW + 60))
    assert made is not None
    assert (made.phase, made.started_at, made.since) == ("Soaking", before.started_at, format_time(NOW + 60))


def test_it_passes_only_after_the_soak() -> None:
    before = canary("Soaking")
    end = soaked_at(before, SOAK)
    assert end >= NOW + SOAK
    early = step(before, trial({"a": "done"}, "b", now=end - 0.1))
    assert early == before
    made = step(before, trial({"a": "done"}, "b", now=end))
    assert made is not None
    assert made.phase == "Passed"


def test_without_a_soak_it_passes_at_once() -> None:
    made = step(canary("Changing"), msgspec.structs.replace(trial({"a": "done"}), soak=0.0))
    assert made is not None
    assert made.phase == "Passed"


def test_it_soaks_anew_after_its_node_was_not_ready() -> None:
    shaken = step(canary("Soaking"), trial({"a": "under way"}, now=NOW + 100))
    assert shaken is not None
    assert shaken.phase == "Changing"
    again = step(shaken, trial({"a": "done"}, now=NOW + 110))
    assert again is not None
    assert (again.phase, again.since) == ("Soaking", format_time(NOW + 110))


@pytest.mark.parametrize("phase", ["Changing", "Soaking"])
def test_one_that_ends_before_it_has_stood_is_replaced(phase: str) -> None:
    made = step(canary(phase, "a", "b"), trial({"a": "gone", "b": "done", "c": "to change"}, "c", number=2))
    assert made is not None
    assert (made.instances, made.phase) == (("b", "c"), "Changing")


def test_one_that_is_not_there_has_ended() -> None:
    made = step(canary("Soaking"), trial({"c": "to change"}, "c"))
    assert made is not None
    assert made.instances == ("c",)
    assert step(canary("Soaking"), trial({})) is None


def test_what_has_passed_stays_passed_whoever_ends() -> None:
    passed = canary("Passed")
    assert step(passed, trial({"b": "to change"}, "b", now=NOW + 9_999)) is passed


@pytest.mark.parametrize("phase", ["Changing", "Soaking", "Passed"])
def test_another_generation_starts_anew(phase: str) -> None:
    made = step(canary(phase), trial({"a": "done", "b": "to change"}, "b", generation=4))
    assert made is not None
    assert (made.generation, made.instances, made.phase) == (4, ("b",), "Changing")
    assert step(canary(phase), trial({"a": "done"}, generation=4)) is None


def test_a_soak_that_began_by_a_clock_that_was_ahead_begins_anew() -> None:
    ahead = canary("Soaking", since=NOW + 86_400)
    made = step(ahead, trial({"a": "done"}, "b"))
    assert made is not None
    assert (made.phase, made.since) == ("Soaking", format_time(NOW))
    passed = step(made, trial({"a": "done"}, "b", now=soaked_at(made, SOAK)))
    assert passed is not None
    assert passed.phase == "Passed"
