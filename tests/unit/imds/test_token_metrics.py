"""The readings of CloudWatch for the gate: their metrics, their times, and their failures."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from caretaker.api.imds import BreakerStatus, Options, Spec, Status, TokenGate, TokenGateStatus
from caretaker.api.objects import WireMeta
from caretaker.api.times import format_time
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.imds import inventory, token_metrics
from caretaker.imds.metrics import PolicyMetrics
from caretaker.imds.resource import ParsedPolicy
from caretaker.imds.token_gate import DAY, HOUR, READ_SECONDS, TokenCandidate
from caretaker.imds.token_metrics import GateInput, GateResult, TokenGates
from testing.clock import Clock
from unit.imds.enforcing import CLOSE, GROUP, canaries, canary, passed

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
        self.errors: list[AwsError | None] = []
        self.page = 10**9  # data points

    async def get_metric_data(self, **given: Any) -> Any:
        queries = given["MetricDataQueries"]
        stats = [one["MetricStat"] for one in queries]
        self.metrics.append(stats[0]["Metric"]["MetricName"])
        self.calls.append([one["Metric"]["Dimensions"][0]["Value"] for one in stats])
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
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

    async def passes(self, after: float = 0.0) -> GateResult:
        self.now += after
        self.clock.now += after
        spec = Spec(Options(http_tokens="required"), token_gate=TokenGate())
        mine = ParsedPolicy(WireMeta(name="p"), self.status, spec)
        names = {f"i-{number}": HERE for number in range(20)} | {
            each.instance: each.region for each in self.ones
        }
        groups = frozenset({GROUP, OTHER})
        found = await self.gates.read(mine, GateInput(self.ones, names, groups, self.now))
        self.status = msgspec.structs.replace(self.status, token_gate=found.status)
        return found

    @property
    def charged(self) -> float:
        return self.registry.get_sample_value("caretaker_imds_token_gate_metrics_total") or 0.0


def one(number: int, age: float, region: str = HERE, group: tuple[str, str] = GROUP) -> TokenCandidate:
    return TokenCandidate(f"i-{number}", region, group, NOW - age, True)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


def states(found: GateResult) -> dict[str, str]:
    assert found.status is not None
    return {group.name: group.state for group in found.status.groups}


async def test_a_quiet_group_is_let_through(place: Place) -> None:
    found = await place.passes()
    assert (found.held, states(found)) == ({}, {"a": "Quiet"})
    assert found.status is not None
    assert (found.status.read_at, found.status.metrics) == (format_time(NOW), 2)
    assert (found.wake, place.charged) == (READ_SECONDS, 2)
    assert [(one.region, one.service) for one in place.targets] == [(HERE, "cloudwatch")]


async def test_a_use_of_imdsv1_holds_its_group_back_and_no_other(place: Place) -> None:
    place.ones += [one(3, 30 * DAY, group=OTHER), one(4, DAY, group=OTHER)]
    place.cloudwatch.used = {"i-2": 5.0}
    found = await place.passes()
    assert states(found) == {"a": "InUse", "b": "Quiet"}
    assert found.held.keys() == {"i-1", "i-2"}
    reason, message = found.held["i-1"]
    assert reason == "IMDSv1InUse"
    assert re.fullmatch(r"EKSManagedNodegroup/a: 1 of 2 instances used .* 7 days: i-2; last at .*", message)


async def test_no_data_are_no_zeros(place: Place) -> None:
    place.cloudwatch.lost = {"i-2"}
    assert states(await place.passes()) == {"a": "Unknown"}


async def test_nothing_is_read_where_nothing_can_have_changed(place: Place) -> None:
    place.ones = [one(1, 2 * DAY)]
    assert states(await place.passes()) == {"a": "Waiting"}, "no instance has run for seven days"
    place.ones = []
    assert states(await place.passes()) == {}, "nothing is to be changed"
    assert place.cloudwatch.calls == []


async def test_it_is_read_once_in_four_hours(place: Place) -> None:
    place.cloudwatch.used = {"i-2": 5.0}
    await place.passes()
    for _ in range(15):
        found = await place.passes(READ_SECONDS / 16)
        assert found.held.keys() == {"i-1", "i-2"}
    assert len(place.cloudwatch.calls) == 1
    await place.passes(READ_SECONDS / 16)
    assert len(place.cloudwatch.calls) == 2


async def test_a_reading_counts_before_status_has_it(place: Place) -> None:
    """A pass may gather twice, and its status may not be written."""
    before = place.status
    await place.passes()
    place.status = before
    assert not (await place.passes()).held
    assert len(place.cloudwatch.calls) == 1


async def test_a_new_process_does_not_read_earlier_and_lets_nothing_through_meanwhile(place: Place) -> None:
    assert not (await place.passes()).held
    place.restart()
    found = await place.passes(60.0)
    assert ({reason for reason, _ in found.held.values()}, states(found)) == (
        {"IMDSv1Waiting"},
        {"a": "Quiet"},
    )
    assert len(place.cloudwatch.calls) == 1
    assert found.wake == READ_SECONDS - 60.0
    assert not (await place.passes(found.wake)).held
    assert len(place.cloudwatch.calls) == 2


async def test_an_instance_that_joins_is_judged_from_its_start_on(place: Place) -> None:
    assert not (await place.passes()).held
    place.ones = [one(7, -60.0)]
    found = await place.passes(3 * HOUR)
    assert found.held.keys() == {"i-7"}
    assert len(place.cloudwatch.calls) == 1
    assert not (await place.passes(HOUR)).held, "neither seven days nor another boot are needed again"
    place.ones, place.cloudwatch.used = [one(8, -4 * HOUR)], {"i-8": -4.0}
    found = await place.passes(READ_SECONDS)
    assert states(found) == {"a": "InUse"}, "it used IMDSv1 at its boot"


async def test_status_has_five_hundred_groups_and_the_others_count_all_the_same(place: Place) -> None:
    names = [("AutoScalingGroup", f"g{number:04}") for number in range(501)]
    place.ones = [
        one(2 * at + young, (2 if young else 30) * DAY, group=group)
        for at, group in enumerate(names)
        for young in (False, True)
    ]
    for after in (0.0, 60.0):
        found = await place.passes(after)
        assert found.status is not None
        assert (len(found.status.groups), found.held) == (500, {})


async def test_a_denial_keeps_the_gate_shut_and_names_the_permission(place: Place) -> None:
    place.cloudwatch.errors = [DENIED] * 20
    found = await place.passes()
    assert found.problem is DENIED
    assert {reason for reason, _ in found.held.values()} == {"AccessDenied"}
    assert "allow cloudwatch:GetMetricData to the identity" in found.held["i-1"][1]
    assert (found.wake, place.charged) == (15.0, 0)
    await place.passes(14.0)
    assert len(place.cloudwatch.calls) == 1
    await place.passes(2.0)
    assert len(place.cloudwatch.calls) == 2
    place.cloudwatch.errors = []
    assert not (await place.passes(60.0)).held


async def test_a_denial_after_a_good_reading_shuts_it_again(place: Place) -> None:
    assert not (await place.passes()).held
    place.cloudwatch.errors = [DENIED]
    assert (await place.passes(READ_SECONDS)).held.keys() == {"i-1", "i-2"}


async def test_throttling_backs_off_and_goes_on_where_it_stopped(place: Place) -> None:
    place.ones = [one(number, 8 * DAY + number * HOUR) for number in range(300)] + [one(300, DAY)]
    place.cloudwatch.errors = [None, THROTTLED]
    found = await place.passes()
    assert {reason for reason, _ in found.held.values()} == {"IMDSv1UseUnknown"}
    assert "Rate exceeded" in found.held["i-1"][1]
    first, second = place.cloudwatch.calls
    found = await place.passes(15.0)
    assert (found.held, place.cloudwatch.calls[2]) == ({}, second), "the first call is not repeated"
    read = [name for call in place.cloudwatch.calls if call is not second for name in call]
    assert sorted(read) == sorted(each.instance for each in place.ones)
    assert place.charged == 301
    assert len(first) * 168 <= 40_000 < (len(first) + 1) * 168


async def test_pages_are_put_together(place: Place) -> None:
    place.cloudwatch.page = 100
    assert not (await place.passes()).held
    assert place.charged == 2 * len(place.cloudwatch.calls) > 4, "each page is counted"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("PartialData", "IMDSv1UseUnknown"),
        ("InternalError", "IMDSv1UseUnknown"),
        ("Forbidden", "AccessDenied"),
    ],
)
async def test_a_series_that_is_not_whole_is_no_reading(place: Place, code: str, reason: str) -> None:
    place.cloudwatch.codes = {"i-2": code}
    found = await place.passes()
    assert {why for why, _ in found.held.values()} == {reason}
    assert found.status is not None
    assert found.status.read_at is None


async def test_regions_are_asked_one_by_one(place: Place) -> None:
    place.ones[0] = one(1, 30 * DAY, "us-east-1")
    assert not (await place.passes()).held
    assert [target.region for target in place.targets] == [HERE, "us-east-1"]


async def test_an_open_breaker_reads_nothing_and_the_next_pass_does(place: Place) -> None:
    await place.passes()
    place.status = msgspec.structs.replace(place.status, breaker=BreakerStatus(1, 0, format_time(NOW)))
    assert len((await place.passes(READ_SECONDS)).held) == 2, "it may close in this pass"
    assert len(place.cloudwatch.calls) == 1
    place.status = msgspec.structs.replace(place.status, breaker=None)
    assert not (await place.passes()).held


def soaking(place: Place) -> None:
    """Its canary, i-1, was changed ten minutes ago."""
    place.ones = place.ones[1:]
    given = canaries(canary("Soaking", 1, since=NOW - 600.0, changes=(CLOSE,)))
    place.status = msgspec.structs.replace(place.status, canary=given)


async def test_rejected_calls_of_a_canary_are_read_every_five_minutes(place: Place) -> None:
    soaking(place)
    place.cloudwatch.used = {"i-1": 0.1}
    found = await place.passes()
    assert found.rejected == {"i-1": (NOW, 1.0)}
    count = len(place.cloudwatch.calls)
    await place.passes(299.0)
    assert len(place.cloudwatch.calls) == count
    assert (await place.passes(1.0)).rejected["i-1"][0] == NOW + 300.0
    place.status = msgspec.structs.replace(place.status, canary=canaries(stood=(passed(CLOSE),)))
    assert (await place.passes()).rejected == {}


async def test_rejected_calls_before_the_change_and_missing_data_do_not_count(place: Place) -> None:
    soaking(place)
    place.cloudwatch.used = {"i-1": 0.5}
    assert (await place.passes()).rejected == {"i-1": (NOW, 0.0)}
    place.restart()
    place.cloudwatch.lost = {"i-1"}
    assert (await place.passes()).rejected == {"i-1": (NOW, 0.0)}, "the metric appears with a rejected call"


async def test_a_canary_that_cannot_be_read_has_not_been(place: Place) -> None:
    soaking(place)
    place.ones = []
    place.cloudwatch.errors = [DENIED]
    found = await place.passes()
    assert (found.rejected, found.problem) == ({}, DENIED)


async def test_a_reading_of_a_clock_that_was_ahead_is_made_again(place: Place) -> None:
    ahead = TokenGateStatus(format_time(NOW + DAY), 2)
    place.status = msgspec.structs.replace(place.status, token_gate=ahead)
    assert not (await place.passes()).held
