"""Queries AWS for the queues and targets of an S3AggregatedRefresh, with the user's credentials.

Inputs: the spec, and credentials from the standard chain: neither the role nor the Secret that the spec
names, which only the operator may use. It only reads; the error of a failed call becomes part of the result
and is not raised.
"""

import asyncio
from collections.abc import Iterator

import msgspec

from caretaker.api.aws import SecretRef
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Spec, SQSSource
from caretaker.aws.calls import Aws
from caretaker.aws.identity import ClientKey
from caretaker.aws.session import Options
from caretaker.cli.s3refresh.aws_state import AwsState, QueueState
from caretaker.kube.client import KubeClient
from caretaker.s3refresh import inspection
from caretaker.s3refresh.inspection import bounded
from caretaker.s3refresh.match import of_buckets
from caretaker.s3refresh.queue_view import SOURCE, QueueView
from caretaker.s3refresh.snapshot import Discovery
from caretaker.s3refresh.target_types import target_type_of
from caretaker.s3refresh.targets import Tools, make


async def observe(spec: Spec, client: KubeClient, resource: WireMeta) -> AwsState:
    """The queues and the targets, queried concurrently."""
    own = msgspec.structs.replace(spec.aws, role_arn="", external_id="", credentials_secret_ref=SecretRef())
    spec = msgspec.structs.replace(spec, aws=own)
    async with Aws(Options(instance_identity=True)) as aws:
        shares = asyncio.create_task(_shares(spec, Tools(aws, client, resource)))
        queues = [_queue(aws, spec, field, source) for field, source in _sources(spec)]
        return AwsState(await asyncio.gather(*queues), await shares)


def _sources(spec: Spec) -> Iterator[tuple[str, SQSSource]]:
    """Each queue once, with the field that names it."""
    source, target_type = spec.source.sqs, target_type_of(spec)
    yield SOURCE, source
    if target_type.ends_url and target_type.ends_url != source.queue_url:
        yield target_type.ends_field, msgspec.structs.replace(source, queue_url=target_type.ends_url)


async def _queue(aws: Aws, spec: Spec, field: str, source: SQSSource) -> QueueState:
    view = await inspection.inspect(aws.sqs(ClientKey.of(spec.aws, "sqs")), source, QueueView())
    return QueueState(field, source.queue_url, view)


async def _shares(spec: Spec, tools: Tools) -> Discovery:
    """The targets that AWS lists; without a call where each bucket is a target."""
    target_type = target_type_of(spec)
    if target_type.of_buckets:
        return Discovery(complete=True, shares=of_buckets(spec.filter.buckets))
    return bounded(await make(spec, tools).discover(), target_type)
