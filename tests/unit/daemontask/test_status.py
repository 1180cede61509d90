"""What status says of a plan: sums, Ready and its reasons, the kstatus conditions."""

from typing import Any

import msgspec
import pytest

from caretaker.api import conditions as c
from caretaker.api.daemontask import FailurePolicy, Status
from caretaker.daemontask.conditions import Outcome
from caretaker.daemontask.plan import Snapshot, Trouble, plan
from caretaker.daemontask.status import status_of
from unit.daemontask.build import REVISION, entry, node, pod, snapshot, task

A, B = node("a"), node("b")
NOT_READY = node("c", ready=False)


def status(of: Snapshot) -> Status:
    return status_of(of, plan(of), Outcome())


def true_conditions(of: Status) -> dict[str, str]:
    return {condition.type: condition.reason for condition in of.conditions if condition.status == "True"}


@pytest.mark.parametrize(
    ("given", "ready", "also"),
    [
        pytest.param(snapshot(task(), []), "NoMatchingNodes", {}, id="no node matches: never complete"),
        pytest.param(
            snapshot(task(), [A, B], entries={"a": entry(A)}),
            "RollingOut",
            {"Reconciling": "RollingOut"},
            id="a rollout under way is reconciling",
        ),
        pytest.param(
            snapshot(task(), [A, NOT_READY], entries={"a": entry(A)}),
            "Succeeded",
            {},
            id="blocked nodes do not hold up Ready",
        ),
        pytest.param(
            snapshot(task(), [NOT_READY]),
            "NodesBlocked",
            {"Reconciling": "RollingOut"},
            id="all blocked is not done",
        ),
        pytest.param(
            snapshot(task(), [A, B], entries={"a": entry(A), "b": entry(B, "Failed")}),
            "NodesFailed",
            {"Stalled": "NodesFailed", "Degraded": "NodesFailed"},
            id="exhausted retries stall, or GitOps waits for ever",
        ),
        pytest.param(
            snapshot(
                task(failure_policy=FailurePolicy(1)),
                [A, B],
                entries={"a": entry(A), "b": entry(B, "Failed")},
            ),
            "Succeeded",
            {"Degraded": "NodesFailed"},
            id="Continue within maxFailedNodes is ready and degraded",
        ),
        pytest.param(
            snapshot(
                task(failure_policy=FailurePolicy("100%")),
                [A, B],
                entries={"a": entry(A, "Failed"), "b": entry(B, "Failed")},
            ),
            "Succeeded",
            {"Degraded": "NodesFailed"},
            id="all failed within maxFailedNodes is the end, too",
        ),
        pytest.param(
            snapshot(
                task(failure_policy=FailurePolicy(1, "Pause")),
                [A, B],
                entries={"a": entry(A), "b": entry(B, "Failed")},
            ),
            "NodesFailed",
            {"Stalled": "NodesFailed", "Degraded": "NodesFailed"},
            id="Pause lets no failure pass as success",
        ),
        pytest.param(
            snapshot(task(suspend=True), [A]),
            "Suspended",
            {"Suspended": "Suspended"},
            id="suspended counts as current",
        ),
        pytest.param(
            snapshot(task(), [A], invalid="spec.template.spec.x: no"),
            "InvalidSpec",
            {"Stalled": "InvalidSpec"},
            id="an invalid spec stalls",
        ),
    ],
)
def test_ready_and_its_companions(given: Snapshot, ready: str, also: dict[str, str]) -> None:
    found = status(given)
    summary = c.find(found.conditions, c.READY)
    assert summary is not None
    assert summary.reason == ready
    companions = true_conditions(found)
    for own in (c.READY, c.PROGRESSING, c.SPEC_VALID):
        companions.pop(own, None)
    assert companions == also
    states = found.succeeded + found.failed + found.active + found.pending + found.blocked
    assert found.desired == states


def done(**changes: Any) -> Status:
    """The status of a rollout that was complete."""
    complete = status(snapshot(task(), [A, B], entries={"a": entry(A), "b": entry(B)}))
    return msgspec.structs.replace(complete, **changes)


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
