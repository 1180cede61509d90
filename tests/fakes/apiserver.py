"""A loopback HTTP server whose every answer a test scripts: what no real API server does on demand.

Inputs: a handler for each request, the latest registration that matches. Bodies are those of fakes/answers.py
where a real server has such an answer, and fakes/objects.py is a collection that remembers; both are held to
a real server by tests/integration/kube/test_contract.py. What else a real one does is tested on a real one.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from fakes.answers import Json, event, failure, listing
from testbed.closing import server_closed

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeApiServer:
    """`async with FakeApiServer() as api`; api.requests holds every request in order of arrival."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.url = ""
        self._handlers: list[tuple[str, str, Handler]] = []
        self._runner: web.AppRunner | None = None
        self._arrival = asyncio.Condition()

    def on(self, method: str, path: str, handler: Handler) -> None:
        """Answer `method path` by `handler`; a later one for the same replaces it. A path that ends with "/"
        stands for all below it."""
        self._handlers.insert(0, (method, path, handler))

    async def received(self, count: int) -> None:
        """Wait until so many requests have come in."""
        async with asyncio.timeout(30), self._arrival:
            await self._arrival.wait_for(lambda: len(self.bodies) >= count)

    def kubeconfig(
        self,
        folder: Path,
        user: dict[str, Any] | None = None,
        others: dict[str, str] | None = None,
        cluster: dict[str, str] | None = None,
        **context: str,
    ) -> str:
        """Write a kubeconfig that points here; `others` are more contexts, name -> namespace; `cluster` has
        more to say of it."""
        contexts = {"fake": context} | {name: {"namespace": ns} for name, ns in (others or {}).items()}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url, **(cluster or {})}}],
            "users": [{"name": "fake", "user": user or {"token": "secret"}}],
            "contexts": [
                {"name": name, "context": {"cluster": "fake", "user": "fake", **more}}
                for name, more in contexts.items()
            ],
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        return str(path)

    async def __aenter__(self) -> Self:
        # A handler that hangs on purpose ends with its client.
        self._runner = web.AppRunner(
            self._app(), access_log=None, shutdown_timeout=0.0, handler_cancellation=True
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await server_closed(self._runner)

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        async with self._arrival:
            self._arrival.notify_all()
        for method, path, handler in self._handlers:
            below = path.endswith("/") and request.path.startswith(path)
            if request.method == method and (request.path == path or below):
                return await handler(request)
        return status(failure(404, "NotFound", f"no handler for {request.method} {request.path}"))


def answer(body: Any, code: int = 200) -> web.Response:
    """A JSON answer."""
    return web.json_response(body, status=code)


def paged(every: Sequence[Json]) -> Handler:
    """A list of these objects, in pages as they are requested."""

    async def reply(request: web.Request) -> web.StreamResponse:
        began = int(request.query.get("continue", "0"))
        end = began + int(request.query["limit"])
        return answer(listing(50, *every[began:end], token=str(end) if end < len(every) else ""))

    return reply


def status(body: Json) -> web.Response:
    """A Status as an answer (fakes/answers.py)."""
    seconds = body.get("details", {}).get("retryAfterSeconds")
    headers = {"Retry-After": str(seconds)} if seconds is not None else {}
    return web.json_response(body, status=body["code"], headers=headers)


def refusing(body: Json) -> Handler:
    """A handler that always answers with that Status."""

    async def refuse(_: web.Request) -> web.StreamResponse:
        return status(body)

    return refuse


async def hang(_: web.Request) -> web.StreamResponse:
    """Take the request and never answer."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError


class Stream:
    """The server's end of one watch."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self.request = request
        self._response = response
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send(self, kind: str, item: Any) -> None:
        """Send one event."""
        await self.raw(json.dumps(event(kind, item)).encode() + b"\n")

    async def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self._response.write(data)

    def end(self) -> None:
        """End the watch in order."""
        self.ended.set_result(None)

    def cut(self) -> None:
        """Drop the connection."""
        assert self.request.transport is not None
        self.request.transport.abort()


class Watches:
    """A handler of a collection: lists by `lists`, and hands each watch to the test.

    lists: answers to the list requests, in order; the last one is repeated.
    """

    def __init__(self, *lists: Handler | dict[str, Any]) -> None:
        self.lists = list(lists)
        self.opened: asyncio.Queue[Stream] = asyncio.Queue()
        self.listed = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            stream = Stream(request, response)
            self.opened.put_nowait(stream)
            await stream.ended
            return response
        self.listed += 1
        found = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        return answer(found) if isinstance(found, dict) else await found(request)

    async def next(self) -> Stream:
        """The next watch that is opened."""
        async with asyncio.timeout(30):
            return await self.opened.get()
