"""Conditions of Nodes and Pods as the API server sends them, and the part of a Node's that planners read.

Pure data. Heartbeats, reasons and messages of a Node are left out: a report that repeats the last one makes
an equal record.
"""

from collections.abc import Iterable
from sys import intern
from typing import Final

import msgspec

from caretaker.api.times import parse_time

NodeCondition = tuple[str, str, float]  # type, status, lastTransitionTime in seconds since the epoch

_TYPE: Final = 316  # characters of a condition's type, by the API's rule
_UNKNOWN: Final = "Unknown"
_STATUSES: Final = {
    status: status for status in ("True", "False", _UNKNOWN)
}  # of another one nothing is known


class WireCondition(msgspec.Struct, rename="camel"):
    """metav1.Condition and its older kin."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


def node_conditions(found: Iterable[WireCondition]) -> list[NodeCondition]:
    """The conditions of a Node, sorted. Types and statuses are the same on every node, and kept once."""
    # Most conditions of a node have the same time as the one before, which is parsed once.
    text, since = None, 0.0
    conditions = list[NodeCondition]()
    for one in found:
        if len(one.type) > _TYPE:
            continue
        if one.last_transition_time != text:
            text = one.last_transition_time
            since = parse_time(text) or 0.0
        conditions.append((intern(one.type), _STATUSES.get(one.status, _UNKNOWN), since))
    conditions.sort()
    return conditions
