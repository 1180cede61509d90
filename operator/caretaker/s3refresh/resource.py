"""An S3AggregatedRefresh as the API server holds it: where it is, how it is read, what it configures.

Pure. The targets in its status are the write-ahead record. A record that cannot be read back counts as lost,
and then everything of its target is stale: a refresh too many, never one too few.
"""

import math
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from caretaker.api import conditions as c
from caretaker.api import names
from caretaker.api import s3refresh as wire
from caretaker.api.aws import queue_arn
from caretaker.api.conditions import RefreshReason as Reason
from caretaker.api.durations import seconds_of
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Spec, SQSSource, Status
from caretaker.api.times import format_micros, format_time, parse_time
from caretaker.aws.identity import ClientKey, Keys, User
from caretaker.registry import S3_AGGREGATED_REFRESH
from caretaker.s3refresh import costs
from caretaker.s3refresh.debounce import (
    MAX_MESSAGE,
    Claim,
    DirtyScope,
    Failure,
    InFlight,
    LastCall,
    Phase,
    TargetState,
)
from caretaker.s3refresh.folders import EVERYTHING, ROOT, Request, Scope
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.queue_view import SOURCE
from caretaker.s3refresh.target_types import TargetType, target_type_of

KIND: Final = S3_AGGREGATED_REFRESH.kind
FINALIZER: Final = f"{names.GROUP}/finalizer"
MOST_WAIT: Final = 20  # seconds of a long poll (SQS's own limit)

# In place of a status that cannot be read. Until the queue is read, statuses that are written have this time,
# which tells that targets were looked up, and that events may be gone: everything is refreshed.
LOST: Final = Status(queue=wire.QueueStatus(checked_at=format_time(0)))

P = TypeVar("P")
R = TypeVar("R")


class RawRefresh(msgspec.Struct):
    """One whose spec has not been judged yet."""

    metadata: WireMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


def user_of(meta: WireMeta) -> User:
    """The resource as the user of an assumed role."""
    return User(meta.namespace, S3_AGGREGATED_REFRESH.short, meta.name)


class ParsedRefresh(msgspec.Struct, frozen=True):
    """The resource; without a spec when that cannot be read, and why."""

    meta: WireMeta
    status: Status
    spec: Spec | None
    options: DebounceOptions = DebounceOptions()
    invalid: str = ""

    def lost_at(self, now: float) -> float:
        """When its status could not be read, or later; -inf if it could. What was recorded since is known."""
        if self.status.queue != LOST.queue:
            return -math.inf
        written = [parse_time(one.last_transition_time) for one in self.status.conditions]
        return min((at for at in written if at is not None), default=now)

    @property
    def first(self) -> bool:
        """Whether its targets were never looked up: an empty record may also be one that all have left."""
        # The queue is read, and its figures are written, only once targets were looked up.
        if self.status.targets or self.status.queue.checked_at is not None:
            return False
        looked = c.find(self.status.conditions, c.TARGETS_RESOLVED)
        return looked is None or looked.reason not in (Reason.RESOLVED, Reason.NO_TARGETS)

    @property
    def active(self) -> bool:
        """Whether refreshes are made: not while it is suspended, unless it is on its way out."""
        return self.spec is not None and (self.flushing or not self.spec.suspend)

    @property
    def flushing(self) -> bool:
        """Whether it is being deleted and only waits for dirty targets."""
        return self.meta.deletion_timestamp is not None and FINALIZER in (self.meta.finalizers or ())


def targets_of(read: ParsedRefresh, now: float) -> tuple[TargetState, ...]:
    """The targets in its status; none if the status cannot be decoded."""
    return tuple(decode_target(one, now) for one in read.status.targets)


def _status(raw: RawRefresh) -> Status:
    try:
        return msgspec.json.decode(raw.status, type=Status)
    except msgspec.ValidationError:
        return LOST  # written by another client


def read(raw: RawRefresh, wanted: type[Spec]) -> ParsedRefresh:
    """Judge it. `wanted` is a Spec with every target that there is. A spec older than a stricter CRD is
    shown, never a crash."""
    status = _status(raw)
    try:
        spec = msgspec.json.decode(raw.spec, type=wanted)
        options = options_of(spec, status.cost)
    except ValueError as error:  # msgspec.ValidationError is one
        invalid = str(error).replace("`$", "`spec")
        return ParsedRefresh(raw.metadata, status, None, invalid=invalid)
    return ParsedRefresh(raw.metadata, status, spec, options)


def options_of(spec: Spec, cost: wire.CostStatus | None = None) -> DebounceOptions:
    """Seconds, with the interval that a budget allows by these costs. Raises ValueError with the field."""
    debounce, retry = spec.debounce, spec.retry
    options = DebounceOptions(
        quiet_period=seconds_of("debounce.quietPeriod", debounce.quiet_period),
        max_delay=seconds_of("debounce.maxDelay", debounce.max_delay),
        min_interval=seconds_of("debounce.minInterval", debounce.min_interval),
        retry_initial=seconds_of("retry.initial", retry.initial),
        retry_max=seconds_of("retry.max", retry.max),
        resync=seconds_of("resync.interval", spec.resync.interval),
    )
    options = costs.widened(options, spec.cost, cost)
    return target_type_of(spec).debounce_options(options)


# -------------------------------------------------- targets in status


def decode_target(status: wire.TargetStatus, now: float) -> TargetState:
    """The target. A time that is not one counts as now."""

    def when(text: str | None) -> float:
        moment = parse_time(text)
        return now if moment is None else moment

    def scope(one: wire.ScopeStatus) -> DirtyScope:
        later = _if(
            lambda later: DirtyScope(when(later.since), _scope(later), requested=later.requested), one.later
        )
        most = max(one.max_folders, 0)
        return DirtyScope(when(one.since), _scope(one), one.closed, later, most, one.requested)

    def claim(one: wire.ClaimStatus) -> Claim:
        since = when(one.since)
        started_at, call = when(one.started_at), _request(one)
        return Claim(one.id, one.owner, started_at, call, since, one.attempt, one.requested)

    def in_flight(one: wire.InFlightStatus) -> InFlight:
        return InFlight(one.notification_id, when(one.accepted_at), _request(one), one.requested)

    def last(one: wire.LastStatus) -> LastCall:
        return LastCall(
            requested_at=parse_time(one.requested_at) or 0.0,
            accepted_at=parse_time(one.accepted_at) or 0.0,
            completed_at=parse_time(one.completed_at) or 0.0,
            full_at=parse_time(one.full_at) or 0.0,
            full_seconds=one.full_seconds or 0.0,
            folders=one.folders,
            result=one.result,
            endpoint=one.endpoint,
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


def encode_target(target: TargetState, phase: Phase) -> wire.TargetStatus:
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
    found = Scope(all=status.all, folders=frozenset(status.folders), trees=frozenset(status.trees))
    return found or EVERYTHING  # somebody has cut the record short


def _waits(dirty: DirtyScope) -> tuple[str, bool, tuple[str, ...], tuple[str, ...], bool]:
    scope, since = dirty.scope, format_micros(dirty.since)
    return since, scope.all, tuple(sorted(scope.folders)), tuple(sorted(scope.trees)), dirty.requested


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
        requested=claim.requested,
    )


def _in_flight(one: InFlight) -> wire.InFlightStatus:
    accepted_at, request = format_micros(one.accepted_at), one.request
    return wire.InFlightStatus(
        one.notification_id, accepted_at, request.folders, request.recursive, one.requested
    )


def _failure(one: Failure) -> wire.FailureStatus:
    return wire.FailureStatus(
        one.count, one.code, one.message[:MAX_MESSAGE], format_micros(one.next_attempt_at)
    )


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
        endpoint=last.endpoint,
    )


# -------------------------------------------------- the configuration of its tasks


class Reading(msgspec.Struct, frozen=True):
    """How a resource reads a queue. `wait` and `visibility` in seconds."""

    target: ClientKey
    arn: str
    source: SQSSource
    field: str  # of the spec, where its URL stands
    wait: int = MOST_WAIT
    visibility: int = 60


class WorkerConfig(msgspec.Struct, frozen=True):
    """The configuration of the tasks of a resource; a new one restarts them."""

    source: Reading
    completions: Reading | None
    rediscover: float  # seconds
    target_type: TargetType
    others: Any  # the other inputs of the target
    sent: frozenset[str] = frozenset()  # ARNs of the destinations of refreshes

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The source first."""
        return (self.source,) if self.completions is None else (self.source, self.completions)


def worker_config_of(spec: Spec, keys: Keys | None, user: User | None = None) -> WorkerConfig:
    """The configuration that a spec asks for. Raises ValueError with the field."""
    source, target_type = spec.source.sqs, target_type_of(spec)
    sqs = ClientKey.of(spec.aws, "sqs", keys, user=user)
    reading = Reading(
        sqs,
        arn_of_queue(source.queue_url, spec),
        source,
        SOURCE,
        round(seconds_of("source.sqs.waitTime", source.wait_time)),
        round(seconds_of("source.sqs.visibilityTimeout", source.visibility_timeout)),
    )
    completions, url = None, target_type.ends_url
    if url and url != source.queue_url:
        ends = replace(source, queue_url=url, envelope="Auto")
        completions = Reading(sqs, arn_of_queue(url, spec), ends, target_type.ends_field)
    buckets = spec.filter.buckets if target_type.of_buckets else ()
    sent = frozenset(target_type.called(spec.aws.region).values())
    others = (spec.aws, keys, buckets)
    return WorkerConfig(reading, completions, target_type.rediscover, target_type, others, sent)


def arn_of_queue(url: str, spec: Spec) -> str:
    """Its ARN: one queue has many URLs."""
    try:
        return queue_arn(url, spec.aws.region)
    except ValueError:  # of an older CRD's
        return url


def alike(spec: Spec, namespace: str, url: str) -> Hashable:
    """Equal for resources that can share one reader of a queue: the parts of spec.aws that ClientKey.of()
    uses, before a Secret's keys are read."""
    aws = spec.aws
    signer = (namespace if aws.secret_name else "", aws.secret_name, aws.role_arn, aws.external_id)
    return url, aws.region, *signer, aws.endpoint_url("sts"), aws.endpoint_url("sqs")
