"""A reflector that runs, its store, and what it reports."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, Self, TypeVar

from caretaker.kube.client import KubeClient
from caretaker.kube.reflector import Collection, Hooks, Reflector, ReflectorOptions
from caretaker.kube.store import Record, Store

R = TypeVar("R", bound=Record)


class Recorder(Generic[R]):
    """See the module. `changes`: (old name, new name) of each change of the store."""

    def __init__(self, client: KubeClient, collection: Collection[R], options: ReflectorOptions) -> None:
        self.store: Store[R] = Store()
        hooks = Hooks(self._state, self._event)
        self.reflector: Reflector[R] = Reflector(client, collection, self.store, hooks, options)
        self.running: asyncio.Task[None]
        self._cancelled = False
        self.counts: Counter[str] = Counter()
        self.states: list[tuple[str, str]] = []
        self.changes: list[tuple[str | None, str | None]] = []
        self._change = asyncio.Event()
        self.store.subscribe(self._changed)

    @property
    def state(self) -> str:
        return self.states[-1][0] if self.states else ""

    @property
    def comings_and_goings(self) -> list[tuple[str | None, str | None]]:
        """`changes` without those of objects that stay; the server marks a Pod before it deletes it."""
        return [change for change in self.changes if None in change]

    def _event(self, kind: str) -> None:
        self.counts[kind] += 1
        self._change.set()

    def _changed(self, old: R | None, new: R | None) -> None:
        self.changes.append((old.name if old is not None else None, new.name if new is not None else None))

    def _state(self, state: str, detail: str) -> None:
        self.states.append((state, detail))
        self._change.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until an event, a state or a list has made it true."""
        async with asyncio.timeout(20):
            while not condition():
                self._change.clear()
                await self._change.wait()
                await asyncio.sleep(0)  # the event is reported before it is applied

    def names(self) -> set[str]:
        return {record.name for record in self.store.values()}

    def cancel(self) -> None:
        """Ask it to end within the block of run()."""
        self._cancelled = True
        self.running.cancel()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Self]:
        """It runs inside the block."""
        self.running = asyncio.create_task(self.reflector.run())
        try:
            yield self
        finally:
            assert self._cancelled or not self.running.done(), "a reflector never ends by itself"
            self.running.cancel()
            await asyncio.wait({self.running})
