"""The times of a resource's targets, by the monotonic clock of this process.

Pure: a caller gives the time. It counts the seconds since an event, since a claim was first observed, since a
target became dirty. Wall clocks jump and differ between operators, so none of these comes from status. A new
process starts to count anew: a refresh is later at worst.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from caretaker.api.times import format_micros
from caretaker.s3refresh.debounce import TargetState
from caretaker.s3refresh.timing import TargetTimes

_Call = tuple[str, str, int]
ROUNDED: Final = 1e-3  # seconds: status rounds times, so a time may be this much later when it is read back


class _Observed(msgspec.Struct, frozen=True):
    """When this process first observed the present record of a target. Times are `clock` seconds."""

    event: float | None  # the last event; None = none in this life
    dirty: tuple[float, float] | None  # dirty since: (by its record, by this clock)
    claim: tuple[tuple[str, str, int] | None, float]
    call: tuple[_Call, float]


class TargetTracker:
    """One resource's targets. Times are `clock` seconds, given with every call."""

    def __init__(self) -> None:
        self._observed: dict[str, _Observed] = {}
        self._events: dict[str, float] = {}  # since the last update

    def record_events(self, names: Iterable[str], clock: float) -> None:
        """Events of these targets have arrived."""
        self._events.update(dict.fromkeys(names, clock))

    def times(self, targets: Iterable[TargetState], clock: float) -> dict[str, TargetTimes]:
        """The times of each of the present targets. Nothing is stored."""
        return {target.id: _times(target, self._observe(target, clock), clock) for target in targets}

    def update(self, targets: Iterable[TargetState], clock: float) -> None:
        """Store the times of the present targets; drop all others."""
        self._observed = {target.id: self._observe(target, clock) for target in targets}
        self._events = {}

    def _observe(self, target: TargetState, clock: float) -> _Observed:
        call_of = _claimed(target)
        call = _call(target)
        before = self._observed.get(target.id) or _Observed(None, None, (call_of, clock), (call, clock))
        event, dirty = self._events.get(target.id, before.event), None
        if target.dirty is not None:
            since, at = before.dirty or (target.dirty.since, clock)
            if target.dirty.since > since + ROUNDED:  # these changes are newer than the ones noted before
                at = clock
            dirty = (target.dirty.since, at)
            event = clock if event is None else event  # of another life: quiet from now on
        return _Observed(
            event,
            dirty,
            before.claim if before.claim[0] == call_of else (call_of, clock),
            before.call if before.call[0] == call else (call, clock),
        )


def _times(target: TargetState, observed: _Observed, clock: float) -> TargetTimes:
    return TargetTimes(
        last_event=None if observed.event is None else clock - observed.event,
        dirty_for=clock - observed.dirty[1] if observed.dirty is not None else 0.0,
        claim_age=clock - observed.claim[1] if target.claim is not None else 0.0,
        called_for=clock - observed.call[1],
    )


def _claimed(target: TargetState) -> tuple[str, str, int] | None:
    """Taken over, a claim is as young as a new one: else two operators would take it from each other."""
    held = target.claim
    return (held.id, held.owner, held.attempt) if held is not None else None


def _call(target: TargetState) -> _Call:
    """The last call, the same whether it was just made or is read back: the record has microseconds, a clock
    more. A failure may be a call that was accepted without a word: it counts from when that is known."""
    failures = target.failure.count if target.failure is not None else 0
    return format_micros(target.last.requested_at), format_micros(target.last.accepted_at), failures
