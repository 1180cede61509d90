"""Listed shares have to be described: a share that a response omits does not count as deleted."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

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
