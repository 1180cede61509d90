"""Limits the requests at a time, with fair turns between groups.

It knows nothing of the requests. Whoever holds or awaits a slot may be cancelled at any time.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager


class Slots:
    """`free` slots. Waiting groups take turns: hundreds of Pods that the tasks of one namespace create delay
    another namespace's request by one of them."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}  # the next group comes first
        self._refusal: Callable[[], Exception] | None = None

    @asynccontextmanager
    async def slot(self, group: Hashable) -> AsyncIterator[None]:
        """Waits for a slot, and holds it."""
        if self._free or self._refusal is not None:
            self._free -= 1
        else:
            await self._turn(group)
        try:
            if self._refusal is not None:
                raise self._refusal()
            yield
        finally:
            self._pass_on()

    def close(self, refusal: Callable[[], Exception]) -> None:
        """Those who wait, and those who come from now on, get this error instead of a slot."""
        self._refusal = refusal
        while self._waiting:
            self._free -= 1
            self._pass_on()

    async def _turn(self, group: Hashable) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it has the slot, and was cancelled before it knew
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Gives a slot to the next group; a cancelled request has no turn."""
        while self._waiting:
            group = next(iter(self._waiting))
            turns = self._waiting.pop(group)
            turn = turns.popleft()
            if turns:
                self._waiting[group] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
