"""When a task is looked at again without any event. Pure."""

from typing import Final

from caretaker.daemontask.plan import Plan

MIN_DELAY: Final = 0.05
# Between two passes over a task of which something is refused and something else is due.
REFUSED_DELAY: Final = 10.0


def due_in(plan: Plan, *, refused: bool, flush_at: float, now: float) -> float | None:
    """Seconds until the next pass; None = an event will bring it, or the backoff of what was `refused`.

    flush_at  when the ledger may be written again; 0 = nothing waits for it
    """
    if refused and plan.more:
        return REFUSED_DELAY  # what is left may be what is refused
    # What is due now waits for the ledger's next write, if one is put off; or it is what was refused, and
    # then waits for the backoff: it stays due all the while.
    waits = bool(flush_at) or refused
    wakes = [at for at in (plan.wake, flush_at) if at and (at > now or not waits)]
    return max(min(wakes) - now, MIN_DELAY) if wakes else None
