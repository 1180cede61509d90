"""An HTTP service, called by POST with the claim's id as Idempotency-Key.

Inputs: the spec, a way to read Secrets, the allowed exceptions to api/egress.py. It follows no redirect, uses
no proxy, connects to no address that api/egress.py refuses, and shows nothing of a response but its status
code: the author of the URL must not read, through status, a server that only the operator can reach.
"""

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import aiohttp

from caretaker import __version__
from caretaker.api.durations import seconds
from caretaker.api.egress import Egress, host_of
from caretaker.api.objects import Wire
from caretaker.api.s3refresh import Spec
from caretaker.kube.errors import ApiError
from caretaker.s3refresh.debounce import UNKNOWN, Claim
from caretaker.s3refresh.match import Share, of_buckets
from caretaker.s3refresh.snapshot import Discovery, Result
from caretaker.s3refresh.target_types import TargetType
from caretaker.s3refresh.targets import TargetClient, Tools
from caretaker.s3refresh.targets.headers import (
    FIELD,
    UNREADABLE,
    NotSentError,
    Secret,
    headers_of,
    seconds_of,
)
from caretaker.s3refresh.targets.lookups import Resolver
from caretaker.s3refresh.targets.payload import payload_of

logger = logging.getLogger(__name__)

HEADERS_SECONDS: Final = 60.0  # between two reads of the header Secrets: the operator does not watch Secrets
# Request Timeout, Conflict (by draft-ietf-httpapi-idempotency-key-header: a request with this key is in
# progress), Too Early: the call may have taken effect, or may still do so.
UNDECIDED: Final = frozenset((408, 409, 425))
# Unauthorized, Forbidden, Too Many Requests: sent before the request is processed, so they report nothing
# about an earlier attempt.
UNTRIED: Final = frozenset((401, 403, 429))


# Read of an answer, TLS and certificates included; nothing but its status and headers is of use.
ANSWER_BYTES: Final = 64 * 1024
# At a time: a server may fill them with interim answers, and aiohttp parses them in one turn of the loop.
READ_BYTES: Final = 16 * 1024


class _Socket(socket.socket):
    """A socket that returns at most READ_BYTES a read, and the end of the stream after ANSWER_BYTES."""

    _left = ANSWER_BYTES

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        data = super().recv(min(size, READ_BYTES, self._left), flags) if self._left else b""
        self._left -= len(data)
        return data

    def recv_into(self, buffer: Any, /) -> int:  # type: ignore[override]
        if not self._left:
            return 0
        count = super().recv_into(memoryview(buffer)[: min(READ_BYTES, self._left)])
        self._left -= count
        return count


class HeadersSecret(Wire, frozen=True):
    """A Secret in the resource's own namespace."""

    name: str


class HeadersSource(Wire, frozen=True):
    """Where headers come from: every key of the Secret is one."""

    secret_ref: HeadersSecret


class HttpTarget(TargetType, frozen=True):
    """A POST for each refresh. No success code given = all of 200 to 299."""

    member: ClassVar[str] = "http"
    idempotent: ClassVar[bool] = True
    reports_end: ClassVar[bool] = False

    url: str
    headers_from: tuple[HeadersSource, ...] = ()
    success_codes: tuple[int, ...] = ()
    timeout: str = "10s"
    prefix: str = ""

    @property
    def rediscover(self) -> float:
        return HEADERS_SECONDS if self.headers_from else super().rediscover


TARGET_TYPE: Final = HttpTarget


def make(meant: HttpTarget, spec: Spec, tools: Tools) -> "HttpCalls":
    """The target, which reads its headers from Secrets of the resource's namespace."""
    return HttpCalls(meant, spec.filter.buckets, tools)


class HttpCalls(TargetClient):
    """For the buckets of one resource. The API server's addresses are refused, too. The
    client's guard is asked before a call is made; its NotLeader comes through."""

    def __init__(self, spec: HttpTarget, buckets: Collection[str], tools: Tools) -> None:
        self._spec = spec
        self._buckets = buckets
        self._client = tools.client
        self._resource = tools.resource
        self._call_slots = tools.call_slots
        self._secrets = f"/api/v1/namespaces/{tools.resource.namespace}/secrets"
        self._egress = Egress(tools.egress_allow)
        self._allowed = frozenset(entry.rstrip(".").lower() for entry in tools.egress_allow)
        self._api_server = urlsplit(tools.client.host).hostname or ""
        self._resolver = Resolver(tools.lookups, tools.resource.namespace)

    async def discover(self) -> Discovery:
        """The buckets; none is ready while the URL is invalid. A fault of a Secret does not make them
        unready: it may be fixed before a call is due."""
        try:
            host_of(self._spec.url)
        except ValueError as error:
            shares = of_buckets(self._buckets, self._spec.prefix, ready=False)
            return Discovery(complete=True, shares=shares, faults=(f"spec.target.http.url: {error}",))
        shares = of_buckets(self._buckets, self._spec.prefix)
        try:
            await self._headers()
        except NotSentError as error:
            cause = error.__cause__
            complete = not (isinstance(cause, ApiError) and cause.transient)
            blocked = str(error) if complete else ""
            return Discovery(complete=complete, shares=shares, faults=(str(error),), blocked=blocked)
        return Discovery(complete=True, shares=shares)

    async def refresh(self, share: Share, claim: Claim) -> Result:
        """One POST, once there is a slot; its timeout starts then. A request that is not known to be refused
        or accepted is unknown, and so is an unsent one if an earlier attempt may have been sent."""
        async with self._call_slots.slot(self._resource.namespace, self._resource.uid):
            return await self._refresh(share, claim)

    async def _refresh(self, share: Share, claim: Claim) -> Result:
        timeout = seconds(self._spec.timeout)
        try:
            headers = await self._headers()
            async with asyncio.timeout(timeout):
                status, retry_after = await self._post(payload_of(share, claim), claim.id, headers)
        except NotSentError as error:
            code = UNKNOWN if claim.attempt > 1 else error.code
            return Result(share.id, claim.id, code=code, message=str(error))
        except TimeoutError:
            return Result(share.id, claim.id, code=UNKNOWN, message=f"no answer in {timeout:g} s")
        except (aiohttp.ClientError, OSError) as error:
            message = f"the connection was lost: {type(error).__name__}"
            return Result(share.id, claim.id, code=UNKNOWN, message=message)
        code, message = self._outcome(status, claim)
        wait = seconds_of(retry_after, time.time()) if code else 0.0
        return Result(share.id, claim.id, code=code, message=message, retry_after=wait)

    def _outcome(self, status: int, claim: Claim) -> tuple[str, str]:
        wanted = self._spec.success_codes
        if status in wanted or (not wanted and 200 <= status < 300):
            return "", ""
        if status >= 500 or status in UNDECIDED or (claim.attempt > 1 and status in UNTRIED):
            return UNKNOWN, f"the answer was {status}"
        hint = "; redirects are not followed" if 300 <= status < 400 else ""
        return f"HTTP{status}", f"the answer was {status}{hint}"

    async def _post(self, body: bytes, key: str, headers: Mapping[str, str]) -> tuple[int, str]:
        """The response's status and Retry-After."""
        if self._client.guard is not None:
            self._client.guard(0.0)  # an overlap does no harm: the key makes it one call
        try:
            host = host_of(self._spec.url)
        except ValueError as error:
            raise NotSentError("Unreachable", f"spec.target.http.url: {error}") from error
        api_server = await self._own_addresses()
        refusals: list[str] = []

        def opened(info: tuple[Any, ...]) -> socket.socket:
            """The one place that every connection passes, with the address that it goes to."""
            if refusal := self._egress.refusal(host, str(info[4][0]), api_server):
                refusals.append(refusal)
                raise OSError(errno.EACCES, refusal)
            return _Socket(family=info[0], type=info[1], proto=info[2])

        # A session for each call: calls are minutes apart, and no connection outlives its judgement.
        connector = aiohttp.TCPConnector(
            force_close=True, use_dns_cache=False, resolver=self._resolver, socket_factory=opened
        )
        own = {
            "Content-Type": "application/json",
            "Idempotency-Key": key,
            "User-Agent": f"caretaker/{__version__}",
        }
        try:
            async with (
                aiohttp.ClientSession(
                    connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
                ) as session,
                session.post(
                    self._spec.url, data=body, headers={**own, **headers}, allow_redirects=False
                ) as response,
            ):
                return response.status, response.headers.get("Retry-After", "")
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            if refusals:
                raise NotSentError("AddressRefused", refusals[0]) from error
            # The author of the URL must not learn about the operator's network.
            logger.info("%s cannot be reached: %s", host, getattr(error, "os_error", error))
            raise NotSentError("Unreachable", f"{host} cannot be reached") from error

    async def _own_addresses(self) -> set[str]:
        """The API server's addresses. While its name cannot be resolved, no call is made."""
        with suppress(ValueError):
            return {str(ip_address(self._api_server))}
        try:
            return {one["host"] for one in await self._resolver.resolve(self._api_server)}
        except OSError as error:
            message = f"the API server's host {self._api_server}: {error}"
            raise NotSentError("Unreachable", message) from error

    async def _headers(self) -> dict[str, str]:
        """Later Secrets win, as in a container's envFrom. No message holds a value."""
        found: dict[str, str] = {}
        for source in self._spec.headers_from:
            name = source.secret_ref.name
            try:
                secret = await self._client.get(f"{self._secrets}/{name}", Secret)
            except ApiError as error:
                raise NotSentError(UNREADABLE, f"{FIELD}: Secret {name}: {error}") from error
            found |= headers_of(secret, self._spec.url, self._allowed)
        return found
