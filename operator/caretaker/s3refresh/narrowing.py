"""Narrows a call that the target refused, so that one bad folder does not keep the others from a refresh.

Pure. At each step, and for every reason of a refusal, the recorded scope covers everything that was dirty.
"""

import msgspec

from caretaker.s3refresh import debounce, folders
from caretaker.s3refresh.debounce import Backoff, CallError, Claim, DirtyScope, TargetState
from caretaker.s3refresh.folders import EMPTY, Scope


def refused(target: TargetState, claim_id: str, error: CallError, backoff: Backoff) -> TargetState:
    """W3' as in debounce.failed(). After two refusals in a row with the same code, the next call has fewer
    folders, or one tree in place of a folder, and follows without backoff."""
    after, held = debounce.failed(target, claim_id, error, backoff), target.claim
    again = target.failure is not None and target.failure.code == error.code
    narrowing = target.dirty is not None and target.dirty.most > 0
    if held is None or after.failure is None or after.claim is not None or not (again or narrowing):
        return after
    if held.request.scope.all:
        return after
    wait = max(backoff.options.min_interval, error.retry_after)
    failure = msgspec.structs.replace(after.failure, next_attempt_at=backoff.now + wait)
    return msgspec.structs.replace(_narrower(target, held, backoff.now), claim=None, failure=failure)


def _narrower(target: TargetState, held: Claim, now: float) -> TargetState:
    """D, closed, with the scope of the refused call: half as many folders in a call, down to a single one. If
    that one is refused, the tree of its parent takes its place, and in the end everything, which names no
    folder."""
    before, named = target.dirty, held.request.folders
    waits = before if before is not None and before.closed else None
    scope, most = held.request.scope, len(named) // 2
    if not most:
        scope = Scope(trees=frozenset((folders.parent(named[0]),)))
    scope = folders.merge(scope, waits.scope if waits is not None else EMPTY)
    since = min(held.since, now, waits.since if waits is not None else now)
    if scope.all:
        return msgspec.structs.replace(target, dirty=DirtyScope(since, scope))
    later = waits.later if waits is not None else before
    return msgspec.structs.replace(
        target, dirty=DirtyScope(since, scope, closed=True, later=later, most=most)
    )
