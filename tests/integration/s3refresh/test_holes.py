"""Holes of the design that this one replaces, about services; see tests/unit/s3refresh/test_holes.py too."""

import asyncio
from pathlib import Path

from awsdoubles.envelopes import Envelope
from awsdoubles.gateway.server import StorageGateway
from awsdoubles.sqsproxy.proxy import SqsProxy
from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.aws import Aws
from testing.faults import Answer, Match
from testing.refreshing import PLURAL, TIMEOUT, Refreshing, operator

SOON = {"quietPeriod": "1s", "maxDelay": "5s"}


async def test_an_event_that_cannot_be_recorded_stays_in_the_queue(
    cluster: Cluster,
    admin: Admin,
    namespace: str,
    aws: Aws,
    storage_gateway: StorageGateway,
    sqs_proxy: SqsProxy,
    tmp_path: Path,
) -> None:
    """Hole 2: any error of DynamoDB, throttling in the very burst for one, dropped the event."""
    source = aws.source()
    refreshing = Refreshing(admin, namespace, aws, storage_gateway.control)
    share = refreshing.share(source.bucket)
    env = aws.environment(storage_gateway.url, sqs_proxy.url)
    with ApiProxy(cluster.kubeconfig, "hole-2") as proxy:
        kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")
        with operator(kubeconfig, tmp_path, env, namespace=namespace, time_scale=0.05):
            resource = await refreshing.create(source.queue, debounce=SOON)
            await resource.condition("Ready")
            await refreshing.emptied(source.queue.url)
            deleted = sqs_proxy.calls.count("DeleteMessageBatch")
            writes = Match(verb="patch", resource=PLURAL, subresource="status")
            rule = proxy.add(writes, Answer(500, "InternalError"))
            await refreshing.put(source.bucket, "a/1")
            await refreshing.until(lambda: aws.depth(source.queue.url) == (0, 1), "the event is received")
            await asyncio.to_thread(rule.wait, len(rule.hits) + 3, TIMEOUT)
            assert sqs_proxy.calls.count("DeleteMessageBatch") == deleted
            assert aws.depth(source.queue.url) == (0, 1)
            assert storage_gateway.control.calls("RefreshCache") == []
            rule.remove()
            await refreshing.refreshed(share)
            await refreshing.fresh(share)
            await refreshing.emptied(source.queue.url)


async def test_the_buckets_notifications_are_nobodys_but_their_owners(shared: Refreshing) -> None:
    """Hole 23: it put its own notification in place of all others that the bucket had."""
    aws, bucket, queue = shared.aws, shared.aws.bucket("a/0"), shared.aws.queue()
    others = {"QueueArn": aws.queue().arn, "Events": ["s3:ObjectRemoved:*"], "Id": "others"}
    ours = {"QueueArn": queue.arn, "Events": ["s3:ObjectCreated:*"], "Id": "ours"}
    aws.wiring.connect(bucket, queue, Envelope.S3)  # for the queue's policy
    configuration = {"QueueConfigurations": [others, ours]}
    aws.s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=configuration)
    before = aws.s3.get_bucket_notification_configuration(Bucket=bucket)["QueueConfigurations"]
    assert len(before) == 2
    share = shared.share(bucket)
    resource = await shared.create(queue, debounce=SOON)
    await resource.condition("Ready")
    await shared.put(bucket, "a/1")
    await shared.refreshed(share)
    await shared.fresh(share)
    await resource.edit(filter={"prefixes": ["b/"]})
    await resource.delete()
    await resource.gone()
    after = aws.s3.get_bucket_notification_configuration(Bucket=bucket)["QueueConfigurations"]
    assert after == before
