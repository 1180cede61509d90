"""Which changes Enforce leaves alone, each with the reason that is told. Pure.

An opening change ("loosening", see drift.py) is made only where spec.safety.allowLoosening names it, a
closing one ("tightening") only where allowTightening does: it may cut off whoever needs what it closes. Tags
cannot be switched on where a tag's key holds more than the metadata service can show as a path, such as the
slash that every node of a cluster has (Amazon EC2 user guide, "View tags for your EC2 instances using
instance metadata").
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.imds.drift import Change
from caretaker.imds.judge import Seen
from caretaker.imds.merge import Wanted

_TAGS: Final = "instanceMetadataTags"
_ENDPOINT: Final = "httpEndpoint"


class Held(msgspec.Struct, frozen=True, gc=False):
    """A change that is not made, and why."""

    change: Change
    reason: str
    message: str


def held(change: Change, seen: Seen, loosening: Collection[str], tightening: Collection[str]) -> Held | None:
    """Why the change must not be made; None = it may."""
    if change.field == _TAGS and change.desired == "enabled" and seen.unfit_tags is not False:
        why = "a tag's key holds a character that" if seen.unfit_tags else "EC2 does not tell the tags, so"
        return Held(change, Reason.TAG_KEYS_UNFIT, f"{why} EC2 would refuse it; take the option out")
    if change.loosens and change.loosens not in loosening:
        return Held(
            change,
            Reason.LOOSENING_NOT_ALLOWED,
            f"it opens the instance: add {change.loosens} to spec.safety.allowLoosening to have it made",
        )
    if change.tightens and change.tightens not in tightening:
        return Held(
            change,
            Reason.TIGHTENING_NOT_ALLOWED,
            f"it closes the instance to whoever still needs it: add {change.tightens} to "
            "spec.safety.allowTightening to have it made",
        )
    return None


def parameters(wanted: Mapping[str, Wanted], mine: str, leave: Collection[str], seen: Seen) -> dict[str, Any]:
    """What is sent: every field that the policy wins and may set, and HttpEndpoint, which EC2 wants along
    (EC2 API reference, ModifyInstanceMetadataOptions); never an empty value. A disabled endpoint that stays
    so is left out: EC2 takes no other option beside it. So is one that another policy closes: it may have
    done so since the instance was read."""
    sent = {
        field: one.value
        for field, one in sorted(wanted.items())
        if one.policy == mine and not one.rivals and field not in leave
    }
    closing = _ENDPOINT in wanted and wanted[_ENDPOINT].value == "disabled"
    if seen.options.http_endpoint == "enabled" and not closing:
        sent.setdefault(_ENDPOINT, "enabled")
    return {ec2_name(field): value for field, value in sent.items()}


def ec2_name(field: str) -> str:
    """HttpTokens for httpTokens."""
    return field[0].upper() + field[1:]
