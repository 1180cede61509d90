"""The conditions of a resource whose pass was stopped by a missing permission."""

from caretaker.api.conditions import Condition, find
from caretaker.runtime.permission_conditions import conditions

EARLIER, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
TASK = ("Progressing",)
WORDS = 'cannot list resource "configmaps"'


def standing(*triples: tuple[str, str, str]) -> tuple[Condition, ...]:
    return tuple(Condition(kind, status, reason, "m", 1, EARLIER) for kind, status, reason in triples)  # type: ignore[arg-type]


def test_a_resource_that_was_never_looked_at_says_why() -> None:
    after = conditions((), TASK, 1, WORDS, NOW)
    assert [(c.type, c.status, c.reason) for c in after] == [
        ("Ready", "False", "PermissionDenied"),
        ("Progressing", "False", "PermissionDenied"),
        ("Reconciling", "True", "PermissionDenied"),
    ]
    assert {c.message for c in after} == {WORDS}
    assert {c.last_transition_time for c in after} == {NOW}


def test_what_other_conditions_say_stays() -> None:
    before = standing(("Ready", "True", "Succeeded"), ("SpecValid", "True", "Accepted"))
    after = conditions(before, TASK, 2, WORDS, NOW)
    assert find(after, "SpecValid") == before[1]
    ready = find(after, "Ready")
    assert ready is not None
    assert (ready.status, ready.observed_generation, ready.last_transition_time) == ("False", 2, NOW)


def test_stalled_goes_since_it_is_tried_again() -> None:
    before = standing(("Ready", "False", "Paused"), ("Stalled", "True", "NodesFailed"))
    after = conditions(before, TASK, 1, WORDS, NOW)
    assert find(after, "Stalled") is None
    ready = find(after, "Ready")
    assert ready is not None
    assert ready.last_transition_time == EARLIER, "it was False before"


def test_said_once_it_is_not_said_again() -> None:
    once = conditions(standing(("SpecValid", "True", "Accepted")), TASK, 1, WORDS, NOW)
    assert conditions(once, TASK, 1, WORDS, "2026-01-03T00:00:00Z") == once


def test_a_kind_without_progressing_does_not_get_one() -> None:
    after = conditions(standing(("CaughtUp", "True", "UpToDate")), (), 1, WORDS, NOW)
    assert [c.type for c in after] == ["Ready", "CaughtUp", "Reconciling"]
