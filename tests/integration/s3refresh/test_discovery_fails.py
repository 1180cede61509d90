"""A share that was found stays known while the gateways' service cannot be asked."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from awsdoubles.gateway.server import StorageGateway
from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.aws import Aws
from testing.refreshing import Refreshing, operator


@pytest.fixture
async def refreshing(
    cluster: Cluster, admin: Admin, namespace: str, aws: Aws, storage_gateway: StorageGateway, tmp_path: Path
) -> AsyncIterator[Refreshing]:
    env = aws.environment(storage_gateway.url)
    with operator(cluster.kubeconfig, tmp_path, env, namespace=namespace):
        yield Refreshing(admin, namespace, aws, storage_gateway.control)


async def test_events_reach_every_known_share_while_lists_are_refused(refreshing: Refreshing) -> None:
    """They were kept until the queue took them for dead where nothing else matched, and lost for this share
    where something did."""
    source, control = refreshing.aws.source(), refreshing.control
    share = control.add_share(control.add_gateway(), bucket=source.bucket)
    discovered = {"shares": {"discover": {}}, "rediscoverEvery": "10s"}
    resource = await refreshing.create(source.queue, target={"storageGateway": discovered})
    await resource.condition("Ready")
    control.fault("refuse", operation="ListFileShares", count=None, status=500, code="InternalServerError")
    await resource.condition("TargetsResolved", "False", "TargetsUnresolved")
    await asyncio.to_thread(refreshing.aws.put, source.bucket, "in/a.csv")
    await resource.when(lambda r: any(t.get("last") for t in r["status"]["targets"]))
    await asyncio.to_thread(control.wait_fresh, share)
    assert [set(made["folders"]) for made in control.refreshes(share)] == [{"/", "in"}]
    control.clear_faults()
    await resource.condition("TargetsResolved", "True", "Resolved")
    await resource.condition("CaughtUp")
