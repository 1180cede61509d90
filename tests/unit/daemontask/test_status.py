"""What status says of a plan: sums, Ready and its reasons, the kstatus conditions."""

import msgspec
import pytest

from caretaker.api import conditions as c
from caretaker.api.conditions import Reason
from caretaker.api.daemontask import (
    BlockedNode,
    FailedNode,
    FailurePolicy,
    FormerRevision,
    LedgerStatus,
    PostedEvent,
    Rollout,
    Slot,
    SlotStatus,
    Status,
)
from caretaker.api.times import format_time
from caretaker.daemontask.annotation_requests import AnnotationRequests
from caretaker.daemontask.decision import WriteRefusal
from caretaker.daemontask.plan import Plan, plan
from caretaker.daemontask.refused_pods import RefusedPod
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.status import MIN_DELAY, REFUSED_DELAY, requeue_after, status_of
from caretaker.daemontask.status_input import Outcome
from unit.daemontask.build import NOW, REVISION, entry, node, pod, snapshot, task
from unit.daemontask.states import CASES, A, B, C, done, status


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
    outcome = Outcome(refusal=WriteRefusal("PodDeletionRefused", "Pod t-1: evidence"))
    found = status_of(of, plan(of), outcome)
    assert true_conditions(found) == {
        "Ready": "Succeeded",
        "SpecValid": "Accepted",
        "Progressing": "RolloutComplete",
        "Degraded": "PodDeletionRefused",
    }


def test_a_pod_set_aside_is_told_as_what_it_is() -> None:
    of = snapshot(task(), [A], entries={"a": entry(A)})
    found = status_of(of, plan(of), Outcome(conflicts=("t-1",), unlabelled=frozenset({"t-1"})))
    told = c.find(found.conditions, c.DEGRADED)
    assert told is not None
    assert (told.reason, "lost the label" in told.message) == ("NameConflict", True)


def test_the_whole_of_a_status() -> None:
    away = node("e", ready=False, ready_since=NOW - 100)
    bad = entry(
        B,
        "Failed",
        reason="Error",
        message="no disk",
        exit_code=3,
        attempts=4,
        seq=4,
        pod_uid="pod-b-4",
        finished_at=int(NOW - 9),
    )
    nodes = [A, B, C, node("d"), away]
    of = task(parallelism=3, failure_policy=FailurePolicy(2))
    given = snapshot(of, nodes, [pod(C)], {"a": entry(A), "b": bad}, former=FormerRevision("old", REVISION))
    outcome = Outcome(created=1, started=frozenset("d"), shards=2, recorded=3, writes=(4, 5))
    found = status_of(given, plan(given), outcome)
    now = "1970-01-12T13:46:40Z"
    assert msgspec.structs.replace(found, conditions=()) == Status(
        observed_generation=1,
        current_revision=REVISION,
        former_revision=FormerRevision("old", REVISION),
        desired=5,
        active=2,
        succeeded=1,
        failed=1,
        pending=0,
        blocked=1,
        start_time=now,
        last_completion_time="1970-01-12T12:46:40Z",
        failed_nodes=(
            FailedNode("b", "Error", "no disk", 3, 4, "1970-01-12T13:46:31Z", "task-uu4x23vh6n-4"),
        ),
        blocked_nodes=(BlockedNode("e", "NodeNotReady", "1970-01-12T13:45:00Z", "the node is not Ready"),),
        slots=SlotStatus(3, 2, (Slot("c", "Running", "1970-01-12T13:45:40Z"), Slot("d", "Running", now))),
        ledger=LedgerStatus(shards=2, recorded=3, writes=(4, 5)),
        rollout=Rollout(events=(PostedEvent("RunFailed", now), PostedEvent("RunStarted", now))),
    )


def test_lists_of_nodes_are_cut_in_order_and_say_how_many_they_leave_out() -> None:
    bad = [node(f"bad-{number:02}") for number in range(52)]
    away = [node(f"away-{number:02}", ready=False) for number in range(53)]
    records = {of.name: entry(of, "Failed", reason="Error") for of in bad}
    given = snapshot(task(), [*reversed(bad), *reversed(away)], entries=records)
    found = status_of(given, plan(given), Outcome())
    assert [one.node_name for one in found.failed_nodes] == [f"bad-{number:02}" for number in range(50)]
    assert [one.node_name for one in found.blocked_nodes] == [f"away-{number:02}" for number in range(50)]
    assert (found.failed_nodes_omitted, found.blocked_nodes_omitted) == (2, 3)


def test_a_blocked_node_that_got_its_pod_is_blocked_no_more() -> None:
    refused = {
        A.uid: RefusedPod("no Pods here " * 30, NOW - 50, NOW - 1),
        B.uid: RefusedPod("no", NOW - 50, NOW + 9),
    }
    given = snapshot(task(parallelism=2), [A, B, C], entries={"c": entry(C)}, refused=refused)
    made = plan(given)
    before = status_of(given, made, Outcome())
    assert (before.active, before.pending, before.blocked, before.start_time) == (0, 0, 2, None)
    assert before.blocked_nodes[0].message == ("no Pods here " * 30)[:200]
    after = status_of(given, made, Outcome(created=1, started=frozenset("a")))
    assert (after.active, after.pending, after.blocked) == (1, 0, 1)
    assert [one.node_name for one in after.blocked_nodes] == ["b"]
    assert after.slots == SlotStatus(2, 1, (Slot("a", "Running", format_time(NOW)),))


def test_a_rollout_keeps_the_time_at_which_it_started() -> None:
    began = format_time(NOW - 500)
    under_way = Status(current_revision=REVISION, start_time=began)
    assert status(snapshot(task(status=under_way), [A], [pod(A)])).start_time == began
    other = Status(current_revision="other", start_time=began)
    assert status(snapshot(task(status=other), [A], [pod(A, revision="other")])).start_time == format_time(
        NOW
    )


# ---------------------------------------------------------------- the next pass

LEDGER, DELETION = Reason.LEDGER_WRITE_REFUSED, Reason.POD_DELETION_REFUSED


@pytest.mark.parametrize(
    ("wake", "more", "refused", "flush_at", "expected"),
    [
        pytest.param(0.0, False, "", 0.0, None, id="nothing to wait for"),
        pytest.param(NOW + 5, False, "", 0.0, 5.0, id="at the plan's time"),
        pytest.param(NOW, False, "", 0.0, MIN_DELAY, id="due now"),
        pytest.param(NOW, False, "", NOW + 0.5, 0.5, id="due, when the ledger may be written"),
        pytest.param(NOW, False, LEDGER, 0.0, None, id="due and refused: by the backoff alone"),
        pytest.param(NOW, False, DELETION, 0.0, MIN_DELAY, id="due, and a deletion refused"),
        pytest.param(NOW, False, DELETION, NOW + 0.5, 0.5, id="put off, and a deletion refused"),
        pytest.param(NOW + 5, False, LEDGER, 0.0, 5.0, id="others keep their time"),
        pytest.param(NOW, True, LEDGER, 0.0, REFUSED_DELAY, id="more, and refused"),
    ],
)
def test_when_it_is_looked_at_again(
    wake: float, more: bool, refused: str, flush_at: float, expected: float | None
) -> None:
    plan = Plan(requests=AnnotationRequests(), wake=wake)
    outcome = Outcome(refusal=WriteRefusal(refused, "no") if refused else None, more=more, flush_at=flush_at)
    assert requeue_after(plan, outcome, planned=NOW, now=NOW) == expected


@pytest.mark.parametrize("refused", ["", LEDGER, DELETION])
def test_what_came_due_during_a_slow_pass_is_not_taken_for_what_was_refused(refused: str) -> None:
    plan = Plan(requests=AnnotationRequests(), wake=NOW + 1)
    outcome = Outcome(refusal=WriteRefusal(refused, "no") if refused else None)
    assert requeue_after(plan, outcome, planned=NOW, now=NOW + 3) == MIN_DELAY
