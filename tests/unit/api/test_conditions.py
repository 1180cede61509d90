"""Conditions: which time a merged condition carries, and what the constants look like."""

import re

import pytest

from caretaker.api import conditions
from caretaker.api.conditions import MAX_MESSAGE, Condition, Reason, find, merge

BEFORE, NOW = "2026-01-31T11:00:00Z", "2026-01-31T12:00:00Z"
READY = Condition("Ready", "True", Reason.SUCCEEDED, "20 of 20", 3, BEFORE)
STALLED = Condition("Stalled", "True", Reason.NODES_FAILED, "1 failed", 3, BEFORE)


@pytest.mark.parametrize(
    ("previous", "wanted", "merged"),
    [
        pytest.param(
            [],
            [Condition("Ready", "False", "RollingOut")],
            [Condition("Ready", "False", "RollingOut", last_transition_time=NOW)],
            id="a new condition starts now",
        ),
        pytest.param(
            [READY],
            [Condition("Ready", "True", "Succeeded", "20 of 20", 3)],
            [READY],
            id="an unchanged condition keeps its time",
        ),
        pytest.param(
            [READY],
            [Condition("Ready", "True", "Suspended", "held", 4)],
            [Condition("Ready", "True", "Suspended", "held", 4, BEFORE)],
            id="another reason, message or generation is no transition",
        ),
        pytest.param(
            [READY],
            [Condition("Ready", "False", "NodesFailed", "1 failed", 3)],
            [Condition("Ready", "False", "NodesFailed", "1 failed", 3, NOW)],
            id="another status is a transition",
        ),
        pytest.param(
            [READY, STALLED],
            [Condition("Ready", "True", "Succeeded", "20 of 20", 3)],
            [READY],
            id="a condition that is no longer wanted is dropped",
        ),
        pytest.param(
            [Condition("Ready", "True", "Succeeded")],
            [Condition("Ready", "True", "Succeeded")],
            [Condition("Ready", "True", "Succeeded", last_transition_time=NOW)],
            id="a condition that lost its time starts now",
        ),
        pytest.param(
            [STALLED, READY],
            [READY, STALLED],
            [READY, STALLED],
            id="the order is that of the wanted ones",
        ),
        pytest.param(
            [],
            [Condition("Ready", "False", "InvalidSpec", "x" * (MAX_MESSAGE + 1))],
            [Condition("Ready", "False", "InvalidSpec", "x" * MAX_MESSAGE, last_transition_time=NOW)],
            id="a message is cut at what the API server takes",
        ),
    ],
)
def test_merge(previous: list[Condition], wanted: list[Condition], merged: list[Condition]) -> None:
    assert merge(previous, wanted, NOW) == tuple(merged)


def test_merging_again_changes_nothing() -> None:
    once = merge([], [READY, STALLED], NOW)
    assert merge(once, once, "2026-01-31T13:00:00Z") == once


def test_find() -> None:
    assert find([READY, STALLED], "Stalled") is STALLED
    assert find([READY], "Stalled") is None


def test_reasons_and_types_are_distinct_camel_case_words() -> None:
    reasons = [v for k, v in vars(Reason).items() if k.isupper()]
    types = [v for k, v in vars(conditions).items() if k.isupper() and isinstance(v, str)]
    assert len(reasons) == len(set(reasons))
    assert [word for word in (*reasons, *types) if not re.fullmatch("([A-Z][a-z]+|CPU)+(OK)?", word)] == []
