"""Discovery and RefreshCache against the Storage Gateway double, which checks requests by AWS's model."""

from collections.abc import Sequence
from typing import Any

import pytest

from awsdoubles.gateway.server import StorageGateway
from caretaker.aws.calls import Aws as AwsCalls
from caretaker.aws.identity import ClientKey
from caretaker.s3refresh.debounce import UNKNOWN, Claim
from caretaker.s3refresh.folders import Request
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.targets.storagegateway import (
    Discover,
    SharesSpec,
    StorageGatewayShares,
    StorageGatewayTarget,
)
from testing.aws import Aws

IRELAND, OHIO = "eu-west-1", "us-east-2"


def shares_of(
    calls: AwsCalls, double: StorageGateway, regions: Sequence[str] = (IRELAND,), **spec: Any
) -> StorageGatewayShares:
    wanted = spec.pop("shares", SharesSpec(discover=Discover()))
    clients = {
        region: calls.storagegateway(ClientKey("storagegateway", region, endpoint_url=double.url))
        for region in regions
    }
    return StorageGatewayShares(clients, StorageGatewayTarget(shares=wanted, regions=tuple(regions), **spec))


def claim(*folders: str, recursive: bool = False) -> Claim:
    return Claim("c1", "me", 0.0, Request(folders, recursive), 0.0)


async def test_all_shares_of_all_gateways_and_regions_are_found(
    aws: Aws, storage_gateway: StorageGateway, calls: AwsCalls
) -> None:
    """Holes 9, 10, 11, 12 and 22: pages, chunks of ten, more than one match, prefixes, regions."""
    control, bucket = storage_gateway.control, aws.bucket("team/a")
    first, second, abroad = (control.add_gateway(region) for region in (IRELAND, IRELAND, OHIO))
    arns = {control.add_share(first, bucket=bucket, prefix=f"team/{n}/") for n in range(23)}
    arns.add(control.add_share(second, bucket=bucket, protocol="SMB"))
    arns.add(control.add_share(abroad, bucket=bucket))
    found = await shares_of(calls, storage_gateway, (IRELAND, OHIO)).discover()
    assert {share.arn for share in found.shares} == arns
    assert (found.complete, found.faults) == (True, ())
    assert {share.bucket for share in found.shares} == {bucket}
    assert {share.prefix for share in found.shares} == {"", *(f"team/{n}/" for n in range(23))}
    assert {share.group for share in found.shares} == {first, second, abroad}
    assert {share.region for share in found.shares} == {IRELAND, OHIO}


async def test_gateways_protocols_and_shares_can_be_named(
    aws: Aws, storage_gateway: StorageGateway, calls: AwsCalls
) -> None:
    control, bucket = storage_gateway.control, aws.bucket("a")
    first, second = control.add_gateway(), control.add_gateway()
    nfs, smb = (control.add_share(first, bucket=bucket, protocol=kind) for kind in ("NFS", "SMB"))
    other = control.add_share(second, bucket=bucket)

    async def arns(wanted: SharesSpec) -> set[str]:
        found = await shares_of(calls, storage_gateway, shares=wanted).discover()
        return {share.arn for share in found.shares}

    assert await arns(SharesSpec(discover=Discover(gateway_arns=(first,)))) == {nfs, smb}
    assert await arns(SharesSpec(discover=Discover(protocols=("SMB",)))) == {smb}
    assert await arns(SharesSpec(file_share_arns=(nfs, other))) == {nfs, other}


async def test_what_cannot_be_refreshed_is_told(
    aws: Aws, storage_gateway: StorageGateway, calls: AwsCalls
) -> None:
    """Hole 22: a share that is being deleted is not picked."""
    control, bucket = storage_gateway.control, aws.bucket("a")
    gateway = control.add_gateway()
    going = control.add_share(gateway, bucket=bucket, status="DELETING")
    missing = going.replace("share-", "share-0")
    found = await shares_of(
        calls, storage_gateway, shares=SharesSpec(file_share_arns=(going, missing))
    ).discover()
    assert [share.ready for share in found.shares] == [False]
    assert (
        f"{missing}: there is no such file share in eu-west-1: correct spec.target.storageGateway.shares."
        "fileShareARNs, or add its region to spec.target.storageGateway.regions"
    ) in found.faults
    assert f"{going} is not AVAILABLE" in found.faults


async def test_an_access_point_is_nobodys_until_the_spec_says_whose(
    aws: Aws, storage_gateway: StorageGateway, calls: AwsCalls
) -> None:
    control, bucket = storage_gateway.control, aws.bucket("team/a")
    point = "arn:aws:s3:eu-west-1:111122223333:accesspoint/finance"
    control.add_share(control.add_gateway(), bucket=bucket, prefix="team/", location=f"{point}/team/")
    found = await shares_of(calls, storage_gateway).discover()
    assert (found.complete, found.shares) == (False, ())
    assert "add `finance: BUCKET`" in found.faults[0]
    known = await shares_of(calls, storage_gateway, access_point_buckets={"finance": bucket}).discover()
    assert known.complete
    assert [(share.bucket, share.prefix) for share in known.shares] == [(bucket, "team/")]


@pytest.mark.parametrize("operation", ["ListFileShares", "DescribeNFSFileShares"])
async def test_a_region_that_does_not_answer_makes_the_discovery_incomplete(
    operation: str, aws: Aws, storage_gateway: StorageGateway, calls: AwsCalls
) -> None:
    control = storage_gateway.control
    control.add_share(control.add_gateway(), bucket=aws.bucket("a"))
    refused = {"status": 400, "code": "AccessDeniedException", "message": "no"}
    control.fault("refuse", operation=operation, count=None, **refused)
    found = await shares_of(calls, storage_gateway).discover()
    assert not found.complete
    assert IRELAND in found.faults[0]


async def one_share(aws: Aws, double: StorageGateway, calls: AwsCalls) -> tuple[StorageGatewayShares, Share]:
    bucket = aws.bucket("a/1", "b/2")
    double.control.add_share(double.control.add_gateway(), bucket=bucket)
    shares = shares_of(calls, double)
    (share,) = (await shares.discover()).shares
    return shares, share


async def test_a_refresh_makes_the_gateway_see_what_is_new(
    aws: Aws, storage_gateway: StorageGateway, calls: AwsCalls
) -> None:
    shares, share = await one_share(aws, storage_gateway, calls)
    aws.put(share.bucket, "a/new", "c d/ü")
    assert storage_gateway.control.differences(share.arn)
    result = await shares.refresh(share, claim("a", "/"))
    assert (result.code, bool(result.notification_id)) == ("", True)
    storage_gateway.control.wait_fresh(share.arn)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param(
            {"action": "refuse", "status": 400, "code": "InvalidGatewayRequestException", "message": "busy"},
            "InvalidGatewayRequestException",
            id="too many refreshes",
        ),
        pytest.param({"action": "lose_reply"}, UNKNOWN, id="the reply is lost"),
    ],
)
async def test_a_refusal_is_told_and_nothing_is_tried_twice(
    fault: dict[str, Any], code: str, aws: Aws, storage_gateway: StorageGateway, calls: AwsCalls
) -> None:
    """Holes 7 and 18: a failed refresh is never a success, and never two of the gateway's slots."""
    shares, share = await one_share(aws, storage_gateway, calls)
    storage_gateway.control.fault(**fault, count=None)
    result = await shares.refresh(share, claim("a", "/"))
    assert (result.code, result.claim_id) == (code, "c1")
    assert len(storage_gateway.control.calls("RefreshCache")) == 1
