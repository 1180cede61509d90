"""What can be refreshed: a module each, all with the two methods of Target.

A module knows its service and nothing of debouncing; adding one touches no other.
"""

from typing import Protocol

from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.plan import Result, Shares


class Target(Protocol):
    """Neither method raises what the service answers."""

    async def discover(self) -> Shares:
        """What there is to refresh. Not complete while something could not be asked or understood."""

    async def refresh(self, share: Share, claim: Claim) -> Result:
        """Make the call that the claim records, once."""
