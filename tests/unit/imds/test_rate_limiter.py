"""How fast changes are sent, beside EC2's own bucket."""

import pytest

from awsdoubles.ec2.clock import Clock
from awsdoubles.ec2.throttle import LISTED, Buckets
from caretaker.imds.rate_limiter import AdaptiveRateLimiter, regional

STEP = 0.1  # seconds
MINUTES = 5


@pytest.mark.parametrize("late", [0.0, 0.35, 0.9], ids=lambda late: f"{late} s after EC2's own second")
def test_all_of_ec2_s_bucket_can_be_taken_without_a_refusal(late: float) -> None:
    clock = Clock()
    clock.stop()
    began = clock.now()
    theirs, size, rate = Buckets(clock), *LISTED["ModifyInstanceMetadataOptions"]
    assert theirs.take("eu-west-1", "b", size, rate)  # the question whether it may
    ours = AdaptiveRateLimiter(regional(rate), clock.now())
    ours.take(clock.now())
    clock.advance(late)
    sent = 1
    while clock.now() - began < MINUTES * 60:
        for _ in range(ours.free(clock.now())):
            ours.take(clock.now())
            sent += 1
            assert theirs.take("eu-west-1", "b", size, rate), f"refused after {clock.now() - began:g} s"
        clock.advance(STEP)
    assert sent >= size + rate * (MINUTES * 60 - 2), "nearly all that EC2 allows"
