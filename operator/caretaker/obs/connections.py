"""Bounds the number and the duration of a listener's connections.

Inputs: a protocol factory such as aiohttp's web.Server, which has neither bound. A client that opens
connections and sends no request does not keep others out. It must not read the data.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

MOST: Final = 256
# For request, work and response together: Prometheus' default scrape timeout.
SECONDS: Final = 10.0


class Connections:
    """A protocol factory for loop.create_server() that wraps another one.

    Beyond `most` connections the oldest one without a request is closed; if all have sent one, the new one is
    closed. Every connection is closed `seconds` after it was opened.
    """

    def __init__(
        self, make: Callable[[], asyncio.BaseProtocol], most: int = MOST, seconds: float = SECONDS
    ) -> None:
        self._make = make
        self._most = most
        self._seconds = seconds
        self._silent: dict[asyncio.Transport, asyncio.TimerHandle] = {}  # without a request; the oldest first
        self._asking: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def __call__(self) -> asyncio.BaseProtocol:
        """The protocol of one connection."""
        return _Bound(cast(asyncio.Protocol, self._make()), self)

    def __len__(self) -> int:
        return len(self._silent) + len(self._asking)

    def opened(self, transport: asyncio.Transport) -> bool:
        """A connection was accepted; returns whether it is kept."""
        if len(self) >= self._most:
            if not self._silent:
                transport.abort()
                return False
            victim = next(iter(self._silent))
            # Before connection_lost(): the loop accepts up to a hundred connections in one turn.
            self.closed(victim)
            victim.abort()
        timer = asyncio.get_running_loop().call_later(self._seconds, transport.abort)
        self._silent[transport] = timer
        return True

    def asks(self, transport: asyncio.BaseTransport | None) -> None:
        """A whole request was received on it."""
        if isinstance(transport, asyncio.Transport) and transport in self._silent:
            self._asking[transport] = self._silent.pop(transport)

    def closed(self, transport: asyncio.Transport) -> None:
        """A connection was closed."""
        for group in (self._silent, self._asking):
            if transport in group:
                group.pop(transport).cancel()


class _Bound(asyncio.Protocol):
    """Passes everything on to the inner protocol, and reports opening and closing."""

    def __init__(self, inner: asyncio.Protocol, room: Connections) -> None:
        self._inner = inner
        self._room = room
        self._transport: asyncio.Transport | None = None
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        kept = cast(asyncio.Transport, transport)
        # aiohttp raises if a connection is lost in the turn in which it was made.
        if self._room.opened(kept):
            self._transport = kept
            self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._room.closed(self._transport)
            self._inner.connection_lost(exc)
