"""The operator's next actions on a task, for the CLI: the state of each node, and when each runs.

Pure: Snapshot -> Forecast, by the planner that the operator itself uses. It decides nothing of its own.
"""

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from caretaker.api import names
from caretaker.api.objects import Pod
from caretaker.api.times import format_time
from caretaker.daemontask.decision import Deadline, DecisionInput, NodeReport, State
from caretaker.daemontask.drain import not_in_vain
from caretaker.daemontask.ledger import Value
from caretaker.daemontask.plan import Plan, plan
from caretaker.daemontask.reports import decision_input, reports
from caretaker.daemontask.run_triggers import NO_PODS, key_of
from caretaker.daemontask.slots import Room, SlotAssignment, room_for, share_out, turn
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.stages import domain_of, stage_of
from caretaker.daemontask.ticks import with_tick

# A pass records one finished Pod a node; older ones wait for the next pass, and there are seldom any.
_PASSES: Final = 10


class NodeState(msgspec.Struct, frozen=True, rename="camel"):
    """One node, as `caretaker status -o json` prints it. Times are RFC 3339."""

    node: str
    state: State
    reason: str
    message: str
    attempts: int  # runs that failed and were counted
    last_finish_time: str | None
    exit_code: int | None
    pod: str | None  # the Pod that the state is about; None when there is none (any more)
    run_key: str | None  # of the run under way, else of the one that is due, else of the last one
    results: dict[str, Value] | None = None  # of the last recorded run
    slot: bool = False  # holds one of the slots of parallelism and budgets


class Forecast(msgspec.Struct, frozen=True):
    """A plan, and its consequences if nothing fails and no node changes.

    snapshot  as it will be once everything that has finished is recorded
    reports   by node name, in order of names
    turns     node name -> wave, from 1, of the nodes that wait for a slot; empty while nothing is started
    at_once   how many of them have a free slot now: the first wave, or 0 while others hold every slot
    room      nodes that may run at a time
    """

    snapshot: Snapshot
    plan: Plan
    reports: Mapping[str, NodeReport]
    turns: Mapping[str, int]
    at_once: int
    room: Room

    @property
    def deadline(self) -> Deadline | None:
        """Of spec.rolloutDeadlineSeconds, while the rollout has one."""
        return decision_input(self.snapshot, self.plan.requests).deadline

    @property
    def waves(self) -> int:
        """How many waves there would be."""
        return max(self.turns.values(), default=0)

    def state_of(self, name: str) -> NodeState:
        """One node's state. KeyError when there is no such node."""
        return _state_of(self.snapshot, self.plan, self.reports[name])


def forecast(snapshot: Snapshot) -> Forecast:
    """The plan after everything that has finished is recorded, with its consequences."""
    snapshot, planned = settle(snapshot)
    requests = planned.requests
    inputs = decision_input(snapshot, requests)
    found = {report.node.name: report for report in reports(snapshot, requests, inputs)}
    gated = planned.rollout.gated
    waiting = [r for r in found.values() if r.decision.start and (r.decision.failing or not gated)]
    entries = snapshot.ledger.entries
    waiting = list(not_in_vain(inputs, snapshot.nodes, entries, waiting, requests.resume_at)[0])
    holders = [report for report in found.values() if report.decision.holds_slot]
    desired = planned.nodes.desired
    unlimited = max(len(holders) + len(waiting), desired)
    room = room_for(inputs, desired, unlimited, invalid=bool(snapshot.invalid))
    assignment, policy = SlotAssignment(), planned.rollout
    stage = stage_of(inputs, policy.canary, holders, waiting, finished=policy.finished)
    if not planned.hold:
        assignment = share_out(inputs, room.width, holders, stage.waiting, len(waiting))
    # Where a budget lets nothing run, the waves are those after it.
    limit, first = room.width or room.beyond, stage.domain or ""
    turns = {} if planned.hold else _turns(inputs, waiting, assignment, limit, first)
    return Forecast(snapshot, planned, dict(sorted(found.items())), turns, len(assignment.starts), room)


def settle(snapshot: Snapshot) -> tuple[Snapshot, Plan]:
    """The operator stores a tick that is due, and writes a record before it does anything else to the node;
    so here too."""
    planned = plan(snapshot)
    for _ in range(_PASSES):
        if not planned.records and not planned.tick.taken:
            break
        entries = {**snapshot.ledger.entries, **planned.records}
        snapshot = msgspec.structs.replace(
            snapshot,
            task=with_tick(snapshot.task, planned.tick),
            ledger=msgspec.structs.replace(snapshot.ledger, entries=entries),
        )
        planned = plan(snapshot)
    return snapshot, planned


def _turns(
    inputs: DecisionInput, waiting: list[NodeReport], assignment: SlotAssignment, limit: int, domain: str
) -> dict[str, int]:
    """The wave of each node. `domain`: of spec.topologyKey, that goes first."""
    found = {report.node.name: 1 for report in assignment.starts}
    domains: dict[str, list[NodeReport]] = {}
    for report in waiting:
        if report.node.name not in found:
            key = inputs.spec.topology_key
            domains.setdefault(domain_of(key, report) if key is not None else domain, []).append(report)
    wave = 2 if found else 1
    for name in sorted(domains, key=lambda name: (name != domain, name)):
        later = sorted(domains[name], key=lambda report: turn(inputs, report))
        found |= {report.node.name: wave + place // limit for place, report in enumerate(later)}
        wave += math.ceil(len(later) / limit)
    return found


def _state_of(snapshot: Snapshot, planned: Plan, report: NodeReport) -> NodeState:
    node, decision, entry = report.node, report.decision, report.entry
    pods = snapshot.pods.get(node.uid) or NO_PODS
    pod = newest_live(pods) or next((p for p in pods.values() if entry and p.uid == entry.pod_uid), None)
    if pod is not None and not pod.terminal:
        key = pod.annotations.get(names.POD_RUN_KEY)
    elif decision.start:
        key = key_of(decision_input(snapshot, planned.requests), node, decision.nonce)
    else:
        key = entry.run_key if entry else None
    return NodeState(
        node=node.name,
        state=decision.state,
        reason=decision.reason,
        message=decision.message,
        attempts=entry.attempts if entry else 0,
        last_finish_time=format_time(entry.finished_at) if entry and entry.finished_at else None,
        exit_code=entry.exit_code if entry else None,
        pod=pod.name if pod else None,
        results=entry.results if entry else None,
        slot=decision.holds_slot,
        run_key=key or None,
    )


def newest_live(pods: Mapping[str, Pod]) -> Pod | None:
    """The Pod of a node that has not finished; of several the newest."""
    return max((p for p in pods.values() if not p.terminal), key=lambda p: (p.created, p.seq), default=None)
