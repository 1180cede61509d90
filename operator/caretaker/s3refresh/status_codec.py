"""Encodes targets into status and decodes them: the write-ahead record.

Pure. A record that cannot be read back counts as lost, and then everything of its target is stale: a refresh
too many, never one too few.
"""

from caretaker.api import s3refresh as wire
from caretaker.api.times import format_micros, parse_time
from caretaker.s3refresh.debounce import Claim, DirtyScope, Failure, InFlight, LastCall, Phase, TargetState
from caretaker.s3refresh.folders import ROOT, Request, Scope


def decode(status: wire.TargetStatus, now: float) -> TargetState:
    """The target. A time that is not one counts as now."""

    def when(text: str | None) -> float:
        moment = parse_time(text)
        return now if moment is None else moment

    dirty, claim, in_flight, last, failure = (
        status.dirty,
        status.claim,
        status.in_flight,
        status.last,
        status.failure,
    )
    return TargetState(
        id=status.id,
        location=status.location,
        dirty=None
        if dirty is None
        else DirtyScope(
            when(dirty.since),
            _scope(dirty),
            dirty.closed,
            None if dirty.later is None else DirtyScope(when(dirty.later.since), _scope(dirty.later)),
            dirty.max_folders,
        ),
        claim=None
        if claim is None
        else Claim(
            claim.id,
            claim.owner,
            when(claim.started_at),
            Request(claim.folders or (ROOT,), recursive=claim.recursive or not claim.folders),
            when(claim.since),
            claim.attempt,
        ),
        in_flight=None
        if in_flight is None
        else InFlight(
            in_flight.notification_id,
            when(in_flight.accepted_at),
            Request(in_flight.folders or (ROOT,), recursive=in_flight.recursive or not in_flight.folders),
        ),
        last=LastCall()
        if last is None
        else LastCall(
            requested_at=parse_time(last.requested_at) or 0.0,
            accepted_at=parse_time(last.accepted_at) or 0.0,
            completed_at=parse_time(last.completed_at) or 0.0,
            full_at=parse_time(last.full_at) or 0.0,
            full_seconds=last.full_seconds or 0.0,
            folders=last.folders,
            result=last.result,
        ),
        failure=None
        if failure is None
        else Failure(failure.count, failure.code, failure.message, when(failure.next_attempt_at)),
    )


def encode(target: TargetState, phase: Phase) -> wire.TargetStatus:
    """The target as status has it. Times have microseconds: a second less would break minInterval."""
    dirty, claim, in_flight, failure = target.dirty, target.claim, target.in_flight, target.failure
    return wire.TargetStatus(
        id=target.id,
        phase=phase,
        location=target.location,
        dirty=None
        if dirty is None
        else wire.ScopeStatus(
            *_waits(dirty),
            closed=dirty.closed,
            later=None if dirty.later is None else wire.LaterStatus(*_waits(dirty.later)),
            max_folders=dirty.most,
        ),
        claim=None
        if claim is None
        else wire.ClaimStatus(
            id=claim.id,
            owner=claim.owner,
            started_at=format_micros(claim.started_at),
            since=format_micros(claim.since),
            folders=claim.request.folders,
            recursive=claim.request.recursive,
            attempt=claim.attempt,
        ),
        in_flight=None
        if in_flight is None
        else wire.InFlightStatus(
            notification_id=in_flight.notification_id,
            accepted_at=format_micros(in_flight.accepted_at),
            folders=in_flight.request.folders,
            recursive=in_flight.request.recursive,
        ),
        last=_last(target.last),
        failure=None
        if failure is None
        else wire.FailureStatus(
            failure.count, failure.code, failure.message[:1024], format_micros(failure.next_attempt_at)
        ),
    )


def _scope(status: wire.LaterStatus) -> Scope:
    return Scope(all=status.all, folders=frozenset(status.folders), trees=frozenset(status.trees))


def _waits(dirty: DirtyScope) -> tuple[str, bool, tuple[str, ...], tuple[str, ...]]:
    scope = dirty.scope
    return format_micros(dirty.since), scope.all, tuple(sorted(scope.folders)), tuple(sorted(scope.trees))


def _last(last: LastCall) -> wire.LastStatus | None:
    if last == LastCall():
        return None

    def formatted(moment: float) -> str | None:
        return format_micros(moment) if moment else None

    ended = last.result == "Succeeded" and last.completed_at >= last.accepted_at > 0
    return wire.LastStatus(
        requested_at=formatted(last.requested_at),
        accepted_at=formatted(last.accepted_at),
        completed_at=formatted(last.completed_at),
        full_at=formatted(last.full_at),
        full_seconds=round(last.full_seconds) or None,
        duration_seconds=round(last.completed_at - last.accepted_at) if ended else None,
        folders=last.folders,
        result=last.result,
    )
