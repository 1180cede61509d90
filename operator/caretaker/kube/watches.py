"""Stores of several collections for a command, and the reason when they cannot be kept up to date.

Inputs: a client, and for each collection its path and the struct of its items. A missing permission and a
server that does not respond are reported as text. It knows no kind.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.kube.reflector import Collection, Hooks, Reflector, Wire
from caretaker.kube.store import Store


class WireRecord(msgspec.Struct, frozen=True):
    """A complete object in a Store."""

    name: str
    namespace: str
    uid: str
    wire: Any


def wire_record(wire: Wire) -> WireRecord:
    """An object as a record."""
    return WireRecord(wire.metadata.name, wire.metadata.namespace, wire.metadata.uid, wire)


class Watches:
    """Collections, each with its Store; add() them all before run()."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._changed = asyncio.Event()
        self._denied = ""
        self._errors: dict[str, str] = {}  # by path
        self._reflectors: list[Reflector[Any]] = []
        self._stores: list[Store[Any]] = []

    def add(
        self,
        path: str,
        wire: Any,
        record: Callable[[Any], Any] = wire_record,
        *,
        label_selector: str | None = None,
    ) -> Store[Any]:
        """The Store that run() will keep equal to this collection."""

        def on_state(state: str, detail: str) -> None:
            self._denied = detail if state == "denied" else self._denied
            self._errors[path] = detail if state == "failing" else ""
            self._changed.set()

        store: Store[Any] = Store()
        store.subscribe(lambda *_: self._changed.set())
        self._stores.append(store)
        collection: Collection[Any] = Collection(path, wire, record, label_selector)
        self._reflectors.append(Reflector(self._client, collection, store, Hooks(on_state)))
        return store

    async def run(self) -> None:
        """Watch until cancelled."""
        await asyncio.gather(*(reflector.run() for reflector in self._reflectors))

    async def changed(self, timeout: float | None = None) -> bool:
        """Wait for a change, of an object or of the connection; False when there was none in `timeout` s.

        Raises ApiError (403) when one of the watches is not allowed.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        if self._denied:
            verb, _, resource = self._denied.partition(" ")
            raise ApiError(403, "Forbidden", f"you may not {verb} {resource}")
        return True

    @property
    def trouble(self) -> str:
        """Why the API server does not respond now, as text; empty while it does."""
        return next((detail for detail in self._errors.values() if detail), "")

    @property
    def synced(self) -> bool:
        """Whether every collection has been listed once."""
        return all(store.synced.is_set() for store in self._stores)


@asynccontextmanager
async def running(watches: Watches) -> AsyncIterator[Watches]:
    """Runs the watches inside the block."""
    task = asyncio.create_task(watches.run())
    try:
        yield watches
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
