"""The AWS side of the double: signed forms in, XML out, for EC2 and Auto Scaling at one address.

The service and the region are those that a request is signed for; the signature itself is not checked. Every
call is in the ledger, refused ones too. What is wrong with a call is found in this order: its form, faults
set by the test, the token bucket, its members, permission, then the thing that it is about.
"""

import asyncio
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

import botocore.session
from aiohttp import web

from awsdoubles.ec2 import answers, operations, sources, sourcewrites
from awsdoubles.ec2.errors import AwsError
from awsdoubles.ec2.faults import DRY_RUN, Fault, Faults
from awsdoubles.ec2.query import check, decode
from awsdoubles.ec2.state import World
from awsdoubles.ec2.throttle import bucket_of
from awsdoubles.gateway.shapes import constraint_errors, summary
from awsdoubles.serverthread import reset
from awsdoubles.spoiled import spoiled

_SCOPE: Final = re.compile(r"AWS4-HMAC-SHA256 .*Credential=[^/]+/\d{8}/([^/]+)/([^/]+)/aws4_request")

Json = dict[str, Any]
Operation = Callable[[World, str, Json, Mapping[str, Fault]], Json]


@dataclass(frozen=True)
class Service:
    """One of the two; `codes` are its own words for EC2's."""

    name: str
    operations: Mapping[str, Operation]
    ec2: bool
    codes: Mapping[str, str] = field(default_factory=dict)


EC2: Final = Service(
    "ec2",
    {
        "DescribeInstances": operations.describe_instances,
        "ModifyInstanceMetadataOptions": operations.modify_metadata_options,
        "GetInstanceMetadataDefaults": operations.metadata_defaults,
        "DescribeLaunchTemplates": sources.describe_templates,
        "DescribeLaunchTemplateVersions": sources.describe_template_versions,
        "DescribeTags": sources.describe_tags,
        "CreateLaunchTemplateVersion": sourcewrites.create_template_version,
        "ModifyLaunchTemplate": sourcewrites.modify_template,
    },
    ec2=True,
)
AUTO_SCALING: Final = Service(
    "autoscaling",
    {
        "DescribeAutoScalingGroups": sources.describe_groups,
        "UpdateAutoScalingGroup": sourcewrites.update_group,
    },
    ec2=False,
    # "Common error types" of Auto Scaling.
    codes={
        "RequestLimitExceeded": "Throttling",
        "UnauthorizedOperation": "AccessDenied",
        "InvalidParameterValue": "ValidationError",
        "MissingParameter": "ValidationError",
    },
)
SERVICES: Final = {one.name: one for one in (EC2, AUTO_SCALING)}


@functools.cache
def model(service: str) -> Any:
    """botocore's model; EC2's takes a good half second to load, once for a process."""
    return botocore.session.get_session().get_service_model(service)


class Protocol:
    """Answers the operations that caretaker uses, and no others."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults

    async def handle(self, request: web.Request) -> web.Response:
        """One request. The ledger is read at any time: a call stands there once all of it has come."""
        form = await request.text()
        entry: Json = {"service": "", "region": "", "operation": "", "params": {}, "code": ""}
        entry |= {"at": self._world.clock.now(), "status": 200}
        self._world.calls.append(entry)
        service, taken = EC2, dict[str, Fault]()
        try:
            service, body = self._admit(request, form, entry)
            taken |= self._faults.take(entry["operation"], _instances_named(body))
            if "lose_request" in taken:
                entry |= {"status": 0, "code": "(request lost)"}
                return reset(request)
            text = self._perform(service, entry, body, taken)
        except AwsError as refused:
            error = refused.named(service.codes.get(refused.code, refused.code))
            entry |= {"status": error.status, "code": error.code, "message": str(error)}
            text = (answers.ec2_error if service.ec2 else answers.query_error)(error)
        if "delay" in taken:
            await asyncio.sleep(taken["delay"].seconds)
        if "lose_reply" in taken:
            entry["replyLost"] = True
            return reset(request)
        text = spoiled(text, taken)
        return web.Response(text=text, status=entry["status"], content_type="text/xml")

    def _admit(self, request: web.Request, form: str, entry: Json) -> tuple[Service, Json]:
        """The service and the typed input."""
        signed = _SCOPE.match(request.headers.get("Authorization", ""))
        if signed is None:
            raise AwsError("MissingAuthenticationToken", "Request is missing Authentication Token")
        entry |= {"region": signed[1], "service": signed[2]}
        service = SERVICES.get(signed[2])
        if service is None:
            raise AwsError("AuthFailure", f"The request is signed for {signed[2]!r}.")
        fields = dict(parse_qsl(form, keep_blank_values=True))
        entry["operation"] = operation = fields.get("Action", "")
        known = model(service.name)
        if operation not in service.operations or fields.get("Version") != known.api_version:
            raise AwsError("InvalidAction", f"The action {operation} is not valid for this web service.")
        shape = known.operation_model(operation).input_shape
        entry["params"] = body = decode(shape, fields, ec2=service.ec2)
        return service, body

    def _perform(self, service: Service, entry: Json, body: Json, taken: Mapping[str, Fault]) -> str:
        operation, region = entry["operation"], entry["region"]
        if refused := taken.get("refuse"):
            raise AwsError(refused.code, refused.message, status=refused.status)
        buckets = self._world.buckets
        if self._world.settings.throttling and not buckets.take(region, *bucket_of(operation, body)):
            raise AwsError("RequestLimitExceeded", "Request limit exceeded.")
        known = model(service.name).operation_model(operation)
        _valid(service, known.input_shape, operation, body)
        if operation in self._world.denied:
            raise AwsError("UnauthorizedOperation", self._world.denied[operation])
        result = service.operations[operation](self._world, region, body, taken)
        if body.get("DryRun"):
            raise AwsError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
        written = answers.ec2_result if service.ec2 else answers.query_result
        return written(operation, known.output_shape, result)


def _valid(service: Service, shape: Any, operation: str, body: Json) -> None:
    if service.ec2:
        check(shape, body)
    elif broken := constraint_errors(shape, body):
        raise AwsError("ValidationError", summary(broken))
    if operation == "ModifyInstanceMetadataOptions":
        operations.valid_options(body)


def _instances_named(body: Json) -> list[str]:
    named = [body["InstanceId"]] if "InstanceId" in body else list(body.get("InstanceIds", []))
    return [*named, DRY_RUN] if body.get("DryRun") else named
