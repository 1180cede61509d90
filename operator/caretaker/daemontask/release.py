"""Which nodes lose the cordon of their task: those that no run needs any more, and those beyond its slots.

Pure.
"""

from collections.abc import Collection, Iterable

from caretaker.api.conditions import Reason
from caretaker.api.objects import Node
from caretaker.daemontask.cordon import is_cordoned_by, mark_of
from caretaker.daemontask.decision import CANARY_SOAKING, DRAINING, NodeReport
from caretaker.daemontask.intents import is_open
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.node_eligibility import TAINT
from caretaker.daemontask.node_health import UNWELL
from caretaker.daemontask.run_triggers import NO_PODS
from caretaker.daemontask.snapshot import Snapshot


def releases(snapshot: Snapshot, reports: Iterable[NodeReport], hold: str, *, gated: bool) -> list[Node]:
    """The nodes that lose the mark of this task, or of an earlier one of its name, and the cordon with it.
    `hold`: why nothing may begin; `gated`: nodes that have not failed may not."""
    meta, found = snapshot.task.metadata, list[Node]()
    for report in reports:
        mark, pods = mark_of(report.node), snapshot.pods.get(report.node.uid, NO_PODS)
        if mark is None or (mark.namespace, mark.name) != (meta.namespace, meta.name):
            continue
        if report.node.uid in snapshot.namesakes or any(not pod.terminal for pod in pods.values()):
            continue  # a run goes on there
        if not is_cordoned_by(report.node, meta.uid) or _is_over(snapshot, report, hold, gated=gated):
            found.append(report.node)
    return found


def surplus(
    snapshot: Snapshot, reports: Iterable[NodeReport], kept: Collection[str], over: int
) -> list[Node]:
    """`over` of the nodes that are cordoned and have not begun their run, the last that were cordoned, where
    fewer slots are left than nodes hold; none of those `kept` (UIDs)."""
    found = list[tuple[float, str, Node]]()
    for report in reports:
        node, decision, entry = report.node, report.decision, report.entry
        mark, pods = mark_of(node), snapshot.pods.get(node.uid, NO_PODS)
        waits = decision.state in ("pending", "blocked") or decision.reason == DRAINING
        if mark is None or not (decision.cordoned and waits) or node.uid in kept:
            continue
        lives = any(not pod.terminal for pod in pods.values())
        if decision.record is None and not lives and not _has_begun(snapshot, entry):
            found.append((mark.time, node.name, node))
    found.sort(key=lambda one: one[:2], reverse=True)
    return [node for _, _, node in found[: max(over, 0)]]


def _has_begun(snapshot: Snapshot, entry: Entry | None) -> bool:
    """Whether an attempt at the run has ended or may be under way, or an end must keep the node."""
    drain = snapshot.task.spec.drain
    if entry is None or entry.result == "Succeeded":
        return entry is not None and is_open(entry)
    if is_open(entry) or (
        drain is not None and drain.on_failure == "KeepCordoned" and _attempt_failed(entry)
    ):
        return True
    again = entry.result == "Retry" and entry.revision == snapshot.revision
    return again and entry.attempts + entry.disruptions > 0


def _attempt_failed(entry: Entry | None) -> bool:
    return entry is not None and (
        entry.result == "Failed" or (entry.result == "Retry" and entry.attempts > 0)
    )


def _is_over(snapshot: Snapshot, report: NodeReport, hold: str, *, gated: bool) -> bool:
    """Whether no run of this task needs the node cordoned."""
    decision, entry, drain = report.decision, report.entry, snapshot.task.spec.drain
    if decision.record is not None or (entry is not None and is_open(entry)):
        return False
    if drain is None or decision.state == "excluded" or decision.reason == Reason.AWAITING_SCHEDULE:
        return True
    if decision.state == "succeeded":
        return not decision.slot or decision.reason == CANARY_SOAKING
    broke = entry is not None and entry.result == "Succeeded" and decision.failing
    if drain.on_failure == "KeepCordoned" and (broke or _attempt_failed(entry)):
        return False  # only a success shows that the node is whole
    # Of a node that waits for another task, that task may have to run there first.
    ended = decision.state == "failed" or decision.overdue or decision.reason == Reason.AWAITING_DEPENDENCY
    if ended or hold or snapshot.cordons.denied or (gated and not decision.failing):
        return True
    # One that is NotReady or unhealthy for long has not begun: it gives its slot back. So does one with a
    # taint on which the run has failed, after the progress deadline.
    late = decision.since + snapshot.task.spec.progress_deadline_seconds
    unwell = decision.reason in UNWELL and decision.since > 0 and late <= snapshot.now
    return unwell or (decision.reason == TAINT and not decision.slot)
