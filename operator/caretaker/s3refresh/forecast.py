"""When each target's next call may start, and why not before, for the CLI.

Pure: the record in status, the options of the spec, the time now. When the last event came only the operator
knows, so a target that waits for quiet has a latest time and no exact one; everything else is exact, up to
the skew of two clocks.
"""

import math
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from caretaker.api import conditions as c
from caretaker.api.conditions import RefreshReason as Reason
from caretaker.s3refresh import debounce, resource, timing
from caretaker.s3refresh.debounce import DirtyScope, Phase, TargetState
from caretaker.s3refresh.folders import EVERYTHING, Request
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.options import DebounceOptions, at_once
from caretaker.s3refresh.resource import ParsedRefresh
from caretaker.s3refresh.snapshot import Discovery

Why = Literal[
    "Clean",  # nothing to do
    "Resync",  # nothing to do before everything is refreshed again
    "Held",  # nothing is started, though targets may wait
    "NotFound",  # discovery does not find the target
    "NotAvailable",
    "New",  # not on record yet
    "Calling",  # the call is being made
    "InFlight",  # a refresh is under way; the next one comes after it
    "Failed",
    "MinInterval",
    "Quiet",
    "Turn",  # due; the gateway is busy
    "Due",
]

# Reasons of Ready=False with which passes start nothing.
HOLDING: Final = frozenset(
    (Reason.INVALID_SPEC, Reason.NOT_GRANTED, Reason.CREDENTIALS_UNAVAILABLE, Reason.QUEUE_CONFLICT)
)
KEPT: Final = "what waits is kept"


class Next(msgspec.Struct, frozen=True):
    """A target's next call. Times are seconds since the epoch.

    at          when; of one that is due since when; None = it follows from no time
    latest      whether it may be sooner, and `at` is a bound
    not_before  the other bound, where something but the events sets one
    request     the scope of the call; None = nothing
    """

    why: Why
    message: str
    at: float | None = None
    latest: bool = False
    not_before: float | None = None
    request: Request | None = None


class Outlook(msgspec.Struct, frozen=True):
    """One target and its next call."""

    target: TargetState
    phase: Phase
    next: Next
    share: Share | None = None  # where discovery was asked


def outlooks(read: ParsedRefresh, now: float, discovery: Discovery | None = None) -> list[Outlook]:
    """Every target on record, by id; with a `discovery`, the others that it has found, too."""
    shares = None if discovery is None else discovery.by_id
    held = hold_of(read)
    found = {}
    for status in read.status.targets:
        target = resource.decode_target(status, now)
        upcoming = _next(target, status.phase, read, shares, now)
        found[target.id] = Outlook(target, status.phase, upcoming, (shares or {}).get(target.id))
    for name, share in (shares or {}).items():
        if name not in found:
            found[name] = _new(share, read, held, now)
    return [found[name] for name in sorted(found)]


def hold_of(read: ParsedRefresh) -> str:
    """Why nothing is started for the resource; "" when that is not so."""
    if read.spec is None:
        return f"the spec cannot be read: {read.invalid}"
    if not read.active:
        return "spec.suspend is true"
    ready = c.find(read.status.conditions, c.READY)
    current = ready is not None and ready.observed_generation == read.meta.generation
    if ready is not None and current and ready.status == "False" and ready.reason in HOLDING:
        return f"Ready is False, {ready.reason}"
    return ""


def bounds(
    target: TargetState, dirty: DirtyScope, options: DebounceOptions, now: float
) -> tuple[float, float]:
    """(the earliest, the latest) start of the next call of a target that is dirty and idle."""
    since = min(dirty.since, now)
    floor, last = _floor(target, options, now).at or 0.0, since + (0.0 if dirty.prompt else options.max_delay)
    return max(min(since + options.quiet_period, last), floor), max(last, floor)


def _next(
    target: TargetState, phase: Phase, read: ParsedRefresh, shares: Mapping[str, Share] | None, now: float
) -> Next:
    held = hold_of(read)
    if target.claim is not None:
        found = _calling(target, now)
    elif target.dirty is None:
        return _clean(target, read.options, held)
    elif held:
        found = Next("Held", f"nothing is started: {held}; {KEPT}")
    else:
        found = _unfound(target, shares) or _dirty(target, target.dirty, phase, read, now)
    return replace(found, request=_request(target, read.options, now))


def _request(target: TargetState, options: DebounceOptions, now: float) -> Request | None:
    return None if target.dirty is None else debounce.upcoming(target, target.dirty, options, now)[0]


def _clean(target: TargetState, options: DebounceOptions, held: str) -> Next:
    if target.in_flight is not None:
        return Next("InFlight", f"nothing waits; the end of the refresh in flight {_ending(target, options)}")
    resync = timing.resync_at(target, options)
    if resync is None or held:
        return Next("Clean", "nothing waits")
    why = f"everything, {_text(options.resync)} (resync.interval) after everything was last refreshed"
    return Next("Resync", why, resync)


def _unfound(target: TargetState, shares: Mapping[str, Share] | None) -> Next | None:
    """The obstacle by discovery."""
    if shares is None or target.in_flight is not None:
        return None
    if (share := shares.get(target.id)) is None:
        return Next("NotFound", f"it is not found any more; {KEPT}")
    return None if share.ready else _not_available()


def _not_available() -> Next:
    return Next("NotAvailable", f"it is not AVAILABLE; {KEPT}")


def _new(share: Share, read: ParsedRefresh, held: str, now: float) -> Outlook:
    """A target that the operator has not put on record: it has missed earlier events. At the very first
    start that is as resync.onStart says."""
    first = read.first
    stale = not first or (read.spec is not None and read.spec.resync.on_start)
    target = TargetState(share.id, dirty=DirtyScope(now, EVERYTHING) if stale else None)
    options, why = read.options, "resync.onStart" if first else "it is new"
    if held:
        upcoming = Next("Held", f"nothing is started: {held}")
    elif not share.ready:
        upcoming = _not_available()
    elif stale:
        message = f"everything ({why}), after {_text(options.quiet_period)} without an event (quietPeriod)"
        upcoming = Next("New", message, now + options.max_delay, latest=True)
    else:
        upcoming = Next("Clean", "nothing before an event comes (resync.onStart is false)")
    upcoming = replace(upcoming, request=_request(target, options, now))
    return Outlook(target, "Debouncing" if stale else "Clean", upcoming, share)


def _dirty(target: TargetState, dirty: DirtyScope, phase: Phase, read: ParsedRefresh, now: float) -> Next:
    options = at_once(read.options) if read.flushing else read.options
    floor = _floor(target, options, now)
    earliest, latest = bounds(target, dirty, options, now)
    if target.in_flight is not None:
        return _behind(target, options, floor, latest, now)
    quiet = f"{_text(options.quiet_period)} (quietPeriod) after the last event"
    if latest <= now:
        return _due(phase, read, latest)
    if floor.at is None or floor.at <= now or floor.at < earliest:
        message = f"{quiet}, at most {_text(options.max_delay)} (maxDelay) after the first"
        return Next("Quiet", message, latest, latest=True)
    if floor.at >= latest:
        return floor
    return Next(floor.why, f"{floor.message}, and {quiet}", latest, latest=True, not_before=floor.at)


def _behind(target: TargetState, options: DebounceOptions, floor: Next, latest: float, now: float) -> Next:
    """The call after a refresh in flight, which may end sooner with completion events."""
    end = debounce.completion_due(target, options, now)
    first = max(floor.at or 0.0, 0.0 if options.tracked else end)
    message = f"after the refresh in flight, whose end {_ending(target, options)}"
    bound = first if first > now else None
    if math.isinf(end):
        return Next("InFlight", message, not_before=bound)
    return Next("InFlight", message, max(end, latest), latest=True, not_before=bound)


def _due(phase: Phase, read: ParsedRefresh, since: float) -> Next:
    if phase != "Due":
        return Next("Due", "the operator is about to start it", since)
    resolved = c.find(read.status.conditions, c.TARGETS_RESOLVED)
    unresolved = resolved is not None and resolved.status == "False"
    other = ", or for what TargetsResolved tells" if unresolved else ""
    return Next("Turn", f"it waits for its turn at the gateway{other}", since)


def _floor(target: TargetState, options: DebounceOptions, now: float) -> Next:
    """The time before which nothing starts; events do not change it."""
    called = min(debounce.called_at(target), now)
    interval = called + options.min_interval if called else 0.0
    budget = timing.budget_at(target, options, now)
    failure = target.failure
    if failure is not None:
        attempt = min(failure.next_attempt_at, now + debounce.longest_backoff(options))
        if attempt >= max(interval, budget):
            return Next("Failed", f"the next try after {_failures(failure.count)}: {failure.code}", attempt)
    if budget > interval:
        message = f"{_text(options.budget_interval)} (minInterval by the budget) after the last refresh"
        return Next("MinInterval", message, budget)
    return Next("MinInterval", f"{_text(options.min_interval)} (minInterval) after the last call", interval)


def _calling(target: TargetState, now: float) -> Next:
    failure = target.failure
    if failure is not None and failure.next_attempt_at > now:
        message = f"the same call again after {_failures(failure.count)}: {failure.code}"
        return Next("Failed", message, failure.next_attempt_at)
    return Next("Calling", "the call is being made")


def _ending(target: TargetState, options: DebounceOptions) -> str:
    if not options.completion_timeout:
        return "is of another kind of target: everything is refreshed instead"
    if math.isinf(options.completion_timeout):
        return "is asked for every few seconds"
    if options.tracked and target.dirty is not None:
        longest = _text(max(options.assume_after, options.min_interval))
        return f"is reported by an event, and awaited until {longest} after it began (completion.assumeAfter)"
    if options.tracked:
        return f"is reported by an event, within {_text(options.completion_timeout)} (completion.timeout)"
    return f"is assumed after {_text(options.assume_after)} (completion.assumeAfter)"


def _failures(count: int) -> str:
    return f"{count} failure{'' if count == 1 else 's'}"


def _text(seconds: float) -> str:
    """30s, 10m, 6h: as the spec has it."""
    whole = round(seconds)
    for unit, size, least in (("h", 3600, 3600), ("m", 60, 120)):  # people write 60s
        if whole >= least and whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"
