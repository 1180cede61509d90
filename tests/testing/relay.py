"""What ApiProxy does with one request: apply the rules, forward it, apply the rules, reply.

Lives in the proxy's loop. A request that was forwarded is seen through though its client is gone, as a
real API server would. It must not decide which faults happen: that is the rules'.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

import aiohttp
from aiohttp import web

from testing.apicalls import Call, Ledger, classify
from testing.faults import Exchange, Reply, Rule
from testing.staleness import RevisionClock, revision_of
from testing.upstream import Upstream

_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "te", "trailer", "host"}
)
_RST: Final = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: the kernel sends RST instead of FIN

Lines = tuple[float, bytes]  # (arrival by time.monotonic, whole lines of a watch; b"" at its end)


class Watch:
    """An open watch, and how the test wants it to end."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.last_words: bytes | None = None
        self._ended = asyncio.Event()

    def end(self, last_words: bytes | None) -> None:
        """Send `last_words` and close; None: reset the connection."""
        self.last_words = last_words
        self._ended.set()

    async def ended(self) -> None:
        """Wait for `end`."""
        await self._ended.wait()


class Relay:
    """Handles the requests of one client. `rules` is replaced as a whole, from any thread."""

    def __init__(self, client: str, upstream: Upstream, ledger: Ledger) -> None:
        self.rules: tuple[Rule, ...] = ()
        self.watches: set[Watch] = set()
        self.faults: list[BaseException] = []  # what callbacks raised
        self.clock: RevisionClock | None = None  # set once a stale view is asked for
        self._client = client
        self._upstream = upstream
        self._ledger = ledger
        self._requests: set[asyncio.Task[web.StreamResponse]] = set()
        self._changed = asyncio.Event()

    def pulse(self) -> None:
        """Wake what waits for a rule to go."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """aiohttp's handler, for every path."""
        body = await request.read()
        query, headers = dict(request.query), _end_to_end(request.headers)
        agent = request.headers.get("User-Agent", "")
        call = classify(self._client, request.method, request.path, query, agent, body)
        self._ledger.add(call)
        exchange = Exchange(call, request.method, request.rel_url.raw_path, query, headers, body)
        if call.verb == "watch":
            return await self._watch(request, exchange)
        # Shielded: aiohttp cancels the handler of a client that is gone.
        task = asyncio.create_task(self._unary(request, exchange))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        return await asyncio.shield(task)

    async def abandon(self) -> None:
        """Cancel what is under way."""
        for task in list(self._requests):
            task.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    async def current_revision(self) -> int:
        """The API server's resourceVersion now. Raises aiohttp.ClientError."""
        async with self._upstream.send("GET", "/api/v1/namespaces", {"limit": "1"}, {}, b"") as response:
            return revision_of(await response.read())

    async def sample_revisions(self) -> None:
        """Feed the clock, once there is one, until cancelled."""
        while True:
            await asyncio.sleep(RevisionClock.INTERVAL)
            if self.clock is not None:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    self.clock.sample(await self.current_revision())

    # ------------------------------------------------------------ one request

    async def _unary(self, request: web.Request, exchange: Exchange) -> web.StreamResponse:
        try:
            taken = await self._before(exchange)
            if not exchange.done:
                await self._forward(exchange)
                await self._after(exchange, taken)
        except Exception as error:  # noqa: BLE001  a callback's: the test hears of it when the proxy stops
            self.faults.append(error)
            exchange.reset = True
        return self._reply(request, exchange)

    async def _before(self, exchange: Exchange) -> list[Rule]:
        taken = []
        for rule in self.rules:
            if not rule.take(exchange.call):
                continue
            taken.append(rule)
            await rule.action.before(exchange)
            if rule.action.hangs:
                await self._gone(rule)
                exchange.reset = True
            if exchange.done:
                break
        return taken

    async def _after(self, exchange: Exchange, taken: list[Rule]) -> None:
        for rule in taken:
            if exchange.reply is not None:
                await rule.action.after(exchange)

    async def _gone(self, rule: Rule) -> None:
        while rule in self.rules:
            await self._changed.wait()

    async def _forward(self, exchange: Exchange) -> None:
        try:
            async with self._send(exchange) as response:
                exchange.reply = Reply(response.status, await response.read(), _end_to_end(response.headers))
        except (aiohttp.ClientError, OSError):  # the API server is down, or went down
            exchange.reset = True

    def _send(self, exchange: Exchange) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._upstream.send(
            exchange.method, exchange.path, exchange.query, exchange.headers, exchange.body
        )

    def _reply(self, request: web.Request, exchange: Exchange) -> web.StreamResponse:
        if exchange.reset or exchange.reply is None:
            self._ledger.answered(exchange.call, 0)
            return _reset(request)
        reply = exchange.reply
        self._ledger.answered(exchange.call, reply.status)
        return web.Response(status=reply.status, body=reply.body, headers=reply.headers)

    # ------------------------------------------------------------ one watch

    async def _watch(self, request: web.Request, exchange: Exchange) -> web.StreamResponse:
        try:
            taken = await self._before(exchange)
            if exchange.done:
                return self._reply(request, exchange)
            async with self._send(exchange) as upstream:
                if upstream.status == 200:
                    return await self._stream(request, exchange.call, upstream)
                exchange.reply = Reply(upstream.status, await upstream.read(), _end_to_end(upstream.headers))
                await self._after(exchange, taken)
        except (aiohttp.ClientError, OSError):
            exchange.reset = True
        except Exception as error:  # noqa: BLE001  a callback's
            self.faults.append(error)
            exchange.reset = True
        return self._reply(request, exchange)

    async def _stream(
        self, request: web.Request, call: Call, upstream: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=200, headers=_end_to_end(upstream.headers))
        watch = Watch(call)
        self.watches.add(watch)  # before the client can know that it is open
        try:
            await response.prepare(request)
            self._ledger.answered(call, 200)
            whole = await self._carry(watch, upstream, response)
        finally:
            self.watches.discard(watch)
        if watch.last_words is not None:
            with contextlib.suppress(OSError):  # the client went first
                await response.write(watch.last_words)
        elif not whole:
            return _reset(request, response)
        return response

    async def _carry(
        self, watch: Watch, upstream: aiohttp.ClientResponse, response: web.StreamResponse
    ) -> bool:
        """Copy until a side or the test ends it. Whether the API server ended it in order."""
        pump = asyncio.create_task(self._pump(watch.call, upstream, response))
        ended = asyncio.create_task(watch.ended())
        try:
            await asyncio.wait({pump, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pump, ended):
                task.cancel()
            await asyncio.gather(pump, ended, return_exceptions=True)
        return not pump.cancelled() and pump.exception() is None

    async def _pump(self, call: Call, upstream: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        """Copy lines, each when the rules let it go. Raises what broke either side."""
        queue: asyncio.Queue[Lines] = asyncio.Queue()
        reader = asyncio.create_task(_read_lines(upstream, queue))
        try:
            lines = b"more"
            while lines:
                arrived, lines = await queue.get()
                for line in self._units(call, lines):
                    await self._hold(call, arrived, line)
                    await response.write(line)
            await reader
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def _units(self, call: Call, lines: bytes) -> list[bytes]:
        """What is held back as one: a line, or everything while no rule looks at it."""
        if lines and any(rule.match.fits(call) for rule in self.rules):
            return lines.splitlines(keepends=True)
        return [lines]

    async def _hold(self, call: Call, arrived: float, line: bytes) -> None:
        while True:
            changed, until = self._changed, 0.0
            for rule in self.rules:
                held = rule.action.hold(arrived, line) if rule.match.fits(call) else 0.0
                if held > time.monotonic():
                    rule.hit(call)
                    until = max(until, held)
            wait = until - time.monotonic()
            if wait <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait, 3600.0)):
                    await changed.wait()


async def _read_lines(upstream: aiohttp.ClientResponse, queue: asyncio.Queue[Lines]) -> None:
    """Put whole lines; b"" at the end, however it comes."""
    rest = b""
    try:
        async for chunk in upstream.content.iter_any():
            whole, newline, tail = chunk.rpartition(b"\n")
            if newline:
                queue.put_nowait((time.monotonic(), rest + whole + newline))
                rest = tail
            else:
                rest += chunk
        if rest:
            queue.put_nowait((time.monotonic(), rest))
    finally:
        queue.put_nowait((time.monotonic(), b""))


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


def _reset(request: web.Request, response: web.StreamResponse | None = None) -> web.StreamResponse:
    """Make the client see ECONNRESET. The returned response goes nowhere."""
    if request.transport is not None:
        sock = request.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
        request.transport.abort()
    return response or web.Response()
