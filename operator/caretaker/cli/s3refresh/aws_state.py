"""The state of an S3AggregatedRefresh's queues and targets in AWS, and its faults.

Inputs: the spec, and credentials from the standard chain: neither the role nor the Secret that the spec
names, which only the operator may use. It only reads; the error of a failed call becomes part of the result
and is not raised.
"""

import asyncio
import re
import time
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from caretaker.api.aws import SecretRef
from caretaker.api.durations import seconds_of
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import CostStatus, Spec, SQSSource
from caretaker.aws.calls import Aws
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import ClientKey
from caretaker.aws.session import Options
from caretaker.cli.text import CREDENTIALS_ADVICE
from caretaker.kube.client import KubeClient
from caretaker.s3refresh import conditions, inspection
from caretaker.s3refresh.costs import CostInput, Count, Place, view_of
from caretaker.s3refresh.inspection import bounded
from caretaker.s3refresh.match import of_buckets
from caretaker.s3refresh.object_counts import FIELD, counted
from caretaker.s3refresh.queue_view import SOURCE, QueueView
from caretaker.s3refresh.snapshot import Discovery
from caretaker.s3refresh.target_types import target_type_of
from caretaker.s3refresh.targets import Tools, make

_TARGET: Final = "spec.target"
_NAMED: Final = re.compile(r"(spec\.[\w.]+)(?:: | (?=in [\w-]+: ))(.*)", re.DOTALL)


class QueueState(msgspec.Struct, frozen=True):
    """A queue, by the field that names it."""

    field: str
    url: str
    view: QueueView

    @property
    def fault(self) -> str:
        """Why the queue is not suitable. Only a source queue has to keep events."""
        return self.view.fault if self.field == SOURCE else ""

    @property
    def problem(self) -> str:
        """Why the queue could not be checked."""
        return _for_user(self.view.problem)


class AwsState(msgspec.Struct, frozen=True):
    """The state that AWS returned."""

    queues: list[QueueState]
    shares: Discovery
    cost: CostStatus | None = None

    @property
    def unanswered(self) -> bool:
        """Whether some call failed."""
        return not self.shares.complete or any(queue.view.problem for queue in self.queues)


async def observe(
    spec: Spec, client: KubeClient, resource: WireMeta, recorded: CostStatus | None = None
) -> AwsState:
    """The queues and the targets, queried concurrently; then the costs. CloudWatch is not asked for a bucket
    whose count in `recorded` is less than a day old."""
    own = replace(spec.aws, role_arn="", external_id="", credentials_secret_ref=SecretRef())
    spec = replace(spec, aws=own)
    async with Aws(Options(instance_identity=True)) as aws:
        shares = asyncio.create_task(_shares(spec, Tools(aws, client, resource)))
        queues = [_queue(aws, spec, field, source) for field, source in _sources(spec)]
        views, found = await asyncio.gather(*queues), await shares
        return AwsState(views, found, await _cost(aws, spec, found, recorded))


def _sources(spec: Spec) -> Iterator[tuple[str, SQSSource]]:
    """Each queue once, with the field that names it."""
    source, target_type = spec.source.sqs, target_type_of(spec)
    yield SOURCE, source
    if target_type.ends_url and target_type.ends_url != source.queue_url:
        yield target_type.ends_field, replace(source, queue_url=target_type.ends_url)


async def _queue(aws: Aws, spec: Spec, field: str, source: SQSSource) -> QueueState:
    sqs, sent = aws.sqs(ClientKey.of(spec.aws, "sqs")), target_type_of(spec).called(spec.aws.region)
    view = await inspection.inspect(sqs, source, QueueView(), sent.values())
    return QueueState(field, source.queue_url, view)


async def _shares(spec: Spec, tools: Tools) -> Discovery:
    """The targets that AWS lists; without a call where each bucket is a target."""
    target_type = target_type_of(spec)
    if target_type.of_buckets:
        by_key = target_type.by_key
        shares = of_buckets(spec.filter.buckets, target_type.prefix, by_key=by_key)
        return Discovery(complete=True, shares=shares)
    return bounded(await make(spec, tools).discover(), target_type)


async def _cost(aws: Aws, spec: Spec, found: Discovery, recorded: CostStatus | None) -> CostStatus | None:
    """By one call for each region with a bucket that is due."""
    if spec.cost is None:
        return None
    now = time.time()
    own = seconds_of("debounce.minInterval", spec.debounce.min_interval)
    inputs = CostInput(spec.cost, recorded, now, target_type_of(spec).named_buckets, own, found.complete)
    counts: dict[Place, Count] = {}
    due = view_of(inputs, found.shares, counts.get).due
    for region in {region for region, _ in due}:
        buckets = [bucket for where, bucket in due if where == region]
        client = aws.cloudwatch(ClientKey.of(spec.aws, "cloudwatch", region=region))
        try:
            answer = await counted(client, buckets, now)
        except AwsError as error:
            problem = _for_user(conditions.describe(error, FIELD))
            answer = {bucket: Count(now, failures=1, problem=problem) for bucket in buckets}
        counts |= {(region, bucket): count for bucket, count in answer.items()}
    return view_of(inputs, found.shares, counts.get).status


def faults_of(state: AwsState) -> Iterator[tuple[str, str]]:
    """(field, fault with its fix): each keeps the resource from being Ready."""
    for queue in state.queues:
        if queue.problem:
            yield queue.field, _with_field(queue.field, queue.problem)[1]
        elif queue.fault:
            yield queue.field, queue.fault
    for fault in state.shares.faults:
        yield _with_field(_TARGET, _for_user(fault))
    if state.shares.complete and not state.shares.shares and not state.shares.faults:
        yield (
            _TARGET,
            "there is nothing to refresh: no file share matches; correct it, or create the share",
        )


def _for_user(message: str) -> str:
    """The message with advice for the user, who is not the operator and uses only the region of spec.aws."""
    return message.replace(conditions.GIVE, CREDENTIALS_ADVICE).replace(
        conditions.IDENTITY, "the identity you ask with"
    )


def _with_field(field: str, message: str) -> tuple[str, str]:
    """The field that the message itself names, else `field`; and the rest of it."""
    match = _NAMED.fullmatch(message)
    return (match[1], match[2]) if match else (field, message)
