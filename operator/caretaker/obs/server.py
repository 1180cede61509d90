"""The operator's own HTTP servers: /metrics on one port, /healthz and /readyz on another (or the same).

Inputs: a prometheus registry and named checks, each a function that returns None while all is well, or
the reason in one line. A check that raises counts as failed. The checks define health, and `authorize` the
access to metrics.

Health checks do not wait for metrics, nor for clients that send no request. Each connection serves one
request; connections are bounded in duration and number, requests in size. Metrics are rendered outside the
event loop, so that collectors must be thread-safe.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Final, NamedTuple, cast

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

Check = tuple[str, Callable[[], str | None]]
# Takes a bearer token; returns OK, or the status of the refusal.
Authorize = Callable[[str], Awaitable[HTTPStatus]]

SHUTDOWN_SECONDS: Final = 1.0
PIECE: Final = 16 * 1024
# Between two responses with metrics, in seconds: hundreds of them at once would delay all passes.
TURN_SECONDS: Final = 0.01
MAX_CONNECTIONS: Final = 256
# For request, work and response together: Prometheus' default scrape timeout.
CONNECTION_SECONDS: Final = 10.0
# Of one request: a token and what proxies add. All connections with as much take 25 MiB.
MAX_REQUEST_BYTES: Final = 16 * 1024
OPENMETRICS: Final = "application/openmetrics-text"


class ConnectionLimiter:
    """A protocol factory for loop.create_server() that wraps another one.

    Beyond `limit` connections the oldest one without a request is closed; if all have sent one, the new one
    is closed. Every connection is closed `seconds` after it was opened.
    """

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        limit: int = MAX_CONNECTIONS,
        seconds: float = CONNECTION_SECONDS,
    ) -> None:
        self._factory = factory
        self._limit = limit
        self._seconds = seconds
        self._idle: dict[asyncio.Transport, asyncio.TimerHandle] = {}  # without a request; the oldest first
        self._active: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def __call__(self) -> asyncio.BaseProtocol:
        """The protocol of one connection."""
        return _LimitedProtocol(cast(asyncio.Protocol, self._factory()), self)

    def __len__(self) -> int:
        return len(self._idle) + len(self._active)

    def opened(self, transport: asyncio.Transport) -> bool:
        """A connection was accepted; returns whether it is kept."""
        if len(self) >= self._limit:
            if not self._idle:
                transport.abort()
                return False
            oldest = next(iter(self._idle))
            # Before connection_lost(): the loop accepts up to a hundred connections in one turn.
            self.closed(oldest)
            oldest.abort()
        timer = asyncio.get_running_loop().call_later(self._seconds, transport.abort)
        self._idle[transport] = timer
        return True

    def request_received(self, transport: asyncio.BaseTransport | None) -> None:
        """A whole request was received on it."""
        if isinstance(transport, asyncio.Transport) and transport in self._idle:
            self._active[transport] = self._idle.pop(transport)

    def closed(self, transport: asyncio.Transport) -> None:
        """A connection was closed."""
        for group in (self._idle, self._active):
            if transport in group:
                group.pop(transport).cancel()


class _LimitedProtocol(asyncio.Protocol):
    """Passes up to MAX_REQUEST_BYTES on to the inner protocol, and reports opening and closing."""

    def __init__(self, inner: asyncio.Protocol, limiter: ConnectionLimiter) -> None:
        self._inner = inner
        self._limiter = limiter
        self._transport: asyncio.Transport | None = None
        self._left = MAX_REQUEST_BYTES
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        kept = cast(asyncio.Transport, transport)
        # aiohttp raises if a connection is lost in the turn in which it was made.
        if self._limiter.opened(kept):
            self._transport = kept
            self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left >= 0:
            self._inner.data_received(data)
        elif self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._limiter.closed(self._transport)
            self._inner.connection_lost(exc)


class _Format:
    """One of the formats. `next`: the next rendering; `at`: when the last one began."""

    def __init__(self, accept: str) -> None:
        # Only two of the formats that clients may request: each format is rendered separately.
        self.encode, self.content_type = choose_encoder(accept)
        self.next: asyncio.Task[bytes] | None = None
        self.at = float("-inf")


class Exposition:
    """Renders the text of all metrics, at most once in `every` seconds for any number of requests. That of a
    request is rendered after it arrived, never before."""

    def __init__(self, registry: CollectorRegistry, every: float = 1.0) -> None:
        self._registry = registry
        self._every = every
        self._plain = _Format("")
        self._openmetrics = _Format(f"{OPENMETRICS}; version=1.0.0")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")

    async def get(self, accept: str) -> tuple[bytes, str]:
        """The text and its content type. Requests that arrive before a rendering begins share it."""
        wanted = {part.partition(";")[0].strip() for part in accept.split(",")}
        form = self._openmetrics if OPENMETRICS in wanted else self._plain
        if form.next is None:
            form.next = asyncio.create_task(self._make(form), name="metrics")
        return await asyncio.shield(form.next), form.content_type

    async def _make(self, form: _Format) -> bytes:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(form.at + self._every - loop.time())
        form.at = loop.time()
        form.next = None
        return await loop.run_in_executor(self._thread, form.encode, self._registry)

    def close(self) -> None:
        """Stop rendering. Waiting requests are cancelled."""
        for form in (self._plain, self._openmetrics):
            if form.next is not None:
                form.next.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)


class ListenError(OSError):
    """A port could not be opened; the message names the flag for another one."""


class ListenPorts(NamedTuple):
    """The ports that are open."""

    metrics_port: int
    health_port: int


class ObsServer:
    """Serves metrics and health.

    `healthz` and `readyz` may be appended to while it runs. 200 `ok` while every check passes, else 503
    with one line `name: reason` for each that does not; `?verbose` lists all of them. `authorize` checks the
    bearer tokens of requests for metrics; without it no token is needed.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        healthz: Iterable[Check] = (),
        readyz: Iterable[Check] = (),
        *,
        authorize: Authorize | None = None,
        metrics_every: float = 1.0,
    ) -> None:
        self._exposition = Exposition(registry, metrics_every)
        self._authorize = authorize
        self._turn = asyncio.Lock()
        self.healthz: list[Check] = list(healthz)
        self.readyz: list[Check] = list(readyz)
        self._runners: list[web.AppRunner] = []
        self._servers: list[asyncio.Server] = []

    async def start(self, host: str, metrics_port: int, health_port: int) -> ListenPorts:
        """Listen on `host`, on all addresses where it is empty, IPv4 and IPv6 as the machine has them; port 0
        takes a free one; two equal ports other than 0 share one server.

        Raises ListenError when a port cannot be opened; nothing is left open then.
        """
        metrics = web.get("/metrics", self._metrics)
        health = [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]
        try:
            if metrics_port == health_port != 0:
                port = await self._listen([metrics, *health], host, metrics_port, "--metrics-port")
                return ListenPorts(port, port)
            return ListenPorts(
                await self._listen([metrics], host, metrics_port, "--metrics-port"),
                await self._listen(health, host, health_port, "--health-port"),
            )
        except ListenError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close every port. Open requests have SHUTDOWN_SECONDS to end."""
        loop = asyncio.get_running_loop()
        for server in self._servers:
            for listening in server.sockets:
                loop.remove_reader(listening)
        # A connection that was just accepted has a transport in the next turn and a handler in the one after.
        # Before, asyncio loses it as the server closes, and nothing would end it.
        for _ in range(3):
            await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._exposition.close()
        while self._runners:
            await self._runners.pop().cleanup()

    async def _listen(self, routes: list[web.RouteDef], host: str, port: int, flag: str) -> int:
        app = web.Application()
        app.add_routes(routes)
        # No lingering: a body that a client does not send must not keep its connection open.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, lingering_time=0)
        self._runners.append(runner)
        try:
            listening = _bind(host, port)
        except OSError as error:
            why = "the port is in use" if error.errno == errno.EADDRINUSE else str(error.strerror or error)
            raise ListenError(
                f"cannot listen on {host or '*'}:{port}: {why}; another: {flag} (0 takes a free one)"
            ) from error

        def protocol() -> asyncio.BaseProtocol:
            assert runner.server is not None  # noqa: S101 - setup() has made it
            return runner.server()

        connections = ConnectionLimiter(protocol)
        app.middlewares.append(_close_after_response(connections))
        await runner.setup()
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(connections, sock=listening))
        bound: int = listening.getsockname()[1]
        return bound

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        if self._authorize is not None:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            bearer = scheme.lower() == "bearer" and token.strip()
            status = await self._authorize(token.strip()) if bearer else HTTPStatus.UNAUTHORIZED
            if status is not HTTPStatus.OK:
                headers = {"WWW-Authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else {}
                return web.Response(status=status, text=f"{status.phrase}\n", headers=headers)
        text, content_type = await self._exposition.get(request.headers.get("Accept", ""))
        async with self._turn:
            if request.transport is not None and not request.transport.is_closing():
                await asyncio.sleep(TURN_SECONDS)
        # The header as it is: aiohttp's content_type argument refuses parameters.
        answer = web.StreamResponse(headers={"Content-Type": content_type})
        answer.content_length = len(text)
        answer.force_close()
        with contextlib.suppress(ConnectionError):  # the client has closed the connection
            await answer.prepare(request)
            # In pieces, each after the one before was sent: a slow reader needs no copy of the text.
            for start in range(0, len(text), PIECE):
                await answer.write(memoryview(text)[start : start + PIECE])
                await asyncio.sleep(0)  # there may be hundreds of slow readers
        return answer

    async def _healthz(self, request: web.Request) -> web.Response:
        return _answer(self.healthz, verbose="verbose" in request.query)

    async def _readyz(self, request: web.Request) -> web.Response:
        return _answer(self.readyz, verbose="verbose" in request.query)


def _close_after_response(connections: ConnectionLimiter) -> Middleware:
    """Reports each request to `connections`, and closes the connection after the response."""

    @web.middleware
    async def once(request: web.Request, handler: Handler) -> web.StreamResponse:
        connections.request_received(request.transport)
        try:
            answer = await handler(request)
        except web.HTTPException as error:
            error.force_close()
            raise
        answer.force_close()
        return answer

    return once


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket; one of both families where no host is named, since the kubelet probes a pod at
    an address of either family."""
    if host:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=socket.AddressFamily(family))
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # in the kernel, but without any address
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _answer(checks: list[Check], *, verbose: bool) -> web.Response:
    results = [(name, _run(check)) for name, check in checks]
    failed = any(reason for _, reason in results)
    lines = [f"{name}: {reason or 'ok'}" for name, reason in results if reason or verbose]
    text = "\n".join(lines) if lines else "ok"
    return web.Response(status=503 if failed else 200, text=text + "\n")


def _run(check: Callable[[], str | None]) -> str | None:
    try:
        return check()
    except Exception as error:  # noqa: BLE001  a broken check is a failed check, never a broken server
        return f"the check itself failed: {error!r}"
