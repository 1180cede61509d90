"""The part of a spec that the tasks of a resource need. Pure."""

from collections.abc import Hashable
from typing import Any, Final

import msgspec

from caretaker.api.aws import queue_arn
from caretaker.api.s3refresh import Spec, SQSSource
from caretaker.aws.identity import ClientKey, Keys, User
from caretaker.s3refresh.queue_view import SOURCE
from caretaker.s3refresh.resource import seconds
from caretaker.s3refresh.target_types import TargetType, target_type_of

MOST_WAIT: Final = 20  # seconds of a long poll (SQS's own limit)


class Reading(msgspec.Struct, frozen=True):
    """How a resource reads a queue. `wait` and `visibility` in seconds."""

    target: ClientKey
    arn: str
    source: SQSSource
    field: str  # of the spec, where its URL stands
    wait: int = MOST_WAIT
    visibility: int = 60


class WorkerConfig(msgspec.Struct, frozen=True):
    """The configuration of the tasks of a resource; a new one restarts them."""

    source: Reading
    completions: Reading | None
    rediscover: float  # seconds
    target_type: TargetType
    others: Any  # the other inputs of the target

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The source first."""
        return (self.source,) if self.completions is None else (self.source, self.completions)


def worker_config_of(spec: Spec, keys: Keys | None, user: User | None = None) -> WorkerConfig:
    """The configuration that a spec asks for. Raises ValueError with the field."""
    source, target_type = spec.source.sqs, target_type_of(spec)
    sqs = ClientKey.of(spec.aws, "sqs", keys, user=user)
    reading = Reading(
        sqs,
        queue_of(source.queue_url, spec),
        source,
        SOURCE,
        round(seconds("source.sqs.waitTime", source.wait_time)),
        round(seconds("source.sqs.visibilityTimeout", source.visibility_timeout)),
    )
    completions, url = None, target_type.ends_url
    if url and url != source.queue_url:
        ends = msgspec.structs.replace(source, queue_url=url, envelope="Auto")
        completions = Reading(sqs, queue_of(url, spec), ends, target_type.ends_field)
    buckets = spec.filter.buckets if target_type.of_buckets else ()
    return WorkerConfig(reading, completions, target_type.rediscover, target_type, (spec.aws, keys, buckets))


def queue_of(url: str, spec: Spec) -> str:
    """Its ARN: one queue has many URLs."""
    try:
        return queue_arn(url, spec.aws.region)
    except ValueError:  # of an older CRD's
        return url


def alike(spec: Spec, namespace: str, url: str) -> Hashable:
    """Equal for resources that can share one reader of a queue: the parts of spec.aws that ClientKey.of()
    uses, before a Secret's keys are read."""
    aws = spec.aws
    signer = (namespace if aws.secret_name else "", aws.secret_name, aws.role_arn, aws.external_id)
    return url, aws.region, *signer, aws.endpoint_url("sts"), aws.endpoint_url("sqs")
