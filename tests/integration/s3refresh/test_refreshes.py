"""From S3 to the gateway: objects are put through S3 itself, and the share shows them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from awsdoubles.envelopes import Envelope
from awsdoubles.gateway.server import StorageGateway
from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.aws import Aws
from testing.refreshing import Refreshing, operator


@pytest.fixture
async def refreshing(
    cluster: Cluster,
    admin: Admin,
    namespace: str,
    aws: Aws,
    storage_gateway: StorageGateway,
    tmp_path: Path,
) -> AsyncIterator[Refreshing]:
    env = aws.environment(storage_gateway.url)
    with operator(cluster.kubeconfig, tmp_path, env, namespace=namespace) as started:
        yield Refreshing(admin, namespace, aws, storage_gateway.control)
        print("\n".join(started.lines))


@pytest.mark.parametrize("envelope", list(Envelope))
async def test_many_objects_become_one_refresh_of_the_right_folders(
    envelope: Envelope, refreshing: Refreshing
) -> None:
    source = refreshing.aws.source(envelope)
    gateway = refreshing.control.add_gateway()
    share = refreshing.control.add_share(gateway, bucket=source.bucket)
    resource = await refreshing.create(source.queue)
    await resource.condition("Ready")
    keys = [f"in/2026/{n % 4}/{n}.csv" for n in range(100)]
    await asyncio.to_thread(refreshing.aws.put, source.bucket, *keys)
    await resource.when(lambda r: any(t.get("last") for t in r["status"]["targets"]))
    await resource.condition("CaughtUp")
    await asyncio.to_thread(refreshing.control.wait_fresh, share)
    (made,) = refreshing.control.refreshes(share)
    assert set(made["folders"]) == {"/", "in", "in/2026", *(f"in/2026/{n}" for n in range(4))}
    assert made["recursive"] is False
