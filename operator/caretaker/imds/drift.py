"""How an instance differs from what is wanted of it, and whether the change would open or close it. Pure.

Opening ("loosening") is: a higher hop limit, tokens no longer required, the endpoint, tags or IPv6 switched
on. Closing ("tightening") is the contrary. A hop limit of 1 with optional tokens is the worst pair: slow for
pods and open to IMDSv1.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from caretaker.api.imds import FieldChange, Options
from caretaker.imds.merge import Wanted

HOP_LIMIT: Final = "httpPutResponseHopLimit"
_UNKNOWN: Final = "unknown"
# As spec.safety.allowLoosening and allowTightening name them.
_NAMES: Final = {
    "httpPutResponseHopLimit": "HopLimit",
    "httpTokens": "Tokens",
    "httpEndpoint": "Endpoint",
    "httpProtocolIpv6": "IPv6",
    "instanceMetadataTags": "Tags",
}
_OPEN: Final = {"optional", "enabled"}


class Change(msgspec.Struct, frozen=True, gc=False):
    """One field that is not as it should be. `current` None: EC2 does not tell it.

    loosens   the name under which such a change has to be allowed; "" = it does not open the instance
    tightens  the same of one that closes it
    """

    field: str
    current: Any
    desired: Any
    policy: str
    loosens: str = ""
    tightens: str = ""


def changes(current: Options, wanted: Mapping[str, Wanted]) -> tuple[Change, ...]:
    """What would have to change, by field. Fields in conflict stay as they are."""
    has = dict(current.given())
    return tuple(
        _change(field, has.get(field), one)
        for field, one in sorted(wanted.items())
        if not one.rivals and has.get(field) != one.value
    )


def _change(field: str, current: Any, wanted: Wanted) -> Change:
    name = _NAMES[field]
    loosens = name if opens(current, wanted.value) else ""
    return Change(
        field, current, wanted.value, wanted.policy, loosens, name if closes(current, wanted.value) else ""
    )


def opens(current: Any, desired: Any) -> bool:
    """Whether it opens the instance. What is not known may be open or closed: a number may do either."""
    if isinstance(desired, int):
        return current is None or desired > current
    return desired in _OPEN


def closes(current: Any, desired: Any) -> bool:
    """Whether it closes the instance."""
    if isinstance(desired, int):
        return current is None or desired < current
    return desired not in _OPEN


def text(value: object) -> str:
    """As status has a value."""
    return _UNKNOWN if value is None else str(value)


def value(change: FieldChange, told: str) -> Any:
    """As EC2 has it; None = not known."""
    if change.field == HOP_LIMIT:
        return int(told) if told.isdecimal() and len(told) < 10 else None
    return None if told == _UNKNOWN else told


def change_of(change: Change) -> FieldChange:
    """What counts of it."""
    return FieldChange(change.field, text(change.current), text(change.desired))


def slow_and_open(options: Options) -> bool:
    """Whether pods wait for IMDSv2 in vain and then get IMDSv1."""
    return (
        options.http_endpoint != "disabled"
        and options.http_put_response_hop_limit == 1
        and options.http_tokens == "optional"
    )
