"""The errors of calls to AWS, as one exception with a class for its handling.

Inputs: exceptions of botocore. Callers decide about retries. It must not carry a secret: messages are cut
where AWS appends the request.
"""

import re
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final

from botocore import exceptions as boto

from caretaker.aws.classes import ErrorClass
from caretaker.aws.parsers import UnreadableError
from caretaker.aws.response_check import UNREADABLE
from caretaker.aws.services import iam_action
from caretaker.aws.text_limits import MAX_CHARACTERS, SCANNED_CHARACTERS, line, word

__all__ = ["AwsError", "ErrorClass", "error_from"]


class AwsError(Exception):
    """AWS refused, failed, or did not respond.

    error_class  its class
    code         AWS's code (QueueDoesNotExist), or UnreadableAnswer for a response that is not AWS's; with
                 status 0 one of our own: Timeout, Unreachable, ConnectionLost, AddressRefused,
                 CertificateNotTrusted, InvalidParameters, InvalidRegion, NoCredentials
    cause        Storage Gateway's error.errorCode within InvalidGatewayRequestException, else ""
    message      AWS's message in one line of at most 200 characters; untrusted: the endpoint writes it
    status       HTTP status; 0 = no answer
    service      as boto3 names it; operation as the API does: sqs, DeleteMessageBatch
    request_id   the request ID, for AWS support, or ""
    """

    def __init__(
        self,
        error_class: ErrorClass,
        code: str,
        message: str = "",
        *,
        status: int = 0,
        service: str = "",
        operation: str = "",
        cause: str = "",
        request_id: str = "",
    ) -> None:
        scanned = message[:SCANNED_CHARACTERS]
        action_match, resource_match = _NOT_AUTHORIZED.search(scanned), _ON_RESOURCE.search(scanned)
        message = _clean(message)
        super().__init__(error_class, code, message)
        self.error_class = error_class
        self.code = code
        self.message = message
        self._denied_action = action_match[1][:MAX_CHARACTERS] if action_match else ""
        self._denied_resource = resource_match[1][:MAX_CHARACTERS] if resource_match else ""
        self.status = status
        self.service = service
        self.operation = operation
        self.cause = cause
        self.request_id = request_id

    def __str__(self) -> str:
        code = f"{self.code} ({self.cause})" if self.cause else self.code
        about = f"{self.service}:{self.operation}: " if self.service else ""
        return f"{about}{code}: {self.message}"

    @property
    def not_found(self) -> bool:
        """The resource that the request names does not exist."""
        return self.error_class is ErrorClass.NOT_FOUND

    @property
    def throttled(self) -> bool:
        """The rate limit was exceeded."""
        return self.error_class is ErrorClass.THROTTLED

    @property
    def access_denied(self) -> bool:
        """A policy refuses it; missing_permission names the action."""
        return self.error_class is ErrorClass.ACCESS_DENIED

    @property
    def no_identity(self) -> bool:
        """There are no credentials, or they are unknown, expired or signed by a wrong clock."""
        return self.error_class is ErrorClass.NO_IDENTITY

    @property
    def in_progress(self) -> bool:
        """Another operation is in progress; after it the request may succeed."""
        return self.error_class is ErrorClass.IN_PROGRESS

    @property
    def invalid(self) -> bool:
        """The request is wrong and stays wrong."""
        return self.error_class is ErrorClass.INVALID_REQUEST

    @property
    def unknown_outcome(self) -> bool:
        """A write that may have been executed: its answer was lost, or the service failed half-way."""
        return self.error_class is ErrorClass.UNKNOWN_OUTCOME

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later without any change."""
        return self.error_class in _TRANSIENT_CLASSES

    @property
    def missing_permission(self) -> str | None:
        """The IAM action that is not granted (sqs:ReceiveMessage); None for any other failure."""
        if not self.access_denied:
            return None
        action = iam_action(self.service, self.operation)
        # SQS names actions in lower case; an action of another service (kms:Decrypt) is the missing one.
        return action if self._denied_action.lower() in ("", action.lower()) else self._denied_action

    @property
    def denied_resource(self) -> str:
        """The ARN that AWS names in a refusal; "" where it names none."""
        return self._denied_resource if self.access_denied else ""


_TRANSIENT_CLASSES: Final = frozenset(
    (ErrorClass.THROTTLED, ErrorClass.IN_PROGRESS, ErrorClass.TRANSIENT, ErrorClass.UNKNOWN_OUTCOME)
)
# "User: ARN is not authorized to perform: sqs:receivemessage on resource: ARN because ..." (IAM user guide,
# "Troubleshoot access denied error messages").
_NOT_AUTHORIZED: Final = re.compile(r"not authorized to perform:? ([\w-]+:\w+)")
_ON_RESOURCE: Final = re.compile(r"on resource:? (arn:[^\s\"']*[^\s\"'.,])")


def error_from(error: Exception, *, service: str, operation: str, write: bool) -> AwsError | None:
    """The AwsError for an exception of botocore; None for any other exception.

    `write`: whether the operation may have changed something.
    """
    if isinstance(error, boto.ClientError):
        # Credentials may be refreshed within a call: then AssumeRole was refused, and not the call.
        if error.operation_name.startswith("AssumeRole"):
            service, operation = "sts", error.operation_name
        return _from_response(error, service, operation, write=write)
    if isinstance(error, UnreadableError):
        kind = ErrorClass.UNKNOWN_OUTCOME if write else ErrorClass.TRANSIENT
        return AwsError(
            kind, UNREADABLE, str(error), status=error.status, service=service, operation=operation
        )
    found = next(((c, code) for kinds, c, code in _NO_RESPONSE if isinstance(error, kinds)), None)
    if found is None:
        return None
    (error_class, code), message = found, str(error)
    if _certificate_rejected(error) or _wrong_hostname(error):
        error_class, code = ErrorClass.TRANSIENT, "CertificateNotTrusted"
        message = "its certificate is for other names" if _wrong_hostname(error) else message
    elif error_class is ErrorClass.UNKNOWN_OUTCOME and not write:
        error_class = ErrorClass.TRANSIENT
    return AwsError(error_class, code, message, service=service, operation=operation)


# In order: the first match. Only a failure before the request was sent is not an unknown outcome.
_NO_RESPONSE: Final[tuple[tuple[tuple[type[Exception], ...], ErrorClass, str], ...]] = (
    ((boto.ParamValidationError,), ErrorClass.INVALID_REQUEST, "InvalidParameters"),
    (
        (boto.InvalidRegionError, boto.NoRegionError, boto.BaseEndpointResolverError),
        ErrorClass.INVALID_REQUEST,
        "InvalidRegion",
    ),
    (
        (boto.EndpointProviderError, boto.InvalidEndpointConfigurationError),
        ErrorClass.INVALID_REQUEST,
        "InvalidEndpoint",
    ),
    (
        (
            *(boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError),
            *(boto.TokenRetrievalError, boto.ProfileNotFound, boto.ConfigNotFound, boto.ConfigParseError),
            *(boto.InfiniteLoopConfigError, boto.InvalidConfigError, boto.MetadataRetrievalError),
            *(boto.SSOError, boto.LoginError, boto.UnknownCredentialError),
        ),
        ErrorClass.NO_IDENTITY,
        "NoCredentials",
    ),
    (
        (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError),
        ErrorClass.TRANSIENT,
        "Unreachable",
    ),
    ((boto.ReadTimeoutError,), ErrorClass.UNKNOWN_OUTCOME, "Timeout"),
    ((boto.HTTPClientError, boto.ConnectionError), ErrorClass.UNKNOWN_OUTCOME, "ConnectionLost"),
    ((boto.BotoCoreError, boto.IncompleteReadError), ErrorClass.UNKNOWN_OUTCOME, UNREADABLE),
)


def _certificate_rejected(error: BaseException) -> bool:
    """Whether a certificate was refused: in the handshake, before the request."""
    return any(isinstance(e, ssl.SSLCertVerificationError) for e in _causes(error)) or (
        isinstance(error, boto.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error)
    )


def _wrong_hostname(error: BaseException) -> bool:
    """Whether the certificate is for other hostnames. These are never shown: they may belong to a server that
    only the operator can connect to."""
    return isinstance(error, boto.SSLError) and "doesn't match" in str(error)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _from_response(error: boto.ClientError, service: str, operation: str, *, write: bool) -> AwsError:
    response: Mapping[str, Any] = error.response
    details = response.get("Error") or {}
    code, message = str(details.get("Code") or ""), str(details.get("Message") or "")
    meta = response.get("ResponseMetadata") or {}
    status = int(meta.get("HTTPStatusCode") or 0)
    caused = (response.get("error") or {}).get("errorCode")
    cause = word(caused) if caused else ""
    return AwsError(
        classify(code, status, cause, write=write),
        code,
        message,
        status=status,
        service=service,
        operation=operation,
        cause=cause,
        request_id=word(meta["RequestId"]) if meta.get("RequestId") else "",
    )


def _clean(message: str) -> str:
    # SignatureDoesNotMatch quotes the request with its session token, on lines of their own.
    return line(message.partition("The Canonical String")[0])


# ---------------------------------------------------------------- codes


def classify(code: str, status: int, cause: str = "", *, write: bool) -> ErrorClass:
    """The class of a response's code. `cause` is Storage Gateway's errorCode, "" elsewhere."""
    # The query protocol's codes, which SQS still answers with, have a prefix: AWS.SimpleQueueService.X
    bare = code.removeprefix("AWS.SimpleQueueService.").removesuffix("Exception").removesuffix("Fault")
    if bare == "InvalidGatewayRequest":
        return _gateway(cause)
    for error_class, matches in _CODES:
        if matches.fullmatch(bare):
            return error_class
    if status == 429:
        return ErrorClass.THROTTLED
    # The service may have failed after it applied the request; it sends 503 before it applies anything. A
    # response without a code is not AWS's, but a proxy's, for example.
    if status >= 500 or status == 0 or not code or code.isdigit():
        return ErrorClass.UNKNOWN_OUTCOME if write and status != 503 else ErrorClass.TRANSIENT
    if status in (401, 403):
        return ErrorClass.ACCESS_DENIED
    return ErrorClass.NOT_FOUND if status == 404 else ErrorClass.INVALID_REQUEST


def _gateway(cause: str) -> ErrorClass:
    """InvalidGatewayRequestException: both "too many refreshes" and "cannot access the share", so causes
    that are not known are worth another try."""
    for error_class, matches in _GATEWAY_CAUSES:
        if matches.fullmatch(cause):
            return error_class
    return ErrorClass.TRANSIENT


def _codes(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


# On codes without their Exception. In order: a key that is not found (KMS.NotFound) is no missing queue.
_CODES: Final = (
    (
        ErrorClass.THROTTLED,
        _codes(
            r".*Throttl\w*",  # Throttling, RequestThrottled, EC2Throttled, KMS.Throttling
            r"TooManyRequests|RequestLimitExceeded|BandwidthLimitExceeded|ProvisionedThroughputExceeded",
            r"SlowDown|LimitExceeded|OverLimit|PriorRequestNotComplete|TransactionInProgress",
        ),
    ),
    (
        ErrorClass.NO_IDENTITY,
        _codes(
            r"ExpiredToken|RequestExpired|RequestTimeTooSkewed|InvalidClientTokenId|InvalidAccessKeyId",
            r"UnrecognizedClient|AuthFailure|SignatureDoesNotMatch|InvalidSignature|IncompleteSignature",
            r"MissingAuthenticationToken\w*|InvalidToken|TokenRefreshRequired|NotAuthorizedForToken",
            r"InvalidIdentityToken|IDPRejectedClaim|IDPCommunicationError|OptInRequired",
        ),
    ),
    (
        ErrorClass.ACCESS_DENIED,
        _codes(r"(KMS\.|Kms)?AccessDenied\w*", r"UnauthorizedOperation|NotAuthorized|Forbidden|Unauthorized"),
    ),
    (ErrorClass.INVALID_REQUEST, _codes(r"(KMS\.|Kms)\w+", r"ReceiptHandleIsInvalid|MessageNotInflight")),
    (
        ErrorClass.NOT_FOUND,
        _codes(
            r".*NotFound(Error)?",  # ResourceNotFound, InvalidInstanceID.NotFound, ClusterNotFound
            r".*DoesNotExist|NonExistentQueue|NoSuch\w+",
        ),
    ),
    (
        ErrorClass.IN_PROGRESS,
        _codes(
            r".*InProgress|QueueDeletedRecently|ResourceInUse|Conflict|ConcurrentModification|OperationAborted",
            r"IncorrectState|IncorrectInstanceState|ConflictingOperation",
        ),
    ),
    (ErrorClass.TRANSIENT, _codes(r"RequestTimeout|ServiceUnavailable\w*|Unavailable")),
)
_GATEWAY_CAUSES: Final = (
    (ErrorClass.NOT_FOUND, _codes(r".*NotFound")),
    (ErrorClass.ACCESS_DENIED, _codes(r"UnauthorizedOperation|IAMNotSupported")),
    (ErrorClass.NO_IDENTITY, _codes(r"AuthenticationFailure")),
    (
        ErrorClass.INVALID_REQUEST,
        _codes(r"InvalidParameters|ParametersNotImplemented|RegionInvalid|NotImplemented|NotSupported"),
    ),
    (ErrorClass.IN_PROGRESS, _codes(r".*InProgress|GatewayProxyNetworkConnectionBusy")),
)
