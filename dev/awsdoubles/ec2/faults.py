"""What the double is told to do wrong, and how often.

Pure. Every fault that fits a call is used up by it once, so several can meet in one call.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from awsdoubles import spoiled
from awsdoubles.faults import FaultList

ACTIONS: Final = {
    "refuse": "answer `code`, `message` and, if given, `status` instead of acting",
    "lose_request": "reset the connection without acting",
    "lose_reply": "act, then reset the connection",
    "delay": "act, then hold the reply back for `seconds` of the machine's clock",
    "stay_pending": "act, but let the options stay pending until they are modified again or applied by hand",
    **spoiled.ACTIONS,
}


DRY_RUN: Final = "DryRun"


class FaultError(ValueError):
    """A fault is not spelled as it should be."""


@dataclass
class Fault:
    """One fault: for the next `count` calls (None = until removed) of `operation`, on `instance` if given;
    with `real` for none that is a dry run."""

    action: str
    operation: str = "ModifyInstanceMetadataOptions"
    instance: str = ""
    count: int | None = 1
    seconds: float = 0.0
    code: str = "InternalError"
    status: int = 0  # 0: the code's own
    message: str = "An internal error has occurred: injected by the test."
    member: str = ""
    real: bool = False
    used: int = 0

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise FaultError(f"action {self.action!r} is none of {', '.join(ACTIONS)}")

    def fits(self, operation: str, things: Sequence[str]) -> bool:
        """Whether it applies to a call on these instances; a dry run has DRY_RUN among them."""
        left = self.count is None or self.used < self.count
        left = left and not (self.real and DRY_RUN in things)
        return left and operation == self.operation and (not self.instance or self.instance in things)

    def view(self) -> dict[str, Any]:
        """For the control API."""
        return asdict(self)


class Faults(FaultList[Fault]):
    """The faults in force."""
