"""A DaemonTask under caretaker status --watch: a bar, and a line for each node that fails."""

import sys
from collections.abc import Iterator
from typing import Any

from caretaker.api import conditions as c
from caretaker.cli.daemontask.status_text import as_json, show
from caretaker.cli.text import Colours, bar, counts, number, one_line
from caretaker.daemontask.forecast import Forecast


class TaskPrinter:
    """watch.WatchPrinter of a DaemonTask."""

    def line(self, made: Forecast) -> str:
        """The counts."""
        states = counts(made.plan.counts, skip=("excluded",)) or "none"
        return f"{number(made.plan.desired, 'node')}: {states}"

    def bar(self, made: Forecast) -> str:
        """The counts, drawn."""
        return f"{bar(made.plan.counts)}  {counts(made.plan.counts, skip=('succeeded', 'excluded'))}"

    def news(self, before: Forecast | None, made: Forecast) -> Iterator[str]:
        """Nodes that have failed since."""
        if before is None:
            return
        failed = {report.node.name for report in before.plan.failed}
        for name in sorted({report.node.name for report in made.plan.failed} - failed):
            state = made.state_of(name)
            yield Colours(sys.stdout).line(f"{name} failed {state.reason}: {one_line(state.message)}")

    def as_json(self, made: Forecast) -> dict[str, Any]:
        """As of status."""
        return as_json(made)

    def show(self, made: Forecast, output: str | None) -> None:
        """As status does."""
        show(made, output)

    def ended(self, made: Forecast) -> int | None:
        """See ended()."""
        return ended(made)


def ended(made: Forecast) -> int | None:
    """The exit code once no further progress is possible without a user; None before.

    The planner and the operator's status must agree.
    """
    task, numbers = made.snapshot.task, made.plan.counts
    conditions = task.status.conditions
    if task.status.observed_generation < task.metadata.generation or numbers["active"]:
        return None
    waiting = made.plan.awaiting  # for the first tick, which may be far away
    if numbers["pending"] > waiting and not made.plan.hold:
        return None
    if task.status.active or (task.status.pending > waiting and not made.plan.hold):
        return None
    if c.find(conditions, c.STALLED) is not None:
        return 1
    ready = c.find(conditions, c.READY)
    return 0 if ready is not None and ready.status == "True" else None
