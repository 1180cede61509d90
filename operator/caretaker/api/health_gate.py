"""spec.healthGate of a DaemonTask. Pure data; crds/daemontasks.yaml documents the fields."""

from typing import Literal

from caretaker.api.objects import Wire


class HealthCondition(Wire, frozen=True):
    """A condition of nodes, and its status on a healthy one."""

    type: str
    status: Literal["True", "False"] = "False"


class HealthGate(Wire, frozen=True):
    """The conditions, beside Ready, that keep the task from starting on a node."""

    conditions: tuple[HealthCondition, ...]
