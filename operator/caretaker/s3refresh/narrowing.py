"""The next call after one that was refused, or came while the service was busy: fewer folders.

Pure. At each step the recorded scope covers everything that was dirty.
"""

from msgspec.structs import replace

from caretaker.s3refresh import debounce, folders
from caretaker.s3refresh.debounce import Backoff, CallError, Claim, DirtyScope, TargetState
from caretaker.s3refresh.folders import EMPTY, Scope
from caretaker.s3refresh.options import PLAIN_CALLS


def refused(target: TargetState, claim_id: str, error: CallError, backoff: Backoff) -> TargetState:
    """W3' as in debounce.failed(). After two refusals in a row with the same code, the next call has fewer
    folders, or one tree in place of a folder, and follows without backoff: one bad folder must not keep the
    others from a refresh. At each step, and for every reason of a refusal, the recorded scope covers
    everything that was dirty."""
    after, held = debounce.failed(target, claim_id, error, backoff), target.claim
    again = target.failure is not None and target.failure.code == error.code
    narrowing = target.dirty is not None and target.dirty.most > 0
    if held is None or after.failure is None or after.claim is not None or not (again or narrowing):
        return after
    if held.request.scope.all:
        return after
    wait = max(backoff.options.min_interval, error.retry_after)
    failure = replace(after.failure, next_attempt_at=backoff.now + wait)
    return replace(_narrower(target, held, backoff.now), claim=None, failure=failure)


def _narrower(target: TargetState, held: Claim, now: float) -> TargetState:
    """D, closed, with the scope of the refused call: half as many folders in a call, down to a single one. If
    that one is refused, the tree of its parent takes its place, and in the end everything, which names no
    folder."""
    named = held.request.folders
    if len(named) > 1:
        return _closed(target, held, held.request.scope, len(named) // 2, now)
    return _closed(target, held, Scope(trees=frozenset((folders.parent(named[0]),))), 0, now)


def _closed(target: TargetState, held: Claim, scope: Scope, most: int, now: float) -> TargetState:
    """D, closed, with the scope in place of the claim's, and at most so many folders in a call."""
    before = target.dirty
    waits = before if before is not None and before.closed else None
    scope = folders.merge(scope, waits.scope if waits is not None else EMPTY)
    since = min(held.since, now, waits.since if waits is not None else now)
    if scope.all:
        asked = held.requested or (before is not None and before.asked)
        return replace(target, dirty=DirtyScope(since, scope, requested=asked))
    asked = held.requested or (waits is not None and waits.requested)
    later = waits.later if waits is not None else before
    closed = DirtyScope(since, scope, closed=True, later=later, most=most, requested=asked)
    return replace(target, dirty=closed)


def deferred(
    target: TargetState, claim_id: str, error: CallError, backoff: Backoff, *, narrower: bool
) -> TargetState:
    """W3' of a service that is busy. The next call has half as many folders, if that may fit (`narrower`);
    else they go behind the others, to which another of the service's limits may apply."""
    after, held = debounce.failed(target, claim_id, error, backoff), target.claim
    if held is None or after.claim is not None or held.request.scope.all:
        return after
    named, before = held.request.folders, target.dirty
    if narrower and len(named) > 1:
        closed = _closed(target, held, held.request.scope, len(named) // 2, backoff.now)
        return replace(closed, claim=None, failure=after.failure)
    if before is None or before.scope.all:
        return after
    scope = before.scope
    if not before.closed:
        scope = folders.narrowed(scope, backoff.options.max_folders, PLAIN_CALLS, 1 + PLAIN_CALLS)
    if scope.all:
        return after
    behind = DirtyScope(min(held.since, backoff.now), held.request.scope, requested=held.requested)
    if before.later is not None:
        since, merged = min(behind.since, before.later.since), folders.merge(behind.scope, before.later.scope)
        behind = DirtyScope(since, merged, requested=behind.requested or before.later.requested)
    first = replace(before, scope=scope, closed=True, later=behind)
    return replace(after, dirty=first)
