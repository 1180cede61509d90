"""botocore's responses and exceptions: every failure becomes an AwsError.

Inputs: HTTP responses, exceptions. botocore alone returns {} for truncated JSON, the body as the error
message, and a response without members for HTML that is valid XML; its parsers raise arbitrary exceptions. So
they are wrapped: every response that is not a valid AWS response becomes one error. Nothing of a body is
shown, except code and message of an AWS error. A megabyte of empty lists or elements takes 25 MiB, and the
event loop waits while it is decoded: so the number of the parts has a bound, too.
"""

import json
import re
import ssl
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final
from xml.etree import ElementTree

import botocore.session
import msgspec
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError, ResponseParserFactory
from botocore.response import StreamingBody

from caretaker.aws.errors import AwsError, ErrorClass, word
from caretaker.aws.response_check import UNREADABLE, fault_of
from caretaker.aws.sqs import ReceiveMessageResult

# Matches "AWS.SimpleQueueService.NonExistentQueue" and "InvalidInstanceID.NotFound", too. For an error
# without a code botocore sets the digits of the status.
_CODE: Final = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9_.:-]{1,100}")
BYTES: Final = "Bytes"  # of the body: in ResponseMetadata, beside what botocore has there
_ERROR: Final = 300  # the lowest HTTP status of an error
# Elements and attributes of XML, or lists, objects and commas of JSON. A page of 1,000 instances with all
# their tags has 380,000 elements, with 60 addresses each 480,000; a page of container instances 50,000 parts.
MOST_PARTS: Final = 100_000
MOST_PARTS_OF_EC2: Final = 500_000
_SLICE: Final = 64 * 1024  # bytes of XML that are parsed at a time, which other threads wait for


class UnreadableError(Exception):
    """The response is truncated, empty, from another service, too large, too slow, or lacks a required
    member."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def install(session: botocore.session.Session) -> None:
    """Install the parsers for all clients of a session, also those that botocore makes for credentials."""
    session.register_component("response_parser_factory", _Factory())
    session.register("after-call", _after_call)


def _after_call(parsed: Any, **_: Any) -> None:
    """Raises after the retries, and after the observer has counted the response."""
    error = parsed.get("Error")
    if isinstance(error, dict) and error.get("Code") == UNREADABLE:
        raise UnreadableError(error["Message"], parsed["ResponseMetadata"]["HTTPStatusCode"])


class _Factory(ResponseParserFactory):  # type: ignore[misc]
    def create_parser(self, protocol_name: str) -> "_Parser":
        return _Parser(super().create_parser(protocol_name), protocol_name)


class _Parser:
    """Wraps one of botocore's parsers. It returns an error instead of raising, so that retries and observers
    see it."""

    def __init__(self, parser: Any, protocol: str) -> None:
        self._parser = parser
        self._json = protocol.endswith("json")  # rest-json, too
        parser._parse_xml_string_to_dom = partial(
            _elements, MOST_PARTS_OF_EC2 if protocol == "ec2" else MOST_PARTS
        )

    def parse(self, response: dict[str, Any], shape: Any) -> dict[str, Any]:
        """See ResponseParser.parse."""
        status: int = response["status_code"]
        if isinstance(response["body"], StreamingBody):  # of Lambda: it holds its connection until it is read
            response = {**response, "body": response["body"].read()}
        parsed: dict[str, Any] = {}
        fault = ""
        try:
            if self._json and status < _ERROR and shape is not None and shape.name == _RECEIVED:
                return _received(response["body"], status)
            if self._json:
                _check_parts(response["body"])
            parsed = self._parser.parse(response, shape)
        except Exception as error:  # noqa: BLE001 - a parser raises anything for bytes of another format
            fault = f"it is no {shape.name if shape is not None else 'XML or JSON'} ({type(error).__name__})"
        if not isinstance(parsed, dict):
            fault, parsed = "it is no JSON object", {}
        if shape is not None and shape.metadata.get("exception"):
            return parsed  # botocore parses an error twice: this is the pass for the members of its code
        if status >= _ERROR:
            return _error_of(parsed, status)
        if not fault and not parsed.keys() - {"ResponseMetadata"} and shape is not None and shape.members:
            fault = self._fault_of_empty(response["body"])
        fault = fault or fault_of(response["context"]["operation_name"], parsed)
        if fault:
            return _unreadable(fault, status)
        parsed.setdefault("ResponseMetadata", {})[BYTES] = len(response["body"])
        return parsed

    def _fault_of_empty(self, body: Any) -> str:
        """The fault of a response without any member. botocore accepts some that are not valid."""
        if not body:
            return "it is empty"
        if not self._json:
            return ""
        try:
            found = json.loads(body)
        except ValueError:
            return "it is no JSON"
        return "" if isinstance(found, dict) else "it is no JSON object"


_RECEIVED: Final = ReceiveMessageResult.__name__


def _received(body: bytes, status: int) -> dict[str, Any]:
    """Messages, whose bodies are up to 1 MiB of any text. Unknown members of a message are skipped."""
    try:
        parsed: dict[str, Any] = msgspec.json.decode(body or b"-", type=ReceiveMessageResult)
    except msgspec.ValidationError as error:
        return _unreadable(str(error), status)
    except (msgspec.DecodeError, UnicodeError):
        return _unreadable("it is no JSON" if body else "it is empty", status)
    return {**parsed, "ResponseMetadata": _meta(status)}


def _check_parts(body: bytes) -> None:
    """Of JSON. Commas within strings count, too."""
    if len(body) > MOST_PARTS and sum(body.count(mark) for mark in (b"[", b"{", b",")) > MOST_PARTS:
        raise ResponseParserError


def _elements(most: int, text: bytes) -> ElementTree.Element:
    """Overrides botocore's method, whose exception quotes the whole answer. Entities, which may stand for a
    hundred times their size, need a DOCTYPE."""
    if b"<!DOCTYPE" in text:
        raise ResponseParserError
    parser, left = ElementTree.XMLParser(encoding="utf-8"), most  # noqa: S314 - bounded here
    for at in range(0, len(text), _SLICE):
        some = text[at : at + _SLICE]
        left -= some.count(b"<") - some.count(b"</") + some.count(b"=")
        if left < 0:
            raise ResponseParserError
        parser.feed(some)
    return parser.close()


def _error_of(parsed: dict[str, Any], status: int) -> dict[str, Any]:
    """An error with an AWS code, unchanged. Without a code, a status of 500 or above is the code; a lower one
    is unreadable."""
    error = parsed.get("Error")
    code = error.get("Code") if isinstance(error, dict) else None
    if isinstance(code, str) and _CODE.fullmatch(code):
        return parsed
    if status < 500:
        return _unreadable(f"HTTP {status} without an error code of AWS", status)
    return {"Error": {"Code": str(status), "Message": ""}, "ResponseMetadata": _meta(status)}


def unreadable(fault: str) -> str:
    """The message of an UnreadableError."""
    return f"the answer cannot be read: {fault}"


def _unreadable(fault: str, status: int) -> dict[str, Any]:
    return {"Error": {"Code": UNREADABLE, "Message": unreadable(fault)}, "ResponseMetadata": _meta(status)}


def _meta(status: int) -> dict[str, Any]:
    return {"HTTPStatusCode": status, "HTTPHeaders": {}}


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
