"""Whose a queue is: two resources with one source, and a namespace that nothing was granted to."""

from pathlib import Path

import pytest

from awsdoubles.gateway.server import StorageGateway
from awsdoubles.sqsproxy.proxy import SqsProxy
from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.aws import Aws
from testing.refreshing import ALL, Refreshing, gateway, grants, operator

pytestmark = pytest.mark.slow

SOON = {"quietPeriod": "1s", "maxDelay": "5s"}


async def test_of_two_resources_on_one_queue_the_elder_reads_it_and_the_younger_takes_over(
    shared: Refreshing, sqs_proxy: SqsProxy
) -> None:
    source = shared.aws.source()
    share = shared.share(source.bucket)
    elder = await shared.create(source.queue, "a", debounce=SOON)
    await elder.condition("Ready")
    younger = await shared.create(source.queue, "b", debounce=SOON)
    told = await younger.condition("Ready", "False", "QueueConflict")
    assert told["message"].startswith(f"spec.source.sqs.queueURL: {elder.namespace}/{elder.name} reads this")
    assert "give each its own queue, filled by one SNS topic or rule" in told["message"]
    await younger.condition("QueueReachable", "False", "QueueConflict")
    await younger.condition("Stalled", reason="QueueConflict")

    await shared.put(source.bucket, "a/1")
    await shared.refreshed(share)
    await shared.fresh(share)
    await elder.condition("CaughtUp")
    assert (await younger.get())["status"]["targets"] == []

    await elder.delete()
    await younger.condition("Ready")
    await shared.polls_over(sqs_proxy)
    await shared.put(source.bucket, "b/1")
    await shared.refreshed(share, 2)
    await shared.fresh(share)


async def test_the_elder_that_moves_to_another_queue_leaves_it_to_the_younger(shared: Refreshing) -> None:
    queue = shared.aws.queue()
    shared.share(shared.aws.bucket("a"))
    elder = await shared.create(queue, "a")
    younger = await shared.create(queue, "b")
    await younger.condition("Ready", "False", "QueueConflict")
    await elder.edit(source={"sqs": {"queueURL": shared.aws.queue().url}})
    for one in (elder, younger):
        await one.condition("Ready")


async def test_what_another_resource_took_meanwhile_is_refreshed_when_the_queue_is_ones_own_again(
    shared: Refreshing,
) -> None:
    """The elder is led to the wrong queue by an edit: events are nobody's to it, and are deleted."""
    source, elders = shared.aws.source(), shared.aws.queue()
    share = shared.share(source.bucket)
    of_none = {"storageGateway": {"shares": {"fileShareARNs": [shared.share(shared.aws.bucket("x"))]}}}
    elder = await shared.create(elders, "a", debounce=SOON, target=of_none)
    await elder.condition("Ready")
    victim = await shared.create(
        source.queue, "b", debounce=SOON, target=gateway(shares={"fileShareARNs": [share]})
    )
    await victim.condition("Ready")
    await elder.edit(source={"sqs": {"queueURL": source.queue.url}})
    await victim.condition("Ready", "False", "QueueConflict")
    await elder.condition("Ready")
    await shared.put(source.bucket, "a/1")
    await shared.emptied(source.queue.url)
    assert shared.control.refreshes(share) == []
    await elder.edit(source={"sqs": {"queueURL": elders.url}})
    await victim.condition("Ready")
    (made,) = await shared.refreshed(share)
    assert (made["folders"], made["recursive"]) == (["/"], True)
    await shared.fresh(share)


async def test_a_namespace_that_nothing_was_granted_to_reads_no_queue_until_it_is(
    cluster: Cluster,
    admin: Admin,
    namespace: str,
    aws: Aws,
    storage_gateway: StorageGateway,
    tmp_path: Path,
) -> None:
    """Anybody who may create a resource could drain any queue that the operator can read."""
    source = aws.source()
    refreshing = Refreshing(admin, namespace, aws, storage_gateway.control)
    share = refreshing.share(source.bucket)
    await refreshing.put(source.bucket, "a/1")
    env = aws.environment(storage_gateway.url)
    elsewhere = {**ALL, "namespaces": ["elsewhere"], "ownIdentity": True}
    half = {"namespaces": [namespace], "queueARNs": ["arn:aws:sqs:*:*:other"], "ownIdentity": True}
    how = {"namespace": namespace, "time_scale": 0.05}
    with operator(cluster.kubeconfig, tmp_path, env, args=grants(tmp_path, elsewhere, half), **how):
        resource = await refreshing.create(source.queue, debounce=SOON)
        told = await resource.condition("Ready", "False", "NotGranted")
        assert told["message"].startswith("spec.source.sqs.queueURL: namespace ")
        assert "have it added to queueARNs of an entry" in told["message"]
        await resource.condition("Stalled", reason="NotGranted")
        assert aws.depth(source.queue.url) == (2, 0), "nothing is received: s3:TestEvent and the object's"
    assert storage_gateway.control.calls() == []
    with operator(cluster.kubeconfig, tmp_path, env, args=grants(tmp_path), **how):
        await resource.condition("Ready")
        await refreshing.refreshed(share)
        await refreshing.fresh(share)
