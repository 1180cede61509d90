"""The content of an SQS message: object events of S3, by SNS or EventBridge too, and Storage Gateway's own.

Pure: the body of a message -> Parsed. Nothing is dropped in silence: a body that is no event of a known shape
is malformed, with the reason. eventTime is not read: clocks decide nothing (a skewed one could lose an
event). The input is untrusted and up to 1 MiB long: it is parsed in slices, and names that S3 does not allow
are malformed.
Shapes: https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html and
.../ev-events.html; Storage Gateway: .../filegateway/latest/files3/monitoring-file-gateway.html
"""

from collections.abc import Generator
from typing import Any, Final, Literal
from urllib.parse import unquote_plus

import msgspec

EventKind = Literal["ObjectCreated", "ObjectRemoved", "LifecycleExpiration", "Other"]
Envelope = Literal["Auto", "S3", "SNS", "EventBridge"]

_KINDS: Final[dict[str, EventKind]] = {
    "ObjectCreated": "ObjectCreated",
    "ObjectRemoved": "ObjectRemoved",
    "LifecycleExpiration": "LifecycleExpiration",
}
_UPLOADS: Final = ("Storage Gateway Object Upload Event", "Storage Gateway File Upload Event")
MAX_TOPIC: Final = 300  # characters of a topic's ARN (its name has 256 at most)
_COMPLETION: Final = "Storage Gateway Refresh Cache Event"
MAX_KEY_BYTES: Final = 1024  # of an object (S3 user guide, "Naming objects")
MAX_NAME: Final = 256  # characters of a bucket's or a principal's name; valid ones are shorter
MAX_FAULT: Final = 500  # characters of the fault of a malformed message
SLICE: Final = 64  # records that are parsed in one step


class ObjectEvent(msgspec.Struct, frozen=True):
    """One object changed. An empty key: an unknown object of the bucket."""

    kind: EventKind
    bucket: str
    key: str  # decoded
    principal: str = ""


class Completion(msgspec.Struct, frozen=True):
    """A refresh has ended. An empty id: the share's oldest one."""

    notification_id: str
    share_arn: str


class Parsed(msgspec.Struct, frozen=True):
    """A message. With none of the three it is nothing to act on, such as s3:TestEvent."""

    events: tuple[ObjectEvent, ...] = ()
    completions: tuple[Completion, ...] = ()
    malformed: str = ""  # why it cannot be read


class MalformedError(ValueError):
    """The message is not of an event source."""


def parse(body: str | bytes, envelope: Envelope = "Auto") -> Parsed:
    """The message. Completions are understood in every envelope: a queue may carry both."""
    steps = parsing(body, envelope)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            parsed: Parsed = end.value
            return parsed


def parsing(body: str | bytes, envelope: Envelope = "Auto") -> Generator[None, None, Parsed]:
    """parse() in steps of SLICE records."""
    try:
        return (yield from _parse(_object(body, "the body"), envelope, wrapped=False))
    except MalformedError as error:
        return Parsed(malformed=str(error)[:MAX_FAULT])
    except (TypeError, AttributeError, KeyError, ValueError, RecursionError) as error:  # any other shape
        return Parsed(malformed=f"not of a known shape: {type(error).__name__}: {error}"[:MAX_FAULT])


def _parse(found: dict[str, Any], envelope: Envelope, *, wrapped: bool) -> Generator[None, None, Parsed]:
    kind = _kind(found)
    if kind == "gateway":
        return _gateway(found)
    if kind == "SNS":
        return (yield from _unwrapped(found, envelope, wrapped=wrapped))
    if envelope == "SNS":
        raise MalformedError(
            "no SNS notification, although spec.source.sqs.envelope is SNS (raw delivery is S3)"
        )
    if kind == "test":
        return Parsed()
    if envelope not in ("Auto", kind):
        raise MalformedError(f"an event of {kind}, although envelope is {envelope}")
    return _bridge(found) if kind == "EventBridge" else (yield from _records(found))


def _kind(found: dict[str, Any]) -> str:
    if "Records" in found:
        return "S3"
    if found.get("Event") == "s3:TestEvent":
        return "test"
    if found.get("source") == "aws.storagegateway":
        return "gateway"
    if found.get("source") == "aws.s3":
        return "EventBridge"
    if found.get("Type") in ("Notification", "SubscriptionConfirmation", "UnsubscribeConfirmation"):
        return "SNS"
    raise MalformedError("neither Records, s3:TestEvent, an EventBridge event nor an SNS notification")


def _unwrapped(found: dict[str, Any], envelope: Envelope, *, wrapped: bool) -> Generator[None, None, Parsed]:
    if found["Type"] != "Notification":
        raise MalformedError(_subscription(found))
    if wrapped:
        raise MalformedError("an SNS notification within an SNS notification")
    if envelope in ("S3", "EventBridge"):
        raise MalformedError(f"an SNS notification, although envelope is {envelope}")
    message = found.get("Message")
    if not isinstance(message, str):
        raise MalformedError("Message is no text")
    yield
    return (yield from _parse(_object(message, "Message"), "Auto", wrapped=True))


def _subscription(found: dict[str, Any]) -> str:
    """The fault of an SNS message about the subscription itself, with the next step. If such a message were
    deleted without a report, missing events would have no visible cause."""
    given = found.get("TopicArn")
    topic = given[:MAX_TOPIC] if isinstance(given, str) else "an SNS topic"
    if found["Type"] == "UnsubscribeConfirmation":
        return f"the subscription of {topic} has ended, it sends no more events: subscribe the queue again"
    return (
        f"{topic} sends nothing until its subscription is confirmed: aws sns confirm-subscription, with the "
        "Token of this message"
    )


def _records(found: dict[str, Any]) -> Generator[None, None, Parsed]:
    records = found["Records"]
    if not isinstance(records, list):
        raise MalformedError("Records is no list")
    events = []
    for at, record in enumerate(records):
        if at % SLICE == SLICE - 1:
            yield
        events.append(_record(record, f"Records[{at}]"))
    return Parsed(events=tuple(events))


def _record(record: Any, place: str) -> ObjectEvent:
    given = _at(record, place, "eventVersion")
    version = given if isinstance(given, str) else str(given) if isinstance(given, int | float) else "no text"
    if version.partition(".")[0] != "2":
        raise MalformedError(f"{place}.eventVersion is {version[:20]}, known are 2.x")
    name = _text(record, place, "eventName").removeprefix("s3:")
    quoted = _text(record, place, "s3", "object", "key")
    identity = record.get("userIdentity")
    return _event(
        _KINDS.get(name.partition(":")[0], "Other"),
        _text(record, place, "s3", "bucket", "name"),
        _decoded(quoted, f"{place}.s3.object.key"),
        place,
        _if_text(identity.get("principalId")) if isinstance(identity, dict) else "",
    )


def _event(kind: EventKind, bucket: str, key: str, place: str = "", principal: str = "") -> ObjectEvent:
    """The event. Raises MalformedError for names that S3 does not allow."""
    where = f"{place}: " if place else ""
    if len(key) > MAX_KEY_BYTES or len(key.encode()) > MAX_KEY_BYTES:
        raise MalformedError(
            f"{where}a key of more than {MAX_KEY_BYTES} bytes, which no object has: {key[:100]}"
        )
    if len(bucket) > MAX_NAME or len(principal) > MAX_NAME:
        raise MalformedError(f"{where}a name of more than {MAX_NAME} characters")
    return ObjectEvent(kind, bucket, key, principal)


def _bridge(found: dict[str, Any]) -> Parsed:
    """EventBridge: the key comes as it is, and no principal with a role session."""
    what, bucket = _text(found, "", "detail-type"), _text(found, "", "detail", "bucket", "name")
    kind: EventKind = "Other"
    if what == "Object Created":
        kind = "ObjectCreated"
    elif what == "Object Deleted":
        expired = found["detail"].get("reason") == "Lifecycle Expiration"
        kind = "LifecycleExpiration" if expired else "ObjectRemoved"
    return Parsed(events=(_event(kind, bucket, _text(found, "", "detail", "object", "key")),))


def _gateway(found: dict[str, Any]) -> Parsed:
    """A gateway's events: the end of a refresh, or an upload, which the bucket's other gateways must see."""
    what, detail = _text(found, "", "detail-type"), found.get("detail")
    detail = detail if isinstance(detail, dict) else {}
    given = found.get("resources")
    resources = [arn for arn in given if isinstance(arn, str)] if isinstance(given, list) else []
    if what == _COMPLETION:
        arn = next((arn for arn in resources if ":share/" in arn), "")
        name = _if_text(detail.get("notification-id"))
        if not (arn or name):
            raise MalformedError("a refresh that ended, without notification-id and share")
        return Parsed(completions=(Completion(name[:MAX_NAME], arn[:MAX_NAME]),))
    if what in _UPLOADS:
        bucket = _if_text(detail.get("bucket-name")) or next(
            (arn.partition(":::")[2].partition("/")[0] for arn in resources if ":s3:::" in arn), ""
        )
        if not bucket:
            raise MalformedError("an upload without a bucket")
        return Parsed(events=(_event("ObjectCreated", bucket, _if_text(detail.get("object-key"))),))
    return Parsed()


def _if_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _object(body: str | bytes, what: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MalformedError(f"{what} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise MalformedError(f"{what} is no JSON object")
    return found


def _at(found: Any, place: str, *path: str) -> Any:
    for name in path:
        place = f"{place}.{name}".lstrip(".")
        if not isinstance(found, dict) or name not in found:
            raise MalformedError(f"{place} is missing")
        found = found[name]
    return found


def _text(found: Any, place: str, *path: str) -> str:
    value = _at(found, place, *path)
    if not isinstance(value, str) or not value:
        raise MalformedError(f"{'.'.join((place, *path)).lstrip('.')} is no text")
    return value


def _decoded(quoted: str, place: str) -> str:
    """Form encoding, as S3 and SNS have it: a plus is a space."""
    if len(quoted) > 3 * MAX_KEY_BYTES:  # a byte is quoted as three characters at most
        raise MalformedError(f"{place} is longer than any object's key: {quoted[:100]}")
    try:
        return unquote_plus(quoted, errors="strict")
    except UnicodeDecodeError as error:
        raise MalformedError(f"{place} is not UTF-8: {quoted[:100]}") from error
