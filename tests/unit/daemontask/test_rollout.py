"""Which failures count for failurePolicy, and when a rollout is finished."""

from typing import Any

import msgspec
import pytest

from caretaker.api import conditions as c
from caretaker.api import names
from caretaker.api.daemontask import DaemonTask, FailurePolicy, Status
from caretaker.api.objects import Node, Pod
from caretaker.api.times import format_time
from caretaker.daemontask.decision import WriteRefusal
from caretaker.daemontask.events import transitions
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.plan import plan
from caretaker.daemontask.refused_pods import RefusedPod
from caretaker.daemontask.rollout import waiting_since
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from unit.daemontask.build import (
    NOW,
    REVISION,
    TEMPLATE,
    entry,
    node,
    planned,
    pod,
    snapshot,
    started,
    succeeded,
    task,
)

A, B, C = node("a"), node("b"), node("c")
LOST = node("a", ready=False, ready_since=NOW - 2000)
KNOWN = Status(current_revision=REVISION)
SPEC: dict[str, Any] = {"parallelism": 1, "failure_policy": FailurePolicy(0, "Pause")}
INTENT = entry(
    LOST, "Failed", intent="token", reason="OutcomeUnknown", finished_at=0, started_at=int(NOW - 2100)
)
ONCE: dict[str, Any] = {"run_guarantee": "AtMostOnce", "backoff_limit": 0}
EARLIER, LATER = format_time(NOW - 2500), format_time(NOW - 10)


def on_lost(seq: int = 1, **changes: Any) -> Pod:
    return pod(LOST, seq, **{"created": NOW - 2100, **changes})


def at(ago: float) -> int:
    return int(NOW - ago)


@pytest.mark.parametrize(
    ("spec", "pods", "entries"),
    [
        pytest.param({}, [on_lost()], {}, id="during its run"),
        pytest.param(ONCE, [on_lost()], {"a": INTENT}, id="during its run, made at most once"),
        pytest.param(
            {}, [on_lost(deletion=NOW - 1900, deletion_asked=NOW - 1930)], {}, id="while its Pod is deleted"
        ),
        pytest.param(
            {"annotations": {names.RERUN_AT: EARLIER, names.RESUME_AT: format_time(NOW - 80000)}},
            [on_lost(2, marks={names.POD_NONCE: "1970-01-12T13:05:00.000000+00:00"})],
            {"a": entry(LOST, "Failed", nonce="1970", run_key="older", attempts=1, finished_at=at(90000))},
            id="after a failure that resume-at has excused",
        ),
        pytest.param(
            {"min_success_seconds": 60},
            [],
            {"a": entry(LOST, finished_at=at(2030))},
            id="within its minSuccessSeconds",
        ),
    ],
)
def test_a_node_that_is_lost_lets_no_other_begin(
    spec: dict[str, Any], pods: list[Pod], entries: dict[str, Entry]
) -> None:
    of = task(status=KNOWN, **SPEC, **spec)
    assert started(planned(of, [LOST, B], pods, entries)) == []
    well = node("a", ready=True, ready_since=NOW - 7200)
    assert started(planned(of, [well, B], [], {"a": entry(well)})), "once it is Ready again"


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        pytest.param({"annotations": {names.RERUN_AT: LATER}}, {}, id="an earlier re-run"),
        pytest.param(
            {"schedule": "0 3 * * *"}, {"last_schedule_time": "1970-01-12T03:00:00Z"}, id="an earlier tick"
        ),
    ],
)
def test_a_node_that_was_lost_in_an_earlier_rollout_holds_up_nothing(
    spec: dict[str, Any], status: dict[str, Any]
) -> None:
    marks = {names.POD_SCHEDULED_AT: "1970-01-11T03:00:00Z"} if "schedule" in spec else {}
    of = task(status=msgspec.structs.replace(KNOWN, **status), **SPEC, **spec)
    assert started(planned(of, [LOST, B], [on_lost(marks=marks)])) == ["b"]


def test_resume_at_excuses_a_node_whatever_its_retries_do_and_none_that_fails_later() -> None:
    of = task(
        status=KNOWN, annotations={names.RESUME_AT: format_time(NOW - 100)}, **{**SPEC, "parallelism": 5}
    )
    first = entry(A, "Retry", attempts=2, failing_since=at(300), finished_at=at(5))
    assert started(planned(of, [A, B], [], {"a": first})) == ["b"]
    later = msgspec.structs.replace(first, failing_since=at(50))
    assert started(planned(of, [A, B], [], {"a": later})) == []
    soaking = node("a", ready=False, ready_since=NOW - 10)
    of = msgspec.structs.replace(of, spec=msgspec.structs.replace(of.spec, min_success_seconds=60))
    assert started(planned(of, [soaking, B], [], {"a": entry(soaking, finished_at=at(130))})) == ["b"]
    near = entry(soaking, finished_at=at(30))
    assert started(planned(of, [soaking, B], [], {"a": near})) == [], "lost after resume-at"


FINISHED = f"{REVISION}/-/-"


@pytest.mark.parametrize(
    ("finished", "spec", "covers"),
    [
        pytest.param(FINISHED, {}, True, id="the same"),
        pytest.param("other/-/-", {}, False, id="another revision"),
        pytest.param(f"{REVISION}/-/1970-01-12T12:23:20Z", {}, True, id="a rerun-at that was removed"),
        pytest.param(f"{REVISION}/1970-01-12T03:00:00Z/-", {}, True, id="a schedule that was removed"),
        pytest.param(f"{REVISION}/1970-01-13T13:46:40Z/-", {}, True, id="a tick of a clock a day ahead"),
        pytest.param(f"{REVISION}/1970-01-13T13:46:41Z/-", {}, False, id="a tick of a wrong clock"),
        pytest.param(FINISHED, {"annotations": {names.RERUN_AT: EARLIER}}, False, id="a re-run since"),
        pytest.param("", {}, False, id="none"),
        pytest.param("nonsense", {}, False, id="edited by hand"),
    ],
)
def test_a_finished_rollout_answers_for_what_no_node_runs_again_for(
    finished: str, spec: dict[str, Any], covers: bool
) -> None:
    of = task(status=msgspec.structs.replace(KNOWN, finished_rollout=finished), **SPEC, **spec)
    failed = entry(B, "Failed", attempts=4, finished_at=at(100))
    if "annotations" in spec:
        failed = msgspec.structs.replace(failed, nonce="1970-01-12T13:05:00.000000+00:00")
    result = planned(of, [B, C], [], {"b": failed})
    assert (result.hold == "Paused", started(result)) == ((False, ["c"]) if covers else (True, []))


def away(name: str, since: float, **changes: Any) -> Node:
    return node(name, **{"ready": False, "ready_since": NOW - since, **changes})


@pytest.mark.parametrize(
    ("nodes", "pods", "finished"),
    [
        pytest.param([A], [], True, id="all have succeeded"),
        pytest.param([A, B], [], False, id="one is to run"),
        pytest.param([A, B], [pod(B)], False, id="one runs"),
        pytest.param([A, away("b", 5)], [], False, id="one still boots"),
        pytest.param([A, away("b", 1801)], [], True, id="one has been NotReady for long"),
        pytest.param([A, node("b", unschedulable=True)], [], True, id="one is cordoned"),
        pytest.param(
            [A, B], [pod(B, node_name="", phase="Pending", unschedulable="full")], False, id="no room"
        ),
        pytest.param([A, B], [pod(B, deletion=NOW + 30)], False, id="a Pod is on its way out"),
    ],
)
def test_when_a_rollout_is_finished(nodes: list[Node], pods: list[Pod], finished: bool) -> None:
    since = msgspec.structs.replace(KNOWN, start_time=format_time(NOW - 7200))
    seen = snapshot(task(status=since, failure_policy=SPEC["failure_policy"]), nodes, pods, {"a": entry(A)})
    assert (status_of(seen, plan(seen), Outcome()).finished_rollout == FINISHED) == finished


@pytest.mark.parametrize(("ago", "finished"), [(1799, ""), (1800, FINISHED)])
def test_a_rollout_is_finished_without_a_node_that_has_been_rejected_for_long(
    ago: int, finished: str
) -> None:
    since = msgspec.structs.replace(KNOWN, start_time=format_time(NOW - 7200))
    row = entry(B, "Retry", rejections=9, started_at=at(ago), finished_at=at(5), reason="OutOfcpu")
    seen = snapshot(task(status=since, **SPEC), [A, B], entries={"a": entry(A), "b": row})
    assert status_of(seen, plan(seen), Outcome()).finished_rollout == finished


def test_a_rollout_that_is_not_on_record_or_was_rolled_back_is_not_finished() -> None:
    seen = snapshot(task(status=KNOWN), [A], [succeeded(A)])
    refused = Outcome(refusal=WriteRefusal("LedgerWriteRefused", "quota"))
    assert status_of(seen, plan(seen), refused).finished_rollout == ""
    other = msgspec.structs.replace(KNOWN, finished_rollout="other/-/-")
    seen = snapshot(task(status=other), [A, B], entries={"a": entry(A)})
    assert status_of(seen, plan(seen), Outcome()).finished_rollout == "", "the other one is to be made again"


def test_a_retry_whose_pod_is_given_up_fails_nothing() -> None:
    """A cordon, or no room until the progress deadline: the Pod is deleted, and no node is lost for that."""
    failing = {"a": entry(A, "Retry", attempts=1, finished_at=at(2000), failing_since=at(2000))}
    waits = pod(A, 2, node_name="", phase="Pending", created=NOW - 1900, unschedulable="full")
    for action in ("Pause", "Fail"):
        of = task(status=KNOWN, failure_policy=FailurePolicy(0, action))  # type: ignore[arg-type]
        assert planned(of, [A, B], [waits], failing).hold == ""
        cordoned = node("a", unschedulable=True)
        assert planned(of, [cordoned, B], [waits], failing).hold == ""


def test_a_failing_node_that_is_refused_for_long_counts_as_failed() -> None:
    of = task(status=KNOWN, **{**SPEC, "parallelism": 5})
    failing = {"a": entry(A, "Retry", attempts=1, finished_at=at(3000), failing_since=at(3000))}
    for ago, hold in ((1799, ""), (1800, "Paused")):
        refused = {A.uid: RefusedPod("no", NOW - ago, NOW + 100)}
        assert planned(of, [A, B], [], failing, refused=refused).hold == hold
        row = msgspec.structs.replace(failing["a"], rejections=1, started_at=at(ago), finished_at=at(5))
        assert planned(of, [A, B], [], {"a": row}).hold == hold, "rejected by its kubelet"


def test_a_failing_node_that_is_not_ready_counts_as_failed_once_it_has_lost_its_slot() -> None:
    of, left = task(status=KNOWN, **{**SPEC, "parallelism": 5}), away("a", 100)
    for ago, hold in ((1799, ""), (1800, "Paused")):
        failing = entry(left, "Retry", attempts=1, finished_at=at(ago), failing_since=at(ago))
        assert planned(of, [left, B], [], {"a": failing}).hold == hold


def test_a_lost_node_within_max_failed_nodes_lets_the_rollout_finish() -> None:
    spec: dict[str, Any] = {"failure_policy": FailurePolicy(1, "Pause"), "min_success_seconds": 60}
    status = msgspec.structs.replace(KNOWN, start_time=format_time(NOW - 9000))
    seen = snapshot(
        task(status=status, **spec),
        [LOST, B],
        entries={"a": entry(LOST, finished_at=at(2030)), "b": entry(B, finished_at=at(2030))},
    )
    assert status_of(seen, plan(seen), Outcome()).finished_rollout == FINISHED


def test_a_gated_rollout_whose_every_slot_is_stuck_is_stalled() -> None:
    of = task(status=KNOWN, **{**SPEC, "progress_deadline_seconds": 30})
    failing = {"a": entry(A, "Retry", attempts=1, finished_at=at(500), failing_since=at(500))}
    stuck = pod(A, 2, phase="Pending", waiting="ErrImagePull")
    seen = snapshot(of, [A, B], [stuck], failing)
    found = {c.type: c.reason for c in status_of(seen, plan(seen), Outcome()).conditions}
    assert found["Stalled"] == "ProgressDeadlineExceeded"


# ---------------------------------------------------------------- when a rollout began

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
