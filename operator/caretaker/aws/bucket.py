"""Token buckets: limit our calls below AWS's own throttling. Pure: the time is an argument.

Times are seconds of a clock that never goes back.
"""

from collections.abc import Hashable

from caretaker.aws.services import Rate


class TokenBucket:
    """`rate.burst` calls at once, then `rate.per_second`."""

    def __init__(self, rate: Rate, now: float, tokens: float | None = None) -> None:
        """`tokens` that are there at first; None = all."""
        self._rate = rate
        self._tokens = rate.burst if tokens is None else tokens
        self._at = now

    def free(self, now: float) -> int:
        """How many calls need not wait."""
        self._fill(now)
        return max(0, int(self._tokens + 1e-9))

    def left(self, now: float) -> float:
        """The tokens, with parts of one; 0 if calls wait."""
        self._fill(now)
        return max(0.0, self._tokens)

    def wait(self, now: float) -> float:
        """Seconds until a call need not wait."""
        self._fill(now)
        return max(0.0, (1.0 - self._tokens) / self._rate.per_second)

    def take(self, now: float, tokens: float = 1.0) -> float:
        """Take tokens, which flow in later if need be; seconds to wait for them, in order of the calls."""
        self._fill(now)
        self._tokens -= tokens
        return max(0.0, -self._tokens / self._rate.per_second)

    def drain(self, now: float) -> None:
        """AWS throttled us: it has fewer tokens than the bucket. The next call waits."""
        self._fill(now)
        self._tokens = min(self._tokens, 0.0)

    def full(self, now: float) -> bool:
        """Whether the bucket is full: it can be dropped without loss."""
        self._fill(now)
        return self._tokens >= self._rate.burst

    def _fill(self, now: float) -> None:
        gained = max(0.0, now - self._at) * self._rate.per_second
        self._tokens = min(self._rate.burst, self._tokens + gained)
        self._at = max(self._at, now)


class Limiter:
    """Buckets by key. One serves every resource with the same identity, region and service."""

    _SWEEP = 256  # buckets beyond which full ones are forgotten: identities come and go

    def __init__(self) -> None:
        self._buckets: dict[Hashable, TokenBucket] = {}

    def take(self, key: Hashable, rate: Rate, now: float) -> float:
        """Take the key's next token; seconds to wait for it."""
        return self._bucket(key, rate, now).take(now)

    def throttled(self, key: Hashable, rate: Rate, now: float) -> None:
        """AWS throttled a call of this key."""
        self._bucket(key, rate, now).drain(now)

    def _bucket(self, key: Hashable, rate: Rate, now: float) -> TokenBucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._SWEEP:
                self._buckets = {k: b for k, b in self._buckets.items() if not b.full(now)}
            bucket = self._buckets[key] = TokenBucket(rate, now)
        return bucket
