"""Encodes targets into status and decodes them: the write-ahead record.

Pure. A record that cannot be read back counts as lost, and then everything of its target is stale: a refresh
too many, never one too few.
"""

from collections.abc import Callable
from typing import TypeVar

from caretaker.api import s3refresh as wire
from caretaker.api.times import format_micros, parse_time
from caretaker.s3refresh.debounce import Claim, DirtyScope, Failure, InFlight, LastCall, Phase, TargetState
from caretaker.s3refresh.folders import ROOT, Request, Scope

P = TypeVar("P")
R = TypeVar("R")


def decode(status: wire.TargetStatus, now: float) -> TargetState:
    """The target. A time that is not one counts as now."""

    def when(text: str | None) -> float:
        moment = parse_time(text)
        return now if moment is None else moment

    def scope(one: wire.ScopeStatus) -> DirtyScope:
        later = _if(lambda later: DirtyScope(when(later.since), _scope(later)), one.later)
        return DirtyScope(when(one.since), _scope(one), one.closed, later, one.max_folders)

    def claim(one: wire.ClaimStatus) -> Claim:
        since = when(one.since)
        return Claim(one.id, one.owner, when(one.started_at), _request(one), since, one.attempt)

    def in_flight(one: wire.InFlightStatus) -> InFlight:
        return InFlight(one.notification_id, when(one.accepted_at), _request(one))

    def last(one: wire.LastStatus) -> LastCall:
        return LastCall(
            requested_at=parse_time(one.requested_at) or 0.0,
            accepted_at=parse_time(one.accepted_at) or 0.0,
            completed_at=parse_time(one.completed_at) or 0.0,
            full_at=parse_time(one.full_at) or 0.0,
            full_seconds=one.full_seconds or 0.0,
            folders=one.folders,
            result=one.result,
        )

    def failure(one: wire.FailureStatus) -> Failure:
        return Failure(one.count, one.code, one.message, when(one.next_attempt_at))

    return TargetState(
        id=status.id,
        location=status.location,
        dirty=_if(scope, status.dirty),
        claim=_if(claim, status.claim),
        in_flight=_if(in_flight, status.in_flight),
        last=_if(last, status.last) or LastCall(),
        failure=_if(failure, status.failure),
    )


def encode(target: TargetState, phase: Phase) -> wire.TargetStatus:
    """The target as status has it. Times have microseconds: a second less would break minInterval."""
    return wire.TargetStatus(
        id=target.id,
        phase=phase,
        location=target.location,
        dirty=_if(_dirty, target.dirty),
        claim=_if(_claim, target.claim),
        in_flight=_if(_in_flight, target.in_flight),
        last=_last(target.last),
        failure=_if(_failure, target.failure),
    )


def _if(make: Callable[[P], R], part: P | None) -> R | None:
    """None of none."""
    return None if part is None else make(part)


def _scope(status: wire.LaterStatus) -> Scope:
    return Scope(all=status.all, folders=frozenset(status.folders), trees=frozenset(status.trees))


def _waits(dirty: DirtyScope) -> tuple[str, bool, tuple[str, ...], tuple[str, ...]]:
    scope = dirty.scope
    return format_micros(dirty.since), scope.all, tuple(sorted(scope.folders)), tuple(sorted(scope.trees))


def _request(one: wire.ClaimStatus | wire.InFlightStatus) -> Request:
    return Request(one.folders or (ROOT,), recursive=one.recursive or not one.folders)


def _dirty(dirty: DirtyScope) -> wire.ScopeStatus:
    later = _if(lambda later: wire.LaterStatus(*_waits(later)), dirty.later)
    return wire.ScopeStatus(*_waits(dirty), closed=dirty.closed, later=later, max_folders=dirty.most)


def _claim(claim: Claim) -> wire.ClaimStatus:
    return wire.ClaimStatus(
        id=claim.id,
        owner=claim.owner,
        started_at=format_micros(claim.started_at),
        since=format_micros(claim.since),
        folders=claim.request.folders,
        recursive=claim.request.recursive,
        attempt=claim.attempt,
    )


def _in_flight(one: InFlight) -> wire.InFlightStatus:
    accepted_at, request = format_micros(one.accepted_at), one.request
    return wire.InFlightStatus(one.notification_id, accepted_at, request.folders, request.recursive)


def _failure(one: Failure) -> wire.FailureStatus:
    return wire.FailureStatus(one.count, one.code, one.message[:1024], format_micros(one.next_attempt_at))


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
