"""The double as a server: in a thread of a test, or as a process for `make aws`.

with CloudWatch() as cloudwatch:
    cloudwatch.control.put("AWS/S3", "NumberOfObjects", {"BucketName": "media"}, [(midnight, 1e6)])
"""

from functools import cached_property

from awsdoubles.awsserver import AwsServer
from awsdoubles.cloudwatch.control import Control
from awsdoubles.cloudwatch.protocol import Protocol
from awsdoubles.cloudwatch.state import Fault, Faults, World, metric_of
from awsdoubles.controlapi import ControlBase, Handler, Json, common


class CloudWatch(AwsServer):
    """Serves CloudWatch at `url` and the control API beside it. Its state is in memory."""

    @cached_property
    def control(self) -> Control:
        """The test's side; usable from any process that knows `url`."""
        return Control(self.url)

    def made(self) -> tuple[Protocol, "ControlApi"]:
        """Both sides of a new world."""
        world, faults = World(), Faults()
        return Protocol(world, faults), ControlApi(world, faults)


class ControlApi(ControlBase):
    """Plain JSON under `/_control/`; `control.Control` is its client, and says what each call does."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults
        own: dict[str, Handler] = {
            "reset": self._reset,
            "put": self._put,
            "advance": self._advance,
            "deny": lambda body: setattr(world, "denied", bool(body["denied"])),
        }
        super().__init__({**common(world, faults, Fault), **own})

    def _reset(self, _: Json) -> None:
        self._faults.all.clear()
        self._world.reset()

    def _put(self, body: Json) -> None:
        metric = metric_of(body["region"], body["namespace"], body["metric"], body["dimensions"])
        points = [(float(at), float(value)) for at, value in body["points"]]
        self._world.points.setdefault(metric, []).extend(points)

    def _advance(self, body: Json) -> None:
        self._world.ahead += float(body["seconds"])
