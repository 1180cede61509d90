"""Daemon threads that make blocking calls for the event loop.

Inputs: functions without arguments. Not an executor of concurrent.futures: the interpreter joins its threads
on the way out, so that one long poll of 20 s would delay every exit by up to as much.
"""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")

IDLE_SECONDS: Final = 60.0


class DaemonPool:
    """At most `limit` threads; further jobs are queued. Threads end when idle for a minute.

    running    functions being executed now
    per_owner  the most jobs of an owner that are queued or run; its further ones wait beside the queue. 0 =
               no bound, as for jobs without an owner
    """

    def __init__(
        self, name: str, limit: int, idle_seconds: float = IDLE_SECONDS, *, per_owner: int = 0
    ) -> None:
        self.limit = limit
        self.per_owner = per_owner
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
        job = _Job(function, owner, Future())
        self._submit(job)
        return await asyncio.wrap_future(job.future)

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
            if self.per_owner and job.owner and self._admitted[job.owner] >= self.per_owner:
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


class _Job(NamedTuple):
    """One function on its way through a thread and back."""

    function: Callable[[], Any]
    owner: str
    future: "Future[Any]"

    def work(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.function()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
