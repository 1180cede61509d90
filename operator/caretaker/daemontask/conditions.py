"""The conditions of a DaemonTask; their meanings stand in docs/spec/daemontask.md.

Pure: Facts -> conditions. Ready is decided by a chain of small rules, the first that applies wins.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, ConditionState, Reason
from caretaker.api.names import LABEL_TASK
from caretaker.api.times import format_time
from caretaker.daemontask.budgets import held_words
from caretaker.daemontask.bulk import BYTES
from caretaker.daemontask.decision_cache import NodeReport
from caretaker.daemontask.facts import Facts
from caretaker.daemontask.intents import was_unreadable
from caretaker.daemontask.messages import (
    first_failed,
    lost_message,
    lost_nodes,
    progress,
    refused_message,
    stuck_message,
)
from caretaker.daemontask.rollout_start import waiting_since
from caretaker.daemontask.snapshot import Trouble


def conditions_of(facts: Facts) -> Iterable[Condition]:
    """Every condition of the kind; Reconciling, Stalled, Degraded and Suspended only while True."""
    condition = partial(Condition, observed_generation=facts.snapshot.task.metadata.generation)
    status, reason, message = ready(facts)
    yield condition(c.READY, status, reason, message)
    yield condition(c.SPEC_VALID, *_spec_valid(facts))
    yield condition(c.PROGRESSING, *_progressing(facts))
    if status == "False" and reason in STALLING and not (reason == Reason.NODES_FAILED and _goes_on(facts)):
        yield condition(c.STALLED, "True", STALLING[reason], message)
    elif status == "False" and reason != Reason.NO_MATCHING_NODES:
        yield condition(c.RECONCILING, "True", Reason.ROLLING_OUT, message)
    if degraded := _degraded(facts):
        yield condition(c.DEGRADED, "True", *degraded)
    if facts.snapshot.task.spec.suspend:
        yield condition(c.SUSPENDED, "True", Reason.SUSPENDED, "spec.suspend is true: nothing new is started")


# Reasons of Ready=False that end only by an action of the user, and the reason that Stalled then gives.
STALLING: Final = {
    Reason.LEDGER_LOST: Reason.LEDGER_LOST,
    Reason.INVALID_SPEC: Reason.INVALID_SPEC,
    Reason.NODES_FAILED: Reason.NODES_FAILED,
    Reason.PAUSED: Reason.NODES_FAILED,
    Reason.PROGRESS_DEADLINE_EXCEEDED: Reason.PROGRESS_DEADLINE_EXCEEDED,
}


def ready(facts: Facts) -> ConditionState:
    """The first rule that applies."""
    return next(state for rule in _READY_RULES if (state := rule(facts)) is not None)


def _goes_on(facts: Facts) -> bool:
    return facts.busy and not facts.plan.rollout.failed


def _lost(facts: Facts) -> ConditionState | None:
    if facts.plan.hold != Reason.LEDGER_LOST:
        return None
    return "False", Reason.LEDGER_LOST, lost_message(facts.snapshot.ledger, facts.plan.requests.refused)


def _invalid(facts: Facts) -> ConditionState | None:
    return ("False", Reason.INVALID_SPEC, facts.snapshot.invalid) if facts.snapshot.invalid else None


def _task_failed(facts: Facts) -> ConditionState | None:
    if not facts.plan.rollout.failed:
        return None
    return "False", Reason.NODES_FAILED, f"{progress(facts)}{lost_nodes(facts)}"


def _suspended(facts: Facts) -> ConditionState | None:
    if not facts.snapshot.task.spec.suspend:
        return None
    return "True", Reason.SUSPENDED, f"suspended; {progress(facts)}"


def _no_nodes(facts: Facts) -> ConditionState | None:
    if facts.desired:
        return None
    return (
        "False",
        Reason.NO_MATCHING_NODES,
        "no node matches the template's selector, affinity and tolerations",
    )


def _paused(facts: Facts) -> ConditionState | None:
    if facts.plan.hold != Reason.PAUSED:
        return None
    return (
        "False",
        Reason.PAUSED,
        f"more nodes failed than failurePolicy.maxFailedNodes allows; {progress(facts)}"
        f"{lost_nodes(facts)}; edit the task, or annotate caretaker.dev/resume-at with the current time",
    )


def _failed(facts: Facts) -> ConditionState | None:
    """Retries are exhausted on more nodes than failurePolicy lets pass: Continue lets maxFailedNodes pass,
    Pause and Fail only go on that far, and the user has to look."""
    lets_pass = facts.snapshot.task.spec.failure_policy.action == "Continue"
    wrong = facts.plan.rollout.beyond if lets_pass else facts.failed > 0
    return ("False", Reason.NODES_FAILED, progress(facts)) if wrong else None


def _troubled(facts: Facts) -> ConditionState | None:
    trouble = _in_the_way(facts)
    return ("False", trouble.reason, trouble.message) if trouble is not None else None


def _in_the_way(facts: Facts) -> Trouble | None:
    """A refusal that holds up runs; a Pod that stays for too long holds up nothing. Where all Pods are
    refused that stands between two tries, too; a complete rollout is none the less complete for it."""
    trouble = facts.outcome.trouble
    if trouble is None:
        all_refused = facts.snapshot.refused_until and facts.plan.refused and not facts.outcome.started
    else:
        all_refused = facts.snapshot.refused_until and trouble.reason == Reason.POD_CREATION_REFUSED
    if all_refused and facts.complete:
        return None
    if all_refused and facts.plan.refused:
        return Trouble(Reason.POD_CREATION_REFUSED, refused_message(facts))
    return None if trouble is None or trouble.reason == Reason.POD_DELETION_REFUSED else trouble


def _stuck(facts: Facts) -> ConditionState | None:
    if not (facts.plan.stuck or facts.plan.jammed) or facts.busy or facts.complete:
        return None
    return "False", Reason.PROGRESS_DEADLINE_EXCEEDED, stuck_message(facts)


def _refused_nodes(facts: Facts) -> ConditionState | None:
    """Once no other node waits; one refused node holds up nothing."""
    if not facts.plan.refused or facts.pending or facts.complete:
        return None
    return "False", Reason.POD_CREATION_REFUSED, refused_message(facts)


def _awaiting(facts: Facts) -> ConditionState | None:
    if not facts.waits_for_tick:
        return None
    return (
        "True",
        Reason.AWAITING_SCHEDULE,
        f"first run at {format_time(facts.plan.tick.next)}; {progress(facts)}",
    )


def _complete(facts: Facts) -> ConditionState | None:
    if not facts.complete:
        return None
    reason = Reason.RUNNING if facts.active or facts.pending else Reason.SUCCEEDED
    return "True", reason, progress(facts)


def _all_blocked(facts: Facts) -> ConditionState | None:
    if facts.blocked < facts.desired:
        return None
    return "False", Reason.NODES_BLOCKED, f"every node is blocked; {progress(facts)}"


def _rolling(facts: Facts) -> ConditionState | None:
    refused = f"; {refused_message(facts)}" if facts.plan.refused else ""
    return "False", Reason.ROLLING_OUT, f"{progress(facts)}{refused}"


_READY_RULES: Final[tuple[Callable[[Facts], ConditionState | None], ...]] = (
    _lost,
    _invalid,
    _task_failed,
    _suspended,
    _no_nodes,
    _paused,
    _failed,
    _troubled,
    _stuck,
    _refused_nodes,
    _awaiting,
    _complete,
    _all_blocked,
    _rolling,
)


def _spec_valid(facts: Facts) -> ConditionState:
    if facts.snapshot.invalid:
        return "False", Reason.INVALID_SPEC, facts.snapshot.invalid
    if not facts.snapshot.checked:
        return "Unknown", Reason.NOT_CHECKED, "the template has not been checked yet"
    return "True", Reason.ACCEPTED, "the API server accepts the template's Pods"


# What to do about a hold, in a few words; Ready says more.
HELD: Final = {
    Reason.SUSPENDED: "spec.suspend is true; set it to false to go on",
    Reason.INVALID_SPEC: "the spec is not valid, see SpecValid",
    Reason.PAUSED: "failurePolicy has paused the rollout; correct and apply the template, or set "
    "caretaker.dev/resume-at",
    Reason.NODES_FAILED: "the task has failed; edit it or run it again",
    Reason.LEDGER_LOST: "the ledger has lost records, see Ready",
}


def _progressing(facts: Facts) -> ConditionState:
    hold, trouble = facts.plan.hold, _in_the_way(facts)
    if hold:
        return "False", hold, f"nothing is started: {HELD[hold]}"
    if trouble is not None:
        return "False", trouble.reason, trouble.message
    if late := _late(facts):
        return "False", Reason.PROGRESS_DEADLINE_EXCEEDED, late
    if (refused := _refused_nodes(facts)) is not None:
        return refused
    if not facts.desired:
        return "True", Reason.NO_MATCHING_NODES, "no node matches"
    return _moving(facts)


LARGE_PODS: Final = (
    f"large Pods are created slowly, {BYTES.per_second / 1024:g} KiB a second for all tasks of a namespace, "
    "so that other tasks are not delayed. Make spec.template smaller: move large fields into a ConfigMap"
)


def _moving(facts: Facts) -> ConditionState:
    """Of a task that nothing is wrong with."""
    budget = facts.plan.budget
    if budget is not None and not budget.nodes:
        return "False", Reason.HELD_BY_BUDGET, held_words(budget, facts.pending, facts.plan.outdated)
    if facts.waits_for_tick:
        return "True", Reason.AWAITING_SCHEDULE, f"first run at {format_time(facts.plan.tick.next)}"
    if facts.complete:
        moving = facts.active or facts.pending
        return "True", Reason.RUNNING if moving else Reason.ROLLOUT_COMPLETE, progress(facts)
    if facts.snapshot.allowed is not None and facts.pending:
        return "True", Reason.LARGE_PODS, f"{LARGE_PODS}; {progress(facts)}"
    return "True", Reason.ROLLING_OUT, progress(facts)


def _late(facts: Facts) -> str:
    """Which nodes have been waiting for longer than the progress deadline; empty if none has."""
    if facts.plan.stuck or facts.plan.jammed:
        return stuck_message(facts)
    if facts.complete:
        return ""
    began = waiting_since(facts.snapshot.task, facts.snapshot.revision, facts.snapshot.now)
    blocked = (r for r in facts.plan.blocked if _overdue(facts, r, began))
    overdue = {r.node.name: "Unschedulable" for r in facts.plan.unplaced}
    overdue |= {r.node.name: r.decision.reason for r in blocked}
    if not overdue:
        return ""
    first = min(overdue)
    return (
        f"{len(overdue)} node(s) have been blocked for longer than progressDeadlineSeconds, first "
        f"{first}: {overdue[first]}"
    )


def _overdue(facts: Facts, report: NodeReport, began: float) -> bool:
    """A node may have been NotReady for longer than the task has waited for it."""
    since, deadline = report.decision.since, facts.snapshot.task.spec.progress_deadline_seconds
    return bool(since) and facts.snapshot.now >= max(since, began) + deadline


def _degraded(facts: Facts) -> tuple[str, str] | None:
    """(reason, message) of the gravest thing that is wrong without stopping the rest."""
    return next((found for rule in _DEGRADED_RULES if (found := rule(facts)) is not None), None)


def _nodes_failed(facts: Facts) -> tuple[str, str] | None:
    if not facts.failed:
        return None
    names = "status.failedNodes names them"
    return Reason.NODES_FAILED, f"{facts.failed} node(s) failed, {first_failed(facts)}; {names}"


def _ledger_corrupt(facts: Facts) -> tuple[str, str] | None:
    corrupt = facts.snapshot.ledger.corrupt
    # With AtMostOnce the next pass finds an entry that can be read: it stands until the user has looked.
    unknown = {r.node.name for r in facts.plan.failed if r.entry is not None and was_unreadable(r.entry)}
    if not (corrupt or unknown):
        return None
    nodes = corrupt.keys() | unknown
    first = min(nodes)
    meaning = "may have run" if facts.snapshot.task.spec.at_most_once else "count as not run"
    return (
        Reason.LEDGER_CORRUPT,
        f"ledger entries of {len(nodes)} node(s) could not be read and {meaning}, "
        f"first {first}: {corrupt.get(first, 'see status.failedNodes')}",
    )


def _name_conflict(facts: Facts) -> tuple[str, str] | None:
    if not facts.outcome.conflicts:
        return None
    name = facts.outcome.conflicts[-1]
    if name in facts.outcome.unlabelled:
        return (
            Reason.NAME_CONFLICT,
            f"Pod {name} has lost the label {LABEL_TASK}; its node waits until it is gone: delete it, or "
            "give the label back",
        )
    return Reason.NAME_CONFLICT, f"Pod {name} exists and is not this task's; the next name is used"


def _bad_annotation(facts: Facts) -> tuple[str, str] | None:
    errors = facts.plan.requests.errors
    return (Reason.INVALID_ANNOTATION, "; ".join(errors)) if errors else None


def _refused(facts: Facts) -> tuple[str, str] | None:
    trouble = facts.outcome.trouble
    throttled = trouble is not None and not facts.snapshot.refused_until
    if facts.plan.refused and not throttled:
        return Reason.POD_CREATION_REFUSED, refused_message(facts)
    return (trouble.reason, trouble.message) if trouble is not None else None


def _bad_results(facts: Facts) -> tuple[str, str] | None:
    results = facts.plan.results
    if not results.errors:
        return None
    first = results.errors[0]
    return (
        Reason.INVALID_RESULTS,
        f"{results.faulty} node(s) succeeded without the results that are declared, "
        f"first {first.node_name}: {first.message}",
    )


_DEGRADED_RULES: Final = (
    _ledger_corrupt,
    _nodes_failed,
    _name_conflict,
    _refused,
    _bad_annotation,
    _bad_results,
)
