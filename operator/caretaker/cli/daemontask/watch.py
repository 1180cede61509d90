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

    def line(self, forecast: Forecast) -> str:
        """The counts."""
        states = counts(forecast.plan.nodes.counts, skip=("excluded",)) or "none"
        return f"{number(forecast.plan.nodes.desired, 'node')}: {states}"

    def bar(self, forecast: Forecast) -> str:
        """The counts, drawn."""
        found = forecast.plan.nodes.counts
        return f"{bar(found)}  {counts(found, skip=('succeeded', 'excluded'))}"

    def news(self, before: Forecast | None, forecast: Forecast) -> Iterator[str]:
        """Nodes that have failed since."""
        if before is None:
            return
        failed = {report.node.name for report in before.plan.nodes.failed}
        for name in sorted({report.node.name for report in forecast.plan.nodes.failed} - failed):
            state = forecast.state_of(name)
            yield Colours(sys.stdout).line(f"{name} failed {state.reason}: {one_line(state.message)}")

    def as_json(self, forecast: Forecast) -> dict[str, Any]:
        """As of status."""
        return as_json(forecast)

    def show(self, forecast: Forecast, output: str | None) -> None:
        """As status does."""
        show(forecast, output)

    def ended(self, forecast: Forecast) -> int | None:
        """See ended()."""
        return ended(forecast)


def ended(forecast: Forecast) -> int | None:
    """The exit code once no further progress is possible without a user; None before.

    The planner and the operator's status must agree.
    """
    task, numbers = forecast.snapshot.task, forecast.plan.nodes.counts
    conditions = task.status.conditions
    if task.status.observed_generation < task.metadata.generation or numbers["active"]:
        return None
    waiting = forecast.plan.nodes.awaiting  # for the first tick, which may be far away
    if numbers["pending"] > waiting and not forecast.plan.hold:
        return None
    if task.status.active or (task.status.pending > waiting and not forecast.plan.hold):
        return None
    if c.find(conditions, c.STALLED) is not None:
        return 1
    ready = c.find(conditions, c.READY)
    return 0 if ready is not None and ready.status == "True" else None
