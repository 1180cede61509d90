"""The faults in force in a double: which of them meet in a call. Pure. What a fault is, each double says."""

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar


class OfACall(Protocol):
    """What a double's own Fault has."""

    action: str
    used: int

    def fits(self, operation: str, things: Sequence[str]) -> bool:
        """Whether it applies to a call on these things."""

    def view(self) -> dict[str, Any]:
        """For the control API."""


F = TypeVar("F", bound=OfACall)


class FaultList(Generic[F]):
    """The faults in force."""

    def __init__(self) -> None:
        self.all: list[F] = []

    def take(self, operation: str, things: Sequence[str]) -> dict[str, F]:
        """What goes wrong with this call, by action; the first of each action, used up once."""
        taken: dict[str, F] = {}
        for fault in self.all:
            if fault.action not in taken and fault.fits(operation, things):
                taken[fault.action] = fault
        for alone in ("lose_request", "refuse"):  # nothing else comes to pass
            if alone in taken:
                taken = {alone: taken[alone]}
        for fault in taken.values():
            fault.used += 1
        return taken
