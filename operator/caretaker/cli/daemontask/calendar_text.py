"""A task's schedule and budgets as text and as JSON. Pure."""

from typing import Any

from caretaker.api.times import format_time
from caretaker.cli.text import age
from caretaker.daemontask.budgets import allowed_words
from caretaker.daemontask.forecast import Forecast


def schedule_json(forecast: Forecast) -> dict[str, Any] | None:
    """None of a task without one. Times are RFC 3339 or None."""
    spec, tick = forecast.snapshot.task.spec, forecast.plan.tick
    if spec.schedule is None:
        return None
    return {
        "schedule": spec.schedule,
        "timeZone": spec.time_zone,
        "lastScheduleTime": _time(tick.last),
        "nextScheduleTime": _time(tick.next),
    }


def budget_json(forecast: Forecast) -> dict[str, Any] | None:
    """The budget that limits the task now; None where none does."""
    budget = forecast.room.budget
    return None if budget is None else {"nodes": budget.nodes, "until": _time(budget.until)}


def calendar_lines(forecast: Forecast) -> list[str]:
    """A line about the schedule, and one about the budget that limits the task now."""
    spec, tick, now = forecast.snapshot.task.spec, forecast.plan.tick, forecast.snapshot.now
    lines = []
    if spec.schedule is not None:
        last = f"last {format_time(tick.last)}, {age(now - tick.last)} ago" if tick.last else "never yet"
        following = (
            f"next {format_time(tick.next)}, in {age(tick.next - now)}" if tick.next else "none to come"
        )
        lines.append(f"schedule {spec.schedule} ({spec.time_zone}): {last}; {following}")
    if forecast.room.budget is not None:
        lines.append(allowed_words(forecast.room.budget))
    return lines


def _time(moment: float) -> str | None:
    return format_time(moment) if moment else None
