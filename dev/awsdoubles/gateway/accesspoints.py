"""The double of S3 Control: GetAccessPoint in AWS's protocol, beside Storage Gateway.

A request is checked against botocore's model before it can have an effect, and logged with the gateway's
calls. An access point of another account is refused, as by AWS.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4
from xml.sax.saxutils import escape

from aiohttp import web

from awsdoubles.clients import ACCOUNT
from awsdoubles.gateway.faults import Fault, Faults
from awsdoubles.gateway.shapes import constraint_errors, summary, type_errors
from awsdoubles.gateway.state import AccessPoint, World, access_point_arn
from awsdoubles.jsonprotocol import AwsError, model_of
from awsdoubles.serverthread import reset
from awsdoubles.spoiled import spoiled

OPERATION: Final = "GetAccessPoint"
PATH: Final = "/v20180820/accesspoint/{name}"
NAMESPACE: Final = "http://awss3control.amazonaws.com/doc/2018-08-20/"
_SCOPE: Final = re.compile(r"AWS4-HMAC-SHA256 .*Credential=[^/]+/\d{8}/([^/]+)/s3/aws4_request")

Json = dict[str, Any]


def denied(arn: str) -> AwsError:
    """As S3 refuses it without a permission."""
    return AwsError(
        "AccessDenied",
        f"User: arn:aws:sts::{ACCOUNT}:assumed-role/caretaker/caretaker is not authorized to perform: "
        f's3:{OPERATION} on resource: "{arn}" because no identity-based policy allows it',
        status=403,
    )


class S3Control:
    """Answers GetAccessPoint alone."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults

    async def handle(self, request: web.Request) -> web.Response:
        """One request."""
        entry: Json = {"operation": OPERATION, "at": time.time(), "input": {}, "region": "", "code": ""}
        self._world.calls.append(entry)
        taken: dict[str, Fault] = {}
        try:
            given = _admit(request, entry)
            arn = access_point_arn(entry["region"], given["AccountId"], given["Name"])
            taken |= self._faults.take(OPERATION, [arn])
            answer, status = self._perform(arn, given, taken), 200
        except AwsError as error:
            entry |= {"code": error.code, "message": str(error)}
            answer, status = _error(error), error.status
        entry["status"] = status
        if "delay" in taken:
            await asyncio.sleep(taken["delay"].seconds)
        if "lose_reply" in taken:
            entry["code"] = "(reply lost)"
            return reset(request)
        return web.Response(text=spoiled(answer, taken), status=status, content_type="text/xml")

    def _perform(self, arn: str, given: Json, taken: Mapping[str, Fault]) -> str:
        if refused := taken.get("refuse"):
            raise AwsError(refused.code, refused.message, status=refused.status)
        if given["AccountId"] != ACCOUNT or arn in self._world.denied:
            raise denied(arn)
        point = self._world.access_points.get(arn)
        if point is None or time.monotonic() < point.visible_at:
            raise AwsError("NoSuchAccessPoint", "The specified accesspoint does not exist", status=404)
        return _shown(given["Name"], arn, point)


def _admit(request: web.Request, entry: Json) -> Json:
    """The checked input."""
    signed = _SCOPE.match(request.headers.get("Authorization", ""))
    if signed is None:
        raise AwsError("AccessDenied", "Access Denied", status=403)
    given = {"AccountId": request.headers.get("x-amz-account-id"), "Name": request.match_info["name"]}
    entry |= {"region": signed[1], "input": given}
    shape = model_of("s3control").operation_model(OPERATION).input_shape
    if wrong := type_errors(shape, given) or constraint_errors(shape, given):
        raise AwsError("InvalidRequest", summary(wrong))
    return given


def _shown(name: str, arn: str, point: AccessPoint) -> str:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><GetAccessPointResult xmlns="{NAMESPACE}"><Name>{name}</Name>'
        f"<Bucket>{escape(point.bucket)}</Bucket><NetworkOrigin>Internet</NetworkOrigin>"
        "<CreationDate>2026-01-01T00:00:00Z</CreationDate>"
        f"<Alias>{point.alias}</Alias><AccessPointArn>{arn}</AccessPointArn>"
        f"<BucketAccountId>{ACCOUNT}</BucketAccountId></GetAccessPointResult>"
    )


def _error(error: AwsError) -> str:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><ErrorResponse><Error><Code>{error.code}</Code>'
        f"<Message>{escape(str(error))}</Message></Error><RequestId>{uuid4()}</RequestId></ErrorResponse>"
    )
