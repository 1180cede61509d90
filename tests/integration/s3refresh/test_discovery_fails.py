"""A share that was found stays known while the gateways' service cannot be asked."""

import asyncio

from testing.refreshing import Refreshing


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
