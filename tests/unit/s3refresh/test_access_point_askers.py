"""Which resources share the answers of S3 about access points, and which do not ask."""

from typing import Any

import msgspec
import pytest

from caretaker.api.objects import WireMeta
from caretaker.aws.identity import ClientKey, Keys
from caretaker.s3refresh.resource import RawRefresh, read
from caretaker.s3refresh.snapshot import Discovery
from caretaker.s3refresh.targets import Tools, make, registry
from caretaker.s3refresh.targets.access_points import AccessPoints
from testing.s3refreshes import refresh

ARN = "arn:aws:storagegateway:eu-west-1:111122223333:{}"
POINT = "arn:aws:s3:us-east-1:111122223333:accesspoint/finance"
FIRST, NEXT = Keys("AKIA1", "one"), Keys("AKIA2", "two")
SECRET = {"credentialsSecretRef": {"name": "aws"}}
ANOTHER_SECRET = {"credentialsSecretRef": {"name": "another"}}
ROLE = {"roleARN": "arn:aws:iam::111122223333:role/r"}


class Aws:
    """A share behind an access point. `asked`: the clients by which S3 Control was asked."""

    def __init__(self) -> None:
        self.asked: list[ClientKey] = []
        self.points = AccessPoints()
        self._key: Any = None

    def storagegateway(self, _: ClientKey) -> Any:
        return self

    def s3control(self, key: ClientKey) -> Any:
        self._key = key
        return self

    async def list_file_shares(self, **_: Any) -> Any:
        return {"FileShareInfoList": [{"FileShareARN": ARN.format("share/share-1")}]}

    async def describe_nfs_file_shares(self, **_: Any) -> Any:
        found = {
            "FileShareARN": ARN.format("share/share-1"),
            "GatewayARN": ARN.format("gateway/sgw-1"),
            "FileShareStatus": "AVAILABLE",
            "LocationARN": POINT,
        }
        return {"NFSFileShareInfoList": [found]}

    async def get_access_point(self, **_: Any) -> Any:
        self.asked.append(self._key)
        return {"Bucket": "ledger"}


async def found_by(service: Aws, name: str, aws: dict[str, Any], keys: Keys | None) -> Discovery:
    """The discovery of a resource with this spec.aws."""
    target = {"storageGateway": {"shares": {"discover": {}}}}
    body = refresh(aws={"region": "eu-west-1", **aws}, target=target)
    meta = WireMeta(name=name, namespace="media")
    spec = read(RawRefresh(meta, msgspec.Raw(msgspec.json.encode(body))), registry().spec).spec
    assert spec is not None
    both: tuple[Any, Any] = service, None
    return await make(spec, Tools(*both, meta, keys, access_points=service.points)).discover()


@pytest.mark.parametrize(
    ("other", "calls"),
    [
        pytest.param(("a", SECRET, NEXT), 1, id="the keys of the Secret were replaced"),
        pytest.param(("b", SECRET, FIRST), 1, id="another resource"),
        pytest.param(("b", ANOTHER_SECRET, FIRST), 2, id="another Secret"),
        pytest.param(("b", ROLE, None), 2, id="a role"),
    ],
)
async def test_resources_that_sign_alike_share_an_answer(
    other: tuple[str, dict[str, Any], Keys | None], calls: int
) -> None:
    """Keys with a session token are replaced every hour. They must not stay in memory then."""
    service = Aws()
    for resource in (("a", SECRET, FIRST), other):
        (share,) = (await found_by(service, *resource)).shares
        assert (share.bucket, share.access_point) == ("ledger", POINT)
    assert len(service.asked) == calls
    places = {(key.service, key.region, key.endpoint_url) for key in service.asked}
    assert places == {("s3control", "us-east-1", "")}, "in the region of the access point"
    assert "AKIA" not in repr(vars(service.points)), "no keys are kept"


async def test_a_resource_with_an_endpoint_for_its_gateways_does_not_ask() -> None:
    """A tenant may run the endpoint, and name any access point that the identity may look up."""
    service = Aws()
    await found_by(service, "a", ROLE, None)
    endpoint = {"endpointURLs": {"storagegateway": "https://gateways.example.com"}}
    found = await found_by(service, "b", ROLE | endpoint, None)
    assert (found.shares, len(service.asked)) == ((), 1), "nor does it see the answers of others"
