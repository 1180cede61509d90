"""Tasks end with those who began them, and let others in between."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, TypeVar

T = TypeVar("T")

SLICE: Final = 0.02  # seconds of work without a look at other tasks of the event loop


async def cancel(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel them and return when all have ended, whatever they raised.

    Nothing is suppressed here: a CancelledError is the caller's own, and one that is lost keeps the process
    from ending.
    """
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class OneATurn:
    """`async with` it does what takes long and awaits nothing: no two in one turn of the event loop, where
    all that are due follow each other and everybody else waits for them together."""

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
    """The items; once those that were handed out have taken a SLICE, others of the event loop go first. To be
    run to its end."""
    began = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - began > SLICE:
            await asyncio.sleep(0)
            began = time.perf_counter()
