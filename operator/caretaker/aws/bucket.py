"""A token bucket: limits our calls below AWS's own throttling. Pure: the time is an argument.

Times are seconds of a clock that never goes back.
"""

from caretaker.aws.services import Rate


class TokenBucket:
    """`rate.burst` calls at once, then `rate.per_second`. Pure: the time is an argument."""

    def __init__(self, rate: Rate, now: float, tokens: float | None = None) -> None:
        """`tokens` that are there at first; None = all."""
        self._rate = rate
        self._tokens = rate.burst if tokens is None else tokens
        self._at = now

    def free(self, now: float) -> int:
        """How many calls need not wait."""
        self._fill(now)
        return max(0, int(self._tokens + 1e-9))

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
