"""A large decrease, and what happens until it is confirmed: somebody else sets a count, a look fails."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.daemontask.ecs import worker as worker_module
from caretaker.daemontask.ecs.check import Call
from caretaker.daemontask.ecs.plan import CONFIRM_SECONDS, plan
from caretaker.daemontask.ecs.worker import Worker
from caretaker.daemontask.metrics import EcsMetrics
from fakes import virtualtime
from fakes.virtualtime import monotonic, played
from unit.daemontask.ecs.build import INSTANCE, Account, notice, snapshot, spec


@pytest.fixture(autouse=True)
def _virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "time", virtualtime)


class History:
    """One service at 100 of 100, kept by the worker; steps come at their seconds since the beginning."""

    def __init__(self) -> None:
        self.account = Account(desiredCount=100)
        self.began = monotonic()
        self.looks: list[tuple[float, int, int]] = []  # seconds, desired count, instances that are listed
        self.updates: list[tuple[float, int, int]] = []  # seconds, desired count before and after
        self.refused = 0  # updates that fail from now on
        self.instances(100)

    @property
    def seconds(self) -> float:
        return monotonic() - self.began

    @property
    def desired(self) -> int:
        assert self.account.service is not None
        return int(self.account.service["desiredCount"])

    def instances(self, count: int) -> None:
        """So many are listed from now on, whether it is true or not."""
        self.account.active = {f"{INSTANCE}/prod/{number}" for number in range(count)}

    def foreign(self, count: int) -> None:
        assert self.account.service is not None
        self.account.service["desiredCount"] = count

    def refuse(self, count: int) -> None:
        self.refused = count

    def __getattr__(self, method: str) -> Callable[..., Any]:
        async def answer(**parameters: Any) -> Any:
            before = self.desired
            if method == "update_service" and self.refused:
                self.refused -= 1
                raise AwsError(ErrorClass.THROTTLED, "Throttling", "no", service="ecs", operation=method)
            found = self.account.answer(Call(method, parameters))  # type: ignore[arg-type]
            if method == "list_container_instances" and "nextToken" not in parameters:
                self.looks.append((self.seconds, before, len(self.account.active)))
            if method == "update_service":
                self.updates.append((self.seconds, before, parameters["desiredCount"]))
            return found

        return answer

    async def play(self, *steps: tuple[float, str, int], until: float) -> None:
        given, ahead = spec("prod"), list(steps)
        ecs: Any = self
        worker = Worker(snapshot(given), ecs, EcsMetrics(CollectorRegistry()), lambda: None)
        while self.seconds < until:
            while ahead and ahead[0][0] <= self.seconds:
                _, what, count = ahead.pop(0)
                if what == "event":  # of the instance of this number
                    here = f"{INSTANCE}/prod/{count}" in self.account.active
                    worker.hear([notice(str(count), "ACTIVE" if here else "INACTIVE", int(self.seconds))])
                else:
                    getattr(self, what)(count)
            worker.begin(plan(snapshot(given, clusters=dict(worker.clusters), clock=monotonic())))
            await asyncio.sleep(0.05)
        await worker.end()

    def unconfirmed(self) -> list[tuple[float, int, int]]:
        """Large decreases without a look, a minute before or more, that found as few."""
        return [
            (at, before, after)
            for at, before, after in self.updates
            if before - after > before // 2
            and not any(found <= after and at - seen >= CONFIRM_SECONDS for seen, _, found in self.looks)
        ]


@played
async def test_a_decrease_that_somebody_else_made_confirms_no_further_one() -> None:
    """One outdated answer when the confirmation is due."""
    of = History()
    gone = (10, "instances", 40), (10, "event", 99)
    await of.play(*gone, (69, "foreign", 40), (70, "instances", 5), (71.5, "instances", 40), until=400)
    assert next(look for at, *look in of.looks if 70 < at < 80) == [40, 5], "the outdated answer"
    assert (of.updates, of.desired) == ([], 40)


@pytest.mark.parametrize("lowered", [30, 40, 41])
@played
async def test_so_many_that_are_gone_never_raise_the_count(lowered: int) -> None:
    """Somebody else lowered it to less than the first look found, and even fewer are left."""
    of = History()
    gone = (10, "instances", 40), (10, "event", 99)
    await of.play(*gone, (40, "foreign", lowered), (41, "instances", 10), until=400)
    assert [after for _, _, after in of.updates] == ([40, 10] if lowered > 40 else [10])
    assert all(after < before for _, before, after in of.updates)
    assert of.unconfirmed() == []
    assert of.updates[-1][0] < 41 + 2 * CONFIRM_SECONDS + 5


@pytest.mark.parametrize(("event", "found"), [(30, 60), (30, 101), (None, 40)])
@played
async def test_a_look_whose_update_fails_tells_of_instances_that_are_there_as_well(
    event: float | None, found: int
) -> None:
    """An outdated answer before it, and one after it, take away only what it found to be gone."""
    of = History()
    at = event or 70
    await of.play(
        *((10, "instances", 5), (10, "event", 99), (at, "refuse", 1), (at, "instances", found)),
        *(((at, "event", 50),) if event else ()),
        *((at + 1.2, "instances", 5), (90, "instances", found)),
        until=400,
    )
    assert of.refused == 0
    assert [count for seconds, _, count in of.looks if at < seconds < at + 4] == [found, 5]
    assert [after for _, _, after in of.updates if after < found] == []
    assert of.desired == found
