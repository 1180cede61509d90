"""A double of ours as a server: AWS's protocol at one address, beside it the test's side and its health."""

from abc import abstractmethod
from typing import Final, Protocol

from aiohttp import web

from awsdoubles.controlapi import PREFIX, ControlBase
from awsdoubles.serverthread import ServerThread

HEALTH: Final = "/_health"


class Answers(Protocol):
    """AWS's side."""

    async def handle(self, request: web.Request) -> web.Response:
        """One call of an AWS client."""


class AwsServer(ServerThread):
    """Its state is in memory and belongs to the server's loop."""

    _protocol: Answers
    _control: ControlBase

    @abstractmethod
    def made(self) -> tuple[Answers, ControlBase]:
        """Both sides, with a new world behind them."""

    async def opened(self) -> None:
        self._protocol, self._control = self.made()

    async def closing(self) -> None:
        """Nothing is held."""

    def routes(self) -> list[web.RouteDef]:
        """AWS's one address, ours beside it."""
        return [
            web.post("/", self._aws),
            web.post(f"{PREFIX}{{name}}", self._test),
            web.get(HEALTH, self._healthy),
        ]

    async def _aws(self, request: web.Request) -> web.Response:
        return await self._protocol.handle(request)

    async def _test(self, request: web.Request) -> web.Response:
        return await self._control.handle(request)

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")
