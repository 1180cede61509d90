"""Chooses the instances to change now: canaries first, then instances whose changes have passed. Pure.

Chosen instances are written to status before the first call.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from caretaker.api.imds import (
    MAX_CANARIES,
    MAX_CHANGED,
    MAX_GROUPS,
    ChangedGroup,
    ChangedInstance,
    FieldChange,
    GroupCanary,
    PassedChange,
)
from caretaker.api.times import format_time
from caretaker.imds.canary_record import GroupChange, Record, chosen, together
from caretaker.imds.cases import Case
from caretaker.imds.change_attempts import NEW
from caretaker.imds.change_state import BACK, change_state, gave_back
from caretaker.imds.drift import value
from caretaker.imds.enforce_input import BATCH, CheckedInstance, EnforceInput, Group
from caretaker.imds.merge import DesiredOption
from caretaker.imds.passed import has_passed
from caretaker.imds.safety_checks import parameters

ASKED: Final = 3  # instances in a dry run
# Previous values that are restored after all others, each by a call of its own, the last one first: an
# account that enforces IMDSv2 refuses the whole call, and EC2 takes a disabled endpoint only alone.
_ALONE: Final = (("httpTokens", "optional"), ("httpEndpoint", "disabled"))


class Write(msgspec.Struct, frozen=True):
    """One call."""

    instance: str
    region: str
    options: Mapping[str, Any]  # by EC2's names


class Choice(msgspec.Struct, frozen=True):
    """`read`: the instances of the writes, as they were read; `later`: seconds until more instances may be
    restored, None = there are none."""

    record: Record
    writes: tuple[Write, ...] = ()
    read: tuple[CheckedInstance, ...] = ()
    later: float | None = None


def covered(cases: Sequence[Case], record: Record, inputs: EnforceInput) -> frozenset[str]:
    """Instances whose changes have all passed in their group."""
    passed, without = record.passed, not inputs.canary_instances
    groups = {group for group, _ in passed}
    return frozenset(
        case.checked.instance
        for case in cases
        if without or not case.changes or (case.checked.group in groups and _has_passed(case, passed))
    )


def _has_passed(case: Case, passed: Mapping[tuple[Group, FieldChange], PassedChange]) -> bool:
    one = case.checked
    return one.observed is not None and has_passed(passed, one.group, case.changes, one.observed.options)


def able(cases: Sequence[Case], inputs: EnforceInput) -> Mapping[GroupChange, Collection[str]]:
    """Instances that may join the canary of their group. One whose change failed is not waited for, nor one
    whose changes have passed; and none is when status has no room for as many canaries as the spec now asks
    for."""
    canaries, before = (inputs.canary.groups, inputs.canary.passed) if inputs.canary is not None else ((), ())
    passed = {((one.kind, one.name), FieldChange(one.field, one.before, one.after)): one for one in before}
    running = sum(one.phase != "Failed" for one in canaries)
    if running * inputs.canary_instances > MAX_CANARIES:
        return {}
    having = {(one.kind, one.name) for one in canaries}
    groups: dict[GroupChange, set[str]] = {}
    for case in cases:
        if (
            case.checked.group in having
            and case.fit
            and not case.attempt.failures
            and not case.attempt.fighting
            and not _has_passed(case, passed)
        ):
            groups.setdefault((case.checked.group, case.changes), set()).add(case.checked.instance)
    return groups


def choose(
    cases: Sequence[Case],
    follow: Collection[str],
    record: Record,
    inputs: EnforceInput,
    unknown: Collection[Group],
) -> Choice:
    """As many as the limits allow; `follow`: instances whose changes have passed; `unknown`: groups of
    instances that may differ."""
    pick = _Pick(record, inputs)
    first = [case for case in cases if case.checked.instance not in follow] if follow else cases
    if record.canaries:
        for case in pick.while_free(cases):
            pick.again(case)
    for case in pick.while_free(pick.failed_last(first)):
        pick.first(case)
    if follow:
        for case in pick.while_free(cases):
            if case.checked.instance in follow:
                pick.follower(case)
    # Without its tags an instance may be of any group.
    wait = record.canaries if ("", "") in unknown else unknown
    return pick.choice({*wait, *(case.checked.group for case in first)})


def restore(instances: Mapping[str, CheckedInstance], record: Record, inputs: EnforceInput) -> Choice:
    """Write the previous values back to the instances of failed canaries, until they are read without the
    change."""
    pick = _Pick(record, inputs)
    if inputs.failures >= inputs.stop_after or inputs.denied[0]:
        return Choice(record)  # no call would be made
    for canary in record.canaries.values():
        if canary.phase == "Failed":
            for one in canary.instances:
                if one.instance in instances and not one.restored:
                    pick.restore(canary, one, instances[one.instance])
    return pick.choice(record.canaries.keys())


def full(record: Record, inputs: EnforceInput) -> str:
    """The start of a message: why status has no room for a canary; "" = it has."""
    count = sum(len(group.instances) for group in record.changed)
    if MAX_CHANGED + MAX_CANARIES - count >= inputs.canary_instances:
        return ""
    return (
        f"{count} changed instances are watched until their change has passed, and status has room for "
        f"{MAX_CHANGED + MAX_CANARIES} with those of canaries: set spec.mode to Audit and back to Enforce, "
        "which ends the watches; "
    )


def asks(cases: Sequence[Case], writes: Sequence[Write], inputs: EnforceInput) -> tuple[Write, ...]:
    """The first write, and others spread over all that is left: a denial may be due to tags, which neighbours
    in the list often share."""
    asked = {one.instance: one for one in writes[:1]}
    for at in (len(cases) * part // ASKED for part in range(ASKED) if cases):
        case, checked = cases[at], cases[at].checked
        if checked.observed is not None:
            write = Write(checked.instance, checked.region, case.options(inputs.me, case.changes))
            asked.setdefault(checked.instance, write)
    return tuple(asked.values())[:ASKED]


class _Pick:
    """Builds a Choice."""

    def __init__(self, record: Record, inputs: EnforceInput) -> None:
        self._record = record
        self._inputs = inputs
        self._canaries = dict(record.canaries)
        self._left = dict(inputs.free)
        self._batch = min(inputs.cap, BATCH)
        self._room = MAX_CHANGED - sum(len(group.instances) for group in record.changed)
        running = sum(one.phase != "Failed" for one in self._canaries.values())
        self._slots = MAX_CANARIES - running * inputs.canary_instances
        self._full = self._batch <= 0 or not any(self._left.values())
        self._writes: list[tuple[Write, CheckedInstance]] = []
        self._later: float | None = None
        self._changed: list[ChangedGroup] = []
        self._known = {one.instance for group in record.changed for one in group.instances}

    def choice(self, wait: Collection[Group]) -> Choice:
        """A failed canary is kept in groups that `wait` for the next one."""
        every = self._canaries.items()
        canaries = {group: one for group, one in every if one.phase != "Failed" or group in wait}
        changed = together((*self._record.changed, *self._changed))
        record = msgspec.structs.replace(self._record, canaries=canaries, changed=changed)
        writes, read = tuple(one for one, _ in self._writes), tuple(one for _, one in self._writes)
        return Choice(record, writes, read, self._later)

    def while_free(self, cases: Iterable[Case]) -> Iterator[Case]:
        """The cases until the limits allow no further call: most are left for later passes."""
        for case in cases:
            if self._full:
                return
            yield case

    def failed_last(self, cases: Sequence[Case]) -> Sequence[Case]:
        """Instances that were in a failed canary come after the others."""
        canaries = self._canaries.values()
        failed = {name for one in canaries if one.phase == "Failed" for name in _names(one)}
        return sorted(cases, key=lambda case: case.checked.instance in failed) if failed else cases

    def again(self, case: Case) -> None:
        """An instance of a canary."""
        canary = self._canaries.get(case.checked.group)
        if canary is None or canary.phase != "Changing" or not _within(case, canary):
            return
        changes = [one for one in case.changes if one in canary.changes]
        if changes or case.state == "pending":
            self._send(case, changes)

    def first(self, case: Case) -> None:
        """An instance that becomes a canary."""
        canary = self._canaries.get(case.checked.group)
        if canary is not None and canary.phase != "Failed" and not has_room(canary, self._inputs):
            return  # first, as thousands of instances ask
        if not case.fit:
            return
        if canary is None or canary.phase == "Failed":
            room = canary is not None or len(self._canaries) < MAX_GROUPS
            size = self._inputs.canary_instances
            # Those of failed canaries may be watched for long.
            if room and self._slots + min(self._room, 0) >= size and self._send(case, case.changes):
                self._slots -= size
                stamp, one = format_time(self._inputs.wall), chosen(case.checked, self._inputs)
                kind, name = case.checked.group
                self._canaries[kind, name] = GroupCanary(
                    kind, name, case.changes, (one,), "Changing", stamp, stamp
                )
        elif self._slots >= 0 and joins(case, canary, self._inputs) and self._send(case, case.changes):
            instances = (*canary.instances, chosen(case.checked, self._inputs))
            self._canaries[case.checked.group] = msgspec.structs.replace(canary, instances=instances)

    def follower(self, case: Case) -> None:
        """An instance whose changes have passed. A pending one was sent the change before."""
        one = case.checked
        canary = self._canaries.get(one.group)
        if canary is not None and _within(case, canary):
            return
        if not self._inputs.canary_instances:
            self._send(case, case.changes)
        elif case.state == "pending":
            self._send(case, ())
        elif (self._room > 0 or one.instance in self._known) and self._send(case, case.changes):
            self._room -= one.instance not in self._known
            kind, name = one.group
            self._changed.append(ChangedGroup(kind, name, case.changes, (chosen(one, self._inputs),)))

    def restore(self, canary: GroupCanary, one: ChangedInstance, checked: CheckedInstance) -> None:
        """An instance that may still have the change. Once it was read without, other clients may set it."""
        state, inputs = change_state(checked, canary.changes, self._inputs.me), self._inputs
        if checked.observed is None or state in ("left", "out", "gone", "unknown"):
            return  # the policy no longer wants the values that were sent, or nothing is known
        has = dict(checked.observed.options.given())
        desired = {
            change.field: DesiredOption(before, inputs.me, 0)
            for change in canary.changes
            if (before := value(change, change.before)) is not None
            and has.get(change.field) == value(change, change.after)
        }
        attempt = inputs.attempts.get(one.instance, NEW)
        if not desired:
            late = one.instance in inputs.inherited and checked.observed.at < inputs.believed_since
            if gave_back(attempt, canary.changes) or (state in BACK and not late):
                self._restored(canary, one)
            return
        for field, last in _ALONE:
            if field in desired and desired[field].value == last and len(desired) > 1:
                del desired[field]
        options = parameters(desired, inputs.me, (), checked.observed)
        wait = max(attempt.not_before - inputs.now, 0.0) if attempt.options == options else 0.0
        # Until EC2 has confirmed the values, a call without an answer may have been made.
        if wait or not checked.observed.confirmed or not self._free(checked):
            self._later = wait if self._later is None else min(wait, self._later)
            return
        self._write(checked, options)

    def _restored(self, canary: GroupCanary, one: ChangedInstance) -> None:
        after = self._canaries[canary.kind, canary.name]
        instances = [
            msgspec.structs.replace(other, restored=True) if other.instance == one.instance else other
            for other in after.instances
        ]
        self._canaries[canary.kind, canary.name] = msgspec.structs.replace(after, instances=tuple(instances))

    def _send(self, case: Case, changes: Sequence[FieldChange]) -> bool:
        later = case.due(self._inputs) > 0
        if case.checked.observed is None or later or not self._free(case.checked):
            return False
        self._write(case.checked, case.options(self._inputs.me, changes))
        return True

    def _free(self, one: CheckedInstance) -> bool:
        return len(self._writes) < self._batch and self._left.get(one.region, 0) > 0

    def _write(self, one: CheckedInstance, options: Mapping[str, Any]) -> None:
        self._left[one.region] -= 1
        self._writes.append((Write(one.instance, one.region, options), one))
        self._full = len(self._writes) >= self._batch or not any(self._left.values())


def _names(canary: GroupCanary) -> set[str]:
    return {one.instance for one in canary.instances}


def _within(case: Case, canary: GroupCanary) -> bool:
    return case.checked.instance in _names(canary)


def has_room(canary: GroupCanary, inputs: EnforceInput) -> bool:
    """Whether an instance may still join the canary."""
    return canary.phase == "Changing" and len(canary.instances) < inputs.canary_instances


def joins(case: Case, canary: GroupCanary, inputs: EnforceInput) -> bool:
    """Whether the instance may join a canary in phase Changing."""
    return (
        has_room(canary, inputs) and case.fit and canary.changes == case.changes and not _within(case, canary)
    )
