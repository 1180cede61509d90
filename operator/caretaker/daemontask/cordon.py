"""The mark that a DaemonTask leaves on a node which it has cordoned, and the patches that set and take it.

Pure. The mark is an annotation beside spec.unschedulable; both are written and removed together, on condition
of the node's resourceVersion. A node is a task's own only while it has both: an annotation alone is left from
a cordon that another client has ended, and a cordon alone is another client's.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from caretaker.api.names import CORDONED_BY
from caretaker.api.objects import Node, WireMeta
from caretaker.api.times import format_time, parse_time

_PARTS: Final = 4


class Cordons(msgspec.Struct, frozen=True):
    """The cordons that a task could not set.

    unsure   node UID -> (name, resourceVersion) of requests without an answer: each may be executed later,
             until the node has been written by others, and holds a slot until then
    message  why the last one was refused; "" = it was not
    times    how often in a row
    denied   whether a right is missing: nodes that were cordoned are given back
    until    no cordon is tried before
    """

    unsure: Mapping[str, tuple[str, int]] = {}
    message: str = ""
    times: int = 0
    denied: bool = False
    until: float = 0.0


class Mark(msgspec.Struct, frozen=True):
    """Which task cordoned the node, and when, in seconds since the epoch; 0 where that cannot be read."""

    namespace: str
    name: str
    uid: str
    time: float


def mark_of(node: Node) -> Mark | None:
    """The mark on the node. None: there is none, or one that no task wrote."""
    if not node.cordon:
        return None
    parts = node.cordon.split("/")
    if len(parts) != _PARTS or not all(parts[:3]):
        return None
    namespace, name, uid, time = parts
    return Mark(namespace, name, uid, parse_time(time) or 0.0)


def is_cordoned_by(node: Node, uid: str) -> bool:
    """Whether this task has cordoned the node, and no client has uncordoned it."""
    mark = mark_of(node) if node.unschedulable else None
    return mark is not None and mark.uid == uid


def cordoning(node: Node, version: int, task: WireMeta, now: float) -> dict[str, Any]:
    """The merge patch that cordons and marks a node which is as it was seen; else it is refused with 409."""
    mark = "/".join((task.namespace, task.name, task.uid, format_time(now)))
    return _patch(node, version, mark, {"unschedulable": True})


def uncordoning(node: Node, version: int, *, theirs: bool = False) -> dict[str, Any]:
    """The merge patch that takes the mark back, and with it the cordon where there is one; `theirs`: but not
    that, which is a person's."""
    ends = node.unschedulable and not theirs
    return _patch(node, version, None, {"unschedulable": None} if ends else {})


def ended(mark: str) -> str:
    """The mark of a cordon that a person has ended: of no task's own, but of the same name."""
    parts = mark.split("/")
    return "/".join((*parts[:2], "-", parts[3])) if len(parts) == _PARTS else mark


def _patch(node: Node, version: int, mark: str | None, spec: dict[str, Any]) -> dict[str, Any]:
    meta = {"uid": node.uid, "resourceVersion": str(version), "annotations": {CORDONED_BY: mark}}
    return {"metadata": meta, **({"spec": spec} if spec else {})}
