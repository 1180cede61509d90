"""Adds the condition CPUThrottled to the status of a resource. Pure. Knows no kind."""

from typing import Any, Final

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, CpuReason
from caretaker.api.events import Event
from caretaker.runtime.cpu import PAUSE_MAX, SHARE

MESSAGE: Final = (
    f"the operator pauses its passes for up to {PAUSE_MAX / 60:g} min, because they take more CPU than one "
    f"resource may use, {SHARE * 100:g} % of a core. Other resources are not affected. Make its spec "
    "smaller, or let it select less"
)


def with_condition(before: Any, status: Any, now: str) -> tuple[Any, list[Event]]:
    """(the status with the condition, an Event if the condition is new). `before`: the recorded status."""
    generation = getattr(status, "observed_generation", 0)
    condition = Condition(c.CPU_THROTTLED, "True", CpuReason.SHARE_EXCEEDED, MESSAGE, generation)
    old = c.find(before.conditions, c.CPU_THROTTLED)
    (condition,) = c.merge((old,) if old is not None else (), (condition,), now)
    with_it = msgspec.structs.replace(status, conditions=(*status.conditions, condition))
    return with_it, [] if old is not None else [Event("Warning", CpuReason.SHARE_EXCEEDED, MESSAGE)]
