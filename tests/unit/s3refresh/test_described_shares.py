"""Listed shares have to be described: a share that a response omits does not count as deleted."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from caretaker.api.s3refresh import MAX_TARGETS
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.s3refresh.match import AccessPoint
from caretaker.s3refresh.targets.access_points import Found
from caretaker.s3refresh.targets.storagegateway import Discover, SharesSpec, StorageGatewayShares
from caretaker.s3refresh.targets.storagegateway import StorageGatewayTarget as Spec

GATEWAY = "arn:aws:storagegateway:eu-west-1:111122223333:gateway/sgw-1"


def arn(number: int) -> str:
    return f"arn:aws:storagegateway:eu-west-1:111122223333:share/share-{number}"


class Gateway:
    """Shares by NFS and SMB, by number; `untold` are missing in descriptions; `circling`: the list has no
    end."""

    def __init__(self, nfs: Sequence[int], smb: Sequence[int], untold: int = 0, *, circling: bool) -> None:
        self.kinds = dict.fromkeys(nfs, "NFS") | dict.fromkeys(smb, "SMB")
        self.untold = untold
        self.circling = circling
        self.lists = 0

    async def list_file_shares(self, **_: Any) -> Any:
        self.lists += 1
        found = [{"FileShareARN": arn(n), "FileShareType": kind} for n, kind in self.kinds.items()]
        return {"FileShareInfoList": found, **({"NextMarker": "m"} if self.circling else {})}

    def described(self, arns: Sequence[str]) -> list[dict[str, str]]:
        common = {"GatewayARN": GATEWAY, "LocationARN": "arn:aws:s3:::media", "FileShareStatus": "AVAILABLE"}
        return [{"FileShareARN": one, **common} for one in arns if one != arn(self.untold)]

    async def describe_nfs_file_shares(self, *, FileShareARNList: Sequence[str]) -> Any:  # noqa: N803
        return {"NFSFileShareInfoList": self.described(FileShareARNList)}

    async def describe_smb_file_shares(self, *, FileShareARNList: Sequence[str]) -> Any:  # noqa: N803
        return {"SMBFileShareInfoList": self.described(FileShareARNList)}


@pytest.mark.parametrize(
    ("untold", "circling", "told"),
    [
        pytest.param(0, False, "", id="all are described"),
        pytest.param(2, False, f"it lacks {arn(2)}", id="one by NFS is not"),
        pytest.param(3, False, f"it lacks {arn(3)}", id="one by SMB is not"),
        pytest.param(0, True, "NextMarker leads in circles", id="the list has no end"),
    ],
)
async def test_discovery_is_complete_only_with_every_share(untold: int, circling: bool, told: str) -> None:
    client = Gateway([1, 2], [3], untold, circling=circling)
    spec = Spec(shares=SharesSpec(discover=Discover()))
    found = await StorageGatewayShares({"eu-west-1": client}, spec).discover()  # type: ignore[dict-item]
    assert found.complete is not bool(told)
    assert any("UnreadableAnswer" in fault and told in fault for fault in found.faults) is bool(told)
    assert client.lists <= 2
    if not told:
        assert {share.arn for share in found.shares} == {arn(1), arn(2), arn(3)}
        assert msgspec.structs.replace(found, shares=()).faults == ()


@pytest.mark.parametrize(
    ("member", "name"),
    [
        ("FileShareId", "share-1/../x"),
        ("FileShareId", "share-" + "1" * 100),
        ("GatewayARN", "arn:aws:storagegateway:eu-west-1:111122223333:gateway/"),
        ("GatewayARN", "sgw-1"),
        ("FileShareARN", "arn:aws:storagegateway:eu-west-1:111122223333:share/share-1\n"),
    ],
)
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "described"])
async def test_a_name_that_has_not_the_form_of_aws_makes_the_answer_unreadable(
    member: str, name: str, listed: bool
) -> None:
    """The endpoint may be a tenant's. Names become ids, and keys that resources share."""

    class Odd(Gateway):
        async def list_file_shares(self, **_: Any) -> Any:
            found = (await super().list_file_shares())["FileShareInfoList"]
            return {"FileShareInfoList": [one | ({member: name} if listed else {}) for one in found]}

        def described(self, arns: Sequence[str]) -> list[dict[str, str]]:
            return [one | {member: name} for one in super().described(arns)]

    client, spec = Odd([1], [], circling=False), Spec(shares=SharesSpec(discover=Discover()))
    found = await StorageGatewayShares({"eu-west-1": client}, spec).discover()  # type: ignore[dict-item]
    assert (found.complete, found.shares) == (False, ())
    assert "UnreadableAnswer" in found.faults[0]
    assert name not in found.faults[0]


class Endless:
    """Lists another share on every page, and describes each more than once, and others, too."""

    def __init__(self, size: int, pages: int) -> None:
        self.lists = 0
        self._size, self._pages = size, pages

    async def list_file_shares(self, **_: Any) -> Any:
        self.lists += 1
        shares = [{"FileShareARN": arn(self.lists)}]
        marker = {"NextMarker": str(self.lists)} if self.lists < self._pages else {}
        return {"FileShareInfoList": shares, "ResponseMetadata": {"Bytes": self._size}, **marker}

    async def describe_nfs_file_shares(self, *, FileShareARNList: Sequence[str]) -> Any:  # noqa: N803
        common = {"GatewayARN": GATEWAY, "LocationARN": "arn:aws:s3:::media", "FileShareStatus": "AVAILABLE"}
        return {
            "NFSFileShareInfoList": [{"FileShareARN": one, **common} for one in (*FileShareARNList, "x")] * 3
        }


@pytest.mark.parametrize("regions", [("eu-west-1",), ("eu-west-1", "eu-west-2", "eu-west-3")])
async def test_of_a_list_without_an_end_16_mib_are_read_in_all_regions_together(
    regions: tuple[str, ...],
) -> None:
    """An endpoint of the spec may have any number of pages of 4 MiB."""
    client = Endless(4 << 20, 1_000_000)
    spec = Spec(shares=SharesSpec(discover=Discover()), regions=regions)
    found = await StorageGatewayShares(dict.fromkeys(regions, client), spec).discover()  # type: ignore[arg-type]
    assert not found.complete
    assert all("its pages have more than 16 MiB" in fault for fault in found.faults)
    assert client.lists == 3 + len(regions)  # 16 MiB and the items, then one page of each further region


async def test_gateways_and_shares_are_those_of_their_endpoint() -> None:
    spec, client = Spec(shares=SharesSpec(discover=Discover())), Gateway([1], [], circling=False)
    own, other = [
        (await StorageGatewayShares({"eu-west-1": client}, spec, endpoint).discover()).shares[0]  # type: ignore[dict-item]
        for endpoint in ("", "https://gateways.example")
    ]
    assert (own.endpoint, other.endpoint) == ("", "https://gateways.example")
    assert own.group != other.group
    assert own.gateway == other.gateway == GATEWAY


async def test_shares_that_were_not_asked_for_are_not_kept() -> None:
    spec = Spec(shares=SharesSpec(discover=Discover()))
    found = await StorageGatewayShares({"eu-west-1": Endless(1, 1)}, spec).discover()  # type: ignore[dict-item]
    assert [share.arn for share in found.shares] == [arn(1)]


POINT = "arn:aws:s3:eu-west-1:111122223333:accesspoint/point-{}"
FIELD = "spec.target.storageGateway.accessPointBuckets"


class Behind(Gateway):
    """The shares with these numbers reach their bucket through an access point of their own."""

    def __init__(self, nfs: Sequence[int], points: Sequence[int], status: str = "AVAILABLE") -> None:
        super().__init__(nfs, [], circling=False)
        self.points = points
        self.status = status

    def described(self, arns: Sequence[str]) -> list[dict[str, str]]:
        places = {arn(n): {"LocationARN": f"{POINT.format(n)}/in"} for n in self.points}
        return [
            one | places.get(one["FileShareARN"], {}) | {"FileShareStatus": self.status}
            for one in super().described(arns)
        ]


class Lookups:
    """Of all access points but one."""

    def __init__(self, denied: str = "") -> None:
        self.asked: list[str] = []
        self.denied = denied

    async def __call__(self, point: AccessPoint) -> Found:
        self.asked.append(point.name)
        return Found(problem="denied") if point.name == self.denied else Found(f"bucket-{point.name}")


def behind(client: Gateway, bucket_of: Lookups | None, **spec: Any) -> StorageGatewayShares:
    meant = Spec(shares=SharesSpec(discover=Discover()), **spec)
    return StorageGatewayShares({"eu-west-1": client}, meant, bucket_of=bucket_of)  # type: ignore[dict-item]


async def test_a_share_of_an_access_point_is_in_its_bucket() -> None:
    found = await behind(Behind([1, 2], [2]), Lookups()).discover()
    assert (found.complete, found.retry, found.faults) == (True, False, ())
    assert [(one.id, one.bucket, one.prefix, one.access_point) for one in found.shares] == [
        ("share-1", "media", "", ""),
        ("share-2", "bucket-point-2", "in/", POINT.format(2)),
    ]


async def test_s3_is_not_asked_for_an_access_point_that_the_spec_names() -> None:
    lookups = Lookups()
    (share,) = (
        await behind(Behind([1], [1]), lookups, access_point_buckets={"point-1": "mine"}).discover()
    ).shares
    assert (share.bucket, share.access_point, lookups.asked) == ("mine", "", [])


async def test_an_access_point_that_is_not_looked_up_keeps_no_other_share_waiting() -> None:
    found = await behind(Behind([1, 2, 3], [2, 3]), Lookups(denied="point-2")).discover()
    assert (found.complete, found.retry) == (True, True)
    assert [one.id for one in found.shares] == ["share-1", "share-3"]
    assert found.faults == (
        f"{arn(2)}: which bucket access point {POINT.format(2)} belongs to is not known: denied, or add "
        f"`point-2: BUCKET` to {FIELD}",
    )
    share = found.located({"share-2": "b/in/"}).by_id["share-2"]
    assert (share.ready, share.access_point) == (True, ""), "its record says where it is, and not S3"


async def test_without_any_share_whose_bucket_is_known_nothing_is_received() -> None:
    found = await behind(Behind([1], [1]), Lookups(denied="point-1")).discover()
    assert (found.complete, found.retry, found.shares) == (False, True, ())
    assert not found.located({}).complete
    assert not found.located({"share-1": ""}).complete, "its place is not on record"
    assert found.located({"share-1": "b/in/"}).complete


async def test_a_record_does_not_stand_for_a_region_that_does_not_answer() -> None:
    class Silent(Behind):
        async def list_file_shares(self, **_: Any) -> Any:
            raise AwsError(ErrorClass.TRANSIENT, "Unreachable", service="storagegateway")

    clients = {"eu-west-1": Behind([1], [1]), "eu-west-2": Silent([2], [])}
    spec, bucket_of = Spec(shares=SharesSpec(discover=Discover())), Lookups(denied="point-1")
    target = StorageGatewayShares(clients, spec, bucket_of=bucket_of)  # type: ignore[arg-type]
    found = (await target.discover()).located({"share-1": "b/in/"})
    assert (found.complete, [one.bucket for one in found.shares]) == (False, ["b"])


async def test_a_share_of_an_access_point_that_is_not_supported_is_refreshed_by_its_record() -> None:
    class MultiRegion(Behind):
        def described(self, arns: Sequence[str]) -> list[dict[str, str]]:
            place = {"LocationARN": "arn:aws:s3::111122223333:accesspoint/mfzwi23gnjvgw.mrap"}
            return [one | place for one in super().described(arns)]

    found = await behind(MultiRegion([1], []), Lookups()).discover()
    assert (found.complete, found.located({"share-1": "b/in/"}).by_id["share-1"].ready) == (False, True)


async def test_a_share_that_cannot_be_refreshed_now_is_no_reason_to_receive() -> None:
    found = await behind(Behind([1], [1], "DELETING"), Lookups(denied="point-1")).discover()
    assert not found.located({"share-1": "b/in/"}).complete


async def test_a_share_with_an_old_answer_is_refreshed_and_reported() -> None:
    async def old(_: AccessPoint) -> Found:
        return Found("ledger", "denied")

    numbers = range(1, MAX_TARGETS + 1)
    found = await behind(Behind(numbers, numbers), old).discover()  # type: ignore[arg-type]
    assert [(one.bucket, one.ready) for one in found.shares] == [("ledger", True)] * MAX_TARGETS
    assert (found.complete, found.retry, len(found.faults)) == (True, True, MAX_TARGETS)


async def test_an_answer_that_is_late_is_asked_for_again_soon_and_is_no_fault() -> None:
    async def late(_: AccessPoint) -> Found:
        return Found("ledger", late=True)

    found = await behind(Behind([1], [1]), late).discover()  # type: ignore[arg-type]
    assert (found.complete, found.retry, found.faults) == (True, True, ())


async def test_with_an_endpoint_of_the_spec_s3_is_not_asked() -> None:
    """It may name any access point that the identity may look up."""
    found = await behind(Behind([1, 2], [2]), None).discover()
    assert found.faults == (
        f"{arn(2)}: which bucket access point {POINT.format(2)} belongs to is not known: S3 is not asked "
        f"with spec.aws.endpointURLs.storagegateway: leave that out, or add `point-2: BUCKET` to {FIELD}",
    )


async def test_s3_is_asked_for_as_many_access_points_as_a_resource_keeps_shares() -> None:
    numbers, lookups = range(1, MAX_TARGETS + 10), Lookups()
    found = await behind(Behind(numbers, numbers), lookups).discover()
    assert len(lookups.asked) == len(found.shares) == MAX_TARGETS
    assert "S3 is asked for 64 access points of a resource at most" in found.faults[0]


async def test_a_share_that_is_not_available_stays_so_behind_an_access_point() -> None:
    found = await behind(Behind([1], [1], "DELETING"), Lookups(denied="point-1")).discover()
    assert [one.ready for one in found.located({"share-1": "b/"}).shares] == [False]
