"""The instances that may have been sent a change, and what has become of them. Pure.

A canary belongs to a change: (group, field, from, to). The first instances of a group are changed alone; the
others follow once these have stood the same change.

    Changing  they are being changed; one that EC2 refuses to change, or that another hand changes first,
              gives its place to another
    Soaking   all were read as applied, on Nodes that were Ready all the time since
    Failed    one was lost or set back: the breaker opens, and the next canary is a new one
    passed    the change may be made to the others of the group, which are watched for some minutes after it

What stands in status is all that is known, so that it survives a restart: it was written before the first
call. Times of Nodes are compared for being the same, never ordered.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from caretaker.api.conditions import BreakerReason
from caretaker.api.imds import (
    MAX_CANARY,
    MAX_PASSED,
    CanaryStatus,
    ChangedGroup,
    ChangedInstance,
    FieldChange,
    GroupCanary,
    PassedChange,
)
from caretaker.api.times import format_time, parse_time
from caretaker.imds.desk import FRESH_SECONDS, WATCH_SECONDS, Desk, Found, Group
from caretaker.imds.drift import HOP_LIMIT, closes, text, value
from caretaker.imds.hands import Hand, refused
from caretaker.imds.judge import Seen

# How long a closing change stands at least, in seconds. kubelet and SDKs go on with the credentials that they
# have (docs/spec/imdspolicy.md, "The canary").
FLOORS: Final = {"httpTokens": 900.0, HOP_LIMIT: 900.0, "httpEndpoint": 1800.0}
FLOOR: Final = 300.0
# How long an instance is watched after its change, at most.
WINDOW_SECONDS: Final = 300.0

Standing = Literal["gone", "unknown", "left", "strayed", "differs", "pending", "applied"]
_BACK: Final = frozenset(("strayed", "differs"))
_ORDER: Final = ("Failed", "Changing", "Soaking")


class Fault(msgspec.Struct, frozen=True):
    """What opens the breaker."""

    reason: str
    instance: str
    node: str
    message: str


class Record(msgspec.Struct, frozen=True):
    """What status is to tell.

    faults   what has just failed
    unready  instances whose Nodes were Ready when they were changed, and are not any more
    stale    instances that have to be read again before a canary passes
    """

    canaries: Mapping[Group, GroupCanary] = {}
    passed: Mapping[tuple[Group, FieldChange], PassedChange] = {}
    changed: tuple[ChangedGroup, ...] = ()
    faults: tuple[Fault, ...] = ()
    unready: tuple[ChangedInstance, ...] = ()
    stale: tuple[Found, ...] = ()


def step(found: Mapping[str, Found], held: Mapping[str, Collection[str]], desk: Desk) -> Record:
    """What has become of the instances that stand in status. `found` has them by id, as far as their Nodes
    are there, `held` the fields of each that may not be changed."""
    if not desk.canary_instances:
        return Record()
    made = _Step(found, held, desk)
    for canary in desk.canary.groups if desk.canary is not None else ():
        made.canary(canary)
    for group in desk.watched:
        made.watch(group)
    return made.record()


def status(record: Record, desk: Desk) -> CanaryStatus | None:
    """As it is told; None = nothing has been changed, and nothing is."""
    before, running = desk.canary, [record.canaries[group] for group in sorted(record.canaries)]
    passed = tuple(record.passed.values())[-MAX_PASSED:]
    if not running and not passed:
        return None
    stamp = format_time(desk.wall)
    if running:
        phase = min((one.phase for one in running), key=_ORDER.index)
        names = tuple(one.instance for group in running for one in group.instances)[:MAX_CANARY]
        started, since = min(one.started_at for one in running), max(one.since for one in running)
        return CanaryStatus(desk.generation, names, phase, started, since, tuple(running), passed)
    if before is not None and before.phase == "Passed":
        return msgspec.structs.replace(before, generation=desk.generation, groups=(), passed=passed)
    names, started = (before.instances, before.started_at) if before is not None else ((), stamp)
    return CanaryStatus(desk.generation, names, "Passed", started, stamp, (), passed)


# ---------------------------------------------------------------- changes


def floor(changes: Iterable[FieldChange]) -> float:
    """Seconds for which these have to stand at least."""
    closing = [one for one in changes if closes(value(one, one.before), value(one, one.after))]
    return max((FLOORS.get(one.field, FLOOR) for one in closing), default=0.0)


def soak(changes: Iterable[FieldChange], desk: Desk) -> float:
    """Seconds of the wall for which these have to stand."""
    return max(desk.canary_soak, floor(changes) * desk.tick)


def soaked_at(canary: GroupCanary, desk: Desk) -> float:
    """When it will have stood long enough, in Unix seconds; `since` has lost its fraction of a second."""
    end = (parse_time(canary.since) or 0.0) + 1.0 + soak(canary.changes, desk)
    since, began = desk.soaks.get((canary.kind, canary.name), ("", 0.0))
    if since != canary.since:
        return end  # another process has seen it begin
    # The wall's clock may have been set since.
    return max(end, desk.wall + soak(canary.changes, desk) - (desk.now - began) * desk.tick)


def chosen(one: Found, desk: Desk) -> ChangedInstance:
    """An instance that is going to be sent a change."""
    return ChangedInstance(
        one.instance, one.node, format_time(desk.wall), ready_since=_token(one) if one.ready else ""
    )


def together(groups: Iterable[ChangedGroup]) -> tuple[ChangedGroup, ...]:
    """Those with the same changes in one; of an instance that stands twice there the last counts."""
    by: dict[tuple[str, str, tuple[FieldChange, ...]], dict[str, ChangedInstance]] = {}
    for group in groups:
        by.setdefault((group.kind, group.name, group.changes), {}).update(
            (one.instance, one) for one in group.instances
        )
    return tuple(ChangedGroup(*key, tuple(some.values())) for key, some in by.items() if some)


def standing(one: Found | None, changes: Sequence[FieldChange], me: str) -> Standing:
    """How an instance stands to the changes that it was sent, by the values that EC2 has."""
    if one is None or one.verdict.state == "gone":
        return "gone"
    skipped = one.verdict.state == "skipped"
    if one.verdict.state == "unknown" or (one.seen is None and not skipped):
        return "unknown"
    if skipped or one.seen is None or not all(_wanted(one, change, me) for change in changes):
        return "left"
    return _compared(one.seen, changes)


def _compared(seen: Seen, changes: Sequence[FieldChange]) -> Standing:
    if not seen.confirmed:
        return "pending"
    has = dict(seen.options.given())
    now = [(text(has.get(change.field)), change) for change in changes]
    if any(told not in (change.before, change.after) for told, change in now):
        return "strayed"
    if any(told != change.after for told, change in now):
        return "differs"
    return "pending" if seen.under_way else "applied"


def _wanted(one: Found, change: FieldChange, me: str) -> bool:
    """Whether the policy still wants it of this instance."""
    wanted = one.wanted.get(change.field)
    mine = wanted is not None and wanted.policy == me and not wanted.rivals
    return mine and wanted is not None and text(wanted.value) == change.after


def _token(one: Found) -> str:
    return format_time(one.ready_since)


# ---------------------------------------------------------------- what has become of them


class _Step:
    """Record in the making."""

    def __init__(self, found: Mapping[str, Found], held: Mapping[str, Collection[str]], desk: Desk) -> None:
        self._found = found
        self._held = held
        self._desk = desk
        self._now = format_time(desk.wall)
        self._canaries: dict[Group, GroupCanary] = {}
        self._passed = _still_wanted(desk)
        self._changed: list[ChangedGroup] = []
        self._faults: list[Fault] = []
        self._unready: list[ChangedInstance] = []
        self._stale: list[Found] = []

    def record(self) -> Record:
        """What was found out."""
        return Record(
            self._canaries,
            self._passed,
            together(self._changed),
            tuple(self._faults),
            tuple(self._unready),
            tuple(self._stale),
        )

    # ------------------------------------------------------------ canaries

    def canary(self, canary: GroupCanary) -> None:
        """One group's."""
        after = canary if canary.phase == "Failed" else self._judged(canary)
        if after is not None:
            self._canaries[canary.kind, canary.name] = after

    def _judged(self, canary: GroupCanary) -> GroupCanary | None:
        """None = it is no more: it has passed, or there is nobody left in it."""
        stood = [(one, self._standing(one, canary.changes)) for one in canary.instances]
        fault = next((why for one, state in stood if (why := self._fault(one, state)) is not None), None)
        if fault is not None:
            self._faults.append(fault)
            return msgspec.structs.replace(canary, phase="Failed", since=self._now, message=fault.message)
        if any(state == "left" for _, state in stood):
            self._changed.append(_group(canary, [one for one, _ in stood]))
            return None
        self._changed.append(_group(canary, [one for one, state in stood if state == "strayed"]))
        stay = [
            (self._seen(one, state), state)
            for one, state in stood
            if state != "strayed" and not self._was_refused(one)
        ]
        return self._phase(canary, stay) if stay else None

    def _standing(self, one: ChangedInstance, changes: Sequence[FieldChange]) -> Standing:
        held = self._held.get(one.instance, ())
        if any(change.field in held for change in changes):
            return "left"
        return standing(self._found.get(one.instance), changes, self._desk.me)

    def _fault(self, one: ChangedInstance, state: Standing) -> Fault | None:
        """Why the canary has failed."""
        if state == "gone" and not self._was_refused(one):
            said = "was terminated or its Node was deleted after it was sent the change"
            return _told(BreakerReason.CANARY_LOST, one, said)
        if one.applied and state in _BACK:
            said = "had the change, and then another client reverted it"
            return _told(BreakerReason.CANARY_SET_BACK, one, said)
        if self._desk.on_failure == "Restore" and self._too_long(one):
            said = "has the change, and its Node has not been Ready for spec.pendingTimeout"
            return _told(BreakerReason.CANARY_NOT_READY, one, said)
        if self._desk.on_failure == "Restore" and one.instance in self._desk.faulty:
            said = f"has the change, and failed the probe: {self._desk.faulty[one.instance]}"
            return _told(BreakerReason.CANARY_UNREACHABLE, one, said)
        return None

    def _too_long(self, one: ChangedInstance) -> bool:
        found = self._found.get(one.instance)
        if not one.unready or found is None or found.ready:
            return False
        return self._desk.wall - (parse_time(one.at) or 0.0) > self._desk.pending_timeout * self._desk.tick

    def _seen(self, one: ChangedInstance, state: Standing) -> ChangedInstance:
        """As it is now; `at` becomes when its Node was first seen not Ready."""
        found = self._found[one.instance]
        unready = not found.ready
        if unready:
            self._unready.append(one)
        at = self._now if unready and not one.unready else one.at
        return msgspec.structs.replace(one, at=at, applied=one.applied or state == "applied", unready=unready)

    def _phase(
        self, canary: GroupCanary, stay: Sequence[tuple[ChangedInstance, Standing]]
    ) -> GroupCanary | None:
        ones = [one for one, _ in stay]
        if not all(one.applied and not one.unready for one in ones):
            since = canary.since if canary.phase == "Changing" else self._now
            return msgspec.structs.replace(canary, instances=tuple(ones), phase="Changing", since=since)
        tokens = [_token(self._found[one.instance]) for one in ones]
        same = all(one.ready_since == token for one, token in zip(ones, tokens, strict=True))
        # By a clock that was ahead of this one: what is left of its soak is not known.
        ahead = (parse_time(canary.since) or 0.0) > self._desk.wall
        goes_on = canary.phase == "Soaking" and same and not ahead
        soaks = msgspec.structs.replace(
            canary,
            instances=tuple(
                msgspec.structs.replace(one, ready_since=token)
                for one, token in zip(ones, tokens, strict=True)
            ),
            phase="Soaking",
            since=canary.since if goes_on else self._now,
        )
        states = [state for _, state in stay]
        if self._passes(soaks, states):
            return None
        if all(state == "applied" for state in states):
            old = [one for one in self._of(soaks) if not _is_fresh(one, self._desk, WATCH_SECONDS)]
            self._stale += [one for one in old if one not in self._stale]
        return soaks

    def _of(self, canary: GroupCanary) -> list[Found]:
        return [self._found[one.instance] for one in canary.instances]

    def _passes(self, canary: GroupCanary, states: Iterable[Standing]) -> bool:
        desk, found = self._desk, self._of(canary)
        over = soak(canary.changes, desk) <= 0.0 or desk.wall >= soaked_at(canary, desk)
        proved = desk.proved is None or all(one.instance in desk.proved for one in found)
        if not over or not proved or any(state != "applied" for state in states):
            return False
        old = [one for one in found if not _is_fresh(one, desk)]
        self._stale += old
        if old:
            return False
        for change in canary.changes:
            self._passed[(canary.kind, canary.name), change] = PassedChange(
                canary.kind, canary.name, change.field, change.before, change.after, self._now
            )
        stood = [msgspec.structs.replace(one, at=self._now) for one in canary.instances]
        self._changed.append(_group(canary, stood))
        return True

    # ------------------------------------------------------------ those that are watched

    def watch(self, group: ChangedGroup) -> None:
        """Instances of one group, some minutes long."""
        window = min(soak(group.changes, self._desk), WINDOW_SECONDS * self._desk.tick) + 1.0
        kept = [after for one in group.instances if (after := self._watched(group, one, window)) is not None]
        self._changed.append(_group(group, kept))

    def _watched(self, group: ChangedGroup, one: ChangedInstance, window: float) -> ChangedInstance | None:
        """None = it is watched no more."""
        found, at = self._found.get(one.instance), parse_time(one.at) or 0.0
        state = self._standing(one, group.changes)
        at = min(at, self._desk.wall)  # by a clock that was ahead it would be watched for ever
        sent_at = self._desk.hands.get(one.instance, Hand()).sent_at
        # The wall's clock may have been set since.
        recent = sent_at is not None and (self._desk.now - sent_at) * self._desk.tick <= window
        over = self._desk.wall - at > window and not recent
        lost = state == "gone"
        if self._was_refused(one) or (over and not one.unready and (lost or state in _BACK)):
            return None
        if lost or (one.applied and state in _BACK):
            self._lose(group, one, lost=lost)
            return None
        assert found is not None  # noqa: S101 - it would be gone
        running = found.seen is not None and found.seen.state == "running"
        unready = bool(one.ready_since) and not found.ready and running
        if unready:
            self._unready.append(one)
        elif over:
            return None
        token = _token(found) if found.ready else one.ready_since
        return msgspec.structs.replace(
            one,
            at=format_time(at),
            applied=one.applied or state == "applied",
            ready_since=token,
            unready=unready,
        )

    def _lose(self, group: ChangedGroup, one: ChangedInstance, *, lost: bool) -> None:
        """What has failed one has to pass anew."""
        for change in group.changes:
            self._passed.pop(((group.kind, group.name), change), None)
        if lost:
            said = "was terminated or its Node was deleted shortly after it was sent the change"
            self._faults.append(_told(BreakerReason.INSTANCE_LOST, one, said))
        else:
            said = "had the change, and then another client reverted it"
            self._faults.append(_told(BreakerReason.INSTANCE_SET_BACK, one, said))

    def _was_refused(self, one: ChangedInstance) -> bool:
        """Whether nothing was taken of what it was sent."""
        return not one.applied and refused(self._desk.hands.get(one.instance, Hand()))


def _is_fresh(one: Found, desk: Desk, seconds: float = FRESH_SECONDS) -> bool:
    return one.seen is not None and desk.fresh(one.seen, seconds)


def _still_wanted(desk: Desk) -> dict[tuple[Group, FieldChange], PassedChange]:
    every = desk.canary.passed if desk.canary is not None else ()
    return {
        ((one.kind, one.name), FieldChange(one.field, one.before, one.after)): one
        for one in every
        if text(desk.options.get(one.field)) == one.after
    }


def _group(of: ChangedGroup, instances: Iterable[ChangedInstance]) -> ChangedGroup:
    return ChangedGroup(of.kind, of.name, of.changes, tuple(instances))


def _told(reason: str, one: ChangedInstance, said: str) -> Fault:
    return Fault(reason, one.instance, one.node, f"instance {one.instance} (node {one.node}) {said}")
