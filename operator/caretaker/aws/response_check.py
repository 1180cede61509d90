"""Validates AWS responses against the return types of the service Protocols.

Pure. A response that lacks a required member, or has a member of another type, proves neither that something
exists nor that it does not. Members that our code does not read are not checked.
"""

# ruff: noqa: N803 - the parameters' names are AWS's
import re
import typing
from datetime import datetime
from typing import Any, Final, Protocol, Required, TypedDict

import msgspec

from caretaker.aws.cloudfront import CloudFront
from caretaker.aws.cloudwatch import CloudWatch
from caretaker.aws.ec2 import AutoScaling, Ec2, Ec2Writer
from caretaker.aws.ecs import Ecs
from caretaker.aws.eventbridge import EventBridge
from caretaker.aws.functions import Lambda
from caretaker.aws.s3control import S3Control
from caretaker.aws.services import api_name
from caretaker.aws.sns import Sns
from caretaker.aws.sqs import Sqs
from caretaker.aws.storagegateway import StorageGateway


class StsCredentials(TypedDict):
    """Temporary credentials."""

    AccessKeyId: str
    SecretAccessKey: str
    SessionToken: str
    Expiration: datetime


class AssumeRoleResponse(TypedDict, total=False):
    """A session of a role."""

    Credentials: Required[StsCredentials]


class Sts(Protocol):
    """AWS STS, which session.py calls without it."""

    async def assume_role(
        self, *, RoleArn: str, RoleSessionName: str, ExternalId: str = ...
    ) -> AssumeRoleResponse: ...


# AwsError.code of every response that cannot be read.
UNREADABLE: Final = "UnreadableAnswer"
PROTOCOLS: Final = (
    AutoScaling,
    CloudFront,
    CloudWatch,
    Ec2,
    Ec2Writer,
    Ecs,
    EventBridge,
    Lambda,
    S3Control,
    Sns,
    Sqs,
    StorageGateway,
    Sts,
)


def _response_types() -> dict[str, Any]:
    """Operation in lower case -> type of its response. Lower case, because method names do not distinguish
    NFS from Nfs. No two of the services share an operation name."""
    found: dict[str, Any] = {}
    for protocol in PROTOCOLS:
        for name, method in vars(protocol).items():
            if not name.startswith("_"):
                found[api_name(name).lower()] = typing.get_type_hints(method)["return"]
    # botocore calls this one itself, for the operator's own identity.
    found["assumerolewithwebidentity"] = AssumeRoleResponse
    for response_type in found.values():
        # msgspec describes a type when it first needs it, and a second thread that reads the half-made
        # description ends the process (SIGSEGV). Responses come in threads, so it is made here.
        msgspec.json.Decoder(response_type)
    return found


_RESPONSE_TYPES: Final = _response_types()
# SQS returns these numbers as text.
_NUMBERS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
)
# HTTP 200 alone does not report the result of a batch: every entry is in one of these two members.
_RESULT_MEMBERS: Final = dict.fromkeys(
    ("DeleteMessageBatch", "ChangeMessageVisibilityBatch"), ("Successful", "Failed")
)


def fault_of(operation: str, response: Any) -> str:
    """The fault of the decoded response to an operation (`DescribeInstances`); "" if it is valid. The text
    quotes nothing of the response."""
    response_type = _RESPONSE_TYPES.get(operation.lower())
    if response_type is None:
        return ""
    try:
        msgspec.convert(response, response_type)
    except msgspec.ValidationError as error:
        return str(error)
    if operation == "GetQueueAttributes" and (name := _non_numeric(response["Attributes"])):
        return f"Expected a number - at `$.Attributes.{name}`"
    either = _RESULT_MEMBERS.get(operation)
    if either and not any(response.get(member) for member in either):
        return f"Object has neither of the fields {' and '.join(f'`{member}`' for member in either)}"
    return ""


def _non_numeric(attributes: dict[str, str]) -> str:
    """The first attribute that is no number and should be; "" = none."""
    texts = ((name, attributes.get(name, "0")) for name in _NUMBERS)
    return next((name for name, text in texts if re.fullmatch("[0-9]{1,15}", text) is None), "")
