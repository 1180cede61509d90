"""S3AggregatedRefreshes to create and to have refused: builders of specs."""

from typing import Any

import msgspec

from caretaker.api.s3refresh import SQSSource, TargetSpec
from caretaker.aws.identity import ClientKey
from caretaker.s3refresh.resource import Reading
from caretaker.s3refresh.target_types import TargetType
from caretaker.s3refresh.targets import registry

Spec = dict[str, Any]
REGION = "eu-west-1"
ACCOUNT = "123456789012"
QUEUE = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/events"
SHARE = f"arn:aws:storagegateway:{REGION}:{ACCOUNT}:share/share-E51FBS9C"
GATEWAY = f"arn:aws:storagegateway:{REGION}:{ACCOUNT}:gateway/sgw-12A3456B"


def refresh(**fields: Any) -> Spec:
    """The smallest spec, with `fields` of it replaced."""
    return {
        "aws": {"region": REGION},
        "source": {"sqs": {"queueURL": QUEUE}},
        "target": {"storageGateway": {"shares": {"discover": {}}}},
        **fields,
    }


def aws(**fields: Any) -> Spec:
    return refresh(aws={"region": REGION, **fields})


def sqs(**fields: Any) -> Spec:
    return refresh(source={"sqs": {"queueURL": QUEUE, **fields}})


def gateway(**fields: Any) -> Spec:
    return refresh(target={"storageGateway": {"shares": {"discover": {}}, **fields}})


def shares(**fields: Any) -> Spec:
    return gateway(shares=fields)


def completion(**fields: Any) -> Spec:
    return gateway(completion=fields)


def reading(url: str, wait: int = 20, visibility: int = 60) -> Reading:
    """How a poller reads the queue."""
    source = SQSSource(queue_url=url)
    return Reading(ClientKey("sqs", REGION), url, source, "spec.source.sqs.queueURL", wait, visibility)


def target_spec_of(target_type: TargetType) -> TargetSpec:
    """spec.target as the operator reads it."""
    (target,) = [field.type for field in msgspec.structs.fields(registry().spec) if field.name == "target"]
    made: TargetSpec = target(**{target_type.member: target_type})
    return made
