"""What the conditions say, and which Events tell of their changes."""

import msgspec
import pytest

from caretaker.api import conditions as c
from caretaker.api.conditions import Event
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Resync, Status
from caretaker.api.times import format_time
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.s3refresh import conditions
from caretaker.s3refresh import plan as planning
from caretaker.s3refresh.conditions import conditions_of, queue_of, regained
from caretaker.s3refresh.debounce import Claim, DirtyScope, Failure, InFlight, LastCall, TargetState
from caretaker.s3refresh.folders import EVERYTHING, Request
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.queue_view import SOURCE, QueueView, unread
from caretaker.s3refresh.resource import RawRefresh, read
from caretaker.s3refresh.snapshot import Discovery, Plan, Rejection, Snapshot
from caretaker.s3refresh.status import given_up, status_of, transitions
from caretaker.s3refresh.targets import registry
from unit.s3refresh.states import CALL, CASES, FAILED, FOUND, NOW, SPEC, view


def said(snapshot: Snapshot) -> dict[str, tuple[str, str]]:
    """Type -> (status, reason)."""
    made = planning.plan(snapshot.plan_input)
    return {one.type: (one.status, one.reason) for one in conditions_of(snapshot, made)}


@pytest.mark.parametrize(("given", "ready", "other"), CASES.values(), ids=CASES.keys())
def test_conditions(given: Snapshot, ready: tuple[str, str], other: dict[str, tuple[str, str]]) -> None:
    found = said(given)
    assert found[c.READY] == ready
    assert {kind: found.get(kind) for kind in other} == other
    assert (c.STALLED in found) + (c.RECONCILING in found) == (ready[0] != "True")


HELD = (
    "it is being deleted, and its finalizer caretaker.dev/finalizer holds it until its last refreshes have "
    "succeeded"
)
# Of a case, what a condition says of it.
SAID: list[tuple[str, str, str]] = [
    (
        "deleted, and its last refresh is under way",
        c.READY,
        HELD,
    ),
    (
        "deleted, and a quota refuses its Job",
        c.READY,
        f"exceeded quota: q; {HELD}",
    ),
    ("all is well", c.READY, "1 target(s) are kept fresh"),
    ("all is well", c.QUEUE_REACHABLE, "the queue can be read, and will do"),
    ("all is well", c.TARGETS_RESOLVED, "1 target(s)"),
    ("all is well", c.CAUGHT_UP, "every event has been followed by a refresh"),
    ("not granted: events may wait that nobody has seen", c.READY, "no"),
    (
        "not granted: events may wait that nobody has seen",
        c.CAUGHT_UP,
        "events may wait that have not been received: no",
    ),
    ("somebody else's queue", c.QUEUE_REACHABLE, "taken"),
    ("somebody else's queue", c.STALLED, "taken"),
    ("an SQS that fails", c.RECONCILING, "sqs: 500"),
    ("suspended", c.READY, "suspended; what is dirty is kept"),
    ("suspended", c.SUSPENDED, "spec.suspend is true: nothing is received"),
    ("no permission to look at the queue", c.QUEUE_REACHABLE, "sqs: no"),
    ("a queue that will not do", c.QUEUE_REACHABLE, "no dead-letter queue"),
    ("just begun", c.READY, "the queue and the targets have not been looked at yet"),
    ("just begun", c.QUEUE_REACHABLE, "the queue has not been looked at yet"),
    ("just begun", c.TARGETS_RESOLVED, "targets have not been looked for yet"),
    ("discovery fails", c.TARGETS_RESOLVED, "eu-west-1: throttled"),
    ("a share that cannot be described", c.TARGETS_RESOLVED, "share-2: throttled"),
    (
        "a share that went while it was dirty",
        c.TARGETS_RESOLVED,
        "share-9: dirty, and not there any more; it is refreshed as soon as it is found again",
    ),
    (
        "nothing to refresh",
        c.TARGETS_RESOLVED,
        "there is nothing to refresh: no file share matches spec.target",
    ),
    ("dirty is not unready", c.CAUGHT_UP, "1 target(s) wait for their refresh"),
    ("a call that is being made", c.CAUGHT_UP, "1 target(s) are being refreshed"),
    ("the third failure in a row", c.READY, "share-1: AccessDenied: no"),
    ("the third failure in a row", c.CAUGHT_UP, "share-1: AccessDenied: no"),
    (
        "a refresh whose end was never heard of",
        c.CAUGHT_UP,
        "share-1: no completion event of the last refresh was received",
    ),
    (
        "messages that cannot be read",
        c.MALFORMED_MESSAGES,
        "messages of the last hour could not be read, the latest: no JSON",
    ),
    (
        "messages that cannot be read",
        c.CAUGHT_UP,
        "messages that could not be read may be events, the latest: no JSON",
    ),
    ("a backlog", c.CAUGHT_UP, "messages may wait in the queue to be received"),
    (
        "messages that wait in the operator's memory",
        c.CAUGHT_UP,
        "received messages wait for the next pass",
    ),
    (
        "as much in flight as SQS allows",
        c.CAUGHT_UP,
        "about 100000 messages are in flight, and SQS hands out none beyond 120000",
    ),
    (
        "dead letters that came while the queue was read",
        c.CAUGHT_UP,
        "about 1 message(s) in the dead-letter queue may be events that no refresh has followed: "
        "send them back to the queue, or purge the dead-letter queue",
    ),
]


@pytest.mark.parametrize(("case", "kind", "message"), SAID)
def test_what_a_condition_says(case: str, kind: str, message: str) -> None:
    given = CASES[case][0]
    found = c.find(tuple(conditions_of(given, planning.plan(given.plan_input))), kind)
    assert found is not None
    assert (found.message, found.observed_generation) == (message, 3)


def test_a_record_that_could_not_be_read_is_refreshed_though_targets_are_found_later() -> None:
    """A new process writes a status before it has looked for targets, and the spec has no resync on start."""
    spec = msgspec.json.encode(msgspec.structs.replace(SPEC, resync=Resync(on_start=False)))
    raw = RawRefresh(
        WireMeta(name="r", namespace="ns"), msgspec.Raw(spec), msgspec.Raw(b'{"targets": "none"}')
    )
    unknown = view(
        shares=Discovery(), queue=QueueView(), polling=False, before=read(raw, registry().spec).status
    )
    inputs = msgspec.structs.replace(unknown.plan_input, targets=())
    written = status_of(msgspec.structs.replace(unknown, plan_input=inputs), planning.plan(inputs))
    assert written.targets == ()
    raw.status = msgspec.Raw(msgspec.json.encode(written))
    found = read(raw, registry().spec)
    looked = msgspec.structs.replace(inputs, discovery=FOUND, first=found.first, resync_on_start=False)
    (target,) = planning.plan(looked).targets
    assert target.dirty == DirtyScope(NOW, EVERYTHING)
    assert unread(QueueView(checked=True), found.status.queue, NOW), "nor is it known what the queue has lost"


IN_FLIGHT = TargetState("share-1", in_flight=InFlight("n", NOW, CALL))
WITH_DIRTY = msgspec.structs.replace(IN_FLIGHT, dirty=DirtyScope(NOW, EVERYTHING))
CLAIMED = TargetState("share-1", claim=Claim("c", "me", NOW, CALL, NOW))
UNSEEN = "events may wait that have not been received"
UNFOLLOWED = f"the end of the refresh of 1 target(s) is not looked for, and {UNSEEN}"


@pytest.mark.parametrize(
    ("target", "running", "rejection", "expected"),
    [
        (IN_FLIGHT, (), None, ("Unknown", "Suspended", f"{UNFOLLOWED}: suspended; what is dirty is kept")),
        (CLAIMED, (), None, ("Unknown", "Suspended", f"{UNFOLLOWED}: suspended; what is dirty is kept")),
        (WITH_DIRTY, (), None, ("False", "Waiting", "1 target(s) wait for their refresh")),
        (CLAIMED, ("c",), None, ("False", "Refreshing", "1 target(s) are being refreshed")),
        (IN_FLIGHT, (), Rejection("NotGranted", "no"), ("Unknown", "NotGranted", f"{UNFOLLOWED}: no")),
    ],
)
def test_a_refresh_whose_end_is_not_looked_for_is_not_told_as_under_way(
    target: TargetState, running: tuple[str, ...], rejection: Rejection | None, expected: tuple[str, str, str]
) -> None:
    spec = msgspec.structs.replace(SPEC, suspend=rejection is None)
    given = view(spec=spec, rejection=rejection)
    inputs = msgspec.structs.replace(given.plan_input, running=frozenset(running))
    made = Plan(targets=(target,))
    told = c.find(tuple(conditions_of(msgspec.structs.replace(given, plan_input=inputs), made)), c.CAUGHT_UP)
    assert told is not None
    assert (told.status, told.reason, told.message) == expected


def known(*names: str) -> Discovery:
    return Discovery(complete=True, shares=tuple(Share(name, f"arn:{name}", "b") for name in names))


@pytest.mark.parametrize(
    ("number", "told"), [(3, "s2; s3"), (4, "s2; s3; s4"), (6, "s2; s3; s4; and 2 more")]
)
def test_targets_that_the_record_has_no_room_for_are_told(number: int, told: str) -> None:
    names = [f"s{at}" for at in range(number, 0, -1)]
    found = dict.fromkeys([True, False], "")
    for has_spec in found:
        given = view(
            shares=known(*names), spec=SPEC if has_spec else None, rejection=Rejection("InvalidSpec", "x")
        )
        resolved = c.find(tuple(conditions_of(given, Plan(targets=(TargetState("s1"),)))), c.TARGETS_RESOLVED)
        assert resolved is not None
        found[has_spec] = f"{resolved.reason}: {resolved.message}"
    assert found == {
        False: f"Resolved: {number} target(s)",
        True: f"TargetsUnresolved: {told}: a resource keeps 64 targets, and those that are gone while dirty "
        "count: name fewer in spec.target, and the others in a resource with a queue of its own",
    }


def test_dead_letters_are_covered_once_everything_is_refreshed() -> None:
    late = CASES["dead letters that have come before everything is refreshed"][0]
    assert queue_of(late).dlq_covered == 3


@pytest.mark.parametrize(
    ("standing", "rejection", "expected"),
    [
        ("QueueConflict", None, True),
        ("NotGranted", None, True),
        ("InvalidSpec", Rejection("CredentialsUnavailable", "no"), True),
        ("QueueConflict", Rejection("NotGranted", "no"), False),
        ("Consuming", None, False),
        ("QueueNotFound", None, False),
        ("", None, False),
        ("", Rejection("NotGranted", "no"), False),
    ],
)
def test_a_queue_is_regained_once_nothing_keeps_the_resource_from_it(
    standing: str, rejection: Rejection | None, expected: bool
) -> None:
    ready = c.Condition(c.READY, "False", standing, "x", 1)
    other = c.Condition(c.CAUGHT_UP, "Unknown", "NotGranted", "x", 1)
    before = Status(conditions=(other, ready) if standing else (other,))
    assert regained(before, rejection) is expected


def test_without_a_spec_the_record_stands() -> None:
    busy = TargetState("share-1", claim=Claim("c", "me", NOW, CALL, NOW))
    first = status_of(view(busy), planning.plan(view(busy).plan_input))
    broken = view(spec=None, before=first, rejection=Rejection("InvalidSpec", "spec.x"))
    assert status_of(broken, Plan()).targets == first.targets


def test_status_is_of_the_spec_and_the_pass() -> None:
    claimed = TargetState("share-1", claim=Claim("c", "other", NOW, CALL, NOW))
    given = view(claimed, queue=QueueView(checked=True, visible=4), reading=True)
    found = status_of(given, planning.plan(given.plan_input))
    assert (found.observed_generation, found.queue.visible) == (3, 4)
    assert {one.last_transition_time for one in found.conditions} == {format_time(NOW)}
    assert [target.phase for target in found.targets] == ["Claimed"]


LAST = LastCall(requested_at=NOW - 1, accepted_at=NOW, folders=3)


class TestEvents:
    def of(self, before: Snapshot, after: Snapshot) -> list[tuple[str, str, str]]:
        """The Events of a change."""
        old = status_of(before, planning.plan(before.plan_input))
        new = status_of(after, planning.plan(after.plan_input))
        assert transitions(new, new) == [], "a restart repeats nothing"
        return [(event.type, event.reason, event.message) for event in transitions(old, new)]

    def test_nothing_new_is_no_event(self) -> None:
        assert self.of(view(), view()) == []

    @pytest.mark.parametrize(
        ("request_", "told"),
        [
            (None, "3 folder(s)"),
            (Request(("/",), recursive=True), "everything"),
            (Request(("/",), recursive=False), "3 folder(s)"),
            (Request(("a",), recursive=True), "3 folder(s)"),
        ],
    )
    def test_a_refresh_that_was_accepted(self, request_: Request | None, told: str) -> None:
        in_flight = None if request_ is None else InFlight("n", NOW, request_)
        after = view(TargetState("share-1", in_flight=in_flight, last=LAST))
        assert self.of(view(), after) == [("Normal", "RefreshStarted", f"share-1: {told}")]

    def test_the_refresh_of_a_share_that_is_new_on_record(self) -> None:
        after = status_of(
            view(TargetState("share-1", last=LAST)),
            Plan(targets=(TargetState("share-1", last=LAST),), phases={"share-1": "Clean"}),
        )
        assert [event.reason for event in transitions(Status(), after)] == ["RefreshStarted"]

    def test_a_refresh_that_failed_is_told_once_for_each_reason(self) -> None:
        again = view(msgspec.structs.replace(FAILED, failure=Failure(4, "AccessDenied", "no", NOW + 99)))
        assert self.of(view(FAILED), again) == []
        once = view(msgspec.structs.replace(FAILED, failure=Failure(1, "Busy", "no", NOW)))
        assert self.of(view(), once) == [("Warning", "RefreshFailed", "share-1: Busy: no")]
        assert ("Warning", "RefreshFailed", "share-1: AccessDenied: no") in self.of(once, view(FAILED))

    def test_what_goes_wrong_is_told_once_and_not_by_ready_too(self) -> None:
        gone = view(problem="sqs: gone", code=ErrorClass.NOT_FOUND.value)
        assert self.of(view(), gone) == [("Warning", "QueueNotFound", "sqs: gone")]
        no = view(rejection=Rejection("NotGranted", "no"))
        assert self.of(view(), no) == [("Warning", "NotGranted", "no")]
        nothing = view(shares=Discovery(complete=True))
        assert [reason for _, reason, _ in self.of(view(), nothing)] == ["NoTargets"]

    def test_two_things_that_go_wrong_are_told_each(self) -> None:
        both = view(problem="sqs: gone", code=ErrorClass.NOT_FOUND.value, shares=Discovery(complete=True))
        assert [reason for _, reason, _ in self.of(view(), both)] == ["QueueNotFound", "NoTargets"]

    def test_what_is_not_known_yet_is_no_event(self) -> None:
        assert self.of(view(), CASES["just begun"][0]) == []
        assert self.of(view(), CASES["deleted, and its last refresh is under way"][0]) == []

    def test_what_changes_its_reason_is_told_again(self) -> None:
        gone = view(problem="sqs: gone", code=ErrorClass.NOT_FOUND.value)
        failing = view(problem="sqs: 500", code=ErrorClass.TRANSIENT.value)
        assert self.of(gone, failing) == [("Warning", "QueueUnreachable", "sqs: 500")]

    def test_a_lost_completion_and_malformed_messages(self) -> None:
        lost = view(TargetState("share-1", last=LastCall(result="Lost")))
        assert self.of(view(), lost) == [
            ("Warning", "CompletionLost", "share-1: the end of its refresh was not heard of")
        ]
        assert self.of(view(), view(malformed="x")) == [
            ("Warning", "MalformedMessages", "messages of the last hour could not be read, the latest: x")
        ]

    def test_events_that_may_have_expired(self) -> None:
        (event,) = transitions(Status(), Status(), expired=True)
        assert event == Event(
            "Warning",
            "EventsMayHaveExpired",
            "the queue was not read for long, or by another resource, or its dead-letter queue grew, or the "
            "status could not be read: everything is refreshed",
        )

    def test_a_flush_that_is_given_up(self) -> None:
        assert given_up("no Secret") == Event(
            "Warning",
            "FlushGivenUp",
            "the resource is deleted without a last refresh, and its dirty folders stay stale: no Secret",
        )


# ---------------------------------------------------------------- what a condition says of AWS's refusals


@pytest.mark.parametrize(
    ("error", "words"),
    [
        pytest.param(
            AwsError(
                ErrorClass.ACCESS_DENIED, "AccessDenied", "no", service="sqs", operation="DeleteMessageBatch"
            ),
            "spec.source.sqs.queueURL: sqs:DeleteMessageBatch: AccessDenied: no; "
            "allow sqs:DeleteMessage to the identity that spec.aws names",
            id="a permission that is missing",
        ),
        pytest.param(
            AwsError(
                ErrorClass.ACCESS_DENIED,
                "KmsAccessDenied",
                "User: u is not authorized to perform: kms:Decrypt on resource: k",
                service="sqs",
                operation="ReceiveMessage",
            ),
            "spec.source.sqs.queueURL: sqs:ReceiveMessage: KmsAccessDenied: "
            "User: u is not authorized to perform: kms:Decrypt on resource: k; "
            "allow kms:Decrypt to the identity that spec.aws names",
            id="a permission of another service that is missing",
        ),
        pytest.param(
            AwsError(ErrorClass.ACCESS_DENIED, "AccessDenied", "no", service="sts", operation="AssumeRole"),
            "spec.aws.roleARN: sts:AssumeRole: AccessDenied: no; let the operator's identity assume "
            "it in its trust policy, and allow that sts:AssumeRole",
            id="a role that may not be assumed",
        ),
        pytest.param(
            AwsError(
                ErrorClass.NOT_FOUND, "QueueDoesNotExist", "no", service="sqs", operation="ReceiveMessage"
            ),
            "spec.source.sqs.queueURL: sqs:ReceiveMessage: QueueDoesNotExist: no; "
            "correct the URL and spec.aws.region, or create the queue",
            id="no such queue",
        ),
        pytest.param(
            AwsError(ErrorClass.NO_IDENTITY, "ExpiredToken", "no", service="sqs", operation="ReceiveMessage"),
            "spec.source.sqs.queueURL: sqs:ReceiveMessage: ExpiredToken: no; "
            "give the operator credentials, or set spec.aws.roleARN or spec.aws.credentialsSecretRef",
            id="no credentials",
        ),
        pytest.param(
            AwsError(
                ErrorClass.THROTTLED, "RequestThrottled", "no", service="sqs", operation="ReceiveMessage"
            ),
            "spec.source.sqs.queueURL: sqs:ReceiveMessage: RequestThrottled: no",
            id="what time mends",
        ),
    ],
)
def test_told(error: AwsError, words: str) -> None:
    assert conditions.describe(error, SOURCE) == words
