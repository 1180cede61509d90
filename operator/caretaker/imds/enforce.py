"""The decisions of Enforce: changes, waits and stops.

Pure: instances and the state of the process (EnforceInput) -> Enforced. Gates are checked in the order in
which they are reported. Behind the last gate the canaries, the policy's rate and our part of EC2's limit
decide the number of changes.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from caretaker.api.conditions import BreakerReason
from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import BreakerStatus, CanaryStatus, ChangedGroup, GroupCanary
from caretaker.api.times import format_time
from caretaker.imds.canary import step
from caretaker.imds.canary_record import Fault, Record, status
from caretaker.imds.cases import Case, Cases, attempt_of, concerns
from caretaker.imds.change_attempts import NEW, ChangeAttempt
from caretaker.imds.change_state import runs
from caretaker.imds.choice import Choice, Write, able, asks, choose, covered, full, has_room, joins, restore
from caretaker.imds.drift import change_of
from caretaker.imds.enforce_input import WATCH_SECONDS, CheckedInstance, EnforceInput, HeldValues, recorded
from caretaker.imds.passed import held_by_others
from caretaker.imds.safety_checks import Blocked
from caretaker.imds.soak import awaits, floor_minutes, soak, soaked_at, watched_until
from caretaker.imds.stops import cuts_own, too_wide

AHEAD: Final = 200  # instances that one call reads
# Between two passes while changes are left: each pass may write status.
PASS_SECONDS: Final = 3.0
POLL_SECONDS: Final = 3.0
# Between two passes without an eligible canary: a Node that becomes Ready starts no pass.
READY_SECONDS: Final = 15.0
SOON_SECONDS: Final = 0.1  # the shortest time between two passes


class Enforced(msgspec.Struct, frozen=True):
    """`left`: instances that are still to be changed, including these writes. `attempts`: the new ones.
    `wake`: seconds until the next pass; None = at the resync."""

    writes: tuple[Write, ...] = ()
    asks: tuple[Write, ...] = ()  # for the dry run
    # (region, instance) to read again first, because the last read is too old.
    ahead: tuple[tuple[str, str], ...] = ()
    left: int = 0
    phase: str = Reason.ENFORCED  # reason of the conditions
    message: str = ""
    hold: bool = False  # no instance is changed until the cause is removed
    canary: CanaryStatus | None = None
    changed: tuple[ChangedGroup, ...] = ()
    breaker: BreakerStatus | None = None
    closed: bool = False  # the breaker was closed: failures start at 0
    attempts: Mapping[str, ChangeAttempt] = {}
    blocked: tuple[tuple[str, Blocked], ...] = ()  # (instance, ...) changes that are not made
    pending: int = 0
    failing: int = 0  # of `left`: the last attempt failed
    fighting: int = 0
    held: HeldValues = {}  # the values of other policies
    account_blocked: tuple[str, ...] = ()  # EC2's error for each instance that an account policy blocks
    slowed: bool = False
    wake: float | None = None

    @property
    def nodes(self) -> frozenset[str]:
        """The Nodes of canaries and of recently changed instances."""
        canaries = self.canary.groups if self.canary is not None else ()
        return frozenset(one.node for group in (*canaries, *self.changed) for one in group.instances)


def enforce(
    every: Sequence[CheckedInstance], inputs: EnforceInput, elsewhere: Sequence[CheckedInstance] = ()
) -> Enforced:
    """See Enforced. `elsewhere`: instances in status that the policy no longer selects."""
    changed = recorded(inputs.canary, inputs.watched)
    known = Cases(inputs)
    items = [known.of(one) for one in every if concerns(one, inputs)]
    cases = _ordered((one for one in items if one.changes_now(inputs)), inputs)
    # Of two Nodes with one instance the one that is not Ready counts.
    mine = (one for one in (*elsewhere, *every) if one.instance in changed)
    instances = {one.instance: one for one in sorted(mine, key=lambda one: not one.ready)}
    blocked = {
        one.checked.instance: [change_of(why.change) for why in one.blocked] for one in items if one.blocked
    }
    record = step(instances, blocked, inputs, able(cases, inputs), every)
    breaker, closed = _breaker(inputs, record.faults)
    stop = _stop(every, cases, record, breaker, inputs)
    follow = covered(cases, record, inputs)
    if stop is None:
        unknown = {one.group for one in (*elsewhere, *every) if one.result.state == "unknown"}
        unknown |= {one.checked.group for one in cases if inputs.ungrouped_at(one.checked)}
        choice = choose(cases, follow, record, inputs, unknown)
    elif breaker is not None and inputs.on_failure == "Restore" and inputs.stopped is None:
        choice = restore(instances, record, inputs)
    else:
        choice = Choice(record)
    pending = sum(one.waits for one in items)
    phase, message = stop or _phase(pending, cases, follow, choice.record, inputs)
    tried = [one for one in items if one.attempt is not NEW]
    made = Enforced(
        writes=choice.writes,
        asks=asks(cases, choice.writes, inputs) if choice.writes or inputs.stopped is not None else (),
        ahead=_ahead(cases, choice, instances, inputs),
        left=len(cases),
        phase=phase,
        message=message,
        hold=stop is not None or phase == Reason.NOT_PROBEABLE,
        canary=status(choice.record, inputs),
        changed=choice.record.changed,
        held=held_by_others(every, inputs),
        breaker=breaker,
        closed=closed,
        attempts={
            one.checked.instance: one.attempt
            for one in items
            if one.attempt is not (before := attempt_of(inputs, one.checked)) and one.attempt != before
        },
        blocked=tuple((one.checked.instance, why) for one in items for why in one.blocked),
        pending=pending,
        failing=sum(
            bool(one.attempt.trouble[0]) or one.attempt.fighting for one in cases if one.attempt is not NEW
        ),
        fighting=sum(one.attempt.fighting for one in tried if one.state == "drifted"),
        account_blocked=tuple(
            one.attempt.trouble[1]
            for one in tried
            if one.state == "drifted" and one.attempt.trouble[0] == Reason.BLOCKED_BY_ACCOUNT_POLICY
        ),
        slowed=inputs.slowed,
    )
    return msgspec.structs.replace(made, wake=_wake(made, cases, follow, choice, inputs))


def _ordered(cases: Iterable[Case], inputs: EnforceInput) -> list[Case]:
    """Those whose dry run EC2 allowed first, failed ones last. A Node that is being drained comes late: its
    soak shows little, and it is about to go."""
    return sorted(
        cases,
        key=lambda one: (
            one.checked.instance not in inputs.first,
            one.attempt.failures,
            one.checked.cordoned,
            one.checked.node,
        ),
    )


def _ahead(
    cases: Iterable[Case], choice: Choice, instances: Mapping[str, CheckedInstance], inputs: EnforceInput
) -> tuple[tuple[str, str], ...]:
    """Instances whose last read is too old for these writes; with them the next ones, to save calls."""
    old = [one for one in choice.read if one.observed is not None and not inputs.fresh(one.observed)]
    if choice.writes or choice.record.stale:
        old += [one for one in instances.values() if one.observed is not None and _unwatched(one, inputs)]
    old += choice.record.stale
    if not old:
        return ()
    ahead = dict.fromkeys((one.region, one.instance) for one in (*choice.read, *old))
    later = ((one.checked.region, one.checked.instance) for one in cases)
    for one in later:
        if len(ahead) >= AHEAD:
            break
        ahead[one] = None
    return tuple(ahead)


def _unwatched(one: CheckedInstance, inputs: EnforceInput) -> bool:
    ended = one.result.state in ("gone", "unknown", "skipped")
    return not ended and one.observed is not None and not inputs.fresh(one.observed, WATCH_SECONDS)


# ---------------------------------------------------------------- gates


def _breaker(inputs: EnforceInput, faults: Sequence[Fault]) -> tuple[BreakerStatus | None, bool]:
    """(the open breaker or None, whether it has just been closed)."""
    before = inputs.breaker
    if before is not None and not inputs.closes:
        return before, False
    closed = before is not None
    fault = faults[0] if faults else None
    if fault is None and not closed:
        fault = _failures(inputs)
    if fault is None:
        return None, closed
    # An earlier resume-at from a clock that is ahead must not close this breaker.
    stamp = format_time(max(inputs.wall, math.ceil(inputs.resumed_at)))
    message, count = (
        fault.message[:1024],
        inputs.failures if fault.reason == BreakerReason.CHANGES_FAILED else 0,
    )
    return BreakerStatus(
        inputs.generation, count, stamp, message, fault.reason, fault.instance, fault.node
    ), closed


def _failures(inputs: EnforceInput) -> Fault | None:
    """Faults of changes, which the process remembers."""
    instance, message = inputs.denied
    if instance:
        return Fault(BreakerReason.CHANGE_DENIED, instance, "", f"instance {instance}: {message}")
    if inputs.failures >= inputs.stop_after:
        text = f"{inputs.failures} changes failed in a row; the last error is: {inputs.last_failure}"
        return Fault(BreakerReason.CHANGES_FAILED, "", "", text)
    return None


def _stop(
    every: Sequence[CheckedInstance],
    cases: Sequence[Case],
    record: Record,
    breaker: BreakerStatus | None,
    inputs: EnforceInput,
) -> tuple[str, str] | None:
    """Why no instance is changed."""
    if inputs.stopped is not None:
        return inputs.stopped
    if breaker is not None:
        return Reason.BREAKER_OPEN, (
            f"{breaker.reason}: {breaker.message}. No instance is changed until you run "
            f"`caretaker resume imdspolicy {inputs.me}` or change the spec"
        )
    if unsettled := _unsettled(record):
        return unsettled
    if not cases:
        return None
    if cut := cuts_own(cases, inputs):
        return cut
    return inputs.unproved if inputs.unproved[0] else too_wide(every, inputs)


def _unsettled(record: Record) -> tuple[str, str] | None:
    """(reason, message) if a changed instance stops further changes."""
    if record.unready:
        return Reason.NODE_NOT_READY, _unready(record)
    if not record.unreported:
        return None
    one = record.unreported[0]
    why = one.result.message or "EC2 has not confirmed its group"
    return Reason.NOT_ASKED, (
        f"It is unknown whether instance {one.instance} (node {one.node}) still has its change: {why}. No "
        "instance is changed until EC2 reports it"
    )


def _unready(record: Record) -> str:
    one = record.unready[0]
    more = f" and {len(record.unready) - 1} more" if len(record.unready) > 1 else ""
    return (
        f"Node {one.node} is not Ready after its instance {one.instance} was changed{more}. No instance is "
        "changed until the Node is Ready; if the change broke it, restore the instance's options"
    )


# ---------------------------------------------------------------- messages


def _phase(
    pending: int,
    cases: Sequence[Case],
    follow: Collection[str],
    record: Record,
    inputs: EnforceInput,
) -> tuple[str, str]:
    left = len(cases)
    running = [one for one in record.canaries.values() if one.phase != "Failed"]
    if not (left or pending or running):
        return Reason.ENFORCED, "no instance is left to change"
    message = f"{left} instance(s) left to change, {pending} pending in EC2"
    if follow or not (left or running):
        return Reason.CHANGING, message
    if not running:
        return _no_canary(cases, full(record, inputs) + message)
    first = min(
        running, key=lambda one: (bool(_unprobed(one, inputs)), one.phase == "Soaking", one.kind, one.name)
    )
    more = f"; {len(running) - 1} more group(s) have a canary" if len(running) > 1 else ""
    if why := _unprobed(first, inputs):
        return (
            Reason.NOT_PROBEABLE,
            f"{_names(first)} has soaked, and cannot be probed: {why}{more}; {message}",
        )
    if first.phase == "Soaking":
        return Reason.CANARY_SOAKING, f"{_names(first)} {_until(first, inputs)}{more}; {message}"
    proved = "" if inputs.proved is None else ", and has to pass the probe afterwards"
    return Reason.CANARY_CHANGING, f"{_names(first)} is being changed{proved}{more}; {message}"


def _no_canary(cases: Sequence[Case], message: str) -> tuple[str, str]:
    """Why there is no canary."""
    if any(case.fit for case in cases):
        return Reason.CANARY_CHANGING, f"No canary has been chosen yet; {message}"
    one = next((case.checked for case in cases if case.checked.provable), None)
    if one is None:
        first = cases[0].checked
        why = f"instance {first.instance} (node {first.node}): {first.result.message}; {message}"
        return Reason.NOT_PROBEABLE, why
    why = "its Node is not Ready" if runs(one) else "it is not running"
    return (
        Reason.CANARY_CHANGING,
        f"No instance is eligible as a canary: {one.instance} (node {one.node}): {why}; {message}",
    )


def _names(canary: GroupCanary) -> str:
    names = ", ".join(one.instance for one in canary.instances[:3])
    of = f" of {canary.kind}/{canary.name}" if canary.name else ""
    return f"Canary {names}{of}"


def _unprobed(canary: GroupCanary, inputs: EnforceInput) -> str:
    """Why no probe can verify the canary; "" = one can, or the soak goes on."""
    if canary.phase != "Soaking" or inputs.proved is None or inputs.wall < soaked_at(canary, inputs):
        return ""
    left = (one.instance for one in canary.instances if one.instance not in inputs.proved)
    return next((why for one in left if (why := inputs.unprobed.get(one, ""))), "")


def _until(canary: GroupCanary, inputs: EnforceInput) -> str:
    if inputs.wall >= (end := soaked_at(canary, inputs)):
        return f"has soaked, and waits for {awaits(canary, inputs)}"
    why = ""
    if soak(canary.changes, inputs) > inputs.canary_soak:
        minutes = floor_minutes(canary.changes)
        why = f" (a closing change soaks at least {minutes} min: clients cache credentials)"
    return f"soaks until {format_time(end)}{why}, then the remaining instances are changed"


def _wake(
    base: Enforced, cases: Iterable[Case], follow: Collection[str], choice: Choice, inputs: EnforceInput
) -> float | None:
    """Seconds until the next pass if no event comes before."""
    if base.ahead:
        return SOON_SECONDS
    record = choice.record
    running = any(one.phase != "Failed" for one in record.canaries.values())
    hold = base.hold and not (base.phase == Reason.NOT_PROBEABLE and running)
    mine = [] if hold else _moving(cases, follow, record, inputs)
    later = [case.due(inputs) for case in mine]
    times = [seconds for seconds in later if seconds > 0]
    if base.pending or base.writes:
        times.append(POLL_SECONDS)
    if choice.later is not None or any(seconds <= 0 for seconds in later):
        times.append(max(inputs.wait, PASS_SECONDS, choice.later or 0.0))
    if base.breaker is None:
        ends = [_ends(one, inputs) for one in record.canaries.values() if one.phase == "Soaking"]
        times += [min(seconds, WATCH_SECONDS) for seconds in ends if seconds > 0]
    if (not hold or base.phase == Reason.NODE_NOT_READY) and base.left and not times:
        times.append(min([READY_SECONDS, *(due for case in cases if (due := case.due(inputs)) > 0)]))
    if record.unreported:
        times.append(WATCH_SECONDS)
    watches = (
        watched_until(one, group.changes, inputs) for group in record.changed for one in group.instances
    )
    times += [end - inputs.wall for end in watches if end > inputs.wall]
    return max(min(times), SOON_SECONDS) if times else None


def _ends(canary: GroupCanary, inputs: EnforceInput) -> float:
    if inputs.proved is not None and canary.since == format_time(inputs.wall):
        return POLL_SECONDS  # the next pass requests its probe
    return soaked_at(canary, inputs) - inputs.wall


def _moving(
    cases: Iterable[Case], follow: Collection[str], record: Record, inputs: EnforceInput
) -> list[Case]:
    """Cases whose change may be sent when it is due."""
    changing = {group: one for group, one in record.canaries.items() if one.phase == "Changing"}
    members = {one.instance for canary in changing.values() for one in canary.instances}
    open_still = {group for group, one in changing.items() if has_room(one, inputs)}
    return [
        case
        for case in cases
        if case.checked.instance in members
        or case.checked.instance in follow
        or case.checked.group in open_still
        if _moves(case, follow, record, inputs)
    ]


def _moves(case: Case, follow: Collection[str], record: Record, inputs: EnforceInput) -> bool:
    """Whether its change may be sent when it is due."""
    canary = record.canaries.get(case.checked.group)
    if canary is not None and any(one.instance == case.checked.instance for one in canary.instances):
        return canary.phase == "Changing"
    return case.checked.instance in follow or (canary is not None and joins(case, canary, inputs))
