"""Resolves the host names of tenants' URLs, in threads of its own.

Inputs: a tenant's namespace and a name. A tenant may run the name server and delay its responses. Lookups of
other namespaces do not wait for them. The event loop's own threads read the operator's token, so they do no
lookups.
"""

import asyncio
import socket
from typing import Any, Final
from weakref import WeakValueDictionary

from aiohttp.abc import AbstractResolver, ResolveResult

from caretaker.aws.threads import DaemonPool

THREADS: Final = 64  # name servers of 32 namespaces that do not answer delay the others, too
EACH: Final = 2  # lookups of a namespace at a time

Info = tuple[Any, ...]  # as socket.getaddrinfo() returns it


class Lookups:
    """Of all namespaces."""

    def __init__(self) -> None:
        self._pool = DaemonPool("lookup", THREADS)
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def find(self, namespace: str, host: str, port: int, family: socket.AddressFamily) -> list[Info]:
        """The result of socket.getaddrinfo(). A lookup whose caller was cancelled keeps its slot until it
        ends."""
        slots = self._slots.get(namespace)
        if slots is None:
            slots = self._slots[namespace] = asyncio.Semaphore(EACH)

        def look() -> list[Info]:
            return list(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM))

        def ended(work: "asyncio.Task[list[Info]]") -> None:
            slots.release()
            if not work.cancelled():
                work.exception()  # or asyncio logs it as never retrieved

        await slots.acquire()
        work = asyncio.create_task(self._pool.run(look))
        work.add_done_callback(ended)
        return await asyncio.shield(work)


class Resolver(AbstractResolver):
    """For connections of one namespace."""

    def __init__(self, lookups: Lookups, namespace: str) -> None:
        self._lookups = lookups
        self._namespace = namespace

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """All addresses. Each is checked when a socket for it is made."""
        found = await self._lookups.find(self._namespace, host, port, family)
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(hostname=host, host=str(to[0]), port=port, family=kind, proto=proto, flags=numeric)
            for kind, _, proto, _, to in found
        ]

    async def close(self) -> None:
        """Nothing is open."""
