"""Faults that ApiProxy injects: which requests (Match), and what befalls them (the Action classes).

An action works at up to three points: `before` a request is forwarded, `after` the API server answered
and before the client hears of it, and on every line of a watch (`hold`). It must not forward anything
itself.
"""
# ruff: noqa: ARG002  an action takes the arguments of its point, needed or not

import asyncio
import inspect
import math
import re
import threading
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from fakes.answers import failure
from testing.apicalls import Call
from testing.customresource import TIMEOUT


@dataclass(slots=True)
class Reply:
    """An HTTP answer. Header names as the server wrote them."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})


@dataclass(slots=True)
class Exchange:
    """A request on its way. An action may edit `query`; setting `reply` in `before` keeps the request
    from being forwarded, setting `reset` makes the client see a reset connection."""

    call: Call
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    reply: Reply | None = None
    reset: bool = False

    @property
    def done(self) -> bool:
        """Whether an action has decided what the client sees."""
        return self.reset or self.reply is not None


class Action:
    """Does nothing at any point."""

    hangs: ClassVar[bool] = False  # whether a new request waits until the rule is removed

    async def before(self, exchange: Exchange) -> None:
        """Called before the request is forwarded."""

    async def after(self, exchange: Exchange) -> None:
        """Called with `exchange.reply` set, before the client gets it. Not for an open watch."""

    def hold(self, arrived: float, line: bytes) -> float:
        """Until when (time.monotonic) a watch line is kept back. `line` is b"" at the watch's end."""
        return 0.0


class Rule:
    """A fault in force. Made by ApiProxy.add; gone with `remove`."""

    def __init__(self, match: "Match", action: Action, remove: Callable[["Rule"], None]) -> None:
        self.match = match
        self.action = action
        self._remove = remove
        self._fits = 0
        self._hits: list[Call] = []
        self._changed = threading.Condition()

    @property
    def hits(self) -> list[Call]:
        """The calls that the action was applied to."""
        with self._changed:
            return list(self._hits)

    def remove(self) -> None:
        """End the fault; requests and watches that it holds go on. Harmless when repeated."""
        self._remove(self)

    def wait(self, count: int = 1, timeout: float = TIMEOUT) -> list[Call]:
        """Block until the action was applied `count` times; TimeoutError after `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._hits) >= count, timeout):
                raise TimeoutError(f"{len(self._hits)} of {count} faults happened within {timeout:g} s")
            return list(self._hits)

    def take(self, call: Call) -> bool:
        """Whether the action applies to a new request. Counts it."""
        if not self.match.fits(call):
            return False
        self._fits += 1
        if not self.match.turn(self._fits):
            return False
        self.hit(call)
        return True

    def hit(self, call: Call) -> None:
        """Note that the action is applied to `call`."""
        with self._changed:
            if call not in self._hits:  # a watch is hit once, not once a line
                self._hits.append(call)
                self._changed.notify_all()


@dataclass(frozen=True, kw_only=True)
class Match:
    """Which calls; None = any. `name` and `user_agent` are regular expressions found anywhere.

    nth     only the nth call that fits (from 1)
    times   only the first that many
    """

    verb: str | Collection[str] | None = None
    resource: str | Collection[str] | None = None
    subresource: str | None = None  # "" = the object itself
    namespace: str | None = None
    name: str | None = None
    user_agent: str | None = None
    client: str | None = None
    where: Callable[[Call], bool] | None = None
    nth: int | None = None
    times: int | None = None

    def fits(self, call: Call) -> bool:
        """Whether the call is of this sort, whatever its turn."""
        return (
            _among(self.verb, call.verb)
            and _among(self.resource, call.resource)
            and _among(self.subresource, call.subresource)
            and _among(self.namespace, call.namespace)
            and _among(self.client, call.client)
            and (self.name is None or re.search(self.name, call.name) is not None)
            and (self.user_agent is None or re.search(self.user_agent, call.user_agent) is not None)
            and (self.where is None or self.where(call))
        )

    def turn(self, number: int) -> bool:
        """Whether the `number`th fitting call is meant."""
        return (self.nth is None or number == self.nth) and (self.times is None or number <= self.times)


def _among(wanted: str | Collection[str] | None, value: str) -> bool:
    if wanted is None:
        return True
    return value == wanted if isinstance(wanted, str) else value in wanted


# ---------------------------------------------------------------- actions


@dataclass(frozen=True)
class Answer(Action):
    """Answer in the API server's place with a metav1.Status. `retry_after` in seconds."""

    status: int
    reason: str = ""
    message: str = "injected by the test"
    retry_after: int | None = None

    async def before(self, exchange: Exchange) -> None:
        asked = {} if self.retry_after is None else {"retryAfterSeconds": self.retry_after}
        exchange.reply = Reply(self.status, status_body(self.status, self.reason, self.message, **asked))
        if self.retry_after is not None:
            exchange.reply.headers["Retry-After"] = str(self.retry_after)


@dataclass(frozen=True)
class Reset(Action):
    """Reset the connection; the API server never sees the request."""

    async def before(self, exchange: Exchange) -> None:
        exchange.reset = True


@dataclass(frozen=True)
class LoseReply(Action):
    """The API server executes the request; the client sees a reset connection."""

    async def after(self, exchange: Exchange) -> None:
        exchange.reset = True


@dataclass(frozen=True)
class Delay(Action):
    """Wait, in seconds, before forwarding and before replying."""

    before_seconds: float = 0.0
    after_seconds: float = 0.0

    async def before(self, exchange: Exchange) -> None:
        await asyncio.sleep(self.before_seconds)

    async def after(self, exchange: Exchange) -> None:
        await asyncio.sleep(self.after_seconds)


Callback = Callable[[Exchange], Awaitable[object] | object]


@dataclass(frozen=True)
class Run(Action):
    """Run callbacks around the request, which waits for them.

    A coroutine function runs in the proxy's loop, any other in a thread. `forward=False` resets the
    connection after `run_before`, as if the client had died just before it sent the request. What a
    callback raises is raised again by ApiProxy.stop.
    """

    run_before: Callback | None = None
    run_after: Callback | None = None
    forward: bool = True

    async def before(self, exchange: Exchange) -> None:
        await _call(self.run_before, exchange)
        exchange.reset = exchange.reset or not self.forward

    async def after(self, exchange: Exchange) -> None:
        await _call(self.run_after, exchange)


async def _call(callback: Callback | None, exchange: Exchange) -> None:
    if callback is None:
        return
    if inspect.iscoroutinefunction(callback):
        await callback(exchange)
    else:
        await asyncio.to_thread(callback, exchange)


@dataclass(frozen=True)
class Hang(Action):
    """A partition that drops packets: nothing is forwarded or answered until the rule is removed, then the
    connection is reset. Open watches fall silent."""

    hangs = True

    def hold(self, arrived: float, line: bytes) -> float:
        return math.inf


@dataclass(frozen=True)
class Stall(Action):
    """Watches stay open and send nothing while the rule is in force."""

    def hold(self, arrived: float, line: bytes) -> float:
        return math.inf


@dataclass(frozen=True)
class Lag(Action):
    """Watch events arrive `seconds` late."""

    seconds: float

    def hold(self, arrived: float, line: bytes) -> float:
        return arrived + self.seconds


def status_body(code: int, reason: str, message: str, **details: Any) -> bytes:
    """A metav1.Status of a failure."""
    return msgspec.json.encode(failure(code, reason, message, **details))


def error_line(code: int, reason: str, message: str) -> bytes:
    """The line of a watch that tells of an error, as the API server sends it with HTTP 200."""
    return b'{"type":"ERROR","object":' + status_body(code, reason, message) + b"}\n"
