"""Every node of a DaemonTask and its decision.

Pure: Snapshot -> one NodeReport for each node, in this order:

    cached       nothing has changed since the last pass (decision.py)
    decided      the record of a run that ended; then a live Pod, exclusion, a Pod that is still to be seen,
                 the last run or the wait for the next one (node.py)
    undeletable  a Pod whose deletion was refused keeps its node's slot
    expired      finished Pods whose time is over (retention.py)
    assumed      the run whose record is lost, by a person's decision (losses.py)
    in order     a run that waits for other tasks (dependencies.py)
"""

from collections.abc import Iterator, Mapping

import msgspec

from caretaker.api.objects import Node, Pod
from caretaker.daemontask import ticks
from caretaker.daemontask.annotation_requests import AnnotationRequests
from caretaker.daemontask.decision import Basis, Decision, DecisionCache, DecisionInput, NodeReport, State
from caretaker.daemontask.dependencies import in_order
from caretaker.daemontask.intents import LOST, is_open
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN, Entry
from caretaker.daemontask.losses import assumed
from caretaker.daemontask.node import decide
from caretaker.daemontask.node_eligibility import TAINT, Eligibility
from caretaker.daemontask.retention import TTL_FLOOR, expired
from caretaker.daemontask.rollout import soak_of, waiting_since
from caretaker.daemontask.rollout_deadline import deadline_of
from caretaker.daemontask.run_triggers import NO_PODS, are_past, made_up
from caretaker.daemontask.snapshot import Snapshot


def reports(
    snapshot: Snapshot, requests: AnnotationRequests, inputs: DecisionInput, taken: int = 0
) -> Iterator[NodeReport]:
    """Every node's decision. `inputs`: decision_input(snapshot, requests); `taken`: the tick that counts from
    now on, where it is not stored yet."""
    if taken:
        inputs = msgspec.structs.replace(inputs, tick=taken, awaited=False, deadline=None)
    cache = _decision_cache(snapshot, inputs)
    tables = (
        inputs.seq_skips,
        inputs.vanished,
        inputs.refused,
        inputs.deprioritised,
        inputs.namesakes,
        inputs.unstarted,
        inputs.drains,
        inputs.held,
    )
    special, corrupt, cached = inputs.unplaced.union(*tables, inputs.unsure), inputs.corrupt, cache.get
    others, ordered = snapshot.dependencies, bool(snapshot.dependencies.each)
    pods_of, entries, lost = snapshot.pods.get, snapshot.ledger.entries, bool(snapshot.ledger.lost)
    for name, node in snapshot.nodes.items():
        entry, pods = entries.get(name), pods_of(node.uid) or NO_PODS
        plain = node.uid not in special and name not in corrupt
        report = cached(node, pods, entry) if plain else None
        if report is None:
            report = _decided(snapshot, inputs, node, pods, entry)
            if plain:
                cache.put(pods, entry, report)
        if lost:
            report = _assumed(snapshot, requests, inputs, report) or report
        yield in_order(others, inputs, report) if ordered else report


def _assumed(
    snapshot: Snapshot, requests: AnnotationRequests, inputs: DecisionInput, report: NodeReport
) -> NodeReport | None:
    """The report of a run whose record is lost. No name of the node's Pods is given again."""
    node, entry = report.node, snapshot.ledger.entries.get(report.node.name)
    pods = snapshot.pods.get(node.uid, NO_PODS)
    if report.decision.state == "succeeded":
        return None
    assumption = assumed(snapshot.task, snapshot.ledger, requests, node)
    if assumption is None or not _may_have_run(inputs, node, snapshot.eligibility_rules.check(node), pods):
        return None
    recorded = entry.seq if entry is not None and entry.node_uid == node.uid else 0
    seq = max([recorded, *(pod.seq for pod in pods.values())])
    record = msgspec.structs.replace(made_up(inputs, node, *assumption), seq=seq)
    if record.reason == OUTCOME_UNKNOWN:
        record = msgspec.structs.replace(record, message=LOST)
    state: State = "succeeded" if record.result == "Succeeded" else "failed"
    if inputs.tick != inputs.stored:  # its run is still to come
        state = "pending"
    decision = Decision(state, record.reason, record.message, record=record)
    return NodeReport(node, decision, record)


def _decision_cache(snapshot: Snapshot, inputs: DecisionInput) -> DecisionCache:
    cache, task = snapshot.decision_cache or DecisionCache(), snapshot.task
    basis = Basis(
        spec=msgspec.structs.replace(task.spec, template={}),  # may be large; its revision stands for it
        revision=snapshot.revision,
        eligibility_rules=snapshot.eligibility_rules,
        rerun_at=inputs.rerun_at,
        rerun_nodes=inputs.rerun_nodes,
        tick=inputs.tick,
        waiting_since=inputs.waiting_since,
        deadline=inputs.deadline,
        soak=inputs.soak,
    )
    cache.begin(basis, snapshot.now)
    return cache


def _decided(
    snapshot: Snapshot, inputs: DecisionInput, node: Node, pods: Mapping[str, Pod], entry: Entry | None
) -> NodeReport:
    decision = decide(inputs, node, snapshot.eligibility_rules.check(node), pods, entry)
    if decision.delete and any(pod.uid in snapshot.undeletable for pod in decision.delete):
        # Its deletion was refused when it was last tried; it is tried again.
        decision = msgspec.structs.replace(decision, slot=True)
    if decision.record is not None:  # an entry that is still to be written keeps its Pods
        return NodeReport(node, decision, decision.record)
    if entry is None or entry.node_uid != node.uid:  # none, or of a node that this one replaced
        return NodeReport(node, decision, None)
    ended: Entry | None = entry
    if is_open(entry):  # the entry before it has the seq of the intent
        before = entry.before
        ended = msgspec.structs.replace(before, seq=entry.ended) if before is not None else None
    if not pods or ended is None:
        return NodeReport(node, decision, entry)
    floor = snapshot.ledger.since.get(node.name, snapshot.now) + TTL_FLOOR
    gone, due = expired(snapshot.task.spec, ended, pods, floor, snapshot.now)
    return NodeReport(node, decision, entry, tuple(gone), due)


def decision_input(snapshot: Snapshot, requests: AnnotationRequests) -> DecisionInput:
    """See DecisionInput."""
    inputs = DecisionInput(
        task_uid=snapshot.task.metadata.uid,
        spec=snapshot.task.spec,
        revision=snapshot.revision,
        rerun_at=requests.rerun_at,
        rerun_nodes=requests.rerun_nodes,
        now=snapshot.now,
        seq_skips=snapshot.seq_skips,
        vanished=snapshot.vanished,
        refused=snapshot.refused,
        unplaced=snapshot.unplaced,
        deprioritised=snapshot.deprioritised,
        tick=ticks.stored(snapshot.task),
        stored=ticks.stored(snapshot.task),
        awaited=ticks.awaited(snapshot.task),
        corrupt=snapshot.ledger.corrupt,
        version=snapshot.ledger.version,
        unstarted=snapshot.unstarted,
        waiting_since=waiting_since(snapshot.task, snapshot.revision, snapshot.now),
        drains=snapshot.drains,
        held=snapshot.exclusion.held if snapshot.exclusion is not None else {},
        unsure=snapshot.cordons.unsure,
        namesakes={**snapshot.namesakes, **_predecessors(snapshot)},
    )
    deadline = deadline_of(snapshot.task, requests, inputs, lost=snapshot.ledger.lost > 0)
    soak = soak_of(snapshot.task, inputs)
    return msgspec.structs.replace(inputs, deadline=deadline, soak=soak)


def _predecessors(snapshot: Snapshot) -> dict[str, Pod]:
    """Node UID -> live Pod on the node of this name that it replaced: the same machine, perhaps, and _orphans
    has it deleted."""
    found: dict[str, Pod] = {}
    for node_uid in snapshot.left_behind:
        for pod in snapshot.pods[node_uid].values():
            if not pod.terminal and pod.node_name in snapshot.nodes:
                found[snapshot.nodes[pod.node_name].uid] = pod
    return found


def _may_have_run(
    inputs: DecisionInput, node: Node, eligibility: Eligibility, pods: Mapping[str, Pod]
) -> bool:
    """Whether the lost entry may have been this node's: cordoned, tainted and NotReady nodes ran before
    they were, nodes that the template does not select never did. A run of which there is a Pod is recorded
    from it; Pods of earlier runs prove nothing about it."""
    if pods and not are_past(inputs, node, pods):
        return False
    return eligibility.kind != "excluded" or eligibility.reason == TAINT
