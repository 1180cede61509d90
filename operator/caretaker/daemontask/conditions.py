"""The conditions of a DaemonTask; their meanings stand in docs/spec/daemontask.md.

Pure: Facts -> conditions. Ready is decided by a chain of small rules, the first that applies wins.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, ConditionState, Reason
from caretaker.api.times import format_time
from caretaker.daemontask.budgets import held_words
from caretaker.daemontask.bulk import BYTES
from caretaker.daemontask.decision import NodeReport, WriteRefusal
from caretaker.daemontask.degraded import degraded
from caretaker.daemontask.messages import (
    canary_message,
    held_by_group,
    lost_message,
    lost_nodes,
    overdue_message,
    progress,
    refused_message,
    stuck_message,
)
from caretaker.daemontask.rollout import waiting_since
from caretaker.daemontask.status_input import StatusInput


def conditions_of(inputs: StatusInput) -> Iterable[Condition]:
    """Every condition of the kind; Reconciling, Stalled, Degraded and Suspended only while True."""
    condition = partial(Condition, observed_generation=inputs.snapshot.task.metadata.generation)
    status, reason, message = ready(inputs)
    yield condition(c.READY, status, reason, message)
    yield condition(c.SPEC_VALID, *_spec_valid(inputs))
    yield condition(c.PROGRESSING, *_progressing(inputs))
    ends = (Reason.NODES_FAILED, Reason.ROLLOUT_DEADLINE_EXCEEDED)
    goes_on = reason in ends and inputs.busy and not inputs.plan.rollout.failed
    if status == "False" and reason in STALLING and not goes_on:
        yield condition(c.STALLED, "True", STALLING[reason], message)
    elif status == "False" and reason != Reason.NO_MATCHING_NODES:
        yield condition(c.RECONCILING, "True", Reason.ROLLING_OUT, message)
    if fault := degraded(inputs):
        yield condition(c.DEGRADED, "True", *fault)
    if inputs.snapshot.task.spec.suspend:
        yield condition(c.SUSPENDED, "True", Reason.SUSPENDED, "spec.suspend is true: nothing new is started")


# Reasons of Ready=False that end only by an action of the user, and the reason that Stalled then gives.
STALLING: Final = {
    Reason.LEDGER_LOST: Reason.LEDGER_LOST,
    Reason.INVALID_SPEC: Reason.INVALID_SPEC,
    Reason.NODES_FAILED: Reason.NODES_FAILED,
    Reason.PAUSED: Reason.NODES_FAILED,
    Reason.PROGRESS_DEADLINE_EXCEEDED: Reason.PROGRESS_DEADLINE_EXCEEDED,
    Reason.ROLLOUT_DEADLINE_EXCEEDED: Reason.ROLLOUT_DEADLINE_EXCEEDED,
    Reason.DEPENDENCY_CYCLE: Reason.DEPENDENCY_CYCLE,
}


def ready(inputs: StatusInput) -> ConditionState:
    """The first rule that applies."""
    return next(state for rule in _READY_RULES if (state := rule(inputs)) is not None)


def _lost(inputs: StatusInput) -> ConditionState | None:
    if inputs.plan.hold != Reason.LEDGER_LOST:
        return None
    return "False", Reason.LEDGER_LOST, lost_message(inputs.snapshot.ledger, inputs.plan.requests.refused)


def _invalid(inputs: StatusInput) -> ConditionState | None:
    return ("False", Reason.INVALID_SPEC, inputs.snapshot.invalid) if inputs.snapshot.invalid else None


def _task_failed(inputs: StatusInput) -> ConditionState | None:
    if not inputs.plan.rollout.failed:
        return None
    return "False", Reason.NODES_FAILED, f"{progress(inputs)}{lost_nodes(inputs)}"


def _suspended(inputs: StatusInput) -> ConditionState | None:
    if not inputs.snapshot.task.spec.suspend:
        return None
    return "True", Reason.SUSPENDED, f"suspended; {progress(inputs)}"


def _circle(inputs: StatusInput) -> ConditionState | None:
    if inputs.plan.hold != Reason.DEPENDENCY_CYCLE:
        return None
    words = (
        f"tasks depend on each other: {inputs.snapshot.dependencies.circle_words}; nothing is started until "
        f"an entry of spec.dependsOn is removed; {progress(inputs)}"
    )
    return "False", Reason.DEPENDENCY_CYCLE, words


def _no_data(inputs: StatusInput) -> ConditionState | None:
    if inputs.plan.hold != Reason.DATA_UNAVAILABLE:
        return None
    words = f"{inputs.snapshot.data.fault}; nothing is started before; {progress(inputs)}"
    return "False", Reason.DATA_UNAVAILABLE, words


def _no_nodes(inputs: StatusInput) -> ConditionState | None:
    if inputs.desired:
        return None
    return (
        "False",
        Reason.NO_MATCHING_NODES,
        "no node matches the template's selector, affinity and tolerations",
    )


def _paused(inputs: StatusInput) -> ConditionState | None:
    if inputs.plan.hold != Reason.PAUSED:
        return None
    return (
        "False",
        Reason.PAUSED,
        f"more nodes failed than failurePolicy.maxFailedNodes allows; {progress(inputs)}"
        f"{lost_nodes(inputs)}; edit the task, or annotate caretaker.dev/resume-at with the current time",
    )


def _in_vain(inputs: StatusInput) -> ConditionState | None:
    name = inputs.plan.launch.in_vain
    if not name or inputs.busy:
        return None
    way_out = (
        "edit the template, run the node again, or annotate caretaker.dev/resume-at with the current time"
    )
    words = f"node {name} was drained in vain, so no other node is cordoned: {way_out}; {progress(inputs)}"
    return "False", Reason.NODES_FAILED, words


def _canary_failed(inputs: StatusInput) -> ConditionState | None:
    canary = inputs.plan.rollout.canary
    if canary is None or not canary.failed:
        return None
    if not (inputs.pending or any(report.decision.outdated for report in inputs.plan.nodes.holders)):
        return None  # no other node is left
    return "False", Reason.NODES_FAILED, canary_message(inputs, canary)


def _overdue(inputs: StatusInput) -> ConditionState | None:
    if not inputs.overdue:
        return None
    return "False", Reason.ROLLOUT_DEADLINE_EXCEEDED, overdue_message(inputs)


def _failed(inputs: StatusInput) -> ConditionState | None:
    """Retries are exhausted on more nodes than failurePolicy lets pass: Continue lets maxFailedNodes pass,
    Pause and Fail only go on that far, and the user has to look."""
    lets_pass = inputs.snapshot.task.spec.failure_policy.action == "Continue"
    wrong = inputs.plan.rollout.beyond if lets_pass else inputs.failed > 0
    return ("False", Reason.NODES_FAILED, progress(inputs)) if wrong else None


def _write_refused(inputs: StatusInput) -> ConditionState | None:
    refusal = _in_the_way(inputs)
    return ("False", refusal.reason, refusal.message) if refusal is not None else None


def _in_the_way(inputs: StatusInput) -> WriteRefusal | None:
    """A refusal that holds up runs; a Pod that stays for too long holds up nothing. Where all Pods are
    refused that stands between two tries, too; a complete rollout is none the less complete for it."""
    refusal = inputs.outcome.refusal
    if refusal is None:
        all_refused = (
            inputs.snapshot.refused_until and inputs.plan.nodes.refused and not inputs.outcome.started
        )
    else:
        all_refused = inputs.snapshot.refused_until and refusal.reason == Reason.POD_CREATION_REFUSED
    if all_refused and inputs.complete:
        return None
    if all_refused and inputs.plan.nodes.refused:
        return WriteRefusal(Reason.POD_CREATION_REFUSED, refused_message(inputs))
    return None if refusal is None or refusal.reason == Reason.POD_DELETION_REFUSED else refusal


def _stuck(inputs: StatusInput) -> ConditionState | None:
    if not (inputs.plan.nodes.stuck or inputs.plan.launch.jammed) or inputs.busy or inputs.complete:
        return None
    return "False", Reason.PROGRESS_DEADLINE_EXCEEDED, stuck_message(inputs)


def _refused_nodes(inputs: StatusInput) -> ConditionState | None:
    """Refused Pods are reported once no other node waits; one refused node does not delay the others."""
    if not inputs.plan.nodes.refused or inputs.pending or inputs.complete:
        return None
    return "False", Reason.POD_CREATION_REFUSED, refused_message(inputs)


def _awaiting(inputs: StatusInput) -> ConditionState | None:
    if not inputs.waits_for_tick:
        return None
    return (
        "True",
        Reason.AWAITING_SCHEDULE,
        f"first run at {format_time(inputs.plan.tick.next)}; {progress(inputs)}",
    )


def _complete(inputs: StatusInput) -> ConditionState | None:
    if not inputs.complete:
        return None
    if inputs.blocked == inputs.desired:  # since the rollout, as after all nodes were replaced
        return "True", Reason.RUNNING, _every_node_is_blocked(inputs)
    reason = Reason.RUNNING if inputs.active or inputs.pending else Reason.SUCCEEDED
    return "True", reason, progress(inputs)


def _ordered(inputs: StatusInput) -> ConditionState | None:
    return ("False", Reason.AWAITING_DEPENDENCY, progress(inputs)) if inputs.waits_for_tasks else None


def _all_blocked(inputs: StatusInput) -> ConditionState | None:
    if inputs.blocked < inputs.desired:
        return None
    return "False", Reason.NODES_BLOCKED, _every_node_is_blocked(inputs)


def _every_node_is_blocked(inputs: StatusInput) -> str:
    return f"every node is blocked; {progress(inputs)}"


def _rolling(inputs: StatusInput) -> ConditionState | None:
    refused = f"; {refused_message(inputs)}" if inputs.plan.nodes.refused else ""
    return "False", Reason.ROLLING_OUT, f"{progress(inputs)}{refused}"


_READY_RULES: Final[tuple[Callable[[StatusInput], ConditionState | None], ...]] = (
    _lost,
    _invalid,
    _task_failed,
    _suspended,
    _circle,
    _no_data,
    _no_nodes,
    _paused,
    _in_vain,
    _canary_failed,
    _overdue,
    _failed,
    _write_refused,
    _stuck,
    _refused_nodes,
    _awaiting,
    _complete,
    _ordered,
    _all_blocked,
    _rolling,
)


def _spec_valid(inputs: StatusInput) -> ConditionState:
    if inputs.snapshot.invalid:
        return "False", Reason.INVALID_SPEC, inputs.snapshot.invalid
    if not inputs.snapshot.checked:
        return "Unknown", Reason.NOT_CHECKED, "the template has not been checked yet"
    return "True", Reason.ACCEPTED, "the API server accepts the template's Pods"


# The remedy of a hold, in a few words; Ready says more.
HELD: Final = {
    Reason.SUSPENDED: "spec.suspend is true; set it to false to go on",
    Reason.INVALID_SPEC: "the spec is not valid, see SpecValid",
    Reason.PAUSED: "failurePolicy has paused the rollout; correct and apply the template, or set "
    "caretaker.dev/resume-at",
    Reason.NODES_FAILED: "the task has failed; edit it or run it again",
    Reason.LEDGER_LOST: "the ledger has lost records, see Ready",
    Reason.DEPENDENCY_CYCLE: "tasks depend on each other, see Ready",
    Reason.DATA_UNAVAILABLE: "data of spec.dataRefs cannot be read, see Ready",
}


def _progressing(inputs: StatusInput) -> ConditionState:
    hold, refusal = inputs.plan.hold, _in_the_way(inputs)
    if hold:
        return "False", hold, f"nothing is started: {HELD[hold]}"
    if refusal is not None:
        return "False", refusal.reason, refusal.message
    found = (
        _in_vain(inputs)
        or _canary_failed(inputs)
        or _overdue(inputs)
        or _late(inputs)
        or _refused_nodes(inputs)
    )
    if found is not None:
        return found
    if not inputs.desired:
        return "True", Reason.NO_MATCHING_NODES, "no node matches"
    return _moving(inputs)


LARGE_PODS: Final = (
    f"large Pods are created slowly, {BYTES.per_second / 1024:g} KiB a second for all tasks of a namespace, "
    "so that other tasks are not delayed. Make spec.template smaller: move large fields into a ConfigMap"
)


def _moving(inputs: StatusInput) -> ConditionState:
    """Progressing of a task without a fault."""
    budget = inputs.plan.launch.budget
    if budget is not None and not budget.nodes:
        return "False", Reason.HELD_BY_BUDGET, held_words(budget, inputs.pending, inputs.plan.launch.outdated)
    if inputs.waits_for_tick:
        return "True", Reason.AWAITING_SCHEDULE, f"first run at {format_time(inputs.plan.tick.next)}"
    if inputs.waits_for_tasks:
        waits = inputs.plan.nodes.ordered
        over = inputs.snapshot.dependencies.needs_action(waits)
        return "False" if over else "True", Reason.AWAITING_DEPENDENCY, progress(inputs)
    if inputs.complete:
        moving = inputs.active or inputs.pending
        return "True", Reason.RUNNING if moving else Reason.ROLLOUT_COMPLETE, progress(inputs)
    reason, words = Reason.ROLLING_OUT, progress(inputs)
    if held_by_group(inputs) and not inputs.active:
        reason = Reason.HELD_BY_GROUP
    elif inputs.snapshot.allowed is not None and inputs.pending:
        reason, words = Reason.LARGE_PODS, f"{LARGE_PODS}; {words}"
    return "True", reason, words


def _late(inputs: StatusInput) -> ConditionState | None:
    """Which nodes have been waiting for longer than the progress deadline; None if none has."""
    if inputs.plan.nodes.stuck or inputs.plan.launch.jammed:
        return "False", Reason.PROGRESS_DEADLINE_EXCEEDED, stuck_message(inputs)
    if inputs.complete:
        return None
    began = waiting_since(inputs.snapshot.task, inputs.snapshot.revision, inputs.snapshot.now)
    blocked = (r for r in inputs.plan.nodes.blocked if _is_late(inputs, r, began))
    late = {r.node.name: "Unschedulable" for r in inputs.plan.nodes.unplaced}
    late |= {r.node.name: r.decision.reason for r in blocked}
    if not late:
        return None
    first = min(late)
    words = (
        f"{len(late)} node(s) have been blocked for longer than progressDeadlineSeconds, first "
        f"{first}: {late[first]}"
    )
    return "False", Reason.PROGRESS_DEADLINE_EXCEEDED, words


def _is_late(inputs: StatusInput, report: NodeReport, began: float) -> bool:
    """A node may have been NotReady for longer than the task has waited for it."""
    since, deadline = report.decision.since, inputs.snapshot.task.spec.progress_deadline_seconds
    return bool(since) and inputs.snapshot.now >= max(since, began) + deadline
