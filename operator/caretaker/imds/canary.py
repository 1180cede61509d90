"""The next state of canaries and watched instances, from status and readings. Pure.

A canary belongs to a change: (group, field, from, to). The first instances of a group are changed alone; the
remaining instances are changed when the same change has passed.

    Changing  being changed, or too few: others may still join; an instance that EC2 refuses to change, or
              that another client changes first, is replaced by another one
    Soaking   EC2 reported all as applied, and their Nodes have been Ready since
    Failed    an instance was lost or reverted: the breaker opens, and the next canary is a new one; once the
              breaker is closed, instances that still have a part of the change are watched
    passed    the remaining instances of the group may be changed, and are watched for some minutes

The state is in status alone, written before the first call. Times of Nodes are compared, never ordered.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from caretaker.api.conditions import BreakerReason, PolicyReason
from caretaker.api.imds import (
    ChangedGroup,
    ChangedInstance,
    FieldChange,
    GroupCanary,
    Options,
    ec2_name,
)
from caretaker.api.times import format_time, parse_time
from caretaker.imds.canary_record import Fault, Findings, GroupChange, Record, fault_of, together, token
from caretaker.imds.change_attempts import ChangeAttempt, refused
from caretaker.imds.change_state import (
    BACK,
    ChangeState,
    carried,
    change_state,
    gave_back,
    how_it_left,
    runs,
    unready,
)
from caretaker.imds.checks import NOT_ASKED
from caretaker.imds.drift import text
from caretaker.imds.enforce_input import WATCH_SECONDS, CheckedInstance, EnforceInput, Group
from caretaker.imds.passed import ToCome, has_passed, held_by_others, passed_changes, still_wanted
from caretaker.imds.soak import harm, heard, is_late, soak, soaked_at, watched_until

_LOST: Final = "was terminated or its Node was deleted after it was sent the change"


def step(
    instances: Mapping[str, CheckedInstance],
    blocked: Mapping[str, Collection[FieldChange]],
    inputs: EnforceInput,
    others: Mapping[GroupChange, Collection[str]] = {},
    every: Sequence[CheckedInstance] = (),
) -> Record:
    """The next state of the instances in status. `instances`: those with a Node, by ID; `blocked`: changes
    that are not made; `others`: instances that may join the canary of their group; `every`: all."""
    if not inputs.canary_instances:
        return Record()
    made = _Step(instances, blocked, inputs, others, every)
    for canary in inputs.canary.groups if inputs.canary is not None else ():
        made.canary(canary)
    for group in inputs.watched:
        made.watch(group, group.instances)
    return made.record()


class _Step:
    """Builds a Record."""

    def __init__(
        self,
        instances: Mapping[str, CheckedInstance],
        blocked: Mapping[str, Collection[FieldChange]],
        inputs: EnforceInput,
        others: Mapping[GroupChange, Collection[str]],
        every: Sequence[CheckedInstance],
    ) -> None:
        self._instances = instances
        self._blocked = blocked
        self._inputs = inputs
        self._others = others
        self._now = format_time(inputs.wall)
        self._canaries: dict[Group, GroupCanary] = {}
        self._held = held_by_others(every, inputs)
        self._passed = still_wanted(inputs, every, self._held)
        self._changed: list[ChangedGroup] = []
        self._found = Findings()
        self._to_come = ToCome(every, blocked, inputs)

    def record(self) -> Record:
        found, unready = self._found, {one.instance: one for one in self._found.unready}
        # A reading of a skipped one decides nothing.
        stale = tuple(one for one in found.stale if one.result.state != "skipped")
        lists = tuple(found.faults), tuple(unready.values()), stale, tuple(found.unreported)
        return Record(self._canaries, self._passed, together(self._changed), *lists)

    # ------------------------------------------------------------ canaries

    def canary(self, canary: GroupCanary) -> None:
        """The canary of one group."""
        after = self._failed(canary) if canary.phase == "Failed" else self._evaluated(canary)
        if after is not None:
            self._canaries[canary.kind, canary.name] = after

    def _failed(self, canary: GroupCanary) -> GroupCanary:
        """While the breaker is open it is noted what has become of the instances: whoever closes it accepts
        that. Then those that still have a part of the change are watched."""
        for one in canary.instances:
            if self._part(one, canary.changes) and unready(one, self._instances[one.instance]):
                self._found.unready.append(one)
        for one in canary.instances if self._inputs.closes else ():
            if one.applied and self._is_gone(one):
                self._lose(canary, fault_of(BreakerReason.INSTANCE_LOST, one, _LOST))
            elif part := self._part(one, canary.changes):
                checked = self._instances[one.instance]
                sure = checked.observed is not None and checked.observed.confirmed
                applied = one.applied or (sure and not self._is_early(one, checked))
                after = msgspec.structs.replace(one, at=self._now, applied=applied)
                self.watch(msgspec.structs.replace(canary, changes=part), [after])
        return msgspec.structs.replace(canary, instances=self._noted(canary))

    def _noted(self, canary: GroupCanary) -> tuple[ChangedInstance, ...]:
        """The instances of a failed canary. applied: it has, or may have, a part of the change."""
        return tuple(msgspec.structs.replace(one, applied=self._has(one, canary)) for one in canary.instances)

    def _has(self, one: ChangedInstance, canary: GroupCanary) -> bool:
        """Unknown values stay as they were noted last."""
        if not self._is_unsure(one):
            return bool(self._part(one, canary.changes))
        return one.applied or (canary.phase != "Failed" and not self._was_refused(one, "unknown"))

    def _part(self, one: ChangedInstance, changes: tuple[FieldChange, ...]) -> tuple[FieldChange, ...]:
        """The changes that an instance of a failed canary has, or may have."""
        if self._is_gone(one):
            return ()
        checked = self._instances[one.instance]
        if checked.result.state == "unknown":
            return changes if one.applied else ()
        sure = one.restored or gave_back(self._inputs.attempts.get(one.instance, ChangeAttempt()), changes)
        return changes if self._is_early(one, checked) else carried(checked, changes, sure=sure)

    def _is_unsure(self, one: ChangedInstance) -> bool:
        """Whether it is not known what it has."""
        checked = None if self._is_gone(one) else self._instances[one.instance]
        return checked is not None and (checked.result.state == "unknown" or self._is_early(one, checked))

    def _is_gone(self, one: ChangedInstance) -> bool:
        checked = self._instances.get(one.instance)
        return checked is None or checked.result.state == "gone"

    def _is_early(self, one: ChangedInstance, checked: CheckedInstance) -> bool:
        """Whether another process may have sent its change, and the reading may not show it yet."""
        at = checked.observed.at if checked.observed is not None else math.inf
        return one.instance in self._inputs.inherited and at < self._inputs.believed_since

    def _evaluated(self, canary: GroupCanary) -> GroupCanary | None:
        """None = the canary has passed, or has no instances left."""
        stood = [(one, self._in_group(one, canary)) for one in canary.instances]
        faults = (self._why(one, state, canary) for one, state in stood)
        fault = next((why for why in faults if why is not None), None)
        if fault is not None:
            self._found.faults.append(fault)
            failed = {"phase": "Failed", "since": self._now, "message": fault.message}
            return msgspec.structs.replace(canary, instances=self._noted(canary), **failed)
        if any(state in ("left", "out") for _, state in stood):
            self.watch(canary, [one for one, _ in stood])
            return None
        self.watch(canary, [one for one, state in stood if state == "strayed"])
        stay = [
            (self._updated(one, state), state)
            for one, state in stood
            if state != "strayed" and not self._was_refused(one, state)
        ]
        return self._phase(canary, stay) if stay else None

    def _change_state(self, one: ChangedInstance, changes: Sequence[FieldChange]) -> ChangeState:
        blocked = self._blocked.get(one.instance, ())
        if not one.applied and any(change in blocked for change in changes):
            return "left"
        return change_state(self._instances.get(one.instance), changes, self._inputs.me)

    def _in_group(self, one: ChangedInstance, canary: GroupCanary) -> ChangeState:
        """An instance of another group stands for none of the canary's."""
        state, checked = self._change_state(one, canary.changes), self._instances.get(one.instance)
        if checked is None or state in ("gone", "unknown"):
            return state
        if checked.group != (canary.kind, canary.name) and state != "left":
            state = "out"
        return "unknown" if state in ("out", "left") and self._inputs.ungrouped_at(checked) else state

    def _why(self, one: ChangedInstance, state: ChangeState, canary: GroupCanary) -> Fault | None:
        """Why the canary has failed."""
        if state == "gone" and not self._was_refused(one, state):
            return fault_of(BreakerReason.CANARY_LOST, one, _LOST)
        if state in ("out", "left") and self._inputs.same_spec and not self._was_refused(one, state):
            by = change_state(self._instances[one.instance], canary.changes, self._inputs.me)
            if message := how_it_left(one, self._instances[one.instance], state, by):
                return fault_of(BreakerReason.CANARY_LOST, one, message)
        if (one.applied and state in BACK) or (state == "strayed" and self._was_taken(one, canary.changes)):
            message = "had the change, and then another client reverted it"
            return fault_of(BreakerReason.CANARY_SET_BACK, one, message)
        reason, message = harm(one, self._inputs, unready=self._too_long(one))
        return fault_of(reason, one, message) if reason else None

    def _was_taken(self, one: ChangedInstance, changes: Iterable[FieldChange]) -> bool:
        """Whether EC2 has confirmed to this process that it accepted the change."""
        attempt = self._inputs.attempts.get(one.instance, ChangeAttempt())
        sent = all(text(attempt.options.get(ec2_name(change.field))) == change.after for change in changes)
        return attempt.waits and not attempt.unsure and sent

    def _too_long(self, one: ChangedInstance) -> bool:
        checked = self._instances.get(one.instance)
        if not one.unready or checked is None or checked.ready:
            return False
        inputs = self._inputs
        return inputs.wall - (parse_time(one.at) or 0.0) > inputs.pending_timeout

    def _updated(self, one: ChangedInstance, state: ChangeState) -> ChangedInstance:
        """The current state; `at` becomes the time at which the Node was first seen NotReady."""
        checked = self._instances[one.instance]
        if not checked.ready:
            self._found.unready.append(one)
        self._note_unreported(checked, state)
        at = self._now if not (checked.ready or one.unready) else one.at
        applied = one.applied or state == "applied"
        return msgspec.structs.replace(one, at=at, applied=applied, unready=not checked.ready)

    def _note_unreported(self, checked: CheckedInstance, state: ChangeState) -> None:
        """Instances of a region that does not answer are left out, so that other regions go on."""
        if state == "unknown" and checked.result.reason != NOT_ASKED:
            self._found.unreported.append(checked)
            if not _is_fresh(checked, self._inputs, WATCH_SECONDS):
                self._found.stale.append(checked)

    def _phase(
        self, canary: GroupCanary, stay: Sequence[tuple[ChangedInstance, ChangeState]]
    ) -> GroupCanary | None:
        ones, states = [one for one, _ in stay], [state for _, state in stay]
        tokens = [token(self._instances[one.instance]) for one in ones]
        same = all(one.ready_since == token for one, token in zip(ones, tokens, strict=True))
        late = max(self._inputs.asked_ahead.get(one.instance, 0.0) for one in ones)
        ahead = self._ahead(parse_time(canary.since) or 0.0, late)
        ready = all(one.applied and not one.unready for one in ones)
        goes_on = canary.phase == "Soaking" and same and not ahead
        begins = goes_on or all(state == "applied" for state in states)
        if not ready or not begins or self._lacks(canary, ones):
            since = canary.since if canary.phase == "Changing" else self._now
            return msgspec.structs.replace(canary, instances=tuple(ones), phase="Changing", since=since)
        stood = (msgspec.structs.replace(one, ready_since=at) for one, at in zip(ones, tokens, strict=True))
        soaks = msgspec.structs.replace(
            canary,
            instances=tuple(stood),
            phase="Soaking",
            since=canary.since if goes_on else format_time(max(self._inputs.wall, late)),
        )
        if self._passes(soaks, states):
            return None
        if all(state == "applied" for state in states):
            old = [one for one in self._of(soaks) if not _is_fresh(one, self._inputs, WATCH_SECONDS)]
            self._found.stale.extend(one for one in old if one not in self._found.stale)
        return soaks

    def _ahead(self, since: float, late: float) -> bool:
        """Whether the soak began by a clock that was ahead, so that the rest of it is unknown, or an earlier
        probe request (`late`) would count in it. While it waits for its time, its own are of that second."""
        return late > since + 1.0 if late else since > self._inputs.wall

    def _lacks(self, canary: GroupCanary, ones: Sequence[ChangedInstance]) -> bool:
        """Whether another instance is to join first."""
        room = len(ones) < self._inputs.canary_instances
        others = self._others.get(((canary.kind, canary.name), canary.changes), ())
        return room and bool(set(others) - {one.instance for one in ones})

    def _of(self, canary: GroupCanary) -> list[CheckedInstance]:
        return [self._instances[one.instance] for one in canary.instances]

    def _passes(self, canary: GroupCanary, states: Iterable[ChangeState]) -> bool:
        inputs, ones = self._inputs, self._of(canary)
        over = soak(canary.changes, inputs) <= 0.0 or inputs.wall >= soaked_at(canary, inputs)
        proved = inputs.proved is None or all(one.instance in inputs.proved for one in ones)
        proved = proved and heard(canary, inputs)
        if not over or not proved or not all(map(runs, ones)) or any(state != "applied" for state in states):
            return False
        if old := [one for one in ones if not _is_fresh(one, inputs)]:
            self._found.stale.extend(old)
            return False
        self._passed |= passed_changes(canary, ones, inputs, self._held, self._passed)
        stood = [msgspec.structs.replace(one, at=self._now) for one in canary.instances]
        self._changed.append(_group(canary, stood))
        return True

    # ------------------------------------------------------------ watched instances

    def watch(self, group: ChangedGroup, instances: Iterable[ChangedInstance]) -> None:
        """These instances of one group."""
        ones = (self._watched(group, one) for one in instances)
        self._changed.append(_group(group, [one for one in ones if one is not None]))

    def _watched(self, group: ChangedGroup, one: ChangedInstance) -> ChangedInstance | None:
        """None = the watch is over: the instance was seen with the change after its time."""
        checked, state = self._instances.get(one.instance), self._change_state(one, group.changes)
        if self._was_refused(one, state):
            return None
        # However late: this is the first read since then.
        if checked is None or state == "gone":
            self._lose(group, fault_of(BreakerReason.INSTANCE_LOST, one, _LOST))
            return None
        if self._inputs.closes and state != "unknown" and not _is_fresh(checked, self._inputs):
            self._found.stale.append(checked)
        if self._is_undone(group, one, state, checked):
            return None
        self._note_unreported(checked, state)
        if state == "applied" and not one.applied:
            one = msgspec.structs.replace(one, applied=True, at=self._now)  # the watch begins
        late = state != "differs" and is_late(one, checked, group.changes, self._inputs)
        if is_unready := unready(one, checked, late=late):
            self._found.unready.append(one)
            is_unready = one.unready or _is_fresh(checked, self._inputs)  # else it may have been stopped
            self._found.stale.extend([] if is_unready or state == "unknown" else [checked])
        elif self._over(group, one, state, checked):
            if checked.observed is None or _is_fresh(checked, self._inputs, WATCH_SECONDS):
                return None
            self._found.stale.append(checked)  # it may have been lost since
        # With a time from a clock that was ahead the watch would not end.
        at = format_time(min(parse_time(one.at) or 0.0, self._inputs.wall))
        since = token(checked) if checked.ready else one.ready_since
        return msgspec.structs.replace(one, at=at, ready_since=since, unready=is_unready)

    def _is_undone(
        self, group: ChangedGroup, one: ChangedInstance, state: ChangeState, checked: CheckedInstance
    ) -> bool:
        """Whether it had the change, and has it no more. A reversal by another client is a fault, and
        so is one by another policy after its Node became NotReady."""
        if not one.applied or self._is_early(one, checked):
            return False
        left = state in ("left", "out") and checked.result.state != "skipped"
        over = left and not carried(checked, group.changes)
        taken = state == "out" or one.unready  # a policy may win all that are NotReady
        back = state in BACK or (over and taken and all(map(self._is_asked, group.changes)))
        if back:
            self._set_back(group, one, checked)
        return over or back

    def _is_asked(self, change: FieldChange) -> bool:
        """Whether the spec has the value."""
        return text(self._inputs.options.get(change.field)) == change.after

    def _over(
        self, group: ChangedGroup, one: ChangedInstance, state: ChangeState, checked: CheckedInstance
    ) -> bool:
        """Whether the watch is over; not while the instance is unknown, its change is pending, or others are
        left to change so and it has not passed."""
        attempt = self._inputs.attempts.get(one.instance, ChangeAttempt())
        comes = state == "pending" and not one.applied and attempt.trouble[0] != PolicyReason.NOT_APPLIED
        if state == "unknown" or (comes and runs(checked)):
            return False
        if self._inputs.wall < watched_until(one, group.changes, self._inputs):
            return False
        return not any(self._unproven(group, change, checked) for change in carried(checked, group.changes))

    def _unproven(self, group: ChangedGroup, change: FieldChange, checked: CheckedInstance) -> bool:
        """Whether instances of the group are left to change so, and this has not passed for such a one."""
        of, has = (group.kind, group.name), checked.observed.options if checked.observed else Options()
        has_not = not has_passed(self._passed, of, (change,), has)
        return has_not and self._is_asked(change) and self._to_come.has(of, change)

    def _set_back(self, group: ChangedGroup, one: ChangedInstance, checked: CheckedInstance) -> None:
        """It may have a part of the changes left. Whoever closes the breaker may have reverted it before."""
        if part := carried(checked, group.changes):
            self._changed.append(_group(msgspec.structs.replace(group, changes=part), [one]))
        message = "had the change, and then another client or policy reverted it"
        fault = fault_of(BreakerReason.INSTANCE_SET_BACK, one, message)
        self._lose(group, None if self._inputs.closes else fault)

    def _lose(self, group: ChangedGroup, fault: Fault | None) -> None:
        """The changes of a failed instance have to pass again."""
        for change in group.changes:
            self._passed.pop(((group.kind, group.name), change), None)
        if fault is not None:
            self._found.faults.append(fault)

    def _was_refused(self, one: ChangedInstance, state: ChangeState) -> bool:
        """Whether EC2 refused the change."""
        rejected = not one.applied and refused(self._inputs.attempts.get(one.instance, ChangeAttempt()))
        if not rejected or one.instance not in self._inputs.inherited:
            return rejected
        return state in BACK and not self._is_early(one, self._instances[one.instance])


def _is_fresh(one: CheckedInstance, inputs: EnforceInput, seconds: float | None = None) -> bool:
    return one.observed is not None and inputs.fresh(one.observed, seconds)


def _group(of: ChangedGroup, instances: Iterable[ChangedInstance]) -> ChangedGroup:
    return ChangedGroup(of.kind, of.name, of.changes, tuple(instances))
