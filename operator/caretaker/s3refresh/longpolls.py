"""Whose turn it is to wait at SQS: so many long polls at a time, over all queues.

A long poll takes a thread for as long as it waits. Beyond the bound a queue waits in line for one, and each
waits for a shorter time, so that it is asked as often as before. The threads beyond the bound are for short
polls, by which a backlog comes in: no long poll is ever in their way.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

# Of the threads that aws.session.Options gives to polls, for those of other queues than ours, too.
MOST_LONG_POLLS: Final = 224
LEAST_SECONDS: Final = 1


class LongPolls:
    """`queues`: how many want a long poll again and again."""

    def __init__(self, most: int = MOST_LONG_POLLS) -> None:
        self.queues = 0
        self._most = most
        self._free = asyncio.Semaphore(most)  # first come, first served

    @asynccontextmanager
    async def turn(self, seconds: int) -> AsyncIterator[int]:
        """A long poll's turn; how long it may wait, of the `seconds` that the queue's owner asks for."""
        async with self._free:
            shorter = seconds * self._most // max(self.queues, self._most)
            yield max(shorter, min(seconds, LEAST_SECONDS))
