"""Which transitions of a DaemonTask are worth an Event.

Pure: compares the status that stands with the one being written, so that a restart repeats nothing. One
event per transition, aggregated over nodes, never one per Pod.
"""

import itertools
from collections.abc import Iterator, Sequence

from caretaker.api import conditions as c
from caretaker.api.conditions import Reason
from caretaker.api.daemontask import Status
from caretaker.api.events import Event

_SHOWN = 5
# Reasons of Ready of a revision that is complete because nobody has to wait for its schedule.
_BY_SCHEDULE = (Reason.AWAITING_SCHEDULE, Reason.RUNNING)
# Reasons of Degraded that have Events of their own, which a graver reason does not hide.
_TOLD_ELSEWHERE = (Reason.NODES_FAILED, Reason.INVALID_RESULTS)


def transitions(before: Status, after: Status, duplicates: Sequence[str] = ()) -> list[Event]:
    """The Events between two statuses."""
    found = (
        _runs(before, after),
        _conditions(before, after),
        _calendar(before, after),
        _results(before, after),
        _duplicates(duplicates),
    )
    return list(itertools.chain.from_iterable(found))


def _runs(before: Status, after: Status) -> Iterator[Event]:
    counts = f"{after.succeeded} of {after.desired} nodes succeeded"
    if after.active and not before.active:
        yield Event("Normal", "RunStarted", f"runs began, revision {after.current_revision}; {counts}")
    known = {node.node_name for node in before.failed_nodes}
    new = [node for node in after.failed_nodes if node.node_name not in known]
    if new and after.failed > before.failed:
        shown = ", ".join(f"{n.node_name} ({n.reason})" for n in new[:_SHOWN])
        more = f" and {after.failed - before.failed - _SHOWN} more" if len(new) > _SHOWN else ""
        yield Event("Warning", "RunFailed", f"retries exhausted on {shown}{more}")
    if before.active and not after.active and after.succeeded > before.succeeded:
        yield Event("Normal", "RunSucceeded", counts)


def _conditions(before: Status, after: Status) -> Iterator[Event]:
    done = after.completed_revision
    if done and done != before.completed_revision and _reason(after, c.READY) not in _BY_SCHEDULE:
        yield Event("Normal", "RolloutComplete", f"revision {done}; {_message(after, c.READY)}")
    was, now = _is_true(before, c.SUSPENDED), _is_true(after, c.SUSPENDED)
    if now and not was:
        yield Event("Normal", "Suspended", "nothing new is started until spec.suspend is false")
    if was and not now:
        yield Event("Normal", "Resumed", "runs may start again")
    if _reason(after, c.PROGRESSING) == Reason.PROGRESS_DEADLINE_EXCEEDED != _reason(before, c.PROGRESSING):
        yield Event("Warning", "ProgressDeadlineExceeded", _message(after, c.PROGRESSING))
    stalled = _reason(after, c.STALLED)
    if stalled and stalled != _reason(before, c.STALLED) and stalled != Reason.PROGRESS_DEADLINE_EXCEEDED:
        yield Event("Warning", stalled, _message(after, c.STALLED))
    degraded = _reason(after, c.DEGRADED)
    if degraded and degraded not in (_reason(before, c.DEGRADED), stalled, *_TOLD_ELSEWHERE):
        yield Event("Warning", degraded, _message(after, c.DEGRADED))


def _calendar(before: Status, after: Status) -> Iterator[Event]:
    held = _reason(after, c.PROGRESSING) == Reason.HELD_BY_BUDGET
    if held and _reason(before, c.PROGRESSING) != Reason.HELD_BY_BUDGET:
        yield Event("Normal", Reason.HELD_BY_BUDGET, _message(after, c.PROGRESSING))
    due, taken = before.next_schedule_time, after.last_schedule_time
    same = before.observed_schedule == after.observed_schedule
    if due and same and (after.next_schedule_time or due) > due and (taken is None or taken < due):
        late = f"the tick of {due} was noticed later than startingDeadlineSeconds allows and is skipped"
        yield Event("Warning", "ScheduleMissed", late)


def _results(before: Status, after: Status) -> Iterator[Event]:
    if after.result_errors and not before.result_errors:
        first = after.result_errors[0]
        nodes = len(after.result_errors) + after.result_errors_omitted
        yield Event(
            "Warning", Reason.INVALID_RESULTS, f"{nodes} node(s), first {first.node_name}: {first.message}"
        )


def _duplicates(names: Sequence[str]) -> Iterator[Event]:
    if names:
        yield Event(
            "Warning",
            "DuplicatePods",
            f"more than one Pod for {', '.join(sorted(names)[:_SHOWN])}; the oldest stays",
        )


def _reason(status: Status, kind: str) -> str:
    found = c.find(status.conditions, kind)
    return found.reason if found is not None else ""


def _message(status: Status, kind: str) -> str:
    found = c.find(status.conditions, kind)
    return found.message if found is not None else ""


def _is_true(status: Status, kind: str) -> bool:
    found = c.find(status.conditions, kind)
    return found is not None and found.status == "True"
