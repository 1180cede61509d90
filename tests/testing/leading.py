"""Who led, and when nobody did, as others see it: from the Lease and the operator's pods.

It changes nothing. Somebody leads while the Lease names a pod whose container runs; a Lease that runs out is
that of a pod that is gone.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Final, Self

from testbed.admin import Admin, Json, path
from testing.release import LEASE, NAMESPACE, PODS

_COLLECTION, _, _NAME = LEASE.rpartition("/")
SECONDS: Final = 120.0


class Leading:
    """Use as an async context manager; it is entered once somebody leads, which is `since`."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._holder = ""
        self._running: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._states: list[tuple[float, str]] = []  # since when who leads; "" = nobody
        self._changed = asyncio.Event()
        self._ended = 0.0

    async def __aenter__(self) -> Self:
        lease = self._admin.states(_COLLECTION, fields=f"metadata.name={_NAME}")
        pods = self._admin.states(path("pods", NAMESPACE), labels=PODS)
        follows = (lease, self._look_at_lease), (pods, self._look_at_pods)
        self._tasks = [asyncio.create_task(self._follow(*follow)) for follow in follows]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._changed.set())
        try:
            await self.until(bool)
        except BaseException:
            await self._end()
            raise
        self._states = self._states[-1:]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = time.monotonic()
        await self._end()
        self._look_at_tasks()

    async def until(self, holds: Callable[[str], bool], timeout: float = SECONDS) -> None:
        """Return once it holds of who leads, "" while nobody does. Raises what keeps it from seeing."""
        async with asyncio.timeout(timeout):
            while not holds(self.leader):
                self._look_at_tasks()
                self._changed.clear()
                await self._changed.wait()

    @property
    def leader(self) -> str:
        """The pod that leads now; nothing while none does."""
        return self._states[-1][1] if self._states else ""

    @property
    def since(self) -> float:
        """When the first of them was seen to lead, in monotonic seconds."""
        return self._states[0][0]

    def leaders(self) -> list[str]:
        """The pods that have led, in order."""
        return [pod for _, pod in self._states if pod]

    def without(self) -> float:
        """The longest time in which nobody led, until the block's end."""
        ends = [at for at, _ in self._states[1:]] + [self._ended or time.monotonic()]
        spans = zip(self._states, ends, strict=True)
        return max((end - at for (at, pod), end in spans if not pod), default=0.0)

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    def _look_at_tasks(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _follow(
        self, states: AsyncGenerator[dict[str, Json], None], look: Callable[[list[Json]], None]
    ) -> None:
        async with aclosing(states):
            async for found in states:
                look(list(found.values()))
                leader = self._holder if self._holder in self._running else ""
                if not self._states or self._states[-1][1] != leader:
                    self._states.append((time.monotonic(), leader))
                    self._changed.set()

    def _look_at_lease(self, found: list[Json]) -> None:
        self._holder = next((str(lease["spec"].get("holderIdentity") or "") for lease in found), "")

    def _look_at_pods(self, found: list[Json]) -> None:
        self._running = {pod["metadata"]["name"] for pod in found if _runs(pod)}


def _runs(pod: Json) -> bool:
    return any("running" in one.get("state", {}) for one in pod["status"].get("containerStatuses", ()))
