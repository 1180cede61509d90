"""botocore's parsers, held to what they read: bytes that are no answer of AWS become one error.

Inputs: HTTP answers. botocore itself hands out {} for JSON that was cut, the body as a message, HTML that
happens to be XML as an answer without members, and raises whatever its parsers run into. Nothing of a body
is told, unless AWS's own form of an error has it.
"""

import json
import re
from typing import Any, Final

import botocore.session
from botocore.parsers import ResponseParserFactory

from caretaker.aws.answers import UNREADABLE, fault_of

# Also of "AWS.SimpleQueueService.NonExistentQueue" and "InvalidInstanceID.NotFound". Digits alone are
# botocore's word for a status without a code.
_CODE: Final = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9_.:-]{1,100}")
_ERROR: Final = 300  # statuses from here on


class UnreadableError(Exception):
    """An answer that is none: cut, empty, another service's, or without what its operation promises."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def install(session: botocore.session.Session) -> None:
    """Have all clients of a session read their answers so, those that botocore makes for credentials too."""
    session.register_component("response_parser_factory", _Factory())
    session.register("after-call", _after_call)


def _after_call(parsed: Any, **_: Any) -> None:
    """After the retries, and after the observer was told."""
    error = parsed.get("Error")
    if isinstance(error, dict) and error.get("Code") == UNREADABLE:
        raise UnreadableError(error["Message"], parsed["ResponseMetadata"]["HTTPStatusCode"])


class _Factory(ResponseParserFactory):  # type: ignore[misc]
    def create_parser(self, protocol_name: str) -> "_Parser":
        return _Parser(super().create_parser(protocol_name), protocol_name)


class _Parser:
    """One of botocore. It returns an error where that one fails, so that retries and observers see it."""

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
        except Exception as error:  # noqa: BLE001 - whatever a parser makes of bytes that are not for it
            fault = f"it is no {shape.name if shape is not None else 'XML or JSON'} ({type(error).__name__})"
        if not isinstance(parsed, dict):
            fault, parsed = "it is no JSON object", {}
        if shape is not None and shape.metadata.get("exception"):
            return parsed  # the second look at an error, for the members that its code has
        if status >= _ERROR:
            return _refusal(parsed, status)
        if not fault and not parsed.keys() - {"ResponseMetadata"} and shape is not None and shape.members:
            fault = self._overlooked(response["body"])
        fault = fault or fault_of(response["context"]["operation_name"], parsed)
        return _none(fault, status) if fault else parsed

    def _overlooked(self, body: Any) -> str:
        """Why an answer without any member is none, where botocore's own reading is too kind to notice."""
        if not body:
            return "it is empty"
        if not self._json:
            return ""
        try:
            found = json.loads(body)
        except ValueError:
            return "it is no JSON"
        return "" if isinstance(found, dict) else "it is no JSON object"


def _refusal(parsed: dict[str, Any], status: int) -> dict[str, Any]:
    """An error in AWS's form as it is. From 500 on the status says all that is needed, whoever answers."""
    error = parsed.get("Error")
    code = error.get("Code") if isinstance(error, dict) else None
    if isinstance(code, str) and _CODE.fullmatch(code):
        return parsed
    if status < 500:
        return _none(f"HTTP {status} without an error code of AWS", status)
    return {"Error": {"Code": str(status), "Message": ""}, "ResponseMetadata": _meta(status)}


def _none(fault: str, status: int) -> dict[str, Any]:
    message = f"the answer cannot be read: {fault}"
    return {"Error": {"Code": UNREADABLE, "Message": message}, "ResponseMetadata": _meta(status)}


def _meta(status: int) -> dict[str, Any]:
    return {"HTTPStatusCode": status, "HTTPHeaders": {}}
