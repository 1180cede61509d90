"""Text for people: whatever comes from a cluster, a line stays a line."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caretaker.cli.text import BAR, STATE_ORDER, age, bar, coloured, counts, cut, number, one_line, table
from caretaker.daemontask.decision import State


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (0.9, "0s"),
        (119, "119s"),
        (120, "2m"),
        (7199, "119m"),
        (7200, "2h"),
        (172800, "2d"),
        (9e6, "104d"),
    ],
)
def test_ages_have_one_unit(seconds: float, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("a\nb\r\n", "a b", id="line breaks"),
        pytest.param("\x1b[31mred\x1b[0m", "[31mred [0m", id="escape sequences"),
        pytest.param("\x9b31m", "31m", id="8-bit escape sequences"),
        pytest.param("Ångström …", "Ångström …", id="letters stay"),
    ],
)
def test_control_characters_do_not_reach_the_terminal(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_a_table_lines_up() -> None:
    assert table([["NODE", "WHY"], ["node-a", "x"], ["b", "a\nlong one"]], indent="  ") == [
        "  NODE    WHY",
        "  node-a  x",
        "  b       a long one",
    ]
    assert table([]) == []


def test_words() -> None:
    assert (number(1, "node"), number(0, "node"), number(2, "node")) == ("1 node", "0 nodes", "2 nodes")
    assert (cut("abc", 3), cut("abcd", 3)) == ("abc", "ab…")
    assert (
        counts({"failed": 1, "succeeded": 2, "active": 0, "excluded": 3})
        == "2 succeeded, 1 failed, 3 left out"
    )
    assert counts({"excluded": 3}, skip=("excluded",)) == ""


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        pytest.param({}, "[------------------------]  0/0", id="no nodes"),
        pytest.param({"pending": 3, "excluded": 9}, "[------------------------]  0/3", id="nothing done"),
        pytest.param({"succeeded": 1, "active": 1}, "[############------------]  1/2", id="half"),
        pytest.param(
            {"succeeded": 999, "failed": 1},
            "[#######################!]  999/1000",
            id="one failure among many shows",
        ),
        pytest.param(
            {"succeeded": 999, "active": 1},
            "[#######################-]  999/1000",
            id="not full before all are done",
        ),
        pytest.param({"failed": 2}, "[!!!!!!!!!!!!!!!!!!!!!!!!]  0/2", id="all failed"),
    ],
)
def test_bars(numbers: dict[State, int], shown: str) -> None:
    assert bar(numbers) == shown


@given(st.dictionaries(st.sampled_from(STATE_ORDER), st.integers(0, 10_000)))
def test_a_bar_is_always_as_wide(numbers: dict[State, int]) -> None:
    assert len(bar(numbers).partition("]")[0]) == BAR + 1


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    line = "node-a  failed  Error of another failed"
    assert coloured([line]) == [line], "no terminal"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert coloured([line]) == ["node-a  \x1b[31mfailed\x1b[0m  Error of another failed"]
    assert coloured(["NODE  STATE", "a  pending  failed"]) == ["NODE  STATE", "a  pending  failed"]
    assert coloured(["a  Due"], {"Due": "33"}) == ["a  \x1b[33mDue\x1b[0m"]
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured([line]) == [line]
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert coloured([line]) == [line]
