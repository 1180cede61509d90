"""A bound on the connections of a listener: how many there are, and how long each may last.

Inputs: what makes the protocol of a connection, such as aiohttp's web.Server, which has neither bound.
Whoever sends no request keeps nobody else out. It must not look at what is sent.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

MOST: Final = 256
# For the request, what it takes and the answer. As Prometheus waits for a scrape by default.
SECONDS: Final = 10.0


class Connections:
    """A protocol factory for loop.create_server(), around another's.

    One more than `most`, and that which has waited longest without a request is cut; where all have asked for
    something, the new one is. `seconds` after it was opened each is cut, whatever goes on.
    """

    def __init__(
        self, make: Callable[[], asyncio.BaseProtocol], most: int = MOST, seconds: float = SECONDS
    ) -> None:
        self._make = make
        self._most = most
        self._seconds = seconds
        self._silent: dict[asyncio.Transport, asyncio.TimerHandle] = {}  # the oldest first
        self._asking: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def __call__(self) -> asyncio.BaseProtocol:
        """The protocol of one connection."""
        return _Bound(cast(asyncio.Protocol, self._make()), self)

    def __len__(self) -> int:
        return len(self._silent) + len(self._asking)

    def opened(self, transport: asyncio.Transport) -> None:
        """A connection was accepted."""
        if len(self) >= self._most:
            if not self._silent:
                transport.abort()
                return
            victim = next(iter(self._silent))
            # Before it is told to be lost: up to a hundred are accepted in one turn of the loop.
            self.closed(victim)
            victim.abort()
        timer = asyncio.get_running_loop().call_later(self._seconds, transport.abort)
        self._silent[transport] = timer

    def asks(self, transport: asyncio.BaseTransport | None) -> None:
        """A whole request has come on it."""
        if isinstance(transport, asyncio.Transport) and transport in self._silent:
            self._asking[transport] = self._silent.pop(transport)

    def closed(self, transport: asyncio.Transport) -> None:
        """It is gone."""
        for group in (self._silent, self._asking):
            if transport in group:
                group.pop(transport).cancel()


class _Bound(asyncio.Protocol):
    """Passes all on."""

    def __init__(self, inner: asyncio.Protocol, room: Connections) -> None:
        self._inner = inner
        self._room = room
        self._transport: asyncio.Transport | None = None
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._room.opened(self._transport)
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._transport is not None  # noqa: S101 - it was made before
        self._room.closed(self._transport)
        self._inner.connection_lost(exc)
