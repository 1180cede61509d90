"""caretaker status: the state of a resource, with actions for its problems. Each kind has its own.

With --watch the resource is followed by watches until there is nothing left to do: on a terminal one line
that is redrawn, and a line for each important event; elsewhere a line for each change; with -o json one
object a line.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from importlib import import_module
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from caretaker.cli.common import CommandError, Session, command, execute
from caretaker.cli.text import age, cut, one_line, show, terminal_width
from caretaker.kube.watches import Watches
from caretaker.registry import KINDS, KindInfo

_SYNC_SECONDS: Final = 30.0  # seconds until every watch has its first list
_READ_INTERVAL: Final = 0.25  # seconds between two reads, so that many changes cost little
_CLOCK_INTERVAL: Final = 1.0  # the clock at the end of the line

M = TypeVar("M")
# Prints the state of the resource of this name (name, -o, --watch); returns the exit code.
Status = Callable[[Session, str, str | None, bool], Awaitable[int]]


def add(commands: Any) -> argparse.ArgumentParser:
    """Declare the command."""
    parser = command(
        commands,
        "status",
        "show each node of a task or policy, each target of a refresh, and what to do where one is stuck",
        example="caretaker status daemontask hello\n"
        "caretaker status dtask/hello -n ops --watch\n"
        "caretaker status s3ar/exports\n"
        "caretaker status imdspolicy workers\n"
        "caretaker status daemontask hello -o json",
        kinds=KINDS,
    )
    parser.add_argument(
        "-w", "--watch", action="store_true", help="follow it until there is nothing left to do"
    )
    parser.add_argument(
        "-o", "--output", choices=("json", "wide"), help="json, or wide: every row and column"
    )
    return parser


def main(args: argparse.Namespace) -> int:
    """Exit code 0 when it could be read; with --watch, 1 when it ended in a failure."""

    async def body(session: Session) -> int:
        return await status_of(args.kind)(session, args.name, args.output, args.watch)

    return execute(args, body)


def status_of(kind: KindInfo) -> Status:
    """`status` of the kind. Loaded when it is needed: boto3 takes half a second."""
    status: Status = import_module(f"caretaker.cli.{kind.package}.status").status
    return status


# ---------------------------------------------------------------- --watch


class View(NamedTuple, Generic[M]):
    """The output of a kind.

    line     the state in one line; printed again when it changes
    bar      the same on a terminal
    news     events between two states, a line each
    as_json  the whole for programs
    as_text  the whole for people; of the state, and whether nothing is cut
    ended    the exit code once no further progress is possible without a user; None before
    """

    line: Callable[[M], str]
    bar: Callable[[M], str]
    news: Callable[[M, M], Iterable[str]]
    as_json: Callable[[M], Any]
    as_text: Callable[[M, bool], list[str]]
    ended: Callable[[M], int | None]


async def follow_to_the_end(
    watches: Watches, read: Callable[[], M | None], view: View[M], what: str, output: str | None
) -> int:
    """0 when it ended well, 1 when it ended with failures. CommandError when it is deleted meanwhile.

    `read` returns the state from the watches, None when the resource is gone.
    """
    display: _LineOutput[M] | _BarOutput[M]
    if output == "json":
        display = _LineOutput(lambda state: msgspec.json.encode(view.as_json(state)).decode())
    else:
        display = _BarOutput(view) if sys.stdout.isatty() else _LineOutput(view.line)
    try:
        state, code = await _follow(watches, read, view, display, what)
    finally:
        display.close()
    if output != "json":
        print()
        show(state, output, view.as_json, view.as_text)
    return code


async def _follow(
    watches: Watches,
    read: Callable[[], M | None],
    view: View[M],
    display: "_LineOutput[M] | _BarOutput[M]",
    what: str,
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
        code = view.ended(state)
        if code is not None:
            return state, code


class _LineOutput(Generic[M]):
    """A plain line for each change."""

    def __init__(self, line: Callable[[M], str]) -> None:
        self._line = line
        self._last = ""
        self._trouble = ""

    def show(self, state: M) -> None:
        line = self._line(state)
        if line != self._last:
            self._last = line
            print(line, flush=True)

    def tick(self, trouble: str) -> None:
        if trouble and not self._trouble:
            print(f"caretaker: {one_line(trouble)}; trying again", file=sys.stderr, flush=True)
        self._trouble = trouble

    def close(self) -> None:
        """Nothing is left open."""


class _BarOutput(Generic[M]):
    """One redrawn line at the bottom; important events scroll above it."""

    def __init__(self, view: View[M]) -> None:
        self._view = view
        self._began = time.monotonic()
        self._text = ""
        self._before: M | None = None

    def show(self, state: M) -> None:
        for line in self._view.news(self._before, state) if self._before is not None else ():
            self._write(f"\r\x1b[K{line}\n")
        self._before = state
        self._text = self._view.bar(state).rstrip()

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
