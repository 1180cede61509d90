"""The life of one target: dirty, claimed, in flight, clean. What is durable, and every step it can take.

Pure. A step takes the state as it was read from the API server and returns the next one; whoever calls it
writes the result on condition that nothing else was written since. So no step needs to know who else is at
work: one that comes too late finds another claim than its own and changes nothing.

              W1 event                W2 due, slot free              W3 accepted
     clean ------------> dirty ------------------------> claimed -----------------> in flight
       ^                  ^  ^                              |                           |
       |                  |  +------ W3' failed, unknown ---+                           |
       |                  +------- event, completion lost, W4' failed after all --------+
       +-------------------------- W4 completed, or assumed ----------------------------+

D, the dirty scope, lives beside a claim and a refresh in flight: an event that comes then dirties again,
since the refresh may already have listed that folder.

Where a call that is made again takes effect once (an idempotent target), an unknown outcome leaves the claim
as it is, and W2' makes the same call again.
"""

import math
from typing import Final, Literal

import msgspec

from caretaker.s3refresh import folders
from caretaker.s3refresh.folders import NOTHING, Request, Scope

Phase = Literal["Clean", "Debouncing", "Due", "Claimed", "InFlight", "Backoff"]

# Age of a claim, counted by this process, from which on its owner is taken for dead.
CLAIM_LOST_SECONDS: Final = 120.0
BACKOFF_DOUBLINGS: Final = 16
# What two operators' clocks may differ by: beyond it, wall-clock times of another are believed.
CLOCK_SKEW_SECONDS: Final = 300.0
# How long after it was sent a call that nobody waits for any more may still be accepted.
CALL_SECONDS: Final = 10.0
UNKNOWN: Final = "OutcomeUnknown"


class Dirty(msgspec.Struct, frozen=True):
    """What waits for a refresh, since the first event."""

    since: float
    scope: Scope


class Claim(msgspec.Struct, frozen=True):
    """A call that is about to be made, or was: written before it."""

    id: str
    owner: str  # the process that makes it
    started_at: float
    request: Request
    since: float  # of the dirty scope that it was taken from
    attempt: int = 1  # above 1: made again, or taken over; nothing else of a claim but its owner ever changes


class InFlight(msgspec.Struct, frozen=True):
    """A refresh that was accepted and has not been heard to end."""

    notification_id: str  # empty: the answer had none, so its end is told by the share alone
    accepted_at: float
    request: Request


class Last(msgspec.Struct, frozen=True):
    """The last call, for people; minInterval counts from it."""

    requested_at: float = 0.0
    accepted_at: float = 0.0
    completed_at: float = 0.0
    full_at: float = 0.0  # when a refresh of everything was last accepted, or began to be waited for
    folders: int = 0
    result: Literal["", "Succeeded", "Failed", "Assumed", "Lost"] = ""


class Failure(msgspec.Struct, frozen=True):
    """Calls that failed one after the other."""

    count: int
    code: str
    message: str
    next_attempt_at: float


class Target(msgspec.Struct, frozen=True):
    """Everything durable of one target. Times are seconds since the epoch."""

    id: str
    dirty: Dirty | None = None
    claim: Claim | None = None
    in_flight: InFlight | None = None
    last: Last = Last()
    failure: Failure | None = None
    location: str = ""  # of a file share: where it was last found, as Share.location


class Pace(msgspec.Struct, frozen=True):
    """The seconds that spec.debounce, retry and completion ask for."""

    quiet_period: float = 30.0
    max_delay: float = 600.0
    min_interval: float = 60.0
    retry_initial: float = 30.0
    retry_max: float = 900.0
    tracked: bool = False  # whether completions are heard of
    assume_after: float = 60.0  # how long a refresh in flight keeps what waits from being refreshed
    completion_timeout: float = 6 * 3600.0
    on_timeout: Literal["RefreshAgain", "Assume"] = "RefreshAgain"
    max_folders: int = 50
    claim_lost: float = CLAIM_LOST_SECONDS
    resync: float = 0.0  # between two refreshes of everything; 0 = never


def at_once(pace: Pace) -> Pace:
    """The pace of a resource that is on its way out: what is dirty is refreshed without waiting for more."""
    return msgspec.structs.replace(pace, quiet_period=0.0, max_delay=0.0)


# ---------------------------------------------------------------- steps


def located(target: Target, location: str, now: float) -> Target:
    """Where the target was found. One that was elsewhere has missed the events of where it is."""
    if target.location == location:
        return target
    moved = bool(target.location)
    found = msgspec.structs.replace(target, location=location)
    return mark(found, folders.EVERYTHING, now) if moved else found


def covered(target: Target, scope: Scope) -> bool:
    """Whether an event of this scope changes nothing: what waits already holds it. What is claimed or in
    flight does not count."""
    return not scope or (target.dirty is not None and folders.covers(target.dirty.scope, scope))


def mark(target: Target, scope: Scope, now: float) -> Target:
    """W1: an event, or a reason to refresh again."""
    if covered(target, scope):
        return target
    before = target.dirty
    since = min(before.since, now) if before is not None else now
    merged = folders.merge(before.scope if before is not None else NOTHING, scope)
    return msgspec.structs.replace(target, dirty=Dirty(since, merged))


def claim(target: Target, claim_id: str, owner: str, pace: Pace, now: float) -> Target:
    """W2: take the next call's folders out of what waits. The target must be dirty and idle."""
    if target.dirty is None or target.claim is not None or target.in_flight is not None:
        return target
    request, left = folders.take(target.dirty.scope, pace.max_folders)
    since = min(target.dirty.since, now)
    return msgspec.structs.replace(
        target,
        dirty=Dirty(since, left) if left else None,
        claim=Claim(claim_id, owner, now, request, since),
        last=msgspec.structs.replace(target.last, requested_at=now),
    )


def resume(target: Target, owner: str) -> Target:
    """W2': this process makes the claimed call again. The attempt makes it a write, which one process of
    several wins; started_at stays, since the call is to be the same to the letter."""
    held = target.claim
    if held is None:
        return target
    again = msgspec.structs.replace(held, owner=owner, attempt=held.attempt + 1)
    return msgspec.structs.replace(target, claim=again)


def accepted(
    target: Target,
    claim_id: str,
    notification_id: str,
    now: float,
    *,
    unnamed: bool = False,
    may_fail: bool = False,
) -> Target:
    """W3: the call of this claim was accepted. An empty notification id completes it at once, unless the
    answer should have had one.

    unnamed   whether it should have
    may_fail  its end may still be a failure, so a row of failures does not end here
    """
    held = target.claim
    if held is None or held.id != claim_id:
        return target  # merged back meanwhile, and perhaps claimed anew: that one counts
    last = msgspec.structs.replace(target.last, accepted_at=now, folders=len(held.request.folders))
    if held.request.scope.all:
        last = msgspec.structs.replace(last, full_at=now)
    flying = InFlight(notification_id, now, held.request) if notification_id or unnamed else None
    if flying is None:
        last = msgspec.structs.replace(last, completed_at=now, result="Succeeded")
    failure = target.failure if flying is not None and may_fail else None
    return msgspec.structs.replace(target, claim=None, in_flight=flying, failure=failure, last=last)


def failed(
    target: Target,
    claim_id: str,
    code: str,
    message: str,
    pace: Pace,
    now: float,
    jitter: float,
    *,
    asked: float = 0.0,
) -> Target:
    """W3': the call of this claim failed, or nobody knows: what it held waits again, with backoff.

    `jitter` is between 0 and 1 (full jitter); `asked`: seconds that the service asks to wait at least. Never
    sooner than minInterval: an accepted call whose answer was lost may have started it, and may do so until
    CALL_SECONDS later if its process is gone.
    """
    held = target.claim
    if held is None or held.id != claim_id:
        return target
    failure = _one_more(target, code, message, pace, now, jitter, asked)
    least = max(failure.next_attempt_at, now + _least(pace, code))
    failure = msgspec.structs.replace(failure, next_attempt_at=least)
    back = _wait_again(target, held.request.scope, held.since, now)
    return msgspec.structs.replace(back, claim=None, failure=failure)


def unanswered(
    target: Target, claim_id: str, message: str, pace: Pace, now: float, jitter: float, *, asked: float = 0.0
) -> Target:
    """Nobody knows how the call of this claim ended, and it can be made again: it stays, with backoff.
    `asked` as in failed()."""
    if target.claim is None or target.claim.id != claim_id:
        return target
    failure = _one_more(target, UNKNOWN, message, pace, now, jitter, asked)
    return msgspec.structs.replace(target, failure=failure)


def completed(target: Target, notification_id: str, now: float) -> Target:
    """W4: the refresh with this id has ended."""
    flying = target.in_flight
    if flying is None or flying.notification_id != notification_id:
        return target
    last = msgspec.structs.replace(target.last, completed_at=now, result="Succeeded")
    return msgspec.structs.replace(target, in_flight=None, failure=None, last=last)


def broken(
    target: Target, notification_id: str, code: str, message: str, pace: Pace, now: float, jitter: float
) -> Target:
    """W4': the refresh with this id was accepted and has failed: what it held waits again, with backoff."""
    flying = target.in_flight
    if flying is None or flying.notification_id != notification_id:
        return target
    failure = _one_more(target, code, message, pace, now, jitter)
    last = msgspec.structs.replace(target.last, completed_at=now, result="Failed")
    back = _wait_again(target, flying.request.scope, now, now)
    return msgspec.structs.replace(back, in_flight=None, failure=failure, last=last)


def overdue(target: Target, pace: Pace, now: float) -> Target:
    """A refresh whose end was not heard of in time: assumed where completions are not tracked; else made
    again, once, and then given up."""
    flying = target.in_flight
    if flying is None or now < completion_due(target, pace, now):
        return target
    heard = pace.tracked and pace.on_timeout == "RefreshAgain"  # an end is to be heard of
    if not heard or target.last.result == "Lost":
        result: Literal["Assumed", "Lost"] = "Lost" if heard else "Assumed"
        last = msgspec.structs.replace(target.last, completed_at=now, result=result)
        return msgspec.structs.replace(target, in_flight=None, last=last)
    back = _wait_again(target, flying.request.scope, now, now)
    last = msgspec.structs.replace(back.last, result="Lost")
    return msgspec.structs.replace(back, in_flight=None, last=last)


def resync_at(target: Target, pace: Pace) -> float | None:
    """When everything is to be refreshed whatever events say; None = never. It counts from the first look."""
    if not pace.resync or not target.last.full_at:
        return None
    return target.last.full_at + pace.resync


def resynced(target: Target, pace: Pace, now: float) -> Target:
    """Everything is stale once resync.interval has passed since it was last refreshed."""
    if pace.resync and not target.last.full_at:
        return msgspec.structs.replace(target, last=msgspec.structs.replace(target.last, full_at=now))
    at = resync_at(target, pace)
    if at is None or now < at or target.claim is not None or target.in_flight is not None:
        return target
    return mark(target, folders.EVERYTHING, now)


def size(target: Target) -> int:
    """Bytes of the folders on record, about."""
    requests = [part.request.scope for part in (target.claim, target.in_flight) if part is not None]
    waiting = [target.dirty.scope] if target.dirty is not None else []
    return sum(folders.size(scope) for scope in (*requests, *waiting))


def widened(target: Target) -> Target:
    """Everything waits instead of many folders: shorter to say."""
    if target.dirty is None:
        return target
    return msgspec.structs.replace(target, dirty=Dirty(target.dirty.since, folders.EVERYTHING))


def _one_more(
    target: Target, code: str, message: str, pace: Pace, now: float, jitter: float, asked: float = 0.0
) -> Failure:
    """One failure more in the row. Nobody can ask for a longer wait than retry.max."""
    count = (target.failure.count if target.failure is not None else 0) + 1
    wait = min(pace.retry_initial * 2.0 ** min(count - 1, BACKOFF_DOUBLINGS), pace.retry_max) * jitter
    return Failure(count, code, message, now + max(wait, pace.min_interval, min(asked, pace.retry_max)))


def _least(pace: Pace, code: str) -> float:
    return pace.min_interval + (CALL_SECONDS if code == UNKNOWN else 0.0)


def _wait_again(target: Target, scope: Scope, since: float, now: float) -> Target:
    """D = D + scope, as old as the older of the two."""
    before = target.dirty
    since = min(since, now, before.since if before is not None else now)
    merged = folders.merge(before.scope if before is not None else NOTHING, scope)
    return msgspec.structs.replace(target, dirty=Dirty(since, merged))


# ---------------------------------------------------------------- times


def called_at(target: Target) -> float:
    """When its last call may have been made, or was known to be accepted; 0 = never."""
    return max(target.last.requested_at, target.last.accepted_at)


def completion_due(target: Target, pace: Pace, now: float) -> float:
    """When the refresh in flight is no longer waited for: sooner while something else waits behind it. A
    start in the future, of a clock that was set back, counts as now."""
    if target.in_flight is None:
        return math.inf
    wait = pace.assume_after
    if pace.tracked:
        behind = max(pace.assume_after, pace.min_interval) if target.dirty is not None else math.inf
        wait = min(pace.completion_timeout, behind)
    return min(target.in_flight.accepted_at, now) + wait


def start_at(
    target: Target, pace: Pace, last_event: float, dirty_for: float, called_for: float, now: float
) -> float | None:
    """When the next call may start; None while nothing waits.

    last_event  when this process last heard an event of the target, by the wall clock of now
    dirty_for   for how many seconds this process has seen the target dirty: a clock that is set back must
                not put maxDelay off
    called_for  for how many seconds this process has known of the last call and how it ended
    """
    if target.dirty is None:
        return None
    since = min(target.dirty.since, now - dirty_for)
    fire = min(last_event + pace.quiet_period, since + pace.max_delay)
    interval = _interval(target, pace, called_for, now)
    attempt = target.failure.next_attempt_at if target.failure is not None else 0.0
    # No failure waits for longer than this, whatever the clock did since.
    attempt = min(attempt, now + max(pace.retry_max, pace.min_interval + CALL_SECONDS))
    return max(fire, interval, attempt)


def again_at(target: Target, pace: Pace, claim_age: float, now: float) -> float:
    """When the backoff of a claim that is to be executed again has passed, for a process that has seen it
    stand for `claim_age` seconds: none waits for longer than this, whatever the clock did since."""
    if target.failure is None:
        return now
    longest = max(pace.retry_max, pace.min_interval)
    return min(target.failure.next_attempt_at, now + max(longest - claim_age, 0.0))


def _interval(target: Target, pace: Pace, called_for: float, now: float) -> float:
    """When minInterval after the last call has passed.

    Counted from when the call was known to be accepted, which may be seconds after it was asked for: what is
    accepted within the interval evicts nothing. And on this process's own clock, unless the call is so long
    ago that no skew between two operators' clocks explains it.
    """
    called = called_at(target)
    if not called or now - called >= pace.min_interval + CLOCK_SKEW_SECONDS:
        return 0.0
    least = _least(pace, target.failure.code if target.failure is not None else "")
    return now + max(least - called_for, 0.0)


def phase_of(target: Target, start: float | None, now: float) -> Phase:
    """What status tells of it."""
    if target.claim is not None:
        return "Claimed"
    if target.in_flight is not None:
        return "InFlight"
    if target.dirty is None:
        return "Clean"
    if target.failure is not None:
        return "Backoff"
    return "Due" if start is not None and start <= now else "Debouncing"
