"""The health of a node: Ready, and the conditions of spec.healthGate.

Pure: (Node, listed conditions) -> NodeHealth. A listed condition that the node does not have is healthy:
problem detectors run on some nodes only. One whose status is Unknown is not: its reporter is silent.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from caretaker.api.health_gate import HealthCondition
from caretaker.api.objects import Node
from caretaker.api.times import past
from caretaker.api.wire_conditions import NodeCondition

NODE_NOT_READY: Final = "NodeNotReady"
NODE_UNHEALTHY: Final = "NodeUnhealthy"
UNWELL: Final = (NODE_NOT_READY, NODE_UNHEALTHY)  # reasons of a node that its run may have broken


class NodeHealth(msgspec.Struct, frozen=True, gc=False):
    """Whether a node is Ready with every listed condition healthy, since when, and the fault in words."""

    healthy: bool
    since: float
    message: str = ""


def unhealthy(node: Node, listed: Sequence[HealthCondition]) -> list[NodeCondition]:
    """The listed conditions that do not have their healthy status, sorted by type."""
    wanted = {one.type: one.status for one in listed}
    return [found for found in node.conditions if wanted.get(found[0], found[1]) != found[1]]


def words_of(condition: NodeCondition) -> str:
    """The condition in a message."""
    kind, status, _ = condition
    return f"the node's condition {kind} is {status}"


def health_of(node: Node, listed: Sequence[HealthCondition], now: float) -> NodeHealth:
    """The health now. `since` is when the first fault began, or the last one ended; a time ahead of `now` is
    of a wrong clock, and counts as long ago."""
    if not listed:
        return NodeHealth(node.ready, past(node.ready_since, now))
    bad = unhealthy(node, listed)
    faults = [past(since, now) for _, _, since in bad]
    if not node.ready:
        return NodeHealth(False, min([past(node.ready_since, now), *faults]))
    if bad:
        return NodeHealth(False, min(faults), words_of(bad[0]))
    types = {one.type for one in listed}
    ended = [past(since, now) for kind, _, since in node.conditions if kind in types]
    return NodeHealth(True, max([past(node.ready_since, now), *ended]))
