"""Which events may change the number of container instances, and which not."""

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caretaker.daemontask.ecs import instances
from caretaker.daemontask.ecs.check import Counts
from caretaker.daemontask.ecs.instances import MAX_FAULT, Instances, Notice, Parsed, parse
from testing.examples import examples
from unit.daemontask.ecs.build import INSTANCE, REGION, body, event, notice

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


def test_of_more_events_than_are_kept_between_two_lists_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "MOST", 10)
    known = Instances("Registered")
    known.learn(HERE, "Registered")
    known.begin()
    for number in range(20):
        known.changed(notice(f"forged-{number}", "INACTIVE"))
    assert len(known._heard) == 10
    known.changed(notice("a", "INACTIVE", 2))
    known.learn(HERE, "Registered")  # of before the event
    assert not known.complete, "the next look asks for another list"
    assert known.changed(notice("a", version=3))
    known.begin()
    known.learn(HERE, "Registered")
    assert known.complete


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


# ---------------------------------------------------------------- messages


def test_an_event_of_a_container_instance_is_read() -> None:
    wanted = Notice(REGION, "prod", f"{INSTANCE}/prod/i", "DRAINING", 7)
    assert parse(body(instance="i", status="DRAINING", version=7)) == Parsed(wanted)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"newField": {"x": [1]}}, id="a field that AWS adds"),
        pytest.param({"agentConnected": None, "ec2InstanceId": None}, id="fields that are not looked at"),
        pytest.param({"version": None}, id="no version"),
        pytest.param({"version": "7"}, id="a version that is no number"),
        pytest.param({"version": True}, id="a version that is no number, either"),
    ],
)
def test_what_is_not_needed_may_be_anything(changes: dict[str, object]) -> None:
    found = event() | {"account": 1}
    found["detail"].update(changes)
    notice = parse(json.dumps(found)).notice
    assert notice is not None
    assert notice.version == (0 if "version" in changes else 1)


@pytest.mark.parametrize("detail_type", ["ECS Task State Change", "ECS Service Action", "Object Created", ""])
def test_other_events_are_nobodys(detail_type: str) -> None:
    assert parse(json.dumps(event() | {"detail-type": detail_type})) == Parsed()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[]", "no event of EventBridge"),
        ("7", "no event of EventBridge"),
        ("{}", "no event of EventBridge"),
        ('{"detail-type": 7}', "no event of EventBridge"),
        ("[" * 100_000, "no event of EventBridge"),
        ('{"a":' + "[" * 100_000, "no JSON"),
        ("\ud800", "no JSON"),
        (json.dumps(event() | {"detail": None}), "its detail is no object"),
        (json.dumps(event() | {"detail": {}}), "detail.clusterArn is no cluster's ARN"),
        (body(clusterArn="prod"), "detail.clusterArn is no cluster's ARN: prod"),
        (body(clusterArn=f"arn:aws:ecs:{REGION}:1:cluster/a b"), "detail.clusterArn"),
        (body(clusterArn=7), "detail.clusterArn"),
        (body(containerInstanceArn="i-123"), "detail.containerInstanceArn"),
        (body(status=None), "detail.status is missing"),
        (body(status=""), "detail.status is missing"),
        (body(clusterArn="x" * 10_000), "detail.clusterArn"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, fault: str) -> None:
    found = parse(text)
    assert found.notice is None
    assert fault in found.malformed
    assert len(found.malformed) <= MAX_FAULT


def test_fields_that_are_not_needed_are_skipped_without_being_decoded() -> None:
    many = {f"a{number:x}": "x" for number in range(60_000)}
    text = json.dumps(event() | many | {"detail": event()["detail"] | many})
    assert parse(text).notice is not None
    ours, whole = (min(_seconds(call, text) for _ in range(5)) for call in (parse, json.loads))
    assert ours < whole / 2


def _seconds(call: Callable[[str], object], text: str) -> float:
    """CPU time of the call."""
    began = time.thread_time()
    call(text)
    return time.thread_time() - began


@settings(max_examples=examples(20, quick_percent=25), deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_nothing_raises(value: object) -> None:
    for found in (value, event() | {"detail": value}, event() | {"detail-type": value}):
        parse(json.dumps(found))
