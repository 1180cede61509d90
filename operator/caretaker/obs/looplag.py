"""The event loop's lag: how late it wakes a sleeping task.

Input: a loop of new_loop(), which measures itself: the length of each of its iterations, during which all due
tasks wait, and the lateness of each timer. So no timer has to fire ten times a second, and a stall is
measured in full whenever it begins. A delay from outside while the loop sleeps (no CPU, another thread that
holds the GIL) shows in its timers alone; one fires each BEAT. Any other loop is measured by a timer each
INTERVAL.
"""

import asyncio
import selectors
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from caretaker.obs.metrics import Metrics


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop that measures its own lag: `asyncio.Runner(loop_factory=new_loop)`."""
    return _MeasuredLoop(_TimedSelector())


class _TimedSelector(selectors.DefaultSelector):
    """Calls `on_stall` with (since, until) for each period in which the loop woke no task, by its clock."""

    def __init__(self) -> None:
        super().__init__()
        self.on_stall: Callable[[float, float], None] | None = None
        self._woke = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See selectors.BaseSelector. Between two calls the loop is at work."""
        on_stall = self.on_stall
        if on_stall is None:
            return super().select(timeout)
        asleep = time.monotonic()
        on_stall(self._woke or asleep, asleep)
        ready = super().select(timeout)
        self._woke = woke = time.monotonic()
        if timeout and not ready:
            on_stall(asleep + timeout, woke)
        return ready


class _MeasuredLoop(asyncio.SelectorEventLoop):
    def __init__(self, timed_selector: _TimedSelector) -> None:
        super().__init__(timed_selector)
        self.timed_selector = timed_selector


class LoopLag:
    """See the module. `clock` gives seconds that never go back."""

    INTERVAL: Final = 0.1  # seconds of sleep
    BEAT: Final = 0.5  # seconds between two timers of a loop that measures itself
    WINDOW: Final = 60.0  # seconds that caretaker_loop_lag_max_seconds looks back
    RECENT: Final = 5.0  # seconds for which one lag over the limit counts as unhealthy

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        # (time, lag), lags falling from left to right: the leftmost is the window's largest.
        self._largest: deque[tuple[float, float]] = deque()
        self._due = 0.0
        self._next = clock() + self.INTERVAL  # when the imaginary task wakes next
        self._longest_stall = 0.0  # the longest stall since the imaginary task woke
        metrics.loop_lag_max.set_function(self.largest)

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, _MeasuredLoop):
            await self._tick(self.INTERVAL, self.record)
            return
        self._next = self._clock() + self.INTERVAL
        loop.timed_selector.on_stall = self.stalled
        try:
            await self._tick(self.BEAT, lambda _: None)
        finally:
            loop.timed_selector.on_stall = None

    async def _tick(self, seconds: float, on_tick: Callable[[float], None]) -> None:
        """A plain timer: a task that sleeps takes two turns of the loop each time."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def wait() -> None:
            nonlocal timer
            self._due = self._clock() + seconds
            timer = loop.call_later(seconds, tick)

        def tick() -> None:
            on_tick(self._clock() - self._due)
            wait()

        wait()
        try:
            await loop.create_future()
        finally:
            timer.cancel()

    def stalled(self, since: float, until: float) -> None:
        """No task was woken in this period. Observes the lag of an imaginary task that sleeps for INTERVAL
        again and again: 0 for each sleep that ended while the loop slept, since the loop would have woken
        it."""
        self._longest_stall = max(self._longest_stall, until - since)
        if until < self._next:
            return
        while self._next < since:
            self._metrics.loop_lag.observe(0.0)
            self._next += self.INTERVAL
        if self._next <= until:
            self._metrics.loop_lag.observe(until - self._next)
            self._next = until + self.INTERVAL
        self._keep(self._longest_stall)
        self._longest_stall = 0.0

    def record(self, lag: float) -> None:
        """Take one measurement in seconds."""
        lag = max(lag, 0.0)
        self._metrics.loop_lag.observe(lag)
        self._keep(lag)

    def _keep(self, lag: float) -> None:
        now = self._clock()
        while self._largest and self._largest[-1][1] <= lag:
            self._largest.pop()
        self._largest.append((now, lag))
        while self._largest[0][0] < now - self.WINDOW:
            self._largest.popleft()

    def largest(self, seconds: float = WINDOW) -> float:
        """The largest lag of the last `seconds` (at most WINDOW), in seconds."""
        since = self._clock() - seconds
        # A copy: a scrape reads it from another thread.
        return next((lag for at, lag in self._largest.copy() if at >= since), 0.0)

    def check(self, limit: float = 10.0) -> str | None:
        """Why the loop is unhealthy, or None. One long stall counts for RECENT seconds."""
        overdue = self._clock() - self._due if self._due else 0.0
        worst = max(self.largest(self.RECENT), overdue)
        if worst <= limit:
            return None
        return f"the event loop stood still for {worst:.1f} s (limit {limit:g} s)"
