"""kill -9 of an operator at a step of a refresh: around a status write, a RefreshCache, a deletion.

Inputs: a Replica, whose proxies see the step. A kill strikes once; until then it waits, and can be disarmed.

    before   the request never reaches its server
    after    it took effect; the answer never reaches the operator
    late     it takes effect when the operator is dead (calls of AWS only)
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal

from testbed.admin import Json
from testing.faults import Action, Exchange
from testing.refreshplace import Replica
from testing.witness import STATUS_WRITES

When = Literal["before", "after", "late"]

# What a status write says of some target when it is this step of the design.
WRITES: Final[Mapping[str, Callable[[Json], bool]]] = {
    # A pass that comes when the quiet period has gone by claims the events with the write that records them.
    "W1": lambda target: bool(target.get("dirty") or target.get("claim")),
    "W2": lambda target: bool(target.get("claim")),
    "W3": lambda target: bool(target.get("inFlight")),
    "W3'": lambda target: bool(target.get("failure")) and not target.get("claim"),
    "W4": lambda target: bool((target.get("last") or {}).get("completedAt")),
}
CALLS: Final = ("RefreshCache", "DeleteMessageBatch")
POINTS: Final[tuple[tuple[str, When], ...]] = (
    *((step, when) for step in WRITES for when in ("before", "after")),
    *((call, when) for call in CALLS for when in ("before", "after", "late")),
)


class Kill:
    """An armed kill. `at`: time.monotonic() of the strike, until then of the arming."""

    def __init__(self, replica: Replica) -> None:
        self.disarm: Callable[[], None] = lambda: None
        self.at = time.monotonic()
        self._replica = replica
        self._struck = threading.Event()

    @property
    def struck(self) -> bool:
        """Whether the operator was killed by it."""
        return self._struck.is_set()

    def strike(self) -> None:
        """Kill now."""
        self._replica.kill9()
        self.at = time.monotonic()
        self._struck.set()

    def wait(self, timeout: float) -> bool:
        """Block until it has struck, or for so long; whether it has."""
        return self._struck.wait(timeout)


def arm(replica: Replica, at: str, when: When) -> Kill:
    """Kill the operator the next time that it comes to this point: one of POINTS."""
    kill = Kill(replica)
    if at in WRITES:
        kill.disarm = replica.api.add(STATUS_WRITES, _AtWrite(WRITES[at], when, kill)).remove
        return kill
    gate = replica.gateway if at == "RefreshCache" else replica.sqs
    acts = {"after": kill.strike} if when == "after" else {"before": kill.strike}
    stop = gate.stop_at(at, forward=when != "before", **acts)
    kill.disarm = lambda: gate.remove(stop)
    return kill


class _AtWrite(Action):
    def __init__(self, says: Callable[[Json], bool], when: When, kill: Kill) -> None:
        self._says = says
        self._when = when
        self._kill = kill

    async def before(self, exchange: Exchange) -> None:
        if self._when == "before" and self._meant(exchange):
            exchange.reset = True
            await asyncio.to_thread(self._kill.strike)

    async def after(self, exchange: Exchange) -> None:
        if self._when == "after" and self._meant(exchange):
            await asyncio.to_thread(self._kill.strike)

    def _meant(self, exchange: Exchange) -> bool:
        targets = json.loads(exchange.body).get("status", {}).get("targets") or ()
        return not self._kill.struck and any(map(self._says, targets))
