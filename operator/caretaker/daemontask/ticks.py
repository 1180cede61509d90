"""Which tick of its schedule a DaemonTask is about.

Pure: (task, hold, now) -> Tick. Nodes run for the tick that status stores, and a newer one counts only once
it is stored: so no tick runs twice on a node, and after a restart the begun tick is known.
"""

from typing import Final

import msgspec

from caretaker.api.conditions import Reason
from caretaker.api.daemontask import MAX_TICKS, DaemonTask, EndedTick, ObservedSchedule, Spec
from caretaker.api.times import format_time, parse_time
from caretaker.daemontask import cron_calendar

# The holds of a tick. Ticks that come due meanwhile are caught up with once, by the last of them.
_CLOSED: Final = (Reason.SUSPENDED, Reason.INVALID_SPEC, Reason.LEDGER_LOST)
# A clock that was set back by less only has to come by the stored tick again; by more, the tick was that of a
# clock which was wrong, and to wait for it could mean years.
_AHEAD: Final = 86400.0


class Tick(msgspec.Struct, frozen=True):
    """The schedule as status stores it. Moments are seconds since the epoch, 0 = none."""

    last: int = 0
    next: float = 0.0
    observed: ObservedSchedule | None = None
    taken: bool = False  # `last` is newer than the stored one: it is stored before anything starts for it


def stored(task: DaemonTask) -> int:
    """The tick that nodes run for; 0 without a schedule, and before its first tick."""
    return int(parse_time(task.status.last_schedule_time) or 0) if task.spec.schedule is not None else 0


def awaited(task: DaemonTask) -> bool:
    """Whether the first tick is still to come: nodes that have never run wait for it."""
    return task.spec.schedule is not None and not stored(task)


def next_tick(task: DaemonTask, hold: str, now: float) -> Tick:
    """The tick that is due, or the one that is stored."""
    spec, stored_tick = task.spec, stored(task)
    if spec.schedule is None:
        return Tick()
    if hold == Reason.INVALID_SPEC:
        return Tick(stored_tick, observed=task.status.observed_schedule)
    wrong = stored_tick > now + _AHEAD
    stored_tick = 0 if wrong else stored_tick
    observed, since = _observed(task, now, anew=wrong)
    if hold in _CLOSED or spec.suspend:  # a task that is suspended may be held by its failures, too
        return Tick(stored_tick, observed=observed)
    ticks = cron_calendar.read(spec.schedule, spec.time_zone)
    due = ticks.last(now)
    late = spec.starting_deadline_seconds is not None and now - due > spec.starting_deadline_seconds
    taken = due > max(since, stored_tick) and not late
    last = int(due) if taken else stored_tick
    # After a clock was set back the ticks up to the stored one have been there already; and the API server's
    # clock, which gives the task's creation time, may be ahead of ours.
    return Tick(last, ticks.after(max(now, last, since)), observed, taken)


def next_due(task: DaemonTask, tick: Tick) -> float:
    """When the tick after this one is due, even if spec.suspend keeps it from being taken; 0 = never. Of a
    spec that is valid."""
    if tick.next or task.spec.schedule is None or tick.observed is None:
        return tick.next
    since = parse_time(tick.observed.since) or 0.0
    return cron_calendar.read(task.spec.schedule, task.spec.time_zone).after(max(tick.last, since))


def with_tick(task: DaemonTask, tick: Tick) -> DaemonTask:
    """The task once this is stored."""
    status = msgspec.structs.replace(
        task.status,
        last_schedule_time=format_time(tick.last) if tick.last else None,
        next_schedule_time=format_time(tick.next) if tick.next else None,
        observed_schedule=tick.observed,
        schedule_history=_history(task, tick),
    )
    return msgspec.structs.replace(task, status=status)


def _history(task: DaemonTask, tick: Tick) -> tuple[EndedTick, ...]:
    """The ticks before `tick.last`, newest first; it grows with the write that stores a new tick. Counts in
    status are about the stored tick until then."""
    before = task.status
    ended = before.last_schedule_time
    if task.spec.schedule is None:
        return ()
    if not tick.taken or ended is None or stored(task) > tick.last:
        return before.schedule_history
    # A run of an earlier tick may have ended during this one, too.
    succeeded = before.succeeded > 0 and (parse_time(before.last_completion_time) or 0.0) >= stored(task)
    completed = before.last_completion_time if succeeded else None
    entry = EndedTick(ended, before.desired, before.succeeded, before.failed, completed)
    return (entry, *before.schedule_history)[:MAX_TICKS]


def _observed(task: DaemonTask, now: float, *, anew: bool) -> tuple[ObservedSchedule, float]:
    """(the schedule as status is to store it, since when its ticks count). A schedule that was just given or
    changed has missed nothing: its first tick is the next one."""
    spec, observed = task.spec, task.status.observed_schedule
    assert spec.schedule is not None  # noqa: S101 - look() has made sure
    same = observed is not None and (observed.schedule, observed.time_zone) == (spec.schedule, spec.time_zone)
    if observed is not None and same and not anew:
        since = parse_time(observed.since) or 0.0
        if since <= now + _AHEAD:
            return observed, since
    new = task.status.observed_generation < 0
    since = (parse_time(task.metadata.creation_timestamp) if new else None) or now
    return ObservedSchedule(spec.schedule, spec.time_zone, format_time(since)), since


def faults_of(spec: Spec) -> str:
    """Why its schedules cannot be read, with the fields' paths; empty if they can."""
    found = []
    try:
        cron_calendar.read_zone(spec.time_zone)
    except ValueError as error:
        return f"spec.timeZone: {error}"
    named = [("spec.schedule", spec.schedule)]
    named += [
        (f"spec.budgets[{place}].schedule", budget.schedule) for place, budget in enumerate(spec.budgets)
    ]
    for path, text in named:
        try:
            if text is not None:
                cron_calendar.read(text, spec.time_zone)
        except ValueError as error:
            found.append(f"{path}: {error}")
    return "; ".join(found)
