"""When a target's next call may start, and since when it waits for its gateway; the times of this process.

Pure: a caller gives the time. Wall clocks jump and differ between operators: times of a record count only
where this process has not measured the time itself, by its monotonic clock. A new process starts to count
anew: a refresh is later at worst.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from caretaker.api.times import format_micros
from caretaker.s3refresh import debounce, folders
from caretaker.s3refresh.debounce import CLOCK_SKEW_SECONDS, DirtyScope, Phase, TargetState
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.options import DebounceOptions

_Call = tuple[str, str, int]
ROUNDED: Final = 1e-3  # seconds: status rounds times, so a time may be this much later when it is read back


class TargetTimes(msgspec.Struct, frozen=True):
    """Times since events of a target, by the monotonic clock of this process: a wall clock that is set back
    must not extend maxDelay."""

    last_event: float | None = None  # seconds since the last event; None = none in this life
    dirty_for: float = 0.0  # seconds for which it has been dirty
    claim_age: float = 0.0  # seconds for which this claim has stood
    called_for: float = 0.0  # seconds for which the last call has been known


def not_ahead(target: TargetState, options: DebounceOptions, now: float) -> TargetState:
    """The target with times that lie ahead by more than a skew set to now, also in the record. A wrong clock
    of another operator, or an edited status, must not delay the target or its gateway."""
    latest = now + CLOCK_SKEW_SECONDS

    def bounded(moment: float) -> float:
        return moment if moment <= latest else now

    dirty, in_flight, last, failure = target.dirty, target.in_flight, target.last, target.failure
    if dirty is not None:
        later = dirty.later
        if later is not None:
            later = replace(later, since=bounded(later.since))
        dirty = replace(dirty, since=bounded(dirty.since), later=later)
    if in_flight is not None:
        in_flight = replace(in_flight, accepted_at=bounded(in_flight.accepted_at))
    last = replace(
        last,
        requested_at=bounded(last.requested_at),
        accepted_at=bounded(last.accepted_at),
        completed_at=bounded(last.completed_at),
        full_at=bounded(last.full_at),
    )
    longest = debounce.longest_backoff(options)
    if failure is not None and failure.next_attempt_at > latest + longest:
        failure = replace(failure, next_attempt_at=now + longest)
    return replace(target, dirty=dirty, in_flight=in_flight, last=last, failure=failure)


def start_at(
    target: TargetState,
    options: DebounceOptions,
    times: TargetTimes,
    now: float,
    others: float = 0.0,
) -> float | None:
    """When the next call may start; None while nothing waits. `others`: see Contention; their turns have to
    fit into maxDelay, too."""
    if target.dirty is None:
        return None
    patience = max(
        options.max_delay - others * debounce.durations(target.last, options)[0], options.quiet_period
    )
    since = min(target.dirty.since, now - times.dirty_for)
    quiet = now - (times.last_event or 0.0) + options.quiet_period
    fire = since if target.dirty.prompt else min(quiet, since + patience)
    interval = max(_interval(target, options, times.called_for, now), budget_at(target, options, now))
    attempt = target.failure.next_attempt_at if target.failure is not None else 0.0
    # The upper bound of a backoff, even if the clock was set back.
    attempt = min(attempt, now + debounce.longest_backoff(options))
    return max(fire, interval, attempt)


def again_at(target: TargetState, options: DebounceOptions, claim_age: float, now: float) -> float:
    """When the backoff of a claim that is to be executed again ends. This process has seen the claim for
    `claim_age` seconds; that bounds the backoff even if the clock was set back."""
    if target.failure is None:
        return now
    longest = max(options.retry_max, options.min_interval)
    return min(target.failure.next_attempt_at, now + max(longest - claim_age, 0.0))


def _interval(target: TargetState, options: DebounceOptions, called_for: float, now: float) -> float:
    """When minInterval after the last call has passed.

    It counts from the acceptance of the call, which may be seconds after the request: the gateway ignores a
    refresh that it accepts within the interval. This process measures it by its own clock, unless the call is
    so long ago that the skew of another operator's clock does not matter.
    """
    called = debounce.called_at(target)
    if not called or now - called >= options.min_interval + CLOCK_SKEW_SECONDS:
        return 0.0
    least = debounce.least(options, target.failure.code if target.failure is not None else "")
    return now + max(least - called_for, 0.0)


def budget_at(target: TargetState, options: DebounceOptions, now: float) -> float:
    """When the budget allows the next call. Accepted calls count, and one whose outcome is unknown. Those for
    one dirty scope count as one, since together they list everything once at most: neither its parts nor a
    retry of one waits. Nor does a part whose end was lost, though it is listed twice: parts that were not
    listed yet must not wait for a day because of it. Two parts wait all the same, since they list folders
    again that were refreshed: everything, and a tree in place of a refused folder. A person's request never
    waits."""
    dirty, last, failure = target.dirty, target.last, target.failure
    unknown = failure is not None and failure.code == debounce.UNKNOWN
    called = max(last.accepted_at, last.requested_at + debounce.CALL_SECONDS if unknown else 0.0)
    if dirty is None or dirty.asked or not called or not options.budget_interval:
        return 0.0
    retried = failure is not None and not unknown
    again = dirty.scope.all or (bool(dirty.scope.trees) and retried)
    if (retried or (dirty.closed and not unknown)) and not again:
        return 0.0
    return min(called, now + debounce.CALL_SECONDS) + options.budget_interval


def in_line_since(target: TargetState, now: float) -> float:
    """Since when the target waits for its gateway: since it became dirty or had its last turn, whichever is
    later. The longest wait goes first."""
    since = target.dirty.since if target.dirty is not None else now
    return min(max(since, target.last.requested_at), now)


def phase_of(target: TargetState, start: float | None, now: float) -> Phase:
    """The phase in status."""
    if target.claim is not None:
        return "Claimed"
    if target.in_flight is not None:
        return "InFlight"
    if target.dirty is None:
        return "Clean"
    if target.failure is not None:
        return "Backoff"
    return "Due" if start is not None and start <= now else "Debouncing"


def wanting_of(targets: Iterable[TargetState], shares: Mapping[str, Share]) -> dict[str, int]:
    """Group -> number of its dirty targets: each needs a slot now or later."""
    ready = (shares[target.id] for target in targets if target.dirty is not None and target.id in shares)
    return Counter(share.group for share in ready if share.ready)


def others(
    targets: Iterable[TargetState], discovered: Iterable[Share], rivals: Mapping[str, int], limit: int
) -> dict[str, float]:
    """Target id -> the number of other dirty targets in its group, divided by its concurrent calls (`limit`).
    `rivals`: group -> dirty targets of other resources."""
    shares = {share.id: share for share in discovered if share.ready}
    wanting = [target for target in targets if target.dirty is not None and target.id in shares]
    number = wanting_of(wanting, shares)
    groups = {target.id: shares[target.id].group for target in wanting}
    return {
        name: (number[group] - 1 + rivals.get(group, 0)) / max(limit, 1) for name, group in groups.items()
    }


def resync_at(target: TargetState, options: DebounceOptions) -> float | None:
    """When resync.interval makes everything dirty; None = never. It counts from the first discovery."""
    if not options.resync or not target.last.full_at:
        return None
    return target.last.full_at + options.resync


def resynced(target: TargetState, options: DebounceOptions, now: float) -> TargetState:
    """Marks everything dirty once resync.interval has passed since the last refresh of everything."""
    if options.resync and not target.last.full_at:
        return replace(target, last=replace(target.last, full_at=now))
    at = resync_at(target, options)
    if at is None or now < at or target.claim is not None or target.in_flight is not None:
        return target
    return debounce.mark(target, folders.EVERYTHING, now)


def released(target: TargetState, options: DebounceOptions, now: float) -> TargetState:
    """Without a refresh in flight where no end is ever reported: it is of another kind of target, and this
    one refreshes everything."""
    in_flight = target.in_flight
    if in_flight is None or options.completion_timeout:
        return target
    dirty = debounce.mark(target, folders.EVERYTHING, now).dirty or DirtyScope(now, folders.EVERYTHING)
    return replace(
        target, in_flight=None, dirty=replace(dirty, requested=dirty.requested or in_flight.requested)
    )


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
        claim, call = (_claimed(target), clock), (_call(target), clock)
        before = self._observed.get(target.id) or _Observed(None, None, claim, call)
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
            before.claim if before.claim[0] == claim[0] else claim,
            before.call if before.call[0] == call[0] else call,
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
