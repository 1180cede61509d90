"""Since when a task waits for a node: what was before its rollout makes no node late."""

from typing import Any

import msgspec
import pytest

from caretaker.api import conditions as c
from caretaker.api.daemontask import DaemonTask, Status
from caretaker.api.objects import Node
from caretaker.api.times import format_time
from caretaker.daemontask.events import transitions
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.plan import plan
from caretaker.daemontask.rollout_start import waiting_since
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from unit.daemontask.build import NOW, TEMPLATE, entry, node, pod, snapshot, task

DAY = 86400.0
WELL = node("well")
GONE = node("gone", ready=False, ready_since=NOW - DAY)  # NotReady since yesterday
CHANGED = {"spec": {**TEMPLATE["spec"], "hostPID": True}}


class Rollout:
    """A task from pass to pass; `told`: seconds after NOW at which a Warning was sent that it is late."""

    def __init__(self, nodes: list[Node], *, created: float = NOW, **spec: Any) -> None:
        self.nodes = nodes
        self.at = NOW
        self.told: list[float] = []
        self.ledger: dict[str, Entry] = {}
        self.task = task(**spec)
        meta = msgspec.structs.replace(self.task.metadata, creation_timestamp=format_time(created))
        self.task = msgspec.structs.replace(self.task, metadata=meta)

    def edit(self, **spec: Any) -> None:
        of = self.task
        self.task = DaemonTask(of.metadata, msgspec.structs.replace(of.spec, **spec), of.status)

    def look(self, after: float, *, pods: tuple[Any, ...] = ()) -> Status:
        """A pass so many seconds after the last one."""
        self.at += after
        of = snapshot(self.task, self.nodes, list(pods), self.ledger, now=self.at)
        status = status_of(of, plan(of), Outcome())
        found = transitions(self.task.status, status)
        self.told += [self.at - NOW for event in found if event.reason == "ProgressDeadlineExceeded"]
        self.task = msgspec.structs.replace(self.task, status=status)
        return status


def progressing(status: Status) -> str:
    found = c.find(status.conditions, c.PROGRESSING)
    return found.reason if found is not None else ""


@pytest.mark.parametrize("begun", [0.0, 0.7], ids=["on a full second", "within a second"])
def test_a_node_that_was_not_ready_before_the_task_was_created_is_late_once_the_task_has_waited(
    begun: float,
) -> None:
    of = Rollout([WELL, GONE])
    assert progressing(of.look(begun)) == "RollingOut"
    assert progressing(of.look(1)) == "RollingOut"
    assert progressing(of.look(1797)) == "RollingOut"
    assert progressing(of.look(2)) == "ProgressDeadlineExceeded"
    assert len(of.told) == 1


@pytest.mark.parametrize("others", [[WELL], []], ids=["beside others", "alone"])
@pytest.mark.parametrize("held", [False, True], ids=["under way", "late before"])
def test_a_changed_template_waits_anew(others: list[Node], held: bool) -> None:
    """Also where nothing can start, so that status never has a startTime."""
    late = node("gone", ready=False, ready_since=NOW - (DAY if held else 60))
    of = Rollout([*others, late], created=NOW - 2 * DAY)
    of.look(0)
    before = 2000 if held else 600
    assert (progressing(of.look(before)) == "ProgressDeadlineExceeded") == held
    of.told.clear()
    of.edit(template=CHANGED)
    running = tuple(pod(one, created=NOW + before) for one in others)
    for wait in (0, 1, 600):
        assert progressing(of.look(wait, pods=running)) == "RollingOut"
    of.look(1300, pods=running)
    assert of.told == [before + 1901]


def test_a_changed_template_of_a_complete_task_waits_anew() -> None:
    of = Rollout([WELL], created=NOW - 2 * DAY)
    of.ledger = {"well": entry(WELL)}
    assert progressing(of.look(0)) == "RolloutComplete"
    assert progressing(of.look(DAY)) == "RolloutComplete"
    of.nodes = [GONE]
    of.edit(template=CHANGED)
    for wait in (0, 1, 1798):
        assert progressing(of.look(wait)) == "RollingOut"
    assert progressing(of.look(1)) == "ProgressDeadlineExceeded"


def test_what_is_late_stays_late_when_another_node_starts() -> None:
    of = Rollout([GONE])
    of.look(0)
    of.look(2000)
    of.nodes = [GONE, WELL]
    for wait in (1, 1):
        assert progressing(of.look(wait, pods=(pod(WELL, created=NOW + 2001),))) == "ProgressDeadlineExceeded"
    assert of.told == [2000]


def test_a_task_that_was_suspended_waits_since_it_goes_on() -> None:
    of = Rollout([GONE], suspend=True)
    of.look(0)
    of.look(DAY)
    of.edit(suspend=False)
    for wait in (0, 1, 1798):
        assert progressing(of.look(wait)) == "RollingOut"
    assert progressing(of.look(1)) == "ProgressDeadlineExceeded"
    assert len(of.told) == 1


def test_a_time_that_lies_ahead_counts_for_nothing() -> None:
    of = Rollout([GONE], created=NOW + 5)
    of.look(0)
    wrong = msgspec.structs.replace(of.task.status, start_time=format_time(NOW + 300 * DAY))
    assert waiting_since(msgspec.structs.replace(of.task, status=wrong), wrong.current_revision, NOW) == NOW


@pytest.mark.parametrize("created", [None, "yesterday", format_time(NOW + 5)])
def test_where_no_beginning_is_known_the_task_has_waited_for_ever(created: str | None) -> None:
    of = Rollout([GONE])
    of.look(0)
    meta = msgspec.structs.replace(of.task.metadata, creation_timestamp=created)
    seen = Status(current_revision=of.task.status.current_revision)
    assert waiting_since(DaemonTask(meta, of.task.spec, seen), seen.current_revision, NOW) == 0.0
