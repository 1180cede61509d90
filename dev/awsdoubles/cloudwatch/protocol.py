"""The AWS side of the double: JSON 1.0, which botocore prefers of CloudWatch's protocols.

Each request is checked against botocore's model of the service before it can have an effect. Every call is
logged, refused ones too. An error also has the header of services that once spoke the query protocol.
"""

import asyncio
import functools
import json
import re
import time
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

import botocore.session
from aiohttp import web

from awsdoubles.clients import ACCOUNT
from awsdoubles.cloudwatch.operations import AwsError, get_metric_data, metrics_named
from awsdoubles.cloudwatch.state import Fault, Faults, World
from awsdoubles.gateway.shapes import constraint_errors, summary, type_errors
from awsdoubles.serverthread import reset
from awsdoubles.spoiled import spoiled

TARGET: Final = "GraniteServiceVersion20100801."
OPERATION: Final = "GetMetricData"
_SCOPE: Final = re.compile(r"AWS4-HMAC-SHA256 .*Credential=([^/]+)/\d{8}/([^/]+)/monitoring/aws4_request")

Json = dict[str, Any]


@functools.cache
def model() -> Any:
    """botocore's model of the service."""
    return botocore.session.get_session().get_service_model("cloudwatch")


class Protocol:
    """Answers GetMetricData alone."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults

    async def handle(self, request: web.Request) -> web.Response:
        """One request. The ledger is read at any time: a call stands there once all of it has come."""
        sent = await request.read()
        operation = request.headers.get("X-Amz-Target", "").removeprefix(TARGET)
        entry: Json = {"operation": operation, "at": time.time(), "input": {}, "region": "", "code": ""}
        entry |= {"status": 200, "key": ""}
        self._world.calls.append(entry)
        taken: dict[str, Fault] = {}
        headers = {"x-amzn-RequestId": str(uuid4())}
        try:
            body = self._admit(request, sent, operation, entry)
            taken |= self._faults.take(operation, metrics_named(body))
            answer = self._perform(entry["region"], body, taken)
        except AwsError as error:
            entry |= {"status": error.status, "code": error.code}
            headers["x-amzn-query-error"] = f"{error.code};{'Sender' if error.status < 500 else 'Receiver'}"
            answer = {"__type": f"com.amazonaws.cloudwatch#{error.code}", "message": str(error)}
        if "delay" in taken:
            await asyncio.sleep(taken["delay"].seconds)
        if "lose_reply" in taken:
            entry["code"] = "(reply lost)"
            return reset(request)
        return web.Response(
            text=spoiled(json.dumps(answer), taken),
            status=entry["status"],
            content_type="application/x-amz-json-1.0",
            headers=headers,
        )

    def _admit(self, request: web.Request, sent: bytes, operation: str, entry: Json) -> Json:
        """The checked input."""
        if operation != OPERATION:
            raise AwsError("UnknownOperationException", f"The double has no operation {operation!r}.")
        signed = _SCOPE.match(request.headers.get("Authorization", ""))
        if signed is None:
            raise AwsError(
                "MissingAuthenticationToken", "Request is missing Authentication Token", status=403
            )
        entry |= {"key": signed[1], "region": signed[2]}
        try:
            body = json.loads(sent or b"{}")
        except ValueError as error:
            raise AwsError("SerializationException", f"not JSON: {error}") from None
        entry["input"] = body
        shape = model().operation_model(operation).input_shape
        if wrong := type_errors(shape, body):
            raise AwsError("SerializationException", "; ".join(wrong))
        body = {name: value for name, value in body.items() if value is not None}
        if broken := constraint_errors(shape, body):
            raise AwsError("ValidationError", summary(broken))
        return body

    def _perform(self, region: str, body: Json, taken: Mapping[str, Fault]) -> Json:
        now = time.time() + self._world.ahead
        if refused := taken.get("refuse"):
            raise AwsError(refused.code, refused.message, status=refused.status)
        if not self._world.admits(region, now):
            raise AwsError("Throttling", "Rate exceeded")
        if self._world.denied:
            raise AwsError(
                "AccessDenied",
                f"User: arn:aws:sts::{ACCOUNT}:assumed-role/caretaker/caretaker is not authorized to "
                f"perform: cloudwatch:{OPERATION} because no identity-based policy allows the "
                f"cloudwatch:{OPERATION} action",
                status=403,
            )
        return get_metric_data(self._world, region, body, now, taken)
