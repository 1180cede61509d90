"""Virtual time: one clock for the operator, EC2 and the cluster."""

import asyncio
import selectors
import sys
import time
from collections.abc import Callable
from typing import Any

WALL = 1_800_000_000.0  # Unix seconds where the clock began


class Clock:
    """In the place of the module `time`. `skew`: of this machine's wall clock; `jumped`: when it was set
    last, and from there on it is not known how long something took."""

    def __init__(self) -> None:
        self.now, self.skew, self.jumped = 1_000.0, 0.0, 0.0
        self._kept: list[Any] = []

    def monotonic(self) -> float:
        """time.monotonic()."""
        return self.now

    perf_counter = monotonic

    def time(self) -> float:
        """time.time()."""
        return WALL + self.now + self.skew

    def jump(self, skew: float) -> None:
        """Somebody sets the wall clock."""
        if skew != self.skew:
            self.skew, self.jumped = skew, self.now

    def install(self) -> None:
        """Every module of the kind has this clock from now on, and what decides when a pass yields: else a
        busy machine would change the order of things."""
        for name, module in list(sys.modules.items()):
            ours = name.startswith("caretaker.imds.") or name == "caretaker.runtime.tasks"
            if ours and getattr(module, "time", None) is time:
                self._kept.append(module)
                module.time = self  # type: ignore[attr-defined]

    def remove(self) -> None:
        """They have their own again."""
        for module in self._kept:
            module.time = time


class _Selector(selectors.SelectSelector):
    """Waits for nothing: the clock goes on in its place."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        """Nothing is ever read."""
        assert timeout is not None, "everybody waits for everybody"
        self._clock.now += max(timeout, 0.0)
        return []


class Loop(asyncio.SelectorEventLoop):
    """An event loop by that clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock_of_the_world = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        """As monotonic() says."""
        return self._clock_of_the_world.now

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Have it done then."""
        self.call_at(when, do)
