"""The double as a server: in a thread of a test, or as a process for `make aws`.

Input: the address of the S3 whose buckets its shares show. Its state is in memory.

    with StorageGateway(s3_url) as gateway:
        share = gateway.control.add_share(gateway.control.add_gateway("eu-west-1"), bucket="photos")
"""

from functools import cached_property
from typing import Final

from aiohttp import web

from awsdoubles.gateway.bucket import Buckets
from awsdoubles.gateway.control import Control
from awsdoubles.gateway.control_api import PREFIX, ControlApi
from awsdoubles.gateway.faults import Faults
from awsdoubles.gateway.protocol import Protocol
from awsdoubles.gateway.refresh import Refresher
from awsdoubles.gateway.state import World
from awsdoubles.serverthread import ServerThread

HEALTH: Final = "/_health"


class StorageGateway(ServerThread):
    """Serves AWS's protocol at `url` and the control API beside it."""

    def __init__(self, s3_url: str, *, port: int = 0) -> None:
        super().__init__(port)
        self._s3_url = s3_url
        self._buckets: Buckets
        self._refresher: Refresher

    @cached_property
    def control(self) -> Control:
        """The test's side; usable from any process that knows `url`."""
        return Control(self.url)

    async def opened(self) -> None:
        """All state belongs to the server's loop."""
        self._buckets = Buckets(self._s3_url)
        world, faults = World(), Faults()
        self._refresher = Refresher(world, self._buckets)
        self._protocol = Protocol(world, self._refresher, faults)
        self._control = ControlApi(world, self._refresher, faults, self._buckets)

    async def closing(self) -> None:
        """Drop the refreshes that run, close what they used."""
        await self._refresher.close()
        self._buckets.close()

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
