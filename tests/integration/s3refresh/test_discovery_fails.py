"""A share that was found stays known while the gateways' service cannot be asked."""

import asyncio

import pytest

from testing.refreshing import Refreshing, gateway

pytestmark = pytest.mark.slow


async def test_events_reach_every_known_share_while_lists_are_refused(shared: Refreshing) -> None:
    """They were kept until the queue took them for dead where nothing else matched, and lost for this share
    where something did."""
    source, control = shared.aws.source(), shared.control
    share = control.add_share(control.add_gateway(), bucket=source.bucket)
    discovered = {"shares": {"discover": {}}, "rediscoverEvery": "10s"}
    resource = await shared.create(source.queue, target={"storageGateway": discovered})
    await resource.condition("Ready")
    control.fault("refuse", operation="ListFileShares", count=None, status=500, code="InternalServerError")
    await resource.condition("TargetsResolved", "False", "TargetsUnresolved")
    await asyncio.to_thread(shared.aws.put, source.bucket, "in/a.csv")
    await resource.when(lambda r: any(t.get("last") for t in r["status"]["targets"]))
    await asyncio.to_thread(control.wait_fresh, share)
    assert [set(made["folders"]) for made in control.refreshes(share)] == [{"/", "in"}]
    control.clear_faults()
    await resource.condition("TargetsResolved", "True", "Resolved")
    await resource.condition("CaughtUp")


async def test_a_gateway_that_is_offline_keeps_no_other_share_waiting(shared: Refreshing) -> None:
    """Before, nothing was received until all shares could be described, and no event reported that."""
    source, other, control = shared.aws.source(), shared.aws.source(), shared.control
    share, offline = shared.share(source.bucket), shared.share(other.bucket)
    shared.aws.wiring.connect(other.bucket, source.queue)
    refused = {"operation": "DescribeNFSFileShares", "share": offline, "count": None}
    control.fault("refuse", **refused)
    resource = await shared.create(
        source.queue, target=gateway(rediscoverEvery="10s"), debounce={"quietPeriod": "0s", "maxDelay": "1s"}
    )
    told = await resource.condition("TargetsResolved", "False", "TargetsUnresolved")
    assert told["message"] == f"{offline} cannot be described: its gateway may be offline"
    await shared.put(source.bucket, "a/1")
    await shared.put(other.bucket, "b/1")
    await shared.fresh(share)
    await shared.emptied(source.queue.url)

    control.clear_faults()
    await shared.fresh(offline)
    (whole,) = control.refreshes(offline)
    assert whole["recursive"], "it is new, and may have missed events"
    await resource.condition("Ready")

    control.fault("refuse", **refused)
    await resource.edit(target=gateway(rediscoverEvery="11s"))  # discovery starts anew, with only the record
    await resource.condition("TargetsResolved", "False", "TargetsUnresolved")
    await shared.put(other.bucket, "c/1")
    await resource.when(lambda found: any(t.get("dirty") for t in found["status"]["targets"]))
    control.clear_faults()
    await shared.fresh(offline)
    assert set(control.refreshes(offline)[-1]["folders"]) == {"/", "c"}


async def test_a_share_whose_bucket_was_wrong_is_refreshed_whole_when_it_is_corrected(
    shared: Refreshing,
) -> None:
    source = shared.aws.source()
    point = "arn:aws:s3:eu-west-1:111122223333:accesspoint/finance"
    share = shared.share(source.bucket, location=point)
    resource = await shared.create(source.queue, target=gateway(accessPointBuckets={"finance": "typo"}))
    await resource.condition("Ready")
    await shared.put(source.bucket, "a/1")
    await shared.emptied(source.queue.url)
    await resource.edit(target=gateway(accessPointBuckets={"finance": source.bucket}))
    await shared.fresh(share)
    (made,) = shared.control.refreshes(share)
    assert made["recursive"]
