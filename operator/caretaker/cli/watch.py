"""caretaker status --watch: a resource followed by watches until there is nothing left to do.

On a terminal one line that is redrawn, and a line for whatever is worth keeping; elsewhere a line whenever
something changes; with -o json one object a line. What the lines say is each kind's own.
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

_FIRST: Final = 30.0  # seconds for the first answer of every watch
_PAUSE: Final = 0.25  # between two looks, so that a storm of changes costs little
_TICK: Final = 1.0  # the clock at the end of the line

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


class Screen(Protocol[M_contra]):
    """How a kind is told while it is followed."""

    def line(self, made: M_contra) -> str:
        """The whole in a line; printed again when it changes."""

    def bar(self, made: M_contra) -> str:
        """The same on a terminal."""

    def news(self, before: M_contra | None, made: M_contra) -> Iterable[str]:
        """What has happened since, a line each; nothing at the first look."""

    def as_json(self, made: M_contra) -> Any:
        """The whole for programs."""

    def show(self, made: M_contra, output: str | None) -> None:
        """Print the whole, once it has ended."""

    def ended(self, made: M_contra) -> int | None:
        """The exit code once nothing moves any more without somebody's hand; None while it does."""


async def follow_to_the_end(
    watches: Watches, look: Callable[[], M | None], screen: Screen[M], what: str, output: str | None
) -> int:
    """0 when it ended well, 1 when it ended with failures. CommandError when it is deleted meanwhile.

    `look` tells the state as the watches have it, None when the resource is gone.
    """
    teller = _Json(screen) if output == "json" else _Bar(screen) if sys.stdout.isatty() else _Lines(screen)
    try:
        made, code = await _until_ended(watches, look, teller, what)
    finally:
        teller.close()
    if output != "json":
        print()
        screen.show(made, output)
    return code


async def _until_ended(
    watches: Watches, look: Callable[[], M | None], teller: "_Lines[M] | _Bar[M]", what: str
) -> tuple[M, int]:
    began, looked = time.monotonic(), -_PAUSE
    while True:
        changed = await watches.changed(_TICK)
        if not watches.synced:
            if time.monotonic() - began > _FIRST:
                raise CommandError(
                    f"the API server does not answer: {watches.trouble}; is --context the right one?"
                )
            continue
        if not changed:
            teller.tick(watches.trouble)
            continue
        await asyncio.sleep(looked + _PAUSE - time.monotonic())  # a storm of changes is one
        looked = time.monotonic()
        made = look()
        if made is None:
            raise CommandError(f"{what} was deleted")
        teller.show(made)
        teller.tick(watches.trouble)
        code = teller.screen.ended(made)
        if code is not None:
            return made, code


class _Lines(Generic[M]):
    """A plain line for each change."""

    def __init__(self, screen: Screen[M]) -> None:
        self.screen = screen
        self._last = ""
        self._trouble = ""

    def show(self, made: M) -> None:
        line = self._line(made)
        if line != self._last:
            self._last = line
            print(line, flush=True)

    def tick(self, trouble: str) -> None:
        if trouble and not self._trouble:
            print(f"caretaker status: {one_line(trouble)}; trying again", file=sys.stderr, flush=True)
        self._trouble = trouble

    def close(self) -> None:
        """Nothing is left open."""

    def _line(self, made: M) -> str:
        return self.screen.line(made)


class _Json(_Lines[M]):
    """An object a line, for each change."""

    def _line(self, made: M) -> str:
        return msgspec.json.encode(self.screen.as_json(made)).decode()


class _Bar(Generic[M]):
    """One line at the bottom, redrawn; what is worth keeping scrolls above it."""

    def __init__(self, screen: Screen[M]) -> None:
        self.screen = screen
        self._began = time.monotonic()
        self._text = ""
        self._before: M | None = None

    def show(self, made: M) -> None:
        for line in self.screen.news(self._before, made):
            self._write(f"\r\x1b[K{line}\n")
        self._before = made
        self._text = self.screen.bar(made).rstrip()

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
