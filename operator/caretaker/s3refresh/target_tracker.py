"""The times of a resource's targets, by the monotonic clock of this process.

Pure: a caller gives the time. It counts the seconds since an event, since a claim was first observed, since a
target became dirty. Wall clocks jump and differ between operators, so none of these comes from status. A new
process starts to count anew: a refresh is later at worst.
"""

from collections.abc import Iterable
from typing import Final

from caretaker.api.times import format_micros
from caretaker.s3refresh.debounce import TargetState
from caretaker.s3refresh.snapshot import TargetTimes

_Call = tuple[str, str, int]
ROUNDED: Final = 1e-3  # seconds: status rounds times, so a time may be this much later when it is read back


class TargetTracker:
    """One resource's targets. Times are `clock` seconds, given with every call."""

    def __init__(self) -> None:
        self._events: dict[str, float] = {}
        self._dirty: dict[str, tuple[float, float]] = {}  # dirty since: (by its record, by this clock)
        self._claims: dict[str, tuple[tuple[str, str, int] | None, float]] = {}
        self._calls: dict[str, tuple[_Call, float]] = {}

    def record_events(self, names: Iterable[str], clock: float) -> None:
        """Events of these targets have arrived."""
        for name in names:
            self._events[name] = clock

    def update(self, targets: Iterable[TargetState], clock: float) -> dict[str, TargetTimes]:
        """Update the times by the present targets, and return those of each."""
        present = list(targets)
        for table in (self._events, self._dirty, self._claims, self._calls):
            for name in table.keys() - {target.id for target in present}:
                del table[name]
        return {target.id: self._update(target, clock) for target in present}

    def _update(self, target: TargetState, clock: float) -> TargetTimes:
        name = target.id
        if target.dirty is None:
            self._dirty.pop(name, None)
            dirty = clock
        else:
            since, dirty = self._dirty.get(name, (target.dirty.since, clock))
            if target.dirty.since > since + ROUNDED:  # these changes are newer than the ones noted before
                dirty = clock
            self._dirty[name] = (target.dirty.since, dirty)
            self._events.setdefault(name, clock)  # of another life: quiet from now on
        held = target.claim
        # Taken over, a claim is as young as a new one: else two operators would take it from each other.
        call_of = (held.id, held.owner, held.attempt) if held is not None else None
        if name not in self._claims or self._claims[name][0] != call_of:
            self._claims[name] = (call_of, clock)
        call = _call(target)
        if name not in self._calls or self._calls[name][0] != call:
            self._calls[name] = (call, clock)
        event = self._events.get(name)
        return TargetTimes(
            last_event=None if event is None else clock - event,
            dirty_for=clock - dirty,
            claim_age=clock - self._claims[name][1] if held is not None else 0.0,
            called_for=clock - self._calls[name][1],
        )


def _call(target: TargetState) -> _Call:
    """The last call, the same whether it was just made or is read back: the record has microseconds, a clock
    more. A failure may be a call that was accepted without a word: it counts from when that is known."""
    failures = target.failure.count if target.failure is not None else 0
    return format_micros(target.last.requested_at), format_micros(target.last.accepted_at), failures
