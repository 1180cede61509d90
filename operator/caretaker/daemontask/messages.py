"""The sentences of a DaemonTask's conditions that more than one condition says.

Pure: Facts -> text. People read them at night: plain words, the first node by name, the way out.
"""

from collections import Counter
from typing import Final

from caretaker.api.times import format_time
from caretaker.daemontask.budgets import allowed_words
from caretaker.daemontask.decision import DRAINING
from caretaker.daemontask.exclusive import waiting_words
from caretaker.daemontask.ledger import Ledger
from caretaker.daemontask.node_health import NODE_UNHEALTHY, UNWELL, unhealthy
from caretaker.daemontask.stages import Canary
from caretaker.daemontask.status_input import StatusInput

# forbiddenMessage in k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go
NODES_FORBIDDEN: Final = 'cannot patch resource "nodes"'
_NO_RIGHT: Final = (
    "; it needs the verb patch on nodes: set nodeGate.enabled of the chart to true, or remove spec.nodeGate"
)
_FORBIDDEN_TO_DRAIN: Final = (NODES_FORBIDDEN, 'cannot list resource "pods"', 'resource "pods/eviction"')
_NO_DRAIN: Final = "; set drain.enabled of the chart to true, or remove spec.drain"
_ORDINARY: Final = ("Scheduling", "Starting", "ContainerCreating", "PodInitializing")


def lost_message(ledger: Ledger, refused: str) -> str:
    """The message about a ledger that has lost something. `refused`: why a decision is not carried out."""
    what = ledger.loss or f"{ledger.lost} ledger shard(s) are gone"
    ask = "annotate caretaker.dev/ledger=rerun to run again where no record is left, or =assume-done"
    return f"{what}, so what has run is not known and nothing is started; {refused or ask}"


def lost_nodes(inputs: StatusInput) -> str:
    """Nodes that count as failed and are in neither list of status."""
    lost = inputs.plan.rollout.lost
    if not lost:
        return ""
    first = min(report.node.name for report in lost)
    cut_off = all(report.decision.overdue for report in lost)
    why = "past the deadline of the rollout" if cut_off else "NotReady, unhealthy or blocked since their run"
    return f"; {len(lost)} node(s) count as failed, {why}, first {first}"


def first_failed(inputs: StatusInput) -> str:
    """The first node that has failed, and why; status.failedNodes has the others."""
    first = min(inputs.plan.nodes.failed, key=lambda report: report.node.name)
    code = first.entry.exit_code if first.entry is not None else None
    why = first.decision.reason + (f", exit code {code}" if code is not None else "")
    return f"first {first.node.name}: {why}"


def progress(inputs: StatusInput) -> str:
    parts = [f"{inputs.succeeded} of {inputs.desired} nodes succeeded"]
    if inputs.failed:
        parts.append(f"{inputs.failed} failed ({first_failed(inputs)})")
    for count, word in (
        (inputs.active, "active"),
        (inputs.pending, "pending"),
        (inputs.blocked, "blocked"),
    ):
        if count:
            parts.append(f"{count} {word}")
    text = ", ".join(parts)
    waiting = inputs.plan.nodes.waiting
    canary = inputs.plan.rollout.canary
    if inputs.pending and inputs.plan.nodes.resting and canary is None:
        text += f"; {inputs.plan.nodes.resting} slot(s) are held by minSuccessSeconds"
    if inputs.plan.launch.budget is not None:
        text += f"; {allowed_words(inputs.plan.launch.budget)}"
    if inputs.plan.rollout.gated and not inputs.plan.hold:
        text += f"; {_gated(inputs)}"
    if inputs.plan.rollout.probing and inputs.pending:
        text += "; nodes begin one at a time until one succeeds, since nodes that joined or rebooted failed"
    text += _stage(inputs)
    if words := held_by_group(inputs):
        text += f"; {words}"
    text += _ordered(inputs) + _draining(inputs) + _unhealthy(inputs)
    odd = ", ".join(f"{n} {reason}" for reason, n in sorted(waiting.items()) if reason not in _ORDINARY)
    return f"{text} ({odd})" if odd else text


def _stage(inputs: StatusInput) -> str:
    """The nodes that wait for the canary, or for the domain that goes first."""
    canary, launch = inputs.plan.rollout.canary, inputs.plan.launch
    if inputs.plan.hold or not launch.kept_out:
        return ""
    if canary is not None and not canary.over:
        soak = f", {inputs.plan.nodes.resting} soak" if inputs.plan.nodes.resting else ""
        passed = f"canary: {canary.passed} of {canary.wanted} node(s) passed{soak}"
        return f"; {passed}; {launch.kept_out} node(s) wait for it"
    key = inputs.snapshot.task.spec.topology_key
    first = f"with {key}={launch.domain}" if launch.domain else f"without {key}"
    return f"; nodes {first} go first, {launch.kept_out} node(s) wait for them"


def canary_message(inputs: StatusInput, canary: Canary) -> str:
    """The first node of a canary that has failed, and the way out."""
    first = min(canary.bad, key=lambda report: report.node.name)
    unwell = first.decision.state == "succeeded" or first.decision.reason in UNWELL
    why = "not healthy since its run" if unwell else first.decision.reason
    return (
        f"the canary failed on {len(canary.bad)} of {canary.wanted} node(s), first {first.node.name}: {why}; "
        f"no other node begins; {progress(inputs)}; edit the task, or annotate caretaker.dev/resume-at with "
        "the current time for another canary"
    )


def _unhealthy(inputs: StatusInput) -> str:
    """How many nodes wait for a condition of spec.healthGate, by the first one that is not healthy."""
    listed = inputs.snapshot.task.spec.health_conditions
    waiting = [r.node for r in inputs.plan.nodes.blocked if r.decision.reason == NODE_UNHEALTHY]
    if not (listed and waiting):
        return ""
    counts = Counter(bad[0][0] for node in waiting if (bad := unhealthy(node, listed)))
    words = ", ".join(f"{kind} on {count}" for kind, count in sorted(counts.items()))
    return f"; {len(waiting)} node(s) wait for healthGate: {words}"


def overdue_message(inputs: StatusInput) -> str:
    """The nodes that the deadline of the rollout has kept from their run, and the way out."""
    overdue, next_tick = inputs.plan.nodes.overdue, inputs.plan.tick.next
    wait = f", or wait for the tick at {format_time(next_tick)}" if next_tick else ""
    return (
        f"rolloutDeadlineSeconds ({inputs.snapshot.task.spec.rollout_deadline_seconds} s) are over and "
        f"{len(overdue)} node(s) start nothing more, first {min(report.node.name for report in overdue)}; "
        f"{progress(inputs)}; annotate caretaker.dev/resume-at with the current time, or raise "
        f"spec.rolloutDeadlineSeconds{wait}"
    )


def _gated(inputs: StatusInput) -> str:
    rollout = inputs.plan.rollout
    pauses = inputs.snapshot.task.spec.failure_policy.action == "Pause"
    out = "caretaker.dev/resume-at is set" if pauses else "the task is edited"
    first = min((report.node.name for report in (*rollout.failing, *rollout.lost)), default="")
    return (
        f"{len(rollout.failing) + len(rollout.lost)} node(s) are failing, first {first}, and "
        f"failurePolicy.maxFailedNodes is {rollout.allowed}: no other node starts until their retries "
        f"succeed, or {out}"
    )


def stuck_message(inputs: StatusInput) -> str:
    late = inputs.plan.nodes.stuck or inputs.plan.launch.jammed
    first = min(late, key=lambda r: r.node.name)
    seconds = inputs.snapshot.task.spec.progress_deadline_seconds
    slots = "; they hold every slot" if inputs.plan.launch.jammed else ""
    return (
        f"{len(late)} node(s) have not moved for longer than progressDeadlineSeconds ({seconds} s){slots}, "
        f"first {first.node.name}: {first.decision.reason}; {progress(inputs)}"
    )


def unopened_message(inputs: StatusInput) -> str:
    """The nodes that have succeeded and keep their taint, and the API server's message."""
    kept = inputs.outcome.unopened
    first = min(kept)
    return (
        f"{len(kept)} node(s) have succeeded and keep the taint {inputs.snapshot.eligibility_rules.gate}, "
        f"first {first}: {kept[first]}{_NO_RIGHT if NODES_FORBIDDEN in kept[first] else ''}"
    )


def undrained_message(inputs: StatusInput) -> str:
    """The first node that can be neither drained nor uncordoned, and the API server's message."""
    words = inputs.outcome.undrained
    denied = any(resource in words for resource in _FORBIDDEN_TO_DRAIN)
    return f"{words}{_NO_DRAIN if denied else ''}"


def _ordered(inputs: StatusInput) -> str:
    """What nodes wait for by spec.dependsOn."""
    waits = sorted(inputs.plan.nodes.ordered.items())
    return "".join(f"; {count} node(s) wait for {task}" for task, count in waits)


def held_by_group(inputs: StatusInput) -> str:
    """Which nodes wait for which tasks of spec.exclusive.group; "" = none does."""
    if inputs.plan.hold or not inputs.pending:
        return ""
    plan = inputs.plan
    return waiting_words(inputs.snapshot, plan.nodes, plan.holding, short=plan.launch.grouped)


def _draining(inputs: StatusInput) -> str:
    """The first node whose Pods keep it from being drained, and why."""
    drains = [r for r in inputs.plan.nodes.holders if r.decision.reason == DRAINING and r.decision.message]
    if not drains:
        return ""
    first = min(drains, key=lambda report: report.node.name)
    return f"; {first.node.name} is being drained: {first.decision.message}"


def refused_message(inputs: StatusInput) -> str:
    """The nodes whose Pods the API server refuses, and its message."""
    refused = inputs.plan.nodes.refused
    first = min(refused, key=lambda r: r.node.name)
    slowly = "; one node is tried at a time until one gets its Pod" if inputs.snapshot.refused_until else ""
    return (
        f"the API server refuses the Pods of {len(refused)} node(s), first {first.node.name}: "
        f"{first.decision.message}{slowly}"
    )
