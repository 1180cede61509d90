"""The life of one target: dirty, claimed, in flight, clean. Its durable state, and every step of it.

Pure. A step takes the state as read from the API server and returns the next one. The caller writes it on
condition that nothing else was written since, so a late step finds another claim and changes nothing.

              W1 event                W2 due, slot free              W3 accepted
     clean ------------> dirty ------------------------> claimed -----------------> in flight
       ^                  ^  ^                              |                           |
       |                  |  +------ W3' failed, unknown ---+                           |
       |                  +------- event, completion lost, W4' failed after all --------+
       +-------------------------- W4 completed, or assumed ----------------------------+

D, the dirty scope, lives beside a claim and a refresh in flight: an event that comes then dirties again,
since the refresh may already have listed that folder. The first claim of D closes it: the number of calls for
D is decided then, and later changes wait behind D in a scope of their own. So a folder that keeps changing
does not delay the others. An idempotent target keeps the claim after an unknown outcome, and W2' makes the
same call again.
"""

import math
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from caretaker.s3refresh import folders
from caretaker.s3refresh.folders import Request, Scope
from caretaker.s3refresh.options import UNCONTENDED, Contention, DebounceOptions, allowance

Outcome = Literal["", "Succeeded", "Failed", "Assumed", "Lost"]
Phase = Literal["Clean", "Debouncing", "Due", "Claimed", "InFlight", "Backoff"]

BACKOFF_DOUBLINGS: Final = 16
# Seconds by which two operators' clocks may differ: beyond them, wall-clock times of another are believed.
CLOCK_SKEW_SECONDS: Final = 300.0
# Seconds after sending in which an abandoned call may still be accepted.
CALL_SECONDS: Final = 10.0
WHOLE_SECONDS: Final = 900.0  # assumed for a refresh of everything until a completion event gives a figure
MAX_MESSAGE: Final = 1024  # characters of a failure's message on record
UNKNOWN: Final = "OutcomeUnknown"
# Codes of a service that has enough to do: a wait, no failure.
BUSY: Final = frozenset(("TooManyInvalidationsInProgress",))
NOT_MADE: Final = "NotMade"  # the code of a call that did not begin, because its process stops


class DirtyScope(msgspec.Struct, frozen=True):
    """The scope that waits for a refresh, since its first event.

    closed  a part of it was claimed or refused: later changes do not join it
    later   changes since it was closed
    most    folders in one call, after the target refused more at a time; 0 = as many as the spec allows
    requested  a person has asked for a part of it
    """

    since: float
    scope: Scope
    closed: bool = False
    later: "DirtyScope | None" = None
    most: int = 0
    requested: bool = False

    @property
    def prompt(self) -> bool:
        """Whether its next call waits for no quiet period."""
        return self.closed or self.requested

    @property
    def asked(self) -> bool:
        """Whether a person has asked for a part of it, including later changes."""
        return self.requested or (self.later is not None and self.later.requested)

    @property
    def waiting(self) -> Scope:
        """The whole scope, including later changes."""
        return self.scope if self.later is None else folders.merge(self.scope, self.later.scope)


class Claim(msgspec.Struct, frozen=True):
    """A call that is about to be made, or was: written before it."""

    id: str
    owner: str  # the process that makes it
    started_at: float
    request: Request
    since: float  # of the dirty scope that it was taken from
    attempt: int = 1  # above 1: made again, or taken over; nothing else of a claim but its owner ever changes
    requested: bool = False  # of the dirty scope that it was taken from


class NewCall(msgspec.Struct, frozen=True):
    """A call that is to be claimed."""

    id: str  # of its claim
    owner: str  # the process that makes it
    endpoint: str = ""  # that it goes to: Share.endpoint


class InFlight(msgspec.Struct, frozen=True):
    """A refresh that was accepted and has not ended as far as is known."""

    notification_id: str  # empty: the response had none, so a completion event is matched by its share
    accepted_at: float
    request: Request
    requested: bool = False  # of its claim


class LastCall(msgspec.Struct, frozen=True):
    """The last call, for status; minInterval counts from it."""

    requested_at: float = 0.0
    accepted_at: float = 0.0
    completed_at: float = 0.0
    full_at: float = 0.0  # when a refresh of everything was last accepted, or began to be waited for
    full_seconds: float = 0.0  # how long the last refresh of everything took; 0 = not known
    folders: int = 0
    result: Outcome = ""
    endpoint: str = ""  # that it went to: Share.endpoint


class Failure(msgspec.Struct, frozen=True):
    """Calls that failed one after the other."""

    count: int
    code: str
    message: str
    next_attempt_at: float


class CallError(msgspec.Struct, frozen=True):
    """Why a call failed, or is not known to have succeeded. `retry_after`: seconds of the service's
    Retry-After."""

    code: str
    message: str
    retry_after: float = 0.0


class Backoff(msgspec.Struct, frozen=True):
    """How long the next attempt waits. `jitter` is between 0 and 1 (full jitter)."""

    options: DebounceOptions
    now: float
    jitter: float


class TargetState(msgspec.Struct, frozen=True):
    """Everything durable of one target. Times are seconds since the epoch."""

    id: str
    dirty: DirtyScope | None = None
    claim: Claim | None = None
    in_flight: InFlight | None = None
    last: LastCall = LastCall()
    failure: Failure | None = None
    location: str = ""  # Share.location when it was last found

    @property
    def requested(self) -> bool:
        """Whether a request of a person waits or runs."""
        parts = (self.claim, self.in_flight)
        return (self.dirty is not None and self.dirty.asked) or any(part and part.requested for part in parts)


# ---------------------------------------------------------------- steps


def covered(target: TargetState, scope: Scope) -> bool:
    """Whether an event of this scope changes nothing: the waiting scopes already hold it. Claimed scopes and
    those in flight do not count."""
    waits: DirtyScope | None = target.dirty
    while scope and waits is not None:
        scope, waits = folders.missing(scope, waits.scope), waits.later
    return not scope


def mark(target: TargetState, scope: Scope, now: float) -> TargetState:
    """W1: an event, or a reason to refresh again."""
    if covered(target, scope):
        return target
    before = target.dirty
    if before is not None and before.closed and not scope.all:
        later = _joined(before.later, folders.missing(scope, before.scope), now)
        return replace(target, dirty=replace(before, later=later))
    return replace(target, dirty=_joined(before, scope, now))


def claim(
    target: TargetState,
    call: NewCall,
    options: DebounceOptions,
    now: float,
    contention: Contention = UNCONTENDED,
) -> TargetState:
    """W2: take the next call's folders out of the waiting scope. The target must be dirty and idle."""
    if target.dirty is None or target.claim is not None or target.in_flight is not None:
        return target
    request, left = upcoming(target, target.dirty, options, now, contention)
    since, requested = min(target.dirty.since, now), target.dirty.requested
    return replace(
        target,
        dirty=left,
        claim=Claim(call.id, call.owner, now, request, since, requested=requested),
        last=replace(target.last, requested_at=now, endpoint=call.endpoint),
    )


def upcoming(
    target: TargetState,
    dirty: DirtyScope,
    options: DebounceOptions,
    now: float,
    contention: Contention = UNCONTENDED,
) -> tuple[Request, DirtyScope | None]:
    """(the next call, the remaining dirty scope) if the target is claimed now."""
    scope = dirty.scope
    if not dirty.closed:
        took, whole = durations(target.last, options)
        age = max(now - dirty.since, 0.0)
        if target.failure is not None:  # after a failure the time limit starts again
            age = min(age, options.max_delay)
        calls, whole_calls = allowance(age, (took, whole), options, contention)
        scope = folders.narrowed(scope, options.max_folders, calls, whole_calls)
    request, left = folders.take(scope, min(dirty.most or options.max_folders, options.max_folders))
    since = min(dirty.since, now)
    if not left:
        return request, dirty.later
    return request, replace(dirty, since=since, scope=left, closed=True)


def durations(last: LastCall, options: DebounceOptions) -> tuple[float, float]:
    """Seconds that (a refresh, a refresh of everything) takes; an assumption until one has ended."""
    took, whole = (options.min_interval, WHOLE_SECONDS) if options.tracked else (options.assume_after,) * 2
    if last.completed_at >= last.accepted_at > 0:
        took = last.completed_at - last.accepted_at
    return took, last.full_seconds or whole


def resume(target: TargetState, owner: str) -> TargetState:
    """W2': this process makes the claimed call again. The new attempt is a write that one process wins;
    started_at stays, since the call must be identical."""
    held = target.claim
    if held is None:
        return target
    again = replace(held, owner=owner, attempt=held.attempt + 1)
    return replace(target, claim=again)


def accepted(
    target: TargetState, claim_id: str, notification_id: str | None, now: float, *, may_fail: bool = False
) -> TargetState:
    """W3: the call of this claim was accepted.

    notification_id  "": no end is reported, so the refresh is complete at once. None: the response should
                     have had one and has none, so the refresh is in flight
    may_fail         the refresh may still fail, so the count of failures is kept
    """
    held = target.claim
    if held is None or held.id != claim_id:
        return target  # merged back meanwhile, and perhaps claimed anew: that one counts
    last = replace(target.last, accepted_at=now, folders=len(held.request.folders))
    if held.request.scope.all:
        last = replace(last, full_at=now)
    in_flight = None
    if notification_id != "":
        in_flight = InFlight(notification_id or "", now, held.request, held.requested)
    if in_flight is None:
        last = _ended(last, held.request, now, "Succeeded", now)
    failure = target.failure if in_flight is not None and may_fail else None
    return replace(target, claim=None, in_flight=in_flight, failure=failure, last=last)


def failed(target: TargetState, claim_id: str, error: CallError, backoff: Backoff) -> TargetState:
    """W3': the call of this claim failed, or its outcome is unknown: its scope is dirty again, with backoff.

    The next attempt is at least minInterval later: the call may have been accepted and its response lost. A
    call of a process that is gone may still be accepted for CALL_SECONDS.
    """
    held = target.claim
    if held is None or held.id != claim_id:
        return target
    failure, now = _one_more(target, error, backoff), backoff.now
    back = _wait_again(target, held, held.since, now)
    at = max(failure.next_attempt_at, now + least(backoff.options, error.code))
    failure = replace(failure, next_attempt_at=at)
    return replace(back, claim=None, failure=failure)


def unmade(target: TargetState, claim_id: str, now: float) -> TargetState:
    """The call of this claim was not made: its scope is dirty as before, and that is no failure. After an
    earlier attempt, whose outcome is unknown, the claim stays."""
    held, last = target.claim, target.last
    if held is None or held.id != claim_id or held.attempt > 1:
        return target
    last = replace(last, requested_at=min(last.requested_at, last.accepted_at))
    return replace(_wait_again(target, held, held.since, now), claim=None, last=last)


def unanswered(target: TargetState, claim_id: str, error: CallError, backoff: Backoff) -> TargetState:
    """The outcome of this claim's call is unknown and the target is idempotent: the claim stays, with
    backoff."""
    if target.claim is None or target.claim.id != claim_id:
        return target
    return replace(target, failure=_one_more(target, error, backoff))


def completed(target: TargetState, notification_id: str, now: float) -> TargetState:
    """W4: the refresh with this id has ended."""
    in_flight = target.in_flight
    if in_flight is None or in_flight.notification_id != notification_id:
        return target
    last = _ended(target.last, in_flight.request, in_flight.accepted_at, "Succeeded", now)
    return replace(target, in_flight=None, failure=None, last=last)


def broken(target: TargetState, notification_id: str, error: CallError, backoff: Backoff) -> TargetState:
    """W4': the refresh with this id was accepted and has failed: its scope waits again, with backoff."""
    in_flight = target.in_flight
    if in_flight is None or in_flight.notification_id != notification_id:
        return target
    failure, now = _one_more(target, error, backoff), backoff.now
    last = replace(target.last, completed_at=now, result="Failed")
    back = _wait_again(target, in_flight, now, now)
    return replace(back, in_flight=None, failure=failure, last=last)


def overdue(target: TargetState, options: DebounceOptions, now: float) -> TargetState:
    """A refresh without an end in time: assumed if not tracked, else made again once and then given up."""
    in_flight = target.in_flight
    if in_flight is None or now < completion_due(target, options, now):
        return target
    expected = options.tracked and options.on_timeout == "RefreshAgain"  # an end is to be heard of
    if not expected or target.last.result == "Lost":
        result: Outcome = "Lost" if expected else "Assumed"
        last = _ended(target.last, in_flight.request, in_flight.accepted_at, result, now)
        return replace(target, in_flight=None, last=last)
    back = _wait_again(target, in_flight, now, now)
    last = replace(back.last, result="Lost")
    return replace(back, in_flight=None, last=last)


def completion_due(target: TargetState, options: DebounceOptions, now: float) -> float:
    """When the operator stops waiting for the end of the refresh in flight: sooner while changes wait behind
    it. A start in the future, after a clock was set back, counts as now."""
    if target.in_flight is None:
        return math.inf
    wait = options.assume_after
    if options.tracked:
        behind = max(options.assume_after, options.min_interval) if target.dirty is not None else math.inf
        wait = min(options.completion_timeout, behind)
    return min(target.in_flight.accepted_at, now) + wait


def _one_more(target: TargetState, error: CallError, backoff: Backoff) -> Failure:
    """The next failure in a row. retry.max bounds `retry_after`."""
    options = backoff.options
    count = (target.failure.count if target.failure is not None else 0) + 1
    longest = min(options.retry_initial * 2.0 ** min(count - 1, BACKOFF_DOUBLINGS), options.retry_max)
    asked = min(error.retry_after, options.retry_max)
    wait = max(longest * backoff.jitter, options.min_interval, asked)
    return Failure(count, error.code, error.message, backoff.now + wait)


def least(options: DebounceOptions, code: str) -> float:
    """Minimum seconds between two calls, where the first failed with this code ("" = it did not fail)."""
    return options.min_interval + (CALL_SECONDS if code == UNKNOWN else 0.0)


def longest_backoff(options: DebounceOptions) -> float:
    """Maximum seconds from a failure to the next call."""
    return max(options.retry_max, least(options, UNKNOWN))


def _ended(last: LastCall, request: Request, accepted_at: float, result: Outcome, now: float) -> LastCall:
    last = replace(last, completed_at=now, result=result)
    if request.scope.all:
        took = float(round(now - accepted_at))
        last = replace(last, full_seconds=max(took, 1.0))
    return last


def _wait_again(target: TargetState, part: Claim | InFlight, since: float, now: float) -> TargetState:
    """D = D + the scope of the part, with the earlier of the two times."""
    dirty = _joined(target.dirty, part.request.scope, min(since, now))
    return replace(target, dirty=replace(dirty, requested=dirty.requested or part.requested))


def _joined(before: DirtyScope | None, scope: Scope, now: float) -> DirtyScope:
    """Adds the scope, dirty since `now` or earlier. If the result is everything, `later` is empty."""
    if before is None:
        return DirtyScope(now, folders.merge(scope))
    since, merged = min(before.since, now), folders.merge(before.scope, scope)
    if merged.all:
        return DirtyScope(since, merged, requested=before.asked)
    return replace(before, since=since, scope=merged)


def called_at(target: TargetState) -> float:
    """When its last call was requested or accepted, whichever is later; 0 = never."""
    return max(target.last.requested_at, target.last.accepted_at)
