"""Token buckets: limit our calls below AWS's own throttling.

Inputs: rates and a clock in seconds that never goes back. It does not distinguish resources: one bucket
serves every resource with the same identity, region and service.
"""

import asyncio
from collections.abc import Callable, Hashable

from caretaker.aws.bucket import TokenBucket
from caretaker.aws.services import Rate


class Limiter:
    """Buckets by key. Made and used in one event loop; `clock` defaults to the loop's."""

    _SWEEP = 256  # buckets beyond which full ones are forgotten: identities come and go

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._buckets: dict[Hashable, TokenBucket] = {}

    async def wait(self, key: Hashable, rate: Rate) -> None:
        """Wait for the key's next token. A cancelled waiter has spent its token."""
        seconds = self._bucket(key, rate).take(self._now())
        if seconds > 0:
            await asyncio.sleep(seconds)

    def throttled(self, key: Hashable, rate: Rate) -> None:
        """AWS throttled a call of this key."""
        self._bucket(key, rate).drain(self._now())

    def _bucket(self, key: Hashable, rate: Rate) -> TokenBucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            now = self._now()
            if len(self._buckets) >= self._SWEEP:
                self._buckets = {k: b for k, b in self._buckets.items() if not b.full(now)}
            bucket = self._buckets[key] = TokenBucket(rate, now)
        return bucket

    def _now(self) -> float:
        return self._clock() if self._clock is not None else asyncio.get_running_loop().time()
