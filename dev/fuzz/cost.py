"""What one call with one input does: errors, CPU time, memory that stays.

CPU time is the thread's, the least of several calls: a busy machine makes one slow, hardly all of them.
"""

import contextlib
import gc
import math
import os
import time
import tracemalloc
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

SECONDS: Final = 0.05
LAG: Final = 0.25  # of the event loop, at the most
BASE_SECONDS: Final = 5.0
KEPT: Final = 1 << 20  # bytes
TRIES: Final = 4
# Smaller inputs keep nothing of that size, and tracing takes several times as long as the call.
TRACED: Final = 1 << 16
# How many times longer all takes here than where bounds hold: set for an emulated processor.
SLOWER: Final = float(os.environ.get("CPU_SLOWER", "1"))


class CostlyError(AssertionError):
    """A call took too long, or something of it stayed."""


def seconds(call: Callable[[], Any], enough: float = 0.0) -> float:
    """CPU time of the call. Repeated only while it is above `enough`."""
    least = float("inf")
    for _ in range(TRIES):
        began = time.thread_time()
        call()
        least = min(least, (time.thread_time() - began) / SLOWER)
        if least <= enough:
            break
    return least


def kept(call: Callable[[], Any]) -> int:
    """Bytes that stay once its result is dropped."""
    gc.collect()
    tracemalloc.start()
    try:
        call()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def judge(
    call: Callable[[], Any],
    typed: tuple[type[Exception], ...],
    most: float,
    size: int,
    base: Callable[[], Any] | None = None,
) -> float:
    """CPU seconds of a call that is well: any error is of `typed`, it takes at the most `most` more than
    `base`, both together no longer than the event loop may lag, and nothing of it stays. Raises the fault, if
    there is one."""

    def quiet() -> None:
        with contextlib.suppress(*typed):
            call()

    took = _beyond(quiet, most, base) if base is not None and most < math.inf else seconds(quiet, most)
    if took > most:
        raise CostlyError(f"{took * 1000:.0f} ms of CPU, more than {most * 1000:.0f}")
    # Twice: the first call of all fills caches that are bounded.
    if size >= TRACED and (left := kept(quiet)) > KEPT and (left := kept(quiet)) > KEPT:
        raise CostlyError(f"{left >> 10} KiB stay, more than {KEPT >> 10}")
    return took


def _beyond(call: Callable[[], Any], most: float, base: Callable[[], Any]) -> float:
    """CPU seconds beyond those of `base`. Both are measured anew where these are many: the speed of a machine
    varies."""
    spent = usual(base)
    took = seconds(call, spent + most / 2)
    if took > spent + most / 2:
        spent = took = float("inf")
        for _ in range(TRIES):  # by turns: both meet the same machine
            spent = min(spent, seconds(base))
            took = min(took, seconds(call, spent))
            if took <= spent + most / 2:
                break
    if most < LAG < took:
        raise CostlyError(f"{took * 1000:.0f} ms of CPU, of which the least input takes {spent * 1000:.0f}")
    return max(took - spent, 0.0)


def usual(base: Callable[[], Any]) -> float:
    """CPU seconds of the base, as measured within the last BASE_SECONDS."""
    return _usual(base, int(time.monotonic() / BASE_SECONDS))


@lru_cache(maxsize=1)
def _usual(base: Callable[[], Any], _when: int) -> float:
    return seconds(base)
