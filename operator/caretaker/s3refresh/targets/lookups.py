"""Resolves the host names of tenants' URLs, in threads of its own.

Inputs: a tenant's namespace and a name. A tenant may run the name server and delay its answers. Lookups of
other namespaces do not wait for it, nor do the event loop's own threads, which read the operator's token.
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
        """What socket.getaddrinfo() returns. A lookup that nobody waits for any more keeps its place among
        those of the namespace to its end."""
        slots = self._slots.get(namespace)
        if slots is None:
            slots = self._slots[namespace] = asyncio.Semaphore(EACH)

        def look() -> list[Info]:
            return list(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM))

        def ended(work: "asyncio.Task[list[Info]]") -> None:
            slots.release()
            if not work.cancelled():
                work.exception()  # taken note of, also if nobody waits

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
        """Every address; that of each connection is judged when its socket is made."""
        found = await self._lookups.find(self._namespace, host, port, family)
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(hostname=host, host=str(to[0]), port=port, family=kind, proto=proto, flags=numeric)
            for kind, _, proto, _, to in found
        ]

    async def close(self) -> None:
        """Nothing is open."""
