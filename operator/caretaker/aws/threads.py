"""Daemon threads that make blocking calls for the event loop.

Inputs: functions without arguments. Not concurrent.futures: the interpreter joins its threads on the way
out, so that one long poll of 20 s would delay every exit by up to as much.
"""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")

IDLE_SECONDS: Final = 60.0
LEAST_SECONDS: Final = 1  # of a long poll


class DaemonPool:
    """At most `limit` threads; further jobs are queued. Threads end when idle for a minute.

    running  functions being executed now
    each     jobs of one owner at a time; its further ones wait beside the queue. 0 = no bound. Jobs without
             an owner have none
    """

    def __init__(self, name: str, limit: int, idle_seconds: float = IDLE_SECONDS, *, each: int = 0) -> None:
        self.limit = limit
        self.each = each
        self.running = 0
        self._name = name
        self._idle_seconds = idle_seconds
        self._wake = threading.Condition(threading.Lock())  # its lock guards the rest
        self._work: deque[_Job] = deque()
        self._admitted: Counter[str] = Counter()  # by owner: jobs that are queued or run
        self._held: dict[str, deque[_Job]] = {}  # by owner: its further jobs
        self._threads = 0
        self._idle = 0
        self._closed = False

    async def run(self, function: Callable[[], T], owner: str = "") -> T:
        """Returns or raises as `function` does.

        Cancelled before a thread has started it, it is never called; cancelled later, it runs to its end and
        its result is dropped. RuntimeError after close().
        """
        loop = asyncio.get_running_loop()
        job = _Job(function, loop.create_future(), loop, owner)
        self._submit(job)
        try:
            return await job.future  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            job.cancelled = True
            raise

    def close(self) -> None:
        """Accept no further jobs. Idle threads end now, the others after their function; close() waits for
        none."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def _submit(self, job: "_Job") -> None:
        with self._wake:
            if self._closed:
                raise RuntimeError(f"{self._name} is closed")
            if self.each and job.owner and self._admitted[job.owner] >= self.each:
                self._held.setdefault(job.owner, deque()).append(job)
            else:
                self._admit(job)

    def _admit(self, job: "_Job") -> None:
        """Under the lock."""
        self._admitted[job.owner] += 1
        self._work.append(job)
        if self._idle >= len(self._work):
            self._wake.notify()
        elif self._threads < self.limit:
            self._threads += 1
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    def _ended(self, owner: str) -> None:
        """Under the lock: a job of this owner has ended, and its next one is admitted."""
        self.running -= 1
        self._admitted[owner] -= 1
        if held := self._held.get(owner):
            self._admit(held.popleft())
        if not held:
            self._held.pop(owner, None)
        if not self._admitted[owner]:
            del self._admitted[owner]

    def _serve(self) -> None:
        while True:
            job = self._next()
            if job is None:
                return
            try:
                job.work()
            finally:
                with self._wake:
                    self._ended(job.owner)
                # Else the last job's result lives as long as the thread idles.
                del job

    def _next(self) -> "_Job | None":
        with self._wake:
            while not self._work:
                if self._closed:
                    break
                self._idle += 1
                woken = self._wake.wait(self._idle_seconds)
                self._idle -= 1
                if not woken and not self._work:
                    break
            if not self._work:
                self._threads -= 1
                return None
            self.running += 1
            return self._work.popleft()


class LongPolls:
    """Limits the number of long polls that run at a time, over all queues of a kind.

    A long poll occupies a thread while it waits. With more queues than the limit, each queue waits for a
    slot, and its long poll is shorter, so that it is polled as often as before. The queues of a namespace
    have an equal share of the slots, and what others leave of theirs. Threads beyond the limit are reserved
    for short polls, which receive a backlog.

    queues  those with long polls, by namespace
    """

    def __init__(self, most: int) -> None:
        self.queues: dict[str, set[Hashable]] = {}
        self._most = most
        self._held: Counter[str] = Counter()  # slots, by namespace
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next namespace comes first

    def add(self, namespace: str, queue: Hashable) -> None:
        """The queue takes part from now on."""
        self.queues.setdefault(namespace, set()).add(queue)

    def remove(self, namespace: str, queue: Hashable) -> None:
        """The queue is read by short polls, cannot be read, or is not read any more."""
        self.queues.get(namespace, set()).discard(queue)
        if not self.queues.get(namespace):
            self.queues.pop(namespace, None)
        self._give()

    @asynccontextmanager
    async def slot(self, namespace: str, seconds: int) -> AsyncIterator[int]:
        """Waits for a slot; yields the seconds that the long poll may wait, at most `seconds`."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(turn)
        self._give()
        try:
            await turn
            share = self._share()
            shorter = int(seconds * share / max(len(self.queues.get(namespace, ())), share))
            yield max(shorter, min(seconds, LEAST_SECONDS))
        finally:
            if turn.done() and not turn.cancelled():
                self._held[namespace] -= 1
                self._held += Counter()  # forgets namespaces without slots
                self._give()

    def _share(self) -> float:
        """The slots of a namespace that wants more: what those leave that want less is divided."""
        free: float = self._most
        numbers = sorted(len(queues) for queues in self.queues.values())
        for at, number in enumerate(numbers):
            equal = free / (len(numbers) - at)
            if number > equal:
                return equal
            free -= number
        return self._most

    def _give(self) -> None:
        """Gives free slots to namespaces by turns."""
        share = max(self._share(), 1)
        while self._held.total() < self._most:
            namespace = next((one for one in self._waiting if self._held[one] < share), None)
            if namespace is None:
                return
            turns = self._waiting.pop(namespace)
            turn = turns.popleft()
            if turns:
                self._waiting[namespace] = turns
            if not turn.done():  # cancelled
                turn.set_result(None)
                self._held[namespace] += 1


class _Job:
    """One function on its way through a thread and back."""

    def __init__(
        self,
        function: Callable[[], Any],
        future: asyncio.Future[Any],
        loop: asyncio.AbstractEventLoop,
        owner: str,
    ) -> None:
        self.function = function
        self.future = future
        self.loop = loop
        self.owner = owner
        self.cancelled = False

    def work(self) -> None:
        if self.cancelled:
            return
        try:
            result = self.function()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            self._deliver(self.future.set_exception, error)
        else:
            self._deliver(self.future.set_result, result)

    def _deliver(self, settle: Callable[[Any], None], outcome: Any) -> None:
        # The loop may have ended during the call: then no task awaits the result.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._settle, settle, outcome)

    def _settle(self, settle: Callable[[Any], None], outcome: Any) -> None:
        if not self.future.done():
            settle(outcome)
