"""The CPU time of each resource's passes is measured, and a resource above its share is paused."""

import asyncio
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import msgspec
import pytest

from caretaker.api.conditions import Condition, CpuReason, Event, ObjectRef
from caretaker.api.objects import WireMeta
from caretaker.obs import log
from caretaker.obs.metrics import Metrics, create_metrics
from caretaker.runtime import cpu
from caretaker.runtime.controller import Controller, Kind, Next, Subject
from caretaker.runtime.cpu import BURST, LONG, PAUSE, PAUSE_MAX, SHARE, CpuThrottle, new_task
from caretaker.runtime.work_queue import Key, WorkQueue

A, B = Key("DaemonTask", "default", "a"), Key("DaemonTask", "default", "b")


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics() -> Metrics:
    return create_metrics("test")


@pytest.fixture
def throttle(metrics: Metrics, clock: Clock) -> CpuThrottle:
    return CpuThrottle(metrics, clock)


@pytest.fixture(autouse=True)
async def counted() -> None:
    asyncio.get_running_loop().set_task_factory(new_task)


def burn(seconds: float) -> None:
    """Takes this much CPU time of the thread, whatever the load of the machine."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def taken(throttle: CpuThrottle, key: Key) -> float:
    return throttle._budget(key).meter.taken


def count(metrics: Metrics, name: str) -> float:
    return metrics.registry.get_sample_value(name, {"kind": "DaemonTask"}) or 0.0


async def one_pass(throttle: CpuThrottle, key: Key, work: Coroutine[Any, Any, Any]) -> Any:
    with log.bind(reconcile_id="1"):
        return await throttle.timed(key, work)


async def test_passes_that_interleave_are_told_apart(throttle: CpuThrottle) -> None:
    async def works() -> None:
        for _ in range(10):
            burn(0.002)
            await asyncio.sleep(0)

    async def waits() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    await asyncio.gather(one_pass(throttle, A, works()), one_pass(throttle, B, waits()))
    assert taken(throttle, A) >= 0.02
    assert taken(throttle, B) < taken(throttle, A) / 4


async def test_what_a_pass_begins_is_on_its_account(throttle: CpuThrottle) -> None:
    async def works() -> None:
        burn(0.01)

    async def begins() -> None:
        await asyncio.gather(works(), asyncio.create_task(works()))

    await one_pass(throttle, A, begins())
    took = taken(throttle, A)
    assert took >= 0.02
    await asyncio.create_task(works())  # work outside a pass is not counted
    assert taken(throttle, A) == took


async def test_what_outlives_a_pass_is_not(throttle: CpuThrottle, metrics: Metrics) -> None:
    """Its CPU time is not the pass's, but its long steps are counted."""

    async def works() -> None:
        burn(LONG)

    async def begins() -> None:
        with log.outside_pass():
            task = asyncio.create_task(works())
        await task

    await one_pass(throttle, A, begins())
    assert taken(throttle, A) < LONG
    assert count(metrics, "caretaker_long_steps_total") == 1


async def test_steps_that_hold_the_loop_are_counted(throttle: CpuThrottle, metrics: Metrics) -> None:
    async def works() -> None:
        burn(LONG)
        await asyncio.sleep(0)
        burn(LONG / 4)
        await asyncio.sleep(0)
        burn(LONG)

    await one_pass(throttle, A, works())
    assert count(metrics, "caretaker_long_steps_total") == 2
    throttle.pause(A)
    assert count(metrics, "caretaker_pass_cpu_seconds_sum") >= 2.25 * LONG
    assert taken(throttle, A) == 0


async def test_results_errors_and_cancellations_go_through(throttle: CpuThrottle) -> None:
    async def ends(how: str) -> str:
        await asyncio.sleep(0)
        if how == "cancelled":
            await asyncio.sleep(60)
        if how == "fails":
            raise ValueError(how)
        return how

    assert await one_pass(throttle, A, ends("well")) == "well"
    with pytest.raises(ValueError, match="fails"):
        await one_pass(throttle, A, ends("fails"))
    cancelled = asyncio.create_task(one_pass(throttle, A, ends("cancelled")))
    for _ in range(5):
        await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert "ends" in repr(asyncio.create_task(ends("well")))

    async def late() -> None:
        async with asyncio.timeout(0.001):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await one_pass(throttle, A, late())


def passes(throttle: CpuThrottle, clock: Clock, seconds: float) -> Iterator[float]:
    """The pauses after passes of this cost, each started as early as allowed."""
    while True:
        throttle._budget(A).meter.add(seconds)
        pause = throttle.pause(A)
        clock.now += max(pause, 1.0)  # the queue's second between passes of one key
        yield pause


def test_less_than_the_share_never_rests(throttle: CpuThrottle, clock: Clock) -> None:
    found = passes(throttle, clock, SHARE)
    assert {next(found) for _ in range(10_000)} == {0.0}


def test_a_burst_does_not_rest(throttle: CpuThrottle, clock: Clock) -> None:
    found = passes(throttle, clock, 1.0)
    assert [next(found) for _ in range(int(BURST))] == [0.0] * int(BURST)
    assert not throttle.throttled(A)


@pytest.mark.parametrize("seconds", [0.3, 1.0, 5.0, 40.0, 1000.0])
def test_more_than_the_share_comes_ever_later_and_keeps_to_its_share(
    throttle: CpuThrottle, clock: Clock, seconds: float
) -> None:
    began, took, pauses = clock.now, 0.0, []
    for pause in passes(throttle, clock, seconds):
        took += seconds
        pauses.append(pause)
        if clock.now - began > 100_000:
            break
    paused = [pause for pause in pauses if pause]
    assert paused[0] >= PAUSE[0]
    assert max(paused) <= PAUSE_MAX
    if seconds * 4 < PAUSE[1]:  # shorter than the longest that doubling leads to
        assert paused[1] >= 2 * PAUSE[0]
        assert paused[2] >= 4 * PAUSE[0]
        assert max(paused) == PAUSE[1]
    if seconds <= PAUSE_MAX * SHARE:
        assert took <= BURST + (clock.now - began) * SHARE + seconds
    else:
        assert min(paused) == PAUSE_MAX


def test_it_is_told_until_it_has_been_well_for_a_while(throttle: CpuThrottle, clock: Clock) -> None:
    throttle._budget(A).meter.add(BURST + 1)
    pause = throttle.pause(A)
    assert pause >= 1 / SHARE
    assert throttle.throttled(A)
    assert not throttle.throttled(B)
    clock.now += pause
    assert (throttle.pause(A), throttle.throttled(A)) == (0.0, True)
    clock.now += BURST / 2 / SHARE
    assert (throttle.pause(A), throttle.throttled(A)) == (0.0, False)


def test_who_has_been_well_for_a_while_begins_anew(throttle: CpuThrottle, clock: Clock) -> None:
    found = passes(throttle, clock, 1.0)
    assert max(next(found) for _ in range(int(BURST) + 20)) >= 16 * PAUSE[0]
    clock.now += 100 * BURST / SHARE  # the balance is bounded by BURST
    assert throttle.pause(A) == 0.0
    throttle._budget(A).meter.add(BURST + SHARE / 2)
    assert throttle.pause(A) == PAUSE[0]


def test_since_when_it_is_told_and_once(throttle: CpuThrottle) -> None:
    first, events = cpu.with_condition(Status(), Status(), "2026-01-01T00:00:00Z")
    assert [event.reason for event in events] == [CpuReason.SHARE_EXCEEDED]
    again, events = cpu.with_condition(first, Status(), "2026-01-02T00:00:00Z")
    assert events == []
    assert again == first
    assert again.conditions[0].last_transition_time == "2026-01-01T00:00:00Z"


def test_to_be_made_anew_is_no_way_out(throttle: CpuThrottle, clock: Clock) -> None:
    throttle._budget(A).meter.add(BURST + 1)
    throttle.pause(A)
    throttle.forget(A)
    assert throttle.throttled(A)
    clock.now += PAUSE_MAX
    throttle.forget(A)
    assert not throttle.throttled(A)
    throttle.forget(B)


def test_of_a_resource_that_is_gone_nothing_is_kept(throttle: CpuThrottle) -> None:
    throttle._budget(A).meter.add(1.0)
    throttle.forget(A)  # as its last pass does
    assert throttle.pause(A) == 0.0
    assert not throttle._budgets


# ------------------------------------------------------------------ in the loop


class Status(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 3


class Costly(Kind[str, str, None]):
    """Its next pass takes `cost` seconds of CPU."""

    kind = "DaemonTask"
    stopped = ()

    def __init__(self) -> None:
        self.cost = 0.0
        self.standing = Status()
        self.passes = 0

    async def gather(self, key: Key) -> str:
        meter = cpu._meter.get()
        assert meter is not None
        meter.add(self.cost)
        self.passes += 1
        return key.name

    def plan(self, snapshot: str) -> str:
        return snapshot

    async def before(self, *_: Any) -> None:
        return None

    def path(self, key: Key) -> str:
        return f"/{key.name}"

    def subject(self, _: str) -> Subject:
        return Subject(WireMeta(uid="uid", resource_version="1"), self.standing)

    def status(self, *_: Any) -> Status:
        return Status((Condition("Ready", "True", "Succeeded"),))

    def events(self, *_: Any) -> list[Event]:
        return []

    def requeue(self, *_: Any) -> Next:
        return Next()

    def forget(self, key: Key) -> None:
        """Nothing is kept."""


class Told:
    """A client and an event recorder: they keep statuses and events."""

    def __init__(self, kind: Costly) -> None:
        self._kind = kind
        self.events: list[str] = []

    async def patch(self, path: str, body: dict[str, Any]) -> None:
        assert path == "/a/status"
        self._kind.standing = body["status"]

    async def post(self, _: ObjectRef, events: list[Event]) -> None:
        self.events += [event.reason for event in events]


async def test_a_resource_that_is_throttled_says_so_and_waits_whatever_happens(
    metrics: Metrics, clock: Clock
) -> None:
    kind, queue = Costly(), WorkQueue(clock=clock)
    told: Any = Told(kind)
    controller = Controller(told, queue, [kind], told, metrics, lambda _: None)  # type: ignore[list-item]
    asyncio.get_running_loop().set_task_factory(None)  # it sets its own
    running = asyncio.create_task(controller.run())

    async def step(seconds: float, expected: int) -> dict[str, str]:
        """Add the key, advance the clock; returns the conditions by type after this many passes."""
        queue.add(A, urgent=True)
        clock.now += seconds
        queue.wake()
        for _ in range(50):  # turns of the loop, more than a pass takes
            await asyncio.sleep(0)
        assert kind.passes == expected
        return {one.type: one.reason for one in kind.standing.conditions}

    kind.cost = BURST + SHARE * 20  # 20 s of pause
    assert await step(1, 1) == {"Ready": "Succeeded"}
    kind.cost = 0.0
    assert await step(10, 1) == {"Ready": "Succeeded"}
    assert await step(11, 2) == {"Ready": "Succeeded", "CPUThrottled": CpuReason.SHARE_EXCEEDED}
    shown = kind.standing.conditions[-1]
    assert (shown.status, shown.observed_generation) == ("True", 3)
    await step(2, 3)
    assert kind.standing.conditions[-1] == shown
    assert told.events == [CpuReason.SHARE_EXCEEDED]
    await step(BURST / SHARE, 4)
    assert await step(2, 5) == {"Ready": "Succeeded"}
    controller.stop()
    await running
    assert asyncio.get_running_loop().get_task_factory() is new_task
