"""Steer a CloudWatch double, and look into it: from a test, the demo, another process.

Blocking, standard library only.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from awsdoubles.clients import REGION
from awsdoubles.controlclient import ControlClient, ControlError

__all__ = ["Control", "ControlError"]

Json = dict[str, Any]
THROTTLED: Final = {"status": 400, "code": "Throttling", "message": "Rate exceeded"}


class Control(ControlClient):
    """`url` is the double's address, the same that AWS_ENDPOINT_URL_CLOUDWATCH holds."""

    def reset(self) -> None:
        """Forget all datapoints, calls and faults; settings and clock as at the start."""
        self._call("reset")

    def settings(self, **changes: Any) -> Json:
        """Change and return the settings: the fields of `state.Settings`."""
        return dict(self._call("settings", **changes))

    def put(
        self,
        namespace: str,
        metric: str,
        dimensions: Mapping[str, str],
        points: Iterable[tuple[float, float]],
        *,
        region: str = REGION,
    ) -> None:
        """Add datapoints, (Unix seconds, value), to a metric. One of the future appears at its time."""
        given = [list(one) for one in points]
        where = {"namespace": namespace, "metric": metric, "dimensions": dict(dimensions)}
        self._call("put", points=given, region=region, **where)

    def advance(self, seconds: float) -> None:
        """Let time pass for the double."""
        self._call("advance", seconds=seconds)

    def deny(self) -> None:
        """Take the permission for GetMetricData away."""
        self._call("deny", denied=True)

    def allow(self) -> None:
        """Give it back."""
        self._call("deny", denied=False)

    def throttle(self, **how: Any) -> Json:
        """Refuse as CloudWatch does a call beyond the quota; `how` as of fault."""
        return self.fault("refuse", **{**THROTTLED, **how})
