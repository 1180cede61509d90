"""What Enforce changes now, what it waits for, and what stops it.

Pure: what was found and what the process remembers (Desk) -> Enforced. Gates stand in the order in which
they are told; behind the last one the canary, the policy's own cap and our share of EC2's bucket say how
many.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import BreakerStatus, CanaryStatus, Loosening
from caretaker.api.times import format_time, parse_time
from caretaker.imds.canary import State as CanaryState
from caretaker.imds.canary import Trial, soaked_at, step
from caretaker.imds.drift import Change
from caretaker.imds.guard import Held, ec2_name, held, parameters
from caretaker.imds.hands import Hand, advance, overdue
from caretaker.imds.judge import STOPPED, Seen, State, Verdict
from caretaker.imds.merge import Wanted

BATCH: Final = 100  # changes in one pass
AHEAD: Final = 200  # instances that one call reads again
# Between two passes while there is more to change: each may cost a status write.
PASS_SECONDS: Final = 3.0
POLL_SECONDS: Final = 3.0
# Until a canary's node is looked at again: that a Node has become Ready starts no pass.
READY_SECONDS: Final = 15.0


class Found(msgspec.Struct, frozen=True, gc=False):
    """One instance that the policy means."""

    node: str
    instance: str
    region: str
    ready: bool  # the Node's Ready condition
    seen: Seen | None
    verdict: Verdict
    wanted: Mapping[str, Wanted]


class Desk(msgspec.Struct, frozen=True):
    """What Enforce works with, beside what was found.

    now      seconds of a clock that never goes back; wall: Unix seconds, of which `tick` are one of the
    others hands    instance -> Hand
    others   instances for which EC2 has a change of another policy that was not seen applied
    blind    not all regions could be asked: what is not there may be there all the same
    free     region -> how many changes EC2's bucket allows now; cap: how many the policy's own does
    wait     seconds until both allow one
    stopped  (reason, message) of what keeps it from changing anything: a permission, an account's policy
    """

    me: str
    generation: int
    now: float
    wall: float
    tick: float = 1.0
    allowed: tuple[Loosening, ...] = ()
    canary_instances: int = 1
    canary_soak: float = 120.0
    max_drift_percent: int = 100
    stop_after: int = 5
    pending_timeout: float = 120.0
    resumed_at: float = 0.0  # Unix seconds; what stopped before it is to go on
    canary: CanaryStatus | None = None
    breaker: BreakerStatus | None = None
    hands: Mapping[str, Hand] = {}
    others: Collection[str] = ()
    blind: bool = False
    failures: int = 0  # in a row
    last_failure: str = ""
    free: Mapping[str, int] = {}
    cap: int = BATCH
    wait: float = 0.0
    slowed: bool = False
    stopped: tuple[str, str] | None = None
    changed: Mapping[str, float] = {}  # instance -> when it was changed, in Unix seconds
    proved: frozenset[str] | None = None  # instances whose probe found what it should; None: none is made


class Write(msgspec.Struct, frozen=True):
    """One call."""

    instance: str
    region: str
    options: Mapping[str, Any]  # by EC2's names


class Enforced(msgspec.Struct, frozen=True):
    """`left`: instances that are still to be changed, these writes included. `hands`: those that are other
    than they were. `wake`: seconds until a pass may do more; None = at the resync."""

    writes: tuple[Write, ...] = ()
    ahead: tuple[tuple[str, str], ...] = ()  # (region, instance) of these and the next ones, to be read again
    left: int = 0
    phase: str = Reason.ENFORCED  # a reason: what it does, or waits for
    message: str = ""
    hold: bool = False  # nothing is changed until somebody acts, or EC2 permits
    canary: CanaryStatus | None = None
    breaker: BreakerStatus | None = None
    closed: bool = False  # the breaker was: failures count anew
    hands: Mapping[str, Hand] = {}
    held: tuple[tuple[str, Held], ...] = ()  # (instance, ...) changes that are not made
    pending: int = 0
    failing: int = 0  # of `left`: the last try failed
    fighting: int = 0
    blocked: tuple[str, ...] = ()  # what EC2 said of each that the account's own policy keeps as it is
    slowed: bool = False
    wake: float | None = None


def told(found: Found, hand: Hand | None) -> Found:
    """With what is known of its tries: failed in place of drifted."""
    if hand is None or found.verdict.state not in ("drifted", "pending"):
        return found
    reason, message = hand.trouble
    if hand.fighting:
        reason, message = Reason.FIGHTING, f"another hand set it back {len(hand.reversals)} times in an hour"
    if not reason:
        return found
    verdict = msgspec.structs.replace(found.verdict, state="failed", reason=reason, message=message)
    return msgspec.structs.replace(found, verdict=verdict)


def enforce(every: Sequence[Found], desk: Desk) -> Enforced:
    """See Enforced."""
    items = [_item(one, desk) for one in every if _concerns(one, desk)]
    cases = sorted((one for one in items if one.changes_now(desk)), key=lambda one: one.order)
    breaker, closed = _breaker(desk)
    canary = step(desk.canary, _trial(every, items, cases, desk))
    base = Enforced(
        left=len(cases),
        canary=canary,
        breaker=breaker,
        closed=closed,
        hands={one.found.instance: one.hand for one in items if one.hand != _hand(desk, one.found)},
        held=tuple((one.found.instance, why) for one in items for why in one.held),
        pending=sum(one.waits for one in items),
        failing=sum(bool(one.hand.trouble[0]) or one.hand.fighting for one in cases),
        fighting=sum(one.hand.fighting for one in items if one.state == "drifted"),
        blocked=tuple(
            one.hand.trouble[1]
            for one in items
            if one.state == "drifted" and one.hand.trouble[0] == Reason.BLOCKED_BY_ACCOUNT_POLICY
        ),
        slowed=desk.slowed,
    )
    stop = _stop(every, cases, breaker, desk)
    if stop is not None:
        held_up = msgspec.structs.replace(base, phase=stop[0], message=stop[1], hold=True)
        return msgspec.structs.replace(held_up, wake=_wake(held_up, (), desk))
    phase, message = _phase(base, desk)
    writes = _chosen(cases, canary, desk)
    ahead = tuple((one.found.region, one.found.instance) for one in cases[:AHEAD]) if writes else ()
    made = msgspec.structs.replace(base, writes=writes, ahead=ahead, phase=phase, message=message)
    return msgspec.structs.replace(made, wake=_wake(made, cases, desk))


# ---------------------------------------------------------------- what was found


_NEW: Final = Hand()


def _hand(desk: Desk, one: Found) -> Hand:
    return desk.hands.get(one.instance) or _NEW


def _concerns(one: Found, desk: Desk) -> bool:
    """Not most instances, at most times."""
    return one.verdict.state in ("drifted", "pending") or one.instance in desk.hands


class _Item(msgspec.Struct, frozen=True, gc=False):
    """An instance that is looked at closer. `state`: as far as this policy may change it; `hand` as it is
    now."""

    found: Found
    state: State
    hand: Hand
    held: tuple[Held, ...]

    @property
    def order(self) -> tuple[int, str]:
        """Failing ones last."""
        return (self.hand.failures, self.found.node)

    @property
    def waits(self) -> bool:
        """Whether EC2 is at it, and may still apply it."""
        if self.state == "pending":
            return self.hand.trouble[0] != Reason.NOT_APPLIED
        return self.state == "drifted" and _under_way(self.found)

    def changes_now(self, desk: Desk) -> bool:
        """Whether a call is to be made, now or when its backoff is over. What EC2 has not applied yet is not
        touched, but once more when it has been at it for too long."""
        if self.state == "drifted":
            return not _under_way(self.found)
        late = overdue(self.hand, desk.now, desk.pending_timeout)
        return self.state == "pending" and late and not self.hand.resent

    def options(self, me: str, seen: Seen) -> Mapping[str, Any]:
        """What is sent."""
        return parameters(self.found.wanted, me, {why.change.field for why in self.held}, seen)


def _item(one: Found, desk: Desk) -> _Item:
    state, hand = one.verdict.state, _hand(desk, one)
    stays: tuple[Held, ...] = ()
    if one.seen is not None and state == "drifted":
        mine = [change for change in one.verdict.changes if change.policy == desk.me]
        stays = tuple(why for change in mine if (why := held(change, one.seen, desk.allowed)) is not None)
        if len(stays) < len(mine):
            return _Item(one, state, _drifted(one, one.seen, hand, mine, stays, desk), stays)
        # nothing is left that this policy may change
        state = "pending" if _under_way(one) else "compliant"
    others = one.instance in desk.others
    return _Item(one, state, advance(hand, state, desk.now, desk.pending_timeout, others=others), stays)


def _drifted(
    one: Found, seen: Seen, hand: Hand, mine: Iterable[Change], stays: Iterable[Held], desk: Desk
) -> Hand:
    """With what would be sent, where it matters that it is what was sent before."""
    if not hand.options:
        return advance(hand, "drifted", desk.now, desk.pending_timeout)
    leave = {why.change.field for why in stays}
    differs = [ec2_name(change.field) for change in mine if change.field not in leave]
    options = parameters(one.wanted, desk.me, leave, seen)
    return advance(hand, "drifted", desk.now, desk.pending_timeout, options, differs)


def _under_way(one: Found) -> bool:
    """A change of a stopped instance comes into force when it starts: that is not waited for."""
    return one.seen is not None and one.seen.pending and one.seen.state not in STOPPED


# ---------------------------------------------------------------- gates


def _breaker(desk: Desk) -> tuple[BreakerStatus | None, bool]:
    """(the breaker if it is open, whether it has just been closed)."""
    before = desk.breaker
    if before is not None:
        opened = parse_time(before.opened_at) or 0.0
        if before.generation == desk.generation and desk.resumed_at <= opened:
            return before, False
        return None, True
    if desk.failures < desk.stop_after:
        return None, False
    # What was resumed before, by a clock that may be ahead, says nothing of these failures.
    stamp = format_time(max(desk.wall, math.ceil(desk.resumed_at)))
    return BreakerStatus(desk.generation, desk.failures, stamp, desk.last_failure[:1024]), False


def _stop(
    every: Sequence[Found], cases: Sequence[_Item], breaker: BreakerStatus | None, desk: Desk
) -> tuple[str, str] | None:
    """Why nothing is changed."""
    if desk.stopped is not None:
        return desk.stopped
    if breaker is not None:
        return Reason.BREAKER_OPEN, (
            f"{breaker.failures} changes failed in a row, the last one with: {breaker.message}; mend it and "
            "run `caretaker resume imdspolicy`, or change the spec"
        )
    judged = sum(one.verdict.state in ("compliant", "drifted", "pending") for one in every)
    drifted = sum(one.verdict.state == "drifted" for one in every)
    if cases and drifted * 100 > desk.max_drift_percent * judged:
        return Reason.DRIFT_TOO_WIDE, (
            f"{drifted} of {judged} instances differ, which is more than spec.safety.maxDriftPercent "
            f"{desk.max_drift_percent} allows to be changed: see that the policy means what it should, then "
            "raise it"
        )
    return None


def _trial(every: Iterable[Found], items: Iterable[_Item], cases: Iterable[_Item], desk: Desk) -> Trial:
    candidates = [one.found.instance for one in cases if _fit(one.found) and one.state == "drifted"]
    wanted = {*(desk.canary.instances if desk.canary is not None else ()), *candidates}
    states: dict[str, CanaryState] = {
        one.instance: _standing(one, one.verdict.state, desk) for one in every if one.instance in wanted
    }
    states |= {
        one.found.instance: _standing(one.found, one.state, desk)
        for one in items
        if one.found.instance in wanted
    }
    if desk.blind:
        for one in wanted - states.keys():
            states[one] = "under way"
    return Trial(desk.generation, desk.canary_instances, desk.canary_soak, states, candidates, desk.wall)


def _fit(one: Found) -> bool:
    """Whether a change of it would show soon, to somebody who looks at its node."""
    return one.ready and one.seen is not None and one.seen.state == "running"


def _standing(one: Found, state: State, desk: Desk) -> CanaryState:
    if state in ("drifted", "pending"):
        return "to change"
    if state == "compliant":
        proved = desk.proved is None or one.instance in desk.proved
        return "done" if one.ready and proved else "under way"
    return "under way" if state == "unknown" else "gone"


def _only(canary: CanaryStatus | None, desk: Desk) -> Collection[str] | None:
    """The instances that may be changed: until it has passed the canary's alone; None = all."""
    if not desk.canary_instances or (canary is not None and canary.phase == "Passed"):
        return None
    return canary.instances if canary is not None and canary.phase == "Changing" else ()


def _chosen(cases: Iterable[_Item], canary: CanaryStatus | None, desk: Desk) -> tuple[Write, ...]:
    """As many as are free."""
    only = _only(canary, desk)
    left, batch = dict(desk.free), min(desk.cap, BATCH)
    writes: list[Write] = []
    for case in cases:
        one = case.found
        fits = only is None or one.instance in only
        if one.seen is None or not fits or not case.hand.not_before <= desk.now or len(writes) >= batch:
            continue
        if left.get(one.region, 0) > 0:
            left[one.region] -= 1
            writes.append(Write(one.instance, one.region, case.options(desk.me, one.seen)))
    return tuple(writes)


# ---------------------------------------------------------------- what is told


def _phase(base: Enforced, desk: Desk) -> tuple[str, str]:
    if not base.left and not base.pending:
        return Reason.ENFORCED, "nothing is left to change"
    said = f"{base.left} instance(s) left to change, {base.pending} not applied yet"
    canary = base.canary
    if canary is not None and canary.phase != "Passed" and base.left:
        names = ", ".join(canary.instances[:3])
        if canary.phase == "Soaking":
            until = format_time(soaked_at(canary, desk.canary_soak))
            return (
                Reason.CANARY_SOAKING,
                f"canary {names} stands until {until}, then the others follow; {said}",
            )
        proved = (
            "" if desk.proved is None else ", and stands once a probe finds what is expected: see Verified"
        )
        return Reason.CANARY_CHANGING, f"canary {names} comes first{proved}; {said}"
    if canary is None and desk.canary_instances and base.left:
        return Reason.CANARY_CHANGING, f"no instance on a Ready node is there to be the canary; {said}"
    return Reason.CHANGING, said


def _wake(base: Enforced, cases: Iterable[_Item], desk: Desk) -> float | None:
    """Seconds until something is due without any event."""
    only = _only(base.canary, desk)
    mine = [case for case in cases if only is None or case.found.instance in only]
    later = [case.hand.not_before - desk.now for case in mine]
    times = [seconds for seconds in later if seconds > 0]
    if base.pending or base.writes:
        times.append(POLL_SECONDS)
    if base.canary is not None and base.canary.phase == "Soaking" and base.left:
        times.append((soaked_at(base.canary, desk.canary_soak) - desk.wall) / desk.tick)
    elif any(seconds <= 0 for seconds in later):
        times.append(max(desk.wait, PASS_SECONDS))
    elif not times and base.left and only is not None and not base.hold:
        times.append(READY_SECONDS)
    return max(min(times), 0.1) if times else None
