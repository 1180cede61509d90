"""Wraps botocore's parsers: every response that is not a valid AWS response becomes one error.

Inputs: HTTP responses. botocore alone returns {} for truncated JSON, the body as the error message, and a
response without members for HTML that is valid XML; its parsers raise arbitrary exceptions. Nothing of a body
is shown, except code and message of an AWS error.
"""

import json
import re
from typing import Any, Final

import botocore.session
from botocore.parsers import ResponseParserFactory

from caretaker.aws.response_check import UNREADABLE, fault_of

# Matches "AWS.SimpleQueueService.NonExistentQueue" and "InvalidInstanceID.NotFound", too. For an error
# without a code botocore sets the digits of the status.
_CODE: Final = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9_.:-]{1,100}")
_ERROR: Final = 300  # the lowest HTTP status of an error


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
        self._json = protocol == "json"

    def parse(self, response: dict[str, Any], shape: Any) -> dict[str, Any]:
        """See ResponseParser.parse."""
        status: int = response["status_code"]
        parsed: dict[str, Any] = {}
        fault = ""
        try:
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
        return _unreadable(fault, status) if fault else parsed

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
