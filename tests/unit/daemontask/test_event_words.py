"""The Events between two statuses, word by word, and those that a rollout notes and posts once."""

from typing import Any

import msgspec
import pytest

from caretaker.api.conditions import Condition, ConditionStatus, Event
from caretaker.api.daemontask import FailedNode, ObservedSchedule, PostedEvent, ResultError, Rollout, Status
from caretaker.api.times import format_time
from caretaker.daemontask.annotation_requests import AnnotationRequests
from caretaker.daemontask.events import QUIET, noted, transitions

NOW = 1_000_000.0
EARLIER, LATER, LATEST = "1970-01-11T00:00:00Z", "1970-01-12T00:00:00Z", "1970-01-13T00:00:00Z"
REVISION = Status(observed_generation=1, current_revision="r1", rollout=Rollout())
Changes = dict[str, Any]


def condition(kind: str, reason: str, status: ConditionStatus = "True") -> Condition:
    return Condition(kind, status, reason, f"{reason}, in words")


def of(**changes: Any) -> Status:
    """A status of revision r1; `changes` with conditions as a mapping of types to reasons."""
    found = changes.pop("conditions", {})
    listed = found if isinstance(found, tuple) else tuple(condition(*item) for item in found.items())
    return msgspec.structs.replace(REVISION, conditions=listed, **changes)


def failed(*names: str) -> tuple[FailedNode, ...]:
    return tuple(FailedNode(name, "Error") for name in names)


def normal(reason: str, message: str) -> Event:
    return Event("Normal", reason, message)


def warning(reason: str, message: str) -> Event:
    return Event("Warning", reason, message)


STARTED = normal("RunStarted", "runs began, revision r1")
SUCCEEDED = normal("RunSucceeded", "runs ended, revision r1; status has the counts")
COMPLETE = normal("RolloutComplete", "revision r1; status has the counts")
SUSPENDED = normal("Suspended", "nothing new is started until spec.suspend is false")
RESUMED = normal("Resumed", "runs may start again")
HELD = normal("HeldByBudget", "a budget lets no node start; the condition Progressing says until when")
LISTED = "; status.failedNodes lists this node and any that fail later"
FAILED_ON_A = warning("RunFailed", f"retries are used up on a (Error){LISTED}")
NODES_FAILED = warning("NodesFailed", "nodes have failed and hold the task up; status.failedNodes names them")
LATE = warning(
    "ProgressDeadlineExceeded",
    "nodes wait for longer than progressDeadlineSeconds; the condition Progressing names the first",
)
CORRUPT = warning(
    "LedgerCorrupt", "ledger entries cannot be read; the condition Degraded names the first node"
)
LOST = warning("LedgerLost", "LedgerLost, in words")
MISSED = warning(
    "ScheduleMissed",
    f"the tick of {LATER} was noticed later than startingDeadlineSeconds allows and is skipped",
)
TWICE = "more than one Pod for"

SUSPENDED_NOW, SUSPENDED_NO_MORE = (
    (condition("Suspended", "Suspended", status),) for status in ("True", "False")
)
DUE: Changes = {"next_schedule_time": LATER}
HOURLY, DAILY = (ObservedSchedule(text, "Etc/UTC", EARLIER) for text in ("0 * * * *", "@daily"))
ENDED: Changes = {"conditions": {"Ready": "Succeeded"}, "succeeded": 1, "last_completion_time": LATER}
ERROR = ResultError("a", "no JSON")

# What stands, what is written, and the Events between the two.
WORDS: dict[str, tuple[Changes, Changes, list[Event]]] = {
    "nothing": ({}, {}, []),
    "a run begins": ({}, {"active": 2}, [STARTED]),
    "a run began and ended": ({}, {"last_completion_time": EARLIER}, [STARTED]),
    "a run of a tick": (
        {},
        {"active": 1, "last_schedule_time": EARLIER},
        [normal("RunStarted", f"runs began, revision r1, tick {EARLIER}")],
    ),
    "a node fails": ({}, {"failed": 1, "failed_nodes": failed("a")}, [STARTED, FAILED_ON_A]),
    "another node fails": (
        {"failed": 1, "failed_nodes": failed("b")},
        {"failed": 2, "failed_nodes": failed("b", "a", "c")},
        [STARTED, FAILED_ON_A],
    ),
    "a node fails that is not listed": (
        {"failed": 1, "failed_nodes": failed("a")},
        {"failed": 2, "failed_nodes": failed("a")},
        [STARTED, warning("RunFailed", f"retries are used up{LISTED}")],
    ),
    "a failed node stays": ({"failed": 1}, {"failed": 1, "failed_nodes": failed("a")}, []),
    "a failed node goes": ({"failed": 2}, {"failed": 1}, []),
    "all runs have ended": ({}, ENDED, [STARTED, SUCCEEDED]),
    "runs have ended, one still runs": ({}, {**ENDED, "active": 1}, [STARTED]),
    "runs have ended, one is pending": ({}, {**ENDED, "pending": 1}, [STARTED]),
    "all runs have failed": ({}, {**ENDED, "succeeded": 0}, [STARTED]),
    "runs have ended, others are due": ({}, {**ENDED, "conditions": {"Ready": "RollingOut"}}, [STARTED]),
    "runs have ended without Ready": ({}, {**ENDED, "conditions": {"Other": "Succeeded"}}, [STARTED]),
    "nothing ran": ({}, {**ENDED, "last_completion_time": None}, []),
    "a rollout is complete": ({}, {"completed_revision": "r1"}, [COMPLETE]),
    "another rollout is complete": ({"completed_revision": "r0"}, {"completed_revision": "r1"}, [COMPLETE]),
    "a rollout stays complete": ({"completed_revision": "r1"}, {"completed_revision": "r1"}, []),
    "nobody waits for the schedule": (
        {},
        {"completed_revision": "r1", "conditions": {"Ready": "AwaitingSchedule"}},
        [],
    ),
    "nobody waits for a node that joined": (
        {},
        {"completed_revision": "r1", "conditions": {"Ready": "Running"}},
        [],
    ),
    "suspended": ({}, {"conditions": SUSPENDED_NOW}, [SUSPENDED]),
    "suspended again": ({"conditions": SUSPENDED_NO_MORE}, {"conditions": SUSPENDED_NOW}, [SUSPENDED]),
    "suspended for longer": ({"conditions": SUSPENDED_NOW}, {"conditions": SUSPENDED_NOW}, []),
    "resumed": ({"conditions": SUSPENDED_NOW}, {}, [RESUMED]),
    "resumed, and the condition stays": (
        {"conditions": SUSPENDED_NOW},
        {"conditions": SUSPENDED_NO_MORE},
        [RESUMED],
    ),
    "nodes wait for too long": ({}, {"conditions": {"Progressing": LATE.reason}}, [LATE]),
    "nodes wait for too long, and nothing else moves": (
        {"conditions": {"Progressing": "RollingOut"}},
        {"conditions": {"Progressing": LATE.reason, "Stalled": LATE.reason, "Degraded": LATE.reason}},
        [LATE],
    ),
    "nodes wait for longer": (
        {"conditions": {"Progressing": LATE.reason}},
        {"conditions": {"Progressing": LATE.reason, "Stalled": LATE.reason}},
        [],
    ),
    "the task stalls": ({}, {"conditions": {"Stalled": "LedgerLost"}}, [LOST]),
    "the task stalls for another reason": (
        {"conditions": {"Stalled": "LedgerLost"}},
        {"conditions": {"Stalled": "NodesFailed", "Degraded": "NodesFailed"}},
        [NODES_FAILED],
    ),
    "the task stays stalled": (
        {"conditions": {"Stalled": "LedgerLost"}},
        {"conditions": {"Stalled": "LedgerLost"}},
        [],
    ),
    "the task no longer stalls": (
        {"conditions": {"Stalled": "LedgerLost", "Degraded": "LedgerCorrupt"}},
        {},
        [],
    ),
    "the task stalls and degrades": (
        {},
        {"conditions": {"Stalled": "LedgerLost", "Degraded": "LedgerLost"}},
        [LOST],
    ),
    "the task degrades": ({}, {"conditions": {"Degraded": "LedgerCorrupt"}}, [CORRUPT]),
    "the task stalls, and degrades for another reason": (
        {"conditions": {"Degraded": "NodesFailed"}},
        {"conditions": {"Stalled": "LedgerLost", "Degraded": "LedgerCorrupt"}},
        [LOST, CORRUPT],
    ),
    "the task stays degraded": (
        {"conditions": {"Degraded": "LedgerCorrupt"}},
        {"conditions": {"Degraded": "LedgerCorrupt"}},
        [],
    ),
    "failed nodes degrade the task": ({}, {"conditions": {"Degraded": "NodesFailed"}}, []),
    "invalid results degrade the task": ({}, {"conditions": {"Degraded": "InvalidResults"}}, []),
    "a budget holds nodes up": ({}, {"conditions": {"Progressing": "HeldByBudget"}}, [HELD]),
    "a budget holds nodes up for longer": (
        {"conditions": {"Progressing": "HeldByBudget"}},
        {"conditions": {"Progressing": "HeldByBudget"}},
        [],
    ),
    "a budget no longer holds nodes up": (
        {"conditions": {"Progressing": "HeldByBudget"}},
        {"conditions": {"Progressing": "RollingOut"}},
        [],
    ),
    "a tick is missed": (DUE, {"next_schedule_time": LATEST}, [MISSED]),
    "a tick after another is missed": (
        {**DUE, "last_schedule_time": EARLIER},
        {"next_schedule_time": LATEST, "last_schedule_time": EARLIER},
        [MISSED],
    ),
    "a tick is taken": (DUE, {"next_schedule_time": LATEST, "last_schedule_time": LATER}, []),
    "a later tick is taken": (DUE, {"next_schedule_time": LATEST, "last_schedule_time": LATEST}, []),
    "a tick is awaited": (DUE, DUE, []),
    "an earlier tick is awaited": (DUE, {"next_schedule_time": EARLIER}, []),
    "no tick is due any more": (DUE, {}, []),
    "the first tick": ({}, DUE, []),
    "another schedule": (
        {**DUE, "observed_schedule": HOURLY},
        {"next_schedule_time": LATEST, "observed_schedule": DAILY},
        [],
    ),
    "a result cannot be read": (
        {},
        {"result_errors": (ERROR, ResultError("b", "no number"))},
        [warning("InvalidResults", "a: no JSON; status.resultErrors names the nodes")],
    ),
    "another result cannot be read": (
        {"result_errors": (ERROR,)},
        {"result_errors": (ResultError("b", "no number"), ERROR)},
        [],
    ),
    "results can be read again": ({"result_errors": (ERROR,)}, {}, []),
}


@pytest.mark.parametrize(("before", "after", "events"), WORDS.values(), ids=WORDS)
def test_a_change_of_status_has_these_events(before: Changes, after: Changes, events: list[Event]) -> None:
    stands = of(**before)
    assert transitions(stands, noted(stands, of(**after), AnnotationRequests(), (), NOW)) == events


@pytest.mark.parametrize(
    ("names", "events"),
    [
        ((), []),
        (("b", "a"), [warning("DuplicatePods", f"{TWICE} a, b; the oldest stays")]),
        (tuple("fedcba"), [warning("DuplicatePods", f"{TWICE} a, b, c, d, e; the oldest stays")]),
    ],
    ids=len,
)
def test_nodes_with_two_pods_are_an_event_that_names_five(
    names: tuple[str, ...], events: list[Event]
) -> None:
    stands = of()
    assert transitions(stands, noted(stands, of(), AnnotationRequests(), names, NOW), names) == events


NOTED = ("RunFailed", "RunStarted")  # what each step below posts, and notes


def posted(at: float, *reasons: str) -> tuple[PostedEvent, ...]:
    return tuple(PostedEvent(reason, format_time(at)) for reason in reasons or NOTED)


def rollout(at: float, failed: float | None = None, **asked: str | None) -> Rollout:
    """One that posted its first run then, and a failure with it or later."""
    return Rollout(**asked, events=(*posted(failed or at, "RunFailed"), *posted(at, "RunStarted")))


ALL, FAILURE, EACH = ["RunStarted", "RunFailed", "Suspended"], ["RunFailed", "Suspended"], ["Suspended"]
RECENTLY, OLD, AHEAD = NOW - 60, NOW - QUIET, NOW + QUIET
BEGAN = rollout(RECENTLY)
RERUN: Changes = {"rollout": rollout(RECENTLY, rerun_at=LATER)}
RESUMED_AT = format_time(RECENTLY)
OLDER: Changes = {"rollout": None, "start_time": EARLIER}

# What stands; what else is written, with what annotations ask for; what is posted, and the rollout then.
NOTES: dict[str, tuple[Changes, Changes, list[str], Rollout]] = {
    "a new rollout": ({}, {}, ALL, rollout(NOW)),
    "the rollout goes on": ({"rollout": BEGAN}, {}, EACH, BEGAN),
    "after half a day less a second": ({"rollout": rollout(OLD + 1)}, {}, EACH, rollout(OLD + 1)),
    "after half a day": ({"rollout": rollout(OLD)}, {}, FAILURE, rollout(OLD, NOW)),
    "half a day less a second ahead": ({"rollout": rollout(AHEAD - 1)}, {}, EACH, rollout(AHEAD - 1)),
    "half a day ahead": ({"rollout": rollout(AHEAD)}, {}, FAILURE, rollout(AHEAD, NOW)),
    "no time": ({"rollout": Rollout(events=(PostedEvent("RunFailed", "soon"),))}, {}, ALL, rollout(NOW)),
    "what began ends": (
        {"rollout": Rollout(events=posted(RECENTLY, "RunStarted"))},
        {"conditions": {"Ready": "Succeeded"}, "succeeded": 1, "active": 0, "failed": 0},
        ["RunSucceeded"],
        Rollout(events=(*posted(RECENTLY, "RunStarted"), *posted(NOW, "RunSucceeded"))),
    ),
    "another revision": ({"rollout": BEGAN}, {"current_revision": "r2"}, ALL, rollout(NOW)),
    "another tick": ({"rollout": BEGAN}, {"last_schedule_time": LATER}, ALL, rollout(NOW)),
    "a re-run": ({"rollout": BEGAN}, {"rerun_at": LATER}, ALL, rollout(NOW, rerun_at=LATER)),
    "a later re-run": (RERUN, {"rerun_at": LATEST}, ALL, rollout(NOW, rerun_at=LATEST)),
    "the same re-run": (RERUN, {"rerun_at": LATER}, EACH, RERUN["rollout"]),
    "an earlier re-run": (RERUN, {"rerun_at": EARLIER}, EACH, RERUN["rollout"]),
    "a re-run that is no longer asked for": (RERUN, {}, EACH, RERUN["rollout"]),
    "the task is edited": ({"rollout": BEGAN}, {"observed_generation": 2}, FAILURE, rollout(RECENTLY, NOW)),
    "the task is resumed": (
        {"rollout": BEGAN},
        {"resume_at": RECENTLY},
        FAILURE,
        rollout(RECENTLY, NOW, resume_at=RESUMED_AT),
    ),
    "the task was resumed": (
        {"rollout": rollout(RECENTLY, resume_at=RESUMED_AT)},
        {"resume_at": RECENTLY},
        EACH,
        rollout(RECENTLY, resume_at=RESUMED_AT),
    ),
    "nothing ran under an older version": ({"rollout": None}, {}, ALL, rollout(NOW)),
    "runs began under an older version": (
        OLDER,
        {},
        FAILURE,
        Rollout(events=(*posted(NOW, "RunFailed"), PostedEvent("RunStarted", EARLIER))),
    ),
    "runs ended under an older version": (
        {**OLDER, "last_completion_time": LATER},
        {},
        FAILURE,
        Rollout(events=(*posted(NOW, "RunFailed"), PostedEvent("RunStarted", LATER))),
    ),
    "complete under an older version": (
        {"rollout": None, "completed_revision": "r1"},
        {"completed_revision": "r1"},
        FAILURE,
        Rollout(
            events=(*posted(0, "RolloutComplete"), *rollout(0, NOW).events, *posted(0, "RunSucceeded")),
        ),
    ),
    "another revision under an older version": (OLDER, {"current_revision": "r2"}, ALL, rollout(NOW)),
    "no revision under an older version": (
        {**OLDER, "current_revision": ""},
        {"current_revision": ""},
        ALL,
        rollout(NOW),
    ),
}


@pytest.mark.parametrize(("before", "after", "reasons", "noted_then"), NOTES.values(), ids=NOTES)
def test_a_rollout_notes_its_events_and_posts_each_once(
    before: Changes, after: Changes, reasons: list[str], noted_then: Rollout
) -> None:
    """In each step a node runs, another fails, and the task is suspended."""
    step = {"active": 1, "failed": 1, "conditions": SUSPENDED_NOW, **after}
    asked = AnnotationRequests(step.pop("rerun_at", ""), resume_at=step.pop("resume_at", 0.0))
    stands, written = of(**before), of(**step)
    result = noted(stands, written, asked, (), NOW)
    assert ([event.reason for event in transitions(stands, result)], result.rollout) == (reasons, noted_then)
    assert result == msgspec.structs.replace(written, rollout=noted_then)


def test_a_status_without_notes_has_the_events_that_are_never_noted() -> None:
    assert transitions(of(), of(rollout=None, active=1, conditions=SUSPENDED_NOW)) == [SUSPENDED]


def test_the_start_of_runs_names_their_tick_and_rerun() -> None:
    stands = of(last_schedule_time=EARLIER)
    began = noted(stands, of(active=1, last_schedule_time=EARLIER), AnnotationRequests(LATER), (), NOW)
    about = f"revision r1, tick {EARLIER}, rerun-at {LATER}"
    assert transitions(stands, began) == [normal("RunStarted", f"runs began, {about}")]
