"""The AWS side of the double: JSON 1.1 requests in, answers or AWS's errors out.

Each request is checked against botocore's model of the service, maxima included, before it can have an
effect. Every call is logged, refused ones too.
"""

import asyncio
import base64
import binascii
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from uuid import uuid4

import botocore.session
from aiohttp import web

from awsdoubles.gateway.faults import Fault, Faults
from awsdoubles.gateway.refresh import Refresher, RefusedError
from awsdoubles.gateway.shapes import constraint_errors, summary, type_errors
from awsdoubles.gateway.state import Share, World
from awsdoubles.serverthread import reset
from awsdoubles.spoiled import spoiled

TARGET: Final = "StorageGateway_20130630."
PAGE: Final = 100  # shares on a page of ListFileShares when the caller sets no Limit
NO_FAULTS: Final[Mapping[str, Fault]] = {}
_SCOPE: Final = re.compile(r"AWS4-HMAC-SHA256 .*Credential=[^/]+/\d{8}/([^/]+)/storagegateway/aws4_request")

Json = dict[str, Any]
Operation = Callable[[str, Json, Mapping[str, Fault]], Awaitable[Json]]


class AwsError(Exception):
    """What the service answers instead of a result."""

    def __init__(self, code: str, message: str, *, status: int = 400, error_code: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.error_code = error_code

    def response(self) -> web.Response:
        """In AWS's shape."""
        body: Json = {"__type": self.code, "message": str(self)}
        if self.error_code:
            body["error"] = {"errorCode": self.error_code, "errorDetails": {}}
        return _answer(body, self.status)


class Protocol:
    """Answers the operations that caretaker uses, and no others."""

    def __init__(self, world: World, refresher: Refresher, faults: Faults) -> None:
        self._world = world
        self._refresher = refresher
        self._faults = faults
        self._model = botocore.session.get_session().get_service_model("storagegateway")
        self._operations: dict[str, Operation] = {
            "ListFileShares": self._list_file_shares,
            "DescribeNFSFileShares": self._describe_nfs,
            "DescribeSMBFileShares": self._describe_smb,
            "RefreshCache": self._refresh_cache,
        }

    async def handle(self, request: web.Request) -> web.Response:
        """One request. The ledger is read at any time: a call stands there once all of it has come."""
        sent = await request.read()
        operation = request.headers.get("X-Amz-Target", "").removeprefix(TARGET)
        entry: Json = {"operation": operation, "at": time.time(), "input": {}, "region": "", "code": ""}
        self._world.calls.append(entry)
        taken: dict[str, Fault] = {}
        try:
            body = self._admit(request, sent, operation, entry)
            taken |= self._faults.take(operation, _shares_named(body))
            result = await self._perform(operation, entry["region"], body, taken)
        except AwsError as error:
            entry |= {"status": error.status, "code": error.code, "message": str(error)}
            return error.response()
        entry |= {"status": 200, "result": result}
        if "delay" in taken:
            await asyncio.sleep(taken["delay"].seconds)
        if "lose_reply" in taken:
            entry["code"] = "(reply lost)"
            return reset(request)
        return _answer(result, taken=taken)

    def _admit(self, request: web.Request, sent: bytes, operation: str, entry: Json) -> Json:
        """The checked input."""
        if operation not in self._operations:
            raise AwsError("UnknownOperationException", f"The double has no operation {operation!r}.")
        signed = _SCOPE.match(request.headers.get("Authorization", ""))
        if signed is None:
            raise AwsError("MissingAuthenticationTokenException", "Missing Authentication Token")
        entry["region"] = signed[1]
        try:
            body = json.loads(sent or b"{}")
        except ValueError as error:
            raise AwsError("SerializationException", f"not JSON: {error}") from None
        entry["input"] = body
        shape = self._model.operation_model(operation).input_shape
        if wrong := type_errors(shape, body):
            raise AwsError("SerializationException", "; ".join(wrong))
        body = {name: value for name, value in body.items() if value is not None}
        if broken := constraint_errors(shape, body):
            raise AwsError("ValidationException", summary(broken))
        return body

    async def _perform(self, operation: str, region: str, body: Json, taken: Mapping[str, Fault]) -> Json:
        if refused := taken.get("refuse"):
            raise AwsError(
                refused.code, refused.message, status=refused.status, error_code=refused.error_code
            )
        try:
            return await self._operations[operation](region, body, taken)
        except RefusedError as error:
            raise AwsError(
                "InvalidGatewayRequestException", str(error), error_code=error.error_code
            ) from None

    async def _list_file_shares(self, region: str, body: Json, _: Mapping[str, Fault]) -> Json:
        gateway = body.get("GatewayARN", "")
        if gateway and (
            gateway not in self._world.gateways or self._world.gateways[gateway].region != region
        ):
            raise RefusedError("GatewayNotFound", f"The specified gateway {gateway} was not found.")
        after = _decoded(body["Marker"]) if "Marker" in body else ""
        rest = [share for share in self._world.shares_in(region, gateway) if share.arn > after]
        page = rest[: body.get("Limit", PAGE)]
        result: Json = {"FileShareInfoList": [_summary(share) for share in page]}
        if "Marker" in body:
            result["Marker"] = body["Marker"]
        if len(page) < len(rest):
            result["NextMarker"] = base64.urlsafe_b64encode(page[-1].arn.encode()).decode()
        return result

    async def _describe_nfs(self, region: str, body: Json, _: Mapping[str, Fault]) -> Json:
        return {"NFSFileShareInfoList": self._describe(region, body, "NFS")}

    async def _describe_smb(self, region: str, body: Json, _: Mapping[str, Fault]) -> Json:
        return {"SMBFileShareInfoList": self._describe(region, body, "SMB")}

    def _describe(self, region: str, body: Json, protocol: str) -> list[Json]:
        found = [self._share(region, arn) for arn in body["FileShareARNList"]]
        for share in found:
            if share.protocol != protocol:
                raise RefusedError("InvalidParameters", f"{share.arn} is no {protocol} file share.")
        return [_details(share) for share in found]

    async def _refresh_cache(self, region: str, body: Json, taken: Mapping[str, Fault]) -> Json:
        share = self._share(region, body["FileShareARN"])
        refresh = await self._refresher.accept(
            share, body.get("FolderList", ["/"]), taken, recursive=body.get("Recursive", True)
        )
        if "early_completion" in taken:
            await self._refresher.finish(refresh)
        name = {} if "no_id" in taken else {"NotificationId": refresh.id}
        return {"FileShareARN": share.arn, **name}

    def _share(self, region: str, arn: str) -> Share:
        share = self._world.shares.get(arn)
        if share is None or share.gateway.region != region:
            raise RefusedError("InvalidParameters", f"The specified file share {arn} was not found.")
        return share


def _answer(body: Json, status: int = 200, taken: Mapping[str, Fault] = NO_FAULTS) -> web.Response:
    return web.Response(
        text=spoiled(json.dumps(body), taken),
        status=status,
        content_type="application/x-amz-json-1.1",
        headers={"x-amzn-RequestId": str(uuid4())},
    )


def _shares_named(body: Json) -> list[str]:
    return [body["FileShareARN"]] if "FileShareARN" in body else list(body.get("FileShareARNList", []))


def _decoded(marker: str) -> str:
    try:
        return base64.urlsafe_b64decode(marker).decode()
    except (binascii.Error, ValueError):
        raise RefusedError("InvalidParameters", "The specified marker is not valid.") from None


def _summary(share: Share) -> Json:
    return {
        "FileShareType": share.protocol,
        "FileShareARN": share.arn,
        "FileShareId": share.id,
        "FileShareStatus": share.status,
        "GatewayARN": share.gateway.arn,
    }


def _details(share: Share) -> Json:
    common = {name: value for name, value in _summary(share).items() if name != "FileShareType"}
    return common | {
        "LocationARN": share.location,
        "Role": f"arn:aws:iam::{share.arn.split(':')[4]}:role/storage-gateway",
        "Path": f"/{share.id}",
        "DefaultStorageClass": "S3_STANDARD",
        "ObjectACL": "private",
        "ReadOnly": False,
        "FileShareName": share.id,
        "BucketRegion": share.gateway.region,
        "Tags": [],
    }
