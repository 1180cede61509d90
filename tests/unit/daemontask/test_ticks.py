"""A schedule over days and years: first ticks, missed ones, resuming, clocks that jump, nodes that join."""

from typing import Any

import msgspec
import pytest

from caretaker.api import conditions as c
from caretaker.api import names
from caretaker.api.daemontask import (
    Budget,
    DaemonTask,
    EndedTick,
    FailurePolicy,
    ObservedSchedule,
    Spec,
    Status,
)
from caretaker.api.times import format_time
from caretaker.daemontask import ticks
from caretaker.daemontask.ledger import Ledger
from caretaker.daemontask.plan import plan
from unit.daemontask.almanac import Almanac, moment
from unit.daemontask.build import TEMPLATE, node, pod, snapshot, states, task

CREATED = "2026-11-22T10:00:00Z"
BOTH = ["a Schedule", "b Schedule"]
FIRST = ["a NewNode", "b NewNode"]


def nightly(**spec: object) -> Almanac:
    """Every night at three; looked at once when it was made."""
    made = Almanac(CREATED, schedule="0 3 * * *", **spec)
    assert made.look(CREATED) == []
    return made


class TestFirstTick:
    def test_nothing_runs_before_it(self) -> None:
        made = nightly()
        assert made.look("2026-11-23T02:59:59Z") == []
        assert made.look("2026-11-23T03:00:00Z") == FIRST
        assert made.look("2026-11-23T03:00:10Z") == []

    def test_it_is_no_rollout_that_anybody_has_to_wait_for(self) -> None:
        made = nightly()
        assert made.condition(c.READY) == ("True", "AwaitingSchedule")
        assert made.condition(c.PROGRESSING) == ("True", "AwaitingSchedule")
        assert made.condition(c.RECONCILING) == ("", "")
        assert made.events == []
        made.look("2026-11-23T03:00:00Z")
        assert made.condition(c.READY) == ("True", "Succeeded")
        assert made.condition(c.RECONCILING) == ("", "")

    def test_status_tells_it(self) -> None:
        made = nightly()
        status = made.task.status
        assert (status.last_schedule_time, status.next_schedule_time) == (None, "2026-11-23T03:00:00Z")
        assert made.wakes() == "2026-11-23T03:00:00Z"
        made.look("2026-11-23T03:00:00Z")
        status = made.task.status
        assert status.last_schedule_time == "2026-11-23T03:00:00Z"
        assert status.next_schedule_time == made.wakes() == "2026-11-24T03:00:00Z"

    def test_a_tick_before_the_task_was_made_is_not_missed(self) -> None:
        made = Almanac("2026-11-22T03:00:00Z", schedule="0 3 * * *")
        assert made.look("2026-11-22T03:00:05Z") == []

    def test_an_operator_that_was_down_when_it_was_made_catches_up(self) -> None:
        made = Almanac(CREATED, schedule="0 3 * * *")
        assert made.look("2026-11-23T08:00:00Z") == FIRST

    def test_somebody_may_ask_for_a_run_before_it(self) -> None:
        made = nightly()
        made.annotate(rerun_at="2026-11-22T12:00:00Z")
        assert made.look("2026-11-22T12:00:00Z") == FIRST
        assert made.look("2026-11-23T03:00:00Z") == BOTH


class TestEveryTick:
    def test_every_node_runs_once_and_not_between(self) -> None:
        made = nightly()
        for day in (23, 24, 25):
            assert len(made.look(f"2026-11-{day}T03:00:00Z")) == 2
            assert made.look(f"2026-11-{day}T15:00:00Z") == []

    def test_nothing_is_looked_at_between_two_ticks(self) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        known = made.passes
        assert made.look("2026-11-23T04:00:00Z") == []
        assert made.passes == known + 1
        assert made.wakes() == "2026-11-24T03:00:00Z"

    def test_no_node_starts_before_its_tick_is_stored(self) -> None:
        """kruise#862: what is stored, and not what exists, says which tick has run."""
        made = nightly()
        began = made.passes
        made.look("2026-11-23T03:00:00Z")
        assert made.passes == began + 3  # stores the tick, starts, sees that nothing is left

    def test_a_node_that_joins_between_two_ticks_runs_for_the_last_one_at_once(self) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        made.nodes["c"] = node("c")
        assert made.look("2026-11-23T12:00:00Z") == ["c NewNode"]
        assert made.look("2026-11-24T03:00:00Z") == [*BOTH, "c Schedule"]

    def test_a_changed_template_runs_at_once_unless_only_the_schedule_may(self) -> None:
        other = {"spec": {**TEMPLATE["spec"], "hostPID": True}}
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        made.edit(template=other)
        assert made.look("2026-11-23T12:00:00Z") == ["a TemplateChange", "b TemplateChange"]
        made = nightly(rerun_on=())
        made.look("2026-11-23T03:00:00Z")
        made.edit(template=other)
        assert made.look("2026-11-23T12:00:00Z") == []
        assert made.look("2026-11-24T03:00:00Z") == BOTH

    def test_the_same_tick_never_runs_twice_though_nothing_of_it_is_left_but_the_record(self) -> None:
        """kruise#1039, #1488: their schedule was read off finished children, which somebody deletes."""
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        assert made.look("2026-11-23T03:00:30Z") == []
        assert made.look("2026-11-23T23:59:00Z") == []

    def test_a_node_that_failed_runs_again_and_what_its_failure_held_goes_on(self) -> None:
        made = nightly(failure_policy=FailurePolicy(0, "Pause"), parallelism=1)
        made.bad = {"a", "b"}
        assert len(made.look("2026-11-23T03:00:00Z")) == 1
        made.bad, made.nodes["c"] = set(), node("c")
        assert made.look("2026-11-23T12:00:00Z") == []
        assert made.condition(c.READY) == ("False", "Paused")
        assert [ran.split()[0] for ran in made.look("2026-11-24T03:00:00Z")] == ["a", "b", "c"]
        assert made.condition(c.READY) == ("True", "Succeeded")

    def test_a_success_before_it_is_not_forgotten(self) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        later = int(moment("2026-11-23T03:10:00Z"))
        made.entries["a"] = msgspec.structs.replace(made.entries["a"], finished_at=later)
        made.look("2026-11-23T04:00:00Z")
        made.entries["a"] = msgspec.structs.replace(made.entries["a"], result="Failed")
        made.look("2026-11-23T05:00:00Z")
        assert made.task.status.last_completion_time == "2026-11-23T03:10:00Z"

    def test_one_that_lies_ahead_counts_from_when_it_is_seen(self) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        good = made.entries["a"]
        made.entries["a"] = msgspec.structs.replace(good, finished_at=int(moment("2031-01-01T00:00:00Z")))
        made.look("2026-11-23T04:00:00Z")
        made.look("2026-11-23T05:00:00Z")
        assert made.task.status.last_completion_time == "2026-11-23T04:00:00Z"


class TestTheHistory:
    """Of ticks that a later one followed, newest first."""

    def test_it_has_the_counts_of_the_tick_that_ended(self) -> None:
        made = nightly()
        assert made.task.status.schedule_history == ()
        made.look("2026-11-23T03:00:00Z")
        assert made.task.status.schedule_history == ()
        made.look("2026-11-24T03:00:00Z")
        ended = EndedTick("2026-11-23T03:00:00Z", 2, 2, 0, "2026-11-23T03:00:00Z")
        assert made.task.status.schedule_history == (ended,)
        made.look("2026-11-24T04:00:00Z")
        assert made.task.status.schedule_history == (ended,)

    def test_it_is_the_last_ten(self) -> None:
        made = nightly()
        for day in range(1, 31):
            made.look(f"2026-12-{day:02d}T03:00:00Z")
        days = [one.schedule_time for one in made.task.status.schedule_history]
        assert days == [f"2026-12-{day:02d}T03:00:00Z" for day in range(29, 19, -1)]

    def test_ticks_that_were_missed_are_not_in_it(self) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        made.look("2026-11-27T12:00:00Z")
        made.look("2026-11-28T03:00:00Z")
        days = [one.schedule_time for one in made.task.status.schedule_history]
        assert days == ["2026-11-27T03:00:00Z", "2026-11-23T03:00:00Z"]

    def test_it_goes_with_the_schedule(self) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        made.look("2026-11-24T03:00:00Z")
        made.edit(schedule=None)
        made.look("2026-11-24T04:00:00Z")
        assert made.task.status.schedule_history == ()

    @pytest.mark.parametrize(
        ("succeeded", "completed", "told"),
        [
            pytest.param(0, "2026-11-23T03:00:00Z", None, id="before it"),
            pytest.param(0, "2026-11-24T03:00:05Z", None, id="of an earlier tick's run, during it"),
            pytest.param(1, "2026-11-24T03:00:05Z", "2026-11-24T03:00:05Z", id="its own"),
        ],
    )
    def test_the_last_success_is_that_of_the_tick(
        self, succeeded: int, completed: str, told: str | None
    ) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        self.standing(made, "2026-11-24T03:00:00Z", last_completion_time=completed, succeeded=succeeded)
        made.look("2026-11-25T03:00:00Z")
        ended = EndedTick("2026-11-24T03:00:00Z", 2, succeeded, 0, told)
        assert made.task.status.schedule_history == (ended,)

    def test_a_tick_of_a_clock_that_was_wrong_is_not_in_it(self) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        self.standing(made, "2029-11-24T03:00:00Z")
        made.look("2026-11-24T12:00:00Z")
        made.look("2026-11-25T03:00:00Z")
        assert made.task.status.last_schedule_time == "2026-11-25T03:00:00Z"
        assert made.task.status.schedule_history == ()

    @staticmethod
    def standing(made: Almanac, tick: str, **counts: Any) -> None:
        """The status that another process left for this tick."""
        status = msgspec.structs.replace(made.task.status, last_schedule_time=tick, **counts)
        made.task = msgspec.structs.replace(made.task, status=status)


class TestTheTakingPass:
    """The pass that stores a tick and starts nothing: what it tells is of that tick."""

    @staticmethod
    def taking(made: Almanac, tick: str) -> Status:
        """The status of that pass."""
        at = len(made.statuses)
        made.look(tick)
        assert made.statuses[at].last_schedule_time == tick
        return made.statuses[at]

    def test_nobody_has_run_for_a_tick_that_was_just_taken(self) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        found = self.taking(made, "2026-11-24T03:00:00Z")
        assert (found.desired, found.pending, found.succeeded, found.active) == (2, 2, 0, 0)
        told = {one.type: (one.status, one.reason) for one in found.conditions}
        assert (told[c.READY], told[c.PROGRESSING]) == (("True", "Running"), ("True", "Running"))

    def test_nor_has_anybody_failed(self) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        made.entries["a"] = msgspec.structs.replace(made.entries["a"], result="Failed", attempts=4)
        made.look("2026-11-23T12:00:00Z")
        assert made.task.status.failed == 1
        found = self.taking(made, "2026-11-24T03:00:00Z")
        assert (found.pending, found.failed, found.failed_nodes) == (2, 0, ())
        assert c.find(found.conditions, c.DEGRADED) is None

    def test_at_the_first_one_nothing_is_awaited_any_more(self) -> None:
        made = nightly()
        found = self.taking(made, "2026-11-23T03:00:00Z")
        assert (found.pending, found.succeeded) == (2, 0)
        told = c.find(found.conditions, c.READY)
        assert told is not None
        assert (told.status, told.reason) == ("True", "Running")

    def test_blocked_nodes_stay_blocked(self) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        made.nodes["b"] = node("b", ready=False)
        found = self.taking(made, "2026-11-24T03:00:00Z")
        assert (found.pending, found.blocked) == (1, 1)

    def test_a_task_that_is_first_seen_at_its_first_tick_is_waited_for_by_nobody_either(self) -> None:
        made = Almanac(CREATED, schedule="0 3 * * *")
        found = self.taking(made, "2026-11-23T03:00:00Z")
        assert c.find(found.conditions, c.RECONCILING) is None
        assert {status.completed_revision for status in made.statuses} == {found.current_revision}
        assert made.events == ["RunStarted", "RunSucceeded"]

    def test_nothing_makes_way_for_it_yet(self) -> None:
        before, now = moment("2026-11-23T03:00:00Z"), moment("2026-11-24T03:00:00Z")
        stored = Status(
            observed_generation=1,
            last_schedule_time=format_time(before),
            observed_schedule=ObservedSchedule("0 3 * * *", "Etc/UTC", CREATED),
        )
        of = task(schedule="0 3 * * *", concurrency_policy="Replace", status=stored)
        marks = {names.POD_SCHEDULED_AT: format_time(before)}
        running = pod(node("a"), marks=marks, created=now - 60)
        due = snapshot(of, [node("a")], [running], now=now)
        taken = plan(due)
        assert (taken.tick.taken, taken.deletes, states(taken)) == (True, (), {"active": 1})
        after = plan(msgspec.structs.replace(due, task=ticks.with_tick(of, taken.tick)))
        assert after.deletes == (running,)

    @pytest.mark.parametrize(
        ("spec", "marks", "ledger"),
        [
            pytest.param({}, "assume-done: a", Ledger({}, lost=1), id="what is assumed of a lost ledger"),
            pytest.param(
                {"run_guarantee": "AtMostOnce"},
                "",
                Ledger({}, shards=1, corrupt={"a": "garbage"}),
                id="what an entry may have said that cannot be read",
            ),
        ],
    )
    def test_what_nobody_knows_was_of_the_tick_before(
        self, spec: dict[str, Any], marks: str, ledger: Ledger
    ) -> None:
        """Or it would be of a tick that may never be stored, and its run be repeated for the stored one."""
        before, now = moment("2026-11-23T03:00:00Z"), moment("2026-11-24T03:00:00Z")
        seen = ObservedSchedule("0 3 * * *", "Etc/UTC", CREATED)
        status = Status(observed_generation=1, last_schedule_time=format_time(before), observed_schedule=seen)
        of = task(schedule="0 3 * * *", annotations={names.LEDGER_DECISION: marks}, status=status, **spec)
        found = plan(snapshot(of, [node("a")], ledger=ledger, now=now))
        assert (found.tick.taken, found.tick.last) == (True, now)
        assert states(found) == {"pending": 1}
        assert {entry.tick for entry in found.records.values()} == {before}


class TestMissedTicks:
    def test_a_long_outage_is_caught_up_with_once_and_the_schedule_lives(self) -> None:
        """kruise#1289: a hundred missed ticks, and it never ran again."""
        made = Almanac(CREATED, schedule="* * * * *")
        made.look("2026-11-22T10:01:00Z")
        assert made.look("2029-02-03T04:05:06Z") == BOTH
        assert made.task.status.last_schedule_time == "2029-02-03T04:05:00Z"
        assert made.look("2029-02-03T04:05:59Z") == []
        assert made.look("2029-02-03T04:06:00Z") == BOTH

    def test_one_that_is_noticed_too_late_is_skipped(self) -> None:
        made = nightly(starting_deadline_seconds=3600)
        assert made.look("2026-11-23T04:00:01Z") == []
        assert made.task.status.last_schedule_time is None
        assert made.task.status.next_schedule_time == "2026-11-24T03:00:00Z"
        assert made.look("2026-11-24T04:00:00Z") == FIRST

    def test_one_that_is_skipped_is_told_once(self) -> None:
        made = nightly(starting_deadline_seconds=60)
        for now in ("2026-11-23T04:00:00Z", "2026-11-23T05:00:00Z"):
            made.look(now)
        assert made.events == ["ScheduleMissed"]
        made.look("2026-11-24T03:00:01Z")
        assert made.events.count("ScheduleMissed") == 1

    def test_what_has_begun_in_time_is_not_cut_short(self) -> None:
        made = nightly(starting_deadline_seconds=60, parallelism=1)
        made.nodes["b"] = node("b", ready=False)
        assert made.look("2026-11-23T03:00:00Z") == ["a NewNode"]
        made.nodes["b"] = node("b")
        assert made.look("2026-11-23T09:00:00Z") == ["b NewNode"]


class TestSuspended:
    def test_ticks_meanwhile_become_one_when_it_is_resumed(self) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        made.edit(suspend=True)
        assert made.look("2026-11-24T03:00:00Z") == []
        assert made.look("2026-11-25T03:00:00Z") == []
        assert made.task.status.next_schedule_time is None
        assert made.task.status.last_schedule_time == "2026-11-23T03:00:00Z"
        assert made.wakes() == ""
        made.edit(suspend=False)
        assert made.look("2026-11-25T12:00:00Z") == BOTH
        assert made.task.status.last_schedule_time == "2026-11-25T03:00:00Z"

    def test_and_none_when_they_are_too_old_by_then(self) -> None:
        made = nightly(starting_deadline_seconds=600)
        made.look("2026-11-23T03:00:00Z")
        made.edit(suspend=True)
        made.look("2026-11-24T03:00:00Z")
        made.edit(suspend=False)
        assert made.look("2026-11-24T12:00:00Z") == []
        assert made.look("2026-11-25T03:00:00Z") == BOTH

    def test_a_task_that_failed_waits_for_no_tick_either(self) -> None:
        made = nightly(failure_policy=FailurePolicy(0, "Fail"), starting_deadline_seconds=600)
        made.bad = {"a"}
        made.look("2026-11-23T03:00:00Z")
        made.edit(suspend=True)
        made.look("2026-11-24T03:00:00Z")
        assert made.condition(c.READY) == ("False", "NodesFailed")
        assert made.task.status.next_schedule_time is None
        made.edit(suspend=False)
        assert made.look("2026-11-24T12:00:00Z") == []

    def test_a_task_whose_ledger_is_lost_waits_for_no_tick(self) -> None:
        seen = ObservedSchedule("0 3 * * *", "Etc/UTC", CREATED)
        of = task(schedule="0 3 * * *", status=Status(observed_generation=1, observed_schedule=seen))
        at = moment("2026-11-23T03:00:00Z")
        for lost in (0, 1):
            found = plan(snapshot(of, [node("a")], ledger=Ledger({}, lost=lost), now=at))
            assert found.tick.taken == (not lost)

    def test_nothing_at_all_when_no_tick_came(self) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        made.edit(suspend=True)
        made.look("2026-11-23T10:00:00Z")
        made.edit(suspend=False)
        assert made.look("2026-11-23T12:00:00Z") == []


class TestChangedSchedules:
    def test_a_new_one_has_missed_nothing(self) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        made.edit(schedule="0 5 * * *")
        assert made.look("2026-11-23T12:00:00Z") == []
        assert made.task.status.next_schedule_time == "2026-11-24T05:00:00Z"
        assert made.look("2026-11-24T05:00:00Z") == BOTH
        assert "ScheduleMissed" not in made.events

    def test_another_zone_is_another_schedule(self) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        made.edit(time_zone="Asia/Tokyo")
        assert made.look("2026-11-23T19:00:00Z") == []
        assert made.task.status.next_schedule_time == "2026-11-24T18:00:00Z"

    def test_one_that_is_given_to_a_task_that_ran_begins_with_its_next_tick(self) -> None:
        made = Almanac(CREATED)
        assert made.look(CREATED) == FIRST
        made.edit(schedule="0 3 * * *")
        assert made.look("2026-11-30T12:00:00Z") == []
        assert made.condition(c.READY) == ("True", "Succeeded")
        assert made.look("2026-12-01T03:00:00Z") == BOTH

    def test_without_it_nothing_is_due_any_more(self) -> None:
        made = nightly()
        made.look("2026-11-23T03:00:00Z")
        made.edit(schedule=None)
        assert made.look("2026-11-24T03:00:00Z") == []
        status = made.task.status
        assert (status.last_schedule_time, status.next_schedule_time, status.observed_schedule) == (None,) * 3
        made.edit(schedule="0 3 * * *")
        assert made.look("2026-11-24T12:00:00Z") == []
        assert made.look("2026-11-25T03:00:00Z") == BOTH

    def test_one_that_cannot_be_read_starts_nothing_and_names_the_field(self) -> None:
        found = ticks.faults_of(Spec(template=TEMPLATE, schedule="0 5-3 * * *"))
        assert found.startswith("spec.schedule: '0 5-3 * * *' never comes")
        assert ticks.faults_of(Spec(template=TEMPLATE, time_zone="Mars/Phobos")).startswith("spec.timeZone: ")


class TestClocks:
    def test_a_clock_that_is_set_back_runs_no_tick_again(self) -> None:
        made = nightly()
        assert made.look("2026-11-23T03:00:00Z") == FIRST
        assert made.look("2026-11-23T02:00:00Z") == []
        assert made.task.status.next_schedule_time == "2026-11-24T03:00:00Z"
        assert made.look("2026-11-23T03:00:00Z") == []
        assert made.look("2026-11-24T03:00:00Z") == BOTH

    def test_a_clock_that_is_set_forth_takes_one_tick(self) -> None:
        made = Almanac(CREATED, schedule="*/5 * * * *")
        made.look("2026-11-22T10:05:00Z")
        assert made.look("2026-11-22T12:34:00Z") == BOTH
        assert made.look("2026-11-22T12:34:30Z") == []

    def test_a_clock_that_was_years_ahead_leaves_the_schedule_alive(self) -> None:
        made = nightly()
        assert made.look("2026-11-23T03:00:00Z") == FIRST
        assert made.look("2031-01-01T12:00:00Z") == BOTH
        assert made.look("2026-11-23T12:00:00Z") == []
        assert made.task.status.next_schedule_time == "2026-11-24T03:00:00Z"
        assert made.look("2026-11-24T03:00:00Z") == BOTH
        assert made.look("2026-11-24T03:00:30Z") == []
        assert made.look("2031-01-01T12:00:00Z") == BOTH, "the tick that it began has come"

    def test_nor_does_a_schedule_that_was_given_meanwhile_wait_for_years(self) -> None:
        made = Almanac(CREATED)
        made.look(CREATED)
        made.edit(schedule="0 3 * * *")
        made.look("2031-01-01T12:00:00Z")
        assert made.look("2026-11-23T12:00:00Z") == []
        assert made.look("2026-11-24T03:00:00Z") == BOTH

    def test_a_clock_behind_that_of_the_api_server_misses_no_tick(self) -> None:
        made = Almanac("2026-11-22T10:00:02Z", schedule="* * * * *")
        for now in ("2026-11-22T09:59:59Z", "2026-11-22T10:00:00Z"):
            assert made.look(now) == []
            assert made.task.status.next_schedule_time == "2026-11-22T10:01:00Z"
        assert made.events == []
        assert made.look("2026-11-22T10:01:00Z") == FIRST

    def test_the_day_on_which_clocks_go_forward_leaves_the_tick_out(self) -> None:
        made = Almanac("2026-03-28T12:00:00Z", schedule="30 2 * * *", time_zone="Europe/Berlin")
        made.look("2026-03-28T12:00:00Z")
        assert made.look("2026-03-29T23:00:00Z") == []
        assert made.look("2026-03-30T00:30:00Z") == FIRST

    def test_the_day_on_which_clocks_go_back_has_it_twice(self) -> None:
        made = Almanac("2026-10-24T12:00:00Z", schedule="30 2 * * *", time_zone="Europe/Berlin")
        made.look("2026-10-24T12:00:00Z")
        assert made.look("2026-10-25T00:30:00Z") == FIRST
        assert made.look("2026-10-25T01:30:00Z") == BOTH

    def test_a_leap_day_is_waited_for_over_years(self) -> None:
        made = Almanac(CREATED, schedule="0 0 29 2 *")
        made.look(CREATED)
        assert made.look("2027-12-31T00:00:00Z") == []
        assert made.look("2028-02-29T00:00:00Z") == FIRST
        assert made.task.status.next_schedule_time == "2032-02-29T00:00:00Z"


NOON = moment("2026-11-23T12:00:00Z")
DAY = 86400.0


def seen(last: float = 0.0, *, since: float = 0.0, **spec: Any) -> DaemonTask:
    """A task whose nightly schedule is known since then, and whose last tick was this one."""
    schedule = spec.setdefault("schedule", "0 3 * * *")
    known = ObservedSchedule(schedule, "Etc/UTC", format_time(since)) if schedule else None
    status = Status(last_schedule_time=format_time(last) if last else None, observed_schedule=known)
    return task(status=status, **spec)


class TestEdges:
    def test_a_task_whose_schedule_was_removed_runs_for_no_tick(self) -> None:
        assert ticks.stored(seen(NOON, schedule=None)) == 0
        assert ticks.stored(seen(NOON)) == NOON

    @pytest.mark.parametrize(
        ("ahead", "last"),
        [
            pytest.param(DAY, NOON + DAY, id="a tick that lies ahead a day is waited for"),
            pytest.param(DAY + 1, 0, id="one that lies ahead further is of a wrong clock"),
        ],
    )
    def test_a_tick_that_lies_ahead(self, ahead: float, last: float) -> None:
        assert ticks.next_tick(seen(NOON + ahead, suspend=True), "", NOON).last == last

    @pytest.mark.parametrize(
        ("ahead", "kept"),
        [
            pytest.param(DAY, True, id="a day ahead it is waited for"),
            pytest.param(DAY + 1, False, id="further ahead it is of a wrong clock"),
        ],
    )
    def test_a_schedule_that_was_given_ahead(self, ahead: float, kept: bool) -> None:
        found = ticks.next_tick(seen(since=NOON + ahead), "", NOON)
        assert found.observed is not None
        assert found.observed.since == format_time(NOON + ahead if kept else NOON)
        assert found.next == moment("2026-11-25T03:00:00Z" if kept else "2026-11-24T03:00:00Z")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        pytest.param({}, [], id="nothing is scheduled"),
        pytest.param(
            {"schedule": "0 3 * * *", "time_zone": "Mars"}, ["spec.timeZone"], id="a zone nobody knows"
        ),
        pytest.param({"time_zone": "Mars"}, ["spec.timeZone"], id="even without a schedule"),
        pytest.param(
            {
                "schedule": "never",
                "budgets": (Budget(1), Budget(1, "0 9 * * *", "1h"), Budget(1, "noon", "1h")),
            },
            ["spec.schedule", "spec.budgets[2].schedule"],
            id="each schedule by its path",
        ),
    ],
)
def test_what_cannot_be_read_is_told(spec: dict[str, Any], told: list[str]) -> None:
    found = ticks.faults_of(Spec(template={}, **spec))
    assert [part.partition(": ")[0] for part in found.split("; ") if part] == told
