"""In-memory state of an enforcing policy."""

from caretaker.imds.memory import Deeds


def test_instances_of_the_status_that_was_found_are_another_process_until_they_leave_it() -> None:
    deeds = Deeds("u")
    deeds.inherit({"i-1", "i-2"}, 1_000.0)
    assert (deeds.inherited, deeds.inherited_at) == ({"i-1", "i-2"}, 1_000.0)
    deeds.inherit({"i-2", "i-3"}, 1_001.0)
    deeds.inherit({"i-1", "i-2", "i-3"}, 1_002.0)
    assert (deeds.inherited, deeds.inherited_at) == ({"i-2"}, 1_000.0), "chosen anew by this one"


def test_where_no_status_was_found_all_is_of_this_process() -> None:
    deeds = Deeds("u")
    deeds.inherit(set(), 1_000.0)
    deeds.inherit({"i-1"}, 1_001.0)
    assert deeds.inherited == set()
