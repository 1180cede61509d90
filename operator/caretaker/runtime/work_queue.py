"""The work queue: a set of keys with a time each.

Events only add a key. The first event after a quiet second runs after 50 ms, so that related events
share a pass; while events keep coming a key runs once a second. An urgent event, one that
lets something start, need not wait for the second to end: each key has URGENT passes in hand, one more
every second. A key is never processed twice at once: an event during its pass runs it again afterwards.
A key whose resource took more than its share of CPU, or is large, is paused despite events. Failures
back off per key, exponentially and with jitter. A namespace has PER_NAMESPACE passes of a kind at a time:
some take seconds, and the workers are for all namespaces and kinds.
"""

import asyncio
import contextlib
import heapq
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

COLLAPSE: Final = 0.05  # seconds
STORM_INTERVAL: Final = 1.0
PER_NAMESPACE: Final = 6  # passes of a kind at a time
WORKERS: Final = 6 * PER_NAMESPACE
URGENT: Final = 5  # passes that may follow each other without a second between them
BACKOFF_BASE: Final = 0.5
BACKOFF_MAX: Final = 300.0
# For a conflict: another writer was faster, and nothing is wrong; earlier refusals may have made the key's
# backoff long.
CONFLICT_MAX: Final = 10.0


class Key(msgspec.Struct, frozen=True, order=True):
    """One custom resource."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def group(self) -> tuple[str, str]:
        """(kind, namespace): its passes at a time are limited."""
        return self.kind, self.namespace


class _History(msgspec.Struct):
    """When a key's last pass started, its failures in a row, its urgent passes used up as of `spent_at`."""

    started: float = -math.inf
    failures: int = 0
    spent: float = 0.0
    spent_at: float = 0.0


class WorkQueue:
    """Keys that want a pass, each at its time. For one event loop; times are `clock` seconds."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.clock = clock
        self._jitter = jitter
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._busy: set[Key] = set()
        self._running: Counter[tuple[str, str]] = Counter()  # by group
        # Due, of groups with no pass free; heaps.
        self._held: dict[tuple[str, str], list[tuple[float, Key]]] = {}
        self._history: dict[Key, _History] = {}
        self._paused: dict[Key, float] = {}  # until when
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        now = self.clock()
        # Copies, here and in paused(): a scrape reads them from another thread.
        return sum(1 for due in self._due.copy().values() if due <= now)

    def paused(self, kind: str) -> int:
        """How many resources of the kind are paused now."""
        now = self.clock()
        return sum(1 for key, until in self._paused.copy().items() if key.kind == kind and until > now)

    def add(self, key: Key, *, urgent: bool = False, patient: bool = False) -> None:
        """An event: something about this key changed. `urgent`: it may let something start. `patient`: the
        keys of the same event go first, because a pass over this one takes the API server long."""
        now = self.clock()
        last = self._history.get(key, _History()).started
        due = now + (STORM_INTERVAL if patient else COLLAPSE)
        if now - last < STORM_INTERVAL and not (urgent and self._spend(key, now, due)):
            due = max(last + STORM_INTERVAL, due)
        self._put(key, due)

    def _spend(self, key: Key, now: float, due: float) -> bool:
        """Whether the key has an urgent pass left; one is used up unless a pass is due by then anyway."""
        if self._due.get(key, due + 1) <= due:
            return True
        history = self._history[key]
        spent = max(history.spent - (now - history.spent_at) / STORM_INTERVAL, 0.0)
        if spent + 1 > URGENT:
            return False
        history.spent, history.spent_at = spent + 1, now
        return True

    def add_after(self, key: Key, delay: float) -> None:
        """A pass no later than `delay` seconds from now; an earlier one that is due already stays."""
        self._put(key, self.clock() + max(delay, 0.0))

    def retry(self, key: Key, at_least: float = 0.0, at_most: float = math.inf) -> float:
        """A pass after this key's backoff; returns the delay in seconds. `at_most`: of a backoff that has
        grown long over something else."""
        history = self._history.setdefault(key, _History())
        delay = min(BACKOFF_BASE * 2.0 ** min(history.failures, 16), BACKOFF_MAX, at_most)
        history.failures += 1
        delay = max(delay * (0.5 + self._jitter()), at_least)
        self.add_after(key, delay)
        return delay

    def pause(self, key: Key, seconds: float) -> None:
        """Do not run this key, which is being worked on, again before this time has passed, nor before that
        of another pause."""
        self._paused[key] = until = max(self.clock() + seconds, self._paused.get(key, 0.0))
        if key in self._due:
            self._due[key] = max(self._due[key], until)

    def succeeded(self, key: Key) -> None:
        """The key's backoff starts anew."""
        if (history := self._history.get(key)) is not None:
            history.failures = 0

    def pending(self, key: Key) -> bool:
        """Whether the key has an event that no pass has processed."""
        return key in self._due

    def forget(self, key: Key) -> None:
        """The resource is gone. Events since then stay due: one may be the creation of its successor."""
        self._history.pop(key, None)

    async def get(self, stopping: asyncio.Event) -> tuple[Key, float] | None:
        """(the next due key, seconds it waited past its time); None once `stopping` is set and wake() was
        called. Call done() after the pass. A cancelled get() takes no key."""
        while not stopping.is_set():
            now = self.clock()
            key = self._pop(now)
            if key is not None:
                waited = now - self._due.pop(key)
                self._busy.add(key)
                self._running[key.group] += 1
                self._history.setdefault(key, _History()).started = now
                self._paused.pop(key, None)
                return key, waited
            self._changed.clear()
            timeout = self._heap[0][0] - now if self._heap else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
        return None

    def wake(self) -> None:
        """Make all waiting get() calls check whether to stop."""
        self._changed.set()

    def done(self, key: Key) -> None:
        """The key may be handed out again."""
        self._busy.discard(key)
        self._running[key.group] -= 1
        if held := self._held.get(key.group):
            heapq.heappush(self._heap, heapq.heappop(held))
            self._changed.set()
        elif not self._running[key.group]:
            del self._running[key.group]
            self._held.pop(key.group, None)
        if key in self._due:
            heapq.heappush(self._heap, (self._due[key], key))
            self._changed.set()

    def _put(self, key: Key, due: float) -> None:
        due = max(due, self._paused.get(key, due))
        current = self._due.get(key)
        if current is not None and current <= due:
            return
        self._due[key] = due
        if key not in self._busy:
            heapq.heappush(self._heap, (due, key))
            self._changed.set()

    def _pop(self, now: float) -> Key | None:
        """The first due key without a pass in progress; entries that a later _put replaced are dropped."""
        while self._heap:
            due, key = self._heap[0]
            if self._due.get(key) != due or key in self._busy:
                heapq.heappop(self._heap)
                continue
            if due > now:
                return None
            heapq.heappop(self._heap)
            if self._running[key.group] < PER_NAMESPACE:
                return key
            heapq.heappush(self._held.setdefault(key.group, []), (due, key))
        return None
