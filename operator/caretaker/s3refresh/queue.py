"""Whether a queue can carry S3 events without losing any: what SQS says of it, judged. Pure."""

import json
from collections.abc import Mapping
from typing import Final

from caretaker.api.s3refresh import SQSSource

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


def fault_of(found: Mapping[str, str], source: SQSSource) -> str:
    """Why the queue will not do, with what to change; "" when it will. Attributes that are not told are SQS's
    defaults, which do."""
    url = source.queue_url
    if url.endswith(".fifo") or found.get("FifoQueue") == "true":
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


def _redrive(found: Mapping[str, str], url: str) -> str:
    mend = f"add one with maxReceiveCount {MIN_RECEIVES} or more, or set spec.source.sqs.malformed to Discard"
    try:
        policy = json.loads(found.get("RedrivePolicy") or "{}")
        receives = int(policy.get("maxReceiveCount", 0))
    except (ValueError, AttributeError, TypeError):
        receives = 0
    if not receives:
        return f"{url} has no dead-letter queue (RedrivePolicy), and malformed is DeadLetter: {mend}"
    if receives < MIN_RECEIVES:
        return f"{url}: maxReceiveCount is {receives}, so that an outage fills the dead-letter queue: {mend}"
    return ""
