"""Parses a message of the queue: a container instance and its status.

Pure. Input: the body of an EventBridge event "ECS Container Instance State Change" (ECS developer guide).
Other fields are ignored, since AWS adds fields.
"""

import re
from typing import Final, TypeVar

import msgspec

DETAIL_TYPE: Final = "ECS Container Instance State Change"
_CLUSTER: Final = re.compile(r"arn:aws[\w-]*:ecs:([a-z0-9-]+):\d*:cluster/([\w-]{1,255})")
_INSTANCE: Final = re.compile(r"arn:aws[\w-]*:ecs:[a-z0-9-]+:\d*:container-instance/[\w/-]{1,300}")
MAX_FAULT: Final = 200
_ABSENT: Final = msgspec.Raw()

T = TypeVar("T")


class Notice(msgspec.Struct, frozen=True):
    """The status of a container instance. `version` grows with each of its changes; 0 = absent."""

    region: str
    cluster: str  # its name
    instance: str  # ARN
    status: str
    version: int = 0


class Parsed(msgspec.Struct, frozen=True):
    """A notice, or why the message is malformed. Neither: an event of another kind, which is ignored."""

    notice: Notice | None = None
    malformed: str = ""


class _Event(msgspec.Struct, frozen=True):
    """Of an event of EventBridge, the fields that are needed. All others are skipped without being decoded:
    a message may hold 1 MiB of them."""

    detail_type: msgspec.Raw = msgspec.field(name="detail-type", default=_ABSENT)
    detail: msgspec.Raw = _ABSENT


class _Detail(msgspec.Struct, frozen=True, rename="camel"):
    cluster_arn: msgspec.Raw = _ABSENT
    container_instance_arn: msgspec.Raw = _ABSENT
    status: msgspec.Raw = _ABSENT
    version: msgspec.Raw = _ABSENT


def parse(body: str) -> Parsed:
    """The content of a message. Never raises."""
    try:
        event = msgspec.json.decode(body, type=_Event)
    except msgspec.ValidationError:
        event = _Event()
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return _malformed(f"no JSON: {error}")
    detail_type = _field(event.detail_type, str)
    if detail_type is None:
        return _malformed("no event of EventBridge: it has no detail-type")
    if detail_type != DETAIL_TYPE:
        return Parsed()
    detail = _field(event.detail, _Detail)
    return _notice(detail) if detail is not None else _malformed("its detail is no object")


def _notice(detail: _Detail) -> Parsed:
    texts = (detail.cluster_arn, detail.container_instance_arn, detail.status)
    arn, instance, status = (_field(text, str) or "" for text in texts)
    cluster = _CLUSTER.fullmatch(arn)
    if cluster is None:
        return _malformed(f"detail.clusterArn is no cluster's ARN: {arn}")
    if not _INSTANCE.fullmatch(instance):
        return _malformed(f"detail.containerInstanceArn is no container instance's ARN: {instance}")
    if not status:
        return _malformed("detail.status is missing")
    number = _field(detail.version, int) or 0
    return Parsed(Notice(cluster[1], cluster[2], instance, status, max(number, 0)))


def _field(raw: msgspec.Raw, of: type[T]) -> T | None:
    """None: it is absent, or of another type."""
    try:
        return msgspec.json.decode(raw, type=of)
    except (msgspec.DecodeError, UnicodeError):
        return None


def _malformed(fault: str) -> Parsed:
    return Parsed(malformed=fault[:MAX_FAULT])
