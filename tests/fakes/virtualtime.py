"""An event loop whose time jumps to the next timer: hours of sleeping in milliseconds.

Inputs: a coroutine that does no I/O. Nothing that runs in it may wait for anything but timers and other
tasks; waiting for nothing at all is an error, not a hang.
"""

import asyncio
import functools
import selectors
import time as real
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class _Selector(selectors.DefaultSelector):
    """Instead of waiting for the time given, tells that it has passed."""

    advance: Callable[[float], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # The system is not asked while the loop's own wake-up pipe is all that there is to ask for: a wake-up
        # of another thread stands among the loop's callbacks already.
        asked = timeout is None or len(self.get_map()) > 1
        ready = super().select(0) if asked else []
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RuntimeError("every task waits for something that never comes")
        self.advance(timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """loop.time() starts at 1000.0 and moves only by jumps."""

    def __init__(self) -> None:
        self.now = 1000.0
        selector = _Selector()
        selector.advance = self._advance
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def _advance(self, seconds: float) -> None:
        self.now += seconds


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run to the end in a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(scenario)


def played(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """A test whose coroutine runs in such a loop."""

    @functools.wraps(test)
    def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(test(*args, **kwargs))

    return whole


# For a module that reads `time`: this module stands in the place of that one.


def monotonic() -> float:
    """The time of the running loop."""
    return asyncio.get_running_loop().time()


time = real.time
