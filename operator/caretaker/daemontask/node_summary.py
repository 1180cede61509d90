"""The sum of the decisions on all nodes: counts, lists for status, and the nodes that wait for a slot.

Pure: (Snapshot, reports) -> NodeSummary.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from caretaker.api import names
from caretaker.api.conditions import Reason
from caretaker.api.objects import Pod
from caretaker.daemontask.decision import POD_REFUSED, NodeReport, State
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.snapshot import Snapshot

STATES: Final[tuple[State, ...]] = ("excluded", "succeeded", "failed", "active", "pending", "blocked")
_AT_REST: Final = ("succeeded", "excluded")

Reports = tuple[NodeReport, ...]


class NodeSummary(msgspec.Struct, frozen=True):
    """The nodes of a plan. Most nodes of most passes are at rest, and only counted."""

    counts: Mapping[State, int] = {}
    records: Mapping[str, Entry] = {}  # node name -> entry
    deletes: tuple[Pod, ...] = ()
    freed_slots: tuple[Pod, ...] = ()  # live ones of `deletes` whose slots are counted as free
    holders: Reports = ()  # nodes that hold a slot
    wanting: Reports = ()  # nodes that want to start
    replaced: tuple[Pod, ...] = ()  # active, of runs that a newer one replaces
    failed: Reports = ()
    failing: Reports = ()
    blocked: Reports = ()
    stuck: Reports = ()  # active for longer than the progress deadline without running
    unplaced: Reports = ()  # their Pod was given up unscheduled, and none was placed since
    overdue: Reports = ()  # the deadline of the rollout keeps them from their run
    gated: Reports = ()  # nodes with the taint of spec.nodeGate
    marked: Reports = ()  # nodes that a task has cordoned, or had
    duplicates: tuple[str, ...] = ()
    waiting: Mapping[str, int] = {}  # why active Pods are not running -> how many
    resting: int = 0  # succeeded nodes that hold a slot for minSuccessSeconds
    earlier: int = 0  # succeeded nodes whose run was of another revision, with rerunOn: []
    kept_out: Reports = ()  # nodes that wait for another task of spec.exclusive.group
    awaiting: int = 0  # pending nodes that wait for the schedule's first tick
    ordered: Mapping[str, int] = {}  # what pending nodes wait for by spec.dependsOn -> how many
    last_completion: float = 0.0
    wake: float = 0.0

    @property
    def refused(self) -> list[NodeReport]:
        """Nodes for which the API server creates no Pod."""
        return [report for report in self.blocked if report.decision.reason == POD_REFUSED]

    @property
    def desired(self) -> int:
        """Nodes that count: all but the excluded."""
        return sum(n for state, n in self.counts.items() if state != "excluded")


def summary_of(snapshot: Snapshot, reports: Sequence[NodeReport]) -> NodeSummary:
    """The decisions, added up. Every pass runs this for every node."""
    counts = dict.fromkeys(STATES, 0)
    busy: list[NodeReport] = []
    by_state: dict[State, list[NodeReport]] = {state: [] for state in STATES}
    rules, revision, last_completion, earlier = snapshot.eligibility_rules, snapshot.revision, 0.0, 0
    for report in reports:
        decision, entry = report.decision, report.entry
        counts[decision.state] += 1
        # A node at rest is only counted, unless one of these holds. Here and not in a function, which would
        # take a tenth of a pass over nodes at rest.
        if (
            decision.state not in _AT_REST
            or decision.slot
            or decision.cordoned
            or decision.wake
            or decision.record is not None
            or decision.failing
            or decision.delete
            or report.expired
            or report.expires
        ):
            busy.append(report)
            by_state[decision.state].append(report)
        if entry is not None and entry.result == "Succeeded":
            if entry.finished_at > last_completion:  # noqa: PLR1730 - max() takes three times as long
                last_completion = entry.finished_at
            if entry.revision != revision and decision.state == "succeeded":
                earlier += 1
    blocked, active, pending = by_state["blocked"], by_state["active"], by_state["pending"]
    orphans, freed = _orphans(snapshot)
    deleting = [report for report in busy if report.decision.delete or report.expired]
    waiting = [report for report in active if report.decision.reason not in _MOVING]
    deadline = snapshot.task.spec.progress_deadline_seconds
    unplaced = (*active, *pending, *blocked) if snapshot.unplaced else blocked
    bounded = (*pending, *blocked) if snapshot.task.spec.rollout_deadline_seconds is not None else ()
    reasons = Counter([report.decision.reason for report in pending])
    ordered = _of(pending, Reason.AWAITING_DEPENDENCY) if reasons[Reason.AWAITING_DEPENDENCY] else ()
    return NodeSummary(
        counts=counts,
        records={r.node.name: r.decision.record for r in busy if r.decision.record is not None},
        deletes=(*(pod for r in deleting for pod in (*r.decision.delete, *r.expired)), *orphans),
        freed_slots=(*(pod for r in deleting if not r.decision.slot for pod in r.decision.delete), *freed),
        holders=tuple([report for report in busy if report.decision.slot or report.decision.cordoned]),
        wanting=tuple([report for report in (*pending, *blocked) if report.decision.start]),
        replaced=tuple([pod for r in busy if (pod := r.decision.replace) and not r.decision.start]),
        failed=tuple(by_state["failed"]),
        failing=tuple([report for report in busy if report.decision.failing]),
        blocked=tuple(blocked),
        stuck=tuple([report for report in waiting if snapshot.now >= report.decision.since + deadline]),
        unplaced=tuple([report for report in unplaced if _is_unplaced(snapshot, report)]),
        overdue=tuple([report for report in bounded if report.decision.overdue]),
        gated=tuple([report for report in reports if rules.gated(report.node)] if rules.gate else ()),
        marked=tuple([report for report in reports if report.node.cordon]),
        duplicates=tuple([report.node.name for report in deleting if report.decision.duplicates]),
        waiting=Counter([report.decision.reason for report in waiting]),
        resting=len([report for report in by_state["succeeded"] if report.decision.slot]),
        earlier=earlier,
        kept_out=tuple(_of(pending, Reason.HELD_BY_GROUP) if reasons[Reason.HELD_BY_GROUP] else ()),
        awaiting=reasons[Reason.AWAITING_SCHEDULE],
        ordered=Counter([report.decision.message for report in ordered]),
        last_completion=last_completion,
        wake=earliest([*[r.decision.wake for r in busy], *[r.expires for r in busy]]),
    )


_MOVING: Final = ("Running", "NodeNotReady")


def _of(reports: Iterable[NodeReport], reason: str) -> list[NodeReport]:
    return [report for report in reports if report.decision.reason == reason]


def _is_unplaced(snapshot: Snapshot, report: NodeReport) -> bool:
    decision = report.decision
    if decision.reason == "Unschedulable" and decision.state == "blocked" and decision.delete:
        return True
    if report.node.uid not in snapshot.unplaced or decision.record is not None:  # a Pod was placed, and ended
        return False
    if decision.reason in ("Cordoned", "NodeDeleting"):
        return False  # an intended state is never late
    return decision.state in ("pending", "blocked") or decision.reason == "Scheduling"


def _orphans(snapshot: Snapshot) -> tuple[list[Pod], list[Pod]]:
    """(Pods of nodes that are gone and that are to be deleted, those of them that free a slot): the unbound
    are deleted, and so are those on a namesake of their node, where no other controller does it; the others
    are left to the Pod garbage collector."""
    deletes, freed = list[Pod](), list[Pod]()
    for node_uid in snapshot.left_behind:
        for pod in snapshot.pods[node_uid].values():
            if not pod.deletion and (not pod.node_name or pod.node_name in snapshot.nodes):
                deletes.append(pod)
                # A Pod that has a node ends in its grace period, and the node that has the name now holds its
                # slot. A Pod that no node can get, since none has that name, takes no slot.
                bound = pod.terminal or pod.node_name
                if not bound and pod.annotations.get(names.POD_NODE_NAME, "") in snapshot.nodes:
                    freed.append(pod)
    return deletes, freed


def earliest(moments: Iterable[float]) -> float:
    """The first of these moments; 0 = none."""
    return min([at for at in moments if at], default=0.0)
