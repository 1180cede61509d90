"""Shares that are not there, come and go, or may not be touched: told with the field and what mends it, and
what is dirty is never dropped."""

import asyncio
from typing import Any

import pytest

from awsdoubles.sqsproxy.proxy import SqsProxy
from testbed.admin import Json
from testing.aws import Source
from testing.refreshing import TIMEOUT, Refresh, Refreshing, gateway

pytestmark = pytest.mark.slow

LATER = {"quietPeriod": "5m", "maxDelay": "10m"}  # dirty for as long as a test wants it
SOON = {"quietPeriod": "1s", "maxDelay": "1s"}
REFUSED = {"status": 400, "code": "AccessDeniedException", "message": "no", "count": None}


def of(*gateways: str, **more: Any) -> Json:
    """spec.target of the shares of these gateways."""
    return gateway(shares={"discover": {"gatewayARNs": list(gateways)}}, rediscoverEvery="10s", **more)


def dirty(found: Json) -> list[Json]:
    return [target for target in found["status"]["targets"] if target.get("dirty")]


async def one_dirty_share(shared: Refreshing) -> tuple[Source, str, Refresh]:
    """A share for whose refresh the time has not come."""
    source = shared.aws.source()
    share = shared.share(source.bucket)
    resource = await shared.create(source.queue, debounce=LATER, target=of())
    await resource.condition("Ready")
    await shared.put(source.bucket, "a/1")
    await resource.when(lambda found: bool(dirty(found)))
    await shared.emptied(source.queue.url)
    return source, share, resource


async def test_a_share_that_does_not_exist_is_told(shared: Refreshing) -> None:
    source = shared.aws.source()
    share = shared.share(source.bucket)
    unknown = share.replace("share-", "share-0")
    resource = await shared.create(source.queue, target=gateway(shares={"fileShareARNs": [share, unknown]}))
    told = await resource.condition("TargetsResolved", "False", "TargetsUnresolved")
    assert told["message"] == (
        f"{unknown}: there is no such file share in eu-west-1: correct spec.target.storageGateway.shares."
        "fileShareARNs, or add its region to spec.target.storageGateway.regions"
    )
    await resource.condition("Ready", "False", "TargetsUnresolved")
    await shared.put(source.bucket, "a/1")
    await shared.refreshed(share)  # the other one is refreshed all the same
    await shared.fresh(share)


async def test_a_gateway_without_shares_is_told(shared: Refreshing) -> None:
    empty = shared.control.add_gateway()
    resource = await shared.create(shared.aws.queue(), target=of(empty))
    told = await resource.condition("Ready", "False", "NoTargets")
    assert "no file share matches spec.target" in told["message"]


@pytest.mark.parametrize("operation", ["ListFileShares", "DescribeNFSFileShares", "DescribeSMBFileShares"])
async def test_each_permission_to_look_that_is_missing_is_named(operation: str, shared: Refreshing) -> None:
    source = shared.aws.source()
    share = shared.share(source.bucket)
    shared.share(source.bucket, protocol="SMB")
    shared.control.fault("refuse", operation=operation, **REFUSED)
    await shared.put(source.bucket, "a/1")
    resource = await shared.create(source.queue)
    told = await resource.condition("TargetsResolved", "False", "TargetsUnresolved")
    assert told["message"].startswith(f"spec.target.storageGateway in eu-west-1: storagegateway:{operation}")
    assert told["message"].endswith(f"allow storagegateway:{operation} to the identity that spec.aws names")
    await resource.condition("Ready", "False", "TargetsUnresolved")
    assert shared.aws.depth(source.queue.url) == (2, 0), "nothing is received: s3:TestEvent and the object's"
    shared.control.clear_faults()
    await shared.refreshed(share)
    await shared.fresh(share)


async def test_a_refresh_that_is_not_permitted_is_told_and_made_when_it_is(shared: Refreshing) -> None:
    """Hole 6: the article's events relied on one refresh, which may fail."""
    source = shared.aws.source()
    share = shared.share(source.bucket)
    shared.control.fault("refuse", **REFUSED)
    await shared.put(source.bucket, "a/1")
    resource = await shared.create(source.queue)
    told = await resource.condition("CaughtUp", "False", "RefreshFailing")
    assert told["message"].endswith("allow storagegateway:RefreshCache to the identity that spec.aws names")
    told = await resource.condition("Ready", "False", "RefreshFailing")  # not for one refusal
    assert share.rpartition("/")[2] in told["message"]
    assert dirty(await resource.get())
    shared.control.clear_faults()
    await resource.condition("Ready")
    await shared.refreshed(share)
    await shared.fresh(share)


async def test_a_share_that_is_deleted_while_dirty_is_told_and_its_record_kept(shared: Refreshing) -> None:
    _, share, resource = await one_dirty_share(shared)
    (before,) = dirty(await resource.get())
    shared.control.remove_share(share)
    told = await resource.condition("TargetsResolved", "False", "TargetGone")
    assert told["message"].startswith(share.rpartition("/")[2])
    await resource.condition("Ready", "False", "TargetGone")
    (kept,) = dirty(await resource.get())
    assert kept["dirty"]["since"] == before["dirty"]["since"]
    assert kept["dirty"]["all"], "what happens now is told to nobody"


async def test_a_dirty_share_that_comes_back_is_refreshed(shared: Refreshing) -> None:
    """Hole 14: the article's cache of shares was emptied under those who used it."""
    _, share, resource = await one_dirty_share(shared)
    await resource.edit(target=of(shared.control.add_gateway()))
    await resource.condition("TargetsResolved", "False", "TargetGone")
    await resource.edit(debounce=SOON)
    await resource.condition("TargetsResolved", "False", "TargetGone")
    assert shared.control.refreshes(share) == []
    await resource.edit(target=of())
    (made,) = await shared.refreshed(share)
    assert (made["folders"], made["recursive"]) == (["/"], True)
    await shared.fresh(share)
    await resource.condition("Ready")


@pytest.mark.parametrize("status", ["DELETING", "UNAVAILABLE", "UPDATING"])
async def test_a_share_that_is_not_available_waits_until_it_is(status: str, shared: Refreshing) -> None:
    source = shared.aws.source()
    share = shared.share(source.bucket, status=status)
    resource = await shared.create(source.queue, debounce=SOON, target=of())
    told = await resource.condition("TargetsResolved", "False", "TargetsUnresolved")
    assert f"{share} is not AVAILABLE" in told["message"]
    await shared.put(source.bucket, "a/1")
    await resource.when(lambda found: bool(dirty(found)))
    await shared.emptied(source.queue.url)
    assert shared.control.calls("RefreshCache") == []
    shared.control.set_status(share, "AVAILABLE")
    await shared.refreshed(share)
    await shared.fresh(share)
    await resource.condition("Ready", timeout=TIMEOUT)


async def test_the_only_share_is_refreshed_whole_when_it_comes_back(
    shared: Refreshing, sqs_proxy: SqsProxy
) -> None:
    """Hole 13: a share that the article had not found once was never looked for again. What happened while it
    was away is nobody's: the events are deleted."""
    source = shared.aws.source()
    share, elsewhere = shared.share(source.bucket), shared.control.add_gateway()
    resource = await shared.create(source.queue, debounce=SOON, target=of())
    await resource.condition("Ready")
    await shared.emptied(source.queue.url)  # what is in hand would come again in 30 s
    await resource.edit(target=of(elsewhere))
    await resource.condition("Ready", "False", "NoTargets")
    await shared.polls_over(sqs_proxy)
    await shared.put(source.bucket, "a/1")
    await shared.emptied(source.queue.url)
    await resource.edit(target=of())
    await shared.refreshed(share)
    await shared.fresh(share)


async def test_a_folder_that_the_gateway_refuses_keeps_no_other_from_being_refreshed(
    shared: Refreshing,
) -> None:
    shared.control.settings(missing_folder="refuse")
    source = shared.aws.source()
    await shared.put(source.bucket, "x/stays/1")
    share = shared.share(source.bucket)
    resource = await shared.create(source.queue, debounce=SOON)
    await resource.caught_up()
    shared.control.fault(
        "refuse", code="ThrottlingException", count=1
    )  # so that both events come before a call
    await shared.put(source.bucket, "x/gone/1")
    await asyncio.to_thread(shared.aws.s3.delete_object, Bucket=source.bucket, Key="x/gone/1")
    await shared.put(source.bucket, "a/1", "b/2")
    await shared.fresh(share)
    await resource.caught_up()
    calls = shared.control.calls("RefreshCache")
    assert "InvalidGatewayRequestException" in {call["code"] for call in calls}
    made = [(call["input"]["FolderList"], call["input"]["Recursive"]) for call in calls if not call["code"]]
    assert (["x"], True) in made, "the tree of its parent replaces it"
    assert (["/"], True) not in made[1:], "and everything was refreshed at the start only"
