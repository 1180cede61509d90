"""Resolves the host names of tenants' URLs, in threads of its own.

Inputs: a tenant's namespace and a name. A tenant may run the name server and delay its responses. Lookups of
other namespaces do not wait for them. The event loop's own threads read the operator's token, so they do no
lookups.
"""

import socket
from functools import partial
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

from caretaker.aws.threads import DaemonPool

THREADS: Final = 64  # name servers of 32 namespaces that do not answer delay the others, too
EACH: Final = 2  # lookups of a namespace at a time

Info = tuple[Any, ...]  # as socket.getaddrinfo() returns it


class Lookups:
    """Of all namespaces."""

    def __init__(self) -> None:
        self._pool = DaemonPool("lookup", THREADS, per_owner=EACH)

    async def find(self, namespace: str, host: str, port: int, family: socket.AddressFamily) -> list[Info]:
        """The result of socket.getaddrinfo()."""
        look = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM)
        return list(await self._pool.run(look, namespace))


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
