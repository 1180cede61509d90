"""The passed changes that still count. Pure."""

from caretaker.api.imds import FieldChange, PassedChange
from caretaker.imds.drift import text
from caretaker.imds.enforce_input import EnforceInput, Group


def still_wanted(inputs: EnforceInput) -> dict[tuple[Group, FieldChange], PassedChange]:
    """Those to the values of the spec, and proved if there is a probe."""
    every = inputs.canary.passed if inputs.canary is not None else ()
    return {
        ((one.kind, one.name), FieldChange(one.field, one.before, one.after)): one
        for one in every
        if text(inputs.options.get(one.field)) == one.after and (one.proved or inputs.proved is None)
    }
