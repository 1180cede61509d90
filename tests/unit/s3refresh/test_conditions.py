"""What the conditions say, and which Events tell of their changes."""

import msgspec
import pytest

from caretaker.api import conditions as c
from caretaker.api.s3refresh import Status
from caretaker.aws.errors import ErrorClass
from caretaker.s3refresh import plan as planning
from caretaker.s3refresh.conditions import conditions_of
from caretaker.s3refresh.debounce import Claim, Failure, Last, Target
from caretaker.s3refresh.events import transitions
from caretaker.s3refresh.plan import Plan
from caretaker.s3refresh.snapshots import Refusal, View
from caretaker.s3refresh.status import status_of
from unit.s3refresh.states import CALL, CASES, FAILED, NOW, view


def said(view: View) -> dict[str, tuple[str, str]]:
    """Type -> (status, reason)."""
    made = planning.plan(view.snapshot)
    return {one.type: (one.status, one.reason) for one in conditions_of(view, made)}


@pytest.mark.parametrize(("given", "ready", "other"), CASES.values(), ids=CASES.keys())
def test_conditions(given: View, ready: tuple[str, str], other: dict[str, tuple[str, str]]) -> None:
    found = said(given)
    assert found[c.READY] == ready
    assert {kind: found.get(kind) for kind in other} == other
    assert (c.STALLED in found) + (c.RECONCILING in found) == (ready[0] != "True")


def test_without_a_spec_the_record_stands() -> None:
    busy = Target("share-1", claim=Claim("c", "me", NOW, CALL, NOW))
    first = status_of(view(busy), planning.plan(view(busy).snapshot))
    broken = view(spec=None, before=first, refusal=Refusal("InvalidSpec", "spec.x"))
    assert status_of(broken, Plan()).targets == first.targets


class TestEvents:
    def of(self, before: View, after: View) -> list[tuple[str, str]]:
        """The Events of a change, by type and reason."""
        old = status_of(before, planning.plan(before.snapshot))
        new = status_of(after, planning.plan(after.snapshot))
        assert transitions(new, new) == [], "a restart repeats nothing"
        return [(event.type, event.reason) for event in transitions(old, new)]

    def test_nothing_new_is_no_event(self) -> None:
        assert self.of(view(), view()) == []

    def test_a_refresh_that_was_accepted(self) -> None:
        after = view(Target("share-1", last=Last(requested_at=NOW - 1, accepted_at=NOW, folders=3)))
        assert self.of(view(), after) == [("Normal", "RefreshStarted")]

    def test_a_refresh_that_failed_is_told_once_for_each_reason(self) -> None:
        again = view(msgspec.structs.replace(FAILED, failure=Failure(4, "AccessDenied", "no", NOW + 99)))
        assert self.of(view(FAILED), again) == []
        once = view(msgspec.structs.replace(FAILED, failure=Failure(1, "Busy", "no", NOW)))
        assert self.of(view(), once) == [("Warning", "RefreshFailed")]
        assert ("Warning", "RefreshFailed") in self.of(once, view(FAILED))

    def test_what_goes_wrong_is_told_once_and_not_by_ready_too(self) -> None:
        gone = view(problem="sqs: gone", code=ErrorClass.NOT_FOUND.value)
        assert self.of(view(), gone) == [("Warning", "QueueNotFound")]
        assert self.of(view(), view(refusal=Refusal("NotGranted", "no"))) == [("Warning", "NotGranted")]

    def test_a_lost_completion_and_malformed_messages(self) -> None:
        lost = view(Target("share-1", last=Last(result="Lost")))
        assert self.of(view(), lost) == [("Warning", "CompletionLost")]
        assert self.of(view(), view(malformed=1, fault="x")) == [("Warning", "MalformedMessages")]

    def test_events_that_may_have_expired(self) -> None:
        (event,) = transitions(Status(), Status(), expired=True)
        assert event.reason == "EventsMayHaveExpired"
