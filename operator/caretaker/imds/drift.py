"""How an instance differs from what is wanted of it, and whether the change would open it. Pure.

Opening ("loosening") is: a higher hop limit, tokens no longer required, the endpoint, tags or IPv6 switched
on. A hop limit of 1 with optional tokens is the worst pair: slow for pods and open to IMDSv1.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from caretaker.api.imds import Options
from caretaker.imds.merge import Wanted

# As spec.safety.allowLoosening names them.
_LOOSENING: Final = {
    "httpPutResponseHopLimit": "HopLimit",
    "httpTokens": "Tokens",
    "httpEndpoint": "Endpoint",
    "httpProtocolIpv6": "IPv6",
    "instanceMetadataTags": "Tags",
}
_OPEN: Final = {"optional", "enabled"}


class Change(msgspec.Struct, frozen=True, gc=False):
    """One field that is not as it should be. `current` None: EC2 does not tell it.

    loosens  the name under which such a change has to be allowed; "" = it does not open the instance
    """

    field: str
    current: Any
    desired: Any
    policy: str
    loosens: str = ""


def changes(current: Options, wanted: Mapping[str, Wanted]) -> tuple[Change, ...]:
    """What would have to change, by field. Fields in conflict stay as they are."""
    has = dict(current.given())
    return tuple(
        Change(field, has.get(field), one.value, one.policy, loosening(field, has.get(field), one.value))
        for field, one in sorted(wanted.items())
        if not one.rivals and has.get(field) != one.value
    )


def loosening(field: str, current: Any, desired: Any) -> str:
    """See Change.loosens. What is not known counts as closed: to set it may open the instance."""
    return _LOOSENING[field] if _opens(current, desired) else ""


def _opens(current: Any, desired: Any) -> bool:
    if isinstance(desired, int):
        return current is None or desired > current
    return desired in _OPEN


def slow_and_open(options: Options) -> bool:
    """Whether pods wait for IMDSv2 in vain and then get IMDSv1."""
    return (
        options.http_endpoint != "disabled"
        and options.http_put_response_hop_limit == 1
        and options.http_tokens == "optional"
    )
