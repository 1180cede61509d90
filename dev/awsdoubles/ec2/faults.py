"""What the double is told to do wrong, and how often.

Pure. Every fault that fits a call is used up by it once, so several can meet in one call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from awsdoubles import faults, spoiled

ACTIONS: Final = {
    "refuse": "answer `code`, `message` and, if given, `status` instead of acting",
    "lose_request": "reset the connection without acting",
    "lose_reply": "act, then reset the connection",
    "delay": "act, then hold the reply back for `seconds` of the machine's clock",
    "stay_pending": "act, but let the options stay pending until they are modified again or applied by hand",
    **spoiled.ACTIONS,
}


DRY_RUN: Final = "DryRun"


@dataclass(kw_only=True)
class Fault(faults.Fault):
    """A fault of calls of `operation` on `instance`; "" = any. `real`: of no dry run."""

    ACTIONS = ACTIONS
    THING = "instance"

    operation: str = "ModifyInstanceMetadataOptions"
    instance: str = ""
    code: str = "InternalError"
    status: int = 0  # 0: the code's own
    message: str = "An internal error has occurred: injected by the test."
    real: bool = False

    def fits(self, operation: str, things: Sequence[str]) -> bool:
        """A dry run has DRY_RUN among its things."""
        return super().fits(operation, things) and not (self.real and DRY_RUN in things)


class Faults(faults.FaultList[Fault]):
    """The faults in force."""
