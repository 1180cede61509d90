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
