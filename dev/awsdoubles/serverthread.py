"""An aiohttp server in a thread and loop of its own, so that sync and async code can use it.

It listens on a free loopback port and must be reached through it: what the handlers hold belongs to
their loop. Whoever asks from another network sets `host` before the start.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

from aiohttp import web

from awsdoubles.loopback import LOOPBACK
from testbed.closing import connections_cut, server_closed

MAX_BODY: Final = 64 * 1024 * 1024
_RST: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close at once, with a reset


class ServerThread(ABC):
    """Subclasses give the routes; `opened`, `abandon` and `closing` run in the server's loop."""

    host: str = LOOPBACK

    def __init__(self, port: int = 0) -> None:
        self.port = port  # 0: a free one
        self.loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._stopping: asyncio.Event
        self._fault: BaseException | None = None

    @abstractmethod
    def routes(self) -> list[web.RouteDef]:
        """What it answers."""

    @abstractmethod
    async def opened(self) -> None:
        """Before the first request."""

    async def abandon(self) -> None:  # noqa: B027  nothing by default
        """End requests under way that would hold up the end."""

    @abstractmethod
    async def closing(self) -> None:
        """After the last request."""

    @property
    def url(self) -> str:
        """http://HOST:PORT"""
        return f"http://{self.host}:{self.port}"

    def start(self) -> Self:
        """Listen; after a stop, on the same port again. Raises what kept it from doing so."""
        self._started.clear()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
        self._thread.start()
        self._started.wait()
        self._raise_fault()
        return self

    def stop(self) -> None:
        """End all connections and the thread; raises what ended it early."""
        if self._thread is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed when its start failed
            self.loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._thread = None
        self._raise_fault()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except BaseException:
            if error is None:
                raise

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  handed to the caller's thread
            self._fault = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_routes(self.routes())
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=0.1,
            keepalive_timeout=3600,
            auto_decompress=False,  # what is passed on is passed on as it came
        )
        await self.opened()
        try:
            await runner.setup()
            await web.TCPSite(runner, self.host, self.port).start()
            self.port = runner.addresses[0][1]
            self._started.set()
            await self._stopping.wait()
        finally:
            await self.abandon()
            await server_closed(runner)
            await self.closing()
            await connections_cut()


def reset(request: web.Request) -> web.Response:
    """Make the client see ECONNRESET. The returned response goes nowhere."""
    if request.transport is not None:
        sock = request.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
        request.transport.abort()
    return web.Response()
