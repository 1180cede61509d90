"""Limits how many large answers are in memory at a time. The others wait, most of them with their senders.

Inputs: the owner of a call, a namespace. It blocks threads that read answers, never the event loop: they wait
for slots, and owners take turns, as in kube/slots.py. Above LARGE_BYTES an answer is large.
"""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

LARGE_BYTES: Final = 64 * 1024
SLOT_SECONDS: Final = 20.0  # for which a large answer waits for a slot; then it is an error, to be retried


class ThreadSlots:
    """`total` slots. Owners take turns: first comes the one whose last turn is the longest ago."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, threading.Event]] = []
        self._numbers = itertools.count(1)
        # The number of each owner's last turn, since the last time that none waited.
        self._last: dict[str, int] = {}

    def acquire(self, owner: str, seconds: float) -> bool:
        """Wait for a slot; False if none was free in time."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            waiter = (owner, threading.Event())
            self._waiting.append(waiter)
        if waiter[1].wait(seconds):
            return True
        with self._lock:
            if waiter not in self._waiting:  # it got a slot just now
                return True
            self._waiting.remove(waiter)
            return False

    def release(self) -> None:
        """A slot is free."""
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
    """The slot of one call. It is acquired when the answer gets large, and released when the last context of
    the hold is left: that of the call, and that of kept()."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._contexts = 0
        self._slots: ThreadSlots | None = None

    def __enter__(self) -> "Hold":
        with self._lock:
            self._contexts += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._contexts -= 1
            if self._contexts or self._slots is None:
                return
            slots, self._slots = self._slots, None
        slots.release()

    def acquire(self, slots: ThreadSlots) -> bool:
        """Wait for a slot, once; False if none was free in time."""
        if self._slots is None and slots.acquire(self._owner, SLOT_SECONDS):
            self._slots = slots
        return self._slots is not None


_kept: ContextVar[Hold | None] = ContextVar("kept", default=None)
_thread = threading.local()


@contextlib.contextmanager
def kept(owner: str) -> Iterator[None]:
    """The answer to the one long poll in this block keeps its slot until the block ends."""
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
def reading(hold: Hold, slots: ThreadSlots) -> Iterator[None]:
    """Large answers to the calls of this thread wait for one of the slots, for `hold`."""
    _thread.waits = (hold, slots)
    try:
        with hold:
            yield
    finally:
        _thread.waits = None


def acquire_slot() -> bool:
    """The answer that this thread reads is large: wait for a slot; False if none was free in time."""
    waits = getattr(_thread, "waits", None)
    if waits is None:
        return True
    hold, slots = waits
    acquired: bool = hold.acquire(slots)
    return acquired
