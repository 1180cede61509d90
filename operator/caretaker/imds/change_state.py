"""The state of an instance with respect to the changes that it was sent. Pure.

gone     the instance has ended, EC2 does not know it, or its Node is deleted
unknown  EC2 was asked and did not report it
out      no policy selects it any more, by its labels or tags; the policy itself may be unchanged
left     this policy, or another one, now wants another value
strayed  it has a value that is neither the old nor the new one
differs  it has the old value
pending  it has the new value, and EC2 has not applied it yet
applied  it has the new value
"""

from collections.abc import Sequence
from typing import Final, Literal

from caretaker.api.imds import ChangedInstance, FieldChange, ec2_name
from caretaker.imds.change_attempts import ChangeAttempt
from caretaker.imds.checks import ObservedInstance
from caretaker.imds.drift import text, value
from caretaker.imds.enforce_input import CheckedInstance

ChangeState = Literal["gone", "unknown", "out", "left", "strayed", "differs", "pending", "applied"]
BACK: Final = frozenset(("strayed", "differs"))


def change_state(one: CheckedInstance | None, changes: Sequence[FieldChange], me: str) -> ChangeState:
    """The state of a change, from the values in EC2."""
    if one is None or one.result.state == "gone":
        return "gone"
    if one.result.state == "skipped":
        return "out"
    if one.result.state == "unknown" or one.observed is None:
        return "unknown"
    if any(change.field not in one.desired for change in changes):
        return "out"
    if not all(_wanted(one, change, me) for change in changes):
        return "left"
    return _compared(one.observed, changes)


def carried(
    one: CheckedInstance, changes: Sequence[FieldChange], *, sure: bool = False
) -> tuple[FieldChange, ...]:
    """The changes that the instance has, or may have, whoever wants them. `sure`: it has what was sent last,
    which EC2 may not have confirmed yet."""
    confirmed = sure or one.observed is None or one.observed.confirmed
    if not confirmed:
        return tuple(changes)
    has = dict(one.observed.options.given()) if one.observed is not None else {}
    return tuple(change for change in changes if text(has.get(change.field)) == change.after)


def gave_back(attempt: ChangeAttempt, changes: Sequence[FieldChange]) -> bool:
    """Whether EC2 has accepted a call that writes a previous value back."""
    sent = ((attempt.options.get(ec2_name(one.field)), value(one, one.before)) for one in changes)
    return (
        attempt.waits and not attempt.unsure and any(has == before for has, before in sent if has is not None)
    )


def runs(one: CheckedInstance) -> bool:
    """Whether EC2 reports it as running."""
    return one.observed is not None and one.observed.state == "running"


def unready(one: ChangedInstance, checked: CheckedInstance, *, late: bool = False) -> bool:
    """Whether its Node is NotReady, and was Ready when it was sent the change, or joined and is too `late` to
    be still starting. One that is stopped before that (a warm pool) is not; one that is stopped afterwards
    stays so."""
    return (bool(one.ready_since) or late) and not checked.ready and (one.unready or runs(checked))


def how_it_left(one: ChangedInstance, checked: CheckedInstance, state: ChangeState, by: ChangeState) -> str:
    """How an instance left its canary, where that is a fault; "" = else. `by`: its state by the policies
    alone. What is done to Nodes that are NotReady would be done to the next one as well."""
    if state == "out":
        left = "the policy" if by == "out" else "its node group"
        return f"left {left} by its labels or tags after it was sent the change"
    away = by == "left" and (one.unready or not checked.ready)
    return "was sent the change, and another policy won it while its Node was NotReady" if away else ""


def _compared(observed: ObservedInstance, changes: Sequence[FieldChange]) -> ChangeState:
    if not observed.confirmed:
        return "pending"
    has = dict(observed.options.given())
    now = [(text(has.get(change.field)), change) for change in changes]
    if any(value not in (change.before, change.after) for value, change in now):
        return "strayed"
    if any(value != change.after for value, change in now):
        return "differs"
    return "pending" if observed.pending else "applied"


def _wanted(one: CheckedInstance, change: FieldChange, me: str) -> bool:
    """Whether the policy still wants this change of the instance."""
    desired = one.desired[change.field]
    return desired.policy == me and not desired.rivals and text(desired.value) == change.after
