"""What a loop of new_loop() tells of its own lag, without being woken to be measured."""

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


def test_a_stall_is_observed_as_a_sleeper_of_a_tenth_of_a_second_would_see_it(metrics: Metrics) -> None:
    lag = LoopLag(metrics, lambda: 1000.0)
    lag.held(1000.0, 1000.02)
    assert observed(metrics) == 0
    lag.held(1000.35, 1000.95)  # it would have woken in time at .1, .2 and .3; then at .4, but for this
    assert [observed(metrics, le) for le in ("0.001", "0.5", "1.0")] == [3, 3, 4]
    assert lag.largest() == pytest.approx(0.6)
    lag.held(1001.04, 1001.049)
    assert observed(metrics) == 4
    lag.held(1001.06, 1001.07)
    assert (observed(metrics), observed(metrics, "0.001")) == (5, 4)
    assert lag.check(limit=0.5) is not None


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
    select = selectors.DefaultSelector.select

    def counted(self: selectors.DefaultSelector, timeout: float | None = None) -> object:
        turns.append(timeout)
        return select(self, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", counted)
    began = time.monotonic()
    measured(metrics, lambda: asyncio.sleep(1.2))
    assert len([timeout for timeout in turns if timeout]) <= 2 * (time.monotonic() - began) + 3
    assert observed(metrics) >= 9
