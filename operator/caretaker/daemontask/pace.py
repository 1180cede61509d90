"""When a task is looked at again without any event. Pure."""

from typing import Final

from caretaker.daemontask.plan import Plan
from caretaker.daemontask.snapshot import Trouble
from caretaker.runtime.controller import Next

MIN_DELAY: Final = 0.05
# Between two passes over a task of which something is refused and something else is due.
REFUSED_DELAY: Final = 10.0


def following(plan: Plan, trouble: Trouble | None, flush_at: float, retry_after: float, now: float) -> Next:
    """At once while work is left, else at the plan's time; with backoff after a refusal.

    flush_at     when the ledger may be written again; 0 = nothing waits for it
    retry_after  seconds that the API server asked for
    """
    # What is due now waits for the ledger's next write, if one is put off; or it is what was refused, and
    # then waits for the backoff: it stays due all the while.
    waits = bool(flush_at) or trouble is not None
    wakes = [at for at in (plan.wake, flush_at) if at and (at > now or not waits)]
    delay = max(min(wakes) - now, MIN_DELAY) if wakes else None
    if trouble is None:
        return Next(at_once=True) if plan.more else Next(delay=delay)
    if plan.more:
        delay = REFUSED_DELAY  # what is left may be what is refused
    return Next(retry=True, after=retry_after, delay=delay)
