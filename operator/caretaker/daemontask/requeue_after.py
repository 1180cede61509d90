"""When a task is looked at again without any event. Pure."""

from typing import Final

from caretaker.api.conditions import Reason
from caretaker.daemontask.plan import Plan
from caretaker.daemontask.status_input import Outcome

MIN_DELAY: Final = 0.05
# Between two passes over a task of which something is refused and something else is due.
REFUSED_DELAY: Final = 10.0


def requeue_after(plan: Plan, outcome: Outcome, *, planned: float, now: float) -> float | None:
    """Seconds until the next pass; None = an event will bring it, or the backoff of a refused request.
    `planned`: the time of the plan; wakes that lay ahead then were not refused, however long the pass took.
    """
    flush_at = outcome.flush_at
    refused = outcome.trouble.reason if outcome.trouble is not None else ""
    if refused and outcome.more:
        return REFUSED_DELAY  # the rest may be refused again
    # A start that is due now follows from a record of this pass. It waits for the next write of the ledger,
    # if one is put off; and for the backoff where the write, or the start after it, was refused, as it stays
    # due all the while. A Pod that may not be deleted does not delay it.
    held = refused not in ("", Reason.POD_DELETION_REFUSED)
    wakes = [at for at in (plan.wake, flush_at) if at and (at > planned or not (flush_at or held))]
    if plan.launch.paced_at and not held:
        wakes.append(plan.launch.paced_at)
    return max(min(wakes) - now, MIN_DELAY) if wakes else None
