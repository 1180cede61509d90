"""The plan of an S3AggregatedRefresh: every input since the last pass, folded into the targets.

Pure: Snapshot -> Plan. The targets were read from the API server after the messages were received; the plan's
targets are written under the condition that nothing else was written since. Only then may its messages be
deleted and its calls be made: a message is never deleted before the API server is known to hold a target that
covers it, and no call is made that is not on record.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from caretaker.api.hashing import h10
from caretaker.api.s3refresh import MAX_TARGETS
from caretaker.s3refresh import annotation_requests, debounce, match, record_bounds, timing
from caretaker.s3refresh.debounce import Backoff, CallError, Claim, NewCall, Phase, TargetState
from caretaker.s3refresh.envelope import Completion
from caretaker.s3refresh.folders import EVERYTHING, Scope
from caretaker.s3refresh.match import EventMatcher, Matches, Share
from caretaker.s3refresh.narrowing import deferred, refused
from caretaker.s3refresh.options import Contention, DebounceOptions
from caretaker.s3refresh.snapshot import Plan, PlanInput, Result
from caretaker.s3refresh.timing import TargetTimes

# Names in the scopes that one plan reduces to few calls, if there is more than one: 40 ms of CPU.
REDUCED_NAMES: Final = 1000
NEVER: Final = float("inf")


@dataclass
class _Draft:
    """The decisions of a plan so far, besides the targets."""

    calls: list[tuple[Share, Claim]] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)
    unclaimed: list[int] = field(default_factory=list)
    matches: Matches = field(default_factory=Matches)
    requested: int | None = None
    put_off: bool = False  # claims are left to the next plan, which follows at once


def plan(inputs: PlanInput) -> Plan:
    """The next state of every target."""
    result = _Draft()
    believed = (timing.not_ahead(target, inputs.options, inputs.now) for target in inputs.targets)
    targets = {target.id: target for target in believed}
    _ended(inputs, targets)
    _leave(inputs, targets)
    inputs = _admit(inputs, targets)
    _messages(inputs, targets, result)
    _appear(inputs, targets)
    if inputs.expired:
        _mark_all(inputs, targets)
    _ask(inputs, targets, result)
    _time(inputs, targets)
    record_bounds.fit(targets, inputs.discovery.shares)
    if not inputs.suspended:
        _resume(inputs, targets, result)
        _claim(inputs, targets, result)
    return _scheduled(inputs, tuple(targets[name] for name in sorted(targets)), result)


# ---------------------------------------------------------------- inputs


def _ended(inputs: PlanInput, targets: dict[str, TargetState]) -> None:
    """W3, W3' and W4': the ends of calls, and of the refreshes that they started."""
    for result in inputs.results:
        if (target := targets.get(result.target)) is not None:
            targets[target.id] = _answered(inputs, target, result)
    for end in inputs.ends:
        error = CallError(end.code, end.message)
        for target in list(targets.values()):
            targets[target.id] = (
                debounce.broken(target, end.notification_id, error, _backoff(inputs))
                if end.code
                else debounce.completed(target, end.notification_id, inputs.now)
            )


def _backoff(inputs: PlanInput) -> Backoff:
    return Backoff(inputs.options, inputs.now, inputs.jitter)


def _answered(inputs: PlanInput, target: TargetState, result: Result) -> TargetState:
    if not result.code:
        name = None if result.unnamed and not result.notification_id else result.notification_id
        return debounce.accepted(target, result.claim_id, name, inputs.now, may_fail=inputs.idempotent)
    if result.code == debounce.NOT_MADE:
        return debounce.unmade(target, result.claim_id, inputs.now)
    error = CallError(result.code, result.message, result.retry_after)
    held, failure, busy = target.claim, target.failure, result.code in debounce.BUSY
    if held is None or held.id != result.claim_id:
        return target
    if failure is not None and (failure.code in debounce.BUSY) != busy:
        target = replace(target, failure=None)  # a wait is no failure in a row, nor the reverse
    unknown = result.code == debounce.UNKNOWN or (busy and held.attempt > 1)
    if unknown and inputs.idempotent:
        return debounce.unanswered(target, result.claim_id, error, _backoff(inputs))
    if busy:
        return deferred(target, result.claim_id, error, _backoff(inputs), narrower=result.refused)
    fail = refused if result.refused else debounce.failed
    return fail(target, result.claim_id, error, _backoff(inputs))


def _messages(inputs: PlanInput, targets: dict[str, TargetState], result: _Draft) -> None:
    """W1 and W4."""
    shares = match.by_bucket(inputs.discovery.shares)
    matcher = EventMatcher(inputs.filter, shares, whole=inputs.whole)
    matcher.join(inputs.matches)
    ids = matcher.ids
    for message in inputs.messages:
        early = [c for c in message.completions if not _complete(inputs, targets, c)]
        if not inputs.idempotent and any(_may_be_called(inputs, targets, one) for one in early):
            result.returned.append(message.id)
            continue
        if early and len(early) == len(message.completions):
            result.unclaimed.append(message.id)
            continue
        if message.malformed:
            if inputs.malformed == "RefreshAll":
                _mark_all(inputs, targets)
            (result.returned if inputs.malformed == "DeadLetter" else result.done).append(message.id)
            continue
        stored = message.id in inputs.concerned
        concerned = inputs.concerned[message.id] if stored else matcher.add(message.events)
        # A share may have been found before for which the record has no room.
        all_match = concerned is not None and concerned <= ids
        # While not all shares are known, an unmatched event may belong to one that is found later.
        (result.done if all_match or inputs.discovery.complete else result.returned).append(message.id)
    result.matches = matcher.matches()
    for name, scope in result.matches.found.items():
        _mark(inputs, targets, name, scope)


def _may_be_called(inputs: PlanInput, targets: Mapping[str, TargetState], completion: Completion) -> bool:
    """Whether the completion event may be of a call that has not been answered yet."""
    arn = completion.share_arn
    others = {share.id for share in inputs.discovery.shares if arn and share.arn != arn}
    return any(target.claim is not None and target.id not in others for target in targets.values())


def _complete(inputs: PlanInput, targets: dict[str, TargetState], completion: Completion) -> bool:
    """Whether the completion event belongs to a refresh in flight: by id, or by share if either has no id."""
    name = completion.notification_id
    ids = {share.id for share in inputs.discovery.shares if share.arn == completion.share_arn}
    in_flight = {target.id: target.in_flight for target in targets.values() if target.in_flight is not None}
    same = [one for one, refresh in in_flight.items() if name and refresh.notification_id == name]
    by_share = [
        one for one, refresh in in_flight.items() if one in ids and "" in (name, refresh.notification_id)
    ]
    for one in same or by_share:
        targets[one] = debounce.completed(targets[one], in_flight[one].notification_id, inputs.now)
    return bool(same or by_share)


def _mark(inputs: PlanInput, targets: dict[str, TargetState], name: str, scope: Scope) -> None:
    target = targets.get(name, TargetState(id=name))
    targets[name] = debounce.mark(target, scope, inputs.now)


def _mark_all(inputs: PlanInput, targets: dict[str, TargetState]) -> None:
    for name in {*targets, *(share.id for share in inputs.discovery.shares)}:
        _mark(inputs, targets, name, EVERYTHING)


def _appear(inputs: PlanInput, targets: dict[str, TargetState]) -> None:
    """Everything of a new share is dirty, since it has missed earlier events. The same holds for a share
    whose location changed and, with resync on start, for all shares in the first pass."""
    before = {target.id for target in inputs.targets}
    for share in inputs.discovery.shares:
        target = targets.get(share.id, TargetState(id=share.id))
        if share.id not in before and (not inputs.first or inputs.resync_on_start):
            target = debounce.mark(target, EVERYTHING, inputs.now)
        known = share.id in before and not share.arn
        targets[share.id] = match.located(target, share.location, inputs.now, known=known)


def _ask(inputs: PlanInput, targets: dict[str, TargetState], result: _Draft) -> None:
    """W1 of the requests by annotation. Until targets were looked for they stay in the annotation: some may
    come, or be gone, by a change of the spec."""
    requests, discovery, shares = inputs.requests, inputs.discovery, inputs.discovery.by_id
    if not requests.any or not discovery.looked:
        return
    places = {
        name: annotation_requests.location_of(target, shares.get(name), bucket=inputs.idempotent)
        for name, target in targets.items()
        if not discovery.gone(name)
    }
    by_key = any(share.by_key for share in discovery.shares)
    scopes = annotation_requests.scopes_of(requests, places, whole=inputs.whole, by_key=by_key)
    for name, scope in scopes.items():
        targets[name] = annotation_requests.ask(targets[name], scope, inputs.now)
    result.requested = sum(map(bool, scopes.values()))


def _leave(inputs: PlanInput, targets: dict[str, TargetState]) -> None:
    """Drop the record of a share that is gone for certain: if the share comes back, it is new and stale. A
    record that is dirty or claimed stays, and its scope becomes everything: until the share comes back, its
    events match no share and are deleted."""
    for target in list(targets.values()):
        if not inputs.discovery.gone(target.id):
            continue
        if target.dirty is None and target.claim is None:
            del targets[target.id]
        else:
            targets[target.id] = debounce.mark(target, EVERYTHING, inputs.now)


def _admit(inputs: PlanInput, targets: Mapping[str, TargetState]) -> PlanInput:
    """The input without shares for which the record has no room: their events wait in the queue."""
    discovery = inputs.discovery
    fresh = [share.id for share in discovery.shares if share.id not in targets]
    turned_away = set(fresh[max(MAX_TARGETS - len(targets), 0) :])
    if not turned_away:
        return inputs
    admitted = tuple(share for share in discovery.shares if share.id not in turned_away)
    return replace(inputs, discovery=replace(discovery, complete=False, shares=admitted))


# ---------------------------------------------------------------- time


def _time(inputs: PlanInput, targets: dict[str, TargetState]) -> None:
    """Abandoned claims, and refreshes without a completion in time."""
    for target in list(targets.values()):
        after = timing.released(target, inputs.options, inputs.now)
        if _given_up_at(inputs, after) <= inputs.now:
            after = debounce.overdue(after, inputs.options, inputs.now)
        after = timing.resynced(after, inputs.options, inputs.now)
        lost = _abandoned_at(inputs, after) <= inputs.now and not _stays(inputs, after)
        if after.claim is not None and lost:
            why = "the process that made the call ended before it was answered"
            backoff = Backoff(inputs.options, inputs.now, 0.0)
            after = debounce.failed(after, after.claim.id, CallError(debounce.UNKNOWN, why), backoff)
        targets[target.id] = after


def _given_up_at(inputs: PlanInput, target: TargetState) -> float:
    """When the wait for the end of its refresh is over. While nothing is received, and until the completion
    queue was empty once, an end may lie there that came in time. A queue that cannot be read must not hold
    up the target for ever, so that wait has a bound."""
    options, due = inputs.options, debounce.completion_due(target, inputs.options, inputs.now)
    if not options.tracked or inputs.idempotent:
        return due
    if inputs.suspended:
        return NEVER
    patience = min(options.completion_timeout, max(options.assume_after, options.min_interval))
    return max(due, inputs.now + patience - inputs.listened)


def _abandoned_at(inputs: PlanInput, target: TargetState) -> float:
    """When its claim counts as abandoned: at once if it is of our earlier run, or its call has ended."""
    held = target.claim
    if held is None or held.id in inputs.running - {result.claim_id for result in inputs.results}:
        return NEVER
    if held.owner == inputs.owner:
        return inputs.now
    age = inputs.times.get(target.id, TargetTimes()).claim_age
    return inputs.now + max(inputs.options.claim_lost - age, 0.0)


def _stays(inputs: PlanInput, target: TargetState) -> bool:
    """Whether a claim is executed again as it is: merged back, its effect could come twice."""
    return inputs.idempotent and not inputs.discovery.gone(target.id)


def _again_at(inputs: PlanInput, target: TargetState) -> float:
    """When this process may take a claim that stays."""
    age = inputs.times.get(target.id, TargetTimes()).claim_age
    backoff = timing.again_at(target, inputs.options, age, inputs.now)
    return max(_abandoned_at(inputs, target), backoff)


def _resume(inputs: PlanInput, targets: dict[str, TargetState], result: _Draft) -> None:
    """W2': claims that stay without a process at work. Each has its slot still."""
    if not inputs.idempotent:
        return
    for share in inputs.discovery.shares:
        target = targets[share.id]
        if share.ready and _again_at(inputs, target) <= inputs.now:
            after = targets[share.id] = debounce.resume(target, inputs.owner)
            if after.claim is not None:
                result.calls.append((share, after.claim))


def _claim(inputs: PlanInput, targets: dict[str, TargetState], result: _Draft) -> None:
    """W2: claims due targets while slots are free, the longest waiting first."""
    shares = {share.id: share for share in inputs.discovery.shares if share.ready}
    free = dict(inputs.free)
    others = timing.others(targets.values(), inputs.discovery.shares, inputs.rivals, inputs.limit)
    due = [
        (timing.in_line_since(target, inputs.now), target.id, start)
        for target in targets.values()
        if target.id in shares
        and (start := _start(inputs, target, result.matches.found, others)) is not None
        and start <= inputs.now
        and target.claim is None
        and target.in_flight is None
    ]
    reduced = 0
    for _, name, start in sorted(due):
        names = _to_reduce(targets[name], inputs.options)
        if reduced and reduced + names > REDUCED_NAMES:
            result.put_off = True
            return
        free[shares[name].group] = left = free.get(shares[name].group, 1) - 1
        if left < 0:
            continue
        reduced += names
        call = NewCall(h10(inputs.pass_id, name), inputs.owner, shares[name].endpoint)
        waited = min(inputs.now - start, inputs.times.get(name, TargetTimes()).dirty_for)
        contention = Contention(waited, others[name])
        after = debounce.claim(targets[name], call, inputs.options, inputs.now, contention)
        targets[name] = after
        if after.claim is not None:
            result.calls.append((shares[name], after.claim))


def _to_reduce(target: TargetState, options: DebounceOptions) -> int:
    """Names of the scope that its first claim reduces to few calls; 0 = they fit into one, or nearly."""
    if target.dirty is None or target.dirty.closed:
        return 0
    names = len(target.dirty.scope.folders) + len(target.dirty.scope.trees)
    return names if names > options.max_folders else 0


def _start(
    inputs: PlanInput, target: TargetState, with_events: Collection[str], others: Mapping[str, float]
) -> float | None:
    times = inputs.times.get(target.id, TargetTimes())
    if target.id in with_events:
        times = replace(times, last_event=inputs.received)
    start = timing.start_at(target, inputs.options, times, inputs.now, others.get(target.id, 0.0))
    held = inputs.held.get(target.id)
    return max(start, inputs.now + held) if start is not None and held else start


def _scheduled(inputs: PlanInput, targets: tuple[TargetState, ...], result: _Draft) -> Plan:
    """Phases, and when to look again."""
    starts: dict[str, float] = {}
    phases: dict[str, Phase] = {}
    times: list[float] = []
    others = timing.others(targets, inputs.discovery.shares, inputs.rivals, inputs.limit)
    for target in targets:
        start = _start(inputs, target, result.matches.found, others)
        phases[target.id] = timing.phase_of(target, start, inputs.now)
        if start is not None:
            starts[target.id] = start
            times.append(start)
        times.append(_given_up_at(inputs, target))
        if target.dirty is None and (resync := timing.resync_at(target, inputs.options)) is not None:
            times.append(resync)
        stays = _stays(inputs, target)
        times.append(_again_at(inputs, target) if stays else _abandoned_at(inputs, target))
    soonest = min((at for at in times if inputs.now < at < NEVER), default=0.0)
    return Plan(
        targets=targets,
        phases=phases,
        starts=starts,
        calls=tuple(result.calls),
        done=tuple(result.done),
        requested=result.requested,
        returned=tuple(result.returned),
        unclaimed=tuple(result.unclaimed),
        matches=result.matches,
        wake=inputs.now if result.put_off else soonest,
    )
