"""What the double is told to do wrong, and how often.

Pure. Every fault that fits a call is used up by it once, so several can meet in one call.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from awsdoubles import spoiled
from awsdoubles.faults import FaultList

ACTIONS: Final = {
    "refuse": "answer `status`, `code`, `message` instead of acting",
    "delay": "act, then hold the reply back for `seconds`",
    "lose_reply": "act, then reset the connection",
    **spoiled.ACTIONS,
}
THROTTLED: Final = {"code": "ThrottlingException", "message": "Rate exceeded"}


class FaultError(ValueError):
    """A fault is not spelled as it should be."""


@dataclass
class Fault:
    """One fault: for the next `count` calls (None = until removed) of `operation`, "" for any, on
    `cluster`."""

    action: str
    operation: str = ""
    cluster: str = ""  # its name
    count: int | None = 1
    seconds: float = 0.0
    status: int = 400
    code: str = "ServerException"
    message: str = "Service Unavailable. Please try again later."
    member: str = ""
    used: int = 0

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise FaultError(f"action {self.action!r} is none of {', '.join(ACTIONS)}")

    def fits(self, operation: str, things: Sequence[str]) -> bool:
        """Whether it applies to a call on these clusters."""
        left = self.count is None or self.used < self.count
        meant = self.operation in ("", operation) and (not self.cluster or self.cluster in things)
        return left and meant

    def view(self) -> dict[str, Any]:
        """For the control API."""
        return asdict(self)


class Faults(FaultList[Fault]):
    """The faults in force."""
