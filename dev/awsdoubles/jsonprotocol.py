"""AWS's JSON protocol: requests in, answers or AWS's errors out; the operations are those of a double.

Each request is checked against botocore's model of the service before it can have an effect. Every call is
logged, refused ones too.
"""

import asyncio
import functools
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import botocore.session
from aiohttp import web

from awsdoubles.faults import FaultList
from awsdoubles.gateway.shapes import constraint_errors, summary, type_errors
from awsdoubles.serverthread import reset
from awsdoubles.spoiled import spoiled

Json = dict[str, Any]


class AwsError(Exception):
    """An error in AWS's form."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


@functools.cache
def model_of(service: str) -> Any:
    """botocore's model of a service."""
    return botocore.session.get_session().get_service_model(service)


class JsonProtocol(ABC):
    """Answers the operations of a double, and no others."""

    service: ClassVar[str]  # as botocore names it
    signing: ClassVar[str]  # as signatures name it
    target: ClassVar[str]  # before the operation in X-Amz-Target
    version: ClassVar[str]
    operations: ClassVar[Collection[str]]
    unsigned: ClassVar[AwsError]
    invalid: ClassVar[str]  # the code of a broken constraint

    def __init__(self, calls: list[Json], faults: FaultList[Any]) -> None:
        self._calls = calls
        self._faults = faults

    @abstractmethod
    def things(self, body: Json) -> Sequence[str]:
        """The things of a call that a fault may name."""

    @abstractmethod
    def perform(self, operation: str, region: str, body: Json, taken: Mapping[str, Any]) -> Json:
        """The answer to a checked call; AwsError refuses it."""

    def error_type(self, error: AwsError) -> tuple[str, dict[str, str]]:
        """The `__type` of an error, and headers beside it."""
        return error.code, {}

    async def handle(self, request: web.Request) -> web.Response:
        """One request. The ledger is read at any time: a call stands there once all of it has come."""
        sent = await request.read()
        operation = request.headers.get("X-Amz-Target", "").removeprefix(self.target)
        entry: Json = {"operation": operation, "at": time.time(), "input": {}, "region": "", "code": ""}
        entry |= {"status": 200, "key": ""}
        self._calls.append(entry)
        taken: dict[str, Any] = {}
        headers = {"x-amzn-RequestId": str(uuid4())}
        try:
            body = self._admit(request, sent, operation, entry)
            taken |= self._faults.take(operation, self.things(body))
            _refuse(taken)
            answer = self.perform(operation, entry["region"], body, taken)
        except AwsError as error:
            entry |= {"status": error.status, "code": error.code}
            kind, more = self.error_type(error)
            headers |= more
            answer = {"__type": kind, "message": str(error)}
        if "delay" in taken:
            await asyncio.sleep(taken["delay"].seconds)
        if "lose_reply" in taken:
            entry["code"] = "(reply lost)"
            return reset(request)
        return web.Response(
            text=spoiled(json.dumps(answer), taken),
            status=entry["status"],
            content_type=f"application/x-amz-json-{self.version}",
            headers=headers,
        )

    def _admit(self, request: web.Request, sent: bytes, operation: str, entry: Json) -> Json:
        """The checked input."""
        if operation not in self.operations:
            raise AwsError("UnknownOperationException", f"The double has no operation {operation!r}.")
        scope = rf"AWS4-HMAC-SHA256 .*Credential=([^/]+)/\d{{8}}/([^/]+)/{self.signing}/aws4_request"
        signed = re.match(scope, request.headers.get("Authorization", ""))
        if signed is None:
            raise AwsError(self.unsigned.code, str(self.unsigned), status=self.unsigned.status)
        entry |= {"key": signed[1], "region": signed[2]}
        try:
            body = json.loads(sent or b"{}")
        except ValueError as error:
            raise AwsError("SerializationException", f"not JSON: {error}") from None
        entry["input"] = body
        shape = model_of(self.service).operation_model(operation).input_shape
        if wrong := type_errors(shape, body):
            raise AwsError("SerializationException", "; ".join(wrong))
        body = {name: value for name, value in body.items() if value is not None}
        if broken := constraint_errors(shape, body):
            raise AwsError(self.invalid, summary(broken))
        return body


def _refuse(taken: Mapping[str, Any]) -> None:
    if refused := taken.get("refuse"):
        raise AwsError(refused.code, refused.message, status=refused.status)
