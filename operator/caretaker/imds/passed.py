"""The passed changes: what a canary has shown, and for how long that counts. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from caretaker.api.imds import FieldChange, GroupCanary, PassedChange
from caretaker.api.times import format_time
from caretaker.imds.drift import text
from caretaker.imds.enforce_input import CheckedInstance, EnforceInput, Group

Passed = dict[tuple[Group, FieldChange], PassedChange]
# (group, field, value) -> number of nodes on which another policy holds that value.
Held = Mapping[tuple[Group, str, str], int]


def passed_changes(canary: GroupCanary, inputs: EnforceInput, held: Held) -> Passed:
    """Those of a canary that passes now."""
    at, group, proved = format_time(inputs.wall), (canary.kind, canary.name), inputs.proved is not None
    expected = inputs.expect if proved else ""
    return {
        (group, one): PassedChange(
            *(*group, one.field, one.before, one.after, at, proved, expected),
            held=held.get((group, one.field, one.before), 0),
        )
        for one in canary.changes
    }


def held_by_others(every: Sequence[CheckedInstance], inputs: EnforceInput) -> Held:
    """See Held; of the fields of the policy."""
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
    return Counter((one.group, *value) for one in every for value in others[id(one.desired)])


def still_wanted(inputs: EnforceInput, every: Sequence[CheckedInstance], held: Held) -> Passed:
    """Those to the values of the spec which, if there is a probe, had the result that is expected now. A
    value that another policy held and releases is not the one that the canary had."""
    wanted: Passed = {}
    for one in inputs.canary.passed if inputs.canary is not None else ():
        if text(inputs.options.get(one.field)) == one.after and _proved(one, inputs):
            wanted[(one.kind, one.name), FieldChange(one.field, one.before, one.after)] = one
    counts = {key: held.get((key[0], key[1].field, key[1].before), 0) for key in wanted}
    fewer: dict[Group, list[FieldChange]] = {}
    for (group, change), one in wanted.items():
        if counts[group, change] < one.held:
            fewer.setdefault(group, []).append(change)
    released = {
        (some.group, change)
        for some in (every if fewer else ())
        for change in fewer.get(some.group, ())
        if _has(some, change, inputs)
    }
    return {
        key: one if counts[key] == one.held else msgspec.structs.replace(one, held=counts[key])
        for key, one in wanted.items()
        if key not in released
    }


def _proved(one: PassedChange, inputs: EnforceInput) -> bool:
    return inputs.proved is None or (one.proved and inputs.expect in ("Any", one.expected))


def _has(one: CheckedInstance, change: FieldChange, inputs: EnforceInput) -> bool:
    """Whether the policy decides the field of the instance, which has the previous value, or may have it."""
    desired = one.desired.get(change.field)
    if desired is None or desired.policy != inputs.me or one.result.state in ("gone", "skipped"):
        return False
    if one.observed is None or one.result.state == "unknown" or one.instance in inputs.others:
        return True
    return text(dict(one.observed.options.given()).get(change.field)) == change.before
