"""Limits the number of long polls that run at a time, over all queues.

A long poll occupies a thread while it waits. With more queues than the limit, each queue waits for a slot,
and its long poll is shorter, so that it is polled as often as before. Threads beyond the limit are reserved
for short polls, which receive a backlog.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

# Of the threads that aws.session.Options gives to polls; the rest also serves queues of other kinds.
MOST_LONG_POLLS: Final = 224
LEAST_SECONDS: Final = 1


class LongPolls:
    """`queues`: the number of queues that are polled."""

    def __init__(self, most: int = MOST_LONG_POLLS) -> None:
        self.queues = 0
        self._most = most
        self._free = asyncio.Semaphore(most)  # first come, first served

    @asynccontextmanager
    async def slot(self, seconds: int) -> AsyncIterator[int]:
        """Waits for a slot; yields the seconds that the long poll may wait, at most `seconds`."""
        async with self._free:
            shorter = seconds * self._most // max(self.queues, self._most)
            yield max(shorter, min(seconds, LEAST_SECONDS))
