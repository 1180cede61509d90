"""Limits how many of something run at a time, fairly between their owners.

A slot is the permission for one of them. An owner may hold at most `per_owner` of them. Owners take
turns: a free slot goes to the next owner that waits.

It knows nothing of their work. A holder of a slot, or one that waits for it, may be cancelled at any time.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager


class Slots:
    """`total` slots. By turns, hundreds of Pods that the tasks of one namespace create delay another
    namespace's request by one of them.

    per_owner  the most slots of one owner; all until limit() is called
    """

    def __init__(self, total: int) -> None:
        self.per_owner: float = total
        self._free = total
        self._held: Counter[Hashable] = Counter()
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}  # the next owner comes first
        self._refusal: Callable[[], Exception] | None = None

    def limit(self, per_owner: float) -> None:
        """Each owner has at most so many from now on, and one at least. Slots that are held stay so."""
        self.per_owner = per_owner
        self._give()

    @asynccontextmanager
    async def slot(self, owner: Hashable) -> AsyncIterator[None]:
        """Waits for a slot, and holds it."""
        if self._refusal is not None:
            raise self._refusal()
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        self._give()
        try:
            await turn
            if self._refusal is not None:
                raise self._refusal()
            yield
        finally:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._free += 1
                self._held[owner] -= 1
                if not self._held[owner]:
                    del self._held[owner]
                self._give()

    def close(self, refusal: Callable[[], Exception]) -> None:
        """All that wait, and later ones, get this error instead of a slot."""
        self._refusal = refusal
        for turn in (one for turns in self._waiting.values() for one in turns):
            if not turn.done():  # cancelled
                turn.set_exception(refusal())
        self._waiting.clear()

    def _give(self) -> None:
        """Gives free slots to the owners that wait for them."""
        most = max(self.per_owner, 1)
        while self._free:
            owner = next((one for one in self._waiting if self._held[one] < most), None)
            if owner is None:
                return
            turns = self._waiting.pop(owner)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns
            if not turn.done():  # cancelled
                turn.set_result(None)
                self._free -= 1
                self._held[owner] += 1
