"""How fast changes may be sent."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from caretaker.aws.services import Rate
from caretaker.imds.rate_limiter import RECOVERY_SECONDS, SLOWEST, AdaptiveRateLimiter, cap, regional


@given(st.integers(1, 6000), st.lists(st.floats(0.0, 40.0), max_size=30), st.floats(0.0, 1e6))
def test_never_more_than_the_cap_in_any_minute(per_minute: int, pauses: list[float], start: float) -> None:
    limiter, now = AdaptiveRateLimiter(cap(per_minute), start), start
    taken: list[tuple[float, int]] = []
    for pause in [*pauses, 0.0, 30.0, 29.9, 0.0]:
        now += pause
        free = limiter.free(now)
        for _ in range(free):
            limiter.take(now)
        taken.append((now, free))
    for first, _ in taken:
        assert sum(n for at, n in taken if first <= at < first + 60.0 - 1e-6) <= per_minute


@pytest.mark.parametrize("per_minute", [1, 6, 20, 21, 60, 600, 6000])
def test_the_cap_is_used_up(per_minute: int) -> None:
    limiter, sent = AdaptiveRateLimiter(cap(per_minute), 0.0), 0
    for second in range(0, 601, 3):
        for _ in range(free := limiter.free(float(second))):
            limiter.take(float(second))
        sent += free
    assert 0.8 * per_minute * 10 <= sent <= per_minute * 10 + 1


def test_a_region_has_a_rate_and_burst_in_ec2s_own_proportion() -> None:
    assert regional(5.0) == Rate(5.0, 95.0)
    assert regional(2.0) == Rate(2.0, 38.0)


@pytest.mark.parametrize(
    ("per_minute", "rate"),
    [(1, (1 / 60, 1.0)), (20, (20 / 60, 1.0)), (30, (28.5 / 60, 1.5)), (60, (57 / 60, 3.0))],
)
def test_what_may_be_sent_at_once_is_taken_off_what_flows_in(
    per_minute: int, rate: tuple[float, float]
) -> None:
    assert cap(per_minute) == Rate(*rate)


def test_another_rate_begins_with_what_is_left_of_the_burst() -> None:
    limiter = AdaptiveRateLimiter(cap(60), 0.0)
    for _ in range(2):
        limiter.take(0.0)
    limiter.pace(cap(600), 0.0)
    assert (limiter.free(0.0), limiter.free(1.0)) == (1, 10)
    limiter.pace(cap(60), 1.0)
    assert limiter.free(1.0) == 3


def test_edits_in_quick_succession_do_not_hold_up_the_next_change() -> None:
    """A part of a change that has flowed in is kept."""
    limiter = AdaptiveRateLimiter(cap(1), 0.0)
    limiter.take(0.0)
    for number in range(1, 20):
        limiter.pace(cap(1 + number % 2), number * 5.0)
    assert limiter.free(95.0) == 1


def test_calls_that_were_in_flight_at_a_refusal_are_not_waited_for() -> None:
    limiter = AdaptiveRateLimiter(Rate(1.0, 1.0), 0.0)
    for _ in range(4):
        limiter.take(0.0)
    limiter.refused(0.0)
    assert limiter.wait(0.0) == 2.0


def test_a_refusal_halves_the_rate_and_a_minute_without_doubles_it() -> None:
    limiter = AdaptiveRateLimiter(Rate(4.0, 80.0), 0.0)
    assert (limiter.free(0.0), limiter.slowed(0.0)) == (80, False)
    limiter.refused(0.0)
    assert (limiter.free(0.0), limiter.slowed(0.0)) == (0, True)
    assert limiter.free(10.0) == 20
    assert limiter.wait(0.0) <= 0.5
    limiter.refused(20.0)
    assert limiter.free(30.0) == 10
    assert limiter.slowed(20.0 + RECOVERY_SECONDS)
    assert not limiter.slowed(20.0 + 2 * RECOVERY_SECONDS)
    assert limiter.free(20.0 + 2 * RECOVERY_SECONDS + 60.0) == 80


def test_refusals_of_one_batch_count_once_and_those_that_go_on_do_not() -> None:
    limiter = AdaptiveRateLimiter(Rate(4.0, 80.0), 0.0)
    for number in range(8):
        limiter.refused(number / 10)
    assert limiter.free(10.8) == 20, "2 a second"
    limiter = AdaptiveRateLimiter(Rate(4.0, 80.0), 0.0)
    for number in range(5):  # as fast as the halved rate lets them be sent
        limiter.refused(number / 2)
    assert limiter.free(12.0) == 5, "half a second's worth, after three halvings"


def test_it_never_stops_altogether() -> None:
    limiter = AdaptiveRateLimiter(Rate(2.0, 40.0), 0.0)
    for number in range(100):
        limiter.refused(float(number * 2))
    assert limiter.wait(198.0) <= 1 / (2.0 * SLOWEST)
    assert limiter.free(198.0 + 1 / (2.0 * SLOWEST)) == 1


def test_it_recovers_by_doubling() -> None:
    limiter = AdaptiveRateLimiter(Rate(4.0, 80.0), 0.0)
    limiter.refused(0.0)
    limiter.refused(2.0)
    assert [limiter.free(2.0 + after) for after in (59.0, 60.0, 119.0, 120.0, 200.0)] == [20, 20, 40, 40, 80]


def test_however_slow_it_sends_one_at_a_time() -> None:
    limiter = AdaptiveRateLimiter(Rate(4.0, 40.0), 0.0)
    for number in range(100):
        limiter.refused(float(number * 2))
    assert limiter.free(198.0 + 48.0) == 1


def test_what_is_full_and_quick_may_be_forgotten() -> None:
    limiter = AdaptiveRateLimiter(Rate(2.0, 40.0), 0.0)
    assert limiter.idle(0.0)
    limiter.take(0.0)
    assert not limiter.idle(0.4)
    assert limiter.idle(0.5)
    limiter.refused(1.0)
    assert not limiter.idle(1.0 + RECOVERY_SECONDS - 0.1)
    assert not limiter.idle(1.0 + RECOVERY_SECONDS), "quick, and not full yet"
    assert limiter.idle(1.0 + 2 * RECOVERY_SECONDS)
