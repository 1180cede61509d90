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
    **spoiled.ACTIONS,
}
THROTTLED: Final = {"code": "ThrottlingException", "message": "Rate exceeded"}


@dataclass(kw_only=True)
class Fault(faults.Fault):
    """A fault of calls of `operation` on `cluster`; "" = any."""

    ACTIONS = ACTIONS
    THING = "cluster"

    cluster: str = ""  # its name
    code: str = "ServerException"


class Faults(faults.FaultList[Fault]):
    """The faults in force."""
