"""The Pods that the API server refused to create, by node, and when to try again.

Pure: moments are arguments, in seconds since the epoch. One refused node waits by itself, behind the others.
Refusals of ROW different nodes with no Pod created between them are taken for the task's, not the nodes': a
quota, a policy, a namespace that is being deleted. The task backs off then, and the first Pod that is created
lets all of them try again at once.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

ROW: Final = 5
BACKOFF_BASE: Final = 1.0
BACKOFF_MAX: Final = 300.0


class RefusedPod(msgspec.Struct, frozen=True):
    """Why one node has no Pod."""

    message: str  # the API server's words
    since: float  # the first refusal of those in a row for this node
    until: float  # not tried again before
    times: int = 1


class RefusedPods:
    """Those of one task. A cache: a new process learns them again."""

    def __init__(self) -> None:
        self._by_node: dict[str, RefusedPod] = {}
        self._row: set[str] = set()
        self._tries = 0  # since the refusals are the task's concern
        self._until = 0.0

    @property
    def of_all(self) -> bool:
        """Whether the refusals are the task's concern, until a Pod is created."""
        return len(self._row) >= ROW

    @property
    def until(self) -> float:
        """With of_all the time before which no node is tried, and then one; else 0."""
        return self._until if self.of_all else 0.0

    @property
    def by_node(self) -> Mapping[str, RefusedPod]:
        """Node UID -> refusal."""
        return self._by_node

    def add(self, node_uid: str, message: str, now: float) -> bool:
        """The API server created no Pod for this node. Returns whether that is the task's concern."""
        before, for_all = self._by_node.get(node_uid), self.of_all
        times = before.times + 1 if before is not None else 1
        since = before.since if before is not None else now
        self._by_node[node_uid] = RefusedPod(message, since, now + _wait(times), times)
        self._row.add(node_uid)
        if self.of_all and (
            before is None or not for_all
        ):  # a node that was refused before says nothing of the others
            self._next_try(now)
        return self.of_all

    def _next_try(self, now: float) -> None:
        self._tries += 1
        self._until = now + _wait(self._tries)

    def created(self, node_uid: str) -> bool:
        """The API server created a Pod for this node. Returns whether that releases other nodes."""
        self._by_node.pop(node_uid, None)
        released = self.of_all
        if released:
            for uid in self._row:
                self._by_node.pop(uid, None)
        self._row.clear()
        self._tries = 0
        return released

    def forget(self, node_uid: str) -> None:
        """The node is gone."""
        self._by_node.pop(node_uid, None)
        self._row.discard(node_uid)


class Pacing(msgspec.Struct):
    """When Pods of one revision may be created."""

    revision: str = ""
    turn: float = 0.0  # time.monotonic(): see Bulk
    idle: bool = False  # whether no Pod was waiting for the turn after the last pass
    refused_pods: RefusedPods = msgspec.field(default_factory=RefusedPods)


def _wait(times: int) -> float:
    return min(BACKOFF_BASE * 2.0 ** min(times - 1, 16), BACKOFF_MAX)
