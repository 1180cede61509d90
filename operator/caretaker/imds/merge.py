"""What several policies together want of one instance, field by field. Pure.

The higher priority wins each field. Equal priorities with different values are a conflict: the field is
nobody's until one of the two changes, so that two policies never write by turns.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from caretaker.api.imds import Options


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What one policy wants of an instance."""

    policy: str
    priority: int
    options: Options


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """One field: who wins it. In a conflict there is no winner."""

    value: Any
    policy: str
    priority: int
    losers: tuple[str, ...] = ()  # policies that want another value, with less priority
    rivals: tuple[str, ...] = ()  # policies in conflict, this one included; empty = none


def merge(claims: Iterable[Claim]) -> Mapping[str, Wanted]:
    """Field (as in the API) -> who wins it. The order of `claims` does not matter."""
    fields: dict[str, list[tuple[int, str, Any]]] = {}
    for claim in claims:
        for field, value in claim.options.given():
            fields.setdefault(field, []).append((-claim.priority, claim.policy, value))
    return {field: _winner(sorted(found)) for field, found in fields.items()}


def _winner(found: list[tuple[int, str, Any]]) -> Wanted:
    order, policy, value = found[0]
    first = [one for one in found if one[0] == order]
    rivals = tuple(name for _, name, _ in first) if any(one[2] != value for one in first) else ()
    losers = tuple(name for rank, name, wanted in found if rank != order and wanted != value)
    return Wanted(value, policy, -order, losers, rivals)
