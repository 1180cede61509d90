"""What the proxy does wrong, with which calls, and how often.

Actions are values; `proxy.SqsProxy` carries them out. Several rules may fit one call: all of them apply,
in the order in which they were added, except that Fail, EmptyReceive and NotDeleted answer by
themselves, so that of those only the first counts.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Match:
    """Which calls: shell patterns on operation and queue name, and how likely each is hit."""

    operation: str = "*"
    queue: str = "*"
    chance: float = 1.0

    def fits(self, operation: str, queue: str, chance: random.Random) -> bool:
        """Whether a call is hit; asks chance only about calls that fit."""
        fits = fnmatchcase(operation, self.operation) and fnmatchcase(queue, self.queue)
        return fits and (self.chance >= 1 or chance.random() < self.chance)


@dataclass(frozen=True)
class Fail:
    """Answer an error; nothing is done."""

    status: int = 503
    code: str = "ServiceUnavailable"
    message: str = "Service Unavailable: injected by the test"


@dataclass(frozen=True)
class Slow:
    """Wait before the call goes on."""

    seconds: float


@dataclass(frozen=True)
class LoseReply:
    """The call takes effect; its connection is reset before the reply."""


@dataclass(frozen=True)
class NotDeleted:
    """DeleteMessage and its batch: success is answered and nothing deleted (as with a stale handle)."""


@dataclass(frozen=True)
class StaleSucceeds:
    """Deletes with a stale or unknown handle answer success and delete nothing.

    AWS always does so; the emulators refuse such a handle.
    """


@dataclass(frozen=True)
class FailEntries:
    """A batch is answered with 200 and the first `entries` of it in `Failed`; the others take effect."""

    entries: int = 1
    code: str = "InternalError"
    sender_fault: bool = False


@dataclass(frozen=True)
class EmptyReceive:
    """ReceiveMessage waits as long as it was asked to and brings nothing, whatever the queue holds."""


@dataclass(frozen=True)
class Duplicate:
    """ReceiveMessage: what it brings comes again, with other receipt handles, even when deleted.

    Later by default, `at_once` in the same batch as far as there is room.
    """

    copies: int = 1
    at_once: bool = False


@dataclass(frozen=True)
class Reorder:
    """ReceiveMessage: shuffled, and up to `hold` messages kept back for a later one."""

    hold: int = 3


Action = (
    Fail | Slow | LoseReply | NotDeleted | StaleSucceeds | FailEntries | EmptyReceive | Duplicate | Reorder
)


class Rule:
    """A fault in force; `count` calls long, or until removed."""

    def __init__(
        self, match: Match, action: Action, count: int | None, forget: Callable[["Rule"], None]
    ) -> None:
        self.match = match
        self.action = action
        self.count = count
        self.applied = 0
        self._forget = forget
        self._changed = threading.Condition()

    def takes(self, operation: str, queue: str, chance: random.Random) -> bool:
        """Whether it hits this call; a hit is counted."""
        with self._changed:
            if self.count is not None and self.applied >= self.count:
                return False
            if not self.match.fits(operation, queue, chance):
                return False
            self.applied += 1
            self._changed.notify_all()
            return True

    def wait(self, times: int = 1, timeout: float = 30.0) -> None:
        """Return once it has hit so many calls; AssertionError otherwise. Not for an event loop."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.applied >= times, timeout):
                raise AssertionError(
                    f"{self.action} hit {self.applied} calls in {timeout:.0f} s, not {times}"
                )

    def remove(self) -> None:
        """End it."""
        self._forget(self)
