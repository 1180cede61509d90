"""What a message tells, and that none of them can do harm."""

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caretaker.daemontask.ecs.envelope import MAX_FAULT, Notice, Parsed, parse
from testing.examples import examples
from unit.daemontask.ecs.build import INSTANCE, REGION, body, event


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
