"""What can be refreshed: a module each, all with the members of Target.

A module knows its service and nothing of debouncing; adding one touches no other.
"""

from collections.abc import Collection, Sequence
from typing import ClassVar, Protocol

from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.plan import End, Result, Shares


class Target(Protocol):
    """No method raises what the service answers. What the guard of a write raises (NotLeader) comes through:
    nothing was sent then."""

    # Whether refresh() with the same claim, made twice, takes effect once.
    idempotent: ClassVar[bool]

    async def discover(self) -> Shares:
        """What there is to refresh. Not complete while something could not be asked or understood."""

    async def refresh(self, share: Share, claim: Claim) -> Result:
        """Make the call that the claim records, once."""

    async def ended(self, notification_ids: Collection[str]) -> Sequence[End]:
        """Which of these refreshes in flight have ended, and how; to be asked again for the others. Of a
        target whose ends are told by messages, or not at all: none."""
