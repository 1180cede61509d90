"""DaemonTask: how objects are read, and the arithmetic of numbers that may be percentages."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caretaker.api.daemontask import DaemonTask, FailurePolicy, IntOrPercent, Status, resolve

TEMPLATE = {"spec": {"containers": [{"name": "main"}]}}


def read(spec: dict[str, Any], **more: Any) -> DaemonTask:
    body = {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "DaemonTask",
        "metadata": {"name": "a"},
        "spec": spec,
    }
    return msgspec.json.decode(msgspec.json.encode({**body, **more}), type=DaemonTask)


@pytest.mark.parametrize(
    ("value", "total", "up", "count"),
    [
        pytest.param(7, 3, True, 7, id="a number stands for itself, even above the total"),
        pytest.param(0, 3, False, 0, id="zero is a number"),
        pytest.param("10%", 20, True, 2, id="an exact share"),
        pytest.param("10%", 21, True, 3, id="parallelism rounds up"),
        pytest.param("10%", 29, False, 2, id="tolerated failures round down"),
        pytest.param("1%", 1, True, 1, id="the smallest share of one node is that node"),
        pytest.param("99%", 1, False, 0, id="nearly all of one node is none of it"),
        pytest.param("100%", 5000, True, 5000, id="all"),
        pytest.param("0%", 5000, False, 0, id="none"),
        pytest.param("50%", 0, True, 0, id="a share of nothing"),
        pytest.param("7%", 100, True, 7, id="no rounding error pushes an exact share up"),
    ],
)
def test_resolve(value: IntOrPercent, total: int, up: bool, count: int) -> None:
    assert resolve(value, total, up=up) == count


@given(st.integers(1, 100), st.integers(1, 100_000))
def test_a_percentage_rounded_up_gives_at_least_one_and_at_most_all(percent: int, total: int) -> None:
    assert 1 <= resolve(f"{percent}%", total, up=True) <= total


@given(st.integers(0, 100), st.integers(0, 100_000))
def test_rounding_moves_by_less_than_one_node(percent: int, total: int) -> None:
    low, high = (resolve(f"{percent}%", total, up=up) for up in (False, True))
    assert low * 100 <= percent * total <= high * 100
    assert high - low == (percent * total % 100 > 0)


def test_the_smallest_object_has_every_default() -> None:
    task = read({"template": TEMPLATE})
    assert task.spec.template == TEMPLATE
    assert task.spec.rerun_on == ("TemplateChange",)
    assert task.spec.backoff_limit == 3
    assert task.spec.progress_deadline_seconds == 1800
    assert task.spec.failure_policy == FailurePolicy(max_failed_nodes=0, action="Continue")
    assert task.spec.parallelism is None
    assert task.status == Status()


def test_an_object_that_no_pass_has_seen_has_observed_generation_minus_one() -> None:
    assert read({"template": TEMPLATE}, status={"observedGeneration": -1}).status == Status()


def test_fields_of_a_newer_crd_are_skipped() -> None:
    assert read({"template": TEMPLATE, "someday": {"x": 1}}) == read({"template": TEMPLATE})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            {"ecs": {"service": "agent", "aws": {"region": "eu-west-1"}}},
            "missing required field `events` - at `$.spec.ecs`",
            id="an ECS target without a queue",
        ),
        pytest.param(
            {"template": TEMPLATE, "backoffLimit": "3"},
            "Expected `int`, got `str` - at `$.spec.backoffLimit`",
            id="a number as text",
        ),
        pytest.param(
            {"template": TEMPLATE, "rerunOn": ["Never"]},
            "Invalid enum value 'Never' - at `$.spec.rerunOn[0]`",
            id="a trigger that does not exist",
        ),
        pytest.param(
            {"template": TEMPLATE, "podFailurePolicy": {"rules": [{"action": "FailTask"}]}},
            "Invalid enum value 'FailTask' - at `$.spec.podFailurePolicy.rules[0].action`",
            id="an action that does not exist",
        ),
    ],
)
def test_what_cannot_be_read_is_named_with_its_path(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        read(spec)
    assert message in str(error.value)


def test_status_is_written_whole() -> None:
    written = msgspec.to_builtins(Status())
    assert written["observedGeneration"] == -1
    assert written["startTime"] is None
    assert written["ledger"] == {
        "shards": 0,
        "recorded": 0,
        "writes": (),
        "doneRun": "",
        "doneAt": None,
    }
