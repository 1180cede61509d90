"""Limits on text from responses that is shown."""

import time

import pytest

from caretaker.aws.text_limits import line, word


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("no", "no"),
        ("  a\tb  ", "a b"),
        ("one\ntwo", "one"),
        ("a\x1b[31mb\x85c\u2028d", "a [31mb c d"),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 200),
        (" " * 5000 + "x", ""),
        ("", ""),
    ],
)
def test_a_line_is_one_of_at_most_200_characters(message: str, shown: str) -> None:
    assert line(message) == shown


def test_a_line_costs_the_same_however_long_the_message_is() -> None:
    def cost(length: int) -> float:
        text = "\x1b" * length
        began = time.process_time()
        for _ in range(100):
            line(text)
        return time.process_time() - began

    assert cost(4_000_000) < 20 * max(cost(4_000), 0.001)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("QueueDoesNotExist", "QueueDoesNotExist"),
        ("AWS.SimpleQueueService.X", "AWS.SimpleQueueService.X"),
        ("a" * 100, "a" * 100),
        ("a" * 101, "?"),
        ("a b", "?"),
        ("a\n", "?"),
        ("", "?"),
        ("\u0661", "?"),
        (7, "?"),
        (None, "?"),
    ],
)
def test_a_word_is_shown_as_it_is_or_not(value: object, shown: str) -> None:
    assert word(value) == shown
