"""caretaker status --watch: a task followed by watches until it has ended.

On a terminal one line with a bar that is redrawn, and a line for each node that fails; elsewhere a line
whenever something changes; with -o json one object a line.
"""

import asyncio
import sys
import time
from typing import Final

import msgspec

from caretaker.api import conditions as c
from caretaker.cli.common import Failure, Session
from caretaker.cli.status_text import as_json, show
from caretaker.cli.text import Colours, age, bar, counts, cut, number, one_line, terminal_width
from caretaker.daemontask.forecast import Forecast, forecast
from caretaker.daemontask.inspect import Follower, follow

_FIRST: Final = 30.0  # seconds for the first answer of every watch
_PAUSE: Final = 0.25  # between two looks, so that a storm of changes costs little
_TICK: Final = 1.0  # the clock beside the bar


async def follow_to_the_end(session: Session, name: str, output: str | None) -> int:
    """0 when it ended well, 1 when it ended with failures. Failure when it is deleted meanwhile."""
    screen = _Json() if output == "json" else _Bar() if sys.stdout.isatty() else _Lines()
    try:
        async with follow(session.client, session.namespace, name, session.scale) as follower:
            made, code = await _until_ended(follower, screen, name)
    finally:
        screen.close()
    if output != "json":
        print()
        show(made, output)
    return code


async def _until_ended(follower: Follower, screen: "_Lines | _Bar", name: str) -> tuple[Forecast, int]:
    began, looked = time.monotonic(), -_PAUSE
    while True:
        changed = await follower.changed(_TICK)
        if not follower.synced:
            if time.monotonic() - began > _FIRST:
                raise Failure(
                    f"the API server does not answer: {follower.trouble}; is --context the right one?"
                )
            continue
        if not changed:
            screen.tick(follower.trouble)
            continue
        await asyncio.sleep(looked + _PAUSE - time.monotonic())  # a storm of changes is one
        looked = time.monotonic()
        snapshot = follower.snapshot()
        if snapshot is None:
            raise Failure(f"DaemonTask {name} was deleted")
        made = forecast(snapshot)
        screen.show(made)
        screen.tick(follower.trouble)
        code = ended(made)
        if code is not None:
            return made, code


def ended(made: Forecast) -> int | None:
    """The exit code once nothing moves any more without somebody's hand; None while it does.

    Both must say so: the planner, and the status that the operator has written of it.
    """
    task, numbers = made.snapshot.task, made.plan.counts
    conditions = task.status.conditions
    if task.status.observed_generation < task.metadata.generation or numbers["active"]:
        return None
    if numbers["pending"] and not made.plan.hold:
        return None
    if task.status.active or (task.status.pending and not made.plan.hold):
        return None
    if c.find(conditions, c.STALLED) is not None:
        return 1
    ready = c.find(conditions, c.READY)
    return 0 if ready is not None and ready.status == "True" else None


class _Lines:
    """A plain line for each change of the counts."""

    def __init__(self) -> None:
        self._last = ""
        self._trouble = ""

    def show(self, made: Forecast) -> None:
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

    def _line(self, made: Forecast) -> str:
        states = counts(made.plan.counts, skip=("excluded",)) or "none"
        return f"{number(made.plan.desired, 'node')}: {states}"


class _Json(_Lines):
    """An object a line, for each change."""

    def _line(self, made: Forecast) -> str:
        return msgspec.json.encode(as_json(made)).decode()


class _Bar:
    """One line at the bottom, redrawn; what happens to nodes scrolls above it."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._text = ""
        self._failed: set[str] | None = None
        self._colours = Colours(sys.stdout)

    def show(self, made: Forecast) -> None:
        failed = {report.node.name for report in made.plan.failed}
        for name in sorted(failed - (failed if self._failed is None else self._failed)):
            state = made.state_of(name)
            line = f"{name} failed {state.reason}: {one_line(state.message)}"
            self._write(f"\r\x1b[K{self._colours.line(line)}\n")
        self._failed = failed
        rest = counts(made.plan.counts, skip=("succeeded", "excluded"))
        self._text = f"{bar(made.plan.counts)}  {rest}".rstrip()

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
