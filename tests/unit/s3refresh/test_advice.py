"""What a condition says of AWS's refusals."""

import pytest

from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.s3refresh import advice
from caretaker.s3refresh.queue_view import SOURCE


@pytest.mark.parametrize(
    ("error", "words"),
    [
        pytest.param(
            AwsError(
                ErrorClass.ACCESS_DENIED, "AccessDenied", "no", service="sqs", operation="DeleteMessageBatch"
            ),
            "spec.source.sqs.queueURL: sqs:DeleteMessageBatch: AccessDenied: no; "
            "allow sqs:DeleteMessage to the identity that spec.aws names",
            id="a permission that is missing",
        ),
        pytest.param(
            AwsError(
                ErrorClass.ACCESS_DENIED,
                "KmsAccessDenied",
                "User: u is not authorized to perform: kms:Decrypt on resource: k",
                service="sqs",
                operation="ReceiveMessage",
            ),
            "spec.source.sqs.queueURL: sqs:ReceiveMessage: KmsAccessDenied: "
            "User: u is not authorized to perform: kms:Decrypt on resource: k; "
            "allow kms:Decrypt to the identity that spec.aws names",
            id="a permission of another service that is missing",
        ),
        pytest.param(
            AwsError(ErrorClass.ACCESS_DENIED, "AccessDenied", "no", service="sts", operation="AssumeRole"),
            "spec.aws.roleARN: sts:AssumeRole: AccessDenied: no; let the operator's identity assume "
            "it in its trust policy, and allow that sts:AssumeRole",
            id="a role that may not be assumed",
        ),
        pytest.param(
            AwsError(
                ErrorClass.NOT_FOUND, "QueueDoesNotExist", "no", service="sqs", operation="ReceiveMessage"
            ),
            "spec.source.sqs.queueURL: sqs:ReceiveMessage: QueueDoesNotExist: no; "
            "correct the URL and spec.aws.region, or create the queue",
            id="no such queue",
        ),
        pytest.param(
            AwsError(ErrorClass.NO_IDENTITY, "ExpiredToken", "no", service="sqs", operation="ReceiveMessage"),
            "spec.source.sqs.queueURL: sqs:ReceiveMessage: ExpiredToken: no; "
            "give the operator credentials, or set spec.aws.roleARN or spec.aws.credentialsSecretRef",
            id="no credentials",
        ),
        pytest.param(
            AwsError(
                ErrorClass.THROTTLED, "RequestThrottled", "no", service="sqs", operation="ReceiveMessage"
            ),
            "spec.source.sqs.queueURL: sqs:ReceiveMessage: RequestThrottled: no",
            id="what time mends",
        ),
    ],
)
def test_told(error: AwsError, words: str) -> None:
    assert advice.describe(error, SOURCE) == words
