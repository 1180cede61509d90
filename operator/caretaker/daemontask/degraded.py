"""Degraded of a DaemonTask: faults that do not stop the rest.

Pure: StatusInput -> (reason, message). Rules are tried in order; the first that applies wins.
"""

from typing import Final

from caretaker.api.conditions import Reason
from caretaker.api.names import LABEL_TASK
from caretaker.daemontask.intents import was_unreadable
from caretaker.daemontask.messages import first_failed, refused_message, undrained_message, unopened_message
from caretaker.daemontask.status_input import StatusInput


def degraded(inputs: StatusInput) -> tuple[str, str] | None:
    """(reason, message) of the gravest thing that is wrong without stopping the rest."""
    return next((found for rule in _DEGRADED_RULES if (found := rule(inputs)) is not None), None)


def _nodes_failed(inputs: StatusInput) -> tuple[str, str] | None:
    if not inputs.failed:
        return None
    names = "status.failedNodes names them"
    return Reason.NODES_FAILED, f"{inputs.failed} node(s) failed, {first_failed(inputs)}; {names}"


def _ledger_corrupt(inputs: StatusInput) -> tuple[str, str] | None:
    corrupt = inputs.snapshot.ledger.corrupt
    # With AtMostOnce the next pass finds an entry that can be read: it stands until the user has looked.
    unknown = {
        r.node.name for r in inputs.plan.nodes.failed if r.entry is not None and was_unreadable(r.entry)
    }
    if not (corrupt or unknown):
        return None
    nodes = corrupt.keys() | unknown
    first = min(nodes)
    meaning = "may have run" if inputs.snapshot.task.spec.at_most_once else "count as not run"
    return (
        Reason.LEDGER_CORRUPT,
        f"ledger entries of {len(nodes)} node(s) could not be read and {meaning}, "
        f"first {first}: {corrupt.get(first, 'see status.failedNodes')}",
    )


def _name_conflict(inputs: StatusInput) -> tuple[str, str] | None:
    if not inputs.outcome.conflicts:
        return None
    name = inputs.outcome.conflicts[-1]
    if name in inputs.outcome.unlabelled:
        return (
            Reason.NAME_CONFLICT,
            f"Pod {name} has lost the label {LABEL_TASK}; its node waits until it is gone: delete it, or "
            "give the label back",
        )
    return Reason.NAME_CONFLICT, f"Pod {name} exists and is not this task's; the next name is used"


def _bad_annotation(inputs: StatusInput) -> tuple[str, str] | None:
    errors = inputs.plan.requests.errors
    return (Reason.INVALID_ANNOTATION, "; ".join(errors)) if errors else None


def _refused(inputs: StatusInput) -> tuple[str, str] | None:
    refusal = inputs.outcome.refusal
    throttled = refusal is not None and not inputs.snapshot.refused_until
    if inputs.plan.nodes.refused and not throttled:
        return Reason.POD_CREATION_REFUSED, refused_message(inputs)
    return (refusal.reason, refusal.message) if refusal is not None else None


def _bad_results(inputs: StatusInput) -> tuple[str, str] | None:
    results = inputs.plan.results
    if not results.errors:
        return None
    first = results.errors[0]
    return (
        Reason.INVALID_RESULTS,
        f"{results.faulty} node(s) succeeded without the results that are declared, "
        f"first {first.node_name}: {first.message}",
    )


def _unopened(inputs: StatusInput) -> tuple[str, str] | None:
    return (Reason.GATE_REFUSED, unopened_message(inputs)) if inputs.outcome.unopened else None


def _undrained(inputs: StatusInput) -> tuple[str, str] | None:
    return (Reason.DRAIN_REFUSED, undrained_message(inputs)) if inputs.outcome.undrained else None


_DEGRADED_RULES: Final = (
    _ledger_corrupt,
    _nodes_failed,
    _name_conflict,
    _refused,
    _unopened,
    _undrained,
    _bad_annotation,
    _bad_results,
)
