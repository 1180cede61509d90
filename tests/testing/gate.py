"""A gate in front of an AWS double: lets every call through, and acts around those that a test picks.

Inputs: the address behind it; operations by name, as AWS's JSON protocols, EC2's and the query protocol have
them. One gate stands for one client, so that a test can kill the process whose call it was. Without a stop it
must change nothing.

    with Gate(gateway.url) as gate:
        gate.stop_at("RefreshCache", before=operator.kill9, forward=False)
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs

import aiohttp
from aiohttp import web
from yarl import URL

from awsdoubles.serverthread import ServerThread, reset

Callback = Callable[[], object]
_OWN_HEADERS: Final = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "date"}


@dataclass(frozen=True, eq=False)
class Stop:
    """Acts on the next call of an operation, once.

    before, after  run in a thread around the call, which waits for them
    forward        False: the call never reaches the double; its connection is reset
    where          which calls of the operation, by their bodies
    """

    operation: str
    before: Callback | None = None
    after: Callback | None = None
    forward: bool = True
    where: Callable[[bytes], bool] = lambda _: True


class Gate(ServerThread):
    """See the module."""

    def __init__(self, upstream: str) -> None:
        super().__init__()
        self._upstream = upstream.rstrip("/")
        self._stops: list[Stop] = []
        self._lock = threading.Lock()
        self._works: set[asyncio.Task[web.Response]] = set()
        self._session: aiohttp.ClientSession

    def stop_at(
        self,
        operation: str,
        *,
        before: Callback | None = None,
        after: Callback | None = None,
        forward: bool = True,
        where: Callable[[bytes], bool] = lambda _: True,
    ) -> Stop:
        """Act on the next call of this operation."""
        stop = Stop(operation, before, after, forward, where)
        with self._lock:
            self._stops.append(stop)
        return stop

    def remove(self, stop: Stop) -> None:
        """Let the call through after all. Harmless when it has been made."""
        with self._lock, contextlib.suppress(ValueError):
            self._stops.remove(stop)

    def routes(self) -> list[web.RouteDef]:
        """Everything."""
        return [web.route("*", "/{path:.*}", self._handle)]

    async def opened(self) -> None:
        """A client without limits of its own."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            auto_decompress=False,
        )

    async def closing(self) -> None:
        """Drop what is under way."""
        for work in self._works:
            work.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)
        await self._session.close()

    def _take(self, operation: str, body: bytes) -> Stop | None:
        with self._lock:
            for stop in self._stops:
                if stop.operation == operation and stop.where(body):
                    self._stops.remove(stop)
                    return stop
        return None

    async def _handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        stop = self._take(_operation(request, body), body)
        if stop is None:
            return await self._forward(request, body)
        # A process that is gone has its handler cancelled; what it has sent arrives all the same.
        work = asyncio.create_task(self._acting(request, body, stop))
        self._works.add(work)
        work.add_done_callback(self._works.discard)
        return await asyncio.shield(work)

    async def _acting(self, request: web.Request, body: bytes, stop: Stop) -> web.Response:
        if stop.before is not None:
            await asyncio.to_thread(stop.before)
        answer = await self._forward(request, body) if stop.forward else reset(request)
        if stop.after is not None:
            await asyncio.to_thread(stop.after)
        return answer

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _OWN_HEADERS}
        url = URL(self._upstream + request.raw_path, encoded=True)
        try:
            sent = self._session.request(
                request.method, url, headers=headers, data=body or None, allow_redirects=False
            )
            async with sent as response:
                kept = {k: v for k, v in response.headers.items() if k.lower() not in _OWN_HEADERS}
                return web.Response(status=response.status, headers=kept, body=await response.read())
        except aiohttp.ClientError:  # a double that resets its connection resets ours
            return reset(request)


def _operation(request: web.Request, body: bytes) -> str:
    """In the JSON protocols a header names it, in the others the form's Action."""
    target = request.headers.get("X-Amz-Target", "")
    if target or request.content_type != "application/x-www-form-urlencoded":
        return target.rpartition(".")[2]
    return parse_qs(body.decode()).get("Action", [""])[0]
