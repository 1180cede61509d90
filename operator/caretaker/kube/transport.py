"""One pooled HTTP session to one API server: credentials, guard, timeouts, errors, the lines of a watch.

Inputs: a RestConfig (address, TLS, tokens) and requests as bytes. It must not decode an object, send a
request again that may have been executed (one exception, by aiohttp: a GET or DELETE whose kept-alive
connection was found closed), or let a write pass that the guard refuses.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Self
from weakref import WeakSet

import aiohttp
import msgspec

from caretaker import __version__
from caretaker.api.names import FIELD_MANAGER
from caretaker.kube.errors import ApiError, NotLeader, error_from
from caretaker.kube.permissions import Permissions
from caretaker.kube.rest_config import RestConfig
from caretaker.kube.slots import Slots

Params = Mapping[str, str | int]

READ_SECONDS = 30.0
WRITE_SECONDS = 5.0
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"

_METHODS = {"get": "GET", "list": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}
_WRITES = frozenset(("create", "patch", "delete"))
# Names that tenants write become part of paths: one such as `../../b/secrets/x` would lead, with the
# operator's rights, to another namespace's objects. The characters are those of path segment names
# (k8s.io/apimachinery pkg/api/validation/path) less what URLs give a meaning.
_PATH = re.compile(r"(/(?!\.{1,2}(/|\Z))[A-Za-z0-9._:-]+)+")
# Below the API server's own 90 s (k8s.io/apiserver pkg/server/secure_serving.go, IdleTimeout), so that we
# close an idle connection first and no request finds it closed.
_KEEPALIVE_SECONDS = 60.0
# The reason of an answer that has more bytes than its request allows.
TOO_LARGE: Final = "ResponseTooLarge"
# Bytes of a body or an answer above which its connection is closed: TLS keeps buffers as large as the largest
# message that it has carried (OpenSSL's memory BIOs), and the pool uses all of its connections in turn.
LARGE = 256 * 1024


class Request(msgspec.Struct, frozen=True):
    """One request: verb get | list | create | patch | delete, timeout in seconds. `accept`: how the answer is
    to be encoded; `content_type`: how a body is; `most`: bytes of the answer that are read, 0 = all."""

    verb: str
    path: str
    params: Params | None = None
    accept: str = JSON
    body: bytes | None = None
    timeout: float = READ_SECONDS
    content_type: str = ""
    most: int = 0

    def headers(self) -> dict[str, str]:
        """The headers to send, those of the connection apart."""
        written = self.content_type or (MERGE_PATCH if self.verb == "patch" else JSON)
        return {"Accept": self.accept, **({"Content-Type": written} if self.verb in _WRITES else {})}

    def query(self) -> dict[str, str | int]:
        """The parameters to send."""
        query: dict[str, str | int] = dict(self.params or {})
        if self.verb in _WRITES:
            # The server gives up when we do (k8s.io/apiserver filters/request_deadline.go): it does not
            # execute a queued write after another process holds the Lease.
            query["timeout"] = f"{max(1, round(self.timeout * 1000))}ms"
            if self.verb != "delete":
                query["fieldManager"] = FIELD_MANAGER
        return query


class Transport:
    """One API server.

    host               the server's URL
    default_namespace  the context's namespace, or the one given
    guard              called before each write with the write's timeout in seconds; raises NotLeader
    observe            called with (verb, resource, code, seconds) for each request; code 0 = no response;
                       for a watch, the seconds until it was open
    permissions        gets every refusal and, while a permission is missing, every success
    write_seconds      timeout of a write; must be well below the Lease's duration
    """

    def __init__(self, rest_config: RestConfig, *, namespace: str | None = None, pool: int = 64) -> None:
        self.guard: Callable[[float], None] | None = None
        self.observe: Callable[[str, str, int, float], None] | None = None
        self.permissions = Permissions()
        self.write_seconds = WRITE_SECONDS
        self._rest_config = rest_config
        self._namespace = namespace
        # Instead of the connector's limit: a write waits here before its guard is asked and its timeout
        # starts, and neither a watch nor the Lease ever queues behind a burst of writes.
        self._slots = Slots(pool)
        self._connector = _Connector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            request_class=_GuardedRequest,
            # Lists above 128 KiB would be gzipped: that costs CPU on both sides and gains nothing in a
            # cluster.
            headers={"User-Agent": f"caretaker/{__version__}", "Accept-Encoding": "identity"},
        )

    @property
    def rest_config(self) -> RestConfig:
        """Address and credentials, for other clients of the same server (kopf)."""
        return self._rest_config

    @property
    def host(self) -> str:
        """The API server's URL."""
        return self._rest_config.host

    @property
    def default_namespace(self) -> str:
        """The namespace to work in when none is named."""
        return self._namespace or self._rest_config.namespace

    async def close(self) -> None:
        """Close every connection; requests under way fail."""
        await self._session.close()
        self._connector.abort()
        await asyncio.sleep(0)  # aborted connections are closed in the loop's next round

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def call(self, request: Request, *, urgent: bool = False) -> bytes:
        """Send it and return the body of a 2xx answer.

        urgent (the Lease's own requests): neither queued for a slot nor guarded. Raises NotLeader when the
        guard refuses a write, which then was not sent, and ApiError.
        """
        _check_path(request.verb, request.path)
        async with contextlib.nullcontext() if urgent else self._slots.slot(_group_of(request.path)):
            generation = self._rest_config.generation
            try:
                return await self._send(request, guarded=not urgent)
            except ApiError as error:
                # A 401 was not executed, so sending it again with fresh credentials repeats nothing.
                if error.status != 401 or not await self._rest_config.reload(generation):
                    raise
            return await self._send(request, guarded=not urgent)

    async def stream(
        self,
        path: str,
        params: Params,
        *,
        dead_after: float = 70.0,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncIterator[bytes]:
        """The lines of a watch, each one JSON event of any length, until the server ends it.

        dead_after: seconds without a byte after which it is given up (the server sends a bookmark a
        minute). on_open is called when the server has accepted the watch. Raises ApiError: refused, cut
        (Unreachable) or silent (StreamStalled). Close the generator when leaving early (aclosing).
        """
        _check_path("watch", path)
        started, generation = time.monotonic(), self._rest_config.generation
        headers = await self._headers({"Accept": JSON})
        try:
            async with self._session.get(
                self.host + path,
                params=params,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=dead_after),
                allow_redirects=False,
                **self._rest_config.request,
            ) as response:
                self._report("watch", path, response.status, started)
                if response.status >= 300:
                    if response.status == 401:
                        await self._rest_config.reload(generation)
                    body = await response.read()
                    raise self._error(response.status, body, response.headers, "watch", path)
                self.permissions.granted("watch", path)
                if on_open is not None:
                    on_open()
                try:
                    async for line in lines(response.content):
                        yield line
                finally:
                    _abort(response)
        except TimeoutError as error:
            message = f"nothing came for {dead_after:g} s"
            raise ApiError(0, "StreamStalled", message, verb="watch", path=path) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(error, "watch", path) from error

    async def _send(self, request: Request, *, guarded: bool) -> bytes:
        verb, path = request.verb, request.path
        headers = await self._headers(request.headers())
        if request.body is not None and len(request.body) > LARGE:
            headers = {**headers, "Connection": "close"}
        guard = partial(self.guard, request.timeout) if self.guard and guarded and verb in _WRITES else None
        if guard is not None:
            guard()  # before a connection is opened for nothing
        token = _guard.set(guard)
        started, code = time.monotonic(), 0
        try:
            async with self._session.request(
                _METHODS[verb],
                self.host + path,
                params=request.query(),
                data=request.body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=request.timeout),
                allow_redirects=False,
                **self._rest_config.request,
            ) as response:
                code = response.status
                body = await read(response, request.most)
        except TimeoutError as error:
            message = f"no answer in {request.timeout:g} s"
            raise ApiError(0, "Timeout", message, verb=verb, path=path) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(error, verb, path) from error
        finally:
            _guard.reset(token)
            self._report(verb, path, code, started)
        if code >= 300:
            raise self._error(code, body or b"", response.headers, verb, path)
        self.permissions.granted(verb, path)
        if body is None:
            message = f"the answer has more than {request.most} bytes"
            raise ApiError(code, TOO_LARGE, message, verb=verb, path=path)
        return body

    def _error(self, code: int, body: bytes, headers: Mapping[str, str], verb: str, path: str) -> ApiError:
        error = error_from(code, body, headers, verb=verb, path=path)
        self.permissions.refused(error)
        return error

    async def _headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        authorization = await self._rest_config.authorization()
        return {**headers, "Authorization": authorization} if authorization else headers

    def _report(self, verb: str, path: str, code: int, started: float) -> None:
        if self.observe is not None:
            self.observe(verb, resource_of(path), code, time.monotonic() - started)


_guard: ContextVar[Callable[[], None] | None] = ContextVar("guard", default=None)


class _Connector(aiohttp.TCPConnector):
    """A pool that can abort every connection it has opened. aiohttp forgets one whose answer is cut, late or
    large, and closes it by an orderly TLS shutdown, which waits for the server and may outlive the loop."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._opened: WeakSet[asyncio.Transport] = WeakSet()

    async def connect(self, *args: Any, **named: Any) -> aiohttp.connector.Connection:
        """As aiohttp's."""
        connection = await super().connect(*args, **named)
        if connection.transport is not None:
            self._opened.add(connection.transport)
        return connection

    def abort(self) -> None:
        """Abort every connection that is still open. It is closed in the loop's next round."""
        for transport in self._opened:
            transport.abort()


class _GuardedRequest(aiohttp.ClientRequest):
    """Calls the guard again on the open connection, just before the first byte: opening it may have taken
    long, and a process that was stopped must not, when it continues, send a write that was allowed before."""

    async def send(self, conn: Any) -> aiohttp.ClientResponse:
        """See the class."""
        if (guard := _guard.get()) is not None:
            guard()
        return await super().send(conn)

    async def write_bytes(self, writer: Any, conn: Any, content_length: int | None = None) -> None:
        """With a body, nothing is written before this. Before Python 3.12 it is a task of its own, and the
        loop may do much else first."""
        if (guard := _guard.get()) is not None:
            try:
                guard()
            except NotLeader as error:
                conn.protocol.set_exception(error)  # raised where the response is awaited
                return
        await super().write_bytes(writer, conn, content_length)


def _check_path(verb: str, path: str) -> None:
    """ApiError for a path that no object can have."""
    if not _PATH.fullmatch(path):
        raise ApiError(404, "NotFound", "no object can have such a name", verb=verb, path=path)


def resource_of(path: str) -> str:
    """The plural in an API path: "pods" of /api/v1/namespaces/a/pods/b/status; "" for discovery."""
    parts = path.strip("/").split("/")
    parts = parts[2 if parts[0] == "api" else 3 :]
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    return parts[0] if parts else ""


def _group_of(path: str) -> tuple[str, str]:
    """(namespace, plural) of an API path."""
    return path.partition("/namespaces/")[2].partition("/")[0], resource_of(path)


async def read(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The whole body; None when it has more than `most` bytes. The connection of a large one serves no other
    request."""
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        parts.append(chunk)
        size += len(chunk)
        if size > LARGE and response.connection is not None and response.connection.protocol is not None:
            response.connection.protocol.force_close()
        if 0 < most < size:
            return None
    return b"".join(parts)


async def lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length (StreamReader's own refuse long ones); a last one without its end is dropped."""
    parts: list[bytes] = []
    async for chunk in content.iter_any():
        first, *rest = chunk.split(b"\n")
        parts.append(first)
        if rest:
            for line in (b"".join(parts), *rest[:-1]):
                if line:
                    yield line
            parts = [rest[-1]]


def _abort(response: aiohttp.ClientResponse) -> None:
    """Drop the connection of a watch that is left before its end: an orderly TLS shutdown may take 30 s."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()


def _unreachable(error: BaseException, verb: str, path: str) -> ApiError:
    if isinstance(error, aiohttp.ClientPayloadError):
        message = "the connection was cut"
    else:
        cause = getattr(error, "os_error", error)  # aiohttp's own text names an ssl.SSLContext's address
        message = str(cause) or type(cause).__name__
    unsent = isinstance(error, aiohttp.ClientConnectorError)
    return ApiError(0, "Unreachable", message, verb=verb, path=path, unsent=unsent)
