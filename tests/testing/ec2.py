"""Read what EC2 answers a boto3 client: instances out of reservations, codes out of refusals."""

from typing import Any, Final

import pytest
from botocore.exceptions import ClientError

# What an instance has whose launch said nothing.
DEFAULTS: Final[dict[str, Any]] = {
    "HttpTokens": "optional",
    "HttpPutResponseHopLimit": 1,
    "HttpEndpoint": "enabled",
    "HttpProtocolIpv6": "disabled",
    "InstanceMetadataTags": "disabled",
}
CLUSTER: Final = {"kubernetes.io/cluster/blue": "owned"}


def refusal(call: Any, **arguments: Any) -> tuple[str, int, str]:
    """The code, HTTP status and message with which a call is refused."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Message"]


def code(call: Any, **arguments: Any) -> str:
    """The code alone."""
    return refusal(call, **arguments)[0]


def filters(**wanted: list[str]) -> list[dict[str, Any]]:
    """Filters, with _ for - and __ for : in their names."""
    return [{"Name": n.replace("__", ":").replace("_", "-"), "Values": v} for n, v in wanted.items()]


def instances(answer: Any) -> list[dict[str, Any]]:
    """Those of all reservations of a page."""
    return [one for reservation in answer["Reservations"] for one in reservation["Instances"]]


def ids(answer: Any) -> list[str]:
    """Their ids."""
    return [one["InstanceId"] for one in instances(answer)]


def options(client: Any, node: str) -> dict[str, Any]:
    """An instance's metadata options, its State among them."""
    found: dict[str, Any] = instances(client.describe_instances(InstanceIds=[node]))[0]["MetadataOptions"]
    return found
