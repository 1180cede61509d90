"""What the double is told to do wrong, and how often.

Pure. Every fault that fits a call is used up by it once, so several can meet in one call.
"""

from dataclasses import dataclass
from typing import Final

from awsdoubles import faults, spoiled

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


@dataclass(kw_only=True)
class Fault(faults.Fault):
    """A fault of calls of `operation` for `share`; "" = any."""

    ACTIONS = ACTIONS
    THING = "share"

    operation: str = "RefreshCache"
    share: str = ""  # ARN
    code: str = "InvalidGatewayRequestException"
    error_code: str = "InternalError"
    message: str = "An internal error occurred: injected by the test."


class Faults(faults.FaultList[Fault]):
    """The faults in force."""
