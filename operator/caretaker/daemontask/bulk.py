"""How many Pods of a large template may be created now. Pure: the time is an argument, in monotonic seconds.

The API server, the scheduler and every watcher decode each change of a Pod whole: 300 Pods of 250 KiB,
created as fast as small ones, delay the Pods of other tasks by seconds (docs/benchmarks.md, "Attacks").
So the bytes of large Pods are limited, for all tasks of a namespace together.
"""

import math
from typing import Final

from caretaker.aws.bucket import TokenBucket
from caretaker.aws.services import Rate

FREE: Final = 16 * 1024  # bytes of a Pod that do not count
BYTES: Final = Rate(per_second=128.0 * 1024, burst=512.0 * 1024)
PAUSE: Final = 2.0  # seconds, at least, until the next ones


class Bulk:
    """The allowance of one namespace."""

    def __init__(self, now: float) -> None:
        self._bucket = TokenBucket(BYTES, now)

    def allowed(self, size: int, now: float) -> int | None:
        """How many Pods of `size` bytes may be created now; None = any number. The last of them may be larger
        than what is left."""
        cost = size - FREE
        return math.ceil(self._bucket.free(now) / cost) if cost > 0 else None

    def wait(self, now: float) -> float:
        """Seconds until the next Pod, when no other one may be created."""
        return max(self._bucket.wait(now), PAUSE)

    def take(self, size: int, now: float) -> None:
        """A Pod of `size` bytes is created."""
        self._bucket.take(now, max(size - FREE, 0))
