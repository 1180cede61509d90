"""The end of connections: what closes a session does not wait for all of them.

A transport that outlives its event loop is a ResourceWarning in whatever runs when it is collected. asyncio
tells of a selector loop's transports by a table of its own alone.
"""

import asyncio
from asyncio.sslproto import SSLProtocol
from typing import Any, Final

from aiohttp import web

PATIENCE: Final = 2.0  # seconds that the other side has to answer a polite goodbye of TLS
_LOOK_SECONDS: Final = 0.005


async def connections_closed(patience: float = PATIENCE) -> None:
    """Return once every connection of this event loop that has begun to close is closed. After `patience`
    seconds they are cut."""
    loop: Any = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while left := list(filter(_is_on_its_way, list(loop._transports.values()))):
        if loop.time() >= deadline:
            for transport in left:
                transport.abort()
        await asyncio.sleep(_LOOK_SECONDS)


async def connections_cut(patience: float = PATIENCE) -> None:
    """Cut every connection of this event loop, which ends: those, too, that were accepted while their server
    was closed. Return once they are closed, or `patience` seconds later."""
    loop: Any = asyncio.get_running_loop()
    await asyncio.sleep(_LOOK_SECONDS)  # new connections have a transport by then
    deadline = loop.time() + patience
    # A closed transport stays in the table until it is collected.
    while loop.time() < deadline and (left := [each for each in loop._transports.values() if each._sock]):
        for transport in left:
            transport.abort()
        await asyncio.sleep(_LOOK_SECONDS)


async def server_closed(runner: web.AppRunner) -> None:
    """Close a server that clients still connect to.

    A connection is accepted in one turn of the loop, has a transport in the next and a handler in the third.
    Python 3.11 loses one whose server closes before it has a transport, and aiohttp one without a handler.
    """
    loop = asyncio.get_running_loop()
    for site in runner.sites:
        listening: Any = site._server
        for each in listening.sockets if listening else ():
            loop.remove_reader(each.fileno())
    for _ in range(3):
        await asyncio.sleep(0)
    await runner.cleanup()


def _is_on_its_way(transport: Any) -> bool:
    """Whether it has begun to close, or TLS upon it has, and its socket is open."""
    if transport._sock is None:
        return False
    protocol = transport.get_protocol()
    if isinstance(protocol, SSLProtocol):
        upper: Any = protocol._app_transport
        if upper is not None and upper.is_closing():
            return True
    return bool(transport.is_closing())
