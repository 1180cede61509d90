"""The container instances of a cluster that count. It separates events that change their number from others.

Pure. An agent that connects, a task that starts, a drain where DRAINING counts: each makes an event, and
none changes the number. The state is lost with the process and read again with a list.
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
MOST: Final = 20_000  # kept for one cluster; instances that do not count are dropped first


class _Known(msgspec.Struct, frozen=True):
    counts: bool = False
    version: int = 0  # of the event
    by_event: bool = False  # an event says that it counts, and no list since confirms it
    left_out: bool = False


class Instances:
    """The container instances of one cluster. Before learn(), an unknown instance may count or not.

    An instance does not count either if its status does but a later list of ECS lacks it (`_Known.left_out`):
    the service may not run there, so its events change nothing.
    """

    def __init__(self, counts: Counts) -> None:
        self._statuses = COUNTED[counts]
        self._known: dict[str, _Known] = {}  # by ARN
        self._complete = False
        self._heard: set[str] = set()  # instances with an event since begin()

    @property
    def complete(self) -> bool:
        """Whether every instance that counts is known."""
        return self._complete

    def begin(self) -> None:
        """A list is about to be requested."""
        self._heard.clear()

    def learn(self, arns: Collection[str], counts: Counts) -> None:
        """Take this list of all instances that count. Events since begin() may be newer, and stay."""
        self._statuses = COUNTED[counts]
        for arn in {*arns, *self._known} - self._heard:
            before = self._known.get(arn, _Known())
            left_out = arn not in arns and (before.left_out or before.by_event)
            self._known[arn] = _Known(arn in arns, before.version, left_out=left_out)
        self._complete = True

    def changed(self, notice: Notice) -> bool:
        """Note the event; return whether the number may have changed. Repeated and late events change
        nothing."""
        counts = notice.status in self._statuses
        self._heard.add(notice.instance)
        known = self._known.get(notice.instance)
        before = known or _Known()
        if before.version and notice.version and notice.version <= before.version:
            return False
        version = max(notice.version, before.version)
        # After a gap in the versions an unseen change may be why the list lacks it.
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
