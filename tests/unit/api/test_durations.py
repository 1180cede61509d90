"""Durations of specs."""

import pytest

from caretaker.api.durations import seconds, seconds_of


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("30s", 30), ("10m", 600), ("6h", 21600), ("1h30m5s", 5405), ("0s", 0), ("0", 0), ("", 0)],
)
def test_seconds(text: str, wanted: float) -> None:
    assert seconds(text) == wanted


@pytest.mark.parametrize("text", ["30", "1d", "-5s", "1.5h", "5s1m", " 5s", "5 s", "1000000000s", "٣s"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="no duration such as"):
        seconds(text)


def test_one_of_a_spec_is_told_with_its_field() -> None:
    assert seconds_of("retry.max", "1m") == 60
    with pytest.raises(ValueError, match=r"^spec\.retry\.max: 'soon' is no duration such as 30s"):
        seconds_of("retry.max", "soon")
