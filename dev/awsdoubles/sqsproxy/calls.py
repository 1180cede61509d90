"""The log of the calls that went through the proxy. Thread-safe."""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Call:
    """One request. `entries`: of a batch; `messages`: that a receive delivered; `wait`: the seconds that a
    receive asked for; `at`: Unix seconds.

    `status` is what the client saw: 0 when its connection was reset or it went away first.
    """

    operation: str
    queue: str
    entries: int = 0
    messages: int = 0
    wait: float = 0.0
    status: int = 0
    at: float = field(default_factory=time.time)
    seconds: float = 0.0
    faults: tuple[str, ...] = ()


class CallLog:
    """All calls, in the order of their arrival."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._lock = threading.Lock()

    def add(self, call: Call) -> None:
        """A call that has arrived; its end is filled in later."""
        with self._lock:
            self._calls.append(call)

    def all(self, operation: str | None = None, queue: str | None = None) -> list[Call]:
        """The calls of an operation, of a queue, or all."""
        with self._lock:
            calls = list(self._calls)
        return [c for c in calls if operation in {None, c.operation} and queue in {None, c.queue}]

    def count(self, operation: str | None = None, queue: str | None = None) -> int:
        """How many there are."""
        return len(self.all(operation, queue))

    def by_operation(self) -> Counter[str]:
        """How many of each operation."""
        return Counter(call.operation for call in self.all())

    def clear(self) -> None:
        """Start anew."""
        with self._lock:
            self._calls.clear()
