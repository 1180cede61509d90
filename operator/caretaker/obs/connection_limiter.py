"""Bounds the number and the duration of a listener's connections.

Inputs: a protocol factory such as aiohttp's web.Server, which has neither bound. A client that opens
connections and sends no request does not keep others out. It must not read the data.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

MAX_CONNECTIONS: Final = 256
# For request, work and response together: Prometheus' default scrape timeout.
SECONDS: Final = 10.0


class ConnectionLimiter:
    """A protocol factory for loop.create_server() that wraps another one.

    Beyond `limit` connections the oldest one without a request is closed; if all have sent one, the new one
    is closed. Every connection is closed `seconds` after it was opened.
    """

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        limit: int = MAX_CONNECTIONS,
        seconds: float = SECONDS,
    ) -> None:
        self._factory = factory
        self._limit = limit
        self._seconds = seconds
        self._idle: dict[asyncio.Transport, asyncio.TimerHandle] = {}  # without a request; the oldest first
        self._active: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def __call__(self) -> asyncio.BaseProtocol:
        """The protocol of one connection."""
        return _LimitedProtocol(cast(asyncio.Protocol, self._factory()), self)

    def __len__(self) -> int:
        return len(self._idle) + len(self._active)

    def opened(self, transport: asyncio.Transport) -> bool:
        """A connection was accepted; returns whether it is kept."""
        if len(self) >= self._limit:
            if not self._idle:
                transport.abort()
                return False
            oldest = next(iter(self._idle))
            # Before connection_lost(): the loop accepts up to a hundred connections in one turn.
            self.closed(oldest)
            oldest.abort()
        timer = asyncio.get_running_loop().call_later(self._seconds, transport.abort)
        self._idle[transport] = timer
        return True

    def request_received(self, transport: asyncio.BaseTransport | None) -> None:
        """A whole request was received on it."""
        if isinstance(transport, asyncio.Transport) and transport in self._idle:
            self._active[transport] = self._idle.pop(transport)

    def closed(self, transport: asyncio.Transport) -> None:
        """A connection was closed."""
        for group in (self._idle, self._active):
            if transport in group:
                group.pop(transport).cancel()


class _LimitedProtocol(asyncio.Protocol):
    """Passes everything on to the inner protocol, and reports opening and closing."""

    def __init__(self, inner: asyncio.Protocol, limiter: ConnectionLimiter) -> None:
        self._inner = inner
        self._limiter = limiter
        self._transport: asyncio.Transport | None = None
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        kept = cast(asyncio.Transport, transport)
        # aiohttp raises if a connection is lost in the turn in which it was made.
        if self._limiter.opened(kept):
            self._transport = kept
            self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._limiter.closed(self._transport)
            self._inner.connection_lost(exc)
