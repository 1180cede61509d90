"""The errors between caretaker and the API server, as two exceptions.

Inputs: an HTTP status and, where the server sent one, its metav1.Status. Callers decide about
backoff, retries and reports.
"""

import re
from collections.abc import Awaitable, Mapping
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")

# The server's own "try again later" besides 5xx: too many requests, and a request that it timed out.
_TRANSIENT = (0, 408, 429)
_TERMINATING = " is being terminated"  # of the admission plugin NamespaceLifecycle
# forbiddenMessage in k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go
_NOT_PERMITTED = re.compile(r'cannot (\w+) resource "([^"]+)"')


class NotLeader(Exception):  # noqa: N818 - the name of a state
    """A write was not sent: the Lease is not held, or would not outlive the write's timeout."""


class ApiError(Exception):
    """The API server refused, failed, or did not answer.

    status       HTTP status; 0 = no answer (connection refused or lost, timeout): the request may or may
                 not have been executed
    reason       metav1.Status.reason (NotFound, AlreadyExists, Conflict, Expired ...); for status 0 a word
                 of ours: Timeout, Unreachable, StreamStalled
    retry_after  seconds the server asked to wait (Retry-After or details.retryAfterSeconds), or None
    causes       (field, message) pairs of details.causes: which field of the object was refused, and why
    verb, path   the request
    unsent       no connection was opened: the request was not executed
    """

    def __init__(
        self,
        status: int,
        reason: str = "",
        message: str = "",
        *,
        retry_after: float | None = None,
        causes: tuple[tuple[str, str], ...] = (),
        verb: str = "",
        path: str = "",
        unsent: bool = False,
    ) -> None:
        super().__init__(status, reason, message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = causes
        self.verb = verb
        self.path = path
        self.unsent = unsent

    def __str__(self) -> str:
        request = f"{self.verb} {self.path}: ".lstrip()
        return f"{request if self.path else ''}{self.status or 'no answer'} {self.reason}: {self.message}"

    @property
    def not_found(self) -> bool:
        """404."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """409 because the resourceVersion (or a precondition) no longer holds."""
        return self.status == 409 and self.reason != "AlreadyExists"

    @property
    def already_exists(self) -> bool:
        """409 because the name is taken."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def gone(self) -> bool:
        """410: the resourceVersion or continue token is too old to be served."""
        return self.status == 410

    @property
    def throttled(self) -> bool:
        """429."""
        return self.status == 429

    @property
    def forbidden(self) -> bool:
        """403: RBAC, a quota or an admission policy."""
        return self.status == 403

    @property
    def terminating(self) -> bool:
        """403 because the namespace is being deleted: nothing can be created in it any more."""
        return self.forbidden and any(
            field == "metadata.namespace" and message.endswith(_TERMINATING) for field, message in self.causes
        )

    @property
    def missing_permission(self) -> tuple[str, str] | None:
        """(verb, resource with its subresource) that RBAC does not grant; None for any other refusal."""
        found = _NOT_PERMITTED.search(self.message) if self.forbidden else None
        return (found[1], found[2]) if found else None

    @property
    def invalid(self) -> bool:
        """422: the object breaks its schema or its validation rules."""
        return self.status == 422

    @property
    def not_executed(self) -> bool:
        """Whether it is certain that the request changed nothing. After 5xx it is not: the store may have
        answered too late; nor after a 409 AlreadyExists, which may be the answer to a copy of it."""
        return self.unsent or (400 <= self.status < 500 and self.status != 408 and not self.already_exists)

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later without any change."""
        return self.status in _TRANSIENT or self.status >= 500


class _Cause(msgspec.Struct):
    field: str = ""
    message: str = ""


class _Details(msgspec.Struct, rename="camel"):
    causes: tuple[_Cause, ...] | None = None
    retry_after_seconds: float = 0


class Status(msgspec.Struct):
    """metav1.Status, as far as it is read."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


_decode_status = msgspec.json.Decoder(Status).decode


async def or_none(call: Awaitable[T]) -> T | None:
    """The result of a read; None if the object does not exist."""
    try:
        return await call
    except ApiError as error:
        if error.not_found:
            return None
        raise


def error_from(
    status: int, body: bytes, headers: Mapping[str, str] | None = None, *, verb: str = "", path: str = ""
) -> ApiError:
    """The ApiError of a refused request, or of an ERROR event in a watch (status 0: take the body's code).

    `body` is a metav1.Status or, from a proxy or load balancer, any text.
    """
    try:
        answer = _decode_status(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        answer = Status(message=body[:500].decode(errors="replace"))
    details = answer.details or _Details()
    return ApiError(
        status or answer.code,
        answer.reason,
        answer.message,
        retry_after=_seconds((headers or {}).get("Retry-After")) or details.retry_after_seconds or None,
        causes=tuple((cause.field, cause.message) for cause in details.causes or ()),
        verb=verb,
        path=path,
    )


def _seconds(header: str | None) -> float | None:
    """Retry-After in seconds; the API server never sends its other form, a date."""
    return float(header) if header is not None and header.isascii() and header.isdigit() else None


STRICT_DRY_RUN: Final = {"dryRun": "All", "fieldValidation": "Strict"}
# fieldValidation=Strict: 'unknown field "spec.x", duplicate field "spec.y"'. For an object that is created it
# has no causes; for one that is patched it has the cause `patch`, with the whole object before these words.
_DECODING: Final = "strict decoding error: "
_STRICT: Final = re.compile(r'(unknown|duplicate) field "([^"]+)"')


def by_admission(error: ApiError) -> bool:
    """Whether a policy or webhook refused, and not the Pod's own validation. The status code does not show
    it, since either may choose it (a ValidatingAdmissionPolicy's default is 422 Invalid). The texts are those
    of k8s.io/apiserver, admission.NewForbidden and webhook/errors.ToStatusErr."""
    return error.forbidden or " is forbidden: " in error.message or "admission webhook" in error.message


def faults_in(error: ApiError) -> list[tuple[str, str]]:
    """(field, fault) pairs of a refusal, from its causes or from the text of strict decoding."""
    # "some validation rules were not checked" comes with field <nil> beside the actual faults.
    if named := [(field, message) for field, message in error.causes if field not in ("<nil>", "patch")]:
        return named
    patch = next((message for field, message in error.causes if field == "patch"), "")
    return _undecoded(patch or error.message) or [("", error.message)]


def _undecoded(message: str) -> list[tuple[str, str]]:
    """The fields that strict decoding names; none for another refusal."""
    _, refused, words = message.rpartition(_DECODING)
    return [(field, f"{what} field") for what, field in _STRICT.findall(words)] if refused else []
