"""Whether a queue can carry S3 events without losing any, by its attributes. Pure."""

import json
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from caretaker.api.aws import ARN_FIELDS
from caretaker.api.s3refresh import QueueStatus, SQSSource
from caretaker.api.times import format_time, parse_time

ATTRIBUTES: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "FifoQueue",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
    "RedrivePolicy",
)
# An S3 event is below this; a queue with a smaller limit loses events without a word.
MIN_MESSAGE_BYTES: Final = 65536
MIN_RETENTION_SECONDS: Final = 86400
MIN_RECEIVES: Final = 5
# Of the ARN that status names; SQS's own are shorter. A tenant's endpoint may answer anything.
MAX_ARN: Final = 256
SOURCE: Final = "spec.source.sqs.queueURL"

# SQS returns no messages of a Standard queue while this many are in flight (SQS quotas). The second figure
# allows for the count being approximate.
MOST_IN_FLIGHT: Final = 120_000
NEAR_MOST_IN_FLIGHT: Final = 100_000

# checkedAt in status is renewed so often while the queue is read: a fraction of the time messages last.
RENEW_SECONDS: Final = 3600.0
RENEW_FRACTION: Final = 8


class QueueView(msgspec.Struct, frozen=True):
    """The last read attributes of a source queue."""

    checked: bool = False  # it was looked at, once at least
    # So long after it began to be read that messages received by others before have come back, or are dead.
    late: bool = False
    problem: str = ""  # why the last look failed
    code: str = ""  # the failure's reason, as conditions have it
    fault: str = ""  # why the queue will not do
    visible: int = 0
    in_flight: int = 0
    dead_letters: int | None = None  # None: there is no such queue, or it cannot be looked at
    retention: int = MIN_RETENTION_SECONDS
    dlq_arn: str = ""  # of the dead-letter queue, if it can be looked at


def unread(view: QueueView, before: QueueStatus, now: float) -> bool:
    """Whether events may be gone for good: the queue has not been read for half of the time that it keeps
    messages. `before` is the status that stands."""
    seen = parse_time(before.checked_at)
    return view.checked and seen is not None and now - seen > view.retention / 2


def died(view: QueueView, before: QueueStatus) -> bool:
    """Whether more messages have been put aside as dead: events, if earlier readers of the queue received
    them too often and had no time to write of them."""
    if before.checked_at is None or view.dead_letters is None:
        return False
    return view.dead_letters > _of_its_queue(view, before).dlq_visible


def _of_its_queue(view: QueueView, before: QueueStatus) -> QueueStatus:
    """The status that stands, without the figures of another dead-letter queue than the one looked at now."""
    if before.dlq_arn in ("", view.dlq_arn) or not view.dlq_arn:
        return before
    return replace(before, dlq_visible=0, dlq_covered=0, dlq_arn=view.dlq_arn)


def status_of(
    view: QueueView, before: QueueStatus, now: float, *, read: bool, covered: bool = False
) -> QueueStatus:
    """status.queue; `before` if nothing changed. `read`: the queue can be read now. `covered`: everything is
    refreshed, so the dead letters are covered, too."""
    if not view.checked or not read:
        return before
    own = _of_its_queue(view, before)
    dead = own.dlq_visible if view.dead_letters is None else view.dead_letters
    fresh = covered or own.checked_at is None
    figures = (view.visible, view.in_flight, dead, dead if fresh else _still_covered(own, dead))
    seen = parse_time(before.checked_at)
    due = seen is None or not 0 <= now - seen < min(RENEW_SECONDS, view.retention / RENEW_FRACTION)
    stood = (before.visible, before.in_flight, before.dlq_visible, before.dlq_covered)
    if figures == stood and own is before and not due:
        return before
    return QueueStatus(*figures, format_time(now), view.dlq_arn or before.dlq_arn)


def _still_covered(before: QueueStatus, dead: int) -> int:
    """The covered ones of so many dead letters. SQS expires the oldest first, so those that are gone count as
    covered ones first: rather one too many is reported than one too few."""
    gone = max(before.dlq_visible - dead, 0)
    return max(min(before.dlq_covered, before.dlq_visible) - gone, 0)


def uncovered(status: QueueStatus) -> int:
    """Dead letters that may be events that no refresh has followed."""
    return max(status.dlq_visible - status.dlq_covered, 0)


def view_of(found: Mapping[str, str], source: SQSSource) -> QueueView:
    """A look that succeeded, without its dead letters."""
    return QueueView(
        checked=True,
        fault=fault_of(found, source),
        visible=int(found.get("ApproximateNumberOfMessages", 0)),
        in_flight=int(found.get("ApproximateNumberOfMessagesNotVisible", 0)),
        retention=int(found.get("MessageRetentionPeriod", MIN_RETENTION_SECONDS)),
    )


def dead_letter_queue(found: Mapping[str, str]) -> str:
    """The ARN of the queue's dead-letter queue; "" when it has none."""
    try:
        arn = str(json.loads(found["RedrivePolicy"])["deadLetterTargetArn"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    fields, recordable = arn.split(":"), arn.isascii() and len(arn) <= MAX_ARN
    return arn if recordable and len(fields) == ARN_FIELDS and all(fields[4:]) else ""


def fault_of(found: Mapping[str, str], source: SQSSource) -> str:
    """Why the queue will not do, with the change to make; "" when it will. Missing attributes have SQS's
    defaults, which will do."""
    url = f"{SOURCE}: {source.queue_url}"
    if source.queue_url.endswith(".fifo") or found.get("FifoQueue") == "true":
        return f"{url} is a FIFO queue, which S3 cannot send to: use a Standard queue"
    if int(found.get("MaximumMessageSize", MIN_MESSAGE_BYTES)) < MIN_MESSAGE_BYTES:
        return (
            f"{url}: MaximumMessageSize is {found['MaximumMessageSize']}, and larger events are lost without "
            f"a word: set it to {MIN_MESSAGE_BYTES} at least"
        )
    if int(found.get("MessageRetentionPeriod", MIN_RETENTION_SECONDS)) < MIN_RETENTION_SECONDS:
        return (
            f"{url}: MessageRetentionPeriod is {found['MessageRetentionPeriod']} s, and events of a longer "
            f"outage are lost: set it to {MIN_RETENTION_SECONDS} at least"
        )
    if source.malformed == "DeadLetter":
        return _redrive(found, url)
    return ""


def no_dead_letter_queue(source: SQSSource, name: str) -> str:
    """The fault of a queue whose dead-letter queue does not exist."""
    return (
        f"{SOURCE}: the dead-letter queue {name} of {source.queue_url} does not exist, so "
        "that what cannot be read comes again until it expires: create it, or name another one in its "
        "RedrivePolicy"
    )


def refreshes_as_dead_letters(source: SQSSource, name: str) -> str:
    """The fault of a queue whose dead-letter queue is the target of refreshes."""
    return (
        f"spec.target.sqs.queueURL: {name} is the dead-letter queue of {source.queue_url}, so that refreshes "
        "count as dead letters, and are no events when they are sent back: use another queue"
    )


def _redrive(found: Mapping[str, str], url: str) -> str:
    remedy = (
        f"add one with maxReceiveCount {MIN_RECEIVES} or more, or set spec.source.sqs.malformed to Discard"
    )
    try:
        receives = int(json.loads(found["RedrivePolicy"])["maxReceiveCount"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return f"{url} has no dead-letter queue (RedrivePolicy), and malformed is DeadLetter: {remedy}"
    if receives < MIN_RECEIVES:
        return (
            f"{url}: maxReceiveCount is {receives}, so that an outage fills the dead-letter queue: {remedy}"
        )
    return ""
