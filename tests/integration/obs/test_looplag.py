"""What a real loop tells of its own lag; one of new_loop() does without being woken to be measured."""

import asyncio
import selectors
import time
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import CollectorRegistry

from caretaker.obs.looplag import LoopLag, new_loop
from caretaker.obs.metrics import Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("0", CollectorRegistry())


def observed(metrics: Metrics, up_to: str = "") -> float:
    """How many observations there are, in all or of so many seconds at most."""
    name, labels = ("bucket", {"le": up_to}) if up_to else ("count", {})
    return metrics.registry.get_sample_value(f"caretaker_loop_lag_seconds_{name}", labels) or 0.0


def measured(metrics: Metrics, work: Callable[[], Awaitable[None]]) -> LoopLag:
    """After this work, done in a loop of its own."""
    lag = LoopLag(metrics)

    async def both() -> None:
        task = asyncio.create_task(lag.run())
        await asyncio.sleep(0)
        await work()
        await asyncio.sleep(0.15)
        task.cancel()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(both())
    return lag


@pytest.mark.parametrize("before", [0.0, 0.03, 0.09])
def test_a_stall_is_told_whole_whenever_it_comes(metrics: Metrics, before: float) -> None:
    """A sleeper that is woken in its midst sees the rest of it only."""

    async def stall() -> None:
        await asyncio.sleep(before)
        time.sleep(0.06)  # noqa: ASYNC251 - the fault itself

    assert measured(metrics, stall).largest() >= 0.06


def test_a_loop_that_is_woken_late_is_lagging(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    """It slept, and got no CPU when it was time."""
    select = selectors.DefaultSelector.select

    def late(self: selectors.DefaultSelector, timeout: float | None = None) -> object:
        found = select(self, timeout)
        if timeout:
            time.sleep(0.2)
        return found

    monkeypatch.setattr(selectors.DefaultSelector, "select", late)
    assert measured(metrics, lambda: asyncio.sleep(0.05)).largest() >= 0.2


def test_an_idle_loop_is_woken_twice_a_second_and_observed_ten_times(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = []
    stalls, woke = 0.0, 0.0
    select = selectors.DefaultSelector.select

    def counted(self: selectors.DefaultSelector, timeout: float | None = None) -> object:
        nonlocal stalls, woke
        turns.append(timeout)
        asleep = time.monotonic()
        found = select(self, timeout)
        stalls += asleep - (woke or asleep)
        woke = time.monotonic()
        stalls += max(woke - asleep - timeout, 0.0) if timeout is not None else 0.0
        return found

    monkeypatch.setattr(selectors.DefaultSelector, "select", counted)
    began = time.monotonic()
    measured(metrics, lambda: asyncio.sleep(1.2))
    assert len([timeout for timeout in turns if timeout]) <= 2 * (time.monotonic() - began) + 3
    # In a stall of the machine, whom it holds up is seen once.
    assert observed(metrics) >= 9 - stalls / LoopLag.INTERVAL


async def test_a_blocked_loop_is_measured(metrics: Metrics) -> None:
    monitor = LoopLag(metrics)
    task = asyncio.create_task(monitor.run())
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251  the fault itself
    async with asyncio.timeout(2):
        while monitor.largest() == 0.0:  # noqa: ASYNC110  turns of the loop are what is awaited
            await asyncio.sleep(0)
    task.cancel()
    assert 0.15 <= monitor.largest() < 2.0
    assert monitor.check(limit=0.1) is not None
    assert observed(metrics, "0.15") == 0


async def test_the_monitor_wakes_at_most_ten_times_a_second(metrics: Metrics) -> None:
    monitor = LoopLag(metrics)
    began, turns = time.monotonic(), 0
    task = asyncio.create_task(monitor.run())
    while observed(metrics) < 5 and turns < 30:
        await asyncio.sleep(monitor.INTERVAL)
        turns += 1
    assert time.monotonic() - began >= observed(metrics) * monitor.INTERVAL
    assert turns <= 8, "about as often as another sleeper, whatever holds both up"
    task.cancel()
