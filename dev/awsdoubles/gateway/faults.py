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
    "early_completion": "finish the refresh and send its event before the reply",
    "no_completion": "never send the event",
    "no_id": "leave NotificationId out of the answer",
    "duplicate_completion": "send the event twice",
    "slow_refresh": "let the refresh take `seconds` more",
    **spoiled.ACTIONS,
}


class FaultError(ValueError):
    """A fault is not spelled as it should be."""


@dataclass
class Fault:
    """One fault: for the next `count` calls of `operation` (None = until removed), of `share` if given."""

    action: str
    operation: str = "RefreshCache"
    share: str = ""  # ARN
    count: int | None = 1
    seconds: float = 0.0
    status: int = 400
    code: str = "InvalidGatewayRequestException"
    error_code: str = "InternalError"
    message: str = "An internal error occurred: injected by the test."
    member: str = ""
    used: int = 0

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise FaultError(f"action {self.action!r} is none of {', '.join(ACTIONS)}")

    def fits(self, operation: str, things: Sequence[str]) -> bool:
        """Whether it applies to a call on these shares."""
        left = self.count is None or self.used < self.count
        return left and operation == self.operation and (not self.share or self.share in things)

    def view(self) -> dict[str, Any]:
        """For the control API."""
        return asdict(self)


class Faults(FaultList[Fault]):
    """The faults in force."""
