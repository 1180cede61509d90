"""The deadline of a rollout: its clock, the starts that it cuts off, the ways out."""

from typing import Any

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.daemontask import Budget, Drain, Status
from caretaker.api.daemontask import Rollout as StoredRollout
from caretaker.api.objects import Pod
from caretaker.api.times import format_time, normalise_time
from caretaker.cli.daemontask.status import calendar_json, calendar_lines
from caretaker.cli.resume import stamp_of
from caretaker.daemontask import reports
from caretaker.daemontask.annotation_requests import AnnotationRequests
from caretaker.daemontask.decision import Deadline, DecisionCache
from caretaker.daemontask.forecast import forecast
from caretaker.daemontask.ledger import Ledger
from caretaker.daemontask.live import decide_live
from caretaker.daemontask.node_eligibility import FITS
from caretaker.daemontask.plan import plan
from caretaker.daemontask.rollout_deadline import began_at, binds, cut_off, is_cut_off
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from simulation.daemontask.test_blast_radius import PAUSE, Rollout
from unit.daemontask.almanac import Almanac
from unit.daemontask.build import NOW, REVISION, UID, decision_input, entry, node, pod, snapshot, task

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
            self.advance(NOW + seconds, step)
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
    before = rollout.begun
    rollout.at(3 * HOUR - 60)
    assert (rollout.begun - before, rollout.condition("Ready")[1]) == (3, "Succeeded")
    assert rollout.status.rollout.start_time == format_time(NOW + 2 * HOUR), "the annotation may stay"


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
    (kept,) = (one for one in rollout.last.nodes.overdue if one.node.name == failing)
    assert kept.decision.message.startswith("Error")


def test_with_pause_a_node_that_the_deadline_cut_off_holds_the_task() -> None:
    rollout = Timed(2, 5, None, backoff_limit=100, failure_policy=PAUSE)
    rollout.at(HOUR + 600, step=5)
    _, reason, message = rollout.condition("Ready")
    assert reason == "Paused"
    assert "1 node(s) count as failed, past the deadline of the rollout" in message


def test_a_cut_off_node_that_is_blocked_is_failing_while_it_holds_its_slot() -> None:
    """Then it counts as failed, as without a deadline."""
    away = node("a", ready=False, ready_since=NOW - 30)
    entries = {"a": entry(away, "Retry", attempts=1, finished_at=int(NOW - 60), started_at=int(NOW - 90))}
    stored = StoredRollout(start_time=format_time(NOW - HOUR))
    status = Status(current_revision=REVISION, rollout=stored)
    of = task(status=status, parallelism=1, failure_policy=PAUSE, rollout_deadline_seconds=HOUR)
    early, late = (plan(snapshot(of, [away], entries=entries, now=NOW + at)) for at in (0, 1800))
    assert (early.hold, len(early.nodes.holders), early.rollout.gated) == ("", 1, True)
    assert (late.hold, len(late.nodes.holders)) == ("Paused", 0)


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
    other.at(HOUR + 2100)
    assert not other.status.finished_rollout, "away for longer than progressDeadlineSeconds"
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


# ---------------------------------------------------------------- the clock and its reach


def began(**changes: Any) -> float:
    """began_at() in seconds since NOW, of a rollout whose status was written before, but for the changes."""
    stored = changes.pop("stored", None)
    rollout = changes.pop(
        "rollout", {"rerun_at": None, "resume_at": None, "start_time": format_time(NOW - 900)}
    )
    status = Status(
        current_revision=changes.pop("revision", REVISION),
        start_time=format_time(NOW - 800),
        last_schedule_time=format_time(NOW + stored) if stored else None,
        rollout=StoredRollout(**rollout) if rollout is not None else None,
    )
    tick, lost = changes.pop("tick", stored), changes.pop("lost", 0)
    requests = AnnotationRequests(**changes.pop("requests", {}))
    of = task(status=status, schedule="* * * * *" if tick or stored else None, **changes)
    return began_at(of, REVISION, NOW + 0.5, requests, int(NOW + tick) if tick else 0, lost=lost > 0) - NOW


RERUN = normalise_time(format_time(NOW - 300))
UNTIMED = {"rerun_at": None, "resume_at": None, "start_time": None}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, -900, id="as stored"),
        pytest.param({"revision": "another"}, 0, id="a revision that is seen for the first time"),
        pytest.param({"rollout": None}, 0, id="a status without a rollout, of an older version or edited"),
        pytest.param({"requests": {"rerun_at": RERUN}}, 0, id="a re-run"),
        pytest.param(
            {
                "requests": {"rerun_at": RERUN},
                "rollout": {"rerun_at": RERUN, "start_time": format_time(NOW - 7)},
            },
            -7,
            id="a re-run that was seen",
        ),
        pytest.param({"requests": {"ledger": "rerun"}, "lost": 1}, 0, id="a decision about a lost ledger"),
        pytest.param({"requests": {"ledger": "rerun"}}, -900, id="one that is carried out"),
        pytest.param({"lost": 1}, -900, id="a lost ledger that waits for one"),
        pytest.param({"stored": -600, "tick": -60}, -60, id="a tick"),
        pytest.param({"stored": -600, "tick": 60}, 0, id="a tick ahead"),
        pytest.param({"rollout": {**UNTIMED, "start_time": format_time(NOW + 90)}}, 0, id="a clock set back"),
        pytest.param({"rollout": UNTIMED}, -800, id="a deadline given later: the first pod"),
        pytest.param({"rollout": UNTIMED, "stored": -600}, -600, id="or the tick"),
        pytest.param({"rollout": {**UNTIMED, "rerun_at": RERUN}, "stored": -600}, -300, id="or the re-run"),
    ],
)
def test_when_the_clock_began(changes: dict[str, Any], expected: float) -> None:
    assert began(**changes) == expected


def test_a_deadline_that_is_given_before_the_first_pod_counts_from_then() -> None:
    status = Status(current_revision=REVISION, rollout=StoredRollout())
    of = task(status=status, rollout_deadline_seconds=HOUR)
    assert began_at(of, REVISION, NOW + 0.5, AnnotationRequests(), 0, lost=False) == NOW


@pytest.mark.parametrize(
    ("spec", "exists"),
    [({}, True), ({"suspend": True}, False), ({"schedule": "0 3 * * *"}, False)],
    ids=["a rollout", "suspended", "before the first tick"],
)
def test_when_there_is_a_deadline(spec: dict[str, Any], exists: bool) -> None:
    rollout = StoredRollout(start_time=format_time(NOW - HOUR))
    status = Status(current_revision=REVISION, rollout=rollout)
    seen = snapshot(task(status=status, rollout_deadline_seconds=HOUR, **spec), [node()])
    found = reports.decision_input(seen, AnnotationRequests()).deadline
    assert found == (Deadline(NOW - HOUR, NOW, passed=True) if exists else None)


SOLO = normalise_time(format_time(NOW - 50))


@pytest.mark.parametrize(
    ("created", "changes", "nonce", "cut"),
    [
        pytest.param(NOW - 101, {}, "", True, id="older than the rollout"),
        pytest.param(NOW - 100, {}, "", True, id="of the second in which it began"),
        pytest.param(NOW - 99, {}, "", False, id="younger"),
        pytest.param(0.0, {"rerun_nodes": {"a": SOLO}}, "", False, id="a re-run of this node"),
        pytest.param(0.0, {"rerun_nodes": {"b": SOLO}}, "", True, id="of another node"),
        pytest.param(0.0, {"rerun_nodes": {"a": SOLO}}, SOLO, True, id="that it has answered"),
        pytest.param(
            0.0, {"rerun_nodes": {"a": SOLO}, "rerun_at": SOLO}, "", True, id="a re-run of all nodes"
        ),
    ],
)
def test_of_which_nodes_a_run_is_part_of_the_rollout(
    created: float, changes: dict[str, Any], nonce: str, cut: bool
) -> None:
    deadline = Deadline(NOW - 100, NOW - 40, passed=True)
    inputs = msgspec.structs.replace(decision_input(), deadline=deadline, **changes)
    assert binds(inputs, node("a", created=created), nonce) is cut


OLD, RERUN_NOW = (normalise_time(format_time(NOW - ago)) for ago in (101, 0))


@pytest.mark.parametrize(
    ("asked", "nonce", "rerun_at", "cut"),
    [
        pytest.param(SOLO, SOLO, "", False, id="asked for since the clock began"),
        pytest.param(OLD, OLD, "", True, id="before: a tick has come since"),
        pytest.param(SOLO, SOLO, SOLO, True, id="a re-run of all nodes"),
        pytest.param("", SOLO, SOLO, True, id="of all nodes alone"),
        pytest.param(SOLO, RERUN_NOW, "", True, id="a later one of all nodes, whose annotation has gone"),
    ],
)
def test_which_retries_are_of_a_re_run_of_one_node(asked: str, nonce: str, rerun_at: str, cut: bool) -> None:
    inputs = msgspec.structs.replace(
        decision_input(),
        deadline=Deadline(NOW - 100, NOW - 40, passed=True),
        rerun_nodes={"a": asked} if asked else {},
        rerun_at=rerun_at,
    )
    known = entry(node("a"), "Retry", nonce=nonce, started_at=int(NOW - 45))
    assert is_cut_off(inputs, node("a"), known, "Retry") is cut


def test_cached_decisions_do_not_outlive_the_deadline() -> None:
    rollout, nodes, cache = (
        StoredRollout(start_time=format_time(NOW)),
        [node("a"), node("b")],
        DecisionCache(),
    )
    status = Status(current_revision=REVISION, rollout=rollout)
    of = task(status=status, parallelism=1, rollout_deadline_seconds=HOUR)
    seen = snapshot(of, nodes, decision_cache=cache)
    found = [plan(msgspec.structs.replace(seen, now=NOW + at)) for at in (0, HOUR)]
    assert [len(one.launch.starts) for one in found] == [1, 0]
    assert len(found[1].nodes.overdue) == 2


def test_the_message_of_a_cut_off_node_has_its_last_failure() -> None:
    failed = entry(node("a"), "Retry", attempts=1, reason="Error", message="exited 3")
    assert cut_off(failed).message == "Error: exited 3"
    assert cut_off(entry(node("a"), "Succeeded", reason="x")).message == ""


def test_a_retry_of_a_node_that_has_joined_keeps_the_rollout_moving() -> None:
    """Beside nodes that wait and a blocked one, all cut off."""
    nodes = [node("old"), node("away", ready=False, ready_since=NOW - 60), node("new", created=NOW - 60)]
    entries = {"new": entry(nodes[2], "Retry", attempts=1, finished_at=int(NOW - 1), started_at=int(NOW - 9))}
    rollout = StoredRollout(start_time=format_time(NOW - HOUR - 90))
    status = Status(current_revision=REVISION, rollout=rollout)
    seen = snapshot(task(status=status, rollout_deadline_seconds=HOUR), nodes, entries=entries)
    found = {one.type: one for one in status_of(seen, plan(seen), Outcome(shards=1)).conditions}
    assert "2 node(s) start nothing more, first away" in found["Ready"].message
    assert (found["Reconciling"].status, "Stalled" in found) == ("True", False)


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
    before = len(made.statuses)
    assert made.look("2026-11-24T03:00:00Z") == ["a NewNode", "b NewNode"]
    reasons = {one.reason for status in made.statuses[before:] for one in status.conditions}
    assert "RolloutDeadlineExceeded" not in reasons, "the deadline of the tick before is no longer one"


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
