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
    """The allowance of one namespace, for Pods and for passes. The size of a Pod is its cost_of().

    A task with a waiting Pod has a turn: the time by which the bytes used before it asked are refilled. Then
    it may create one, however much other tasks have used since. A task without a waiting Pod has no turn:
    many idle tasks would otherwise all create a Pod at once.
    """

    def __init__(self, now: float) -> None:
        self._pods = TokenBucket(BYTES, now)
        self._passes = TokenBucket(BYTES, now)

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

    def full(self, now: float) -> bool:
        """Whether nothing would be lost by forgetting it."""
        return self._pods.full(now) and self._passes.full(now)
