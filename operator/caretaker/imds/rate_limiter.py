"""How fast changes may be sent. Pure: the time, in seconds of a clock that never goes back, is an argument.

EC2 lets an account change 100 instances at once and 5 a second then, in each region, all callers together
(Amazon EC2 developer guide, "Request throttling": ModifyInstanceMetadataOptions). We take a part of that,
and halve it each time that EC2 refuses.
"""

from typing import Final

from caretaker.aws.bucket import TokenBucket
from caretaker.aws.services import Rate

# EC2's own ratio of burst to inflow in each second is 20. Its bucket is filled once a second, not in
# fractions of one (as above): tokens that have flowed into ours may not be in EC2's yet.
BURST_SECONDS: Final = 19.0
RECOVERY_SECONDS: Final = 60.0  # without a refusal, until the rate doubles again
SLOWEST: Final = 1 / 64
# Refusals within this time are of one batch.
BATCH_SECONDS: Final = 1.0
# The burst of a policy: its changes of so many seconds.
CAP_BURST_SECONDS: Final = 3.0


def regional(per_second: float) -> Rate:
    """Our part of EC2's bucket of an account and region."""
    return Rate(per_second, per_second * BURST_SECONDS)


def cap(per_minute: int) -> Rate:
    """That many in any minute: the burst is taken off the inflow."""
    burst = max(1.0, per_minute / 60.0 * CAP_BURST_SECONDS)
    return Rate((per_minute - burst if burst > 1 else per_minute) / 60.0, burst)


class AdaptiveRateLimiter:
    """A token bucket that slows down on request, and recovers by itself. `rate`: when it is not slowed."""

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = rate
        self._bucket = TokenBucket(rate, now)
        self._factor = 1.0
        self._refused = 0.0
        self._halved = -1.0

    def pace(self, rate: Rate, now: float) -> None:
        """The rate from now on. Another one begins with what is left of the burst: otherwise edits in
        quick succession would give a burst each."""
        if rate != self.rate:
            self.rate = rate
            self._renew(now)

    def free(self, now: float) -> int:
        """How many may be sent at once."""
        self._recover(now)
        return self._bucket.free(now)

    def wait(self, now: float) -> float:
        """Seconds until one may be sent."""
        self._recover(now)
        return self._bucket.wait(now)

    def take(self, now: float) -> None:
        """A change is sent."""
        self._bucket.take(now)

    def refused(self, now: float) -> None:
        """EC2 refused a change: half the rate, and nothing at once. Refusals of one batch count once."""
        if now - self._halved >= BATCH_SECONDS:
            self._factor, self._halved = max(self._factor / 2, SLOWEST), now
        self._refused = now
        self._renew(now)
        self._bucket.drain(now)

    def slowed(self, now: float) -> bool:
        """Whether it is slower than it was made."""
        self._recover(now)
        return self._factor < 1.0

    def idle(self, now: float) -> bool:
        """Whether nothing would be lost by forgetting it."""
        return not self.slowed(now) and self._bucket.full(now)

    def _recover(self, now: float) -> None:
        while self._factor < 1.0 and now - self._refused >= RECOVERY_SECONDS:
            self._factor, self._refused = self._factor * 2, self._refused + RECOVERY_SECONDS
            self._renew(now)

    def _renew(self, now: float) -> None:
        left = self._bucket.left(now)
        rate = Rate(self.rate.per_second * self._factor, max(self.rate.burst * self._factor, 1.0))
        self._bucket = TokenBucket(rate, now, tokens=min(left, rate.burst))
