"""Whose turn it is at a gateway: so many refreshes at a time, over all resources. Who stands in line for the
longest goes first, and then stands at its end again, whatever else he waits for.

Pure. Inputs: each resource's targets as of its last pass; times are seconds of a clock that never goes back.
Lost with the process, which then counts anew from what the API server has on record.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, Protocol

from caretaker.s3refresh import timing
from caretaker.s3refresh.debounce import CALL_SECONDS, CLOCK_SKEW_SECONDS, Target, called_at
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.plan import Plan

# A resource that waits for its turn looks again within this; one that did not has no place in the line.
PATIENCE_SECONDS: Final = 30.0


class Key(Hashable, Protocol):
    """What tells resources apart, and who goes first of two that wait for as long: runtime.queue.Key."""

    def __lt__(self, other: Any, /) -> bool: ...


class _Stand:
    """One resource at the gateways."""

    def __init__(self, on_free: Callable[[], None]) -> None:
        self.busy: dict[str, int] = {}  # group -> its calls
        self.recorded: dict[str, int] = {}  # the same, as last on record
        self.waiting: dict[str, float] = {}  # group -> since when one of its due targets stands in line
        self.wanting: dict[str, int] = {}  # group -> its targets that want a turn, now or later
        self.noted = 0.0
        self.doubted: float | None = None  # since when what is noted is on no record; None = it is on record
        self.on_free = on_free

    def believed(self, clock: float) -> bool:
        """Whether others make room for what is noted: a plan that is never written holds up nobody."""
        return self.doubted is None or clock - self.doubted < PATIENCE_SECONDS


class Turns:
    """All resources."""

    def __init__(self) -> None:
        self._stands: dict[Key, _Stand] = {}
        self._called: dict[str, float] = {}  # a file share's id -> when its last call may have been accepted

    def called(self, share: str, clock: float) -> None:
        """A refresh of the file share was called for, or may have been accepted, at this time or later than
        any before."""
        self._called[share] = max(clock, self._called.get(share, clock))

    def recall(self, targets: Iterable[Target], interval: float, now: float, clock: float) -> None:
        """These targets are on record as another process has left them. Whose last call may have been within
        `interval`, by any clock, counts as called now; where its outcome is unknown, as long as it may still
        be accepted."""
        for target in targets:
            at = called_at(target)
            if at and now - at < interval + CLOCK_SKEW_SECONDS:
                self.called(target.id, clock + (CALL_SECONDS if target.claim is not None else 0.0))

    def held(self, shares: Iterable[Share], interval: float, clock: float) -> dict[str, float]:
        """Share id -> seconds until `interval` has passed since the last call: the gateway counts them by
        share, whoever calls. Buckets have no gateway."""
        ago = {share.id: clock - self._called.get(share.id, -math.inf) for share in shares if share.arn}
        return {name: interval - passed for name, passed in ago.items() if passed < interval}

    def free(
        self, key: Key, busy: Mapping[str, int], groups: Iterable[str], limit: int, clock: float
    ) -> dict[str, int]:
        """How many calls `key` may start in each group: the limit, less its own calls (`busy`), those of the
        others, and the turns of those who have waited for longer."""
        own = self._stands.get(key)
        free = {}
        for group in groups:
            left = limit - busy.get(group, 0)
            mine = own.waiting.get(group) if own is not None else None
            for other, stand in self._stands.items():
                if other == key:
                    continue
                believed = stand.believed(clock)
                left -= (stand.busy if believed else stand.recorded).get(group, 0)
                theirs = stand.waiting.get(group)
                fresh = believed and clock - stand.noted < PATIENCE_SECONDS
                if theirs is not None and fresh and (mine is None or (theirs, other) < (mine, key)):
                    left -= 1
            free[group] = max(left, 0)
        return free

    def rivals(self, key: Key, groups: Iterable[str]) -> dict[str, int]:
        """How many targets of the others want a turn in each group, now or later."""
        stands = [stand for other, stand in self._stands.items() if other != key]
        return {group: sum(stand.wanting.get(group, 0) for stand in stands) for group in groups}

    def note(
        self,
        key: Key,
        busy: Mapping[str, int],
        waiting: Mapping[str, float],
        wanting: Mapping[str, int],
        clock: float,
        on_free: Callable[[], None],
    ) -> None:
        """What `key` does and wants by its plan, until recorded(). Others who wait are told when it makes
        room."""
        stand = self._stands.setdefault(key, _Stand(on_free))
        stand.doubted = clock if stand.doubted is None else stand.doubted
        before = {**stand.busy}
        left = {group for group in stand.waiting if group not in waiting}
        stand.busy, stand.waiting, stand.wanting = dict(busy), dict(waiting), dict(wanting)
        stand.noted, stand.on_free = clock, on_free
        self._tell(key, left | {group for group, n in before.items() if busy.get(group, 0) < n})

    def recorded(self, key: Key) -> None:
        """What was noted of `key` is on record."""
        if (stand := self._stands.get(key)) is not None:
            stand.doubted, stand.recorded = None, stand.busy

    def forget(self, key: Key) -> None:
        """`key` is gone."""
        stand = self._stands.pop(key, None)
        if stand is not None:
            self._tell(key, {*stand.busy, *stand.waiting})

    def _tell(self, key: Key, groups: Iterable[str]) -> None:
        freed = set(groups)
        for other, stand in self._stands.items():
            if other != key and freed & stand.waiting.keys():
                stand.on_free()


def busy_of(
    targets: Iterable[Target], shares: Mapping[str, Share], assume_after: float, now: float
) -> dict[str, int]:
    """Calls of these targets that count at their gateways: claimed, or in flight for less than
    `assume_after` seconds."""
    found: dict[str, int] = {}
    for target in targets:
        flying = target.in_flight
        running = flying is not None and now - flying.accepted_at < assume_after
        if (target.claim is not None or running) and (share := shares.get(target.id)) is not None:
            found[share.group] = found.get(share.group, 0) + 1
    return found


def waiting_of(plan: Plan, shares: Mapping[str, Share], now: float) -> dict[str, float]:
    """Group -> since when the first of its targets that wait for a turn stands in line."""
    found: dict[str, float] = {}
    for target in plan.targets:
        start, share = plan.starts.get(target.id), shares.get(target.id)
        due = start is not None and start <= now and share is not None and share.ready
        idle = target.claim is None and target.in_flight is None
        if due and idle and share is not None:
            since = timing.in_line_since(target, now)
            found[share.group] = min(found.get(share.group, since), since)
    return found
