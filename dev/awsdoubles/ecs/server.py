"""The double as a server: in a thread of a test, or as a process for `make aws`.

with Ecs() as ecs:
    ecs.control.add_cluster("prod")
    events = ecs.control.register("prod", 3)
"""

from functools import cached_property

from awsdoubles.awsserver import AwsServer
from awsdoubles.ecs.control import Control
from awsdoubles.ecs.control_api import ControlApi
from awsdoubles.ecs.faults import Faults
from awsdoubles.ecs.protocol import Protocol
from awsdoubles.ecs.state import World


class Ecs(AwsServer):
    """Serves ECS at `url` and the control API beside it. Its state is in memory."""

    @cached_property
    def control(self) -> Control:
        """The test's side; usable from any process that knows `url`."""
        return Control(self.url)

    def made(self) -> tuple[Protocol, ControlApi]:
        """Both sides of a new world."""
        world, faults = World(), Faults()
        return Protocol(world, faults), ControlApi(world, faults)
