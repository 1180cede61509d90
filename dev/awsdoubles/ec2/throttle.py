"""Token buckets, one for each API, account and region.

Sizes, rates and categories: "Request throttling for the Amazon EC2 API". The limits of Auto Scaling are not
published: it has the buckets of EC2's reads. A throttled request takes no token.
"""

import math
from typing import Any, Final

from awsdoubles.ec2.clock import Clock

READS: Final = (100.0, 20.0)
WRITES: Final = (50.0, 5.0)
UNBOUNDED_READS: Final = (50.0, 10.0)  # neither a filter nor a page: a smaller bucket of its own
LISTED: Final = {"ModifyInstanceMetadataOptions": (100.0, 5.0)}
UNBOUNDED_OPERATIONS: Final = ("DescribeInstances",)


class Buckets:
    """`take` answers whether a call may pass; a bucket is full until it is first used."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: dict[tuple[str, str], tuple[float, float]] = {}  # tokens, when they were counted

    def take(self, region: str, bucket: str, size: float, rate: float) -> bool:
        """Take a token. Refills come once a second, not in fractions of one."""
        now = self._clock.now()
        left, counted = self._left.get((region, bucket), (size, now))
        ticks = math.floor(now - counted)
        left, counted = min(size, left + ticks * rate), counted + ticks
        allowed = left >= 1
        self._left[region, bucket] = (left - 1 if allowed else left, counted)
        return allowed

    def clear(self) -> None:
        """All full again."""
        self._left.clear()


def bucket_of(operation: str, body: dict[str, Any]) -> tuple[str, float, float]:
    """The bucket that a call draws from: its name, size and rate a second."""
    if operation in LISTED:
        return (operation, *LISTED[operation])
    if operation in UNBOUNDED_OPERATIONS and not body.keys() & {"Filters", "MaxResults", "InstanceIds"}:
        return (f"{operation} (unbounded)", *UNBOUNDED_READS)
    reads = operation.startswith(("Describe", "Get", "List", "Search"))
    return (operation, *(READS if reads else WRITES))
