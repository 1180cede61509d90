"""Every state of an S3AggregatedRefresh that conditions tell apart, by a sentence: tables for whoever reads
them."""

from typing import Any, Final

import msgspec

from caretaker.api import conditions as c
from caretaker.api.aws import AwsSpec
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Filter, QueueStatus, Source, Spec, SQSSource, Status
from caretaker.api.times import format_time
from caretaker.aws.errors import ErrorClass
from caretaker.s3refresh.debounce import Claim, DirtyScope, Failure, InFlight, LastCall, TargetState
from caretaker.s3refresh.folders import EVERYTHING, Request
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.queue_view import QueueView
from caretaker.s3refresh.resource import FINALIZER, ParsedRefresh
from caretaker.s3refresh.snapshot import (
    Discovery,
    Malformed,
    PlanInput,
    Reception,
    Rejection,
    Setup,
    Snapshot,
)
from caretaker.s3refresh.targets.storagegateway import Discover, SharesSpec, StorageGatewayTarget
from testing.s3refreshes import target_spec_of

NOW = 1_800_000_000.0
SHARE = Share(id="share-1", arn="arn:share-1", bucket="b", group="g")
FOUND = Discovery(complete=True, shares=(SHARE,))
SPEC = Spec(
    aws=AwsSpec(region="eu-west-1"),
    source=Source(SQSSource(queue_url="https://sqs.eu-west-1.amazonaws.com/111122223333/q")),
    target=target_spec_of(StorageGatewayTarget(SharesSpec(Discover()))),
)
CALL = Request(("/",), recursive=False)
# Two dead letters, both before everything was refreshed.
LOOKED = Status(queue=QueueStatus(dlq_visible=2, dlq_covered=2, checked_at=format_time(NOW - 60)))


def view(
    *targets: TargetState,
    shares: Discovery = FOUND,
    spec: Spec | None = SPEC,
    before: Status | None = None,
    malformed_are: Malformed = "DeadLetter",
    expired: bool = False,
    flushing: bool = False,
    **more: Any,
) -> Snapshot:
    """A resource that does well, but for what is given."""
    more = {"queue": QueueView(checked=True), **more}
    setup = Setup(rejection=more.pop("rejection", None))
    reception = {name: more.pop(name) for name in Reception.__struct_fields__ if name in more}
    meta = WireMeta(name="r", namespace="ns", generation=3)
    if flushing:
        meta = msgspec.structs.replace(meta, deletion_timestamp=format_time(NOW), finalizers=[FINALIZER])
    return Snapshot(
        read=ParsedRefresh(meta, before or Status(), spec),
        setup=setup,
        reception=Reception(**{"polling": not flushing, **reception}),
        plan_input=PlanInput(
            targets=targets or (TargetState("share-1"),),
            first=False,
            discovery=shares,
            filter=Filter(),
            options=DebounceOptions(),
            owner="me",
            pass_id="p",
            now=NOW,
            suspended=True,
            malformed=malformed_are,
            expired=expired,
        ),
        **more,
    )


DIRTY = TargetState("share-1", dirty=DirtyScope(NOW, EVERYTHING))
FAILED = TargetState(
    "share-1", dirty=DirtyScope(NOW, EVERYTHING), failure=Failure(3, "AccessDenied", "no", NOW + 9)
)
# What is seen, (status, reason) of Ready, and of other conditions.
CASES: Final[dict[str, tuple[Snapshot, tuple[str, str], dict[str, tuple[str, str]]]]] = {
    "all is well": (
        view(),
        ("True", "Consuming"),
        {c.CAUGHT_UP: ("True", "UpToDate"), c.TARGETS_RESOLVED: ("True", "Resolved")},
    ),
    "not granted: events may wait that nobody has seen": (
        view(rejection=Rejection("NotGranted", "no")),
        ("False", "NotGranted"),
        {c.STALLED: ("True", "NotGranted"), c.CAUGHT_UP: ("Unknown", "NotGranted")},
    ),
    "a spec that cannot be read": (
        view(spec=None, rejection=Rejection("InvalidSpec", "spec.x")),
        ("False", "InvalidSpec"),
        {c.STALLED: ("True", "InvalidSpec")},
    ),
    "somebody else's queue": (
        view(rejection=Rejection("QueueConflict", "taken")),
        ("False", "QueueConflict"),
        {c.QUEUE_REACHABLE: ("False", "QueueConflict"), c.STALLED: ("True", "QueueConflict")},
    ),
    "suspended": (
        view(spec=msgspec.structs.replace(SPEC, suspend=True)),
        ("True", "Suspended"),
        {c.SUSPENDED: ("True", "Suspended"), c.CAUGHT_UP: ("Unknown", "Suspended")},
    ),
    "no permission to look at the queue": (
        view(queue=QueueView(problem="sqs: no", code=ErrorClass.ACCESS_DENIED.value)),
        ("False", "AccessDenied"),
        {c.QUEUE_REACHABLE: ("False", "AccessDenied"), c.RECONCILING: ("True", "AccessDenied")},
    ),
    "a queue that went": (
        view(problem="sqs: gone", code=ErrorClass.NOT_FOUND.value),
        ("False", "QueueNotFound"),
        {c.QUEUE_REACHABLE: ("False", "QueueNotFound")},
    ),
    "an SQS that fails": (
        view(problem="sqs: 500", code=ErrorClass.TRANSIENT.value),
        ("False", "QueueUnreachable"),
        {c.QUEUE_REACHABLE: ("False", "QueueUnreachable")},
    ),
    "a queue that will not do": (
        view(queue=QueueView(checked=True, fault="no dead-letter queue")),
        ("False", "QueueUnsuitable"),
        {c.STALLED: ("True", "QueueUnsuitable"), c.CAUGHT_UP: ("True", "UpToDate")},
    ),
    "just begun": (
        view(shares=Discovery(), polling=False, queue=QueueView()),
        ("False", "Starting"),
        {c.QUEUE_REACHABLE: ("Unknown", "NotChecked"), c.TARGETS_RESOLVED: ("Unknown", "NotChecked")},
    ),
    "the queue has not been looked at yet": (
        view(queue=QueueView()),
        ("False", "Starting"),
        {c.QUEUE_REACHABLE: ("Unknown", "NotChecked"), c.CAUGHT_UP: ("Unknown", "Starting")},
    ),
    "the queue is not read yet": (
        view(polling=False),
        ("False", "Starting"),
        {c.QUEUE_REACHABLE: ("True", "Reachable")},
    ),
    "discovery fails": (
        view(shares=Discovery(faults=("eu-west-1: throttled",))),
        ("False", "TargetsUnresolved"),
        {c.TARGETS_RESOLVED: ("False", "TargetsUnresolved")},
    ),
    "a share that went while it was dirty": (
        view(TargetState("share-9", dirty=DirtyScope(NOW, EVERYTHING)), TargetState("share-1")),
        ("False", "TargetGone"),
        {c.TARGETS_RESOLVED: ("False", "TargetGone"), c.CAUGHT_UP: ("False", "Waiting")},
    ),
    "nothing to refresh": (
        view(shares=Discovery(complete=True)),
        ("False", "NoTargets"),
        {c.TARGETS_RESOLVED: ("False", "NoTargets")},
    ),
    "a share that cannot be described": (
        view(shares=msgspec.structs.replace(FOUND, faults=("share-2: throttled",))),
        ("False", "TargetsUnresolved"),
        {c.CAUGHT_UP: ("Unknown", "TargetsUnresolved")},
    ),
    "dirty is not unready": (
        view(TargetState("share-1", dirty=DirtyScope(NOW, EVERYTHING))),
        ("True", "Consuming"),
        {c.CAUGHT_UP: ("False", "Waiting")},
    ),
    "a call that is being made": (
        view(TargetState("share-1", claim=Claim("c", "other", NOW, CALL, NOW))),
        ("True", "Consuming"),
        {c.CAUGHT_UP: ("False", "Refreshing")},
    ),
    "a refresh under way": (
        view(TargetState("share-1", dirty=DirtyScope(NOW, EVERYTHING), in_flight=InFlight("n", NOW, CALL))),
        ("True", "Consuming"),
        {c.CAUGHT_UP: ("False", "Refreshing")},
    ),
    "the third failure in a row": (
        view(FAILED),
        ("False", "RefreshFailing"),
        {c.CAUGHT_UP: ("False", "RefreshFailing"), c.RECONCILING: ("True", "RefreshFailing")},
    ),
    "the second": (
        view(msgspec.structs.replace(FAILED, failure=Failure(2, "Busy", "no", NOW))),
        ("True", "Consuming"),
        {c.CAUGHT_UP: ("False", "RefreshFailing")},
    ),
    "a refresh whose end was never heard of": (
        view(TargetState("share-1", last=LastCall(result="Lost"))),
        ("True", "Consuming"),
        {c.CAUGHT_UP: ("False", "CompletionLost")},
    ),
    "messages that cannot be read": (
        view(malformed="no JSON"),
        ("True", "Consuming"),
        {c.MALFORMED_MESSAGES: ("True", "Unreadable"), c.CAUGHT_UP: ("False", "Unreadable")},
    ),
    "messages of another sender, which are discarded": (
        view(malformed="no JSON", malformed_are="Discard"),
        ("True", "Consuming"),
        {c.CAUGHT_UP: ("True", "UpToDate")},
    ),
    "a backlog": (view(behind=True), ("True", "Consuming"), {c.CAUGHT_UP: ("False", "Backlog")}),
    "a backlog that was received, and waits for its refresh": (
        view(TargetState("share-1", dirty=DirtyScope(NOW, EVERYTHING)), behind=True),
        ("True", "Consuming"),
        {c.CAUGHT_UP: ("False", "Waiting")},
    ),
    "as much in flight as SQS allows": (
        view(queue=QueueView(checked=True, in_flight=100_000), reading=True),
        ("True", "Consuming"),
        {c.CAUGHT_UP: ("False", "InFlightLimit")},
    ),
    "less in flight than that": (
        view(queue=QueueView(checked=True, in_flight=99_999), reading=True),
        ("True", "Consuming"),
        {c.CAUGHT_UP: ("True", "UpToDate")},
    ),
    "messages that wait in the operator's memory": (
        view(reading=True, more=True),
        ("True", "Consuming"),
        {c.CAUGHT_UP: ("False", "Backlog")},
    ),
    "dead letters that came while the queue was read": (
        view(queue=QueueView(checked=True, dead_letters=3), reading=True, before=LOOKED),
        ("True", "Consuming"),
        {c.CAUGHT_UP: ("False", "DeadLetters")},
    ),
    "dead letters that have come before everything is refreshed": (
        view(queue=QueueView(checked=True, dead_letters=3), reading=True, before=LOOKED, expired=True),
        ("True", "Consuming"),
        {c.CAUGHT_UP: ("False", "Waiting")},
    ),
    "dead letters that were there before the resource": (
        view(queue=QueueView(checked=True, dead_letters=3), reading=True),
        ("True", "Consuming"),
        {c.CAUGHT_UP: ("True", "UpToDate")},
    ),
    "dead letters after which everything was refreshed": (
        view(queue=QueueView(checked=True, dead_letters=2), reading=True, before=LOOKED),
        ("True", "Consuming"),
        {c.CAUGHT_UP: ("True", "UpToDate")},
    ),
    "what is in the queue is not known while it cannot be read": (
        view(problem="sqs: 500", code=ErrorClass.TRANSIENT.value, behind=True),
        ("False", "QueueUnreachable"),
        {c.CAUGHT_UP: ("Unknown", "QueueUnreachable")},
    ),
    "deleted, and its last refresh is under way": (
        view(TargetState("share-1", in_flight=InFlight("n", NOW, CALL)), flushing=True),
        ("False", "Flushing"),
        {c.CAUGHT_UP: ("False", "Refreshing"), c.RECONCILING: ("True", "Flushing")},
    ),
    "deleted, and a quota refuses its Job": (
        view(DIRTY, shares=msgspec.structs.replace(FOUND, faults=("exceeded quota: q",)), flushing=True),
        ("False", "TargetsUnresolved"),
        {c.TARGETS_RESOLVED: ("False", "TargetsUnresolved"), c.CAUGHT_UP: ("False", "Waiting")},
    ),
    "deleted, and its last refresh has failed three times": (
        view(FAILED, flushing=True),
        ("False", "RefreshFailing"),
        {c.CAUGHT_UP: ("False", "RefreshFailing"), c.RECONCILING: ("True", "RefreshFailing")},
    ),
    "deleted while it is suspended": (
        view(DIRTY, spec=msgspec.structs.replace(SPEC, suspend=True), flushing=True),
        ("False", "Flushing"),
        {c.SUSPENDED: ("True", "Suspended"), c.CAUGHT_UP: ("False", "Waiting")},
    ),
    "deleted while its queue is gone, which is not read any more": (
        view(DIRTY, queue=QueueView(problem="sqs: gone", code=ErrorClass.NOT_FOUND.value), flushing=True),
        ("False", "Flushing"),
        {c.QUEUE_REACHABLE: ("False", "QueueNotFound")},
    ),
    "deleted, and not granted any more": (
        view(DIRTY, rejection=Rejection("NotGranted", "no"), flushing=True),
        ("False", "NotGranted"),
        {c.STALLED: ("True", "NotGranted")},
    ),
    "AWS takes no credentials": (
        view(queue=QueueView(problem="sqs: no", code=ErrorClass.NO_IDENTITY.value)),
        ("False", "NoIdentity"),
        {c.RECONCILING: ("True", "NoIdentity")},
    ),
    "the Secret is not there yet": (
        view(rejection=Rejection("CredentialsUnavailable", "no Secret")),
        ("False", "CredentialsUnavailable"),
        {c.RECONCILING: ("True", "CredentialsUnavailable")},
    ),
}
