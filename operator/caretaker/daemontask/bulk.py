"""How many Pods of a large template may be created now, and when a pass over its task may begin. Pure: the
time is an argument, in monotonic seconds.

The API server, the scheduler and every watcher decode each change of a Pod or a task whole. A Pod of 250 KiB
takes 0.2 s of the API server's CPU until it has ended, 2 s if it is a list of variables, and a status update
of its task 0.2 s: as fast as small ones they delay the Pods of other tasks by seconds (docs/benchmarks.md,
"attacks"). So the bytes of large Pods and tasks are limited, for all tasks of a namespace together.
"""

import math
from typing import Any, Final

from caretaker.aws.bucket import TokenBucket
from caretaker.aws.services import Rate

FREE: Final = 16 * 1024  # bytes of a Pod that do not count
BYTES: Final = Rate(per_second=128.0 * 1024, burst=256.0 * 1024)
PAUSE: Final = 2.0  # seconds, at least, until the next ones
# Bytes that an entry of these lists and maps counts beside its own: managedFields of a Pod has each of them,
# and every change of the Pod decodes, merges and encodes that. 0.1 ms of the API server's CPU.
ENTRY: Final = 128
_TRACKED: Final = (
    *("annotations", "labels", "matchLabels", "env", "ports"),
    *("claims", "limits", "requests", "overhead", "resourceClaims", "schedulingGates"),
    *("volumes", "volumeMounts", "volumeDevices", "volumeAttributes", "options"),
    *("hostAliases", "imagePullSecrets", "topologySpreadConstraints"),
)
_ENTRIES: Final = {**dict.fromkeys(_TRACKED, 1), "containers": 8, "initContainers": 8}  # with their defaults


def cost_of(size: int, template: dict[str, Any]) -> int:
    """The bytes that a Pod of this template counts, which is sent with `size` bytes."""
    entries, left = 0, list[tuple[str, Any]]([("", template)])
    while left:  # only through what holds something: a template may have 100,000 empty objects
        name, one = left.pop()
        entries += _ENTRIES.get(name, 0) * len(one)
        if isinstance(one, dict):
            left.extend(part for part in one.items() if part[1] and isinstance(part[1], dict | list))
        else:
            left.extend(("", part) for part in one if part and isinstance(part, dict | list))
    return size + ENTRY * entries


class Bulk:
    """The allowance of one namespace, for Pods, for passes and for the data of
    spec.dataRefs. The size of a Pod is its cost_of().

    A task with a waiting Pod reserves a turn: the time at which the bytes that were used before are refilled.
    From then on it may create one Pod, however much other tasks have used since. A task without a waiting Pod
    has no turn, or many idle tasks would all create a Pod at once.
    """

    def __init__(self, now: float) -> None:
        self._pods = TokenBucket(BYTES, now)
        self._passes = TokenBucket(BYTES, now)
        self._data = TokenBucket(BYTES, now)

    def allowed(self, size: int, now: float, turn: float) -> int | None:
        """How many Pods of `size` bytes may be created now; None = any number. The last one may exceed the
        remaining bytes."""
        cost = size - FREE
        if cost <= 0:
            return None
        return max(math.ceil(self._pods.free(now) / cost), int(now >= turn))

    def spent(self, size: int, now: float) -> bool:
        """Whether no other Pod of `size` bytes may be created in this pass."""
        return size > FREE and not self._pods.free(now)

    def take(self, size: int, now: float) -> float:
        """Takes the bytes of a Pod, or of the dry run of its template. Returns the next turn of its task."""
        return now + self._pods.take(now, max(size - FREE, 0))

    def take_pass(self, size: int, now: float) -> float:
        """Takes the bytes of a pass over a task with a spec of `size` bytes. Returns the seconds until it may
        begin."""
        return self._passes.take(now, size - FREE) if size > FREE else 0.0

    def take_data(self, size: int, now: float) -> float:
        """Takes bytes of the data of spec.dataRefs. Returns the seconds until all that were taken are
        refilled."""
        return self._data.take(now, size)

    def has_spare_data(self, now: float) -> bool:
        """Whether data may be read that is known already. The other half is for data that is not."""
        return self._data.free(now) > BYTES.burst / 2

    def full(self, now: float) -> bool:
        """Whether nothing would be lost by forgetting it."""
        return all(bucket.full(now) for bucket in (self._pods, self._passes, self._data))


class PassTurn:
    """When the passes over one task may begin. The size of a task that this process has not read is unknown:
    its pass takes the bytes once they are read, and goes on when they are refilled."""

    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk
        self._size = 0  # of the task as it was last read
        self._taken = 0  # the size whose bytes the pass under way, or the next one, has taken
        self._begins: float | None = None  # None = no pass has been asked for

    @property
    def large(self) -> bool:
        """Whether its passes wait for their turn."""
        return self._size > FREE

    def wait(self, now: float) -> float:
        """Seconds until the next pass may begin; 0 = it begins. Tasks that ask first begin first. The bytes
        count even if the pass fails."""
        if self._begins is None:
            self._taken = self._size
            self._begins = now + self._bulk.take_pass(self._size, now)
        if now < self._begins:
            return self._begins - now
        self._begins = None
        return 0.0

    def read(self, size: int, now: float) -> float:
        """The task was read, and has `size` bytes. Returns the seconds until its pass may go on, as one that
        begins then. A large task that grows waits once for each FREE bytes, or it might never have a pass."""
        taken, self._size = max(self._taken, FREE), size
        if size <= taken:
            return 0.0
        wait, self._taken = self._bulk.take_pass(FREE + size - taken, now), size
        if taken > FREE and size - taken <= FREE:
            return 0.0
        if wait:
            self._begins = now + wait
        return wait
