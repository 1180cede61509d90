"""The double of CloudFront: CreateInvalidation in AWS's protocol, in a thread of a test.

    with CloudFront() as cloudfront:
        cloudfront.distributions.add("EDFDVBD6EXAMPLE")

Requests are checked against botocore's model and the developer guide's rules for paths. An invalidation
completes `lag` seconds after it was accepted; until then it counts towards the limits of its distribution.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4
from xml.etree import ElementTree as Xml
from xml.sax.saxutils import escape

import botocore.session
from aiohttp import web

from awsdoubles.clients import ACCOUNT
from awsdoubles.gateway.shapes import constraint_errors, summary, type_errors
from awsdoubles.serverthread import ServerThread, reset

# "Concurrent invalidation request maximum", Amazon CloudFront developer guide.
MAX_FILES: Final = 3000
MAX_WILDCARDS: Final = 15
NAMESPACE: Final = "http://cloudfront.amazonaws.com/doc/2020-05-31/"
_SCOPE: Final = re.compile(r"AWS4-HMAC-SHA256 .*Credential=[^/]+/\d{8}/[a-z0-9-]+/cloudfront/aws4_request")
# The wildcard stands at the end; unsafe characters (RFC 1738), and all but ASCII, are encoded.
_PATH: Final = re.compile(r"/([A-Za-z0-9/._$!&'(),:;=@+?-]|%[0-9A-Fa-f]{2})*\*?")
_LONGEST_PATH: Final = 4000
# Characters that viewers write in two ways: S3 gives "+" for a space; browsers encode the others or not.
_TWICE: Final = {" ": ("%20", "+"), **{one: (one, quote(one)) for one in "+*?[]^|\\"}, "~": ("~", "%7E")}


@dataclass
class Invalidation:
    """One that was accepted."""

    id: str
    distribution: str
    reference: str
    paths: tuple[str, ...]
    ends: float

    @property
    def completed(self) -> bool:
        return time.monotonic() >= self.ends


@dataclass
class Fault:
    """For the next `count` calls: `hold` the request, act and `delay` or `lose` the reply, or `refuse`."""

    action: str
    count: int = 1
    seconds: float = 3600.0
    status: int = 503
    code: str = "ServiceUnavailable"


class RefusedError(Exception):
    """The answer of the service instead of a result."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


def covered(key: str, paths: Collection[str]) -> bool:
    """Whether the paths hold the object in every spelling: CloudFront compares text."""
    spellings = (
        "/" + "".join(_TWICE[one][way] if one in _TWICE else quote(one, safe="/!$&'(),:;=@") for one in key)
        for way in (0, 1)
    )
    return all(
        any(text.startswith(path[:-1]) if path.endswith("*") else text == path for path in paths)
        for text in spellings
    )


class CloudFront(ServerThread):
    """Its state is in memory. `calls` has every call that came, refused ones too: (reference, code)."""

    def __init__(self) -> None:
        super().__init__()
        self.distributions: set[str] = set()
        self.invalidations: list[Invalidation] = []
        self.calls: list[tuple[str, str]] = []
        self.faults: list[Fault] = []
        self.denied = False
        self.lag = 0.0
        model = botocore.session.get_session().get_service_model("cloudfront")
        self._shape = model.operation_model("CreateInvalidation").input_shape

    def routes(self) -> list[web.RouteDef]:
        """The one operation."""
        return [web.post("/2020-05-31/distribution/{id}/invalidation", self._handle)]

    async def opened(self) -> None:
        """Nothing is needed."""

    async def closing(self) -> None:
        """Nothing is held."""

    async def _handle(self, request: web.Request) -> web.Response:
        sent = await request.read()
        fault = self._taken()
        place = len(self.calls)
        self.calls.append(("", "(none)"))
        if fault.action == "hold":  # it ends with the connection
            await asyncio.sleep(fault.seconds)
        reference = ""
        try:
            given = self._given(request, sent)
            reference = given["InvalidationBatch"]["CallerReference"]
            made = self._create(given, fault)
        except RefusedError as error:
            self.calls[place] = (reference, error.code)
            return _answer(_error(error), error.status)
        self.calls[place] = (reference, "")
        if fault.action == "delay":
            await asyncio.sleep(fault.seconds)
        return reset(request) if fault.action == "lose" else _answer(_shown(made), 201)

    def _taken(self) -> Fault:
        found = next((one for one in self.faults if one.count > 0), Fault(""))
        found.count -= 1
        return found

    def _given(self, request: web.Request, sent: bytes) -> dict[str, Any]:
        """The checked input."""
        if _SCOPE.match(request.headers.get("Authorization", "")) is None:
            raise RefusedError("MissingAuthenticationToken", "Missing Authentication Token", 403)
        if self.denied:
            raise RefusedError(
                "AccessDenied",
                f"User: arn:aws:sts::{ACCOUNT}:assumed-role/caretaker/caretaker is not authorized to "
                "perform: cloudfront:CreateInvalidation on resource: "
                f"arn:aws:cloudfront::{ACCOUNT}:distribution/{request.match_info['id']} because no "
                "identity-based policy allows it",
                403,
            )
        found = {"DistributionId": request.match_info["id"], "InvalidationBatch": _batch(sent)}
        wrong = type_errors(self._shape, found) or constraint_errors(self._shape, found)
        if wrong:
            raise RefusedError("InvalidArgument", summary(wrong))
        return found

    def _create(self, given: dict[str, Any], fault: Fault) -> Invalidation:
        if fault.action == "refuse":
            raise RefusedError(fault.code, "injected by the test", fault.status)
        distribution, batch = given["DistributionId"], given["InvalidationBatch"]
        paths, reference = tuple(batch["Paths"].get("Items", ())), batch["CallerReference"]
        if distribution not in self.distributions:
            raise RefusedError("NoSuchDistribution", "The specified distribution does not exist.", 404)
        if batch["Paths"]["Quantity"] != len(paths):
            raise RefusedError("InconsistentQuantities", "Quantity is not the number of items.")
        if not paths or not all(_PATH.fullmatch(one) and len(one) <= _LONGEST_PATH for one in paths):
            raise RefusedError(
                "InvalidArgument", "Your request contains one or more invalid invalidation paths."
            )
        there = [one for one in self.invalidations if one.distribution == distribution]
        for one in there:
            if one.reference == reference:
                if set(one.paths) != set(paths):
                    raise RefusedError("InvalidationBatchAlreadyExists", "It exists with other paths.")
                return one
        running = Counter(path.endswith("*") for one in there if not one.completed for path in one.paths)
        running.update(path.endswith("*") for path in paths)
        if running[True] > MAX_WILDCARDS or running[False] > MAX_FILES:
            raise RefusedError(
                "TooManyInvalidationsInProgress",
                "Your request exceeds the limit of invalidations in progress.",
            )
        name = f"I{uuid4().hex[:13].upper()}"
        made = Invalidation(name, distribution, reference, paths, time.monotonic() + self.lag)
        self.invalidations.append(made)
        return made


def _batch(sent: bytes) -> dict[str, Any]:
    """InvalidationBatch as botocore's model has it."""
    try:
        root = Xml.fromstring(sent)  # noqa: S314 - of the operator under test
    except Xml.ParseError as error:
        raise RefusedError("MalformedXML", str(error)) from None
    within = f"{{{NAMESPACE}}}"
    quantity = root.findtext(f"{within}Paths/{within}Quantity")
    items = [one.text or "" for one in root.findall(f"{within}Paths/{within}Items/{within}Path")]
    found: dict[str, Any] = {"Paths": {"Items": items}}
    if quantity is not None:
        found["Paths"]["Quantity"] = int(quantity)
    if (reference := root.findtext(f"{within}CallerReference")) is not None:
        found["CallerReference"] = reference
    return found


def _shown(one: Invalidation) -> str:
    paths = "".join(f"<Path>{escape(path)}</Path>" for path in one.paths)
    return (
        f'<Invalidation xmlns="{NAMESPACE}"><Id>{one.id}</Id>'
        f"<Status>{'Completed' if one.completed else 'InProgress'}</Status>"
        f"<CreateTime>{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}</CreateTime><InvalidationBatch>"
        f"<Paths><Quantity>{len(one.paths)}</Quantity><Items>{paths}</Items></Paths>"
        f"<CallerReference>{escape(one.reference)}</CallerReference></InvalidationBatch></Invalidation>"
    )


def _error(error: RefusedError) -> str:
    return (
        f'<ErrorResponse xmlns="{NAMESPACE}"><Error><Type>Sender</Type><Code>{error.code}</Code>'
        f"<Message>{escape(str(error))}</Message></Error><RequestId>{uuid4()}</RequestId></ErrorResponse>"
    )


def _answer(text: str, status: int) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/xml")
