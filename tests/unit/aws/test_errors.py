"""What each failure means: a row for every code that was ever read wrongly."""

import ssl
import time
from typing import Any

import pytest
from botocore import exceptions as boto

from caretaker.aws.errors import AwsError, ErrorClass, line, word
from caretaker.aws.responses import classify, error_from

URL = "https://sqs.eu-west-1.amazonaws.com/"


def answered(code: str, message: str = "", status: int = 400, **more: Any) -> boto.ClientError:
    meta = {"HTTPStatusCode": status, "RequestId": "r-1"}
    body = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": meta, **more}
    return boto.ClientError(body, "DeleteMessageBatch")


def read(error: Exception, operation: str = "DeleteMessageBatch", *, write: bool = True) -> AwsError:
    found = error_from(error, service="sqs", operation=operation, write=write)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("QueueDoesNotExist", 400, ErrorClass.NOT_FOUND),
        ("AWS.SimpleQueueService.NonExistentQueue", 400, ErrorClass.NOT_FOUND),
        ("InvalidInstanceID.NotFound", 400, ErrorClass.NOT_FOUND),
        ("ClusterNotFoundException", 400, ErrorClass.NOT_FOUND),
        ("ResourceNotFoundException", 404, ErrorClass.NOT_FOUND),
        ("NoSuchAccessPoint", 404, ErrorClass.NOT_FOUND),
        # From a proxy or another server: an unreadable response does not mean that something does not exist.
        ("404", 404, ErrorClass.UNKNOWN_OUTCOME),
        ("", 404, ErrorClass.UNKNOWN_OUTCOME),
        ("403", 403, ErrorClass.UNKNOWN_OUTCOME),
        ("SomethingNew", 404, ErrorClass.NOT_FOUND),
        ("Throttling", 400, ErrorClass.THROTTLED),
        ("ThrottlingException", 400, ErrorClass.THROTTLED),
        ("RequestThrottled", 403, ErrorClass.THROTTLED),
        ("RequestLimitExceeded", 503, ErrorClass.THROTTLED),
        ("KMS.ThrottlingException", 400, ErrorClass.THROTTLED),
        ("OverLimit", 403, ErrorClass.THROTTLED),
        ("SlowDown", 503, ErrorClass.THROTTLED),
        ("SomethingNew", 429, ErrorClass.THROTTLED),
        ("AccessDenied", 403, ErrorClass.ACCESS_DENIED),
        ("AccessDeniedException", 400, ErrorClass.ACCESS_DENIED),
        ("UnauthorizedOperation", 403, ErrorClass.ACCESS_DENIED),
        ("KMS.AccessDeniedException", 400, ErrorClass.ACCESS_DENIED),
        ("KmsAccessDenied", 400, ErrorClass.ACCESS_DENIED),
        ("SomethingNew", 403, ErrorClass.ACCESS_DENIED),
        ("ExpiredToken", 403, ErrorClass.NO_IDENTITY),
        ("InvalidClientTokenId", 403, ErrorClass.NO_IDENTITY),
        ("UnrecognizedClientException", 400, ErrorClass.NO_IDENTITY),
        ("SignatureDoesNotMatch", 403, ErrorClass.NO_IDENTITY),
        ("AuthFailure", 401, ErrorClass.NO_IDENTITY),
        ("PurgeQueueInProgress", 403, ErrorClass.IN_PROGRESS),
        ("UpdateInProgressException", 400, ErrorClass.IN_PROGRESS),
        ("ConflictException", 409, ErrorClass.IN_PROGRESS),
        ("IncorrectState", 400, ErrorClass.IN_PROGRESS),
        # A key that is gone or switched off is no missing queue, and waiting does not mend it.
        ("KMS.NotFoundException", 400, ErrorClass.INVALID_REQUEST),
        ("KMS.DisabledException", 400, ErrorClass.INVALID_REQUEST),
        ("ReceiptHandleIsInvalid", 404, ErrorClass.INVALID_REQUEST),
        ("InvalidParameterValue", 400, ErrorClass.INVALID_REQUEST),
        ("ServiceUnavailable", 503, ErrorClass.TRANSIENT),
        ("503", 503, ErrorClass.TRANSIENT),
        ("InternalError", 500, ErrorClass.UNKNOWN_OUTCOME),
        ("504", 504, ErrorClass.UNKNOWN_OUTCOME),
    ],
)
def test_a_code_of_a_write(code: str, status: int, expected: ErrorClass) -> None:
    assert classify(code, status, write=True) is expected


def test_a_read_never_has_an_unknown_outcome() -> None:
    assert classify("InternalError", 500, write=False) is ErrorClass.TRANSIENT
    assert read(boto.ReadTimeoutError(endpoint_url=URL), write=False).error_class is ErrorClass.TRANSIENT


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("GatewayNotFound", ErrorClass.NOT_FOUND),
        ("UnauthorizedOperation", ErrorClass.ACCESS_DENIED),
        ("InvalidParameters", ErrorClass.INVALID_REQUEST),
        ("GatewayProxyNetworkConnectionBusy", ErrorClass.IN_PROGRESS),
        ("GatewayNotConnected", ErrorClass.TRANSIENT),
        ("", ErrorClass.TRANSIENT),
    ],
)
def test_a_gateways_refusal_is_worth_another_try_unless_its_cause_is_known(
    cause: str, expected: ErrorClass
) -> None:
    found = read(answered("InvalidGatewayRequestException", "x", error={"errorCode": cause}), "RefreshCache")
    assert (found.error_class, found.cause) == (expected, cause)


@pytest.mark.parametrize(
    ("error", "expected", "code"),
    [
        (boto.ReadTimeoutError(endpoint_url=URL), ErrorClass.UNKNOWN_OUTCOME, "Timeout"),
        (boto.ConnectionClosedError(endpoint_url=URL), ErrorClass.UNKNOWN_OUTCOME, "ConnectionLost"),
        (boto.HTTPClientError(error=OSError("x")), ErrorClass.UNKNOWN_OUTCOME, "ConnectionLost"),
        (boto.SSLError(endpoint_url=URL, error="EOF"), ErrorClass.UNKNOWN_OUTCOME, "ConnectionLost"),
        (boto.EndpointConnectionError(endpoint_url=URL, error="x"), ErrorClass.TRANSIENT, "Unreachable"),
        (boto.ConnectTimeoutError(endpoint_url=URL), ErrorClass.TRANSIENT, "Unreachable"),
        (
            boto.SSLError(
                endpoint_url=URL, error=ssl.SSLCertVerificationError(1, "CERTIFICATE_VERIFY_FAILED")
            ),
            ErrorClass.TRANSIENT,
            "CertificateNotTrusted",
        ),
        (boto.NoCredentialsError(), ErrorClass.NO_IDENTITY, "NoCredentials"),
        (boto.ProfileNotFound(profile="p"), ErrorClass.NO_IDENTITY, "NoCredentials"),
        (boto.NoRegionError(), ErrorClass.INVALID_REQUEST, "InvalidRegion"),
        (boto.InvalidRegionError(region_name="a/b"), ErrorClass.INVALID_REQUEST, "InvalidRegion"),
        (boto.ParamValidationError(report="x"), ErrorClass.INVALID_REQUEST, "InvalidParameters"),
    ],
)
def test_what_was_not_answered(error: Exception, expected: ErrorClass, code: str) -> None:
    found = read(error)
    assert (found.error_class, found.code, found.status) == (expected, code, 0)


def test_what_is_not_botocores_is_left_alone() -> None:
    assert error_from(KeyError("x"), service="sqs", operation="x", write=True) is None


@pytest.mark.parametrize(
    ("message", "operation", "action"),
    [
        pytest.param("Access to the resource is denied.", "ReceiveMessage", "sqs:ReceiveMessage", id="none"),
        pytest.param("no", "DeleteMessageBatch", "sqs:DeleteMessage", id="a batch has no action of its own"),
        pytest.param(
            "User: arn:aws:iam::1:user/x is not authorized to perform: sqs:receivemessage on resource: "
            "arn:aws:sqs:eu-west-1:1:q because no identity-based policy allows the sqs:receivemessage action",
            "ReceiveMessage",
            "sqs:ReceiveMessage",
            id="SQS writes actions in lower case",
        ),
        pytest.param(
            "User: x is not authorized to perform: kms:Decrypt on resource: arn:aws:kms:eu-west-1:1:key/k "
            "with an explicit deny.",
            "ReceiveMessage",
            "kms:Decrypt",
            id="another service's action is what is missing",
        ),
    ],
)
def test_a_refusal_names_the_action(message: str, operation: str, action: str) -> None:
    found = read(answered("AccessDenied", message, 403), operation)
    assert found.missing_permission == action


def test_only_refusals_name_an_action() -> None:
    assert read(answered("Throttling", "not authorized to perform: sqs:X")).missing_permission is None


@pytest.mark.parametrize(
    ("code", "service", "remedy"),
    [
        (
            "AccessDenied",
            "sts",
            "let the operator's identity assume it in its trust policy, and allow that sts:AssumeRole",
        ),
        ("AccessDenied", "sqs", "allow sqs:ReceiveMessage to ME"),
        ("ExpiredToken", "sts", "give KEYS"),
        ("QueueDoesNotExist", "sqs", "correct the URL and spec.aws.region, or create the queue"),
        ("ResourceNotFoundException", "ecs", ""),
        ("Throttling", "sqs", ""),
    ],
)
def test_what_the_user_can_do(code: str, service: str, remedy: str) -> None:
    operation = "AssumeRole" if service == "sts" else "ReceiveMessage"
    found = AwsError(classify(code, 400, write=False), code, service=service, operation=operation)
    assert found.remedy("spec.aws", "give KEYS", "ME") == remedy


def test_a_refresh_of_credentials_within_a_call_is_told_as_what_it_is() -> None:
    error = boto.ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "AssumeRole")
    found = read(error)
    assert (found.service, found.missing_permission) == ("sts", "sts:AssumeRole")


@pytest.mark.parametrize("between", ["\n\n", " "])
def test_no_message_quotes_the_signed_request(between: str) -> None:
    quoted = (
        f"The request signature we calculated does not match.{between}The Canonical String for this request "
        "should have been\n'POST\n/\nx-amz-security-token:very-secret'"
    )
    found = read(answered("SignatureDoesNotMatch", quoted, 403))
    assert "very-secret" not in f"{found} {found!r} {found.message}"
    assert found.message == "The request signature we calculated does not match."


def test_it_tells_request_and_reason() -> None:
    found = read(answered("QueueDoesNotExist", "The specified queue does not exist."))
    assert str(found) == "sqs:DeleteMessageBatch: QueueDoesNotExist: The specified queue does not exist."
    assert (found.request_id, found.status, found.not_found, found.transient) == ("r-1", 400, True, False)


def test_what_is_not_known_of_an_error_is_empty() -> None:
    found = AwsError(ErrorClass.TRANSIENT, "Timeout")
    assert (found.message, found.service, found.operation, found.cause, found.request_id) == ("",) * 5
    assert found.status == 0
    assert str(found) == "Timeout: "


def test_it_shows_the_cause_within_a_code() -> None:
    found = AwsError(ErrorClass.INVALID_REQUEST, "Outer", "no", cause="Inner")
    assert str(found) == "Outer (Inner): no"
    assert repr(found) == f"AwsError({ErrorClass.INVALID_REQUEST!r}, 'Outer', 'no')"


# ---------------------------------------------------------------- limits on text from responses that is shown


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("no", "no"),
        ("  a\tb  ", "a b"),
        ("one\ntwo", "one"),
        ("a\x1b[31mb\x85c\u2028d", "a [31mb c d"),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 200),
        (" " * 5000 + "x", ""),
        ("", ""),
    ],
)
def test_a_line_is_one_of_at_most_200_characters(message: str, shown: str) -> None:
    assert line(message) == shown


def test_a_line_costs_the_same_however_long_the_message_is() -> None:
    def cost(length: int) -> float:
        text = "\x1b" * length
        began = time.process_time()
        for _ in range(100):
            line(text)
        return time.process_time() - began

    assert cost(4_000_000) < 20 * max(cost(4_000), 0.001)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("QueueDoesNotExist", "QueueDoesNotExist"),
        ("AWS.SimpleQueueService.X", "AWS.SimpleQueueService.X"),
        ("a" * 100, "a" * 100),
        ("a" * 101, "?"),
        ("a b", "?"),
        ("a\n", "?"),
        ("", "?"),
        ("\u0661", "?"),
        (7, "?"),
        (None, "?"),
    ],
)
def test_a_word_is_shown_as_it_is_or_not(value: object, shown: str) -> None:
    assert word(value) == shown
