"""Which container instances of a cluster count, as far as it was told: what an event changes, and what not.

No I/O. An agent that connects, a task that starts, a drain where DRAINING counts: all of them make events,
and none changes how many there are. Lost with the process, and learnt again from a list.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from caretaker.daemontask.ecs.check import Counts
from caretaker.daemontask.ecs.envelope import Notice

# API reference, Cluster: registeredContainerInstancesCount "includes container instances in both ACTIVE and
# DRAINING status".
COUNTED: Final[dict[Counts, tuple[str, ...]]] = {
    "Registered": ("ACTIVE", "DRAINING"),
    "Active": ("ACTIVE",),
}
MOST: Final = 20_000  # remembered of one cluster; those that no longer count are forgotten first


class _Known(msgspec.Struct, frozen=True):
    counts: bool = False
    version: int = 0  # of the event
    by_event: bool = False  # that it counts was told by an event, and by no list since
    left_out: bool = False


class Instances:
    """One cluster's. Until learn() was called, an instance that is not known may be either.

    Of each: whether it counts, False as well where its status is one that counts and ECS's list, which came
    later, leaves it out (`_Known.left_out`): where the service may not run, what it does makes no difference.
    """

    def __init__(self, counts: Counts) -> None:
        self._statuses = COUNTED[counts]
        self._known: dict[str, _Known] = {}  # by ARN
        self._complete = False
        self._heard: set[str] = set()  # of which an event came since begin()

    @property
    def complete(self) -> bool:
        """Whether an instance that is not known does not count."""
        return self._complete

    def begin(self) -> None:
        """A list is about to be asked for."""
        self._heard.clear()

    def learn(self, arns: Collection[str], counts: Counts) -> None:
        """All that count, by these statuses. What events have told since begin() may be newer, and stays."""
        self._statuses = COUNTED[counts]
        for arn in {*arns, *self._known} - self._heard:
            before = self._known.get(arn, _Known())
            left_out = arn not in arns and (before.left_out or before.by_event)
            self._known[arn] = _Known(arn in arns, before.version, left_out=left_out)
        self._complete = True

    def changed(self, notice: Notice) -> bool:
        """Take note; whether the number may be another one. Repetitions and what comes late change
        nothing."""
        counts = notice.status in self._statuses
        self._heard.add(notice.instance)
        known = self._known.get(notice.instance)
        before = known or _Known()
        if before.version and notice.version and notice.version <= before.version:
            return False
        version = max(notice.version, before.version)
        # A gap in the versions: what happened meanwhile was not told, and may be why the list left it out.
        if before.left_out and counts and notice.version <= before.version + 1:
            self._known[notice.instance] = msgspec.structs.replace(before, version=version)
            return False
        self._known[notice.instance] = _Known(counts, version, by_event=counts)
        if len(self._known) > MOST:
            self._shrink()
        return counts != before.counts or (known is None and not self._complete)

    def _shrink(self) -> None:
        self._known = {arn: one for arn, one in self._known.items() if one.counts}
        if len(self._known) > MOST:
            self._known.clear()
            self._complete = False
