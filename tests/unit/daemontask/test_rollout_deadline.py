"""The deadline of a rollout: its clock, the starts that it cuts off, the ways out."""

from typing import Any

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.daemontask import Budget, Drain
from caretaker.api.objects import Pod
from caretaker.api.times import format_time, normalise_time
from caretaker.cli.daemontask.status import calendar_json, calendar_lines
from caretaker.cli.resume import stamp_of
from caretaker.daemontask.decision import Deadline
from caretaker.daemontask.forecast import forecast
from caretaker.daemontask.ledger import Ledger
from caretaker.daemontask.live import decide_live
from caretaker.daemontask.node_eligibility import FITS
from caretaker.daemontask.plan import plan
from caretaker.daemontask.rollout_deadline import is_cut_off
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from unit.daemontask.almanac import Almanac
from unit.daemontask.build import NOW, UID, decision_input, entry, node, pod, snapshot, task
from unit.daemontask.test_blast_radius import PAUSE, Rollout

HOUR = 3600
MARK = f"default/task/{UID}/{format_time(NOW)}"


class Timed(Rollout):
    """A rollout with a deadline of an hour, one node at a time."""

    def __init__(self, count: int = 20, seconds: float = 500, bad: Any = frozenset(), **spec: Any) -> None:
        super().__init__(count, seconds, bad, **{"parallelism": 1, "rollout_deadline_seconds": HOUR, **spec})
        self.begun = 0

    def one_pass(self) -> None:
        super().one_pass()
        self.begun += len(self.last.launch.starts)

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = {one.type: (one.status, one.reason, one.message) for one in self.status.conditions}
        return found.get(kind, ("", "", ""))

    def at(self, seconds: float, step: float = 30) -> None:
        """Passes until so long after the beginning."""
        while self.now < NOW + seconds:
            self.one_pass()
            self.let_pass(step)
        self.one_pass()


@pytest.fixture
def late() -> Timed:
    """Ten minutes after the deadline."""
    made = Timed()
    made.at(HOUR + 600)
    return made


def test_no_node_begins_after_the_deadline_and_the_active_run_finishes() -> None:
    rollout = Timed()
    rollout.at(HOUR - 1)
    before = set(rollout.hit)
    rollout.at(HOUR + 30)
    assert (rollout.hit, rollout.status.active) == (before, 1)
    status, reason, message = rollout.condition("Ready")
    assert (status, reason) == ("False", "RolloutDeadlineExceeded")
    assert rollout.condition("Reconciling")[0] == "True", "a run is active"
    rollout.at(2 * HOUR)
    assert rollout.status.succeeded == len(before)
    status, reason, message = rollout.condition("Ready")
    waiting = 20 - len(before)
    assert message == (
        f"rolloutDeadlineSeconds (3600 s) are over and {waiting} node(s) start nothing more, first "
        f"{min(set(rollout.nodes) - before)}; {len(before)} of 20 nodes succeeded, {waiting} pending; "
        "annotate caretaker.dev/resume-at with the current time, or raise spec.rolloutDeadlineSeconds"
    )
    assert rollout.condition("Stalled")[:2] == ("True", "RolloutDeadlineExceeded")
    assert rollout.condition("Progressing")[:2] == ("False", "RolloutDeadlineExceeded")


def test_the_pass_at_the_deadline_needs_no_event_and_none_follows() -> None:
    rollout = Timed(2, bad=None)
    rollout.one_pass()
    assert rollout.last.wake == NOW + HOUR
    rollout.now = NOW + HOUR
    rollout.at(HOUR + 60)
    assert (rollout.last.wake, rollout.status.pending) == (0.0, 2)


def test_a_rollout_that_has_ended_in_time_has_no_deadline() -> None:
    rollout = Timed(3)
    rollout.at(2 * HOUR)
    assert rollout.condition("Ready")[1] == "Succeeded"
    assert rollout.last.wake == 0.0
    rollout.nodes["back"] = node("back")  # as old as the others: it was away
    rollout.at(3 * HOUR)
    assert rollout.status.succeeded == 4


@pytest.mark.parametrize("created", [NOW + 60, NOW + HOUR + 60])
def test_a_node_that_has_joined_since_the_rollout_began_runs_all_the_same(
    late: Timed, created: float
) -> None:
    late.nodes["new"] = node("new", created=created)
    late.at(2 * HOUR)
    assert "new" in late.hit
    assert late.condition("Ready")[1] == "RolloutDeadlineExceeded"
    late.bad = None
    late.nodes["fails"] = node("fails", created=created)
    late.at(3 * HOUR)
    assert late.entries["fails"].attempts > 1, "its retries are its own"


def test_a_re_run_of_one_node_is_no_part_of_the_rollout(late: Timed) -> None:
    name = min(set(late.nodes) - late.hit)
    late.annotations[names.RERUN_NODES] = f'{{"{name}": "{format_time(late.now)}"}}'
    before = set(late.hit)
    late.at(2 * HOUR)
    assert late.hit == {*before, name}


def test_the_retries_of_a_re_run_of_one_node_are_no_part_of_it_either() -> None:
    """Asked for and begun before the deadline."""
    rollout = Timed(2, 5, parallelism=2, backoff_limit=20, progress_deadline_seconds=10 * HOUR)
    rollout.nodes["away"] = node("away", ready=False, ready_since=NOW)
    rollout.at(HOUR - 120)
    rollout.annotations[names.RERUN_NODES] = f'{{"n000": "{format_time(rollout.now)}"}}'
    rollout.bad = frozenset({"n000"})
    rollout.at(HOUR + 60, step=5)
    attempts = rollout.entries["n000"].attempts
    rollout.at(2 * HOUR, step=5)
    assert rollout.entries["n000"].attempts > attempts > 0


@pytest.mark.parametrize("decision", ["rerun", "assume-done: n000"])
def test_a_decision_about_a_lost_ledger_begins_the_clock_again(decision: str) -> None:
    """The rollout had finished long before, and is one anew."""
    rollout = Timed(3, 5)
    rollout.at(2 * HOUR)
    assert rollout.status.finished_rollout
    rollout.annotations[names.LEDGER_DECISION] = decision
    rollout.entries.clear()
    rollout.pods.clear()
    of = task(status=rollout.status, annotations=rollout.annotations, **rollout.spec)
    lost = Ledger(entries={}, shards=1, lost=1)
    seen = snapshot(of, list(rollout.nodes.values()), ledger=lost, now=rollout.now)
    rollout.status = status_of(seen, plan(seen), Outcome(shards=1))
    assert rollout.status.rollout is not None
    assert rollout.status.rollout.start_time == format_time(rollout.now)
    rollout.annotations.clear()
    before = rollout.begun
    rollout.at(3 * HOUR - 60)
    assert (rollout.begun - before, rollout.condition("Ready")[1]) == (3, "Succeeded")


def test_no_start_of_a_pass_is_begun_after_the_deadline() -> None:
    """It may have many, and the API server may be slow."""
    rollout = Timed(2, parallelism=2)
    rollout.one_pass()
    assert len(rollout.last.launch.starts) == 2
    assert rollout.last.launch.boundary == NOW + HOUR
    rollout.nodes["new"] = node("new", created=NOW + HOUR)
    rollout.at(HOUR + 60)
    joined = plan(
        snapshot(task(status=rollout.status, **rollout.spec), [rollout.nodes["new"]], now=rollout.now)
    )
    assert (len(joined.launch.starts), joined.launch.boundary) == (1, 0.0)


@pytest.mark.parametrize("before", [NOW - 5, NOW, NOW + 300])
def test_each_resume_of_the_command_line_begins_the_clock_again(before: float) -> None:
    """Also after one from a machine whose clock was ahead."""
    rollout = Timed(2)
    rollout.annotations[names.RESUME_AT] = format_time(before)
    rollout.one_pass()
    of = task(status=rollout.status, annotations=rollout.annotations, **rollout.spec)
    rollout.annotations[names.RESUME_AT] = stamp_of(forecast(snapshot(of, list(rollout.nodes.values()))))
    rollout.now += 600
    rollout.one_pass()
    assert rollout.status.rollout is not None
    assert rollout.status.rollout.start_time == format_time(NOW + 600)


@pytest.mark.parametrize("way", ["resume", "re-run", "revision", "longer", "suspended"])
def test_what_lets_the_rollout_go_on(late: Timed, way: str) -> None:
    before = late.begun
    if way == "resume":
        late.annotations[names.RESUME_AT] = format_time(late.now)
    elif way == "re-run":
        late.annotations[names.RERUN_AT] = format_time(late.now)
    elif way == "revision":
        late.spec["template"] = {"spec": {"containers": [{"name": "main", "image": "another"}]}}
    elif way == "longer":
        late.spec["rollout_deadline_seconds"] = 3 * HOUR
    else:
        late.spec["suspend"] = True
        late.at(late.now - NOW + 60)
        assert late.condition("Ready")[1] == "Suspended"
        late.spec["suspend"] = False
    began = late.now
    late.at(began - NOW + 1500)
    assert late.begun > before
    if way != "longer":
        late.at(began - NOW + 30 * HOUR, step=300)
        assert late.condition("Ready")[1] == "RolloutDeadlineExceeded", "the clock began again"
        assert late.status.rollout is not None
        assert late.status.rollout.start_time == format_time(began)


def test_a_resume_in_the_middle_of_a_second_restarts_the_clock_once() -> None:
    rollout = Timed()
    rollout.at(600)
    rollout.annotations[names.RESUME_AT] = normalise_time(format_time(rollout.now)).replace(
        ".000000", ".700000"
    )
    began = rollout.now
    rollout.at(700)
    rollout.at(1300)
    assert rollout.status.rollout is not None
    assert rollout.status.rollout.start_time == format_time(began)


def test_retries_end_at_the_deadline_and_the_node_counts_as_failed() -> None:
    """The slot is free: a node that joins is not kept waiting by it."""
    rollout = Timed(2, 5, None, backoff_limit=100)
    rollout.at(HOUR + 60, step=5)
    (failing,) = rollout.hit
    attempts = rollout.entries[failing].attempts
    rollout.bad = frozenset()
    rollout.nodes["new"] = node("new", created=NOW + HOUR)
    rollout.at(HOUR + 1200, step=5)
    assert rollout.entries[failing].attempts == attempts
    assert rollout.status.succeeded == 1


def test_with_pause_a_node_that_the_deadline_cut_off_holds_the_task() -> None:
    rollout = Timed(2, 5, None, backoff_limit=100, failure_policy=PAUSE)
    rollout.at(HOUR + 600, step=5)
    _, reason, message = rollout.condition("Ready")
    assert reason == "Paused"
    assert "1 node(s) count as failed, past the deadline of the rollout" in message


def test_a_deadline_that_is_given_later_counts_from_the_first_pod() -> None:
    rollout = Timed(rollout_deadline_seconds=None)
    rollout.at(HOUR)
    assert rollout.status.rollout is not None
    assert rollout.status.rollout.start_time is None
    rollout.spec["rollout_deadline_seconds"] = HOUR
    before = set(rollout.hit)
    rollout.at(2 * HOUR)
    assert rollout.hit == before
    assert rollout.status.rollout is not None
    assert rollout.status.rollout.start_time == format_time(NOW)


def test_a_window_that_is_shorter_than_the_rollout_does_not_stop_the_clock() -> None:
    rollout = Timed(budgets=(Budget(0),))
    rollout.at(HOUR + 60)
    assert rollout.condition("Ready")[1] == "RolloutDeadlineExceeded"
    rollout.spec["budgets"] = ()
    rollout.at(2 * HOUR)
    assert not rollout.hit


def test_a_blocked_node_that_comes_back_after_the_deadline_starts_nothing() -> None:
    rollout = Timed(2, seconds=2)
    rollout.nodes["n000"] = node("n000", ready=False, ready_since=NOW - 9999)
    rollout.at(HOUR - 600)
    assert rollout.status.finished_rollout, "kept away for long, it held nothing up"
    other = Timed(2, seconds=2)
    other.nodes["n000"] = node("n000", ready=False, ready_since=NOW + HOUR - 60)
    other.at(HOUR + 1200)
    assert not other.status.finished_rollout
    other.nodes["n000"] = node("n000")
    other.at(HOUR + 2400)
    assert (other.hit, other.condition("Ready")[1]) == ({"n001"}, "RolloutDeadlineExceeded")


def test_a_drained_node_that_has_not_begun_is_uncordoned() -> None:
    rollout = Timed(2, drain=Drain())
    rollout.one_pass()
    cordoned = rollout.last.launch.cordons[0].node_name
    rollout.nodes[cordoned] = node(cordoned, unschedulable=True, cordon=MARK)
    rollout.now += HOUR
    rollout.one_pass()
    assert [one.name for one in rollout.last.releases] == [cordoned]
    assert (rollout.last.drained, rollout.last.launch.cordons) == ((), ())


def test_replace_deletes_no_pod_for_a_run_that_may_not_start() -> None:
    of, later = node("a"), Deadline(NOW - 100, NOW - 40, passed=True)
    inputs = msgspec.structs.replace(
        decision_input(concurrency_policy="Replace"),
        deadline=later,
        rerun_at=normalise_time(format_time(NOW)),
    )
    found = decide_live(inputs, of, FITS, [pod(of)])
    assert found is not None
    assert found.replace is None
    joined = decide_live(inputs, node("a", created=NOW - 50), FITS, [pod(of)])
    assert joined is not None
    assert joined.replace is not None


@pytest.mark.parametrize(
    ("trigger", "changes", "cut"),
    [
        ("NewNode", None, True),
        ("TemplateChange", {}, True),
        ("Schedule", {}, True),
        ("NodeReboot", {}, False),
        ("Retry", {"started_at": int(NOW - 41)}, True),
        ("Retry", {"started_at": int(NOW - 40)}, False),
    ],
)
def test_which_runs_a_deadline_cuts_off(trigger: str, changes: dict[str, Any] | None, cut: bool) -> None:
    of, deadline = node("a"), Deadline(NOW - 100, NOW - 40, passed=True)
    found = entry(of, "Retry", **changes) if changes is not None else None
    inputs = msgspec.structs.replace(decision_input(), deadline=deadline)
    assert is_cut_off(inputs, of, found, trigger) is cut
    before = msgspec.structs.replace(inputs, deadline=msgspec.structs.replace(deadline, passed=False))
    assert not is_cut_off(before, of, found, trigger)


def test_caretaker_plan_starts_nothing_either(late: Timed) -> None:
    of = task(status=late.status, **late.spec)
    pods: list[Pod] = list(late.pods.values())
    found = forecast(snapshot(of, list(late.nodes.values()), pods, dict(late.entries), now=late.now))
    waiting = min(set(late.nodes) - late.hit)
    assert (found.turns, found.state_of(waiting).reason) == ({}, "RolloutDeadlineExceeded")
    over = format_time(NOW + HOUR)
    assert calendar_lines(found) == [f"deadline of the rollout: {over}, 10m ago"]
    assert calendar_json(found)["rolloutDeadline"] == over
    early = forecast(snapshot(task(**late.spec), list(late.nodes.values())))
    assert calendar_lines(early) == [f"deadline of the rollout: {over}, in 60m"]


# ---------------------------------------------------------------- ticks


def nightly(**spec: Any) -> Almanac:
    made = Almanac("2026-11-22T10:00:00Z", schedule="0 3 * * *", rollout_deadline_seconds=HOUR, **spec)
    made.look("2026-11-22T10:00:00Z")
    return made


def test_the_clock_of_a_tick_begins_with_the_tick() -> None:
    made = nightly(budgets=(Budget(0),))
    made.look("2026-11-23T03:20:00Z")
    assert made.task.status.rollout is not None
    assert made.task.status.rollout.start_time == "2026-11-23T03:00:00Z"
    assert made.wakes() == "2026-11-23T04:00:00Z"
    made.edit(budgets=())
    assert made.look("2026-11-23T04:00:00Z") == []
    assert made.condition("Ready") == ("False", "RolloutDeadlineExceeded")
    assert made.wakes() == "2026-11-24T03:00:00Z"
    ready = next(one for one in made.task.status.conditions if one.type == "Ready")
    assert ready.message.endswith(", or wait for the tick at 2026-11-24T03:00:00Z")
    assert made.look("2026-11-24T03:00:00Z") == ["a NewNode", "b NewNode"]


def test_a_tick_that_is_noticed_after_its_deadline_starts_nothing() -> None:
    made = nightly()
    assert made.look("2026-11-23T04:00:00Z") == []
    assert made.condition("Ready") == ("False", "RolloutDeadlineExceeded")


def test_a_tick_that_is_caught_up_with_after_a_suspension_has_the_whole_time() -> None:
    made = nightly()
    made.edit(suspend=True)
    made.look("2026-11-22T11:00:00Z")
    made.edit(suspend=False)
    assert made.look("2026-11-23T09:00:00Z") == ["a NewNode", "b NewNode"]
    assert made.task.status.rollout is not None
    assert made.task.status.rollout.start_time == "2026-11-23T09:00:00Z"


def test_there_is_no_deadline_before_the_first_tick() -> None:
    made = nightly()
    made.look("2026-11-22T23:00:00Z")
    assert made.condition("Ready") == ("True", "AwaitingSchedule")
    assert made.wakes() == "2026-11-23T03:00:00Z"
