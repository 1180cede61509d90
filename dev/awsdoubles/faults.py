"""Faults that doubles are to have, how often, and which of them meet in a call. Pure.

Each double has a Fault of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Generic, TypeVar


class FaultError(ValueError):
    """A fault is not spelled as it should be."""


@dataclass(kw_only=True)
class Fault:
    """One fault, for the next `count` calls (None = until removed) that it applies to. `seconds`: of a delay;
    `status`, `code` and `message`: of a refusal; `member`: see `spoiled`; `used`: calls so far."""

    ACTIONS: ClassVar[Mapping[str, str]]
    THING: ClassVar[str]  # the field that selects calls on one thing; "" in it = any

    action: str = field(kw_only=False)
    operation: str = ""
    count: int | None = 1
    seconds: float = 0.0
    status: int = 400
    code: str = ""
    message: str = "Service Unavailable. Please try again later."
    member: str = ""
    used: int = 0

    def __post_init__(self) -> None:
        if self.action not in self.ACTIONS:
            raise FaultError(f"action {self.action!r} is none of {', '.join(self.ACTIONS)}")

    def fits(self, operation: str, things: Sequence[str]) -> bool:
        """Whether it applies to a call of this operation ("" of the fault = any) on these things."""
        left, thing = self.count is None or self.used < self.count, getattr(self, self.THING)
        return left and self.operation in ("", operation) and (not thing or thing in things)

    def view(self) -> dict[str, Any]:
        """For the control API."""
        return asdict(self)


F = TypeVar("F", bound=Fault)


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
