"""The action for a condition. Pure; docs/spec/daemontask.md has the details."""

from collections.abc import Iterable
from typing import Final

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, Reason
from caretaker.cli import diagnostics

_POSITIVE: Final = frozenset({c.READY, c.SPEC_VALID, c.PROGRESSING})
# Reasons that need no action.
NORMAL: Final = frozenset(
    {
        Reason.ROLLING_OUT,
        Reason.ROLLOUT_COMPLETE,
        Reason.SUCCEEDED,
        Reason.RUNNING,
        Reason.AWAITING_SCHEDULE,
        Reason.ACCEPTED,
    }
)

# Of a task with runGuarantee AtMostOnce, whose runs may have been cut off half-way.
ONCE: Final = (
    "look at each failed node first: what its run began may be half done; then caretaker rerun {name} "
    "--nodes NODE"
)
ONCE_CORRUPT: Final = (
    "look at the nodes with OutcomeUnknown, which may have run; then caretaker rerun {name} --nodes NODE; "
    "edit no ledger ConfigMap"
)
# {name} is the task's, with its namespace where that is needed.
ADVICE: Final = {
    Reason.NO_MATCHING_NODES: "caretaker status {name} -o wide tells for each node why it is left out",
    Reason.NODES_FAILED: "caretaker logs {name} --failed; fix it, then caretaker rerun {name} --failed",
    Reason.NODES_BLOCKED: "see the reasons below; the nodes run by themselves once that is over",
    Reason.PAUSED: "fix the template and apply it again, or go on as it is: caretaker resume {name}",
    Reason.LARGE_PODS: "wait, or make spec.template smaller: move large fields into a ConfigMap",
    Reason.HELD_BY_BUDGET: "wait until the time in the message; without one, edit spec.budgets",
    Reason.SUSPENDED: "set spec.suspend to false to go on",
    Reason.INVALID_SPEC: "correct the field that is named and apply again",
    Reason.NOT_CHECKED: "fix the other problems, or wait; if it lasts, look at the operator's logs",
    Reason.LEDGER_LOST: "annotate caretaker.dev/ledger=rerun, or ='assume-done: NODE,NODE' for some nodes",
    Reason.LEDGER_CORRUPT: "the nodes named run again by themselves; edit no ledger ConfigMap",
    Reason.NAME_CONFLICT: "delete the Pod that is named if nobody needs it",
    Reason.PROGRESS_DEADLINE_EXCEEDED: "see the waiting nodes below: image, room on the node, readiness",
    Reason.LEDGER_WRITE_REFUSED: "see to the quota, policy or ConfigMap that is named; it is tried again",
    Reason.POD_CREATION_REFUSED: "raise the quota or satisfy the policy; it is tried again by itself",
    Reason.POD_DELETION_REFUSED: "let the policy or webhook named let go of the Pod; it is tried again",
    Reason.PERMISSION_DENIED: "give the operator's role the verb that is named",
    Reason.INVALID_RESULTS: "fix the program or spec.results, then caretaker rerun {name}",
    Reason.INVALID_ANNOTATION: "correct or remove the annotation; it is ignored",
}
# Other advice for such a task.
_ONCE: Final = {Reason.NODES_FAILED: ONCE, Reason.LEDGER_CORRUPT: ONCE_CORRUPT}


def abnormal_conditions(conditions: Iterable[Condition]) -> list[Condition]:
    """The conditions that report a problem or wait for a person, each reason once."""
    conditions = list(conditions)
    found = diagnostics.abnormal_conditions(conditions, _POSITIVE, NORMAL)
    found |= {one.reason: one for one in conditions if one.reason == Reason.LARGE_PODS}
    if Reason.PAUSED in found:  # Stalled calls the same NodesFailed
        found.pop(Reason.NODES_FAILED, None)
    return list(found.values())


def advice(reason: str, name: str, *, at_most_once: bool = False) -> str:
    """One line; empty where there is nothing to do. `name`: the task as commands take it."""
    once = _ONCE.get(reason, "") if at_most_once else ""
    return (once or ADVICE.get(reason, "")).format(name=name)
