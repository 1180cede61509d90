"""Turns an error of AWS into the reason, the message and the remedy that an ECS target shows.

Inputs: an error of aws/errors.py. It must not decide when to try again.
"""

from typing import Final

from caretaker.api.conditions import EcsReason as Reason
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.daemontask.ecs.check import UnclearError
from caretaker.daemontask.ecs.snapshot import CallFailure

ECS: Final = "spec.ecs"
QUEUE: Final = "spec.ecs.events.sqsQueueURL"
ROLE: Final = "spec.ecs.aws.roleARN"
_REASONS: Final = {
    ErrorClass.ACCESS_DENIED: Reason.ACCESS_DENIED,
    ErrorClass.NO_IDENTITY: Reason.NO_IDENTITY,
    ErrorClass.THROTTLED: Reason.THROTTLED,
    ErrorClass.INVALID_REQUEST: Reason.REQUEST_REFUSED,
}


def call_failure(error: AwsError, field: str) -> CallFailure:
    """The trouble of a failed call. `field`: the field of the spec that the call is about."""
    about = ROLE if error.service == "sts" else field
    remedy = _remedy(error)
    reason = _REASONS.get(error.error_class, Reason.UNREACHABLE)
    if error.not_found:
        reason = _absent(error)
    message = f"{about}: {error}{f'; {remedy}' if remedy else ''}"
    absent = error.not_found and error.service == "ecs"
    return CallFailure(reason, message, error.transient, absent=absent)


def unclear(error: UnclearError) -> CallFailure:
    """The trouble of an answer that lacks required members."""
    return CallFailure(Reason.UNREACHABLE, f"{ECS}: {error}", transient=True)


def _absent(error: AwsError) -> str:
    if error.service == "sqs":
        return Reason.QUEUE_NOT_FOUND
    return Reason.SERVICE_NOT_FOUND if error.code.startswith("ServiceNotFound") else Reason.CLUSTER_NOT_FOUND


def _remedy(error: AwsError) -> str:
    if error.access_denied and error.service == "sts":
        return "let the operator's identity assume it in its trust policy, and allow that sts:AssumeRole"
    if error.access_denied:
        return f"allow {error.missing_permission} to the identity that spec.ecs.aws names"
    if error.no_identity:
        return "give the operator credentials, or set spec.ecs.aws.roleARN"
    if error.not_found and error.service == "sqs":
        return "correct the URL and spec.ecs.aws.region, or create the queue"
    return ""
