"""What the tasks of a resource need to know of its spec. Pure."""

from typing import Any, Final

import msgspec

from caretaker.api.s3refresh import Spec, SQSSource
from caretaker.aws.identity import Keys, Target
from caretaker.s3refresh.resource import seconds

MOST_WAIT: Final = 20  # seconds of a long poll (SQS's own limit)


class Reading(msgspec.Struct, frozen=True):
    """How a resource reads a queue. `wait` and `visibility` in seconds."""

    target: Target
    source: SQSSource
    wait: int = MOST_WAIT
    visibility: int = 60


class Setting(msgspec.Struct, frozen=True):
    """What the tasks of a resource depend on; another one starts them anew."""

    source: Reading
    completions: Reading | None
    rediscover: float  # seconds
    aim: Any  # what the target was made from


def setting_of(spec: Spec, keys: Keys | None) -> Setting:
    """The setting that a spec asks for. Raises ValueError with the field."""
    source, gateway = spec.source.sqs, spec.target.storage_gateway
    sqs = Target.of(spec.aws, "sqs", keys)
    reading = Reading(
        sqs,
        source,
        round(seconds("source.sqs.waitTime", source.wait_time)),
        round(seconds("source.sqs.visibilityTimeout", source.visibility_timeout)),
    )
    completions, every = None, "10m"
    if gateway is not None:
        every, url = gateway.rediscover_every, gateway.completion.queue_url
        if url and url != source.queue_url:
            completions = Reading(sqs, msgspec.structs.replace(source, queue_url=url, envelope="Auto"))
    rediscover = seconds("target.storageGateway.rediscoverEvery", every)
    # Of buckets, the other targets are made.
    buckets = spec.filter.buckets if gateway is None else ()
    return Setting(reading, completions, rediscover, (spec.target, spec.aws, keys, buckets))


def whole(spec: Spec | None) -> bool:
    """Whether whole shares are refreshed, never folders."""
    gateway = spec.target.storage_gateway if spec is not None else None
    return gateway is not None and gateway.scope == "Share"


def limit_of(spec: Spec | None) -> int:
    """Refreshes at a time of one gateway; 0 = there is no gateway, and nobody's turn to wait for."""
    gateway = spec.target.storage_gateway if spec is not None else None
    return gateway.concurrency_per_gateway if gateway is not None else 0


def idempotent(spec: Spec | None) -> bool:
    """Whether calls take effect once by their claim's id. It is known without the target, which a resource
    that may not do anything does not have: its claims are not to be merged back either."""
    return spec is not None and spec.target.storage_gateway is None
