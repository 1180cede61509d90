"""The errors of calls to AWS, as one exception with a class for its handling and, where a user can act, a
remedy; limits on text from AWS.

Pure. responses.py makes them of what botocore returns and raises. Callers decide about retries. It must not
carry a secret: messages are cut where AWS appends the request. Text from AWS that is shown or kept (a word, a
line, a name) has limits: with an endpoint from a tenant's spec, the tenant may control it.
"""

import re
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from caretaker.aws.services import iam_action

MAX_CHARACTERS: Final = 200
SCANNED_CHARACTERS: Final = 4096
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_WORD: Final = re.compile(r"[\w=+/.:-]{1,100}", re.ASCII)

# An ARN, a name or an ID within an answer. The longest that AWS describes has 2,048 characters.
Name = Annotated[str, msgspec.Meta(max_length=2048)]


def line(message: str) -> str:
    """The first line of a message, without control characters, cut to MAX_CHARACTERS."""
    return _CONTROL.sub(" ", message[:SCANNED_CHARACTERS].partition("\n")[0]).strip()[:MAX_CHARACTERS]


def word(value: object) -> str:
    """A code or an ID, unchanged; "?" for any other value."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else "?"


class ErrorClass(StrEnum):
    """The class of an error, the same for all services."""

    NOT_FOUND = "NotFound"
    THROTTLED = "Throttled"
    ACCESS_DENIED = "AccessDenied"
    NO_IDENTITY = "NoIdentity"  # no credentials, or AWS does not know or trust them
    IN_PROGRESS = "InProgress"
    INVALID_REQUEST = "InvalidRequest"
    TRANSIENT = "Transient"
    UNKNOWN_OUTCOME = "UnknownOutcome"


class AwsError(Exception):
    """AWS refused, failed, or did not respond.

    error_class  its class
    code         AWS's code (QueueDoesNotExist), or UnreadableAnswer for a response that is not AWS's; with
                 status 0 one of our own: Timeout, Unreachable, ConnectionLost, AddressRefused,
                 CertificateNotTrusted, InvalidParameters, InvalidRegion, NoCredentials, TooManyClients
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
        action_match = _NOT_AUTHORIZED.search(message[:SCANNED_CHARACTERS])
        message = _clean(message)
        super().__init__(error_class, code, message)
        self.error_class = error_class
        self.code = code
        self.message = message
        self._denied_action = action_match[1][:MAX_CHARACTERS] if action_match else ""
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

    def remedy(self, aws: str, credentials: str, identity: str) -> str:
        """An action of the user, or "". `aws`: the part of the spec that names the region; `credentials`: the
        action if there are none; `identity`: the one that lacks the permission."""
        if self.access_denied and self.service == "sts":
            return "let the operator's identity assume it in its trust policy, and allow that sts:AssumeRole"
        if self.access_denied:
            return f"allow {self.missing_permission} to {identity}"
        if self.no_identity:
            return credentials
        if self.not_found and self.service == "sqs":
            return f"correct the URL and {aws}.region, or create the queue"
        return ""


_TRANSIENT_CLASSES: Final = frozenset(
    (ErrorClass.THROTTLED, ErrorClass.IN_PROGRESS, ErrorClass.TRANSIENT, ErrorClass.UNKNOWN_OUTCOME)
)
# "User: ARN is not authorized to perform: sqs:receivemessage on resource: ARN because ..." (IAM user guide,
# "Troubleshoot access denied error messages").
_NOT_AUTHORIZED: Final = re.compile(r"not authorized to perform:? ([\w-]+:\w+)")


def _clean(message: str) -> str:
    # SignatureDoesNotMatch quotes the request with its session token, on lines of their own.
    return line(message.partition("The Canonical String")[0])
