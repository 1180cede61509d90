"""Helpers for tasks: cancel them and wait for their end, and yield to the event loop during long work."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, TypeVar

T = TypeVar("T")

SLICE: Final = 0.02  # seconds of work between two yields to the event loop


async def cancel(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel them and return when all have ended, with or without exceptions.

    Nothing is suppressed here: a CancelledError is the caller's own, and one that is lost keeps the process
    from ending.
    """
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class YieldingLock:
    """A lock for blocks that take long and await nothing: no two of them run in one turn of the event loop.
    Without it all that are due run one after the other, and other tasks wait for the sum."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.sleep(0)
        finally:
            self._lock.release()


async def in_pieces(items: Iterable[T]) -> AsyncIterator[T]:
    """Yields the items, and yields to the event loop whenever their processing has taken a SLICE. The caller
    has to exhaust it."""
    began = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - began > SLICE:
            await asyncio.sleep(0)
            began = time.perf_counter()
