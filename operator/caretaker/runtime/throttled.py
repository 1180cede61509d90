"""Says on a custom resource that it took more than its share of CPU. Pure. Knows no kind."""

from typing import Any, Final

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, CpuReason
from caretaker.api.events import Event
from caretaker.runtime.cpu import REST_MAX, SHARE

MESSAGE: Final = (
    f"its passes took more CPU than its share of the operator, {SHARE * 100:g} % of a core, and rest up to "
    f"{REST_MAX / 60:g} min before the next one until they take less. No other resource waits for it. Make "
    "its spec smaller, or what it selects"
)


def told(before: Any, status: Any, now: str) -> tuple[Any, list[Event]]:
    """(the status with the condition, the Event of it where that is new). `before` is what stands."""
    generation = getattr(status, "observed_generation", 0)
    condition = Condition(c.CPU_THROTTLED, "True", CpuReason.SHARE_EXCEEDED, MESSAGE, generation)
    stood = c.find(before.conditions, c.CPU_THROTTLED)
    (condition,) = c.merge((stood,) if stood is not None else (), (condition,), now)
    with_it = msgspec.structs.replace(status, conditions=(*status.conditions, condition))
    return with_it, [] if stood is not None else [Event("Warning", CpuReason.SHARE_EXCEEDED, MESSAGE)]
