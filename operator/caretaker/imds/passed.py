"""The passed changes: what a canary has shown, and for how long that counts. Pure."""

from caretaker.api.imds import FieldChange, GroupCanary, PassedChange
from caretaker.api.times import format_time
from caretaker.imds.drift import text
from caretaker.imds.enforce_input import EnforceInput, Group

Passed = dict[tuple[Group, FieldChange], PassedChange]


def passed_changes(canary: GroupCanary, inputs: EnforceInput) -> Passed:
    """Those of a canary that passes now."""
    at, group, proved = format_time(inputs.wall), (canary.kind, canary.name), inputs.proved is not None
    expected = inputs.expect if proved else ""
    return {
        (group, one): PassedChange(*group, one.field, one.before, one.after, at, proved, expected)
        for one in canary.changes
    }


def still_wanted(inputs: EnforceInput) -> Passed:
    """Those to the values of the spec which, if there is a probe, had the result that is expected now."""
    every = inputs.canary.passed if inputs.canary is not None else ()
    return {
        ((one.kind, one.name), FieldChange(one.field, one.before, one.after)): one
        for one in every
        if text(inputs.options.get(one.field)) == one.after and _proved(one, inputs)
    }


def _proved(one: PassedChange, inputs: EnforceInput) -> bool:
    return inputs.proved is None or (one.proved and inputs.expect in ("Any", one.expected))
