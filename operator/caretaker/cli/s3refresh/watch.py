"""An S3AggregatedRefresh under caretaker status --watch: its phases, and a line for each call."""

from collections.abc import Iterable
from typing import Any

from caretaker.api import conditions as c
from caretaker.cli.s3refresh import cells
from caretaker.cli.s3refresh.status_text import RefreshState, as_json, news, show, summary, waiting


class RefreshPrinter:
    """watch.WatchPrinter of an S3AggregatedRefresh."""

    def line(self, state: RefreshState) -> str:
        """The phases."""
        return f"{summary(state)}{waiting(state)}"

    def bar(self, state: RefreshState) -> str:
        """The same, and the next call's time."""
        coming = [
            one.next for one in state.outlooks if one.next.request is not None and one.next.at is not None
        ]
        first = min(coming, key=lambda upcoming: upcoming.at or 0.0, default=None)
        return self.line(state) + (f"; next call {cells.clock(first)}" if first is not None else "")

    def news(self, before: RefreshState | None, state: RefreshState) -> Iterable[str]:
        """Calls that were accepted or failed since."""
        return () if before is None else news(before, state)

    def as_json(self, state: RefreshState) -> dict[str, Any]:
        """As of status."""
        return as_json(state)

    def show(self, state: RefreshState, output: str | None) -> None:
        """As status does."""
        show(state, output)

    def ended(self, state: RefreshState) -> int | None:
        """See ended()."""
        return ended(state)


def ended(state: RefreshState) -> int | None:
    """The exit code once every received event has been followed by a refresh (0), or no further progress is
    possible without a user (1, when suspended 0); None before."""
    meta, status = state.read.meta, state.read.status
    if status.observed_generation < meta.generation:
        return None
    if c.find(status.conditions, c.STALLED) is not None:
        return 1
    if c.find(status.conditions, c.SUSPENDED) is not None:
        return 0
    fine = [c.find(status.conditions, kind) for kind in (c.READY, c.CAUGHT_UP)]
    return 0 if all(found is not None and found.status == "True" for found in fine) else None
