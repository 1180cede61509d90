"""spec.aws as it stands in a resource, and the ARN of a queue."""

import re

import msgspec
import pytest

from caretaker.api.aws import AwsSpec, partition_of, queue_arn
from caretaker.api.imds import Aws

NO_QUEUE = "must be a queue URL, https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"


def test_the_fields_are_spelled_as_in_the_crd() -> None:
    wire = {
        "region": "eu-west-1",
        "roleARN": "arn:aws:iam::123456789012:role/a",
        "externalID": "x",
        "credentialsSecretRef": {"name": "keys"},
        "endpointURLs": {"sqs": "http://localhost:4566"},
    }
    spec = msgspec.convert(wire, AwsSpec)
    assert (spec.region, spec.external_id, spec.secret_name) == ("eu-west-1", "x", "keys")
    assert spec.role_arn == wire["roleARN"]
    assert spec.endpoint_url("sqs") == "http://localhost:4566"
    assert spec.endpoint_url("sts") == ""
    assert msgspec.to_builtins(spec) == wire


def test_an_imds_policy_asks_each_region_as_the_same_identity_at_its_endpoints() -> None:
    wire = {
        "roleARN": "arn:aws:iam::123456789012:role/a",
        "externalID": "x",
        "endpointURLs": {"ec2": "http://localhost:4566"},
    }
    spec = msgspec.convert({"region": "eu-west-1", **wire}, Aws)
    assert msgspec.to_builtins(spec.within("eu-west-2")) == {"region": "eu-west-2", **wire}


def test_nothing_needs_to_be_given() -> None:
    assert (
        msgspec.convert({"credentialsSecretRef": {}, "endpointURLs": {"sqs": ""}}, AwsSpec).secret_name == ""
    )
    assert msgspec.to_builtins(AwsSpec()) == {}


@pytest.mark.parametrize(
    ("url", "region", "arn"),
    [
        (
            "https://sqs.eu-west-1.amazonaws.com/123456789012/q",
            "eu-west-1",
            "arn:aws:sqs:eu-west-1:123456789012:q",
        ),
        (
            "https://sqs.cn-north-1.amazonaws.com.cn/123456789012/q.fifo",
            "cn-north-1",
            "arn:aws-cn:sqs:cn-north-1:123456789012:q.fifo",
        ),
        (
            "https://vpce-0a1b-c2d3.sqs.us-gov-west-1.vpce.amazonaws.com/123456789012/q",
            "us-gov-west-1",
            "arn:aws-us-gov:sqs:us-gov-west-1:123456789012:q",
        ),
        ("http://127.0.0.1:4566/000000000000/a-b_c", "eu-west-1", "arn:aws:sqs:eu-west-1:000000000000:a-b_c"),
        ("https://queue.amazonaws.com/123456789012/q", "us-east-1", "arn:aws:sqs:us-east-1:123456789012:q"),
    ],
)
def test_the_queue_a_url_leads_to(url: str, region: str, arn: str) -> None:
    assert queue_arn(url, region) == arn


@pytest.mark.parametrize(
    ("url", "region", "message"),
    [
        ("", "eu-west-1", NO_QUEUE),
        ("q", "eu-west-1", NO_QUEUE),
        ("arn:aws:sqs:eu-west-1:123456789012:q", "eu-west-1", NO_QUEUE),
        ("ftp://sqs.eu-west-1.amazonaws.com/123456789012/q", "eu-west-1", NO_QUEUE),
        ("https:///123456789012/q", "eu-west-1", NO_QUEUE),
        ("https://sqs.eu-west-1.amazonaws.com/q", "eu-west-1", NO_QUEUE),
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/q/../p", "eu-west-1", NO_QUEUE),
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/q/", "eu-west-1", NO_QUEUE),
        ("https://[/123456789012/q", "eu-west-1", NO_QUEUE),
        (
            "https://sqs.eu-west-1.amazonaws.com/123456789012/q",
            "",
            "the region is not known: set aws.region",
        ),
        (
            "https://sqs.eu-west-1.amazonaws.com/123456789012/q",
            "us-east-1",
            "is a queue in eu-west-1, and aws.region is us-east-1: make them agree",
        ),
    ],
)
def test_what_is_no_queue_of_the_region_is_refused_with_its_mend(url: str, region: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        queue_arn(url, region)


@pytest.mark.parametrize(
    ("region", "partition"),
    [
        ("eu-west-1", "aws"),
        ("cn-north-1", "aws-cn"),
        ("us-gov-east-1", "aws-us-gov"),
        ("us-iso-east-1", "aws-iso"),
        ("us-isob-east-1", "aws-iso-b"),
        ("", "aws"),
    ],
)
def test_the_partition_of_a_region(region: str, partition: str) -> None:
    assert partition_of(region) == partition
