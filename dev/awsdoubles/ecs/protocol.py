"""The AWS side of the double: ECS's operations over AWS's JSON protocol."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from awsdoubles.clients import ACCOUNT
from awsdoubles.ecs.faults import Faults
from awsdoubles.ecs.operations import OPERATIONS, clusters_named
from awsdoubles.ecs.state import World
from awsdoubles.jsonprotocol import AwsError, Json, JsonProtocol, model_of


def model() -> Any:
    """botocore's model of the service."""
    return model_of("ecs")


class Protocol(JsonProtocol):
    """Answers the operations that caretaker uses, and no others."""

    service = signing = "ecs"
    target = "AmazonEC2ContainerServiceV20141113."
    version = "1.1"
    operations = OPERATIONS
    unsigned = AwsError("MissingAuthenticationTokenException", "Missing Authentication Token")
    invalid = "InvalidParameterException"

    def __init__(self, world: World, faults: Faults) -> None:
        super().__init__(world.calls, faults)
        self._world = world

    def things(self, body: Json) -> Sequence[str]:
        """The clusters."""
        return clusters_named(body)

    def perform(self, operation: str, region: str, body: Json, _: Mapping[str, Any]) -> Json:
        """By the world."""
        if operation in self._world.denied:
            resource = f"arn:aws:ecs:{region}:{ACCOUNT}:cluster/{body.get('cluster', '*')}"
            raise AwsError(
                "AccessDeniedException",
                f"User: arn:aws:sts::{ACCOUNT}:assumed-role/caretaker/caretaker is not authorized to "
                f"perform: ecs:{operation} on resource: {resource} because no identity-based policy allows "
                f"the ecs:{operation} action",
            )
        return OPERATIONS[operation](self._world, region, body, time.time())
