"""The status after a pass, and when the next one comes without an event.

Pure: (Snapshot, Plan, Outcome) -> Status, equal to the one that stands when nothing has changed; (Plan,
Outcome, times) -> the seconds until the next pass.
"""

import heapq
from collections import Counter
from collections.abc import Collection
from typing import Final

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import Reason
from caretaker.api.daemontask import (
    MAX_HOLDERS,
    MAX_LISTED,
    BlockedNode,
    FailedNode,
    GateStatus,
    LedgerStatus,
    Slot,
    SlotStatus,
    Status,
)
from caretaker.api.times import format_time, parse_time
from caretaker.daemontask.conditions import conditions_of
from caretaker.daemontask.decision import POD_REFUSED, NodeReport
from caretaker.daemontask.events import noted
from caretaker.daemontask.intents import pod_of
from caretaker.daemontask.losses import done, wanted_run
from caretaker.daemontask.node_eligibility import TAINT
from caretaker.daemontask.node_health import UNWELL
from caretaker.daemontask.plan import Plan
from caretaker.daemontask.rollout import waiting_since
from caretaker.daemontask.rollout_deadline import began_at
from caretaker.daemontask.slots import RUNNING, slot_of
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.status_input import Outcome, StatusInput
from caretaker.daemontask.ticks import awaited, with_tick

MIN_DELAY: Final = 0.05
# Between two passes over a task of which something is refused and something else is due.
REFUSED_DELAY: Final = 10.0


def status_of(snapshot: Snapshot, plan: Plan, outcome: Outcome) -> Status:
    """The status to write. Equal to the one that stands when nothing has changed."""
    before = snapshot.task.status
    ticked = with_tick(snapshot.task, plan.tick).status
    inputs = _status_input(snapshot, plan, outcome)
    now = format_time(snapshot.now)
    failed = [_failed_node(snapshot, report) for report in plan.nodes.failed]
    blocked = [_blocked_node(r) for r in plan.nodes.blocked if r.node.name not in outcome.started]
    new_revision = before.current_revision != snapshot.revision
    started = before.start_time if not new_revision else None
    if started is None and (outcome.created or inputs.active):
        started = now
    status = Status(
        observed_generation=snapshot.task.metadata.generation,
        current_revision=snapshot.revision,
        former_revision=snapshot.former,
        completed_revision=snapshot.revision if inputs.complete else "",
        finished_rollout=_finished_rollout(inputs),
        passed_canary=_passed_canary(inputs),
        conditions=c.merge(before.conditions, conditions_of(inputs), now),
        desired=inputs.desired,
        active=inputs.active,
        succeeded=inputs.succeeded,
        failed=inputs.failed,
        pending=inputs.pending,
        blocked=inputs.blocked,
        start_time=started,
        last_schedule_time=ticked.last_schedule_time,
        next_schedule_time=ticked.next_schedule_time,
        observed_schedule=ticked.observed_schedule,
        schedule_history=ticked.schedule_history,
        last_completion_time=_last_completion(snapshot, plan),
        failed_nodes=tuple(heapq.nsmallest(MAX_LISTED, failed, key=lambda n: n.node_name)),
        failed_nodes_omitted=max(len(failed) - MAX_LISTED, 0),
        blocked_nodes=tuple(heapq.nsmallest(MAX_LISTED, blocked, key=lambda n: n.node_name)),
        blocked_nodes_omitted=max(len(blocked) - MAX_LISTED, 0),
        slots=_slots(snapshot, plan, outcome),
        node_gate=gate_status(snapshot, plan, outcome.opened),
        results=plan.results.results,
        result_errors=plan.results.errors,
        result_errors_omitted=plan.results.faulty - len(plan.results.errors),
        ledger=_ledger(inputs),
    )
    status = noted(before, status, plan.requests, plan.nodes.duplicates, snapshot.now)
    if status.rollout is None or snapshot.task.spec.rollout_deadline_seconds is None:
        return status
    began = began_at(
        snapshot.task,
        snapshot.revision,
        snapshot.now,
        plan.requests,
        plan.tick.last,
        lost=snapshot.ledger.lost > 0,
    )
    rollout = msgspec.structs.replace(status.rollout, start_time=format_time(began))
    return msgspec.structs.replace(status, rollout=rollout)


def _ledger(inputs: StatusInput) -> LedgerStatus:
    """status.ledger. While a shard is lost and nothing has been decided, or the decision cannot be written
    yet: as it was before, and the write counts beyond that. With the loss forgotten, its nodes would run
    again."""
    snapshot, plan, outcome = inputs.snapshot, inputs.plan, inputs.outcome
    before = snapshot.task.status.ledger
    if plan.hold == Reason.LEDGER_LOST or (snapshot.ledger.lost > 0 and _unrecorded(outcome)):
        return msgspec.structs.replace(before, writes=outcome.writes)
    all_done = 0 < inputs.desired == inputs.succeeded and not plan.tick.taken
    run = wanted_run(snapshot.task, snapshot.revision, plan.requests) if all_done else ""
    done_run, done_at = done(before, run, snapshot.now)
    return LedgerStatus(outcome.shards, outcome.recorded, outcome.writes, done_run, done_at)


def _unrecorded(outcome: Outcome) -> bool:
    return outcome.refusal is not None and outcome.refusal.reason == Reason.LEDGER_WRITE_REFUSED


def _last_completion(snapshot: Snapshot, plan: Plan) -> str | None:
    """When a run last succeeded. The ledger forgets a success when the node runs again, or is gone; one that
    lies ahead is that of a clock which was wrong."""
    before = snapshot.task.status.last_completion_time
    previous = parse_time(before) or 0.0
    last = max(plan.nodes.last_completion, previous if previous <= snapshot.now else 0.0)
    return format_time(last) if last else before


def _status_input(snapshot: Snapshot, plan: Plan, outcome: Outcome) -> StatusInput:
    counts = plan.nodes.counts
    active = counts["active"] + outcome.created
    unblocked = sum(1 for report in plan.nodes.blocked if report.node.name in outcome.started)
    pending = counts["pending"] - (outcome.created - unblocked)
    before = snapshot.task.status
    ended = counts["succeeded"] + counts["failed"]
    settled = not active and not pending and ended > 0 and not plan.rollout.beyond and not plan.nodes.refused
    tolerated = counts["failed"] == 0 or snapshot.task.spec.failure_policy.action == "Continue"
    first = plan.tick.taken and awaited(snapshot.task)  # seen for the first time at its first tick, perhaps
    return StatusInput(
        snapshot=snapshot,
        plan=plan,
        outcome=outcome,
        desired=plan.nodes.desired,
        active=active,
        succeeded=counts["succeeded"],
        failed=counts["failed"],
        pending=pending,
        blocked=counts["blocked"] - unblocked,
        complete=before.completed_revision == before.current_revision == snapshot.revision
        or (settled and tolerated and not _unrecorded(outcome))
        or (
            plan.nodes.awaiting > 0
            and pending == plan.nodes.awaiting
            and not active
            and counts["failed"] == 0
        )
        or (first and pending > 0 and not active),
    )


def _finished_rollout(inputs: StatusInput) -> str:
    if inputs.plan.requests.ledger and inputs.snapshot.ledger.lost:
        return ""  # nodes run again, or are taken for done: a rollout anew
    if inputs.plan.rollout.finished:
        return inputs.snapshot.task.status.finished_rollout
    return inputs.plan.rollout.name if _is_finished(inputs) else ""


def _passed_canary(inputs: StatusInput) -> str:
    """The rollout of which the canary has passed; "" where there is none, or it has not."""
    rollout, canary = inputs.plan.rollout, inputs.plan.rollout.canary
    anew = inputs.plan.requests.ledger and inputs.snapshot.ledger.lost
    if inputs.snapshot.task.spec.canary is None or anew:
        return ""
    if canary is None:
        return inputs.snapshot.task.status.passed_canary
    return rollout.name if canary.over and not inputs.plan.hold else ""


def _is_finished(inputs: StatusInput) -> bool:
    """Whether every node of the rollout has ended, on record, but for those that have been kept from it for
    long, and neither failurePolicy nor a failed canary holds any. Nodes that wait for the first tick have no
    rollout yet."""
    plan, canary = inputs.plan, inputs.plan.rollout.canary
    # A rollout that has only failed is not over because the other nodes are away for a moment.
    if not inputs.succeeded and plan.nodes.blocked:
        return False
    if canary is not None and not canary.over and (canary.bad or canary.shaken):
        return False
    moving = inputs.active or inputs.pending or plan.nodes.resting or plan.rollout.failing
    held = plan.hold or plan.rollout.gated or plan.nodes.overdue or _unrecorded(inputs.outcome)
    if moving or held or not inputs.succeeded + inputs.failed:
        return False
    began = waiting_since(inputs.snapshot.task, inputs.snapshot.revision, inputs.snapshot.now)
    late = inputs.snapshot.now - inputs.snapshot.task.spec.progress_deadline_seconds
    return all(report in plan.rollout.lost or _is_away(report, began, late) for report in plan.nodes.blocked)


def _is_away(report: NodeReport, began: float, late: float) -> bool:
    """Whether a blocked node is no more part of the rollout: cordoned, or kept from it since `late`."""
    decision, entry = report.decision, report.entry
    if decision.slot or decision.reason in ("Cordoned", "NodeDeleting", TAINT):
        return not decision.slot
    rejected = entry is not None and entry.rejections and decision.reason == entry.reason
    if not rejected and decision.reason not in (*UNWELL, POD_REFUSED):
        return False
    return bool(decision.since) and max(decision.since, began) <= late


def _slots(snapshot: Snapshot, plan: Plan, outcome: Outcome) -> SlotStatus | None:
    if plan.width is None:
        return None
    held = [slot_of(report) for report in plan.nodes.holders if report.node.name not in outcome.started]
    since = format_time(snapshot.now)
    started = [Slot(name, RUNNING, since) for name in outcome.started]
    listed = heapq.nsmallest(MAX_HOLDERS, [*held, *started], key=lambda s: (s.reason == RUNNING, s.node_name))
    return SlotStatus(plan.width, len(held) + len(started), tuple(listed))


def gate_status(snapshot: Snapshot, plan: Plan, opened: Collection[str] = ()) -> GateStatus | None:
    """status.nodeGate, once the nodes of these names are opened."""
    gate = snapshot.eligibility_rules.gate
    if not gate:
        return None
    excluded = sum(1 for report in plan.nodes.gated if report.decision.state == "excluded")
    return GateStatus(gate, len(plan.nodes.gated) - len(opened), excluded)


def gated_by_state(plan: Plan, status: Status) -> Counter[str]:
    """The nodes of status.nodeGate.gatedNodes."""
    counts = Counter[str](report.decision.state for report in plan.nodes.gated)
    if status.node_gate is not None:
        counts["succeeded"] -= len(plan.nodes.gated) - status.node_gate.gated_nodes  # opened by this pass
    return counts


def _failed_node(snapshot: Snapshot, report: NodeReport) -> FailedNode:
    entry = report.entry
    if entry is None:
        return FailedNode(node_name=report.node.name, reason=report.decision.reason)
    return FailedNode(
        node_name=report.node.name,
        reason=entry.reason,
        message=entry.message,
        exit_code=entry.exit_code,
        attempts=entry.attempts,
        last_finish_time=format_time(entry.finished_at),
        pod_name=pod_of(snapshot.task.metadata, entry),
    )


def _blocked_node(report: NodeReport) -> BlockedNode:
    decision = report.decision
    return BlockedNode(
        node_name=report.node.name,
        reason=decision.reason,
        since=format_time(decision.since) if decision.since else None,
        message=decision.message[:200],
    )


def requeue_after(plan: Plan, outcome: Outcome, *, planned: float, now: float) -> float | None:
    """Seconds until the next pass; None = an event will bring it, or the backoff of a refused request.
    `planned`: the time of the plan; wakes that lay ahead then were not refused, however long the pass took.
    """
    flush_at = outcome.flush_at
    refused = outcome.refusal.reason if outcome.refusal is not None else ""
    if refused and outcome.more:
        # The rest may be refused again; a gate is not of it.
        return min(REFUSED_DELAY, max(outcome.open_at - now, MIN_DELAY)) if outcome.open_at else REFUSED_DELAY
    # A start that is due now follows from a record of this pass. It waits for the next write of the ledger,
    # if one is put off; and for the backoff where the write, or the start after it, was refused, as it stays
    # due all the while. A Pod that may not be deleted does not delay it.
    held = refused not in ("", Reason.POD_DELETION_REFUSED)
    wakes = [at for at in (plan.wake, flush_at) if at and (at > planned or not (flush_at or held))]
    if plan.launch.paced_at and not held:
        wakes.append(plan.launch.paced_at)
    wakes += [at for at in (outcome.open_at, outcome.drain_at) if at]
    return max(min(wakes) - now, MIN_DELAY) if wakes else None
