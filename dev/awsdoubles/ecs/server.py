"""The double as a server: in a thread of a test, or as a process for `make aws`.

with Ecs() as ecs:
    ecs.control.add_cluster("prod")
    events = ecs.control.register("prod", 3)
"""

from functools import cached_property
from typing import Final

from aiohttp import web

from awsdoubles.ecs.control import Control
from awsdoubles.ecs.control_api import PREFIX, ControlApi
from awsdoubles.ecs.faults import Faults
from awsdoubles.ecs.protocol import Protocol
from awsdoubles.ecs.state import World
from awsdoubles.serverthread import ServerThread

HEALTH: Final = "/_health"


class Ecs(ServerThread):
    """Serves ECS at `url` and the control API beside it. Its state is in memory."""

    @cached_property
    def control(self) -> Control:
        """The test's side; usable from any process that knows `url`."""
        return Control(self.url)

    async def opened(self) -> None:
        """All state belongs to the server's loop."""
        world, faults = World(), Faults()
        self._protocol = Protocol(world, faults)
        self._control = ControlApi(world, faults)

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
