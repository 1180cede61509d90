"""The passed changes: the results of canaries, and for how long they count. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from caretaker.api.imds import FieldChange, GroupCanary, Options, PassedChange
from caretaker.api.times import format_time
from caretaker.imds.drift import HOP_LIMIT, TOKENS, closed_to_pods, text
from caretaker.imds.enforce_input import CheckedInstance, EnforceInput, Group, HeldValues

Passed = dict[tuple[Group, FieldChange], PassedChange]


def passed_changes(
    canary: GroupCanary,
    ones: Iterable[CheckedInstance],
    inputs: EnforceInput,
    held: HeldValues,
    before: Mapping[tuple[Group, FieldChange], PassedChange],
) -> Passed:
    """Those of a canary that passes now. `ones`: its instances; `before`: what has passed."""
    at, group, proved = format_time(inputs.wall), (canary.kind, canary.name), inputs.proved is not None
    expected = inputs.expect if proved else ""
    closed = all(one.observed is not None and closed_to_pods(one.observed.options) for one in ones)
    return {
        (group, one): PassedChange(
            *(*group, one.field, one.before, one.after, at, proved, expected),
            held=len(held.get((group, one.field, one.before), ())),
            closed_to_pods=closed or ((group, one) in before and before[group, one].closed_to_pods),
        )
        for one in canary.changes
    }


def has_passed(
    passed: Mapping[tuple[Group, FieldChange], PassedChange],
    group: Group,
    changes: Sequence[FieldChange],
    options: Options,
) -> bool:
    """Whether the changes have passed for an instance with these options. A lower hop limit is harmless to
    pods that fall back to IMDSv1, and required tokens are to pods that get IMDSv2: a canary that keeps one of
    both shows nothing about an instance that loses both."""
    if any((group, one) not in passed for one in changes):
        return False
    if not closed_to_pods(options, changes):
        return True
    return all(passed[group, one].closed_to_pods for one in changes if one.field in (HOP_LIMIT, TOKENS))


def held_by_others(every: Sequence[CheckedInstance], inputs: EnforceInput) -> HeldValues:
    """See HeldValues; of the fields of the policy."""
    if inputs.canary is None:
        return {}
    # Thousands of instances share a few mappings.
    others = {
        key: [
            (field, text(one.value))
            for field, one in desired.items()
            if one.policy != inputs.me and field in inputs.options
        ]
        for key, desired in {id(one.desired): one.desired for one in every}.items()
    }
    if not any(others.values()):
        return {}
    held: dict[tuple[Group, str, str], set[str]] = {}
    for one in every:
        for value in others[id(one.desired)]:
            held.setdefault((one.group, *value), set()).add(one.instance)
    return held


def still_wanted(inputs: EnforceInput, every: Sequence[CheckedInstance], held: HeldValues) -> Passed:
    """Those to the values of the spec which, if there is a probe, had the result that is expected now. A
    value that another policy held and releases is not the one that the canary had: the instances are known by
    name from the last pass of this process, else by their number."""
    wanted: Passed = {}
    for one in inputs.canary.passed if inputs.canary is not None else ():
        if text(inputs.options.get(one.field)) == one.after and _proved(one, inputs):
            wanted[(one.kind, one.name), FieldChange(one.field, one.before, one.after)] = one
    fewer: dict[Group, list[FieldChange]] = {}
    left: dict[str, list[tuple[Group, FieldChange]]] = {}
    for key, one in wanted.items():
        group, change = key
        value = group, change.field, change.before
        now, before = held.get(value, ()), inputs.held.get(value, ())
        # Only a Node that is deleted takes one off: of any other one the policy may decide later.
        gone = sum(instance not in inputs.instances for instance in before)
        count = max(len(now), one.held - gone)
        wanted[key] = one if count == one.held else msgspec.structs.replace(one, held=count)
        if len(now) < count:
            fewer.setdefault(group, []).append(change)
        for instance in before:
            if instance not in now:
                left.setdefault(instance, []).append(key)
    by_number = ((some, (some.group, change)) for some in every for change in fewer.get(some.group, ()))
    by_name = ((some, key) for some in every for key in left.get(some.instance, ()))
    released = _having(by_number if fewer else (), inputs) | _having(by_name if left else (), inputs)
    return {key: one for key, one in wanted.items() if key not in released}


def _having(
    some: Iterable[tuple[CheckedInstance, tuple[Group, FieldChange]]], inputs: EnforceInput
) -> set[tuple[Group, FieldChange]]:
    return {key for one, key in some if may_have(one, key[1], inputs)}


def _proved(one: PassedChange, inputs: EnforceInput) -> bool:
    return inputs.proved is None or (one.proved and inputs.expect in ("Any", one.expected))


def may_have(one: CheckedInstance, change: FieldChange, inputs: EnforceInput) -> bool:
    """Whether the policy decides the field of the instance, which has the previous value, or may have it."""
    desired = one.desired.get(change.field)
    if desired is None or desired.policy != inputs.me or one.result.state in ("gone", "skipped"):
        return False
    if one.observed is None or one.observed.at < inputs.believed_since:
        return True  # the reading may lack a change of another process
    if one.result.state == "unknown" or one.instance in inputs.others:
        return True
    return text(dict(one.observed.options.given()).get(change.field)) == change.before


class ToCome:
    """Whether instances of a group are left to change so. They are sorted by group once that is asked."""

    def __init__(
        self,
        every: Sequence[CheckedInstance],
        blocked: Mapping[str, Collection[FieldChange]],
        inputs: EnforceInput,
    ) -> None:
        self._every, self._blocked, self._inputs = every, blocked, inputs
        self._groups: dict[Group | None, list[CheckedInstance]] = {}  # None = in one that is not known
        self._known: dict[tuple[Group | None, FieldChange], bool] = {}

    def has(self, group: Group, change: FieldChange) -> bool:
        if not self._groups:
            for one in self._every:
                self._groups.setdefault(one.group, []).append(one)
                if one.group == ("", "") and one.result.state == "unknown":
                    self._groups.setdefault(None, []).append(one)
        return self._are_left(group, change) or self._are_left(None, change)

    def _are_left(self, group: Group | None, change: FieldChange) -> bool:
        if (group, change) not in self._known:
            self._known[group, change] = any(
                may_have(one, change, self._inputs)
                for one in self._groups.get(group, ())
                if change not in self._blocked.get(one.instance, ())
            )
        return self._known[group, change]
