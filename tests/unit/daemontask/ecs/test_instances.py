"""Which events may change the number of container instances, and which not."""

import pytest

from caretaker.daemontask.ecs import instances
from caretaker.daemontask.ecs.check import Counts
from caretaker.daemontask.ecs.envelope import Notice
from caretaker.daemontask.ecs.instances import Instances
from unit.daemontask.ecs.build import INSTANCE, notice

HERE = [f"{INSTANCE}/prod/a", f"{INSTANCE}/prod/b"]

Story = list[tuple[Notice, bool]]


@pytest.mark.parametrize(
    ("counts", "story"),
    [
        pytest.param(
            "Registered",
            [(notice("a", version=n), False) for n in range(2, 9)],
            id="an agent that connects and disconnects, tasks that start: nothing",
        ),
        pytest.param(
            "Registered", [(notice("c"), True), (notice("c", version=2), False)], id="one more, once"
        ),
        pytest.param(
            "Registered",
            [(notice("a", "DRAINING", 2), False), (notice("a", "ACTIVE", 3), False)],
            id="a drain, where those that drain count",
        ),
        pytest.param(
            "Active",
            [(notice("a", "DRAINING", 2), True), (notice("a", "ACTIVE", 3), True)],
            id="a drain and its end, where they do not",
        ),
        pytest.param(
            "Active",
            [(notice("c", "DRAINING", 2), False), (notice("c", "DRAINING", 3), False)],
            id="one that drains already does not count, nor did it",
        ),
        pytest.param(
            "Registered",
            [(notice("a", "INACTIVE", 2), True), (notice("a", "INACTIVE", 2), False)],
            id="one less, once",
        ),
        pytest.param(
            "Registered",
            [(notice("a", "INACTIVE", 9), True), (notice("a", "ACTIVE", 8), False)],
            id="what comes late is out of date",
        ),
        pytest.param(
            "Active",
            [
                (notice("a", "DRAINING", 5), True),
                (notice("a", "ACTIVE", 4), False),
                (notice("a", "ACTIVE", 6), True),
            ],
            id="what came late hides nothing that comes after it",
        ),
        pytest.param(
            "Registered",
            [(notice("c", "REGISTERING", 1), False), (notice("c", "ACTIVE", 2), True)],
            id="one that registers counts when it is ACTIVE",
        ),
        pytest.param(
            "Active",
            [(notice("a", "DRAINING", 0), True), (notice("a", "ACTIVE", 0), True)],
            id="without versions every change counts",
        ),
    ],
)
def test_what_an_event_changes(counts: Counts, story: Story) -> None:
    known = Instances(counts)
    known.learn(HERE, counts)
    assert [known.changed(one) for one, _ in story] == [wanted for _, wanted in story]


def test_until_a_list_came_what_is_not_known_may_be_either() -> None:
    known = Instances("Registered")
    assert not known.complete
    told = [notice("a"), notice("b", "INACTIVE"), notice("a", version=2), notice("b", "INACTIVE", 2)]
    assert [known.changed(one) for one in told] == [True, True, False, False]


def test_an_event_that_came_while_a_list_was_asked_for_is_newer_than_the_list() -> None:
    known = Instances("Registered")
    known.changed(notice("c", version=3))
    known.begin()
    known.changed(notice("a", "INACTIVE", 4))
    known.learn(HERE, "Registered")  # which still has a, and no c
    assert not known.changed(notice("a", "INACTIVE", 5))
    assert known.changed(notice("c", version=5)), "c was not on the list, and no event of it came since"


def test_a_list_mends_what_lost_events_left_behind() -> None:
    known = Instances("Active")
    known.learn(HERE, "Active")
    known.begin()
    known.learn([HERE[0]], "Active")  # b drains: its event was lost
    assert known.changed(notice("b", "ACTIVE", 9))


def test_memory_is_bounded_and_those_that_count_are_kept_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "MOST", 10)
    known = Instances("Registered")
    known.learn(HERE, "Registered")
    for number in range(20):
        known.changed(notice(f"gone-{number}", "INACTIVE"))
    assert known.complete
    assert not known.changed(notice("a", version=2))
    for number in range(20):
        known.changed(notice(f"there-{number}"))
    assert not known.complete, "too many to remember: what is not known may be either again"


def test_an_instance_that_the_list_leaves_out_is_looked_at_once() -> None:
    """A placement constraint keeps the service from it: whatever its agent does makes no difference."""
    known = Instances("Active")
    known.learn(HERE, "Active")
    told = []
    for version in range(1, 9):
        known.begin()
        told.append(known.changed(notice("other", version=version)))
        known.begin()
        known.learn(HERE, "Active")
    assert told == [True, *[False] * 7]
    assert [known.changed(notice("other", "INACTIVE", 9)), known.changed(notice("a", "INACTIVE", 9))] == [
        False,
        True,
    ]


def test_a_list_says_by_which_statuses_it_was_made() -> None:
    """A service that may run on a part of the cluster is counted without those that drain, whatever
    countInstances says."""
    known = Instances("Registered")
    known.learn(HERE, "Active")
    assert known.changed(notice("a", "DRAINING", 2))
