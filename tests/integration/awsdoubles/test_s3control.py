"""The S3 Control double's protocol: requests checked, access points found, faults carried out."""

import http.client
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from awsdoubles.clients import ACCOUNT
from awsdoubles.gateway.control import Control
from awsdoubles.gateway.server import StorageGateway
from awsdoubles.stack import S3_CONTROL_VARIABLE
from testing.aws import Aws


@pytest.fixture
def control(storage_gateway: StorageGateway) -> Control:
    return storage_gateway.control


@pytest.fixture
def url(aws: Aws, storage_gateway: StorageGateway) -> str:
    return aws.environment(storage_gateway.url)[S3_CONTROL_VARIABLE]


@pytest.fixture
def client(aws: Aws, url: str) -> Any:
    return aws.client("s3control", url)


def refusal(client: Any, name: str = "finance", account: str = ACCOUNT) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        client.get_access_point(AccountId=account, Name=name)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def test_an_access_point_has_its_bucket_and_its_alias(client: Any, control: Control) -> None:
    made = control.add_access_point("finance", bucket="ledger")
    found = client.get_access_point(AccountId=ACCOUNT, Name="finance")
    assert (found["Name"], found["Bucket"], found["BucketAccountId"]) == ("finance", "ledger", ACCOUNT)
    assert (found["AccessPointArn"], found["Alias"]) == (made["arn"], made["alias"])
    assert made["arn"] == f"arn:aws:s3:eu-west-1:{ACCOUNT}:accesspoint/finance"
    assert len(control.add_access_point("n" * 50, bucket="ledger")["alias"]) == 63
    (call,) = control.calls("GetAccessPoint")
    assert (call["region"], call["input"]["Name"], call["status"]) == ("eu-west-1", "finance", 200)


def test_one_that_is_made_again_has_another_alias_and_perhaps_another_bucket(
    client: Any, control: Control
) -> None:
    first = control.add_access_point("finance", bucket="ledger")
    control.remove_access_point(first["arn"])
    assert refusal(client) == ("NoSuchAccessPoint", "The specified accesspoint does not exist")
    second = control.add_access_point("finance", bucket="other")
    assert second["alias"] != first["alias"]
    assert client.get_access_point(AccountId=ACCOUNT, Name="finance")["Bucket"] == "other"


def test_a_region_has_its_own_and_a_new_one_is_not_seen_at_once(
    aws: Aws, url: str, client: Any, control: Control
) -> None:
    control.add_access_point("finance", bucket="ledger", region="us-east-1")
    control.add_access_point("late", bucket="ledger", lag=60)
    assert refusal(client)[0] == refusal(client, "late")[0] == "NoSuchAccessPoint"
    there = aws.client("s3control", url, region="us-east-1")
    assert there.get_access_point(AccountId=ACCOUNT, Name="finance")["Bucket"] == "ledger"


def test_a_permission_is_missing_for_one_and_for_another_account(client: Any, control: Control) -> None:
    arn = control.add_access_point("finance", bucket="ledger")["arn"]
    control.add_access_point("foreign", bucket="ledger", account="111122223333")
    control.deny_access_point(arn)
    for code, message in (refusal(client), refusal(client, "foreign", "111122223333")):
        assert (code, "not authorized to perform: s3:GetAccessPoint on resource" in message) == (
            "AccessDenied",
            True,
        )
    control.deny_access_point(arn, denied=False)
    client.get_access_point(AccountId=ACCOUNT, Name="finance")


SIGNED = "AWS4-HMAC-SHA256 Credential=test/20260101/eu-west-1/s3/aws4_request, Signature=0"


@pytest.mark.parametrize(
    ("name", "headers", "status", "words"),
    [
        pytest.param("finance", {}, 403, "AccessDenied", id="not signed"),
        pytest.param("ab", {"x-amz-account-id": ACCOUNT}, 400, "or equal to 3", id="a name of two"),
        pytest.param("finance", {"x-amz-account-id": "1"}, 400, "accountId", id="no account's number"),
    ],
)
def test_a_request_is_checked_against_the_model(
    storage_gateway: StorageGateway, name: str, headers: dict[str, str], status: int, words: str
) -> None:
    """botocore's own checks know minima only."""
    connection = http.client.HTTPConnection("127.0.0.1", storage_gateway.port)
    signed = {"Authorization": SIGNED} if headers else {}
    connection.request("GET", f"/v20180820/accesspoint/{name}", headers={**headers, **signed})
    answer = connection.getresponse()
    assert answer.status == status
    assert words in answer.read().decode()
    connection.close()


def test_faults_hit_one_access_point(client: Any, control: Control) -> None:
    arn = control.add_access_point("finance", bucket="ledger")["arn"]
    control.add_access_point("other", bucket="ledger")
    busy = {"status": 503, "code": "SlowDown", "message": "Please reduce your request rate."}
    control.fault("refuse", operation="GetAccessPoint", share=arn, **busy)
    client.get_access_point(AccountId=ACCOUNT, Name="other")
    assert refusal(client) == ("SlowDown", "Please reduce your request rate.")
    control.fault("lose_reply", operation="GetAccessPoint")
    with pytest.raises(ConnectionClosedError):
        client.get_access_point(AccountId=ACCOUNT, Name="finance")
    control.fault("without", operation="GetAccessPoint", member="Bucket")
    assert "Bucket" not in client.get_access_point(AccountId=ACCOUNT, Name="finance")
    assert [one["code"] for one in control.calls("GetAccessPoint")] == ["", "SlowDown", "(reply lost)", ""]
