"""The AWS side of the double: GetMetricData over JSON 1.0, which botocore prefers for CloudWatch."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from awsdoubles.clients import ACCOUNT
from awsdoubles.cloudwatch.operations import get_metric_data, metrics_named
from awsdoubles.cloudwatch.state import Faults, World
from awsdoubles.jsonprotocol import AwsError, Json, JsonProtocol

OPERATION: Final = "GetMetricData"


class Protocol(JsonProtocol):
    """Answers GetMetricData alone."""

    service = "cloudwatch"
    signing = "monitoring"
    target = "GraniteServiceVersion20100801."
    version = "1.0"
    operations = (OPERATION,)
    unsigned = AwsError("MissingAuthenticationToken", "Request is missing Authentication Token", status=403)
    invalid = "ValidationError"

    def __init__(self, world: World, faults: Faults) -> None:
        super().__init__(world.calls, faults)
        self._world = world

    def things(self, body: Json) -> Sequence[str]:
        """The metrics."""
        return metrics_named(body)

    def error_type(self, error: AwsError) -> tuple[str, dict[str, str]]:
        """With the header of services that once spoke the query protocol."""
        side = "Sender" if error.status < 500 else "Receiver"
        return f"com.amazonaws.cloudwatch#{error.code}", {"x-amzn-query-error": f"{error.code};{side}"}

    def perform(self, operation: str, region: str, body: Json, taken: Mapping[str, Any]) -> Json:
        """By the world, at its time."""
        now = time.time() + self._world.ahead
        if not self._world.admits(region, now):
            raise AwsError("Throttling", "Rate exceeded")
        if self._world.denied:
            raise AwsError(
                "AccessDenied",
                f"User: arn:aws:sts::{ACCOUNT}:assumed-role/caretaker/caretaker is not authorized to "
                f"perform: cloudwatch:{operation} because no identity-based policy allows the "
                f"cloudwatch:{operation} action",
                status=403,
            )
        return get_metric_data(self._world, region, body, now, taken)
