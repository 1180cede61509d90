"""Requests that no client of boto3 would send: the EC2 double reads forms as strictly as EC2."""

import http.client
import socket
from urllib.parse import urlencode, urlsplit

import pytest

from awsdoubles.ec2.server import Ec2

SIGNED = "AWS4-HMAC-SHA256 Credential=test/20260101/eu-west-1/{}/aws4_request, Signature=0"


def _raw(ec2: Ec2, signed: str = SIGNED.format("ec2"), **fields: str) -> tuple[int, str]:
    """What no client of boto3 would send."""
    connection = http.client.HTTPConnection(urlsplit(ec2.url).netloc)
    body = urlencode({"Version": "2016-11-15", **{name.replace("_", "."): v for name, v in fields.items()}})
    headers = {"Authorization": signed, "Content-Type": "application/x-www-form-urlencoded"}
    try:
        connection.request("POST", "/", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"Action": "RunInstances"}, "InvalidAction", id="an operation that is not there"),
        pytest.param({"Version": "2014-01-01"}, "InvalidAction", id="another version"),
        pytest.param({"InstanceIds_1": "i-0000beef"}, "UnknownParameter", id="a misspelt member"),
        pytest.param({"Filter_x_Name": "tag-key"}, "UnknownParameter", id="a list without numbers"),
        pytest.param({"Filter_1_Nam": "tag-key"}, "UnknownParameter", id="a misspelt member inside"),
        pytest.param({"MaxResults": "many"}, "InvalidParameterValue", id="a word for a number"),
        pytest.param({"DryRun": "perhaps"}, "InvalidParameterValue", id="a word for a boolean"),
        pytest.param({"Action": "ModifyInstanceMetadataOptions"}, "MissingParameter", id="no instance"),
    ],
)
def test_a_form_that_is_wrong_is_refused(ec2: Ec2, fields: dict[str, str], expected: str) -> None:
    """ "Error codes for the Amazon EC2 API"."""
    status, text = _raw(ec2, **{"Action": "DescribeInstances", **fields})
    assert status == 400
    assert f"<Code>{expected}</Code>" in text


@pytest.mark.parametrize(
    ("signed", "status"), [("", 403), (SIGNED.format("s3"), 401)], ids=["not signed", "signed for S3"]
)
def test_a_request_must_be_signed_for_the_service(ec2: Ec2, signed: str, status: int) -> None:
    assert _raw(ec2, signed, Action="DescribeInstances")[0] == status


def test_a_call_is_in_the_ledger_once_all_of_it_has_come(ec2: Ec2) -> None:
    """Tests read the ledger while an operator calls: half a call would be one of no operation."""
    place = urlsplit(ec2.url)
    form = b"Action=DescribeInstances&Version=2016-11-15"
    signed = f"Host: ec2\r\nAuthorization: {SIGNED.format('ec2')}\r\nContent-Length: {len(form)}"
    head = f"POST / HTTP/1.1\r\n{signed}\r\n\r\n"
    with socket.create_connection((place.hostname, place.port)) as half:
        half.sendall(head.encode() + form[:10])
        assert _raw(ec2, Action="DescribeLaunchTemplates")[0] == 200, "asked later, answered earlier"
        assert [call["operation"] for call in ec2.control.calls()] == ["DescribeLaunchTemplates"]
        half.sendall(form[10:])
        assert half.recv(64).startswith(b"HTTP/1.1 200")
    assert [call["operation"] for call in ec2.control.calls()][1:] == ["DescribeInstances"]
