"""Forms of both protocols are read as botocore writes them, and answers written as it reads them."""

from typing import Any

import botocore.parsers
import botocore.serialize
import pytest

from awsdoubles.ec2 import answers
from awsdoubles.ec2.errors import AwsError
from awsdoubles.ec2.protocol import model
from awsdoubles.ec2.query import check, decode

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("ec2", "DescribeInstances", {}),
    ("ec2", "DescribeInstances", {"InstanceIds": [f"i-{n}" for n in range(12)], "DryRun": False}),
    (
        "ec2",
        "DescribeInstances",
        {
            "Filters": [
                {"Name": "tag:kubernetes.io/cluster/blue", "Values": ["owned", "shared & more"]},
                {"Name": "tag-key", "Values": [""]},
            ],
            "MaxResults": 1000,
            "NextToken": "a=b",
        },
    ),
    ("ec2", "ModifyInstanceMetadataOptions", {"InstanceId": "i-1", "HttpPutResponseHopLimit": 2}),
    ("ec2", "DescribeLaunchTemplateVersions", {"Versions": ["$Latest", "2"], "LaunchTemplateId": "lt-1"}),
    ("autoscaling", "DescribeAutoScalingGroups", {"AutoScalingGroupNames": []}),
    (
        "autoscaling",
        "DescribeAutoScalingGroups",
        {
            "AutoScalingGroupNames": ["a", "b"],
            "Filters": [{"Name": "tag:x", "Values": ["y"]}],
            "MaxRecords": 5,
            "IncludeInstances": True,
        },
    ),
]


@pytest.mark.parametrize(("service", "operation", "given"), CASES)
def test_a_form_is_read_as_it_was_meant(service: str, operation: str, given: dict[str, Any]) -> None:
    known = model(service).operation_model(operation)
    written = botocore.serialize.create_serializer(known.service_model.metadata["protocol"])
    fields = {name: str(value) for name, value in written.serialize_to_request(given, known)["body"].items()}
    found = decode(known.input_shape, fields, ec2=service == "ec2")
    assert found == given
    check(known.input_shape, found)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"instanceId": "i-1"}, id="lower case"),
        pytest.param({"InstanceId": "i-1"}, id="a list without a number"),
        pytest.param({"InstanceId.1.x": "i-1"}, id="a structure for a string"),
        pytest.param({"Filter.1": "x"}, id="a string for a structure"),
        pytest.param({"MaxResults.1": "5"}, id="a list for a number"),
        pytest.param({"Filter.1.Name": "x", "Filter.1.Name.2": "y"}, id="a string and a structure"),
    ],
)
def test_a_field_that_does_not_belong_is_named(fields: dict[str, str]) -> None:
    shape = model("ec2").operation_model("DescribeInstances").input_shape
    with pytest.raises(AwsError, match=next(iter(fields)).split(".", maxsplit=1)[0]):
        decode(shape, fields, ec2=True)


def test_an_answer_is_read_as_it_was_meant() -> None:
    known = model("ec2").operation_model("ModifyInstanceMetadataOptions")
    result = {
        "InstanceId": "<&>",
        "InstanceMetadataOptions": {"State": "pending", "HttpPutResponseHopLimit": 2, "HttpTokens": None},
    }
    text = answers.ec2_result(known.name, known.output_shape, result)
    found = _parsed(known, text, 200)
    assert found["InstanceId"] == "<&>"
    assert found["InstanceMetadataOptions"] == {"State": "pending", "HttpPutResponseHopLimit": 2}
    assert found["ResponseMetadata"]["RequestId"]


@pytest.mark.parametrize(
    ("service", "operation", "write"),
    [
        ("ec2", "DescribeInstances", answers.ec2_error),
        ("autoscaling", "DescribeAutoScalingGroups", answers.query_error),
    ],
)
def test_a_refusal_is_read_as_it_was_meant(service: str, operation: str, write: Any) -> None:
    found = _parsed(model(service).operation_model(operation), write(AwsError("No", "a < b")), 400)
    assert (found["Error"]["Code"], found["Error"]["Message"]) == ("No", "a < b")
    assert found["ResponseMetadata"]["RequestId"]


def test_a_member_that_the_model_lacks_is_not_written() -> None:
    shape = model("ec2").shape_for("ResponseLaunchTemplateData")
    with pytest.raises(ValueError, match="has no member 'Metadata'"):
        answers.fits(shape, {"Metadata": {}})


def _parsed(known: Any, text: str, status: int) -> Any:
    parser = botocore.parsers.create_parser(known.service_model.metadata["protocol"])
    return parser.parse({"body": text.encode(), "headers": {}, "status_code": status}, known.output_shape)
