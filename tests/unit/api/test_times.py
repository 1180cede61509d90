"""Times: RFC 3339 text at the edge, seconds inside."""

import time
from datetime import datetime, timedelta, timezone
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caretaker.api.times import format_time, normalise_time, parse_time, stamp_after

NOON = 1769860800.0  # 2026-01-31T12:00:00Z


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("2026-01-31T12:00:00Z", NOON, id="metav1.Time"),
        pytest.param("2026-01-31T12:00:00.250000Z", NOON + 0.25, id="metav1.MicroTime"),
        pytest.param("2026-01-31T12:00:00.250000999Z", NOON + 0.25, id="nanoseconds are cut"),
        pytest.param("2026-01-31T13:30:00+01:30", NOON, id="an offset to the east"),
        pytest.param("2026-01-31T07:00:00-05:00", NOON, id="an offset to the west"),
        pytest.param("1970-01-01T00:00:00Z", 0.0, id="the epoch itself is a time"),
        pytest.param("0001-01-01T00:00:00Z", -62135596800.0, id="the first second"),
        pytest.param("9999-12-31T23:59:59Z", 253402300799.0, id="the last second"),
        pytest.param(None, None, id="no text"),
        pytest.param("", None, id="an empty text"),
        pytest.param("now", None, id="a word"),
        pytest.param("2026-01-31", None, id="a date without a time"),
        pytest.param("2026-01-31T12:00:00", None, id="a local time says too little"),
        pytest.param("2026-02-30T12:00:00Z", None, id="a day that does not exist"),
        pytest.param("1769860800", None, id="seconds as text"),
    ],
)
def test_parse(text: str | None, seconds: float | None) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        pytest.param(0.0, "1970-01-01T00:00:00Z", id="the epoch"),
        pytest.param(NOON, "2026-01-31T12:00:00Z", id="a whole second"),
        pytest.param(NOON + 0.999, "2026-01-31T12:00:00Z", id="a fraction is cut, never rounded up"),
    ],
)
def test_format(seconds: float, text: str) -> None:
    assert format_time(seconds) == text


def test_the_time_zone_of_the_machine_changes_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "EST5")
        time.tzset()
        text = format_time(NOON)
    time.tzset()
    assert text == "2026-01-31T12:00:00Z"


@given(st.integers(min_value=0, max_value=253402300799))
def test_format_and_parse_are_inverse(seconds: int) -> None:
    assert parse_time(format_time(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        pytest.param("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000000+00:00", id="UTC"),
        pytest.param("2026-01-31T13:00:00.5+01:00", "2026-01-31T12:00:00.500000+00:00", id="an offset"),
        pytest.param("yesterday", "", id="a word"),
        pytest.param("0001-01-01T00:00:00+01:00", "", id="a moment before the year 1 in UTC"),
        pytest.param("9999-12-31T23:59:59-01:00", "", id="a moment after the year 9999 in UTC"),
        pytest.param(None, "", id="no text"),
    ],
)
def test_normalise(text: str | None, normal: str) -> None:
    assert normalise_time(text) == normal


OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(timezones=OFFSETS).map(datetime.isoformat)


@given(MOMENTS, MOMENTS)
def test_order_of_normal_text_is_order_of_time(one: str, other: str) -> None:
    first, second = normalise_time(one), normalise_time(other)
    if first and second:
        assert (first < second) == (cast(float, parse_time(one)) < cast(float, parse_time(other)))


@pytest.mark.parametrize(
    ("earlier", "stamp"),
    [
        pytest.param([], "1970-01-01T00:01:40.000000+00:00", id="nothing earlier: now"),
        pytest.param(["", ""], "1970-01-01T00:01:40.000000+00:00", id="empty ones do not count"),
        pytest.param(
            ["1970-01-01T00:00:00.000000+00:00"], "1970-01-01T00:01:40.000000+00:00", id="the past: now"
        ),
        pytest.param(
            ["1970-01-01T00:05:00.000000+00:00", "1970-01-01T00:02:00.000000+00:00"],
            "1970-01-01T00:05:00.000010+00:00",
            id="one from a clock that is ahead: just after it",
        ),
        pytest.param(
            ["1970-01-01T00:01:40.000000+00:00"],
            "1970-01-01T00:01:40.000010+00:00",
            id="one of the same moment: just after it",
        ),
    ],
)
def test_a_stamp_is_later_than_every_earlier_one(earlier: list[str], stamp: str) -> None:
    assert stamp_after(100.0, earlier) == stamp
