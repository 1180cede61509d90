"""The double's metrics, and the faults of its calls. Pure: times are Unix seconds, and arguments.

Sizes, rates and retention: Amazon CloudWatch API reference, GetMetricData; user guide, "CloudWatch service
quotas" and "Metrics retention".
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from awsdoubles import faults, spoiled

Json = dict[str, Any]

HOUR: Final = 3600
DAY: Final = 24 * HOUR
PER_SECOND: Final = 50  # calls, for each region
# A datapoint of this age is kept for periods that are multiples of this.
KEPT_PERIODS: Final = ((15 * DAY, 60), (63 * DAY, 300), (455 * DAY, HOUR))
ACTIONS: Final = {
    "refuse": "answer `status`, `code`, `message` instead of acting",
    "delay": "act, then hold the reply back for `seconds`",
    "lose_reply": "act, then reset the connection",
    "withhold": "answer without the datapoints of `metric`, with `StatusCode` `code`",
    **spoiled.ACTIONS,
}
STATISTICS: Final = ("Average", "Sum", "Minimum", "Maximum", "SampleCount")


@dataclass(kw_only=True)
class Fault(faults.Fault):
    """A fault of queries for `metric`; "" = any."""

    ACTIONS = ACTIONS
    THING = "metric"

    metric: str = ""
    status: int = 500
    code: str = "InternalServiceFault"


class Faults(faults.FaultList[Fault]):
    """The faults in force."""


@dataclass
class Settings:
    """throttling: whether calls beyond the quota are refused."""

    throttling: bool = True


# Region, namespace, name, dimensions.
Metric = tuple[str, str, str, frozenset[tuple[str, str]]]


def metric_of(region: str, namespace: str, name: str, dimensions: Mapping[str, str]) -> Metric:
    """A metric is all of them: with other dimensions it is another metric."""
    return region, namespace, name, frozenset(dimensions.items())


@dataclass
class World:
    """Datapoints, permissions, and the ledger of calls."""

    settings: Settings = field(default_factory=Settings)
    calls: list[Json] = field(default_factory=list)
    points: dict[Metric, list[tuple[float, float]]] = field(default_factory=dict)
    denied: bool = False
    ahead: float = 0.0  # seconds that the double's clock is ahead of the machine's
    _recent: dict[str, deque[float]] = field(default_factory=dict)

    def reset(self) -> None:
        """As new."""
        self.settings, self.denied, self.ahead = Settings(), False, 0.0
        for one in (self.calls, self.points, self._recent):
            one.clear()

    def admits(self, region: str, now: float) -> bool:
        """Whether a call is within the quota."""
        recent = self._recent.setdefault(region, deque())
        while recent and recent[0] <= now - 1:
            recent.popleft()
        if self.settings.throttling and len(recent) >= PER_SECOND:
            return False
        recent.append(now)
        return True

    def datapoints(
        self, metric: Metric, start: float, end: float, period: int, stat: str, now: float
    ) -> list[tuple[float, float]]:
        """(start of a period, value), oldest first, of the periods that have datapoints. The end is
        exclusive."""
        periods: dict[int, list[float]] = {}
        for at, value in self.points.get(metric, []):
            if start <= at < end and at <= now and _kept(now - at, period):
                periods.setdefault(math.floor(at / period) * period, []).append(value)
        return [(float(at), _statistic(stat, values)) for at, values in sorted(periods.items())]


def _kept(age: float, period: int) -> bool:
    return any(age <= limit and period % multiple == 0 for limit, multiple in KEPT_PERIODS) or (
        age <= 3 * HOUR
    )


def _statistic(stat: str, values: list[float]) -> float:
    match stat:
        case "Average":
            return math.fsum(values) / len(values)
        case "Sum":
            return math.fsum(values)
        case "Minimum":
            return min(values)
        case "Maximum":
            return max(values)
        case _:
            return float(len(values))
