"""The message about a failed call to AWS: the field of the spec, AWS's words, and the remedy.

Inputs: the error as aws/errors.py has it. It must not decide the next step.
"""

from typing import Final

from caretaker.aws.errors import AwsError

ROLE: Final = "spec.aws.roleARN"
# Remedies for the operator; a caller with another identity replaces them.
GIVE: Final = "give the operator credentials, or set spec.aws.roleARN or spec.aws.credentialsSecretRef"
ALLOW: Final = "to the identity that spec.aws names"


def describe(error: AwsError, field: str) -> str:
    """`spec.x: sqs:ReceiveMessage: AccessDenied: ...; remedy`, if there is one."""
    about = ROLE if error.service == "sts" else field
    return f"{about}: {with_remedy(error, str(error))}"


def with_remedy(error: AwsError, text: str) -> str:
    """The text, and the remedy if there is one."""
    remedy = _remedy(error)
    return f"{text}; {remedy}" if remedy else text


def _remedy(error: AwsError) -> str:
    if error.access_denied and error.service == "sts":
        return "let the operator's identity assume it in its trust policy, and allow that sts:AssumeRole"
    if error.access_denied:
        return f"allow {error.missing_permission} {ALLOW}"
    if error.no_identity:
        return GIVE
    if error.not_found and error.service == "sqs":
        return "correct the URL and spec.aws.region, or create the queue"
    return ""
