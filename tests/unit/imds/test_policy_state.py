"""In-memory state of an enforcing policy."""

import msgspec

from caretaker.api.times import format_time
from caretaker.imds.policy_state import PolicyState
from unit.imds.enforcing import WALL, canaries, canary, changed, watched


def test_instances_of_the_status_that_was_found_are_another_process_until_they_leave_it() -> None:
    state = PolicyState("u")
    assert state.inherit({"i-1", "i-2"}, 1_000.0) == ({"i-1", "i-2"}, 1_000.0)
    state.inherit({"i-2", "i-3"}, 1_001.0)
    found = state.inherit({"i-1", "i-2", "i-3"}, 1_002.0)
    assert found == ({"i-2"}, 1_000.0), "chosen anew by this one"


def test_where_no_status_was_found_all_is_of_this_process() -> None:
    state = PolicyState("u")
    state.inherit(set(), 1_000.0)
    assert state.inherit({"i-1"}, 1_001.0) == (set(), 1_000.0)


def test_an_instance_counts_as_changed_from_when_it_is_seen_applied() -> None:
    state = PolicyState("u")
    sent, seen = changed(1, at=WALL), changed(1, at=WALL + 20.0, applied=True)
    state.changed["i-1"] = WALL
    state.landing = {"i-1"}
    state.land(None, watched(sent))
    assert state.changed == {"i-1": WALL}
    state.land(None, watched(seen))
    state.land(None, watched(msgspec.structs.replace(seen, at=format_time(WALL + 40.0))))
    assert (state.changed, state.landing) == ({"i-1": WALL + 20.0}, set())


def test_when_another_process_saw_it_applied_is_in_status() -> None:
    """A canary has a soak instead."""
    state, one = PolicyState("u"), watched(changed(1, at=WALL, applied=True), changed(2, at=WALL))
    soaking = canaries(canary("Soaking", 3))
    state.inherit({"i-1", "i-2", "i-3"}, 1_000.0)
    state.land(soaking, one)
    assert (state.changed, state.landing) == ({"i-1": WALL}, {"i-2"})
    state.only({"i-1"})
    assert state.landing == set()
