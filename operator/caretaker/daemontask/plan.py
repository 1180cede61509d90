"""The plan of a DaemonTask: results to record, runs to start, Pods to delete.

Pure: Snapshot -> Plan. Every node has its report (reports.py); here are the decisions that span
nodes: slots, failure policy, order. Nothing is remembered between two plans but the Snapshot's content.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from caretaker.api.conditions import Reason
from caretaker.api.daemontask import Status
from caretaker.api.objects import Node, Pod
from caretaker.daemontask import exclusive, rollout, slots, ticks
from caretaker.daemontask.annotation_requests import AnnotationRequests
from caretaker.daemontask.budgets import Allowance
from caretaker.daemontask.decision import DRAINING, DecisionInput, NodeReport
from caretaker.daemontask.dependencies import Progress, progress_of
from caretaker.daemontask.drain import due, not_in_vain
from caretaker.daemontask.group_view import Holding
from caretaker.daemontask.intents import intent
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.losses import decided
from caretaker.daemontask.node_summary import NodeSummary, Reports, earliest, summary_of
from caretaker.daemontask.pods import Start
from caretaker.daemontask.refused_pods import RefusedPod
from caretaker.daemontask.release import releases, surplus
from caretaker.daemontask.reports import decision_input, reports
from caretaker.daemontask.results import Summary, summarise
from caretaker.daemontask.rollout import Rollout
from caretaker.daemontask.run_triggers import key_of
from caretaker.daemontask.slots import Room, SlotAssignment, room_for, share_out
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.stages import Stage, domain_of, stage_of
from caretaker.daemontask.ticks import Tick

BATCH: Final = 250  # Pods created, Pods deleted, and nodes opened, in one pass


class Launch(msgspec.Struct, frozen=True):
    """The runs that begin, and what keeps others from it. Moments are seconds since the epoch, 0 = never."""

    starts: tuple[Start, ...] = ()  # those of nodes that hold a slot already come first
    assignment: SlotAssignment = SlotAssignment()  # of the starts, once Plan.freed_slots are gone
    # Of spec.drain: the nodes that have got a slot are cordoned, then drained, before they start.
    cordons: tuple[Start, ...] = ()
    drains: Reports = ()
    intents: Mapping[str, Entry] = {}  # node name -> entry that is written before its start, of AtMostOnce
    queued: int = 0  # nodes that only wait for a slot
    replaced: tuple[Pod, ...] = ()  # active, of runs that a newer one replaces
    outdated: int = 0  # active nodes whose run stays, for want of a slot for the newer one
    jammed: Reports = ()  # holders of slots, where all of them are stuck and other nodes wait
    in_vain: str = ""  # a node that was drained in vain, and keeps others from being cordoned
    budget: Allowance | None = None  # the budget that keeps nodes waiting, if one does
    kept_out: int = 0  # nodes that wait for the canary, or for another domain of spec.topologyKey
    domain: str | None = None  # in which nodes begin; None: in any
    surplus: Reports = ()  # nodes kept out that are cordoned
    grouped: bool = False  # the width of the exclusive group keeps nodes waiting, or a task not read yet
    boundary: float = 0.0  # from then on budgets or the deadline may allow fewer: no start is begun
    paced_at: float = 0.0  # when the next large Pods may be created, and nodes wait for it
    wake: float = 0.0
    more: bool = False  # other nodes may start at once


class Plan(msgspec.Struct, frozen=True):
    """The actions, in this order: records, deletes, starts; and their summary for status."""

    requests: AnnotationRequests
    tick: Tick = Tick()
    nodes: NodeSummary = NodeSummary()
    results: Summary = Summary()  # of the runs, where the task declares results
    progress: Progress | None = None  # for the tasks that depend on this one, if there are any
    rollout: Rollout = Rollout()  # by failurePolicy and the failures
    hold: str = ""  # why nothing is started: a reason constant
    holding: Holding | None = None  # nodes that others of spec.exclusive.group must leave alone
    width: int | None = None  # how many nodes may hold a slot, where parallelism or a budget limits it
    records: Mapping[str, Entry] = {}  # node name -> entry
    forget: tuple[str, ...] = ()
    deletes: tuple[Pod, ...] = ()
    # Live ones of `deletes` whose slots are counted as free, see keep_slots.
    freed_slots: tuple[Pod, ...] = ()
    shut: tuple[Node, ...] = ()  # nodes that are to lose the taint of spec.nodeGate
    opens: tuple[Node, ...] = ()  # those of them that are tried now
    launch: Launch = Launch()
    drained: tuple[NodeReport, ...] = ()  # nodes that are drained, or are empty and about to start
    drains: tuple[NodeReport, ...] = ()  # those of them that are looked at now
    releases: tuple[Node, ...] = ()  # nodes that lose the task's cordon
    wake: float = 0.0
    more: bool = False  # work is left that needs no event: plan again at once


def plan(snapshot: Snapshot) -> Plan:
    """The next actions for one task."""
    requests = decided(snapshot.task, snapshot.revision, snapshot.ledger, snapshot.nodes, snapshot.now)
    frozen = bool(snapshot.ledger.lost) and not requests.ledger
    tick = ticks.next_tick(snapshot.task, _closed(snapshot, frozen), snapshot.now)
    inputs = decision_input(snapshot, requests)
    # Status names a tick from this pass on: runs for the tick before do not count for it.
    found = list(reports(snapshot, requests, inputs, tick.last if tick.taken else 0))
    nodes = summary_of(snapshot, found)
    # With a decision about lost records a rollout begins anew.
    before = Status() if snapshot.ledger.lost and not frozen else snapshot.task.status
    policy = rollout.evaluate(
        inputs,
        nodes,
        tick.last,
        finished_rollout=before.finished_rollout,
        passed_canary=before.passed_canary,
        resumed=requests.resume_at,
    )
    hold = _hold(snapshot, requests, policy)
    basis = Plan(
        requests=requests,
        tick=tick,
        nodes=nodes,
        results=_results(snapshot, found),
        progress=_progress(snapshot, found, tick, frozen=frozen),
        rollout=policy,
        hold=hold,
        holding=exclusive.holding(snapshot, nodes, hold) if snapshot.exclusion is not None else None,
        launch=Launch(replaced=nodes.replaced),
    )
    # Anything written with a lost shard would make it look present again; only the user's decision ends that.
    return basis if frozen else _with_actions(snapshot, inputs, basis)


def _with_actions(snapshot: Snapshot, inputs: DecisionInput, plan: Plan) -> Plan:
    nodes, tick = plan.nodes, plan.tick
    # Slots of Pods whose node is gone and whose deletion was refused when it was last tried: they are tried
    # again, and not counted on. A node holds one, however many Pods it has.
    undeletable = {pod.node_uid for pod in nodes.freed_slots if pod.uid in snapshot.undeletable}
    freed = tuple(pod for pod in nodes.freed_slots if pod.node_uid not in undeletable)
    unlimited = len(nodes.wanting) + len(nodes.holders) + len(freed) + len(undeletable)
    room = room_for(inputs, nodes.desired, unlimited, invalid=bool(snapshot.invalid))
    limited = snapshot.task.spec.parallelism is not None or room.budget is not None
    given_up: tuple[Pod, ...] = ()
    launch = plan.launch
    if plan.rollout.failed:
        given_up = _given_up(snapshot)
    elif not plan.hold:
        launch = _launch(snapshot, inputs, plan, room, len(undeletable))
        given_up = launch.replaced
    hold = plan.hold or (Reason.HELD_BY_BUDGET if room.width == 0 and room.budget is not None else "")
    released = releases(snapshot, nodes.marked, hold, gated=plan.rollout.gated)
    held = room.width - len(undeletable)
    if not hold:
        released += _surplus(snapshot, nodes, launch, released, held)
    drained, drains = _drains(snapshot, plan, launch, {node.uid for node in released}, held)
    # No Pod twice, and no more deletes than a pass may make.
    deletes = {pod.uid: pod for pod in (*nodes.deletes, *given_up)}
    shut = _shut(nodes)
    opens = snapshot.gates.due(shut, snapshot.now)
    more = launch.more or len(deletes) > BATCH or len(opens) > BATCH
    group_wake = snapshot.exclusion.wake if snapshot.exclusion is not None else 0.0
    moments = (nodes.wake, launch.wake, tick.next, snapshot.check_at, _deadline(inputs, nodes), group_wake)
    wake = earliest(moments)
    return msgspec.structs.replace(
        plan,
        width=room.width if limited else None,
        records=nodes.records,
        forget=snapshot.absence.due,
        deletes=tuple(deletes.values())[:BATCH],
        freed_slots=freed,
        shut=shut,
        opens=tuple(opens[:BATCH]),
        launch=launch,
        drained=() if hold else drained,
        drains=() if hold else tuple(due(inputs, drains)),
        releases=_to_try(snapshot, released)[:BATCH],
        # With a new tick nothing starts for the tick before it, nor for it before it is stored.
        wake=snapshot.now if more or tick.taken else wake,
        more=more,
    )


def _deadline(inputs: DecisionInput, nodes: NodeSummary) -> float:
    """When the deadline of the rollout cuts off starts; 0 where it does not."""
    deadline, counts = inputs.deadline, nodes.counts
    waits = counts["pending"] or counts["blocked"] or counts["active"]
    return deadline.at if deadline is not None and waits and not deadline.passed else 0.0


def _results(snapshot: Snapshot, found: list[NodeReport]) -> Summary:
    """Of the current runs that succeeded, where the task declares results."""
    declared = snapshot.task.spec.results
    if not declared:
        return Summary()
    ended = (report for report in found if report.decision.state == "succeeded")
    return summarise(declared, [(one.node.name, one.entry) for one in ended if one.entry is not None])


def _progress(snapshot: Snapshot, found: list[NodeReport], tick: Tick, *, frozen: bool) -> Progress | None:
    if not snapshot.awaited:
        return None
    fault = _closed(snapshot, frozen)
    until = 0.0 if fault else ticks.next_due(snapshot.task, tick)
    return progress_of(snapshot.task, snapshot.eligibility_rules, found, until, fault)


def _closed(snapshot: Snapshot, frozen: bool) -> str:
    """Why no tick is taken, apart from spec.suspend; it depends on no node."""
    if frozen:
        return Reason.LEDGER_LOST
    return Reason.INVALID_SPEC if snapshot.invalid else ""


def _hold(snapshot: Snapshot, requests: AnnotationRequests, policy: Rollout) -> str:
    """Why nothing is started, the most fundamental reason first; empty when runs may start."""
    if snapshot.ledger.lost and not requests.ledger:
        return Reason.LEDGER_LOST
    if snapshot.invalid:
        return Reason.INVALID_SPEC
    if policy.failed:
        return Reason.NODES_FAILED
    if snapshot.task.spec.suspend:
        return Reason.SUSPENDED
    if snapshot.dependencies.circle:
        return Reason.DEPENDENCY_CYCLE
    return Reason.DATA_UNAVAILABLE if snapshot.data.fault else policy.hold


def _shut(nodes: NodeSummary) -> tuple[Node, ...]:
    """The nodes that have succeeded and still carry the taint of spec.nodeGate. Neither spec.suspend nor a
    failure elsewhere holds that up."""
    return tuple([report.node for report in nodes.gated if report.decision.state == "succeeded"])


def _to_try(snapshot: Snapshot, nodes: list[Node]) -> tuple[Node, ...]:
    """Those whose cordon is taken back now: where that was refused, it is tried again later."""
    refused, never = snapshot.unreleased, RefusedPod("", 0.0, 0.0)
    return tuple([node for node in nodes if refused.get(node.uid, never).until <= snapshot.now])


def _given_up(snapshot: Snapshot) -> tuple[Pod, ...]:
    """failurePolicy Fail: unplaced Pods are deleted, running ones may finish."""
    pods = (pod for pods in snapshot.pods.values() for pod in pods.values())
    return tuple(pod for pod in pods if not (pod.terminal or pod.node_name or pod.deletion))


def _launch(snapshot: Snapshot, inputs: DecisionInput, plan: Plan, room: Room, undeletable: int) -> Launch:
    """Starts for nodes with a free slot, at most BATCH; none for a tick that is not stored, and of failing
    nodes alone while failures gate the rollout. Pods whose deletion was refused hold `undeletable` slots."""
    nodes, policy, holders = plan.nodes, plan.rollout, plan.nodes.holders
    if not (nodes.wanting or nodes.replaced):
        return Launch()
    wanting: Sequence[NodeReport] = nodes.wanting
    if policy.gated or policy.probing:
        wanting = tuple(rollout.may_begin(inputs, policy, holders, nodes.wanting))
    entries, resumed = snapshot.ledger.entries, plan.requests.resume_at
    wanting, in_vain = not_in_vain(inputs, snapshot.nodes, entries, wanting, resumed)
    stage = stage_of(inputs, policy.canary, holders, wanting, finished=policy.finished)
    wanting, over = stage.waiting, len(holders) + undeletable > room.width
    launch = _replacing(snapshot, plan, stage, over=over)
    if snapshot.now < snapshot.refused_until:
        return msgspec.structs.replace(launch, wake=snapshot.refused_until)
    most = 1 if snapshot.one_at_a_time or snapshot.refused_until else BATCH
    assignment = share_out(inputs, room.width - undeletable, holders, tuple(wanting), most)
    short = assignment.short or over
    assignment, grouped = exclusive.limited(snapshot.exclusion, plan.holding, assignment)
    stuck = not assignment.starts and slots.all_stuck(inputs, holders, snapshot.dependencies)
    assignment, paced = slots.paced(assignment, snapshot.allowed)
    launch = msgspec.structs.replace(
        launch,
        jammed=holders if stuck and (short or policy.gated or stage.kept_out) else (),
        kept_out=stage.kept_out,
        domain=stage.domain,
        surplus=stage.surplus,
        in_vain=in_vain,
        budget=room.budget if short else None,
        grouped=grouped,
        paced_at=snapshot.allowed_at if paced else launch.paced_at,
        wake=room.budget_boundary if short else 0.0,
    )
    if not assignment.starts or plan.tick.taken:
        return launch
    full = len(assignment.starts) == BATCH
    starts, cordons, drains = _steps(snapshot, assignment)
    if cordons or drains:
        assignment = msgspec.structs.replace(assignment, starts=starts, own=len(starts))
    return msgspec.structs.replace(
        launch,
        starts=(begun := _starts(inputs, assignment.starts)),
        cordons=_starts(inputs, cordons),
        drains=drains,
        assignment=assignment,
        intents=_intents(snapshot, begun, assignment),
        queued=launch.queued - len(starts) - len(cordons) - len(drains),
        boundary=earliest((room.budget_boundary, _deadline(inputs, nodes))),
        more=full and len(wanting) > BATCH,
    )


def _steps(snapshot: Snapshot, assignment: SlotAssignment) -> tuple[Reports, Reports, Reports]:
    """Of the nodes that have got a slot (those that start, those that are cordoned, those that are looked at
    for the first time since they were)."""
    found = assignment.starts
    if snapshot.task.spec.drain is None:
        return found, (), ()
    cordons = tuple(report for report in found if not report.decision.cordoned)
    drains = tuple(report for report in found if report.decision.drain)
    starts = tuple(report for report in found if report.decision.cordoned and not report.decision.drain)
    return starts, cordons, drains


def _surplus(
    snapshot: Snapshot, nodes: NodeSummary, launch: Launch, released: Collection[Node], width: int
) -> list[Node]:
    """The cordoned nodes beyond the slots that there are now, and those that the canary or another domain
    keeps out."""
    found = surplus(snapshot, launch.surplus, (), len(launch.surplus))
    gone = {node.uid for node in (*released, *found)}
    going = {start.node_uid for start in launch.starts} | {report.node.uid for report in launch.drains}
    held = {report.node.uid for report in nodes.holders} - gone
    return found + surplus(snapshot, nodes.marked, going | gone, len(held) - width)


def _drains(
    snapshot: Snapshot, plan: Plan, launch: Launch, released: Collection[str], width: int
) -> tuple[Reports, Reports]:
    """(nodes that are drained, or whose run is about to start; those that are drained) of those that are not
    released. No more are drained than have a slot, the longest first."""
    if snapshot.task.spec.drain is None:
        return (), ()
    held = [report for report in plan.nodes.holders if report.node.uid not in released]
    under_way = [r for r in held if r.decision.cordoned and r.decision.reason == DRAINING]
    waiting = [report for report in held if report.decision.cordoned and report.decision.start]
    busy = sum(not slots.is_idle(report) for report in held) - len(under_way)
    under_way.sort(key=lambda report: (report.decision.since, report.node.name))
    going = under_way[: max(width - busy, 0)]
    drains = (*going, *(report for report in launch.drains if report.node.uid not in released))
    return (*going, *waiting), drains


def _replacing(snapshot: Snapshot, plan: Plan, stage: Stage, *, over: bool) -> Launch:
    """The Pods that make way for newer runs: none where the new one could not start."""
    replaced, queued = plan.nodes.replaced, len(plan.nodes.wanting)
    if over or plan.tick.taken or plan.rollout.gated:
        return Launch(queued=queued, outdated=len(replaced))
    key, wanting = snapshot.task.spec.topology_key, len(stage.waiting)
    if key is not None and stage.domain is not None:
        here = {r.node.uid for r in plan.nodes.holders if domain_of(key, r) == stage.domain}
        replaced = tuple(pod for pod in replaced if pod.node_uid in here)
    replaced = replaced[: slots.replaceable(stage.room, snapshot.pods, wanting)]
    count = slots.replaceable(snapshot.allowed, snapshot.pods, wanting)
    return Launch(
        queued=queued,
        replaced=replaced[:count],
        outdated=len(plan.nodes.replaced) - len(replaced[:count]),
        paced_at=snapshot.allowed_at if count < len(replaced) else 0.0,
    )


def _starts(inputs: DecisionInput, nodes: Reports) -> tuple[Start, ...]:
    return tuple(
        Start(
            node_name=report.node.name,
            node_uid=report.node.uid,
            seq=report.decision.seq,
            attempt=report.decision.attempt,
            run_key=key_of(inputs, report.node, report.decision.nonce),
            nonce=report.decision.nonce,
            boot_id=report.node.boot_id,
            trigger=report.decision.start,
            tick=inputs.tick,
        )
        for report in nodes
    )


def _intents(snapshot: Snapshot, starts: tuple[Start, ...], assignment: SlotAssignment) -> dict[str, Entry]:
    if not snapshot.task.spec.at_most_once:
        return {}
    return {
        start.node_name: intent(start, snapshot.revision, report.entry, snapshot.token, snapshot.now)
        for start, report in zip(starts, assignment.starts, strict=True)
    }


def keep_slots(plan: Plan, gone: Collection[str]) -> Plan:
    """Without the last starts for slots that a failed Pod delete did not free: of the Pods that were to be
    deleted, those `gone` (UIDs) hold none, and the others live on."""
    launch, held = plan.launch, {pod.node_uid for pod in plan.freed_slots if pod.uid not in gone}
    own, others = slots.still_free(launch.assignment, launch.starts, len(held))
    starts = launch.starts[:own] + launch.starts[launch.assignment.own :][:others]
    cordons = () if held else launch.cordons
    queued = launch.queued + len(launch.starts) - len(starts) + len(launch.cordons) - len(cordons)
    return with_launch(plan, starts=starts, cordons=cordons, queued=queued)


def with_launch(plan: Plan, **changes: Any) -> Plan:
    """The plan with these changes of its starts."""
    return msgspec.structs.replace(plan, launch=msgspec.structs.replace(plan.launch, **changes))
