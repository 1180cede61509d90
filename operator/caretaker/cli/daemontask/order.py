"""The other tasks that nodes wait for by spec.dependsOn, for `caretaker status` and `caretaker plan`."""

from collections import Counter
from typing import Any

from caretaker.api.conditions import Reason
from caretaker.cli.text import number
from caretaker.daemontask.forecast import Forecast


def order_json(forecast: Forecast) -> list[dict[str, Any]]:
    """The tasks of spec.dependsOn, and how many nodes wait for each, or because it failed."""
    found, snapshot = list[dict[str, Any]](), forecast.snapshot
    reports = forecast.reports.values()
    waiting = [one.node for one in reports if one.decision.reason == Reason.AWAITING_DEPENDENCY]
    for one in snapshot.dependencies.each:
        states = Counter(one.at(node, snapshot.now) for node in waiting)
        count, failed = states["waits"] + states["failed"], states["failed"]
        found.append({"name": one.name, "problem": one.fault or None, "waiting": count, "failed": failed})
    return found


def order_lines(forecast: Forecast) -> list[str]:
    """A line for each of these tasks, and one for a circle."""
    others = forecast.snapshot.dependencies
    lines = [f"circle {others.circle_words}: nothing is started"] if others.circle else []
    for one, row in zip(others.each, order_json(forecast), strict=True):
        failed = f", {row['failed']} of them because it failed there" if row["failed"] else ""
        lines.append(f"after {one.words('waits')}: {number(row['waiting'], 'node')} waiting{failed}")
    return lines
