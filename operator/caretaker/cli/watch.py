"""caretaker status --watch: a resource followed by watches until there is nothing left to do.

On a terminal one line that is redrawn, and a line for each important event; elsewhere a line for each change;
with -o json one object a line. Each kind has its own texts.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from caretaker.cli.common import CommandError
from caretaker.cli.text import age, cut, one_line, terminal_width
from caretaker.kube.watches import Watches

_SYNC_SECONDS: Final = 30.0  # seconds until every watch has its first list
_READ_INTERVAL: Final = 0.25  # seconds between two reads, so that many changes cost little
_CLOCK_INTERVAL: Final = 1.0  # the clock at the end of the line

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


class WatchPrinter(Protocol[M_contra]):
    """The output of a kind while it is watched."""

    def line(self, state: M_contra) -> str:
        """The state in one line; printed again when it changes."""

    def bar(self, state: M_contra) -> str:
        """The same on a terminal."""

    def news(self, before: M_contra | None, state: M_contra) -> Iterable[str]:
        """Events since `before`, a line each; none at the first read."""

    def as_json(self, state: M_contra) -> Any:
        """The whole for programs."""

    def show(self, state: M_contra, output: str | None) -> None:
        """Print the whole, once it has ended."""

    def ended(self, state: M_contra) -> int | None:
        """The exit code once no further progress is possible without a user; None before."""


async def follow_to_the_end(
    watches: Watches, read: Callable[[], M | None], printer: WatchPrinter[M], what: str, output: str | None
) -> int:
    """0 when it ended well, 1 when it ended with failures. CommandError when it is deleted meanwhile.

    `read` returns the state from the watches, None when the resource is gone.
    """
    display = (
        _JsonOutput(printer)
        if output == "json"
        else _BarOutput(printer)
        if sys.stdout.isatty()
        else _LineOutput(printer)
    )
    try:
        state, code = await _follow(watches, read, display, what)
    finally:
        display.close()
    if output != "json":
        print()
        printer.show(state, output)
    return code


async def _follow(
    watches: Watches, read: Callable[[], M | None], display: "_LineOutput[M] | _BarOutput[M]", what: str
) -> tuple[M, int]:
    began, last_read = time.monotonic(), -_READ_INTERVAL
    while True:
        changed = await watches.changed(_CLOCK_INTERVAL)
        if not watches.synced:
            if time.monotonic() - began > _SYNC_SECONDS:
                raise CommandError(
                    f"the API server does not answer: {watches.trouble}; is --context the right one?"
                )
            continue
        if not changed:
            display.tick(watches.trouble)
            continue
        await asyncio.sleep(last_read + _READ_INTERVAL - time.monotonic())  # many changes at once are one
        last_read = time.monotonic()
        state = read()
        if state is None:
            raise CommandError(f"{what} was deleted")
        display.show(state)
        display.tick(watches.trouble)
        code = display.printer.ended(state)
        if code is not None:
            return state, code


class _LineOutput(Generic[M]):
    """A plain line for each change."""

    def __init__(self, printer: WatchPrinter[M]) -> None:
        self.printer = printer
        self._last = ""
        self._trouble = ""

    def show(self, state: M) -> None:
        line = self._line(state)
        if line != self._last:
            self._last = line
            print(line, flush=True)

    def tick(self, trouble: str) -> None:
        if trouble and not self._trouble:
            print(f"caretaker status: {one_line(trouble)}; trying again", file=sys.stderr, flush=True)
        self._trouble = trouble

    def close(self) -> None:
        """Nothing is left open."""

    def _line(self, state: M) -> str:
        return self.printer.line(state)


class _JsonOutput(_LineOutput[M]):
    """An object a line, for each change."""

    def _line(self, state: M) -> str:
        return msgspec.json.encode(self.printer.as_json(state)).decode()


class _BarOutput(Generic[M]):
    """One redrawn line at the bottom; important events scroll above it."""

    def __init__(self, printer: WatchPrinter[M]) -> None:
        self.printer = printer
        self._began = time.monotonic()
        self._text = ""
        self._before: M | None = None

    def show(self, state: M) -> None:
        for line in self.printer.news(self._before, state):
            self._write(f"\r\x1b[K{line}\n")
        self._before = state
        self._text = self.printer.bar(state).rstrip()

    def tick(self, trouble: str) -> None:
        shown = f"{self._text}  {age(time.monotonic() - self._began)}"
        if trouble:
            shown = f"{self._text}  no answer: {one_line(trouble)}"
        self._write(f"\r\x1b[K{cut(shown, terminal_width())}")

    def close(self) -> None:
        self._write("\n" if self._text else "")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
