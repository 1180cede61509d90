"""In-memory state of an enforcing policy."""

from caretaker.imds.policy_state import PolicyState


def test_instances_of_the_status_that_was_found_are_another_process_until_they_leave_it() -> None:
    state = PolicyState("u")
    state.inherit({"i-1", "i-2"}, 1_000.0)
    assert (state.inherited, state.inherited_at) == ({"i-1", "i-2"}, 1_000.0)
    state.inherit({"i-2", "i-3"}, 1_001.0)
    state.inherit({"i-1", "i-2", "i-3"}, 1_002.0)
    assert (state.inherited, state.inherited_at) == ({"i-2"}, 1_000.0), "chosen anew by this one"


def test_where_no_status_was_found_all_is_of_this_process() -> None:
    state = PolicyState("u")
    state.inherit(set(), 1_000.0)
    state.inherit({"i-1"}, 1_001.0)
    assert state.inherited == set()
