"""The double as a server: in a thread of a test, or as a process for `make aws`.

with Ec2() as ec2:
    nodes = ec2.control.add_nodes(1000, tags={"kubernetes.io/cluster/blue": "owned"})
"""

from functools import cached_property

from awsdoubles.awsserver import AwsServer
from awsdoubles.ec2.control import Control
from awsdoubles.ec2.control_api import ControlApi
from awsdoubles.ec2.faults import Faults
from awsdoubles.ec2.protocol import Protocol
from awsdoubles.ec2.state import World


class Ec2(AwsServer):
    """Serves EC2 and Auto Scaling at `url` and the control API beside them. Its state is in memory."""

    @cached_property
    def control(self) -> Control:
        """The test's side; usable from any process that knows `url`."""
        return Control(self.url)

    def made(self) -> tuple[Protocol, ControlApi]:
        """Both sides of a new world."""
        world, faults = World(), Faults()
        return Protocol(world, faults), ControlApi(world, faults)
