"""What the conditions say, and which Events tell of their changes."""

from typing import Any

import msgspec
import pytest

from caretaker.api import conditions as c
from caretaker.api.aws import AwsSpec
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import (
    Discover,
    Filter,
    Shares,
    Source,
    Spec,
    SQSSource,
    Status,
    StorageGatewayTarget,
    TargetSpec,
)
from caretaker.aws.errors import ErrorClass
from caretaker.s3refresh import plan as planning
from caretaker.s3refresh.conditions import conditions_of
from caretaker.s3refresh.debounce import Claim, Dirty, Failure, Last, Pace, Target
from caretaker.s3refresh.events import transitions
from caretaker.s3refresh.folders import EVERYTHING, Request
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.plan import Plan, Snapshot
from caretaker.s3refresh.queue import QueueView
from caretaker.s3refresh.resource import Read
from caretaker.s3refresh.snapshots import Refusal, View
from caretaker.s3refresh.status import status_of

NOW = 1_800_000_000.0
SHARE = Share(id="share-1", arn="arn:share-1", bucket="b", group="g")
FOUND = planning.Shares(complete=True, known=(SHARE,))
SPEC = Spec(
    aws=AwsSpec(region="eu-west-1"),
    source=Source(SQSSource(queue_url="https://sqs.eu-west-1.amazonaws.com/111122223333/q")),
    target=TargetSpec(StorageGatewayTarget(Shares(Discover()))),
)
CALL = Request(("/",), recursive=False)


def view(
    *targets: Target,
    shares: planning.Shares = FOUND,
    spec: Spec | None = SPEC,
    before: Status | None = None,
    **more: Any,
) -> View:
    """A resource that does well, but for what is given."""
    more = {"queue": QueueView(checked=True), "polling": True, **more}
    return View(
        read=Read(WireMeta(name="r", namespace="ns", generation=3), before or Status(), spec),
        snapshot=Snapshot(
            targets=targets or (Target("share-1"),),
            first=False,
            shares=shares,
            filter=Filter(),
            pace=Pace(),
            owner="me",
            pass_id="p",
            now=NOW,
            suspended=True,
        ),
        **more,
    )


def said(view: View) -> dict[str, tuple[str, str]]:
    """Type -> (status, reason)."""
    made = planning.plan(view.snapshot)
    return {one.type: (one.status, one.reason) for one in conditions_of(view, made)}


FAILED = Target("share-1", dirty=Dirty(NOW, EVERYTHING), failure=Failure(3, "AccessDenied", "no", NOW + 9))


@pytest.mark.parametrize(
    ("given", "ready", "other"),
    [
        pytest.param(view(), ("True", "Consuming"), {c.CAUGHT_UP: ("True", "UpToDate")}, id="all is well"),
        pytest.param(
            view(refusal=Refusal("NotGranted", "no")),
            ("False", "NotGranted"),
            {c.STALLED: ("True", "NotGranted")},
            id="not granted",
        ),
        pytest.param(
            view(spec=None, refusal=Refusal("InvalidSpec", "spec.x")),
            ("False", "InvalidSpec"),
            {c.STALLED: ("True", "InvalidSpec")},
            id="a spec that cannot be read",
        ),
        pytest.param(
            view(refusal=Refusal("QueueConflict", "taken")),
            ("False", "QueueConflict"),
            {c.QUEUE_REACHABLE: ("False", "QueueConflict"), c.STALLED: ("True", "QueueConflict")},
            id="somebody else's queue",
        ),
        pytest.param(
            view(spec=msgspec.structs.replace(SPEC, suspend=True)),
            ("True", "Suspended"),
            {c.SUSPENDED: ("True", "Suspended")},
            id="suspended",
        ),
        pytest.param(
            view(queue=QueueView(problem="sqs: no", code=ErrorClass.ACCESS_DENIED.value)),
            ("False", "AccessDenied"),
            {c.QUEUE_REACHABLE: ("False", "AccessDenied"), c.RECONCILING: ("True", "AccessDenied")},
            id="no permission to look at the queue",
        ),
        pytest.param(
            view(problem="sqs: gone", code=ErrorClass.NOT_FOUND.value),
            ("False", "QueueNotFound"),
            {c.QUEUE_REACHABLE: ("False", "QueueNotFound")},
            id="a queue that went",
        ),
        pytest.param(
            view(problem="sqs: 500", code=ErrorClass.TRANSIENT.value),
            ("False", "QueueUnreachable"),
            {c.QUEUE_REACHABLE: ("False", "QueueUnreachable")},
            id="an SQS that fails",
        ),
        pytest.param(
            view(queue=QueueView(checked=True, fault="no dead-letter queue")),
            ("False", "QueueUnsuitable"),
            {c.STALLED: ("True", "QueueUnsuitable")},
            id="a queue that will not do",
        ),
        pytest.param(
            view(shares=planning.Shares(), polling=False, queue=QueueView()),
            ("False", "Starting"),
            {c.QUEUE_REACHABLE: ("Unknown", "NotChecked"), c.TARGETS_RESOLVED: ("Unknown", "NotChecked")},
            id="just begun",
        ),
        pytest.param(
            view(shares=planning.Shares(faults=("eu-west-1: throttled",))),
            ("False", "TargetsUnresolved"),
            {c.TARGETS_RESOLVED: ("False", "TargetsUnresolved")},
            id="discovery fails",
        ),
        pytest.param(
            view(Target("share-9", dirty=Dirty(NOW, EVERYTHING)), Target("share-1")),
            ("False", "TargetGone"),
            {c.TARGETS_RESOLVED: ("False", "TargetGone"), c.CAUGHT_UP: ("False", "Waiting")},
            id="a share that went while it was dirty",
        ),
        pytest.param(
            view(shares=planning.Shares(complete=True)),
            ("False", "NoTargets"),
            {c.TARGETS_RESOLVED: ("False", "NoTargets")},
            id="nothing to refresh",
        ),
        pytest.param(
            view(Target("share-1", dirty=Dirty(NOW, EVERYTHING))),
            ("True", "Consuming"),
            {c.CAUGHT_UP: ("False", "Waiting")},
            id="dirty is not unready",
        ),
        pytest.param(
            view(FAILED),
            ("False", "RefreshFailing"),
            {c.CAUGHT_UP: ("False", "RefreshFailing"), c.RECONCILING: ("True", "RefreshFailing")},
            id="the third failure in a row",
        ),
        pytest.param(
            view(msgspec.structs.replace(FAILED, failure=Failure(2, "Busy", "no", NOW))),
            ("True", "Consuming"),
            {c.CAUGHT_UP: ("False", "RefreshFailing")},
            id="the second",
        ),
        pytest.param(
            view(Target("share-1", last=Last(result="Lost"))),
            ("True", "Consuming"),
            {c.CAUGHT_UP: ("False", "CompletionLost")},
            id="a refresh whose end was never heard of",
        ),
        pytest.param(
            view(malformed=2, fault="no JSON"),
            ("True", "Consuming"),
            {c.MALFORMED_MESSAGES: ("True", "Unreadable")},
            id="messages that cannot be read",
        ),
    ],
)
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
