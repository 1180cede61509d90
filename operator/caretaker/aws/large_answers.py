"""Limits how many large answers are in memory at a time. The others wait, most of them with their senders.

Inputs: the owner of a call, a namespace. It blocks threads that read answers, never the event loop. An answer
is large when more than LARGE_BYTES of it have come.
"""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

LARGE_BYTES: Final = 64 * 1024
TURN_SECONDS: Final = 20.0  # for which a large answer waits for its turn; then it is an error, to be retried


class Turns:
    """At most `limit` large answers at a time. Owners take turns: first comes the one whose last turn is the
    longest ago."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, threading.Event]] = []
        self._numbers = itertools.count(1)
        # The number of each owner's last turn, since the last time that none waited.
        self._last: dict[str, int] = {}

    def take(self, owner: str, seconds: float) -> bool:
        """Wait for a turn; False if there was none in time."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            waiter = (owner, threading.Event())
            self._waiting.append(waiter)
        if waiter[1].wait(seconds):
            return True
        with self._lock:
            if waiter not in self._waiting:  # it got its turn just now
                return True
            self._waiting.remove(waiter)
            return False

    def end(self) -> None:
        """A turn is over."""
        with self._lock:
            if not self._waiting:
                self._free += 1
                self._last.clear()
                return
            following = min(self._waiting, key=lambda waiter: self._last.get(waiter[0], 0))
            self._waiting.remove(following)
            self._last[following[0]] = next(self._numbers)
            following[1].set()


class Hold:
    """The turn of one call. It is taken when the answer gets large, and ends when the last context of the
    hold is left: that of the call, and that of kept()."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._contexts = 0
        self._taken: Turns | None = None

    def __enter__(self) -> "Hold":
        with self._lock:
            self._contexts += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._contexts -= 1
            if self._contexts or self._taken is None:
                return
            taken, self._taken = self._taken, None
        taken.end()

    def take(self, turns: Turns) -> bool:
        """Wait for the turn, once; False if there was none in time."""
        if self._taken is None and turns.take(self._owner, TURN_SECONDS):
            self._taken = turns
        return self._taken is not None


_kept: ContextVar[Hold | None] = ContextVar("kept", default=None)
_thread = threading.local()


@contextlib.contextmanager
def kept(owner: str) -> Iterator[None]:
    """The answer to the one long poll in this block has its turn until the block ends."""
    with Hold(owner) as hold:
        token = _kept.set(hold)
        try:
            yield
        finally:
            _kept.reset(token)


def hold_of_poll(owner: str) -> Hold:
    """That of kept(), or a new one."""
    return _kept.get() or Hold(owner)


@contextlib.contextmanager
def reading(held: Hold, turns: Turns) -> Iterator[None]:
    """The calls of this thread take their turn for `held`."""
    _thread.turn = (held, turns)
    try:
        with held:
            yield
    finally:
        _thread.turn = None


def take_turn() -> bool:
    """The answer that this thread reads is large: wait for its turn; False if there was none in time."""
    turn = getattr(_thread, "turn", None)
    if turn is None:
        return True
    held, turns = turn
    taken: bool = held.take(turns)
    return taken
