"""The order of tasks as a process knows it, and the tasks that a change brings into the queue."""

from msgspec.structs import replace

from caretaker.daemontask.dependencies import Dependencies
from caretaker.daemontask.task_order import TaskOrder
from caretaker.runtime.work_queue import Key
from unit.daemontask.build import node, progress

A, B, C, D = (Key("DaemonTask", "x", name) for name in "abcd")
NONE = progress()


class Order(TaskOrder):
    """With the keys that it enqueued."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        super().__init__(self.keys.append)

    def woken(self) -> str:
        found = "".join(sorted({key.name for key in self.keys}))
        self.keys.clear()
        return found


def chain() -> Order:
    """b depends on a, c on b; a pass over each."""
    order = Order()
    order.took(B, "a", None)
    order.took(C, "b", None)
    order.took(A, (), NONE)
    order.took(B, "a", NONE)
    order.woken()
    return order


def test_a_dependency_without_progress_gets_a_pass_once() -> None:
    order = Order()
    order.took(B, "a", None)
    assert order.woken() == "a"
    order.took(B, "a", None)
    assert order.woken() == ""
    order.took(A, (), NONE)
    assert order.woken() == "b"


def test_only_a_change_wakes_those_that_wait_and_only_them() -> None:
    order = chain()
    order.took(A, (), progress(rules=NONE.rules))
    assert order.woken() == ""
    order.took(A, (), progress(rules=NONE.rules, done=[node("n")]))
    assert order.woken() == "b"


def test_what_does_not_change_is_shared() -> None:
    order = chain()
    before = order.of(B, ["a"]).each[0].progress
    order.took(A, (), replace(NONE))
    assert order.of(B, ["a"]).each[0].progress is before


def test_a_task_is_awaited_while_another_names_it() -> None:
    order = chain()
    assert order.awaited(A)
    assert not order.awaited(C)
    order.took(B, (), None)
    assert not order.awaited(A)
    assert order.of(B, ["a"]).each[0].fault == "NotRead"
    assert order.woken() == "c"  # a circle may have ended


def test_two_that_name_the_same_task_share_it() -> None:
    order = chain()
    order.took(D, "a", None)
    assert order.woken() == ""  # its progress is there
    order.took(B, (), None)
    assert order.awaited(A)
    order.woken()
    order.drop(A)
    assert order.woken() == "d"


def test_a_task_that_is_deleted_is_missing_until_it_is_there_again() -> None:
    order = chain()
    order.drop(A)
    assert order.woken() == "b"
    assert order.of(B, ["a"]).each[0].fault == "NotFound"
    order.took(A, (), NONE)
    assert order.woken() == "b"
    assert order.of(B, ["a"]).each[0].fault == ""


def test_one_that_its_pass_does_not_find_is_missing() -> None:
    order = Order()
    order.took(B, "a", None)
    assert order.woken() == "a"
    assert order.of(B, ["a"]).each[0].fault == "NotRead"
    order.drop(A)
    assert order.woken() == "b"
    assert order.of(B, ["a"]).each[0].missing
    order.took(D, "a", None)
    assert order.woken() == ""  # that is known


def test_a_pass_before_its_first_dependent_is_not_the_last() -> None:
    """A task is created, and its pass made, between the steps of a pass over one that names it."""
    order = Order()
    assert order.of(B, ["a"]).each[0].fault == "NotRead"
    order.took(A, (), None)
    order.took(B, "a", None)
    assert order.woken() == "a"


def test_a_task_that_was_missing_and_has_changed_since_is_there() -> None:
    order = chain()
    order.drop(A)
    order.took(A, (), NONE)
    order.outdated(A, NONE)
    assert order.of(B, ["a"]).each[0].fault == "NotRead"


def test_nothing_is_kept_of_a_task_that_no_other_names() -> None:
    order = Order()
    order.took(B, "a", None)
    order.drop(A)
    order.drop(B)
    order.took(B, "a", None)
    assert order.of(B, ["a"]).each[0].fault == "NotRead"


def test_a_task_that_has_changed_is_not_known_until_its_next_pass() -> None:
    order = chain()
    known = order.of(B, ["a"]).each[0].progress
    assert known is not None
    order.outdated(A, replace(known))  # of another pass
    assert order.woken() == ""
    order.outdated(A, known)
    assert order.woken() == "a"
    assert order.of(B, ["a"]).each[0].fault == "NotRead"
    order.took(A, (), NONE)
    assert order.woken() == "b"


def test_every_task_of_a_circle_learns_of_it_and_of_its_end() -> None:
    order = chain()
    assert order.of(A, ["c"]).circle == ("a", "c", "b", "a")
    order.took(A, "c", None)
    assert order.woken() == "bc"
    assert order.of(B, ["a"]).circle == ("b", "a", "c", "b")
    assert order.of(C, ["b"]).circle == ("c", "b", "a", "c")
    assert order.of(D, ["c"]).circle == ()
    order.took(C, (), None)
    assert order.woken() == "ab"
    assert order.of(A, ["c"]).circle == ()


def test_a_task_that_names_itself_is_a_circle_and_no_endless_one() -> None:
    order = Order()
    assert order.of(A, ["a"]).circle == ("a", "a")
    order.took(A, "a", NONE)
    order.woken()
    order.took(A, "a", NONE)
    assert order.woken() == ""


def test_tasks_of_another_namespace_are_others() -> None:
    order = chain()
    other = Key("DaemonTask", "y", "b")
    assert order.of(other, ["a"]).each[0].fault == "NotRead"
    order.took(other, "a", None)
    assert order.keys == [Key("DaemonTask", "y", "a")]


def test_without_dependencies_there_is_nothing() -> None:
    order = chain()
    assert order.of(A, []) == Dependencies()
    order.drop(B)
    order.clear()
    assert not order.awaited(A)
    assert [one.fault for one in order.of(D, ["a", "b"]).each] == ["NotRead", "NotRead"]
