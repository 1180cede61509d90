"""Queues that will not do and queues that may not be used: each is told with the field and what mends it, and
nothing is lost meanwhile."""

import json
from typing import Any

import pytest

from awsdoubles.envelopes import DAY, Envelope, Queue
from awsdoubles.sqsproxy.proxy import SqsProxy
from awsdoubles.sqsproxy.rules import Fail, Match
from integration.s3refresh.conftest import by_name
from testbed.admin import ApiError
from testing.aws import Source
from testing.refreshing import Refreshing, gateway, sqs

pytestmark = pytest.mark.slow

FIELD = "spec.source.sqs.queueURL"


def denied(action: str) -> Fail:
    """As AWS says it; SQS names actions in lower case."""
    who = "arn:aws:iam::000000000000:user/refresher"
    words = f"User: {who} is not authorized to perform: {action.lower()} on resource: arn:aws:sqs:::q"
    return Fail(403, "AccessDenied", words)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param(
            {"source": {"sqs": {"queueURL": "https://sqs.eu-west-1.amazonaws.com/000000000000/q.fifo"}}},
            f"{FIELD} is a FIFO queue, which S3 cannot send to; use a Standard queue",
            id="a FIFO queue",
        ),
        pytest.param(
            {"source": {"sqs": {"queueURL": "https://sqs.us-east-1.amazonaws.com/000000000000/q"}}},
            f"{FIELD} is a queue of another region than spec.aws.region; set spec.aws.region",
            id="a queue of another region",
        ),
        pytest.param(
            {"debounce": {"minInterval": "59s"}},
            "spec.debounce.minInterval must be at least 60s with spec.target.storageGateway",
            id="hole 8: an interval in which a gateway does nothing",
        ),
    ],
)
async def test_what_can_be_seen_to_be_wrong_is_refused(
    spec: dict[str, Any], words: str, shared: Refreshing
) -> None:
    with pytest.raises(ApiError, match=words) as refused:
        await shared.create(shared.aws.queue(), **spec)
    assert refused.value.status == 422


async def test_a_queue_that_does_not_exist_is_told_and_read_once_it_does(shared: Refreshing) -> None:
    bucket = shared.aws.bucket("a/0")
    queue, share = shared.aws.queue(), shared.share(bucket)
    shared.aws.sqs.delete_queue(QueueUrl=queue.url)
    resource = await shared.create(queue, source={"sqs": sqs(queue, malformed="Discard")})
    told = await resource.condition("QueueReachable", "False", "QueueNotFound")
    assert told["message"].startswith(f"{FIELD}: sqs:")
    assert "create the queue" in told["message"]
    await resource.condition("Ready", "False", "QueueNotFound")
    name = queue.url.rpartition("/")[2]
    shared.aws.sqs.create_queue(QueueName=name, Attributes={"MessageRetentionPeriod": str(DAY)})
    shared.aws.wiring.connect(bucket, queue, Envelope.S3)
    await shared.put(bucket, "a/1")
    await resource.condition("Ready")
    await shared.refreshed(share)
    await shared.fresh(share)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        pytest.param({"MaximumMessageSize": "1024"}, "set it to 65536 at least", id="it loses large events"),
        pytest.param(
            {"MessageRetentionPeriod": "3600"}, "set it to 86400 at least", id="it forgets too soon"
        ),
        pytest.param({"RedrivePolicy": ""}, "add one with maxReceiveCount 5", id="no dead-letter queue"),
        pytest.param({"RedrivePolicy": "2"}, "maxReceiveCount is 2", id="dead letters after two receives"),
        pytest.param({"RedrivePolicy": "5"}, "does not exist", id="a dead-letter queue that was deleted"),
    ],
)
async def test_a_queue_that_would_lose_events_is_told_and_read_all_the_same(
    attributes: dict[str, str], words: str, shared: Refreshing
) -> None:
    source = shared.aws.source()
    queue, share = source.queue, shared.share(source.bucket)
    if receives := int(attributes.get("RedrivePolicy") or 0):
        dead = shared.aws.wiring.arn_of(queue.dead_letters)
        attributes = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": receives})}
    shared.aws.sqs.set_queue_attributes(QueueUrl=queue.url, Attributes=attributes)
    if receives == 5:
        shared.aws.sqs.delete_queue(QueueUrl=queue.dead_letters)
    resource = await shared.create(queue)
    told = await resource.condition("Ready", "False", "QueueUnsuitable")
    assert told["message"].startswith(FIELD)
    assert words in told["message"]
    await resource.condition("Stalled", reason="QueueUnsuitable")
    await shared.put(source.bucket, "a/1")
    await shared.refreshed(share)
    await shared.fresh(share)


@pytest.mark.parametrize("operation", ["GetQueueAttributes", "ReceiveMessage", "DeleteMessage"])
async def test_each_permission_that_is_missing_is_named(
    operation: str, shared: Refreshing, sqs_proxy: SqsProxy
) -> None:
    source = shared.aws.source()
    share = shared.share(source.bucket)
    rule = sqs_proxy.add(Match(f"{operation}*"), denied(f"sqs:{operation}"))
    await shared.put(source.bucket, "a/1")
    resource = await shared.create(source.queue)
    told = await resource.condition("QueueReachable", "False", "AccessDenied")
    assert told["message"].startswith(f"{FIELD}: sqs:{operation}")
    assert told["message"].endswith(f"allow sqs:{operation} to the identity that spec.aws names")
    await resource.condition("Ready", "False", "AccessDenied")
    await resource.condition("Reconciling", reason="AccessDenied")
    rule.remove()
    await shared.put(source.bucket, "a/2")  # else a message that could not be deleted comes again in 30 s
    await resource.condition("Ready")
    await shared.refreshed(share)
    await shared.fresh(share)


async def test_a_key_that_may_not_be_used_is_named(shared: Refreshing, sqs_proxy: SqsProxy) -> None:
    """A queue that is encrypted with a key of one's own: to receive from it asks for the key, too."""
    source = shared.aws.source()
    shared.share(source.bucket)
    words = "User: arn:aws:iam::1:user/o is not authorized to perform: kms:Decrypt on resource: arn:aws:kms:k"
    sqs_proxy.add(Match("ReceiveMessage"), Fail(400, "KmsAccessDenied", words))
    resource = await shared.create(source.queue)
    told = await resource.condition("QueueReachable", "False", "AccessDenied")
    assert told["message"].endswith("allow kms:Decrypt to the identity that spec.aws names")
    sqs_proxy.clear()
    await resource.condition("Ready")


async def test_a_role_that_may_not_be_assumed_is_named(shared: Refreshing, sqs_proxy: SqsProxy) -> None:
    source = shared.aws.source()
    shared.share(source.bucket)
    sqs_proxy.add(Match("AssumeRole"), denied("sts:AssumeRole"))
    role = "arn:aws:iam::000000000000:role/refresh"
    endpoints = {**shared.body(source.queue)["spec"]["aws"]["endpointURLs"], "sts": by_name(sqs_proxy.url)}
    aws = {"region": shared.aws.region, "roleARN": role, "endpointURLs": endpoints}
    resource = await shared.create(source.queue, aws=aws)
    told = await resource.condition("QueueReachable", "False", "AccessDenied")
    assert told["message"].startswith("spec.aws.roleARN: sts:AssumeRole")
    assert "trust policy" in told["message"]
    await resource.condition("TargetsResolved", "False", "TargetsUnresolved")
    sqs_proxy.clear()
    await resource.condition("Ready")


def completions(queue: Queue) -> dict[str, Any]:
    return gateway(completion={"queueURL": queue.url})


async def test_a_completion_queue_that_does_not_exist_is_told_by_its_own_field(shared: Refreshing) -> None:
    source = shared.aws.source()
    ends = shared.aws.queue()
    shared.aws.sqs.delete_queue(QueueUrl=ends.url)
    shared.share(source.bucket)
    resource = await shared.create(source.queue, target=completions(ends))
    told = await resource.condition("Ready", "False", "QueueNotFound")
    assert told["message"].startswith("spec.target.storageGateway.completion.queueURL: sqs:ReceiveMessage")


async def test_a_message_that_may_not_be_given_back_is_told(shared: Refreshing, sqs_proxy: SqsProxy) -> None:
    """The end of a refresh that is told before its call was answered waits in the queue."""
    source: Source = shared.aws.source()
    share = shared.share(source.bucket)
    shared.control.settings(completion_queue=source.queue.url)
    shared.control.fault("early_completion")
    shared.control.fault("delay", seconds=5)
    sqs_proxy.add(Match("ChangeMessageVisibilityBatch"), denied("sqs:ChangeMessageVisibility"))
    resource = await shared.create(source.queue, target=completions(source.queue))
    await resource.condition("Ready")
    await shared.put(source.bucket, "a/1")
    told = await resource.condition("QueueReachable", "False", "AccessDenied")
    assert told["message"].endswith("allow sqs:ChangeMessageVisibility to the identity that spec.aws names")
    await shared.refreshed(share)
