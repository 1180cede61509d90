"""Changes that Enforce does not make, each with its reason. Pure.

An opening change ("loosening", see drift.py) has to be in spec.safety.allowLoosening, a closing one
("tightening"), which may cut off clients, in allowTightening. Tags cannot be enabled if a tag key has
characters that the metadata service does not support in a path, such as the slash in the cluster tag of every
node (Amazon EC2 user guide, "View tags for your EC2 instances using instance metadata").
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import ec2_name
from caretaker.imds.checks import ObservedInstance
from caretaker.imds.drift import OptionChange
from caretaker.imds.merge import DesiredOption

_TAGS: Final = "instanceMetadataTags"


class Blocked(msgspec.Struct, frozen=True, gc=False):
    """A change that is not made, and why."""

    change: OptionChange
    reason: str
    message: str


def blocked(
    change: OptionChange, observed: ObservedInstance, loosening: Collection[str], tightening: Collection[str]
) -> Blocked | None:
    """Why the change must not be made; None = it may."""
    if change.field == _TAGS and change.desired == "enabled" and observed.unfit_tags is not False:
        why = (
            "a tag key has characters that IMDS does not support"
            if observed.unfit_tags
            else "its tags are unknown"
        )
        return Blocked(
            change, Reason.TAG_KEYS_UNFIT, f"EC2 would refuse it, because {why}; remove the option"
        )
    if change.loosens and change.loosens not in loosening:
        return Blocked(
            change,
            Reason.LOOSENING_NOT_ALLOWED,
            f"it opens the instance; to allow it, add {change.loosens} to spec.safety.allowLoosening",
        )
    if change.tightens and change.tightens not in tightening:
        return Blocked(
            change,
            Reason.TIGHTENING_NOT_ALLOWED,
            f"it cuts off clients that still use what it closes; to allow it, add {change.tightens} to "
            "spec.safety.allowTightening",
        )
    return None


def parameters(
    desired: Mapping[str, DesiredOption], mine: str, leave: Collection[str], observed: ObservedInstance
) -> dict[str, Any]:
    """Parameters of the call: fields that the policy wins, may set, and that differ. All other fields keep
    their values, also those that another client has changed since the read, such as a disabled endpoint: "If
    this parameter is not specified, the existing state is maintained" (EC2's service model, HttpEndpoint of
    ModifyInstanceMetadataOptionsRequest). If no field differs, the change is pending in EC2: then they are
    sent again. Never an empty value."""
    has = dict(observed.options.given())
    won = {
        field: one.value
        for field, one in sorted(desired.items())
        if one.policy == mine and not one.rivals and field not in leave
    }
    differs = {field: value for field, value in won.items() if has.get(field) != value}
    return {ec2_name(field): value for field, value in (differs or won).items()}
