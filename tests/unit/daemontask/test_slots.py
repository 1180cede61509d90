"""Who holds a slot, who gets the next one, and which failures stop a rollout: one case each."""

from typing import Any

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.daemontask import Budget, FailurePolicy, Slot, SlotStatus, Status
from caretaker.api.objects import Pod
from caretaker.api.times import format_time
from caretaker.daemontask.annotation_requests import AnnotationRequests
from caretaker.daemontask.forecast import forecast
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.plan import BATCH, Plan, keep_slots, plan
from caretaker.daemontask.refused_pods import ROW, RefusedPod, RefusedPods
from caretaker.daemontask.reports import decision_input
from caretaker.daemontask.slots import SlotAssignment, share_out, still_free
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from unit.daemontask.build import NOW, REVISION, entry, node, pod, snapshot, started, task

PAUSE, FAIL = FailurePolicy(0, "Pause"), FailurePolicy(0, "Fail")
A, B, C = node("a"), node("b"), node("c")
ROLLING = Status(current_revision=REVISION, start_time=format_time(NOW - 9000))
DEADLINE = 1800


def seen(nodes: list[Any], pods: list[Pod] | None = None, *, of: dict[str, Entry], **spec: Any) -> Snapshot:
    status, marks = spec.pop("status", ROLLING), spec.pop("annotations", None)
    return snapshot(task(status=status, annotations=marks, **spec), nodes, pods, of)


def retry(of: Any, ago: float = 15, **changes: Any) -> Entry:
    return entry(of, "Retry", **{"attempts": 1, "finished_at": int(NOW - ago), "reason": "Error", **changes})


def gave_up(of: Any, **changes: Any) -> Entry:
    return entry(of, "Failed", **{"attempts": 4, "finished_at": int(NOW - 60), "reason": "Error", **changes})


def holders(of: Plan) -> list[str]:
    return sorted(report.node.name for report in of.nodes.holders)


# ---------------------------------------------------------------- slots


def test_where_a_slot_was_taken_away_a_retry_that_is_due_goes_before_one_in_backoff() -> None:
    found = plan(seen([A, B], of={"a": retry(A, ago=1), "b": retry(B)}, parallelism=1))
    assert started(found) == ["b"]


def test_a_pass_starts_no_more_than_its_batch_retries_included() -> None:
    nodes = [node(f"n{i:03}") for i in range(BATCH + 1)]
    found = plan(seen(nodes, of={"n000": retry(nodes[0])}, parallelism=BATCH + 10))
    assert len(found.launch.starts) == BATCH
    assert found.more


def test_a_slot_whose_pod_was_not_deleted_is_missing_to_a_first_run_and_not_to_a_retry() -> None:
    late = pod(B, phase="Pending", node_name="", created=NOW - DEADLINE)
    found = plan(seen([A, B, C], [late], of={"a": retry(A)}, parallelism=2))
    assert started(found) == ["a", "c"]
    found = keep_slots(found, gone=())
    assert (started(found), found.launch.queued) == (["a"], 1)


@pytest.mark.parametrize("rejected", [A, B, C])
def test_a_node_whose_kubelet_rejects_comes_behind_the_others_and_holds_no_slot(rejected: Any) -> None:
    last = retry(rejected, attempts=0, rejections=1, reason="OutOfcpu")
    found = plan(seen([A, B, C], of={rejected.name: last}, parallelism=2))
    assert holders(found) == []
    assert started(found) == sorted({"a", "b", "c"} - {rejected.name})


@pytest.mark.parametrize(("width", "starts", "short"), [(2, 1, False), (1, 0, True)])
def test_a_retry_waits_only_while_others_run_in_all_slots_that_are_left(
    width: int, starts: int, short: bool
) -> None:
    of = seen([A, B], [pod(B)], of={"a": retry(A)})
    held = plan(of).nodes.holders
    shares = share_out(
        decision_input(of, AnnotationRequests()),
        width,
        held,
        [report for report in held if report.decision.start],
        BATCH,
    )
    assert (len(shares.starts), shares.short) == (starts, short)


@pytest.mark.parametrize(
    ("free", "held", "go_on"),
    [(3, 0, (2, 1)), (3, 2, (2, 1)), (3, 3, (2, 0)), (0, 1, (1, 0)), (-1, 1, (0, 0)), (-1, 5, (0, 0))],
)
def test_what_holds_a_slot_on_takes_it_from_first_runs_before_retries(
    free: int, held: int, go_on: tuple[int, int]
) -> None:
    """Of two retries and a first run."""
    assert still_free(SlotAssignment(own=2, free=free, idle=2), "aba", held) == go_on


def test_tasks_do_not_all_begin_on_the_same_node() -> None:
    nodes, first = [node(f"n{i}") for i in range(9)], set[str]()
    for uid in "abcdef":
        of = task(parallelism=1)
        of = msgspec.structs.replace(of, metadata=msgspec.structs.replace(of.metadata, uid=uid))
        first.update(started(plan(snapshot(of, nodes))))
    assert len(first) > 1


def test_a_budget_is_named_only_where_it_keeps_a_node_waiting() -> None:
    two = (Budget(2),)
    assert plan(seen([A, B], of={}, budgets=two, parallelism=5)).launch.budget is None
    waiting = plan(seen([A, B, C], of={}, budgets=two)).launch.budget
    assert waiting is not None
    assert waiting.nodes == 2
    assert plan(seen([A, B, C], of={}, budgets=two, parallelism=2)).launch.budget is None


def test_nothing_is_started_after_a_window_opens_that_limits_nothing_yet() -> None:
    closed = (Budget(0, "0 9 * * *", "8h"),)  # NOW is 13:46:40
    found = plan(seen([A], of={}, budgets=closed, status=ROLLING))
    assert found.width == 0
    ahead = (Budget(0, "0 14 * * *", "1h"),)
    found = plan(seen([A], of={}, budgets=ahead))
    assert started(found) == ["a"]
    assert found.launch.boundary == NOW + 800


def test_a_schedule_that_cannot_be_read_does_not_keep_runs_from_being_recorded() -> None:
    unreadable = seen([A], of={}, budgets=(Budget(0, "never", "1h"),))
    unreadable = msgspec.structs.replace(unreadable, invalid="spec.budgets[0].schedule: never")
    assert plan(unreadable).hold == forecast(unreadable).plan.hold == "InvalidSpec"


@pytest.mark.parametrize(
    ("attempts", "ago", "holds"), [(1, 100, True), (1, DEADLINE, False), (0, 100, False)]
)
def test_a_cordoned_node_keeps_the_slot_of_a_failed_attempt_until_the_progress_deadline(
    attempts: int, ago: float, holds: bool
) -> None:
    closed = node("a", unschedulable=True)
    last = retry(closed, ago, attempts=attempts, disruptions=1)
    found = plan(seen([closed, B], of={"a": last}, parallelism=1))
    assert holders(found) == (["a"] if holds else [])
    assert started(found) == ([] if holds else ["b"])
    if holds:
        assert found.wake == NOW - ago + DEADLINE


def test_a_disrupted_node_that_waits_for_its_retry_keeps_its_slot() -> None:
    last = retry(A, ago=1, attempts=0, disruptions=1)
    found = plan(seen([A, B], of={"a": last}, parallelism=1))
    assert (holders(found), started(found)) == (["a"], [])
    assert not found.nodes.failing


@pytest.mark.parametrize(
    ("ago", "held", "lost"),
    [(100, True, 0.0), (DEADLINE, False, NOW - 90), (DEADLINE + 100, False, 0.0)],
    ids=["before its deadline", "at its deadline", "NotReady only after its deadline"],
)
def test_a_disrupted_node_that_is_not_ready_holds_its_slot_until_the_deadline_and_is_lost_then(
    ago: float, held: bool, lost: float
) -> None:
    unready = node("a", ready=False, ready_since=NOW - 90)
    found = plan(seen([unready, B], of={"a": retry(unready, ago, attempts=0, disruptions=1)}, parallelism=1))
    assert (holders(found), started(found)) == ((["a"], []) if held else ([], ["b"]))
    assert [report.decision.failing for report in found.nodes.failing] == [lost][: bool(lost)]
    if held:
        assert found.wake == NOW - ago + DEADLINE


@pytest.mark.parametrize("attempts", [0, 1])
@pytest.mark.parametrize("ago", [100, DEADLINE])
def test_a_node_whose_run_ended_before_its_kubelet_rejects_holds_its_slot_until_the_deadline(
    attempts: int, ago: float
) -> None:
    last = retry(A, ago=5, attempts=attempts, disruptions=1 - attempts)
    last = msgspec.structs.replace(last, rejections=1, reason="OutOfcpu", started_at=int(NOW - ago))
    found = plan(seen([A, B], of={"a": last}, parallelism=1))
    held = ago < DEADLINE
    assert (holders(found), started(found)) == ((["a"], []) if held else ([], ["b"]))
    assert bool(found.nodes.failing) == (bool(attempts) or not held)
    late = msgspec.structs.replace(last, finished_at=int(NOW - 60))  # its next attempt is due
    found = plan(seen([A, B], of={"a": late}, parallelism=1, budgets=(Budget(0),)))
    assert (started(found), found.wake) == ([], NOW - ago + DEADLINE if held else 0.0)


@pytest.mark.parametrize("blocked", [{"ready": False, "ready_since": NOW - 10}, {"unschedulable": True}])
@pytest.mark.parametrize("attempts", [0, 1])
@pytest.mark.parametrize("ago", [100, DEADLINE])
def test_a_rejected_node_that_is_blocked_then_gets_no_other_deadline(
    blocked: dict[str, Any], attempts: int, ago: float
) -> None:
    away = node("a", **blocked)
    last = retry(away, ago=60, attempts=attempts, disruptions=1 - attempts)
    last = msgspec.structs.replace(last, rejections=3, reason="OutOfcpu", started_at=int(NOW - ago))
    found = plan(seen([away, B], of={"a": last}, parallelism=1))
    held = ago < DEADLINE
    assert (holders(found), started(found)) == ((["a"], []) if held else ([], ["b"]))
    assert bool(found.nodes.failing) == (bool(attempts) or not held)


def test_a_pod_that_is_being_deleted_gives_its_slot_up_when_its_node_is_lost() -> None:
    unready = node("a", ready=False, ready_since=NOW - 100)
    going = pod(unready, created=NOW - 500, deletion=NOW - 50, deletion_asked=NOW - 80)
    before = seen([unready, B], [going], of={}, parallelism=1)
    found = plan(before)
    assert (holders(found), started(found)) == (["a"], [])
    assert found.wake == NOW - 100 + DEADLINE
    found = plan(msgspec.structs.replace(before, now=found.wake))
    assert (holders(found), started(found)) == ([], ["b"])


def test_a_pod_that_makes_way_for_a_mended_template_keeps_its_slot_until_it_is_gone() -> None:
    stuck = pod(A, revision="old", phase="Pending", waiting="ErrImagePull")
    found = plan(seen([A, B], [stuck], of={}, parallelism=1))
    assert (found.deletes, started(found)) == ((stuck,), [])
    unplaced = pod(A, revision="old", phase="Pending", node_name="", unschedulable="no room")
    found = plan(seen([A, B], [unplaced], of={}, parallelism=1))
    assert (found.deletes, started(found)) == ((unplaced,), ["b"])


@pytest.mark.parametrize("ago", [100, DEADLINE])
def test_the_pod_of_a_predecessor_holds_a_slot_until_the_node_is_lost(ago: float) -> None:
    again = node("a", uid="another", ready=False, ready_since=NOW - ago)
    left = pod(A, created=NOW - 9000, deletion=NOW - 50, deletion_asked=NOW - 80)
    found = plan(seen([again, B], [left], of={}, parallelism=1))
    assert started(found) == ([] if ago < DEADLINE else ["b"])


def test_the_pod_of_an_earlier_task_of_the_same_name_holds_no_slot_of_this_one() -> None:
    other = msgspec.structs.replace(pod(A), owner_uid="earlier")
    of = msgspec.structs.replace(seen([A, B], of={}, parallelism=1), namesakes={A.uid: other})
    assert started(plan(of)) == ["b"]


def test_a_node_that_is_not_ready_after_its_success_keeps_its_slot_for_the_progress_deadline_at_most() -> (
    None
):
    lost = node("a", ready=False, ready_since=NOW - 50)
    of = seen(
        [lost, B], of={"a": entry(lost, finished_at=int(NOW - 60))}, parallelism=1, min_success_seconds=60
    )
    found = plan(of)
    assert (holders(found), found.wake) == (["a"], NOW + DEADLINE)
    assert started(plan(msgspec.structs.replace(of, now=found.wake))) == ["b"]


def test_a_pass_that_starts_all_that_wait_asks_for_no_other() -> None:
    nodes = [node(f"n{i:03}") for i in range(BATCH)]
    found = plan(seen(nodes, of={}))
    assert (len(found.launch.starts), found.more, found.launch.queued) == (BATCH, False, 0)
    orphans = [pod(one, phase="Pending", node_name="") for one in nodes]
    found = plan(seen([], orphans, of={}))
    assert (len(found.deletes), found.more) == (BATCH, False)


def test_a_pod_that_does_not_start_is_looked_at_when_it_is_late() -> None:
    waits = pod(A, phase="Pending", waiting="ErrImagePull", created=NOW - 100)
    assert plan(seen([A], [waits], of={})).wake == NOW - 100 + DEADLINE


def ready_of(of: Snapshot) -> str:
    status = status_of(of, plan(of), Outcome(shards=1))
    return next(c.reason for c in status.conditions if c.type == "Ready")


@pytest.mark.parametrize("second", ["an image", "a deletion", "runs", "NotReady", "is watched"])
def test_a_rollout_is_stuck_once_every_holder_of_a_slot_is(second: str) -> None:
    """Of two; the first waits for its image."""
    spec: dict[str, Any] = {"parallelism": 2, "progress_deadline_seconds": 60, "min_success_seconds": 900}
    image: dict[str, Any] = {"phase": "Pending", "waiting": "ErrImagePull", "created": NOW - 60}
    one, entries, pods = B, dict[str, Entry](), [pod(A, **image)]
    if second == "an image":
        pods.append(pod(B, **image))
    elif second == "a deletion":
        pods.append(pod(B, deletion=NOW - 60, deletion_asked=NOW - 90, created=NOW - 90))
    elif second == "runs":
        pods.append(pod(B, created=NOW - 60))
    elif second == "NotReady":
        one = node("b", ready=False, ready_since=NOW - 70)
        pods.append(pod(one, created=NOW - 30))
    else:
        entries["b"] = entry(B, finished_at=int(NOW - 70))
    stuck = second in ("an image", "a deletion")
    of = seen([A, one, C], pods, of=entries, **spec)
    assert bool(plan(of).launch.jammed) is stuck
    assert ready_of(of) == ("ProgressDeadlineExceeded" if stuck else "RollingOut")


def test_a_rollout_with_a_free_slot_is_not_stuck() -> None:
    late = pod(A, phase="Pending", waiting="ErrImagePull", created=NOW - DEADLINE)
    of = seen([A, B, C], [late], of={}, parallelism=2)
    assert (len(plan(of).launch.starts), plan(of).launch.jammed) == (1, ())


def test_status_tells_until_when_a_node_that_is_not_ready_holds_its_slot() -> None:
    unready = node("a", ready=False, ready_since=NOW - 50)
    of = seen([unready, B], [pod(unready, created=NOW - 100)], of={}, parallelism=1)
    slots = status_of(of, plan(of), Outcome(shards=1)).slots
    assert slots is not None
    (holder,) = slots.holders
    assert holder == Slot("a", "NodeNotReady", format_time(NOW - 50), format_time(NOW - 50 + DEADLINE))


def test_status_names_the_node_of_a_running_pod_and_since_when_it_holds_its_slot() -> None:
    of = seen([A, B], [pod(A)], of={}, parallelism=2)
    assert status_of(of, plan(of), Outcome()).slots == SlotStatus(
        2, 1, (Slot("a", "Running", format_time(NOW - 60)),)
    )


def test_status_tells_who_holds_a_slot_and_since_when_where_that_is_known() -> None:
    stuck = pod(A, revision="old", phase="Pending", waiting="ErrImagePull")
    of = seen([A, B, C], [stuck, pod(B)], of={}, parallelism=2)
    found = status_of(of, plan(of), Outcome(shards=1)).slots
    assert found is not None
    assert found.holders == (Slot("a", "TemplateChanged"), Slot("b", "Running", format_time(NOW - 60)))


# ---------------------------------------------------------------- failures that count


@pytest.mark.parametrize(
    ("since", "counts"), [(NOW - 100, True), (NOW - 60, True), (NOW - 59, False)], ids=["in", "at", "after"]
)
def test_a_node_fails_only_if_it_went_not_ready_within_min_success_seconds(
    since: float, counts: bool
) -> None:
    lost = node("a", ready=False, ready_since=since)
    done = entry(lost, finished_at=int(NOW - 120))
    spec: dict[str, Any] = {"parallelism": 3, "min_success_seconds": 60, "failure_policy": PAUSE}
    assert bool(plan(seen([lost, B], of={"a": done}, **spec)).nodes.failing) is counts


@pytest.mark.parametrize(("revision", "counts"), [(REVISION, True), ("old", False)])
def test_a_node_that_is_lost_during_a_run_of_this_template_counts_as_failing(
    revision: str, counts: bool
) -> None:
    lost = node("a", ready=False, ready_since=NOW - DEADLINE)
    under_way = pod(lost, revision=revision, created=NOW - 9000)
    found = plan(seen([lost, B], [under_way], of={}, parallelism=1, failure_policy=PAUSE))
    assert started(found) == ([] if counts else ["b"])


def test_a_run_that_began_on_a_node_that_was_not_ready_is_lost_no_earlier_than_its_deadline() -> None:
    unready = node("a", ready=False, ready_since=NOW - 9000)
    found = plan(seen([unready, B], [pod(unready, created=NOW - 60)], of={}, parallelism=1))
    assert (holders(found), found.wake) == (["a"], NOW - 60 + DEADLINE)


def resume(ago: float) -> dict[str, str]:
    return {names.RESUME_AT: format_time(NOW - ago)}


@pytest.mark.parametrize(
    ("policy", "marks", "starts"),
    [
        (PAUSE, {}, []),
        (PAUSE, resume(61), []),
        (PAUSE, resume(60), ["c"]),
        (FAIL, resume(1), []),
        (FailurePolicy(1, "Pause"), {}, ["c"]),
        (FailurePolicy(0, "Continue"), {}, ["c"]),
    ],
)
@pytest.mark.parametrize("last", [gave_up(A), retry(A, ago=60)], ids=["failed", "failing"])
def test_a_first_run_waits_for_the_failures_since_resume_at(
    last: Entry, policy: FailurePolicy, marks: dict[str, str], starts: list[str]
) -> None:
    found = plan(seen([A, C], of={"a": last}, failure_policy=policy, annotations=marks, parallelism=5))
    assert [name for name in started(found) if name != "a"] == starts


def test_failed_and_failing_nodes_count_together() -> None:
    spec: dict[str, Any] = {"failure_policy": FailurePolicy(1, "Pause"), "parallelism": 5}
    found = plan(seen([A, B, C], of={"a": gave_up(A), "b": retry(B)}, **spec))
    assert (found.hold, started(found), found.rollout.allowed) == ("", ["b"], 1)


@pytest.mark.parametrize("other", [{"revision": "old"}, {"nonce": "x"}, {"tick": 7}])
def test_a_failed_attempt_at_another_run_holds_nothing(other: dict[str, Any]) -> None:
    spec: dict[str, Any] = {"failure_policy": PAUSE, "parallelism": 5}
    if "nonce" in other:
        spec["annotations"], other = {names.RERUN_AT: format_time(NOW)}, {}
    if "tick" in other:
        spec |= {"schedule": "0 * * * *"}
        spec["status"] = msgspec.structs.replace(ROLLING, last_schedule_time=format_time(NOW - 2800))
    found = plan(seen([A, B], of={"a": retry(A, **other)}, **spec))
    assert not found.rollout.gated
    assert not found.nodes.failing


def test_with_rerun_on_nothing_a_failure_of_an_earlier_template_stands_and_holds_nothing() -> None:
    old = gave_up(A, revision="old")
    found = plan(seen([A, B], of={"a": old}, failure_policy=PAUSE, rerun_on=(), parallelism=1))
    assert (found.nodes.counts["failed"], started(found)) == (1, ["b"])
    assert status_of(seen([A, B], of={"a": old}), found, Outcome()).failed == 1


@pytest.mark.parametrize("policy", [PAUSE, FAIL])
@pytest.mark.parametrize(("finished", "starts"), [(f"{REVISION}/-/-", ["b"]), ("another/-/-", [])])
def test_failures_after_the_end_of_a_rollout_hold_nothing(
    policy: FailurePolicy, finished: str, starts: list[str]
) -> None:
    status = msgspec.structs.replace(ROLLING, finished_rollout=finished)
    spec: dict[str, Any] = {"status": status, "failure_policy": policy}
    assert started(plan(seen([A, B], of={"a": gave_up(A)}, **spec))) == starts
    failing = plan(seen([A, B, C], of={"a": retry(A)}, **spec))
    assert started(failing) == ["a"], "and nodes begin one at a time, once the one that fails has ended"


@pytest.mark.parametrize("what", ["tick", "re-run"])
def test_each_tick_and_each_re_run_of_all_is_a_rollout_of_its_own(what: str) -> None:
    status = msgspec.structs.replace(ROLLING, finished_rollout=f"{REVISION}/-/-")
    spec: dict[str, Any] = {"failure_policy": PAUSE, "parallelism": 5}
    if what == "tick":
        at = NOW - 2800
        status = msgspec.structs.replace(status, last_schedule_time=format_time(at))
        spec |= {"schedule": "0 * * * *"}
        last = gave_up(A, tick=int(at))
    else:
        marks = {names.RERUN_AT: format_time(NOW - 3000)}
        spec["annotations"] = marks
        (start,) = plan(seen([A], of={}, annotations=marks)).launch.starts
        last = gave_up(A, nonce=start.nonce)
    found = plan(seen([A, B], of={"a": last}, status=status, **spec))
    assert (found.nodes.counts["failed"], started(found)) == (1, [])


def test_a_failing_node_that_is_no_longer_selected_holds_nothing() -> None:
    gone = node("a", labels={"kubernetes.io/os": "windows"})
    found = plan(seen([gone, B], of={"a": retry(gone)}, failure_policy=PAUSE))
    assert started(found) == ["b"]


def test_while_failures_gate_the_rollout_no_run_is_replaced() -> None:
    busy = pod(B, revision="old")
    spec: dict[str, Any] = {"failure_policy": PAUSE, "concurrency_policy": "Replace", "parallelism": 9}
    gated = plan(seen([A, B], [busy], of={"a": retry(A)}, **spec))
    assert (gated.deletes, gated.launch.outdated, started(gated)) == ((), 1, ["a"])
    assert plan(seen([A, B], [busy], of={}, **spec)).deletes == (busy,)


# ---------------------------------------------------------------- refusals


def test_a_refused_node_waits_for_its_own_backoff_and_for_that_of_its_run() -> None:
    of = seen([A, B], of={"a": retry(A, ago=1)}, parallelism=2)
    until = {A.uid: RefusedPod("no", NOW - 9, NOW + 3), B.uid: RefusedPod("no", NOW - 9, NOW + 5)}
    found = plan(msgspec.structs.replace(of, refused=until))
    assert (started(found), found.wake) == ([], NOW + 5)
    found = plan(msgspec.structs.replace(of, refused=until, now=NOW + 5))
    assert (started(found), found.wake) == (["b"], NOW + 9)


@pytest.mark.parametrize(("until", "starts"), [(NOW + 5, []), (NOW, ["a"])])
def test_a_refused_node_that_rebooted_while_it_was_watched_is_tried_in_its_own_slot(
    until: float, starts: list[str]
) -> None:
    """With parallelism 1 it holds the only slot."""
    of = task(parallelism=1, min_success_seconds=600, rerun_on=("TemplateChange", "NodeReboot"))
    done = {"a": entry(A, finished_at=int(NOW - 60))}
    refused = {A.uid: RefusedPod("no", NOW - 9, until)}
    rebooted = msgspec.structs.replace(A, boot_id="another")
    found = plan(snapshot(of, [rebooted, B], [], done, refused=refused))
    assert started(found) == starts
    assert [report.node.name for report in found.nodes.holders] == ["a"]


@pytest.mark.parametrize(("until", "starts", "wake"), [(NOW + 5, 0, NOW + 5), (NOW, 1, 0.0)])
def test_while_all_pods_are_refused_nothing_starts_and_then_one(
    until: float, starts: int, wake: float
) -> None:
    found = plan(msgspec.structs.replace(seen([A, B], of={}), refused_until=until))
    assert (len(found.launch.starts), found.launch.queued, found.wake) == (starts, 2 - starts, wake)


def test_nodes_that_are_gone_count_in_no_row() -> None:
    refused_pods = RefusedPods()
    for number in range(ROW - 1):
        refused_pods.add(str(number), "no", 0.0)
    refused_pods.forget("0")
    assert "0" not in refused_pods.by_node
    assert not refused_pods.add("last", "no", 0.0)


def test_a_node_that_gets_its_pod_is_refused_no_more_and_releases_no_other() -> None:
    refused_pods = RefusedPods()
    refused_pods.add("a", "no", 0.0)
    refused_pods.add("b", "no", 0.0)
    assert not refused_pods.created("a")
    assert set(refused_pods.by_node) == {"b"}


def test_a_node_whose_pod_was_given_up_unplaced_holds_no_slot_for_its_retry() -> None:
    once = {"a": entry(A, "Retry", attempts=1, finished_at=int(NOW - 1))}
    of = snapshot(task(parallelism=1, backoff_limit=6), [A, B], [], once)
    assert started(plan(of)) == []
    assert started(plan(msgspec.structs.replace(of, unplaced=frozenset({A.uid})))) == ["b"]


def test_nor_does_one_that_got_no_pod_when_it_was_last_tried() -> None:
    """Also where its refusal is over, since another node got its Pod: that one holds the slot now."""
    once = {
        name: entry(of, "Retry", attempts=1, finished_at=int(NOW - 99)) for name, of in (("a", A), ("b", B))
    }
    of = snapshot(task(parallelism=1, backoff_limit=6), [A, B], [], once)
    made = plan(msgspec.structs.replace(of, deprioritised={A.uid: NOW - 50}))
    assert (holders(made), started(made)) == (["b"], ["b"])
