"""The transitions of a DaemonTask that are Events.

Pure: compares the status that stands with the one being written. Events are about the rollout, never about a
node: each reason is posted once in a rollout, or once in QUIET seconds of it. Posted reasons are stored in
status, so that a restart repeats nothing. The counts stand in status alone.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, Event, Reason
from caretaker.api.daemontask import PostedEvent, Rollout, Status
from caretaker.api.times import format_time, parse_time
from caretaker.daemontask.annotation_requests import AnnotationRequests

QUIET: Final = 12 * 3600.0
_SHOWN = 5
# Posted once in a rollout, however long it takes.
_ONCE: Final = ("RunStarted", "RunSucceeded", "RolloutComplete")
# Actions of users and schedules are posted each time.
_EACH: Final = ("Suspended", "Resumed", "ScheduleMissed")
# Reasons of Ready of a revision that is complete because no caller has to wait for its schedule.
_BY_SCHEDULE = (Reason.AWAITING_SCHEDULE, Reason.RUNNING)
# Reasons of Degraded that have Events of their own, which a graver reason does not hide.
_WITH_EVENTS = (Reason.NODES_FAILED, Reason.INVALID_RESULTS)
# Reasons of Progressing that are Events.
_OF_PROGRESSING = (Reason.PROGRESS_DEADLINE_EXCEEDED, Reason.LARGE_PODS)
_ABSENT: Final = Condition("", "False", "")
# In place of messages that count nodes, which differ from one pass to the next.
_WORDS: Final[Mapping[str, str]] = {
    Reason.NODES_FAILED: "nodes have failed and hold the task up; status.failedNodes names them",
    Reason.PROGRESS_DEADLINE_EXCEEDED: "nodes wait for longer than progressDeadlineSeconds; the condition "
    "Progressing names the first",
    Reason.ROLLOUT_DEADLINE_EXCEEDED: "rolloutDeadlineSeconds are over before every node has run; the "
    "condition Ready has the number of nodes and the way out",
    Reason.LEDGER_CORRUPT: "ledger entries cannot be read; the condition Degraded names the first node",
    Reason.GATE_REFUSED: "nodes have succeeded and keep the taint of spec.nodeGate; the condition "
    "Degraded says why",
    Reason.DRAIN_REFUSED: "a node can be neither drained nor uncordoned; the condition Degraded says why",
    Reason.LARGE_PODS: "large Pods are created slowly; the condition Progressing says what to do",
    Reason.HELD_BY_BUDGET: "a budget lets no node start; the condition Progressing says until when",
}


def noted(
    before: Status, after: Status, requests: AnnotationRequests, duplicates: Sequence[str], now: float
) -> Status:
    """`after` with its rollout, and with the Events that transitions() finds in it."""
    was = before.rollout or Rollout()
    resumed = format_time(requests.resume_at) if requests.resume_at else None
    asked = Rollout(max(requests.rerun_at, was.rerun_at or "") or None, resumed)
    posted = {event.reason: event for event in _posted(before, after, asked)}
    silent = {e.reason for e in posted.values() if e.reason in _ONCE or not _is_old(e, now)}
    fresh = {event.reason for event in _found(before, after, duplicates)} - silent
    if "RunStarted" not in fresh | silent:
        fresh.discard("RunSucceeded")  # nothing ran for it
    posted |= {reason: PostedEvent(reason, format_time(now)) for reason in fresh.difference(_EACH)}
    events = tuple(posted[reason] for reason in sorted(posted))
    return msgspec.structs.replace(after, rollout=msgspec.structs.replace(asked, events=events))


def transitions(before: Status, after: Status, duplicates: Sequence[str] = ()) -> list[Event]:
    """The Events between two statuses, of which `after` is noted()."""
    known = before.rollout.events if before.rollout is not None else _by_older_version(before, after)
    noted = after.rollout.events if after.rollout is not None else ()
    fresh = {*_EACH, *(event.reason for event in noted if event not in known)}
    return [event for event in _found(before, after, duplicates) if event.reason in fresh]


def _posted(before: Status, after: Status, asked: Rollout) -> Iterable[PostedEvent]:
    """The Events of this rollout, as far as it is known."""
    was = before.rollout
    if was is None:
        return _by_older_version(before, after)
    if _names(before, was) != _names(after, asked):
        return ()
    if (before.observed_generation, was.resume_at) == (after.observed_generation, asked.resume_at):
        return was.events
    # The result of a change or a resume of the task is always an Event.
    return [event for event in was.events if event.reason in _ONCE]


def _names(status: Status, rollout: Rollout) -> tuple[str, str | None, str | None]:
    return status.current_revision, status.last_schedule_time, rollout.rerun_at


def _is_old(event: PostedEvent, now: float) -> bool:
    age = now - (parse_time(event.time) or 0.0)
    return not -QUIET < age < QUIET  # a clock that was set back silences nothing for longer


def _by_older_version(before: Status, after: Status) -> Sequence[PostedEvent]:
    """The Events that a version without notes must have posted."""
    same = bool(before.current_revision) and before.current_revision == after.current_revision
    begun, done = same and before.start_time is not None, same and bool(before.completed_revision)
    at = before.last_completion_time or before.start_time or format_time(0)
    reasons = zip(_ONCE, (begun or done, done, done), strict=True)
    return [PostedEvent(reason, at) for reason, known in reasons if known]


def _found(before: Status, after: Status, duplicates: Sequence[str]) -> list[Event]:
    """All Events of the change, posted before or not."""
    found = (
        _runs(before, after),
        _conditions(before, after),
        _calendar(before, after),
        _results(before, after),
        _duplicates(duplicates),
    )
    return list(itertools.chain.from_iterable(found))


def _runs(before: Status, after: Status) -> Iterator[Event]:
    ran = after.last_completion_time != before.last_completion_time or after.failed > before.failed
    tick = f", tick {after.last_schedule_time}" if after.last_schedule_time else ""
    again = f", rerun-at {asked}" if after.rollout is not None and (asked := after.rollout.rerun_at) else ""
    about = f"revision {after.current_revision}{tick}{again}"
    if after.active or ran:
        yield Event("Normal", "RunStarted", f"runs began, {about}")
    if after.failed > before.failed:
        known = {node.node_name for node in before.failed_nodes}
        new = (node for node in after.failed_nodes if node.node_name not in known)
        where = next((f" on {node.node_name} ({node.reason})" for node in new), "")
        message = f"retries are used up{where}; status.failedNodes lists this node and any that fail later"
        yield Event("Warning", "RunFailed", message)
    ended = _reason(after, c.READY) == Reason.SUCCEEDED and not (after.active or after.pending)
    if ended and after.succeeded:
        yield Event("Normal", "RunSucceeded", f"runs ended, {about}; status has the counts")


def _conditions(before: Status, after: Status) -> Iterator[Event]:
    done = after.completed_revision
    if done and done != before.completed_revision and _reason(after, c.READY) not in _BY_SCHEDULE:
        yield Event("Normal", "RolloutComplete", f"revision {done}; status has the counts")
    was, now = _is_true(before, c.SUSPENDED), _is_true(after, c.SUSPENDED)
    if now and not was:
        yield Event("Normal", "Suspended", "nothing new is started until spec.suspend is false")
    if was and not now:
        yield Event("Normal", "Resumed", "runs may start again")
    moving = _reason(after, c.PROGRESSING)
    if moving in _OF_PROGRESSING and moving != _reason(before, c.PROGRESSING):
        yield _of_condition(_condition(after, c.PROGRESSING))
    stalled = _reason(after, c.STALLED)
    if stalled and stalled != _reason(before, c.STALLED) and stalled != Reason.PROGRESS_DEADLINE_EXCEEDED:
        yield _of_condition(_condition(after, c.STALLED))
    degraded = _reason(after, c.DEGRADED)
    if degraded and degraded not in (_reason(before, c.DEGRADED), stalled, *_WITH_EVENTS):
        yield _of_condition(_condition(after, c.DEGRADED))


def _of_condition(condition: Condition) -> Event:
    return Event("Warning", condition.reason, _WORDS.get(condition.reason) or condition.message)


def _calendar(before: Status, after: Status) -> Iterator[Event]:
    held = _reason(after, c.PROGRESSING) == Reason.HELD_BY_BUDGET
    if held and _reason(before, c.PROGRESSING) != Reason.HELD_BY_BUDGET:
        yield Event("Normal", Reason.HELD_BY_BUDGET, _WORDS[Reason.HELD_BY_BUDGET])
    due, taken = before.next_schedule_time, after.last_schedule_time
    same = before.observed_schedule == after.observed_schedule
    if due and same and (after.next_schedule_time or due) > due and (taken is None or taken < due):
        late = f"the tick of {due} was noticed later than startingDeadlineSeconds allows and is skipped"
        yield Event("Warning", "ScheduleMissed", late)


def _results(before: Status, after: Status) -> Iterator[Event]:
    if after.result_errors and not before.result_errors:
        first = after.result_errors[0]
        message = f"{first.node_name}: {first.message}; status.resultErrors names the nodes"
        yield Event("Warning", Reason.INVALID_RESULTS, message)


def _duplicates(names: Sequence[str]) -> Iterator[Event]:
    if names:
        shown = ", ".join(sorted(names)[:_SHOWN])
        yield Event("Warning", "DuplicatePods", f"more than one Pod for {shown}; the oldest stays")


def _condition(status: Status, kind: str) -> Condition:
    return c.find(status.conditions, kind) or _ABSENT


def _reason(status: Status, kind: str) -> str:
    return _condition(status, kind).reason


def _is_true(status: Status, kind: str) -> bool:
    return _condition(status, kind).status == "True"
