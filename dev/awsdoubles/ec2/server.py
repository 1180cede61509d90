"""The double as a server: in a thread of a test, or as a process for `make aws`.

with Ec2() as ec2:
    nodes = ec2.control.add_nodes(1000, tags={"kubernetes.io/cluster/blue": "owned"})
"""

from functools import cached_property
from typing import Final

from aiohttp import web

from awsdoubles.ec2.control import Control
from awsdoubles.ec2.control_api import PREFIX, ControlApi
from awsdoubles.ec2.faults import Faults
from awsdoubles.ec2.protocol import Protocol
from awsdoubles.ec2.state import World
from awsdoubles.serverthread import ServerThread

HEALTH: Final = "/_health"


class Ec2(ServerThread):
    """Serves EC2 and Auto Scaling at `url` and the control API beside them. Its state is in memory."""

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
