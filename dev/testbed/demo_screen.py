"""What the demo prints: a progress bar on a terminal, plain lines elsewhere, and the table at the end.

Input: a text stream. It must not know what is being shown.
"""

import shutil
import time
from collections.abc import Sequence
from typing import Final, TextIO

BAR_WIDTH: Final = 30
PLAIN_INTERVAL: Final = 2.0  # seconds between two lines of progress where there is no terminal


class Screen:
    """Prints to `out`. Progress is one line that changes in place, or a line every other second."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._last = ""
        self._printed = 0.0

    def line(self, text: str = "") -> None:
        """A line of its own."""
        self._clear()
        print(text, file=self._out, flush=True)

    def title(self, text: str) -> None:
        """The head of a step."""
        self.line()
        self.line(f"\033[1m{text}\033[0m" if self._terminal else text)

    def progress(self, done: int, total: int, text: str) -> None:
        """How far something is; a state that is shown already is not shown again."""
        filled = BAR_WIDTH * done // total if total else 0
        bar = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done}/{total}  {text}"
        if bar == self._last:
            return
        if self._terminal:
            width = shutil.get_terminal_size().columns
            print(f"\r\033[K  {bar}"[: width + 4], end="", file=self._out, flush=True)
        elif time.monotonic() - self._printed >= PLAIN_INTERVAL or (total and done == total):
            print(f"  {done}/{total}  {text}", file=self._out, flush=True)
            self._printed = time.monotonic()
        self._last = bar

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as wide as their widest cell; all but the first two to the right."""
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        for row in (head, ["-" * width for width in widths], *rows):
            cells = [
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            self.line("  ".join(cells).rstrip())

    def _clear(self) -> None:
        """Take back the line that changes in place: what follows says the same in words."""
        if self._terminal and self._last:
            print("\r\033[K", end="", file=self._out)
        self._last = ""
