"""Tasks that exclude each other on a node (spec.exclusive): what each holds, and what another may begin.

Pure. A member of a group holds a node while a Pod of it lives there, while it has the node cordoned, and
while the node has one of its slots, in backoff, too. Another member waits for that node, without a slot. A
member that starts nothing (suspended, paused, invalid) holds only the nodes where one of its runs goes on; so
does any member of the nodes where it waits for a task of spec.dependsOn, which may have to run there first.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from caretaker.api.conditions import Reason
from caretaker.api.daemontask import resolve
from caretaker.api.objects import Pod
from caretaker.daemontask.decision import NodeReport
from caretaker.daemontask.group_view import GroupView, Hold, Holding, Other
from caretaker.daemontask.node_summary import NodeSummary
from caretaker.daemontask.slots import SlotAssignment, is_idle
from caretaker.daemontask.snapshot import Snapshot

_NAMED: Final = 3  # tasks in a sentence


def holding(snapshot: Snapshot, nodes: NodeSummary, hold: str) -> Holding:
    """The nodes and slots of the task. `hold`: why it starts nothing, if so."""
    view = snapshot.exclusion
    unsure = view.unsure if view is not None else frozenset()
    live = {uid for uid, pods in snapshot.pods.items() if any(not pod.terminal for pod in pods.values())}
    # A Pod whose deletion frees a slot lives until it is gone.
    freed = {pod.node_uid for pod in nodes.freed_slots} & live
    live |= _successors(snapshot)
    held = [
        report for report in nodes.holders if not (hold or _is_ordered(report)) or _has_begun(report, live)
    ]
    slots = {report.node.uid for report in held} | freed | unsure
    idle = {report.node.uid for report in held if is_idle(report)} - live - unsure
    return Holding(
        nodes={**dict.fromkeys(slots, False), **dict.fromkeys(live | unsure, True)},
        slots=frozenset(slots),
        busy=frozenset(slots - idle),
        width=_width(snapshot, nodes.desired),
    )


def _successors(snapshot: Snapshot) -> set[str]:
    """UIDs of nodes with the name of one that is gone, which may be the same machine, and has a live Pod."""
    left = (pod for uid in snapshot.left_behind for pod in snapshot.pods[uid].values())
    names = {pod.node_name for pod in left if not pod.terminal}
    return {snapshot.nodes[name].uid for name in names if name in snapshot.nodes}


def _has_begun(report: NodeReport, live: Collection[str]) -> bool:
    decision = report.decision
    return decision.state == "active" or decision.cordoned or report.node.uid in live


def _is_ordered(report: NodeReport) -> bool:
    return report.decision.reason == Reason.AWAITING_DEPENDENCY


def _width(snapshot: Snapshot, desired: int) -> int | None:
    exclusive = snapshot.task.spec.exclusive
    if exclusive is None or exclusive.parallelism is None:
        return None
    if not desired and isinstance(exclusive.parallelism, str):
        return None  # a percentage of no node, as of a selector that matches none yet, limits no other task
    return max(resolve(exclusive.parallelism, desired, up=True), 1)


def of_pods(pods: Iterable[Pod], uids: Mapping[str, str]) -> Holding:
    """What tasks hold that are deleted: the nodes of their live Pods. `uids`: node name -> UID of the node
    that has the name now, which may be the same machine."""
    found = {uids.get(pod.node_name, pod.node_uid) for pod in pods if not pod.terminal}
    return Holding(dict.fromkeys(found, True), frozenset(found), frozenset(found))


def view_of(name: str, others: Sequence[Other], unsure: frozenset[str] = frozenset()) -> GroupView:
    """The group as the task `name` sees it. Where two tasks hold a node, the first by name runs first."""
    held: dict[str, Hold] = {}
    for other in others:
        for uid in other.offered:
            held.setdefault(uid, Hold(other.name, always=False))
    for other in others:
        for uid, lives in other.holding.nodes.items():
            always = lives or other.name < name
            if always or uid not in held:
                held[uid] = Hold(other.name, always)
    widths = [width for other in others if (width := other.holding.width) is not None]
    return GroupView(
        held=held,
        unread=tuple(sorted(other.name for other in others if not other.read)),
        width=min(widths, default=None),
        slots=sum(len(other.holding.slots) for other in others),
        busy=sum(len(other.holding.busy) for other in others),
        ahead=sum(other.turn for other in others),
        holders=tuple(sorted({other.name for other in others if other.holding.slots})),
        unsure=unsure,
        wake=min((other.until for other in others if other.until), default=0.0),
    )


def admitted(view: GroupView, mine: Holding, uids: Iterable[str]) -> list[str]:
    """Of these nodes, in this order, those where the task may begin."""
    if view.unread:
        return []
    width = limit(view, mine)
    slots, busy, found = set(mine.slots), set(mine.busy), list[str]()
    for uid in uids:
        hold = view.held.get(uid)
        if hold is not None and (hold.always or uid not in mine.nodes):
            continue
        # A retry has its slot: it waits for those that run, not for others in backoff.
        taken = view.busy + len(busy) if uid in slots else view.slots + len(slots)
        if width is not None and uid not in busy and (taken >= width or (view.ahead and uid not in slots)):
            continue
        slots.add(uid)
        busy.add(uid)
        found.append(uid)
    return found


def limit(view: GroupView, mine: Holding) -> int | None:
    """How many nodes the group may hold at a time; None: any number."""
    return min((width for width in (view.width, mine.width) if width is not None), default=None)


def limited(
    view: GroupView | None, mine: Holding | None, assignment: SlotAssignment
) -> tuple[SlotAssignment, bool]:
    """(the assignment without starts that the group does not allow now, whether there were any)."""
    if view is None or mine is None:
        return assignment, False
    kept = set(admitted(view, mine, [report.node.uid for report in assignment.starts]))
    if len(kept) == len(assignment.starts):
        return assignment, False
    starts = tuple(report for report in assignment.starts if report.node.uid in kept)
    own = sum(report.node.uid in kept for report in assignment.starts[: assignment.own])
    return msgspec.structs.replace(assignment, starts=starts, own=own), True


def waiting_words(snapshot: Snapshot, nodes: NodeSummary, mine: Holding | None, *, short: bool) -> str:
    """Which nodes wait for which tasks of the group, in a sentence; "" = none does."""
    view, spec = snapshot.exclusion, snapshot.task.spec.exclusive
    if view is None or mine is None or spec is None:
        return ""
    group = f"exclusive group {spec.group}"
    if view.unread and short:
        return f"nothing starts before the operator has read {_tasks(view.unread)} of {group}"
    if nodes.kept_out:
        held = {view.held[report.node.uid].task for report in nodes.kept_out if report.node.uid in view.held}
        return f"{len(nodes.kept_out)} node(s) wait for {_tasks(sorted(held))} of {group}"
    if short:
        by = f", taken by {_tasks(view.holders)}" if view.holders else ""
        return f"{group} may run on {limit(view, mine)} node(s) at a time{by}"
    return ""


def waits(nodes: NodeSummary, *, short: bool) -> bool:
    """Whether any node waits for the group."""
    return short or bool(nodes.kept_out)


def _tasks(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"DaemonTask{'s' * (len(names) > 1)} {', '.join(names[:_NAMED])}{more}"
