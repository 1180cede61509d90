"""Which nodes hold the slots that parallelism and budgets give, and which nodes get the free ones.

Pure. A node holds its slot from the start of its run until it succeeds (and minSuccessSeconds have passed) or
has used up its retries: in backoff, too. So never more nodes than slots are in the middle of a run, even if
the run breaks them.
"""

import heapq
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Final

import msgspec

from caretaker.api.conditions import Reason
from caretaker.api.daemontask import Slot, resolve
from caretaker.api.hashing import digest
from caretaker.api.times import format_time
from caretaker.daemontask.budgets import Allowance, allowance
from caretaker.daemontask.decision import (
    BACKOFF,
    CORDONED,
    POD_REFUSED,
    PREDECESSOR_TERMINATING,
    QUEUED,
    STARTING,
    Decision,
    DecisionInput,
    NodeReport,
    PodsByNode,
)
from caretaker.daemontask.dependencies import Dependencies

_RETRYING: Final = (BACKOFF, QUEUED, POD_REFUSED, Reason.AWAITING_DEPENDENCY, Reason.HELD_BY_GROUP)
RUNNING: Final = "Running"
# Reasons of an active node in the ordinary course of its run.
_ORDINARY: Final = frozenset((*STARTING, "Scheduling", "Starting", RUNNING))


class Room(msgspec.Struct, frozen=True):
    """How many nodes may hold a slot at a time.

    width            now
    beyond           once no budget is active
    budget           the limit that makes width smaller than beyond; None: there is none
    budget_boundary  when any budget next begins or ends; 0 = never
    """

    width: int
    beyond: int
    budget: Allowance | None = None
    budget_boundary: float = 0.0


class SlotAssignment(msgspec.Struct, frozen=True):
    """The assignment of the free slots to nodes.

    starts  nodes that may start, those that hold a slot already first
    own     how many of them do
    free    slots that no node holds; below 0 where a budget or a smaller cluster has taken some away
    idle    slots held by nodes that wait for their next attempt
    short   other nodes wait for a slot
    """

    starts: tuple[NodeReport, ...] = ()
    own: int = 0
    free: int = 0
    idle: int = 0
    short: bool = False


def room_for(inputs: DecisionInput, desired: int, unlimited: int, *, invalid: bool) -> Room:
    """The room that parallelism and budgets give; `unlimited` where the spec sets no limit. Of an `invalid`
    spec no budget counts: its schedule may be the invalid part."""
    spec = inputs.spec
    parallelism = spec.parallelism
    width = unlimited if parallelism is None else max(resolve(parallelism, desired, up=True), 1)
    if not spec.budgets or invalid:
        return Room(width, width)
    allowed = allowance(spec, desired, inputs.now)
    if allowed.nodes is None or allowed.nodes >= width:
        return Room(width, width, budget_boundary=allowed.budget_boundary)
    return Room(allowed.nodes, width, allowed, allowed.budget_boundary)


def share_out(
    inputs: DecisionInput,
    width: int,
    holders: Sequence[NodeReport],
    wanting: Sequence[NodeReport],
    most: int,
) -> SlotAssignment:
    """The next `most` starts at the most. A retry takes the slot that its node holds; where fewer slots are
    left than nodes hold, it waits for those that run."""
    idle = sum(1 for report in holders if is_idle(report))
    free = width - len(holders)
    retries = [report for report in wanting if report.decision.slot]
    firsts = [report for report in wanting if not report.decision.slot] if retries else wanting
    starts = _first(inputs, retries, min(free + idle, most))
    own = len(starts)
    starts += _first(inputs, firsts, min(free, most - own))
    short = len(retries) > max(free + idle, 0) or len(firsts) > max(free, 0)
    return SlotAssignment(tuple(starts), own, free, idle, short)


def replaceable(allowed: int | None, pods: PodsByNode, wanting: int) -> int:
    """How many Pods may make way for new ones: of large Pods no more than may start (`allowed`), those
    included that are on their way."""
    if allowed is None:
        return sys.maxsize
    going = sum(bool(pod.deletion) for of_node in pods.values() for pod in of_node.values())
    return max(allowed - wanting - going, 0)


def paced(assignment: SlotAssignment, allowed: int | None) -> tuple[SlotAssignment, bool]:
    """(the first `allowed` starts, whether there were more); None = all of them."""
    if allowed is None or len(assignment.starts) <= allowed:
        return assignment, False
    return msgspec.structs.replace(
        assignment, starts=assignment.starts[:allowed], own=min(assignment.own, allowed)
    ), True


def is_idle(report: NodeReport) -> bool:
    """Whether the node waits for its next attempt: in its backoff, after the API server refused its Pod, or
    after its kubelet rejected the last one; or is drained."""
    entry, decision = report.entry, report.decision
    if decision.cordoned and decision.start:
        return True
    rejected = entry is not None and entry.rejections > 0 and decision.reason == entry.reason
    return decision.reason in _RETRYING or rejected


def _first(inputs: DecisionInput, reports: Iterable[NodeReport], count: int) -> list[NodeReport]:
    return heapq.nsmallest(max(count, 0), reports, key=partial(turn, inputs))


def still_free(assignment: SlotAssignment, starts: Sequence[object], held: int) -> tuple[int, int]:
    """(how many of the first `own` starts may go on, how many of the others) when `held` of the slots that
    were counted as free are not."""
    own = max(min(assignment.own, assignment.free + assignment.idle - held), 0)
    others = max(min(len(starts) - assignment.own, assignment.free - held), 0)
    return own, others


def turn(inputs: DecisionInput, report: NodeReport) -> tuple[float, bytes]:
    """The sort key of nodes that wait for a slot.

    A hash, so that two operators that overlap pick the same nodes. Nodes that no Pod reached when it was last
    tried (unschedulable, refused by the API server, rejected by the kubelet) go behind the others, the last
    one last, or one of them would hold the only slot for ever.
    """
    node, entry = report.node, report.entry
    behind = inputs.deprioritised.get(node.uid, 0.0)
    if entry is not None and entry.rejections:
        behind = max(behind, float(entry.finished_at))
    return behind, _shuffled(inputs.task_uid, node.uid)


_shuffled = lru_cache(maxsize=1 << 16)(digest)


# ---------------------------------------------------------------- slots in status


def all_stuck(inputs: DecisionInput, holders: Sequence[NodeReport], dependencies: Dependencies) -> bool:
    """Whether every slot is held by a node that has not moved for progressDeadlineSeconds."""
    return bool(holders) and all(_is_stuck(inputs, report, dependencies) for report in holders)


def _is_stuck(inputs: DecisionInput, report: NodeReport, dependencies: Dependencies) -> bool:
    decision, deadline = report.decision, inputs.spec.progress_deadline_seconds
    reason, since = _held_for(decision)
    if decision.state == "failed" and decision.cordoned:
        return inputs.spec.drain is not None  # it stays cordoned until a person has looked
    if not since or inputs.now < since + deadline:
        return False
    if decision.state == "active":
        return reason not in (RUNNING, "NodeNotReady")
    if reason == Reason.AWAITING_DEPENDENCY:  # a task that goes on shows by itself if it is stuck
        return decision.cordoned or dependencies.needs_action([decision.message])
    return reason == PREDECESSOR_TERMINATING


def _held_for(decision: Decision) -> tuple[str, float]:
    if decision.slot_for:
        return decision.slot_for, decision.slot_since
    return decision.reason, decision.since


def slot_of(report: NodeReport) -> Slot:
    """Why a node holds its slot, since when, and until when where that is known."""
    decision = report.decision
    reason, since = _held_for(decision)
    if decision.cordoned and not decision.slot:  # it holds the slot by its cordon alone
        return Slot(report.node.name, CORDONED, format_time(since) if since else None)
    if reason in _ORDINARY:
        return Slot(report.node.name, RUNNING, format_time(since))
    return Slot(
        node_name=report.node.name,
        reason=reason,
        since=format_time(since) if since else None,
        until=format_time(decision.slot_until) if decision.slot_until else None,
    )
