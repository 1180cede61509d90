"""spec.tokenGate in a world in which the operator is killed, calls fail and instances join."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from random import Random
from typing import Any, Final

import pytest

from caretaker.aws.errors import AwsError, ErrorClass
from simulation.imds.clock import WALL
from simulation.imds.ec2 import Instance
from simulation.imds.truth import WORDS, Group
from simulation.imds.world import World
from testing.examples import SEED, examples

pytestmark = [pytest.mark.random, pytest.mark.slow]
QUIET: Final[Group] = ("EKSManagedNodegroup", "a")
USES: Final[Group] = ("AutoScalingGroup", "b")
SPEC: Final[dict[str, Any]] = {
    "mode": "Enforce",
    "options": {"httpTokens": "required"},
    "tokenGate": {"days": 2},
    "safety": {"allowTightening": WORDS, "canary": {"instances": 1, "soak": "2m"}},
    "resyncInterval": "10m",
}
FAULTS: Final = {
    "denied": AwsError(ErrorClass.ACCESS_DENIED, "AccessDenied", service="cloudwatch"),
    "throttled": AwsError(ErrorClass.THROTTLED, "Throttling", service="cloudwatch"),
    "away": AwsError(ErrorClass.TRANSIENT, "Unreachable", service="cloudwatch"),
}


class Gated:
    """A group without use of IMDSv1, and one that used it yesterday. `read`: how often, by instance."""

    def __init__(self) -> None:
        self.world = World({QUIET: {}, USES: {}})
        self.read: dict[str, list[float]] = {}
        self.faults: list[AwsError] = []
        self.world.operator.cloudwatch = self.metrics
        for number in range(8):
            self.join((QUIET, USES)[number % 2], days=5.0 if number < 2 else 1.5)

    def join(self, group: Group, days: float = 0.0) -> Instance:
        before = set(self.world.ec2.instances)
        self.world.join(group, team="x")
        (name,) = set(self.world.ec2.instances) - before
        now = WALL + self.world.clock.now
        self.world.ec2.launched[name] = datetime.fromtimestamp(now, UTC) - timedelta(days=days)
        one = self.world.ec2.instances[name]
        self.world.ec2.put(one, takes=0.0, HttpTokens="optional")
        return one

    def metrics(self, given: dict[str, Any]) -> dict[str, Any]:
        if self.faults:
            raise self.faults.pop()
        results = []
        for query in given["MetricDataQueries"]:
            metric = query["MetricStat"]["Metric"]
            name = metric["Dimensions"][0]["Value"]
            if metric["MetricName"] == "MetadataNoToken":
                self.read.setdefault(name, []).append(self.world.clock.now)
            one = self.world.ec2.instances[name]
            step, at = timedelta(seconds=query["MetricStat"]["Period"]), given["StartTime"]
            used = (
                1.0
                if self.world.judge.group(one) == USES and metric["MetricName"] == "MetadataNoToken"
                else 0.0
            )
            times = []
            while at < given["EndTime"]:
                times.append(at)
                at += step
            values = [used] * len(times)
            results.append(
                {"Id": query["Id"], "Timestamps": times, "Values": values, "StatusCode": "Complete"}
            )
        return {"MetricDataResults": results}

    def required(self, group: Group) -> set[bool]:
        ours = (one for one in self.world.ec2.instances.values() if self.world.judge.group(one) == group)
        return {one.last.options["HttpTokens"] == "required" for one in ours}

    def ends_well(self) -> None:
        """The quiet group is closed in the end, and the other one never."""
        world = self.world
        world.run(600.0)
        world.calm()
        for _ in range(4):
            world.run(5 * 3_600.0, until=lambda: self.required(QUIET) == {True})
            world.resume("p")
        assert self.required(QUIET) == {True}, world.ready("p")
        assert self.required(USES) == {False}


@pytest.fixture
def gated() -> Iterator[Gated]:
    made = Gated()
    yield made
    made.world.close()


def some(every: list[Any]) -> list[Any]:
    return Random(SEED).sample(every, min(examples(len(every)), len(every)))


@pytest.mark.parametrize(("calls", "effect"), some(list(product(range(40), [True, False]))))
def test_killed_at_any_call_it_closes_no_group_that_uses_imdsv1(
    gated: Gated, calls: int, effect: bool
) -> None:
    gated.world.apply("p", **SPEC)
    gated.world.operator.kill_in, gated.world.operator.effect = calls, effect
    gated.ends_well()
    for times in gated.read.values():
        close = sum(later - earlier < 4 * 3_600.0 for earlier, later in pairwise(times))
        assert close <= 1, "a reading is lost with the process that has not written it"


@pytest.mark.parametrize("fault", FAULTS)
def test_without_cloudwatch_nothing_is_closed(gated: Gated, fault: str) -> None:
    gated.faults = [FAULTS[fault]] * 1_000
    gated.world.apply("p", **SPEC)
    gated.world.run(3_600.0)
    assert gated.required(QUIET) == {False}
    gated.faults = []
    gated.ends_well()


def test_an_instance_that_joins_is_closed_once_it_was_judged(gated: Gated) -> None:
    gated.world.apply("p", **SPEC)
    gated.ends_well()
    joined = gated.join(QUIET)
    gated.world.run(1_800.0)
    assert joined.last.options["HttpTokens"] == "optional"
    gated.ends_well()
    assert len(gated.read[joined.name]) == 1
