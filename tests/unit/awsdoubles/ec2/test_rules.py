"""Filters, pages, buckets and the clock of the EC2 double."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awsdoubles.ec2.clock import Clock
from awsdoubles.ec2.errors import AwsError
from awsdoubles.ec2.filters import matcher
from awsdoubles.ec2.paging import Pages
from awsdoubles.ec2.throttle import Buckets, bucket_of

PAGES = Pages("MaxResults", least=5, most=1000)


@pytest.mark.parametrize(
    ("pattern", "value", "found"),
    [
        ("a", "a", True),
        ("a", "A", False),
        ("a", "ab", False),
        ("a*", "abc", True),
        ("*c", "abc", True),
        ("*", "", True),
        ("a?c", "abc", True),
        ("a?c", "ac", True),
        ("a?c", "abbc", False),
        (r"a\*", "a*", True),
        (r"a\*", "ab", False),
        (r"a\?c", "abc", False),
        ("a.c", "abc", False),
        ("a.*", "a.b", True),
        ("[a]", "a", False),
        ("a*", "a\nb", True),
    ],
)
def test_wildcards(pattern: str, value: str, found: bool) -> None:
    fits = matcher([{"Name": "name", "Values": [pattern]}], {"name": lambda one: [one]}, lambda _: {})
    assert fits(value) is found


@given(
    names=st.sets(st.integers(1, 200)),
    size=st.integers(5, 50),
    gone=st.sets(st.integers(1, 200)),
    eager=st.booleans(),
)
def test_what_stays_is_on_a_page_once(names: set[int], size: int, gone: set[int], *, eager: bool) -> None:
    """Things that go after the first page take no other with them."""
    body: dict[str, Any] = {"MaxResults": size}
    left = [(one, one) for one in sorted(names)]
    seen: list[int] = []
    while True:
        page, token = PAGES.take(left, body, eager=eager)
        assert len(page) <= size
        seen += page
        if not token:
            break
        body |= token
        left = [pair for pair in left if pair[0] not in gone]
    assert sorted(set(seen)) == seen
    assert set(seen) >= names - gone


def test_without_a_size_everything_is_on_one_page() -> None:
    assert PAGES.take([(n, n) for n in range(1, 3001)], {}) == (list(range(1, 3001)), {})


@pytest.mark.parametrize("token", ["", "x", "WzEsMl0=", "bnVsbA=="])
def test_a_token_of_nobody_is_refused(token: str) -> None:
    with pytest.raises(AwsError, match="is invalid"):
        PAGES.take([], {"NextToken": token})


def test_a_bucket_empties_and_refills_once_a_second() -> None:
    clock = Clock()
    clock.stop()
    buckets = Buckets(clock)
    bucket = bucket_of("ModifyInstanceMetadataOptions", {})

    def taken() -> int:
        count = 0
        while buckets.take("here", *bucket):
            count += 1
        return count

    assert taken() == 100
    clock.advance(0.9)
    assert taken() == 0
    clock.advance(0.2)
    assert taken() == 5
    clock.advance(10)
    assert taken() == 50
    clock.advance(3600)
    assert taken() == 100
    assert buckets.take("there", *bucket)


@pytest.mark.parametrize(
    ("operation", "body", "size", "rate"),
    [
        ("ModifyInstanceMetadataOptions", {}, 100, 5),
        ("ModifyLaunchTemplate", {}, 50, 5),
        ("DescribeInstances", {}, 50, 10),
        ("DescribeInstances", {"MaxResults": 5}, 100, 20),
        ("DescribeInstances", {"Filters": [{"Name": "tag-key", "Values": ["x"]}]}, 100, 20),
        ("DescribeTags", {}, 100, 20),
        ("GetInstanceMetadataDefaults", {}, 100, 20),
    ],
)
def test_the_buckets_of_the_manual(operation: str, body: dict[str, Any], size: int, rate: int) -> None:
    """ "Request throttling for the Amazon EC2 API"."""
    assert bucket_of(operation, body)[1:] == (size, rate)


def test_a_clock_goes_on_from_where_it_stood() -> None:
    clock = Clock()
    clock.stop()
    stood = clock.now()
    assert clock.now() == stood
    clock.advance(3600)
    clock.go()
    assert stood + 3600 <= clock.now() < stood + 3660
    clock.advance(3600)
    assert stood + 7200 <= clock.now() < stood + 7260
    clock.reset()
    assert clock.now() < stood + 60
