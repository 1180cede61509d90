"""The Storage Gateway double's protocol: requests checked, shares found, faults carried out."""

import contextlib
import http.client
import json
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from awsdoubles.gateway.control import Control, ControlError
from awsdoubles.gateway.server import StorageGateway
from testing.aws import Aws


@pytest.fixture
def control(storage_gateway: StorageGateway) -> Control:
    return storage_gateway.control


@pytest.fixture
def client(aws: Aws, storage_gateway: StorageGateway) -> Any:
    return aws.client("storagegateway", storage_gateway.url)


@pytest.fixture
def share(aws: Aws, control: Control) -> str:
    control.settings(min_interval=0)
    return control.add_share(control.add_gateway(), bucket=aws.bucket("folder/file"))


# The double reads the scope only.
SIGNED = "AWS4-HMAC-SHA256 Credential=test/20260101/eu-west-1/storagegateway/aws4_request, Signature=0"


def refusal(call: Any, **arguments: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


INVALID = "InvalidGatewayRequestException"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"FolderList": ["f"] * 51}, "less than or equal to 50", id="51 folders"),
        pytest.param({"FolderList": []}, "greater than or equal to 1", id="no folder"),
        pytest.param({"FolderList": ["f" * 1025]}, "'folderList.1.member'", id="a path of 1,025 characters"),
        pytest.param({"FolderList": ["f", ""]}, "'folderList.2.member'", id="an empty path"),
    ],
)
def test_a_refresh_out_of_bounds_is_refused(client: Any, share: str, arguments: Any, message: str) -> None:
    """Sent past botocore's own checks, which know minima only."""
    code, text = _raw(client, "RefreshCache", {"FileShareARN": share, **arguments})
    assert code == "ValidationException"
    assert message in text


def test_a_refresh_within_bounds_is_accepted(client: Any, share: str, control: Control) -> None:
    folders = [f"{n:04d}" + "f" * 1020 for n in range(50)]
    answer = client.refresh_cache(FileShareARN=share, FolderList=folders, Recursive=False)
    assert answer["FileShareARN"] == share
    assert answer["NotificationId"]
    control.wait_idle()
    assert control.refreshes(share)[0]["listed"] == folders


@pytest.mark.parametrize("folder", ["folder/", "a//b", "./a", "a/.."])
def test_a_name_that_is_no_folder_is_refused(client: Any, share: str, folder: str) -> None:
    code, message = refusal(client.refresh_cache, FileShareARN=share, FolderList=[folder])
    assert code == INVALID
    assert "not the name of a folder" in message


def test_a_leading_slash_and_a_missing_folder_are_switches(client: Any, share: str, control: Control) -> None:
    client.refresh_cache(FileShareARN=share, FolderList=["/folder"])
    client.refresh_cache(FileShareARN=share, FolderList=["nowhere"])
    control.settings(leading_slash="refuse", missing_folder="refuse")
    assert refusal(client.refresh_cache, FileShareARN=share, FolderList=["/folder"])[0] == INVALID
    code, message = refusal(client.refresh_cache, FileShareARN=share, FolderList=["folder", "nowhere"])
    assert (code, "'nowhere'" in message) == (INVALID, True)


@pytest.mark.parametrize("signed", ["", SIGNED.replace("storagegateway", "s3")], ids=["not", "for S3"])
def test_a_request_must_be_signed_for_the_service(client: Any, signed: str) -> None:
    code, _ = _raw(client, "ListFileShares", {}, Authorization=signed)
    assert code == "MissingAuthenticationTokenException"


def test_other_operations_are_unknown(client: Any) -> None:
    assert refusal(client.list_gateways)[0] == "UnknownOperationException"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param({"FileShareArn": "x"}, "unknown member 'FileShareArn'", id="a misspelt member"),
        pytest.param({"FileShareARN": 1}, "must be a string, not int", id="a number for a string"),
        pytest.param({"Recursive": "true"}, "must be a boolean, not str", id="a string for a boolean"),
        pytest.param({"FolderList": "/"}, "must be a list, not str", id="a string for a list"),
    ],
)
def test_a_request_of_the_wrong_shape_is_not_decoded(client: Any, body: Any, message: str) -> None:
    code, text = _raw(client, "RefreshCache", body)
    assert code == "SerializationException"
    assert message in text


def test_shares_come_in_pages(aws: Aws, client: Any, control: Control) -> None:
    gateway, bucket = control.add_gateway(), aws.bucket()
    shares = [control.add_share(gateway, bucket=bucket) for _ in range(5)]
    found: list[str] = []
    more: dict[str, str] = {}
    pages = 0
    while True:
        page = client.list_file_shares(GatewayARN=gateway, Limit=2, **more)
        found += [one["FileShareARN"] for one in page["FileShareInfoList"]]
        pages += 1
        if "NextMarker" not in page:
            break
        more = {"Marker": page["NextMarker"]}
    assert (sorted(found), pages) == (sorted(shares), 3)


def test_a_client_sees_the_shares_of_its_region_and_gateway(
    aws: Aws, storage_gateway: StorageGateway, control: Control
) -> None:
    there, here, beside = (control.add_gateway(r) for r in ("us-east-1", "eu-west-1", "eu-west-1"))
    bucket = aws.bucket()
    shares = [control.add_share(gateway, bucket=bucket) for gateway in (there, here, beside)]
    client = aws.client("storagegateway", storage_gateway.url)
    listed = [one["FileShareARN"] for one in client.list_file_shares()["FileShareInfoList"]]
    assert sorted(listed) == sorted(shares[1:])
    listed = [one["FileShareARN"] for one in client.list_file_shares(GatewayARN=here)["FileShareInfoList"]]
    assert listed == [shares[1]]
    assert refusal(client.list_file_shares, GatewayARN=there)[0] == INVALID
    assert refusal(client.refresh_cache, FileShareARN=shares[0])[0] == INVALID
    client = aws.client("storagegateway", storage_gateway.url, region="us-east-1")
    listed = [one["FileShareARN"] for one in client.list_file_shares()["FileShareInfoList"]]
    assert listed == [shares[0]]


def test_a_description_tells_the_location(aws: Aws, client: Any, control: Control) -> None:
    gateway, bucket = control.add_gateway(), aws.bucket()
    access_point = "arn:aws:s3:eu-west-1:000000000000:accesspoint/photos/in/"
    whole = control.add_share(gateway, bucket=bucket)
    part = control.add_share(gateway, bucket=bucket, prefix="in/")
    behind = control.add_share(gateway, bucket=bucket, prefix="in/", location=access_point, protocol="SMB")
    found = client.describe_nfs_file_shares(FileShareARNList=[whole, part])["NFSFileShareInfoList"]
    assert [one["LocationARN"] for one in found] == [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/in/"]
    assert {one["FileShareStatus"] for one in found} == {"AVAILABLE"}
    assert {one["GatewayARN"] for one in found} == {gateway}
    found = client.describe_smb_file_shares(FileShareARNList=[behind])["SMBFileShareInfoList"]
    assert [one["LocationARN"] for one in found] == [access_point]


def test_a_description_takes_ten_shares_of_its_protocol(client: Any, share: str, control: Control) -> None:
    client.describe_nfs_file_shares(FileShareARNList=[share] * 10)
    code, message = refusal(client.describe_nfs_file_shares, FileShareARNList=[share] * 11)
    assert (code, "less than or equal to 10" in message) == ("ValidationException", True)
    assert refusal(client.describe_smb_file_shares, FileShareARNList=[share])[0] == INVALID
    control.remove_share(share)
    assert refusal(client.describe_nfs_file_shares, FileShareARNList=[share])[0] == INVALID


@pytest.mark.parametrize("status", ["CREATING", "DELETING", "UNAVAILABLE"])
def test_a_share_that_is_not_available_is_not_refreshed(
    client: Any, share: str, control: Control, status: str
) -> None:
    control.set_status(share, status)
    assert client.list_file_shares()["FileShareInfoList"][0]["FileShareStatus"] == status
    code, message = refusal(client.refresh_cache, FileShareARN=share)
    assert (code, status in message) == (INVALID, True)
    control.set_status(share, "AVAILABLE")
    client.refresh_cache(FileShareARN=share)


def test_calls_are_refused_as_often_as_told(client: Any, share: str, control: Control) -> None:
    control.fault("refuse", code="ThrottlingException", message="Rate exceeded", count=2)
    assert [refusal(client.refresh_cache, FileShareARN=share)[0] for _ in range(2)] == [
        "ThrottlingException"
    ] * 2
    client.refresh_cache(FileShareARN=share)
    assert len(control.refreshes()) == 1
    assert control.faults()[0]["used"] == 2
    control.fault("refuse", operation="ListFileShares", status=500, code="InternalServerError", count=None)
    assert refusal(client.list_file_shares)[0] == "InternalServerError"
    control.clear_faults()
    client.list_file_shares()


def test_a_fault_may_be_of_one_share(aws: Aws, client: Any, share: str, control: Control) -> None:
    other = control.add_share(control.add_gateway(), bucket=aws.bucket())
    control.fault("refuse", share=other, count=None)
    client.refresh_cache(FileShareARN=share)
    assert refusal(client.refresh_cache, FileShareARN=other)[0] == INVALID


def test_a_reply_is_lost_after_the_effect(client: Any, share: str, control: Control) -> None:
    control.fault("lose_reply")
    with pytest.raises(ConnectionClosedError):
        client.refresh_cache(FileShareARN=share)
    control.wait_idle()
    assert len(control.refreshes(share)) == 1
    assert control.calls("RefreshCache")[0]["code"] == "(reply lost)"


def test_a_reply_is_late(client: Any, share: str, control: Control) -> None:
    control.fault("delay", seconds=0.3)
    started = time.monotonic()
    client.refresh_cache(FileShareARN=share)
    assert time.monotonic() - started >= 0.3


def test_every_call_is_logged_with_input_and_outcome(client: Any, share: str, control: Control) -> None:
    client.refresh_cache(FileShareARN=share, FolderList=["folder"], Recursive=False)
    refusal(client.refresh_cache, FileShareARN=share.replace("share-", "share-0"))
    good, bad = control.calls("RefreshCache")
    assert good["input"] == {"FileShareARN": share, "FolderList": ["folder"], "Recursive": False}
    assert (good["status"], good["code"], good["region"]) == (200, "", "eu-west-1")
    assert good["result"]["NotificationId"] == control.refreshes()[0]["id"]
    assert (bad["status"], bad["code"]) == (400, INVALID)
    control.reset()
    assert (control.calls(), control.shares(), control.refreshes()) == ([], [], [])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(lambda c: c.fault("explode"), "none of refuse", id="an unknown fault"),
        pytest.param(lambda c: c.fault("refuse", often=3), "often", id="an unknown field of a fault"),
        pytest.param(lambda c: c.settings(speed=3), "no setting 'speed'", id="an unknown setting"),
        pytest.param(lambda c: c.set_status("nowhere", "AVAILABLE"), "no share", id="an unknown share"),
        pytest.param(lambda c: c.add_share("nowhere", bucket="b"), "nowhere", id="an unknown gateway"),
    ],
)
def test_a_wrong_control_call_is_told_so(control: Control, call: Any, message: str) -> None:
    with pytest.raises(ControlError, match=message):
        call(control)


def _raw(client: Any, operation: str, body: Any, **headers: str) -> tuple[str, str]:
    """Send a body as it is: botocore would refuse some of these by itself."""
    connection = http.client.HTTPConnection(client.meta.endpoint_url.removeprefix("http://"), timeout=10)
    headers = {"X-Amz-Target": f"StorageGateway_20130630.{operation}", "Authorization": SIGNED, **headers}
    with contextlib.closing(connection):
        connection.request("POST", "/", json.dumps(body), headers)
        answer = json.load(connection.getresponse())
    return answer["__type"], answer["message"]
