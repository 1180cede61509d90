"""Text for people: tables, ages, a progress bar, colours where they are wanted.

Pure except for the check of the stream. Every output can be understood without colour.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

import msgspec

from caretaker.daemontask.decision import State
from caretaker.settings import colour_wanted

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
BAR: Final = 24
Numbers = Mapping[State, int]  # nodes in each state

STATE_ORDER: Final[tuple[State, ...]] = ("failed", "blocked", "active", "pending", "succeeded", "excluded")
_COUNT_ORDER: Final[tuple[State, ...]] = ("succeeded", "failed", "active", "pending", "blocked", "excluded")
STATE_WORDS: Final[Mapping[State, str]] = {"excluded": "left out"}
TASK_COLOURS: Final[Mapping[str, str]] = {
    "failed": "31",
    "blocked": "33",
    "active": "36",
    "succeeded": "32",
    "pending": "",
    "excluded": "2",
    "left out": "2",
}


def one_line(text: str) -> str:
    """Without line breaks and control characters: a Pod's message must not paint the terminal."""
    return _CONTROL.sub(" ", text).strip()


def json_text(value: Any) -> str:
    """Indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def number(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def cut(text: str, width: int) -> str:
    """At most `width` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def age(seconds: float) -> str:
    """As kubectl shows it, in one unit: 45s, 12m, 3h, 9d."""
    seconds = max(int(seconds), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def table(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Columns two spaces apart, the last one as long as it is."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]) - 1)] if cells else []
    return [
        (indent + "  ".join([*(c.ljust(w) for c, w in zip(row[:-1], widths, strict=True)), row[-1]])).rstrip()
        for row in cells
    ]


def counts(numbers: Numbers, skip: Sequence[str] = ()) -> str:
    """`12 succeeded, 3 active, 2 left out`: the states that any node is in."""
    parts = [
        f"{numbers[s]} {STATE_WORDS.get(s, s)}" for s in _COUNT_ORDER if numbers.get(s) and s not in skip
    ]
    return ", ".join(parts)


def bar(numbers: Numbers, width: int = BAR) -> str:
    """`[######!---]  7/11`: succeeded, failed, remaining."""
    total = sum(count for state, count in numbers.items() if state != "excluded")
    if not total:
        return f"[{'-' * width}]  0/0"
    done = width * numbers.get("succeeded", 0) // total
    # Failures are visible even if they are less than a cell.
    failed = min(-(-width * numbers.get("failed", 0) // total), width - done)
    return (
        f"[{'#' * done}{'!' * failed}{'-' * (width - done - failed)}]  {numbers.get('succeeded', 0)}/{total}"
    )


def terminal_width() -> int:
    """Columns that a line may have without wrapping."""
    return shutil.get_terminal_size().columns - 1


class Colours:
    """ANSI colours for a stream, or none. `words`: word -> SGR code."""

    def __init__(self, stream: TextIO, words: Mapping[str, str] = TASK_COLOURS) -> None:
        self._wanted = colour_wanted(tty=stream.isatty())
        self._words = words

    def lines(self, lines: Sequence[str]) -> list[str]:
        """Table rows, each in the colour of the first known word in it."""
        return [self.line(line) for line in lines]

    def line(self, line: str) -> str:
        """One row."""
        if not self._wanted:
            return line
        found = re.search(rf"(?<!\S)({'|'.join(self._words)})(?!\S)", line)
        code = self._words[found[1]] if found else ""
        if not found or not code:
            return line
        return f"{line[: found.start()]}\x1b[{code}m{found[1]}\x1b[0m{line[found.end() :]}"
