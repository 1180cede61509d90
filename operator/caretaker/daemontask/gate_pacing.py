"""Which nodes are to lose the taint of spec.nodeGate now, and why others keep it.

Pure: moments are arguments, in seconds since the epoch. Each refused node waits by itself and delays no
other: nodes that were never refused go first. A missing right to patch nodes concerns all of them.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from caretaker.api.objects import Node
from caretaker.kube.errors import ApiError, by_admission

RETRIES: Final = 5  # refused nodes that are tried in one pass, and doubling while all of them succeed
RETRIES_MAX: Final = 160
RETRY_PAUSE: Final = 5.0  # seconds after a pass that tried RETRIES of them in vain
BASE: Final = 1.0
BRIEF_MAX: Final = 5.0  # of failures that end by themselves; reported after BRIEF_SECONDS
BRIEF_SECONDS: Final = 60.0
MAX: Final = 300.0
RIGHT_MAX: Final = 60.0  # while the right is missing


class Refusal(msgspec.Struct, frozen=True):
    """Why one node keeps the taint."""

    message: str  # the API server's words
    since: float  # the first refusal of those in a row
    until: float  # not tried again before
    times: int
    brief: bool  # whether it is likely to pass by itself


class GatePacing(msgspec.Struct, frozen=True):
    """Of one task. A cache: a new process learns it again."""

    refused: Mapping[str, Refusal] = {}  # by node UID
    right: str = ""  # the API server's words, while the right to patch nodes is missing
    tries: int = 0  # since it is missing
    until: float = 0.0  # then one node is tried; with `right`
    width: int = RETRIES
    retry_at: float = 0.0  # before it no node that was refused for long is tried

    def due(self, shut: Sequence[Node], now: float) -> list[Node]:
        """The nodes to try now, in this order, of those that are to be opened."""
        if self.right:
            return [shut[self.tries % len(shut)]] if shut and now >= self.until else []
        fresh, again, last = list[Node](), list[Node](), list[Node]()
        for node in shut:
            known = self.refused.get(node.uid)
            if known is None:
                fresh.append(node)
            elif known.until <= now:
                (again if known.brief else last).append(node)
        last.sort(key=lambda node: self.refused[node.uid].until)
        return [*fresh, *again, *(last[: self.width] if now >= self.retry_at else ())]

    def after(
        self,
        shut: Collection[Node],
        opened: Collection[str],
        errors: Mapping[str, ApiError],
        now: float,
    ) -> "GatePacing":
        """Once some of the nodes that are to be opened were tried: the UIDs of the open ones, and the
        errors of others. Refusals of all other nodes are forgotten."""
        left = {node.uid for node in shut} - set(opened)
        if not left:
            return GatePacing()
        refused = {uid: known for uid, known in self.refused.items() if uid in left}
        retried = {uid for uid, known in self.refused.items() if not known.brief}
        width, retry_at = self.width, self.retry_at
        if not retried.isdisjoint(opened):  # the cause may be gone for the others, too
            refused = {uid: msgspec.structs.replace(known, until=now) for uid, known in refused.items()}
            width, retry_at = min(width * 2, RETRIES_MAX), 0.0
        vain = retried & errors.keys()
        if vain:
            width = RETRIES
            retry_at = now + RETRY_PAUSE if len(vain) >= RETRIES else 0.0
        missing = [error for error in errors.values() if error.missing_permission is not None]
        for uid, error in errors.items():
            if uid in left and error.missing_permission is None:
                refused[uid] = _refusal(self.refused.get(uid), error, now)
        if missing:
            right, tries = missing[0].message, self.tries + 1
        elif opened or any(not error.transient for error in errors.values()):
            right, tries = "", 0
        else:
            right, tries = self.right, self.tries + (1 if self.right and errors else 0)
        until = self.until if tries == self.tries else now + _wait(tries, RIGHT_MAX)
        return GatePacing(refused, right, tries, until if right else 0.0, width, retry_at)

    def reported(self, shut: Collection[Node], now: float) -> dict[str, str]:
        """Why nodes keep the taint, by name, of those for which a person may have to act."""
        if self.right:
            return {node.name: self.right for node in shut}
        return {
            node.name: known.message
            for node in shut
            if (known := self.refused.get(node.uid)) is not None
            and not (known.brief and now - known.since < BRIEF_SECONDS)
        }

    def wake(self, shut: Collection[Node], now: float) -> float:
        """When the first of them is to be tried; 0 = there are none."""
        if self.right:
            return self.until if shut else 0.0
        return min((self._next(node.uid, now) for node in shut), default=0.0)

    def _next(self, uid: str, now: float) -> float:
        known = self.refused.get(uid)
        if known is None:
            return now + BASE  # the pass did not come to it
        return known.until if known.brief else max(known.until, self.retry_at)


def _refusal(before: Refusal | None, error: ApiError, now: float) -> Refusal:
    brief = error.transient or (error.status in (409, 422) and not by_admission(error))
    asked = min(error.retry_after or 0.0, MAX)
    if brief and before is not None and not before.brief:  # it does not end the earlier refusal
        return msgspec.structs.replace(before, until=now + max(BRIEF_MAX, asked))
    since, times = now, 1
    if before is not None and before.brief == brief:
        since, times = min(before.since, now), before.times + 1  # the clock may have been set back
    wait = max(_wait(times, BRIEF_MAX if brief else MAX), asked)
    return Refusal(error.message or str(error), since, now + wait, times, brief)


def _wait(times: int, most: float) -> float:
    return min(BASE * 2.0 ** min(max(times - 1, 0), 16), most)
