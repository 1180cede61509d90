"""The plan of a DaemonTask: results to record, runs to start, Pods to delete.

Pure: Snapshot -> Plan. Every node has its report (reports.py); here are the decisions that span
nodes: slots, failure policy, order. Nothing is remembered between two plans but the Snapshot's content.
"""

from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from caretaker.api import names
from caretaker.api.conditions import Reason
from caretaker.api.objects import Pod
from caretaker.daemontask import rollout, slots, ticks
from caretaker.daemontask.annotation_requests import AnnotationRequests
from caretaker.daemontask.budgets import Allowance
from caretaker.daemontask.decision import POD_REFUSED, Decision, State
from caretaker.daemontask.decision_cache import NodeReport
from caretaker.daemontask.intents import intent, is_made_up
from caretaker.daemontask.ledger import Entry, Ledger
from caretaker.daemontask.losses import decided
from caretaker.daemontask.pod_failure_policy import BACKOFF_LIMIT_EXCEEDED, NODE_REBOOT, REBOOT_LOOP
from caretaker.daemontask.pods import Start
from caretaker.daemontask.reports import decision_input, reports
from caretaker.daemontask.results import Summary, summarise
from caretaker.daemontask.rollout import Rollout
from caretaker.daemontask.run_triggers import key_of
from caretaker.daemontask.slots import Room, SlotAssignment, room_for, share_out
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.ticks import Tick

BATCH: Final = 250  # Pods created, and Pods deleted, in one pass


class Plan(msgspec.Struct):
    """The actions, in this order: records, deletes, starts; and their summary for status."""

    requests: AnnotationRequests
    records: dict[str, Entry] = {}  # node name -> entry
    forget: tuple[str, ...] = ()
    deletes: list[Pod] = []
    freed_slots: list[Pod] = []  # live ones of `deletes` whose slots are counted as free, see keep_slots
    starts: list[Start] = []  # those of nodes that hold a slot already come first
    assignment: SlotAssignment = SlotAssignment()  # of the starts, once `freed_slots` are gone
    holders: list[NodeReport] = []  # nodes that hold a slot
    width: int | None = None  # how many may, where parallelism or a budget limits it
    intents: dict[str, Entry] = {}  # node name -> entry that is written before its start, of AtMostOnce
    counts: dict[State, int] = {}
    failed: list[NodeReport] = []
    failing: list[NodeReport] = []
    blocked: list[NodeReport] = []
    stuck: list[NodeReport] = []  # active for longer than the progress deadline without running
    jammed: list[NodeReport] = []  # holders of slots, where all of them are stuck and other nodes wait
    unplaced: list[NodeReport] = []  # their Pod was given up unscheduled, and none was placed since
    duplicates: list[str] = []
    hold: str = ""  # why nothing is started: a reason constant
    rollout: Rollout = Rollout()  # by failurePolicy and the failures
    resting: int = 0  # succeeded nodes that hold a slot for minSuccessSeconds
    waiting: dict[str, int] = {}  # why active Pods are not running -> how many
    last_completion: float = 0.0
    wake: float = 0.0
    queued: int = 0  # nodes that only wait for a slot
    tick: Tick = Tick()
    paced_at: float = 0.0  # when the next large Pods may be created, and nodes wait for it; 0 = none does
    budget_boundary: float = 0.0  # from then on budgets may allow fewer: no start is begun; 0 = never
    awaiting: int = 0  # pending nodes that wait for the schedule's first tick
    budget: Allowance | None = None  # the budget that keeps nodes waiting, if one does
    replaced: list[Pod] = []  # active, of runs that a newer one replaces
    outdated: int = 0  # active nodes whose run stays, for want of a slot for the newer one
    results: Summary = Summary()  # of the runs, where the task declares results
    more: bool = False  # work is left that needs no event: plan again at once

    @property
    def refused(self) -> list[NodeReport]:
        """Nodes for which the API server creates no Pod."""
        return [report for report in self.blocked if report.decision.reason == POD_REFUSED]

    @property
    def desired(self) -> int:
        """Nodes that count: all but the excluded."""
        return sum(n for state, n in self.counts.items() if state != "excluded")


def plan(snapshot: Snapshot) -> Plan:
    """The next actions for one task."""
    requests = decided(snapshot)
    frozen = bool(snapshot.ledger.lost) and not requests.ledger
    tick = ticks.next_tick(snapshot.task, _closed(snapshot, frozen), snapshot.now)
    result = Plan(requests=requests, counts=dict.fromkeys(_STATES, 0), tick=tick)
    wanting: list[NodeReport] = []
    runs: list[tuple[str, Entry]] = []
    # Status names a tick from this pass on: runs for the tick before do not count for it.
    found = reports(snapshot, requests, tick.last if tick.taken else 0)
    for report in _collecting(found, runs) if snapshot.task.spec.results else found:
        _tally(snapshot, result, report)
        if report.decision.start:
            wanting.append(report)
        elif report.decision.replace is not None:
            result.replaced.append(report.decision.replace)
    result.results = summarise(snapshot.task.spec.results, runs)
    _orphans(snapshot, result)
    name = rollout.name_of(snapshot, requests, tick.last)
    result.rollout = rollout.evaluate(
        snapshot, requests, name, result.desired, result.failed, result.failing, result.last_completion
    )
    result.hold = _hold(snapshot, result)
    if frozen:
        # Anything written now would make the lost shard look present again.
        result.records, result.deletes = {}, []
        result.wake = 0.0  # only a decision of the user changes this
        return result
    result.forget = snapshot.forget
    undeletable = _undeletable_orphans(snapshot, result)
    unlimited = len(wanting) + len(result.holders) + len(result.freed_slots) + undeletable
    room = room_for(snapshot, result.desired, unlimited)
    if snapshot.task.spec.parallelism is not None or room.budget is not None:
        result.width = room.width
    if result.rollout.failed:
        _give_up(snapshot, result)
    elif not result.hold:
        _start(snapshot, result, wanting, room, undeletable)
    if tick.taken:
        result.wake = snapshot.now  # nothing starts for the tick before it, nor for it before it is stored
    _wake(result, tick.next)
    _trim(result, snapshot.now)
    return result


def doubtful(snapshot: Snapshot, plan: Plan) -> set[str]:
    """Names of nodes about which the view may be older than the ledger and the Pods, which another operator
    may have written; a read from the API server decides.

    The plan starts or records there because of a UID or a boot ID that the ledger does not have or cannot
    show, or deletes a Pod of a node that it does not know.
    """
    rebooting = NODE_REBOOT in snapshot.task.spec.rerun_on
    nodes, entries, found = snapshot.nodes, snapshot.ledger.entries, set()
    for name in {*plan.records, *(start.node_name for start in plan.starts)}:
        node, entry, record = nodes.get(name), entries.get(name), plan.records.get(name)
        other = (
            node is not None
            and entry is not None
            and (entry.node_uid != node.uid or (rebooting and entry.boot_id != node.boot_id))
        )
        unreported = record is not None and (record.boot_absorbed or name in snapshot.ledger.corrupt)
        if other or unreported:
            found.add(name)
    for pod in plan.deletes:
        name = pod.annotations.get(names.POD_NODE_NAME, "")
        node = nodes.get(name)
        if name and (node is None or node.uid != pod.node_uid):
            found.add(name)
    return found


def unlisted(snapshot: Snapshot, plan: Plan) -> dict[str, str]:
    """Node name -> UID of the nodes where a Pod matters that the view may not show.

    It matters to a start where the ledger does not know the node's last Pod, or knows that it may live on:
    the next Pod has another name, so the API server would not refuse it. It matters to a record in place of a
    broken or lost entry: a newer Pod of the same run decides its result, and one of another run outdates it.
    """
    records = plan.records.items()
    found = {name: record.node_uid for name, record in records if _is_forgotten(snapshot.ledger, name)}
    for start in plan.starts:
        entry = snapshot.ledger.entries.get(start.node_name)
        if entry is not None and entry.node_uid != start.node_uid:
            continue
        if _is_forgotten(snapshot.ledger, start.node_name) or (
            entry is not None and _may_be_outlived(snapshot, entry)
        ):
            found[start.node_name] = start.node_uid
    return found


def _is_forgotten(ledger: Ledger, name: str) -> bool:
    """Whether the node may have had an entry that is broken or lost."""
    return name in ledger.corrupt or (
        ledger.lost > 0 and (name not in ledger.entries or name in ledger.older)
    )


def _may_be_outlived(snapshot: Snapshot, entry: Entry) -> bool:
    """Whether a Pod may live that this entry, of the same node, does not wait for. One with an intent was
    given up: nothing starts while its Pod is expected."""
    if entry.pod_seq or entry.intent or is_made_up(entry):
        return True
    seen = (pod.uid for pod in snapshot.pods.get(entry.node_uid, {}).values())
    return entry.reason in (BACKOFF_LIMIT_EXCEEDED, REBOOT_LOOP) and entry.pod_uid not in seen


_STATES: Final[tuple[State, ...]] = ("excluded", "succeeded", "failed", "active", "pending", "blocked")


def _tally(snapshot: Snapshot, result: Plan, report: NodeReport) -> None:
    """Adds one node's decision to the plan."""
    node, decision, entry = report.node, report.decision, report.entry
    result.counts[decision.state] += 1
    if decision.state == "succeeded" and decision.slot:
        result.resting += 1
    if decision.record is not None:
        result.records[node.name] = decision.record
    if decision.delete:
        _delete(snapshot, result, decision)
    if decision.duplicates:
        result.duplicates.append(node.name)
    if decision.wake:
        _wake(result, decision.wake)
    if decision.slot or decision.failing or decision.state not in ("succeeded", "excluded"):
        _list(snapshot, result, report)  # few nodes at most times
    if entry is not None and entry.result == "Succeeded" and entry.finished_at > result.last_completion:
        result.last_completion = entry.finished_at
    if report.expired:
        result.deletes.extend(report.expired)
    if report.expires:
        _wake(result, report.expires)


def _delete(snapshot: Snapshot, result: Plan, decision: Decision) -> None:
    result.deletes.extend(decision.delete)
    if any(pod.uid in snapshot.undeletable for pod in decision.delete):
        decision.slot = True  # deleting it was refused when it was last tried; it is tried again
    if not decision.slot:  # else it is held in any case
        result.freed_slots.extend(decision.delete)


def _collecting(found: Iterator[NodeReport], runs: list[tuple[str, Entry]]) -> Iterator[NodeReport]:
    """The same reports; those of current runs that succeeded are noted by the way. A generator of its own, so
    that a task without results pays nothing for it."""
    for report in found:
        if report.decision.state == "succeeded" and report.entry is not None:
            runs.append((report.node.name, report.entry))
        yield report


def _list(snapshot: Snapshot, result: Plan, report: NodeReport) -> None:
    """Nodes that status names or explains, and those that keep others from starting."""
    if report.decision.slot:
        result.holders.append(report)
    if report.decision.failing:
        result.failing.append(report)
    if _is_unplaced(snapshot, report):
        result.unplaced.append(report)
    if report.decision.state == "failed":
        result.failed.append(report)
    elif report.decision.state == "blocked":
        result.blocked.append(report)
    elif report.decision.state == "active":
        _tally_active(snapshot, result, report)
    elif report.decision.reason == Reason.AWAITING_SCHEDULE:
        result.awaiting += 1


def _is_unplaced(snapshot: Snapshot, report: NodeReport) -> bool:
    decision = report.decision
    if decision.reason in ("Cordoned", "NodeDeleting"):
        return False  # an intended state is never late
    if report.node.uid in snapshot.unplaced and decision.record is None:  # else a Pod was placed, and ended
        return decision.state in ("pending", "blocked") or decision.reason == "Scheduling"
    return decision.state == "blocked" and decision.reason == "Unschedulable" and bool(decision.delete)


def _tally_active(snapshot: Snapshot, result: Plan, report: NodeReport) -> None:
    decision = report.decision
    if decision.reason in ("Running", "NodeNotReady"):
        return
    result.waiting[decision.reason] = result.waiting.get(decision.reason, 0) + 1
    if snapshot.now >= decision.since + snapshot.task.spec.progress_deadline_seconds:
        result.stuck.append(report)


def _orphans(snapshot: Snapshot, result: Plan) -> None:
    """Pods of nodes that are gone: the unbound are deleted, and so are those on a namesake of their node,
    where no other controller does it; the others are left to the Pod garbage collector."""
    for node_uid in snapshot.left_behind():
        for pod in snapshot.pods[node_uid].values():
            if not pod.deletion and (not pod.node_name or pod.node_name in snapshot.nodes):
                result.deletes.append(pod)
                # A Pod that has a node ends in its grace period, and the node that has the name now holds its
                # slot. A Pod that no node can get, since none has that name, takes no slot.
                bound = pod.terminal or pod.node_name
                if not bound and pod.annotations.get(names.POD_NODE_NAME, "") in snapshot.nodes:
                    result.freed_slots.append(pod)


def _closed(snapshot: Snapshot, frozen: bool) -> str:
    """Why no tick is taken, apart from spec.suspend; it depends on no node."""
    if frozen:
        return Reason.LEDGER_LOST
    return Reason.INVALID_SPEC if snapshot.invalid else ""


def _hold(snapshot: Snapshot, result: Plan) -> str:
    """Why nothing is started, the most fundamental reason first; empty when runs may start."""
    if snapshot.ledger.lost and not result.requests.ledger:
        return "LedgerLost"
    if snapshot.invalid:
        return "InvalidSpec"
    if result.rollout.failed:
        return "NodesFailed"
    if snapshot.task.spec.suspend:
        return "Suspended"
    return result.rollout.hold


def _give_up(snapshot: Snapshot, result: Plan) -> None:
    """failurePolicy Fail: unplaced Pods are deleted, running ones may finish."""
    for pods in snapshot.pods.values():
        result.deletes.extend(p for p in pods.values() if not (p.terminal or p.node_name or p.deletion))


def _start(snapshot: Snapshot, result: Plan, wanting: list[NodeReport], room: Room, undeletable: int) -> None:
    """Starts for nodes with a free slot, at most BATCH; none for a tick that is not stored, and of failing
    nodes alone while failures gate the rollout. Pods whose deletion was refused hold `undeletable` slots."""
    holders = result.holders
    if not (wanting or result.replaced):
        return
    result.queued = len(wanting)
    if result.rollout.gated or result.rollout.probing:
        wanting = rollout.may_begin(snapshot, result.rollout, holders, wanting)
    over = len(holders) + undeletable > room.width
    if over or result.tick.taken or result.rollout.gated:  # a Pod that made way could not start anew
        result.outdated, result.replaced = len(result.replaced), []
    if (count := slots.replaceable(snapshot, len(wanting))) < len(result.replaced):
        result.outdated, result.replaced = len(result.replaced) - count, result.replaced[:count]
        result.paced_at = snapshot.allowed_at
    result.deletes.extend(result.replaced)
    if snapshot.now < snapshot.refused_until:
        _wake(result, snapshot.refused_until)
        return
    most = 1 if snapshot.one_at_a_time or snapshot.refused_until else BATCH
    assignment = share_out(snapshot, room.width - undeletable, holders, wanting, most)
    if assignment.short or over:
        result.budget = room.budget
        _wake(result, room.budget_boundary)
    stuck = not assignment.starts and slots.all_stuck(snapshot, holders)
    result.jammed = holders if stuck and (assignment.short or over or result.rollout.gated) else result.jammed
    assignment, paced = slots.paced(assignment, snapshot.allowed)
    result.paced_at = snapshot.allowed_at if paced else result.paced_at
    if not assignment.starts or result.tick.taken:
        return
    result.budget_boundary, result.assignment = room.budget_boundary, assignment
    result.queued -= len(assignment.starts)
    result.more = len(assignment.starts) == BATCH and len(wanting) > BATCH
    _begin(snapshot, result, assignment)


def _begin(snapshot: Snapshot, result: Plan, assignment: SlotAssignment) -> None:
    inputs = decision_input(snapshot, result.requests)
    for report in assignment.starts:
        node, decision = report.node, report.decision
        start = Start(
            node_name=node.name,
            node_uid=node.uid,
            seq=decision.seq,
            attempt=decision.attempt,
            run_key=key_of(inputs, node, decision.nonce),
            nonce=decision.nonce,
            boot_id=node.boot_id,
            trigger=decision.start,
            tick=inputs.tick,
        )
        result.starts.append(start)
        if inputs.spec.at_most_once:
            result.intents[node.name] = intent(
                start, snapshot.revision, report.entry, snapshot.token, snapshot.now
            )


def _undeletable_orphans(snapshot: Snapshot, result: Plan) -> int:
    """Slots of Pods whose node is gone and whose deletion was refused when it was last tried: they are tried
    again, and not counted on. A node holds one, however many Pods it has."""
    undeletable = {pod.node_uid for pod in result.freed_slots if pod.uid in snapshot.undeletable}
    result.freed_slots = [pod for pod in result.freed_slots if pod.node_uid not in undeletable]
    return len(undeletable)


def keep_slots(plan: Plan, gone: Collection[str]) -> None:
    """Drop the last starts for slots that a failed Pod delete did not free: of the Pods that were to be
    deleted, those `gone` (UIDs) hold none, and the others live on."""
    held = {pod.node_uid for pod in plan.freed_slots if pod.uid not in gone}
    own, others = slots.still_free(plan.assignment, plan.starts, len(held))
    starts = plan.starts[:own] + plan.starts[plan.assignment.own :][:others]
    plan.queued += len(plan.starts) - len(starts)
    plan.starts = starts


def _trim(result: Plan, now: float) -> None:
    """No Pod twice, and no more deletes than a pass may make."""
    unique = {pod.uid: pod for pod in result.deletes}
    result.deletes = list(unique.values())[:BATCH]
    result.more = result.more or len(unique) > BATCH
    if result.more:
        result.wake = now


def _wake(result: Plan, at: float) -> None:
    if at and (not result.wake or at < result.wake):
        result.wake = at
