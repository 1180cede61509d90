"""Differences between an instance and its desired options, and whether a change opens or closes it. Pure.

Opening ("loosening") is: a higher hop limit, tokens no longer required, the endpoint, tags or IPv6 enabled.
Closing ("tightening") is the opposite. A hop limit of 1 with optional tokens is the worst pair: slow for
pods and open to IMDSv1.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from caretaker.api.imds import FieldChange, Options
from caretaker.imds.merge import DesiredOption

HOP_LIMIT: Final = "httpPutResponseHopLimit"
TOKENS: Final = "httpTokens"
_UNKNOWN: Final = "unknown"
_NONE: Final = Options()
# Values of spec.safety.allowLoosening and allowTightening.
_NAMES: Final = {
    "httpPutResponseHopLimit": "HopLimit",
    "httpTokens": "Tokens",
    "httpEndpoint": "Endpoint",
    "httpProtocolIpv6": "IPv6",
    "instanceMetadataTags": "Tags",
}
_OPEN: Final = {"optional", "enabled"}


def requires_tokens(changes: Iterable[FieldChange]) -> bool:
    """Whether they close IMDSv1."""
    return any(one.field == TOKENS and one.after == "required" for one in changes)


def closed_to_pods(options: Options, changes: Iterable[FieldChange] = ()) -> bool:
    """Whether they lead to hop limit 1 with required tokens: pods then get neither IMDSv2 nor IMDSv1."""
    after = {one.field: one.after for one in changes}
    hop_limit = after.get(HOP_LIMIT) or text(options.http_put_response_hop_limit)
    return hop_limit == "1" and (after.get(TOKENS) or options.http_tokens) == "required"


class OptionChange(msgspec.Struct, frozen=True, gc=False):
    """One field that differs. `current` None: EC2 does not report it.

    loosens   value of allowLoosening that allows the change; "" = it does not open the instance
    tightens  value of allowTightening that allows it; "" = it does not close the instance
    """

    field: str
    current: Any
    desired: Any
    policy: str
    loosens: str = ""
    tightens: str = ""


def changes(current: Options, desired: Mapping[str, DesiredOption]) -> tuple[OptionChange, ...]:
    """The differences, by field. Fields in conflict stay as they are."""
    has = dict(current.given())
    return tuple(
        _change(field, has.get(field), one)
        for field, one in sorted(desired.items())
        if not one.rivals and has.get(field) != one.value
    )


def _change(field: str, current: Any, desired: DesiredOption) -> OptionChange:
    name = _NAMES[field]
    loosens = name if opens(current, desired.value) else ""
    return OptionChange(
        field, current, desired.value, desired.policy, loosens, name if closes(current, desired.value) else ""
    )


def without_inherited(
    differs: Iterable[OptionChange], defaults: Options
) -> tuple[tuple[OptionChange, ...], str]:
    """The differences of a launch source but for unset options that an instance gets from the account's
    `defaults` as desired; and these, in words."""
    account = dict(defaults.given())
    left: list[OptionChange] = []
    inherited: list[OptionChange] = []
    for one in differs:
        same = one.current is None and account.get(one.field) == one.desired
        (inherited if same else left).append(one)
    names = ", ".join(f"{one.field} {one.desired}" for one in inherited)
    return tuple(left), names and f"not set, the account's default: {names}"


def differences(differs: Iterable[OptionChange], defaults: Options = _NONE) -> str:
    """In words. `defaults`: the account's, which an instance gets for an unset option."""
    account = dict(defaults.given())
    shown = []
    for one in differs:
        has = "not set" if one.current is None else str(one.current)
        if one.current is None and one.field in account:
            has += f" (the account's default is {account[one.field]})"
        shown.append(f"{one.field} is {has}, should be {one.desired}")
    return ", ".join(shown)


def opens(current: Any, desired: Any) -> bool:
    """Whether it opens the instance. From an unknown value a number may open or close."""
    if isinstance(desired, int):
        return current is None or desired > current
    return desired in _OPEN


def closes(current: Any, desired: Any) -> bool:
    """Whether it closes the instance."""
    if isinstance(desired, int):
        return current is None or desired < current
    return desired not in _OPEN


def text(value: object) -> str:
    """The value as text, for status."""
    return _UNKNOWN if value is None else str(value)


def value(change: FieldChange, reported: str) -> Any:
    """The value of EC2 from text; None = unknown."""
    if change.field == HOP_LIMIT:
        return int(reported) if reported.isdecimal() and len(reported) < 10 else None
    return None if reported == _UNKNOWN else reported


def change_of(change: OptionChange) -> FieldChange:
    """The change as in status."""
    return FieldChange(change.field, text(change.current), text(change.desired))


def slow_and_open(options: Options) -> bool:
    """Whether pods wait for IMDSv2 in vain and then get IMDSv1."""
    return (
        options.http_endpoint != "disabled"
        and options.http_put_response_hop_limit == 1
        and options.http_tokens == "optional"
    )
