"""Which container instances of a cluster count, as far as it was told: what an event changes, and what not.

No I/O. An agent that connects, a task that starts, a drain where DRAINING counts: all of them make events,
and none changes how many there are. Lost with the process, and learnt again from a list.
"""

from collections.abc import Collection
from typing import Final

from caretaker.daemontask.ecs.envelope import Notice

# API reference, Cluster: registeredContainerInstancesCount "includes container instances in both ACTIVE and
# DRAINING status".
COUNTED: Final = {"Registered": ("ACTIVE", "DRAINING"), "Active": ("ACTIVE",)}
MOST: Final = 20_000  # remembered of one cluster; those that no longer count are forgotten first


class Instances:
    """One cluster's. Until learn() was called, an instance that is not known may be either."""

    def __init__(self, counts: str) -> None:
        self._statuses = COUNTED[counts]
        self._known: dict[str, tuple[bool, int]] = {}  # ARN -> whether it counts, version of the event
        self._complete = False
        self._heard: set[str] = set()  # of which an event came since begin()

    @property
    def complete(self) -> bool:
        """Whether an instance that is not known does not count."""
        return self._complete

    def begin(self) -> None:
        """A list is about to be asked for."""
        self._heard.clear()

    def learn(self, arns: Collection[str]) -> None:
        """All that count. What events have told since begin() may be newer, and stays."""
        for arn in {*arns, *self._known} - self._heard:
            _, version = self._known.get(arn, (False, 0))
            self._known[arn] = (arn in arns, version)
        self._complete = True

    def changed(self, notice: Notice) -> bool:
        """Take note; whether the number may be another one. Repetitions and what comes late change
        nothing."""
        counts = notice.status in self._statuses
        self._heard.add(notice.instance)
        before, version = self._known.get(notice.instance, (False if self._complete else None, 0))
        if version and notice.version and notice.version <= version:
            return False
        self._known[notice.instance] = (counts, max(notice.version, version))
        if len(self._known) > MOST:
            self._shrink()
        return counts != before

    def _shrink(self) -> None:
        self._known = {arn: one for arn, one in self._known.items() if one[0]}
        if len(self._known) > MOST:
            self._known.clear()
            self._complete = False
