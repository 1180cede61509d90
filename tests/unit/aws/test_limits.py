"""Token buckets at given times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caretaker.aws.bucket import Limiter, TokenBucket
from caretaker.aws.services import Rate, api_name, iam_action, is_write, policy


def test_a_burst_passes_and_the_rest_waits_in_order() -> None:
    bucket = TokenBucket(Rate(2, 3), now=100.0)
    assert [bucket.take(100.0) for _ in range(6)] == [0, 0, 0, 0.5, 1.0, 1.5]


def test_tokens_flow_in_up_to_the_burst() -> None:
    bucket = TokenBucket(Rate(2, 3), now=0.0)
    for _ in range(3):
        bucket.take(0.0)
    assert bucket.take(0.5) == 0
    assert not bucket.full(1.0)
    assert bucket.full(1000.0)
    assert [bucket.take(1000.0) for _ in range(4)] == [0, 0, 0, 0.5]


def test_how_many_pass_at_once_and_how_long_the_next_one_waits() -> None:
    bucket, found = TokenBucket(Rate(2, 9), now=0.0, tokens=2.0), []
    for _ in range(5):
        found.append((bucket.free(0.0), bucket.wait(0.0)))
        bucket.take(0.0)
    assert found == [(2, 0.0), (1, 0.0), (0, 0.5), (0, 1.0), (0, 1.5)]
    assert (bucket.free(2.0), bucket.wait(2.0)) == (1, 0.0)


def test_a_token_that_rounding_has_made_smaller_is_one() -> None:
    assert TokenBucket(Rate(1, 1), now=0.0, tokens=1 - 1e-12).free(0.0) == 1


def test_a_clock_that_steps_back_gives_nothing_away() -> None:
    bucket = TokenBucket(Rate(1, 1), now=10.0)
    bucket.take(10.0)
    assert bucket.take(5.0) == 1.0
    assert bucket.take(10.0) == 2.0


def test_what_was_throttled_waits_from_now_on() -> None:
    bucket = TokenBucket(Rate(1, 100), now=0.0)
    bucket.drain(0.0)
    assert bucket.take(0.0) == 1.0


@given(
    st.floats(0.1, 100),
    st.integers(1, 50),
    st.lists(st.floats(0, 10, allow_nan=False), min_size=1, max_size=60),
)
def test_never_more_than_the_burst_and_what_flowed_in(rate: float, burst: int, gaps: list[float]) -> None:
    bucket, now, starts = TokenBucket(Rate(rate, burst), 0.0), 0.0, []
    for gap in gaps:
        now += gap
        starts.append(now + bucket.take(now))
    assert starts == sorted(starts)
    for first, start in enumerate(starts):
        for last in range(first, len(starts)):
            assert last - first + 1 <= burst + rate * (starts[last] - start) + 1e-6


def test_calls_go_at_the_rate_and_other_keys_do_not_wait() -> None:
    limiter, rate = Limiter(), Rate(2, 2)
    assert [limiter.take("a", rate, 9.0) for _ in range(5)] == [0, 0, 0.5, 1.0, 1.5]
    assert limiter.take("b", rate, 9.0) == 0


def test_full_buckets_are_forgotten_and_empty_ones_are_not() -> None:
    limiter = Limiter()
    limiter.throttled("throttled", Rate(0.001, 10), 0.0)
    for number in range(1000):
        limiter.take(number, Rate(1, 1), number + 1.0)
    assert "throttled" in limiter._buckets
    assert len(limiter._buckets) <= 257


@pytest.mark.parametrize(
    ("operation", "write"),
    [
        ("DeleteMessageBatch", True),
        ("ChangeMessageVisibilityBatch", True),
        ("RefreshCache", True),
        ("ModifyInstanceMetadataOptions", True),
        ("RunTask", True),
        ("SomethingNew", True),
        ("ReceiveMessage", False),
        ("AssumeRole", False),
        ("GetQueueAttributes", False),
        ("ListFileShares", False),
        ("DescribeNFSFileShares", False),
    ],
)
def test_what_is_not_known_to_be_harmless_is_a_write(operation: str, write: bool) -> None:
    assert is_write(operation) is write


@pytest.mark.parametrize(
    ("method", "operation"),
    [("run_task", "RunTask"), ("delete_message_batch", "DeleteMessageBatch"), ("", "")],
)
def test_the_operation_of_a_method(method: str, operation: str) -> None:
    assert api_name(method) == operation


def test_a_refresh_is_never_sent_twice_for_one_call() -> None:
    assert policy("storagegateway").attempts == 1
    assert policy("something").attempts == 3


@pytest.mark.parametrize(
    ("service", "operation", "action"),
    [
        ("sqs", "DeleteMessageBatch", "sqs:DeleteMessage"),
        ("s3", "HeadBucket", "s3:ListBucket"),
        ("s3control", "GetAccessPoint", "s3:GetAccessPoint"),
        ("storagegateway", "RefreshCache", "storagegateway:RefreshCache"),
    ],
)
def test_the_action_that_permits_an_operation(service: str, operation: str, action: str) -> None:
    assert iam_action(service, operation) == action
