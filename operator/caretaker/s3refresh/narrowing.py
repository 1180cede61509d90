"""A call that was refused, perhaps because of one of its folders: which must not keep the others stale.

Pure. What is recorded covers what was to be refreshed at each step, whatever the reason was.
"""

import msgspec

from caretaker.s3refresh import debounce, folders
from caretaker.s3refresh.debounce import Claim, Dirty, Pace, Target
from caretaker.s3refresh.folders import NOTHING, Scope


def refused(
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
    """W3' of debounce.failed(). When it comes twice in a row, the next call names less, or more by fewer
    names, as soon as one may be made."""
    after, held = (
        debounce.failed(target, claim_id, code, message, pace, now, jitter, asked=asked),
        target.claim,
    )
    again = target.failure is not None and target.failure.code == code
    narrowing = target.dirty is not None and target.dirty.most > 0
    if held is None or after.failure is None or after.claim is not None or not (again or narrowing):
        return after
    if held.request.scope.all:
        return after
    failure = msgspec.structs.replace(after.failure, next_attempt_at=now + max(pace.min_interval, asked))
    return msgspec.structs.replace(_narrower(target, held, now), claim=None, failure=failure)


def _narrower(target: Target, held: Claim, now: float) -> Target:
    """D, closed, with what a refused call held: half as many folders at a time, until one alone is refused.
    The tree above it takes its place, up to everything, which no folder can spoil."""
    before, named = target.dirty, held.request.folders
    waits = before if before is not None and before.closed else None
    scope, most = held.request.scope, len(named) // 2
    if not most:
        above = folders.parent(named[0])
        scope = folders.EVERYTHING if above == folders.ROOT else Scope(trees=frozenset((above,)))
    scope = folders.merge(scope, waits.scope if waits is not None else NOTHING)
    since = min(held.since, now, waits.since if waits is not None else now)
    if scope.all:
        return msgspec.structs.replace(target, dirty=Dirty(since, scope))
    later = waits.later if waits is not None else before
    return msgspec.structs.replace(target, dirty=Dirty(since, scope, closed=True, later=later, most=most))
