"""Limits the concurrent refreshes of a gateway over all resources. The target that has waited longest goes
first; after its turn it waits behind the others, even if it is still dirty.

Pure. Inputs: each resource's targets as of its last pass; times are seconds of a clock that never goes back.
Gateways and shares have names that an endpoint has answered. A tenant may control its endpoint, so names of
different endpoints are different things: the name of a group has its endpoint, a call has that of its share.
Lost with the process; the next one counts anew from the records of the API server.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from caretaker.s3refresh import timing
from caretaker.s3refresh.debounce import CALL_SECONDS, CLOCK_SKEW_SECONDS, TargetState, called_at
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.snapshot import Plan

# A resource that waits for a slot looks again within this; one that did not has no place in the line.
PATIENCE_SECONDS: Final = 30.0
# A gateway ignores a refresh that it accepts within this time of another refresh of the same share.
GATEWAY_SECONDS: Final = 60.0
# For how long calls of others count, or for one's own assumeAfter, if that is longer. Theirs may be a day.
OTHERS_SECONDS: Final = 900.0


class Key(Hashable, Protocol):
    """The key of a resource, and the order of two that wait for as long: runtime.work_queue.Key."""

    def __lt__(self, other: Any, /) -> bool: ...


class Demand(msgspec.Struct, frozen=True):
    """The demand of a plan on the gateways, by group.

    busy     its calls: when each was accepted; inf = not yet
    waiting  since when its first due target waits for a slot
    wanting  its dirty targets, which need a slot now or later
    """

    busy: Mapping[str, Sequence[float]] = {}
    waiting: Mapping[str, float] = {}
    wanting: Mapping[str, int] = {}


class _Stand:
    """One resource at its gateways."""

    noted: float  # when its last plan was noted
    on_free: Callable[[], None]

    def __init__(self) -> None:
        self.demand = Demand()  # of the plan that was noted last
        self.recorded: Mapping[str, Sequence[float]] = {}  # `busy` as last recorded in status
        self.unrecorded: float | None = None  # since when the noted plan is not recorded; None = it is

    def counts(self, clock: float) -> bool:
        """Whether the noted plan takes slots from others. A plan that is never recorded stops doing so."""
        return self.unrecorded is None or clock - self.unrecorded < PATIENCE_SECONDS


class ConcurrencyLimiter:
    """All resources."""

    def __init__(self) -> None:
        self._stands: dict[Key, _Stand] = {}
        # (endpoint, a file share's id) -> when its last call may have been accepted; the oldest comes first
        self._called: dict[tuple[str, str], float] = {}
        self._any_called = -math.inf  # when any share may last have been called

    def called(self, share: Share, clock: float) -> None:
        """A refresh was requested, or may have been accepted, at this time. Buckets have no gateway."""
        if share.arn:
            self._note_call(share.endpoint, share.id, clock)

    def recall(self, targets: Iterable[TargetState], interval: float, now: float, clock: float) -> None:
        """Take over targets that another process recorded. A call that may have been within `interval`, with
        any clock skew, counts as made now. If its outcome is unknown, it counts as made when it can no longer
        be accepted."""
        for target in targets:
            recent = now - called_at(target) < interval + CLOCK_SKEW_SECONDS
            if recent and target.location:  # a bucket may be named as a share is
                late = CALL_SECONDS if target.claim is not None else 0.0
                self._note_call(target.last.endpoint, target.id, clock + late)

    def recall_lost(self, at: float, interval: float, now: float, clock: float) -> None:
        """A record of another process could not be read at this time. A call of any share may have been
        without an answer then: it counts as in recall()."""
        if now - at < interval + CALL_SECONDS + CLOCK_SKEW_SECONDS:
            self._any_called = clock + CALL_SECONDS

    def held(self, shares: Iterable[Share], interval: float, clock: float) -> dict[str, float]:
        """Share id -> seconds until `interval` has passed since the last call of any resource: the gateway
        counts by share. Older calls are forgotten."""
        while self._called and clock - self._called[oldest := next(iter(self._called))] >= interval:
            del self._called[oldest]
        called = {
            share.id: self._called.get((share.endpoint, share.id), self._any_called)
            for share in shares
            if share.arn
        }
        ago = {name: clock - at for name, at in called.items()}
        return {name: interval - passed for name, passed in ago.items() if passed < interval}

    def free(
        self, key: Key, slots: Mapping[str, int], clock: float, *, assume_after: float = math.inf
    ) -> dict[str, int]:
        """How many calls `key` may start in each group: `slots`, the limit less its own calls, without the
        calls of the others and the slots of resources that have waited for longer. Calls of others count for
        at most `assume_after` seconds."""
        own = self._stands.get(key)
        mine = own.demand.waiting if own is not None else {}
        left = dict(slots)
        for other, stand in self._others(key):
            counts = stand.counts(clock)
            for group, calls in (stand.demand.busy if counts else stand.recorded).items():
                if group in left:
                    left[group] -= sum(clock - accepted < assume_after for accepted in calls)
            if not counts or clock - stand.noted >= PATIENCE_SECONDS:
                continue
            for group, theirs in stand.demand.waiting.items():
                if group in left and (group not in mine or (theirs, other) < (mine[group], key)):
                    left[group] -= 1
        return {group: max(free, 0) for group, free in left.items()}

    def rivals(self, key: Key, groups: Iterable[str]) -> dict[str, int]:
        """Group -> number of dirty targets of other resources."""
        found = dict.fromkeys(groups, 0)
        for _, stand in self._others(key):
            for group, wanting in stand.demand.wanting.items():
                if group in found:
                    found[group] += wanting
        return found

    def note(self, key: Key, demand: Demand, clock: float, on_free: Callable[[], None]) -> None:
        """Note the calls and waits of a resource's plan. They are provisional until recorded(). Waiting
        resources are notified when a slot becomes free."""
        stand = self._stands.setdefault(key, _Stand())
        stand.unrecorded = clock if stand.unrecorded is None else stand.unrecorded
        before, stand.demand = stand.demand, demand
        stand.noted, stand.on_free = clock, on_free
        left = before.waiting.keys() - demand.waiting.keys()
        fewer = {
            group for group, calls in before.busy.items() if len(demand.busy.get(group, ())) < len(calls)
        }
        self._notify(key, left | fewer)

    def recorded(self, key: Key) -> None:
        """The noted plan of this resource was written to status."""
        if (stand := self._stands.get(key)) is not None:
            stand.unrecorded, stand.recorded = None, stand.demand.busy

    def forget(self, key: Key) -> None:
        """`key` is gone."""
        stand = self._stands.pop(key, None)
        if stand is not None:
            self._notify(key, {*stand.demand.busy, *stand.demand.waiting})

    def _note_call(self, endpoint: str, share: str, clock: float) -> None:
        self._called[endpoint, share] = max(clock, self._called.pop((endpoint, share), clock))

    def _others(self, key: Key) -> list[tuple[Key, _Stand]]:
        return [(other, stand) for other, stand in self._stands.items() if other != key]

    def _notify(self, key: Key, groups: Iterable[str]) -> None:
        freed = set(groups)
        for _, stand in self._others(key):
            if freed & stand.demand.waiting.keys():
                stand.on_free()


def busy_of(
    targets: Iterable[TargetState], shares: Mapping[str, Share], assume_after: float, now: float
) -> dict[str, int]:
    """Calls of these targets that count at their gateways: claimed, or in flight for less than
    `assume_after` seconds. One that went to another endpoint than the share's has its turn there: it counts
    nowhere, since only the endpoint can name its gateway."""
    return {group: len(calls) for group, calls in calls_of(targets, shares, assume_after, now, now).items()}


def calls_of(
    targets: Iterable[TargetState],
    shares: Mapping[str, Share],
    assume_after: float,
    now: float,
    clock: float,
) -> dict[str, list[float]]:
    """See busy_of(); Demand.busy, with the clock's time that is `now`."""
    found: dict[str, list[float]] = {}
    for target in targets:
        share = shares.get(target.id)
        if share is None or (target.claim is None and target.in_flight is None):
            continue
        if target.last.endpoint != share.endpoint:
            continue
        accepted = math.inf
        if target.in_flight is not None:
            accepted = target.in_flight.accepted_at - now + clock
        if clock - accepted < assume_after:
            found.setdefault(share.group, []).append(accepted)
    return found


def waiting_of(plan: Plan, shares: Mapping[str, Share], now: float) -> dict[str, float]:
    """Group -> since when the first of its due targets waits for a slot."""
    found: dict[str, float] = {}
    for target in plan.targets:
        start, share = plan.starts.get(target.id), shares.get(target.id)
        due = start is not None and start <= now and share is not None and share.ready
        idle = target.claim is None and target.in_flight is None
        if due and idle and share is not None:
            since = timing.in_line_since(target, now)
            found[share.group] = min(found.get(share.group, since), since)
    return found
