"""What status says of a plan: sums, Ready and its reasons, the kstatus conditions."""

import pytest

from caretaker.api import conditions as c
from caretaker.api.daemontask import Status
from caretaker.daemontask.facts import Outcome
from caretaker.daemontask.plan import plan
from caretaker.daemontask.snapshot import Snapshot, Trouble
from caretaker.daemontask.status import status_of
from unit.daemontask.build import REVISION, entry, pod, snapshot, task
from unit.daemontask.states import CASES, A, B, done, status


def true_conditions(of: Status) -> dict[str, str]:
    return {condition.type: condition.reason for condition in of.conditions if condition.status == "True"}


@pytest.mark.parametrize(("given", "outcome", "ready", "also"), CASES.values(), ids=CASES.keys())
def test_ready_and_its_companions(
    given: Snapshot, outcome: Outcome, ready: str, also: dict[str, str]
) -> None:
    found = status(given, outcome)
    summary = c.find(found.conditions, c.READY)
    assert summary is not None
    assert summary.reason == ready
    companions = true_conditions(found)
    for own in (c.READY, c.PROGRESSING, c.SPEC_VALID):
        companions.pop(own, None)
    assert companions == also
    states = found.succeeded + found.failed + found.active + found.pending + found.blocked
    assert found.desired == states


def test_a_node_that_joins_later_leaves_ready_true() -> None:
    found = status(snapshot(task(status=done()), [A, B], [pod(B)], {"a": entry(A)}))
    assert true_conditions(found)[c.READY] == "Running"


def test_going_back_to_an_earlier_template_is_a_rollout_like_any_other() -> None:
    between = done(current_revision="another", completed_revision="")
    others = {"a": entry(A, revision="another"), "b": entry(B, revision="another")}
    found = status(snapshot(task(status=between), [A, B], entries=others))
    assert found.current_revision == REVISION
    assert true_conditions(found)[c.RECONCILING] == "RollingOut"
    assert c.READY not in true_conditions(found)


def test_a_revision_under_way_forgets_that_an_earlier_one_was_complete() -> None:
    changed = status(snapshot(task(status=done()), [A, B], revision="another"))
    assert changed.completed_revision == ""


def test_nothing_changed_means_the_same_status() -> None:
    before = done()
    again = snapshot(task(status=before), [A, B], entries={"a": entry(A), "b": entry(B)})
    assert status_of(again, plan(again), Outcome()) == before


def test_a_pod_that_may_not_be_deleted_degrades_and_holds_up_nothing() -> None:
    of = snapshot(task(), [A], entries={"a": entry(A)})
    outcome = Outcome(trouble=Trouble("PodDeletionRefused", "Pod t-1: evidence"))
    found = status_of(of, plan(of), outcome)
    assert true_conditions(found) == {
        "Ready": "Succeeded",
        "SpecValid": "Accepted",
        "Progressing": "RolloutComplete",
        "Degraded": "PodDeletionRefused",
    }


def test_a_pod_set_aside_is_told_as_what_it_is() -> None:
    of = snapshot(task(), [A], entries={"a": entry(A)})
    found = status_of(of, plan(of), Outcome(conflicts=("t-1",), aside=frozenset({"t-1"})))
    told = c.find(found.conditions, c.DEGRADED)
    assert told is not None
    assert (told.reason, "lost the label" in told.message) == ("NameConflict", True)
