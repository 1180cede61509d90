"""How many nodes the budgets let run now, and until when.

Pure: (spec, nodes desired, moment) -> Allowance. A budget without a schedule is always active, one with a
schedule for its duration after each tick; of those that are active the smallest counts. Karpenter's rules.
"""

import math
from functools import lru_cache
from typing import Final

import msgspec

from caretaker.api import durations
from caretaker.api.daemontask import Budget, Spec, resolve
from caretaker.api.times import format_time
from caretaker.daemontask import cron_calendar

# Windows that follow each other without a gap: after so many, or beyond a year, the end is not reported.
_CHAIN: Final = 32
_FORESIGHT: Final = 366 * 86400.0


class Allowance(msgspec.Struct, frozen=True):
    """Moments are seconds since the epoch."""

    nodes: int | None = None  # None: no budget is active
    until: float = 0.0  # when the budgets that limit to `nodes` end; 0 = not by themselves
    budget_boundary: float = 0.0  # when any budget next begins or ends; 0 = never


def allowance(spec: Spec, desired: int, now: float) -> Allowance:
    """The allowance of all budgets. resource.py has validated the spec's schedules and amounts."""
    active: list[tuple[int, float]] = []
    boundaries: list[float] = []
    for budget in spec.budgets:
        begins, ends = _window(budget, spec.time_zone, now)
        if begins <= now:
            active.append((resolve(_number(budget.nodes), desired, up=True), ends))
        boundaries.append(ends if begins <= now else begins)
    budget_boundary = min((at for at in boundaries if at), default=0.0)
    if not active:
        return Allowance(budget_boundary=budget_boundary)
    least = min(nodes for nodes, _ in active)
    ends_of_least = [ends for nodes, ends in active if nodes == least]
    return Allowance(least, 0.0 if 0.0 in ends_of_least else max(ends_of_least), budget_boundary)


def allowed_words(budget: Allowance) -> str:
    """The allowance of a budget that keeps nodes waiting, and its end."""
    until = f" until {format_time(budget.until)}" if budget.until else ""
    nodes = f"{budget.nodes} node(s) run at a time" if budget.nodes else "no node run"
    return f"a budget lets {nodes}{until}"


def held_words(budget: Allowance, waiting: int, outdated: int) -> str:
    """The same, and the nodes that it holds back: nodes that wait for a run, and active ones whose run a
    newer one is to replace."""
    held = [f"{waiting} node(s) wait"] if waiting else []
    if outdated:
        held.append(f"{outdated} active node(s) keep the run that is to be replaced")
    return "; ".join([allowed_words(budget), *held])


class _Windows:
    """The windows of one schedule. The latest answer is kept until that window is over: rare ticks take
    milliseconds to find, and every pass asks."""

    def __init__(self, schedule: str, duration: str, zone: str) -> None:
        self._ticks = cron_calendar.read(schedule, zone)
        self._length = durations.seconds(duration)
        self._asked, self._begins, self._ends = math.inf, 0.0, 0.0

    def at(self, now: float) -> tuple[float, float]:
        """(when it began or begins, when it ends or 0) of the window that is open, else of the next."""
        if not self._asked <= now < self._begins + self._length:
            self._asked, (self._begins, self._ends) = now, self._find(now)
        return self._begins, self._ends

    def _find(self, now: float) -> tuple[float, float]:
        begins = self._ticks.last(now)
        if begins + self._length <= now:
            begins = self._ticks.after(now)
        tick = begins
        for _ in range(_CHAIN):
            following = self._ticks.after(tick)
            if following > tick + self._length:
                return begins, tick + self._length
            if following > now + _FORESIGHT:
                break
            tick = following
        return begins, 0.0


_windows: Final = lru_cache(maxsize=1024)(_Windows)


def _window(budget: Budget, zone: str, now: float) -> tuple[float, float]:
    if budget.schedule is None or budget.duration is None:
        return 0.0, 0.0
    return _windows(budget.schedule, budget.duration, zone).at(now)


def _number(nodes: int | str) -> int | str:
    """Karpenter writes numbers as text, too."""
    return int(nodes) if isinstance(nodes, str) and nodes.isdigit() else nodes
