"""The desired options of one instance, merged from several policies field by field. Pure.

The higher priority wins each field. Equal priorities with different values are a conflict: no policy
writes the field until one of the two changes, so that they never write by turns.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from caretaker.api.imds import Options


class PolicyOptions(msgspec.Struct, frozen=True, gc=False):
    """The options that one policy sets on an instance."""

    policy: str
    priority: int
    options: Options


class DesiredOption(msgspec.Struct, frozen=True, gc=False):
    """One field: its value and the policy that wins it. In a conflict there is no winner."""

    value: Any
    policy: str
    priority: int
    losers: tuple[str, ...] = ()  # policies that want another value, with less priority
    rivals: tuple[str, ...] = ()  # policies in conflict, this one included; empty = none


def merge(claims: Iterable[PolicyOptions]) -> Mapping[str, DesiredOption]:
    """Field (as in the API) -> the winning option. The order of `claims` does not matter."""
    fields: dict[str, list[tuple[int, str, Any]]] = {}
    for claim in claims:
        for field, value in claim.options.given():
            fields.setdefault(field, []).append((-claim.priority, claim.policy, value))
    return {field: _winner(sorted(found)) for field, found in fields.items()}


def _winner(found: list[tuple[int, str, Any]]) -> DesiredOption:
    order, policy, value = found[0]
    first = [one for one in found if one[0] == order]
    rivals = tuple(name for _, name, _ in first) if any(one[2] != value for one in first) else ()
    losers = tuple(name for rank, name, wanted in found if rank != order and wanted != value)
    return DesiredOption(value, policy, -order, losers, rivals)
