"""Limits the calls of tenants' URLs at a time.

Inputs: the namespace of a resource and its UID. A tenant may run the server and never answer: each call then
keeps its connection, with the buffers of TLS, until its timeout.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from caretaker.kube.errors import NotLeader
from caretaker.kube.slots import Slots

CALLS: Final = 64  # servers of 16 namespaces that do not answer delay the others, too
EACH: Final = 4  # calls of a namespace at a time


class CallSlots:
    """Of all namespaces."""

    def __init__(self) -> None:
        self._all = Slots(CALLS)
        self._each: WeakValueDictionary[str, Slots] = WeakValueDictionary()

    @asynccontextmanager
    async def slot(self, namespace: str, uid: str) -> AsyncIterator[None]:
        """Waits for a slot, and holds it. Namespaces take turns, and so do the resources of a namespace."""
        each = self._each.get(namespace)
        if each is None:
            each = self._each[namespace] = Slots(EACH)
        async with each.slot(uid), self._all.slot(namespace):
            yield

    def close(self) -> None:
        """A stop is near: no further call begins. Those that wait, and those that come, raise NotLeader."""
        for slots in (*self._each.values(), self._all):
            slots.close(lambda: NotLeader("the operator stops: the call was not made"))
