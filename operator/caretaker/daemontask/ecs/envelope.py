"""Parses a message of the queue: a container instance and its status.

Pure. Input: the body of an EventBridge event "ECS Container Instance State Change" (ECS developer guide).
Other fields are ignored, since AWS adds fields.
"""

import json
import re
from typing import Any, Final

import msgspec

DETAIL_TYPE: Final = "ECS Container Instance State Change"
_CLUSTER: Final = re.compile(r"arn:aws[\w-]*:ecs:([a-z0-9-]+):\d*:cluster/([\w-]{1,255})")
_INSTANCE: Final = re.compile(r"arn:aws[\w-]*:ecs:[a-z0-9-]+:\d*:container-instance/[\w/-]{1,300}")
MAX_FAULT: Final = 200


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


def parse(body: str) -> Parsed:
    """The content of a message. Never raises."""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError) as error:
        return _malformed(f"no JSON: {error}")
    if not isinstance(event, dict) or not isinstance(event.get("detail-type"), str):
        return _malformed("no event of EventBridge: it has no detail-type")
    if event["detail-type"] != DETAIL_TYPE:
        return Parsed()
    detail = event.get("detail")
    return _notice(detail) if isinstance(detail, dict) else _malformed("its detail is no object")


def _notice(detail: dict[str, Any]) -> Parsed:
    texts = [detail.get(name) for name in ("clusterArn", "containerInstanceArn", "status")]
    arn, instance, status = (text if isinstance(text, str) else "" for text in texts)
    cluster = _CLUSTER.fullmatch(arn)
    if cluster is None:
        return _malformed(f"detail.clusterArn is no cluster's ARN: {arn}")
    if not _INSTANCE.fullmatch(instance):
        return _malformed(f"detail.containerInstanceArn is no container instance's ARN: {instance}")
    if not status:
        return _malformed("detail.status is missing")
    version = detail.get("version")
    number = version if isinstance(version, int) and not isinstance(version, bool) else 0
    return Parsed(Notice(cluster[1], cluster[2], instance, status, max(number, 0)))


def _malformed(fault: str) -> Parsed:
    return Parsed(malformed=fault[:MAX_FAULT])
