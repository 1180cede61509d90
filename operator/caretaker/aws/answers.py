"""What AWS's answers have to hold for our code to go on from them: the Protocols' own types are the rule.

Pure. An answer that lacks a required member, or has one of another type, is nobody's answer: it proves that
nothing is there as little as that something is. What is not read is not looked at.
"""

import typing
from typing import Any, Final

import msgspec

from caretaker.aws.autoscaling import AutoScaling
from caretaker.aws.ec2 import Ec2, Ec2Writer
from caretaker.aws.ecs import Ecs
from caretaker.aws.services import api_name
from caretaker.aws.sqs import Sqs
from caretaker.aws.storagegateway import StorageGateway
from caretaker.aws.sts import AssumeRoleResponse, Sts

# AwsError.code of all answers that cannot be read.
UNREADABLE: Final = "UnreadableAnswer"
PROTOCOLS: Final = (AutoScaling, Ec2, Ec2Writer, Ecs, Sqs, StorageGateway, Sts)


def _forms() -> dict[str, Any]:
    """By operation, in lower case, since methods do not tell NFS from Nfs. No two services that are used have
    an operation of one name."""
    found: dict[str, Any] = {}
    for protocol in PROTOCOLS:
        for name, method in vars(protocol).items():
            if not name.startswith("_"):
                assert api_name(name).lower() not in found, name  # noqa: S101 - of two, one would be unchecked
                found[api_name(name).lower()] = typing.get_type_hints(method)["return"]
    # By botocore, for the operator's own identity.
    found["AssumeRoleWithWebIdentity".lower()] = AssumeRoleResponse
    return found


_FORMS: Final = _forms()
# Of which HTTP 200 alone says nothing: each entry is among one or the other.
_TOLD_BY: Final = dict.fromkeys(
    ("DeleteMessageBatch", "ChangeMessageVisibilityBatch"), ("Successful", "Failed")
)


def fault_of(operation: str, answer: Any) -> str:
    """What is wrong with the decoded answer to an operation (`DescribeInstances`); "" when nothing is. It
    quotes nothing of the answer."""
    form = _FORMS.get(operation.lower())
    if form is None:
        return ""
    try:
        msgspec.convert(answer, form)
    except msgspec.ValidationError as error:
        return str(error)
    either = _TOLD_BY.get(operation, ())
    if either and not any(answer.get(member) for member in either):
        return f"Object has neither of the fields {' and '.join(f'`{member}`' for member in either)}"
    return ""
