"""The double as a server: in a thread of a test, or as a process for `make aws`.

Input: the address of the S3 whose buckets its shares show. Its state is in memory.

    with StorageGateway(s3_url) as gateway:
        share = gateway.control.add_share(gateway.control.add_gateway("eu-west-1"), bucket="photos")
"""

from functools import cached_property

from aiohttp import web

from awsdoubles.awsserver import AwsServer
from awsdoubles.gateway.accesspoints import PATH, S3Control
from awsdoubles.gateway.bucket import Buckets
from awsdoubles.gateway.control import Control
from awsdoubles.gateway.control_api import ControlApi
from awsdoubles.gateway.faults import Faults
from awsdoubles.gateway.protocol import Protocol
from awsdoubles.gateway.refresh import Refresher
from awsdoubles.gateway.state import World


class StorageGateway(AwsServer):
    """Serves Storage Gateway and S3 Control at `url`, and the control API beside them."""

    def __init__(self, s3_url: str, *, port: int = 0) -> None:
        super().__init__(port)
        self._s3_url = s3_url
        self._buckets: Buckets
        self._refresher: Refresher
        self._s3control: S3Control

    @cached_property
    def control(self) -> Control:
        """The test's side; usable from any process that knows `url`."""
        return Control(self.url)

    def made(self) -> tuple[Protocol, ControlApi]:
        """Both sides of a new world."""
        self._buckets = Buckets(self._s3_url)
        world, faults = World(), Faults()
        self._refresher = Refresher(world, self._buckets)
        self._s3control = S3Control(world, faults)
        control = ControlApi(world, self._refresher, faults, self._buckets)
        return Protocol(world, self._refresher, faults), control

    def routes(self) -> list[web.RouteDef]:
        """S3 Control, too."""
        return [*super().routes(), web.get(PATH, self._s3_control)]

    async def _s3_control(self, request: web.Request) -> web.Response:
        return await self._s3control.handle(request)

    async def closing(self) -> None:
        """Drop the refreshes that run, close what they used."""
        await self._refresher.close()
        self._buckets.close()
