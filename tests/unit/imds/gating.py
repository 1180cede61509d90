"""CloudWatch for the gate, and a policy that has one, from pass to pass."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from caretaker.api.imds import Options, Spec, Status, TokenGate
from caretaker.api.objects import WireMeta
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.imds import inventory, token_metrics
from caretaker.imds.metrics import PolicyMetrics
from caretaker.imds.resource import ParsedPolicy
from caretaker.imds.token_gate import DAY, HOUR, TokenCandidate
from caretaker.imds.token_metrics import GateInput, GateResult, TokenGates
from testing.clock import Clock
from unit.imds.enforcing import GROUP

NOW = 1_800_000_000.0
HERE = "eu-west-1"
OTHER = ("AutoScalingGroup", "b")
DENIED = AwsError(ErrorClass.ACCESS_DENIED, "AccessDenied", service="cloudwatch", operation="GetMetricData")
THROTTLED = AwsError(ErrorClass.THROTTLED, "Throttling", "Rate exceeded", service="cloudwatch")


class CloudWatch:
    """Hourly zeros of every instance, but for `used` (instance -> hours ago) and `lost`; in pages."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.metrics: list[str] = []
        self.used: dict[str, float] = {}
        self.lost: set[str] = set()
        self.codes: dict[str, str] = {}
        self.denied: set[str] = set()
        self.absent: set[str] = set()
        self.errors: list[AwsError | None] = []
        self.page = 10**9  # data points

    async def get_metric_data(self, **given: Any) -> Any:
        queries = given["MetricDataQueries"]
        stats = [one["MetricStat"] for one in queries]
        self.metrics.append(stats[0]["Metric"]["MetricName"])
        self.calls.append([one["Metric"]["Dimensions"][0]["Value"] for one in stats])
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        if self.denied.intersection(self.calls[-1]):
            raise DENIED
        points = [
            (query["Id"], at, value)
            for query, name in zip(queries, self.calls[-1], strict=True)
            for at, value in self.points(name, given, stats[0]["Period"])
        ]
        skip = int(given.get("NextToken", 0))
        shown, rest = points[skip : skip + self.page], points[skip + self.page :]
        left = {name for name, *_ in rest}
        results: dict[str, Any] = {}
        for query, name in zip(queries, self.calls[-1], strict=True):
            code = self.codes.get(name, "PartialData" if query["Id"] in left else "Complete")
            results[query["Id"]] = {"Id": query["Id"], "Timestamps": [], "Values": [], "StatusCode": code}
        for name, at, value in shown:
            results[name]["Timestamps"].append(at)
            results[name]["Values"].append(value)
        more = {"NextToken": str(skip + self.page)} if rest else {}
        for query, name in zip(queries, self.calls[-1], strict=True):
            if name in self.absent:
                del results[query["Id"]]
        return {"MetricDataResults": list(results.values()), **more}

    def points(self, name: str, given: Any, period: int) -> list[tuple[datetime, float]]:
        if name in self.lost:
            return []
        at, step, found = given["StartTime"], timedelta(seconds=period), []
        used = datetime.fromtimestamp(NOW - self.used.get(name, 1e6) * HOUR, UTC)
        while at < given["EndTime"]:
            found.append((at, 1.0 if at <= used < at + step else 0.0))
            at += step
        return found


class Place:
    """A policy with a gate, from pass to pass; its clock, and its CloudWatch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = NOW
        clock = Clock()
        clock.now = NOW
        for module in (inventory, token_metrics):
            monkeypatch.setattr(module, "time", clock)
        self.clock = clock
        self.cloudwatch = CloudWatch()
        self.registry = CollectorRegistry()
        self.metrics = PolicyMetrics(self.registry)
        self.status = Status()
        self.ones = [one(1, 30 * DAY), one(2, 2 * DAY)]
        self.restart()

    def restart(self) -> None:
        self.targets: list[Any] = []
        self.gates = TokenGates(self._client, self.metrics)

    def _client(self, target: Any) -> Any:
        self.targets.append(target)
        return self.cloudwatch

    async def passes(self, after: float = 0.0, days: int = 7, uid: str = "") -> GateResult:
        self.now += after
        self.clock.now += after
        spec = Spec(Options(http_tokens="required"), token_gate=TokenGate(days))
        mine = ParsedPolicy(WireMeta(name="p", uid=uid), self.status, spec)
        names = {f"i-{number}": HERE for number in range(20)} | {
            each.instance: each.region for each in self.ones
        }
        groups = frozenset({GROUP, OTHER})
        found = await self.gates.read(mine, GateInput(self.ones, names, groups, self.now))
        self.status = msgspec.structs.replace(self.status, token_gate=found.status)
        return found

    async def day(self) -> GateResult:
        """24 hours of passes, as the gate asks for them."""
        found, end = await self.passes(), self.now + DAY
        while self.now < end:
            found = await self.passes(max(found.wake or 60.0, 1.0))
        return found

    @property
    def charged(self) -> float:
        return self.registry.get_sample_value("caretaker_imds_token_gate_metrics_total") or 0.0


def one(number: int, age: float, region: str = HERE, group: tuple[str, str] = GROUP) -> TokenCandidate:
    return TokenCandidate(f"i-{number}", region, group, NOW - age, "running")


def states(found: GateResult) -> dict[str, str]:
    assert found.status is not None
    return {group.name: group.state for group in found.status.groups}
