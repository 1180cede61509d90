"""What one pass decides, as tables whose ids are sentences."""

from typing import Any, ClassVar

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.daemontask import Canary, DaemonTask, FailurePolicy, LedgerStatus, Status
from caretaker.api.objects import ContainerEnd, Node
from caretaker.api.times import format_time
from caretaker.daemontask.annotation_requests import read_requests
from caretaker.daemontask.ledger import Ledger
from caretaker.daemontask.losses import wanted_run
from unit.daemontask.build import (
    NOW,
    REVISION,
    entry,
    failed,
    node,
    planned,
    pod,
    started,
    states,
    succeeded,
    taint,
    task,
)

A, B, C = node("a"), node("b"), node("c")


@pytest.mark.parametrize(
    ("spec", "nodes", "pods", "entries", "state", "start"),
    [
        pytest.param({}, [A], [], {}, "pending", ["a"], id="a node that has never run starts"),
        pytest.param({}, [A], [], {"a": entry(A)}, "succeeded", [], id="a recorded success is left alone"),
        pytest.param({}, [A], [pod(A)], {}, "active", [], id="a running pod is waited for"),
        pytest.param(
            {}, [A], [], {"a": entry(A, node_uid="other")}, "pending", ["a"], id="a replaced node runs again"
        ),
        pytest.param(
            {}, [A], [], {"a": entry(A, revision="old")}, "pending", ["a"], id="a changed template runs again"
        ),
        pytest.param(
            {"rerun_on": ()},
            [A],
            [],
            {"a": entry(A, revision="old")},
            "succeeded",
            [],
            id="a changed template runs nothing when rerunOn leaves it out",
        ),
        pytest.param(
            {},
            [A],
            [pod(A, revision="old")],
            {},
            "active",
            [],
            id="a changed template waits for the active pod of the old one",
        ),
        pytest.param(
            {},
            [A],
            [pod(A, revision="old", phase="Pending", waiting="ContainerCreating")],
            {},
            "active",
            [],
            id="a changed template waits for a pod of the old one that is about to start",
        ),
        pytest.param({"suspend": True}, [A], [], {}, "pending", [], id="a suspended task starts nothing"),
        pytest.param(
            {"suspend": True}, [A], [pod(A)], {}, "active", [], id="a suspended task lets pods finish"
        ),
        pytest.param(
            {},
            [node("a", ready=False)],
            [],
            {},
            "blocked",
            [],
            id="a node that is not Ready is blocked, not failed",
        ),
        pytest.param(
            {}, [node("a", unschedulable=True)], [], {}, "blocked", [], id="a cordoned node starts nothing"
        ),
        pytest.param(
            {},
            [node("a", unschedulable=True)],
            [pod(A)],
            {},
            "active",
            [],
            id="a cordon leaves the active pod alone",
        ),
        pytest.param(
            {},
            [node("a", unschedulable=True)],
            [],
            {"a": entry(A)},
            "succeeded",
            [],
            id="a cordon leaves the recorded success alone",
        ),
        pytest.param({}, [A], [], {"a": entry(A, "Failed")}, "failed", [], id="exhausted retries are final"),
        pytest.param(
            {},
            [A],
            [],
            {"a": entry(A, "Retry", attempts=1, finished_at=int(NOW - 3))},
            "pending",
            [],
            id="a failed attempt waits for its backoff",
        ),
        pytest.param(
            {},
            [A],
            [],
            {"a": entry(A, "Retry", attempts=1, finished_at=int(NOW - 11))},
            "pending",
            ["a"],
            id="a failed attempt is repeated after its backoff",
        ),
        pytest.param(
            {}, [A], [succeeded(A)], {}, "succeeded", [], id="a finished pod is recorded, not repeated"
        ),
        pytest.param(
            {},
            [A],
            [pod(A, deletion=NOW + 30, phase="Pending", node_name="")],
            {},
            "blocked",
            [],
            id="a pod born with a deletionTimestamp is waited for",
        ),
        pytest.param(
            {},
            [node("a", ready=False, ready_since=NOW - 60)],
            [pod(A)],
            {},
            "active",
            [],
            id="an active pod on a NotReady node stays active at first",
        ),
        pytest.param(
            {},
            [node("a", ready=False, ready_since=NOW - 1801)],
            [pod(A, created=NOW - 4000)],
            {},
            "blocked",
            [],
            id="an active pod on a NotReady node is blocked after the progress deadline",
        ),
        pytest.param(
            {},
            [A],
            [pod(A, node_name="", phase="Pending", unschedulable="0/1 nodes: Insufficient cpu")],
            {},
            "blocked",
            [],
            id="a pod that no resources fit is blocked",
        ),
        pytest.param(
            {"rerun_on": ("NodeReboot",)},
            [A],
            [],
            {"a": entry(A, boot_id="before")},
            "pending",
            ["a"],
            id="a reboot runs again where asked",
        ),
        pytest.param(
            {},
            [A],
            [],
            {"a": entry(A, boot_id="before")},
            "succeeded",
            [],
            id="a reboot runs nothing by default",
        ),
        pytest.param(
            {"rerun_on": ("NodeReboot",)},
            [A],
            [pod(A, marks={names.POD_BOOT_ID: "before"})],
            {"a": entry(A, boot_id="before")},
            "active",
            [],
            id="a reboot while a pod is active never starts a second one",
        ),
    ],
)
def test_one_node(
    spec: dict[str, Any],
    nodes: list[Node],
    pods: list[Any],
    entries: dict[str, Any],
    state: str,
    start: list[str],
) -> None:
    result = planned(task(**spec), nodes, pods, entries)
    assert states(result) == {state: 1}
    assert started(result) == start


def test_a_finished_pod_is_recorded_before_anything_else_happens_to_its_node() -> None:
    result = planned(task(), [A], [failed(A)])
    assert result.records["a"].result == "Retry"
    assert result.records["a"].pod_uid == "pod-a-1"
    assert started(result) == []


def test_the_next_name_follows_the_recorded_one() -> None:
    later = entry(A, "Retry", attempts=2, seq=7, finished_at=int(NOW - 3600))
    (start,) = planned(task(), [A], [], {"a": later}).launch.starts
    assert (start.seq, start.attempt, start.trigger) == (8, 3, "Retry")


def test_forced_rerun_applies_once_and_survives_the_removal_of_its_annotation() -> None:
    asked = "2026-01-01T00:00:00Z"
    forced = planned(task(annotations={names.RERUN_AT: asked}), [A], [], {"a": entry(A)})
    assert started(forced) == ["a"]
    done = entry(A, nonce=forced.launch.starts[0].nonce)
    for annotations in ({names.RERUN_AT: asked}, {}):
        assert started(planned(task(annotations=annotations), [A], [], {"a": done})) == []


def test_forced_rerun_of_named_nodes_leaves_the_others() -> None:
    wanted = task(annotations={names.RERUN_NODES: '{"b": "2026-01-01T00:00:00Z"}'})
    assert started(planned(wanted, [A, B], [], {"a": entry(A), "b": entry(B)})) == ["b"]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (names.RERUN_AT, "now"),
        (names.RERUN_NODES, "[1]"),
        (names.RESUME_AT, "later"),
        (names.LEDGER_DECISION, "yes"),
    ],
)
def test_an_annotation_that_cannot_be_read_is_named_and_changes_nothing(annotation: str, value: str) -> None:
    result = planned(task(annotations={annotation: value}), [A], [], {"a": entry(A)})
    assert annotation in result.requests.errors[0]
    assert started(result) == []


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        pytest.param("caretaker.dev/rerun-node", "did you mean caretaker.dev/rerun-nodes?", id="a slip"),
        pytest.param("caretaker.dev/priority", "known are caretaker.dev/rerun-at", id="something else"),
        pytest.param("example.com/rerun-at", "", id="somebody else's"),
    ],
)
def test_an_annotation_of_ours_that_means_nothing_is_told(annotation: str, told: str) -> None:
    errors = planned(task(annotations={annotation: "x"}), [A], [], {"a": entry(A)}).requests.errors
    assert len(errors) == (told != "")
    assert told in "".join(errors)


@pytest.mark.parametrize(
    ("parallelism", "active", "expected"),
    [
        pytest.param(None, 0, 10, id="without parallelism every node starts"),
        pytest.param(3, 0, 3, id="a number is a number of nodes"),
        pytest.param(3, 2, 1, id="active pods hold slots"),
        pytest.param(3, 3, 0, id="no slot, no start"),
        pytest.param("25%", 0, 3, id="a percentage rounds up"),
        pytest.param("1%", 0, 1, id="a percentage is at least one node"),
    ],
)
def test_parallelism(parallelism: int | str | None, active: int, expected: int) -> None:
    nodes = [node(f"n{i}") for i in range(10)]
    result = planned(task(parallelism=parallelism), nodes, [pod(n) for n in nodes[:active]])
    assert len(result.launch.starts) == min(expected, 10 - active)


def test_two_operators_pick_the_same_nodes() -> None:
    nodes = [node(f"n{i}") for i in range(50)]
    one = planned(task(parallelism=5), nodes)
    other = planned(task(parallelism=5), list(reversed(nodes)))
    assert started(one) == started(other)


def test_a_node_whose_pod_could_not_be_scheduled_goes_behind_the_others() -> None:
    nodes = [node(f"n{i}") for i in range(5)]
    first = planned(task(parallelism=1), nodes).launch.starts[0]
    later = planned(task(parallelism=1), nodes, deprioritised={first.node_uid: NOW})
    assert later.launch.starts[0].node_uid != first.node_uid


def test_min_success_seconds_holds_the_slot() -> None:
    fresh = entry(A, finished_at=int(NOW - 10))
    held = planned(task(parallelism=1, min_success_seconds=60), [A, B], [], {"a": fresh})
    assert started(held) == []
    assert held.wake == NOW + 50
    freed = planned(task(parallelism=1, min_success_seconds=10), [A, B], [], {"a": fresh})
    assert started(freed) == ["b"]


@pytest.mark.parametrize(
    ("policy", "hold", "task_failed", "start"),
    [
        pytest.param(FailurePolicy(action="Continue"), "", False, ["c"], id="Continue starts the others"),
        pytest.param(FailurePolicy(action="Pause"), "Paused", False, [], id="Pause starts nothing more"),
        pytest.param(
            FailurePolicy(1, "Pause"), "", False, ["c"], id="Pause allows as many as maxFailedNodes"
        ),
        pytest.param(
            FailurePolicy("34%", "Pause"), "", False, ["c"], id="a percentage of failed nodes rounds down"
        ),
        pytest.param(
            FailurePolicy("33%", "Pause"), "Paused", False, [], id="a percentage below one node allows none"
        ),
        pytest.param(FailurePolicy(action="Fail"), "NodesFailed", True, [], id="Fail gives the task up"),
    ],
)
def test_failure_policy(policy: FailurePolicy, hold: str, task_failed: bool, start: list[str]) -> None:
    result = planned(task(failure_policy=policy), [A, B, C], [], {"a": entry(A, "Failed"), "b": entry(B)})
    assert (result.hold, result.rollout.failed, started(result)) == (hold, task_failed, start)


def test_resume_at_forgives_the_failures_before_it() -> None:
    paused = task(
        failure_policy=FailurePolicy(action="Pause"), annotations={names.RESUME_AT: format_time(NOW - 60)}
    )
    old, new = int(NOW - 3600), int(NOW - 1)
    assert started(planned(paused, [A, B], [], {"a": entry(A, "Failed", finished_at=old)})) == ["b"]
    assert started(planned(paused, [A, B], [], {"a": entry(A, "Failed", finished_at=new)})) == []


@pytest.mark.parametrize("leaves", ["deleted", "replaced", "no longer selected"])
@pytest.mark.parametrize(
    ("action", "failure"),
    [
        pytest.param("Pause", {}, id="Pause"),
        pytest.param("Fail", {}, id="Fail"),
        pytest.param("Continue", {"fail_task": True}, id="FailJob"),
    ],
)
def test_a_hold_ends_when_the_failed_node_that_it_rests_on_leaves(
    action: Any, failure: dict[str, bool], leaves: str
) -> None:
    held = task(failure_policy=FailurePolicy(action=action))
    entries = {"a": entry(A, "Failed", **failure)}
    assert planned(held, [A, B], [], entries).hold
    away = {"deleted": [], "replaced": [node("a", uid="another")]}.get(leaves)
    left = away if away is not None else [node("a", labels={"type": "virtual-kubelet"})]
    result = planned(held, [*left, B], [], entries)
    assert (result.hold, result.rollout.failed) == ("", False)
    assert "b" in started(result)


def test_a_time_of_resuming_that_is_days_ahead_is_an_error_and_resumes_nothing() -> None:
    """2062 for 2026: each later template would reach every node."""
    paused = task(
        failure_policy=FailurePolicy(action="Pause"),
        annotations={names.RESUME_AT: format_time(NOW + 2 * 86400)},
    )
    result = planned(paused, [A, B], [], {"a": entry(A, "Failed")})
    assert started(result) == []
    (error,) = result.requests.errors
    assert "is more than a day ahead and is ignored; set the current time" in error


REBOOTED: dict[str, Any] = {"rerun_on": ("TemplateChange", "NodeReboot"), "min_success_seconds": 300}


@pytest.mark.parametrize("watched", [A, B], ids=["the first in order", "the other"])
def test_a_node_that_reboots_while_it_is_watched_keeps_its_slot_for_the_run_that_follows(
    watched: Any,
) -> None:
    nodes = [node(one.name, boot_id="another") if one is watched else one for one in (A, B)]
    done = {watched.name: entry(watched, finished_at=int(NOW - 60))}
    one, canary = task(parallelism=1, **REBOOTED), task(canary=Canary(1), **REBOOTED)
    for of in (one, canary):
        assert started(planned(of, nodes, [], done)) == [watched.name]
    (other,) = (one for one in (A, B) if one is not watched)
    beside = done | {other.name: entry(other, "Retry", attempts=1, finished_at=int(NOW - 1))}
    two = task(canary=Canary(2), **REBOOTED)
    assert started(planned(two, nodes, [], beside)) == [watched.name], "it has begun before the other failed"
    later = {watched.name: entry(watched, finished_at=int(NOW - 400))}
    assert not planned(one, nodes, [], later).nodes.holders, "not watched any more"


def test_a_cut_off_run_that_is_not_repeated_counts_though_its_node_reboots() -> None:
    once: dict[str, Any] = {
        "run_guarantee": "AtMostOnce",
        "rerun_on": ("TemplateChange", "NodeReboot"),
        "backoff_limit": 0,
    }
    paused = task(failure_policy=FailurePolicy(action="Pause"), **once)
    lost = {"a": entry(A, "Failed", attempts=0, finished_at=int(NOW - 9000))}
    result = planned(paused, [node("a", boot_id="another"), B], [], lost)
    assert result.rollout.gated
    assert started(result) == ["a"], "its own reboot asks for another run of it alone"


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
@pytest.mark.parametrize(
    "failed",
    [{"result": "Failed"}, {"result": "Retry", "attempts": 1}],
    ids=["for good", "with retries left"],
)
def test_a_taint_takes_no_failure_out_of_the_rollout(effect: str, failed: dict[str, Any]) -> None:
    """A run that breaks the network of its node gets it such a taint."""
    held = task(failure_policy=FailurePolicy(action="Pause"), canary=Canary(1))
    tainted = node("a", taints=(taint("node.kubernetes.io/network-unavailable", effect),))
    result = planned(held, [tainted, B], [], {"a": entry(A, **failed)})
    assert result.rollout.gated
    assert started(result) == []
    assert result.nodes.counts["excluded"] == 0
    retry = pod(tainted, 2, phase="Pending", node_name="")
    assert planned(held, [tainted, B], [retry], {"a": entry(A, **failed)}).rollout.gated, "no node has it yet"
    earlier = {"a": msgspec.structs.replace(entry(A, **failed), revision="earlier")}
    assert started(planned(held, [tainted, B], [], earlier)) == ["b"], "of another template"


@pytest.mark.parametrize(
    ("record", "added"),
    [({"revision": "old"}, "TemplateChange"), ({"boot_id": "before", "finished_at": 0}, "NodeReboot")],
    ids=["TemplateChange", "NodeReboot"],
)
def test_a_trigger_that_is_added_applies_to_what_is_recorded(record: dict[str, Any], added: str) -> None:
    entries = {"a": entry(A, **record), "b": entry(B)}
    assert started(planned(task(rerun_on=()), [A, B], [], entries)) == []
    assert started(planned(task(rerun_on=(added,)), [A, B], [], entries)) == ["a"]


def test_fail_deletes_what_is_not_placed_and_lets_the_rest_finish() -> None:
    waiting, running = pod(B, node_name="", phase="Pending"), pod(C)
    result = planned(
        task(failure_policy=FailurePolicy(action="Fail")),
        [A, B, C],
        [waiting, running],
        {"a": entry(A, "Failed")},
    )
    assert [p.uid for p in result.deletes] == [waiting.uid]


def test_a_node_that_left_takes_its_slot_along() -> None:
    gone = pod(node("gone"))
    assert started(planned(task(parallelism=1), [A], [gone])) == ["a"]


def test_unbound_pods_of_nodes_that_are_gone_are_deleted_and_bound_ones_left() -> None:
    unbound = pod(node("gone"), node_name="", phase="Pending")
    bound = pod(node("gone2"))
    assert [p.uid for p in planned(task(), [A], [pod(A), unbound, bound]).deletes] == [unbound.uid]


@pytest.mark.parametrize("left", [pod, succeeded, failed], ids=["running", "succeeded", "failed"])
def test_pods_of_a_node_that_was_replaced_are_deleted_since_nobody_else_would(left: Any) -> None:
    of_the_old_one = left(node("a", uid="uid-of-the-old-one"))
    result = planned(task(), [A], [of_the_old_one], {"a": entry(A)})
    assert [p.uid for p in result.deletes] == [of_the_old_one.uid]
    assert states(result) == {"succeeded": 1}


def test_the_pod_of_a_replaced_node_does_not_run_beside_the_new_ones() -> None:
    old = pod(node("a", uid="uid-old"), uid="old")
    result = planned(task(), [A], [old])
    assert [p.uid for p in result.deletes] == ["old"]
    assert [(r.node.name, r.decision.reason) for r in result.nodes.blocked] == [
        ("a", "PredecessorTerminating")
    ]
    assert result.launch.starts == ()
    assert started(planned(task(), [A], [failed(node("a", uid="uid-old"))])) == ["a"], (
        "one that ended is gone"
    )


def test_of_two_live_pods_the_oldest_bound_one_stays() -> None:
    first, second = pod(A, 1, created=NOW - 100), pod(A, 2, created=NOW - 50)
    result = planned(task(), [A], [second, first])
    assert [p.uid for p in result.deletes] == [second.uid]
    assert result.nodes.duplicates == ("a",)


@pytest.mark.parametrize(
    ("stuck", "slots"),
    [
        pytest.param({"waiting": "ImagePullBackOff"}, 1, id="its image cannot be pulled: it ends in grace"),
        pytest.param({"node_name": "", "unschedulable": "Insufficient cpu"}, 0, id="it cannot be scheduled"),
    ],
)
def test_a_pod_that_cannot_start_makes_way_for_a_changed_template(stuck: dict[str, str], slots: int) -> None:
    old = pod(A, revision="old", phase="Pending", **stuck)
    result = planned(task(parallelism=1), [A, B], [old])
    assert result.deletes == (old,)
    assert len(result.launch.starts) == 1 - slots
    assert states(result) == {"pending": 2}
    same = pod(A, phase="Pending", **stuck)
    assert planned(task(), [A], [same]).deletes == ()


def test_a_pod_that_was_deleted_while_it_ran_is_retried_and_not_counted() -> None:
    killed = failed(A, exit_code=137, deletion=NOW + 20, deletion_asked=NOW - 10)
    record = planned(task(backoff_limit=0), [A], [killed]).records["a"]
    assert (record.result, record.attempts, record.disruptions, record.reason) == ("Retry", 0, 1, "Deleted")


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        pytest.param(
            [ContainerEnd("proxy", 137, "Error", init=True), ContainerEnd("main", 3, "Error")],
            (3, "container main exited 3"),
            id="the container's that failed, not its sidecar's, which was killed for it",
        ),
        pytest.param(
            [ContainerEnd("setup", 0, init=True), ContainerEnd("proxy", 143, "Error", init=True)],
            (143, "container proxy exited 143"),
            id="an init container's, where no other failed",
        ),
        pytest.param(
            [ContainerEnd("one", 4, "Error"), ContainerEnd("two", 5, "Error")],
            (4, "container one exited 4"),
            id="of several containers the first one's",
        ),
    ],
)
def test_the_cause_of_a_failure(ends: list[ContainerEnd], cause: tuple[int, str]) -> None:
    record = planned(task(), [A], [failed(A, ends=tuple(ends))]).records["a"]
    assert (record.exit_code, record.message) == cause


@pytest.mark.parametrize("finished", [NOW - 3e8, NOW - 11, NOW - 10, NOW + 3e8])
def test_whether_a_deletion_killed_it_is_no_question_of_its_kubelets_clock(finished: float) -> None:
    """One that was seen to end before its deletion is kept as it was then: test_vanished_ends.py."""
    killed = failed(A, finished=finished, deletion=NOW + 20, deletion_asked=NOW - 10)
    assert planned(task(backoff_limit=0), [A], [killed]).records["a"].reason == "Deleted"


def test_a_pod_that_its_own_deadline_ended_counts_though_it_is_being_deleted() -> None:
    ended = failed(A, reason="DeadlineExceeded", deletion=NOW + 20, deletion_asked=NOW - 10)
    assert planned(task(backoff_limit=0), [A], [ended]).records["a"].result == "Failed"


def test_a_pod_too_many_that_ends_first_is_recorded_after_the_older_one() -> None:
    extra = failed(A, 2, deletion=NOW + 20, deletion_asked=NOW - 10)
    assert planned(task(), [A], [pod(A), extra]).records == {}
    assert planned(task(), [A], [succeeded(A), extra]).records["a"].seq == 1


def test_a_recorded_pod_that_a_late_view_shows_alive_costs_no_later_pod_its_life() -> None:
    """The later one was found by trying to create it; the watch has got no further than the first."""
    past, present = pod(A, 1, created=NOW - 100), pod(A, 2)
    result = planned(task(), [A], [past, present], {"a": entry(A, nonce="2026")})
    assert (result.deletes, result.nodes.duplicates, states(result)) == ((), (), {"active": 1})
    assert states(planned(task(), [A], [past], {"a": entry(A, nonce="2026")})) == {"active": 1}


def test_a_pod_too_many_undoes_no_success() -> None:
    record = planned(task(), [A], [failed(A, 2)], {"a": entry(A)}).records["a"]
    assert (record.result, record.seq, record.pod_uid) == ("Succeeded", 2, "pod-a-1")


def test_an_unschedulable_pod_is_given_up_at_the_progress_deadline() -> None:
    stuck = pod(A, node_name="", phase="Pending", created=NOW - 1800, unschedulable="Insufficient cpu")
    result = planned(task(), [A], [stuck])
    assert [p.uid for p in result.deletes] == [stuck.uid]
    assert result.nodes.blocked[0].decision.reason == "Unschedulable"
    assert [report.node.name for report in result.nodes.unplaced] == ["a"]


def test_a_node_whose_pod_was_given_up_is_late_until_a_pod_of_it_is_placed() -> None:
    waits = pod(A, 2, node_name="", phase="Pending", created=NOW, unschedulable="Insufficient cpu")
    given_up = frozenset({A.uid})
    assert planned(task(), [A, B], [waits]).nodes.unplaced == (), "none was given up yet"
    assert [r.node.name for r in planned(task(), [A, B], [waits], unplaced=given_up).nodes.unplaced] == ["a"]
    assert [r.node.name for r in planned(task(), [A, B], unplaced=given_up).nodes.unplaced] == ["a"]
    assert planned(task(), [A, B], [pod(A, 2)], unplaced=given_up).nodes.unplaced == ()
    assert planned(task(), [A, B], entries={"a": entry(A)}, unplaced=given_up).nodes.unplaced == ()
    placing = pod(A, 2, node_name="", phase="Pending", created=NOW)
    assert [r.node.name for r in planned(task(), [A, B], [placing], unplaced=given_up).nodes.unplaced] == [
        "a"
    ]
    for away in (node("a", unschedulable=True), node("a", deleting=True)):
        assert planned(task(), [away], unplaced=given_up).nodes.unplaced == (), (
            "a deliberate state is never late"
        )


def test_a_node_waits_for_the_pod_of_an_earlier_task_of_the_same_name() -> None:
    result = planned(task(parallelism=1), [A, B], namesakes={A.uid: pod(A, owner_uid="deleted")})
    assert started(result) == ["b"]
    assert [(r.node.name, r.decision.reason) for r in result.nodes.blocked] == [
        ("a", "PredecessorTerminating")
    ]


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        pytest.param({}, [], id="long past its grace period, while the node is Ready: it may run"),
        pytest.param({"ready": False, "ready_since": NOW - 60}, [], id="on a node that is NotReady"),
        pytest.param({"ready": False, "ready_since": NOW - 1801}, ["b"], id="until the node counts as lost"),
    ],
)
def test_a_terminating_pod_holds_its_slot(changes: dict[str, Any], start: list[str]) -> None:
    stuck = pod(A, created=NOW - 4000, deletion=NOW - 3000)
    assert started(planned(task(parallelism=1), [node("a", **changes), B], [stuck])) == start


@pytest.mark.parametrize(
    "predecessor",
    [
        pytest.param({}, id="that is not deleted yet"),
        pytest.param({"deletion": NOW + 500, "deletion_asked": NOW - 100}, id="that ends in its grace"),
    ],
)
def test_the_pod_of_a_replaced_node_holds_a_slot_until_it_is_gone(predecessor: dict[str, float]) -> None:
    old = pod(node("a", uid="uid-old"), uid="old", **predecessor)
    assert started(planned(task(parallelism=1), [A, B], [old])) == []
    of_two = planned(task(parallelism=2), [A, B], [old])
    assert (started(of_two), of_two.freed_slots) == (["b"], ())
    assert planned(task(parallelism=1), [A, B], [old]).launch.assignment.free == 0


def all_done(decision: str, **spec: Any) -> DaemonTask:
    """A task whose every node had succeeded when its ledger was last written."""
    of = task(annotations={names.LEDGER_DECISION: decision}, **spec)
    told = LedgerStatus(
        shards=1, done_run=wanted_run(of, REVISION, read_requests(of)), done_at=format_time(NOW - 60)
    )
    return msgspec.structs.replace(of, status=Status(ledger=told))


def test_a_lost_ledger_shard_starts_records_and_deletes_nothing() -> None:
    lost = Ledger(entries={}, shards=0, lost=1)
    result = planned(task(), [A, B], [succeeded(A)], ledger=lost)
    assert (result.hold, result.launch.starts, result.records, result.deletes) == ("LedgerLost", (), {}, ())
    assert result.wake == 0, "only somebody's decision changes anything"


def test_a_lost_ledger_shard_is_decided_by_annotation() -> None:
    lost = Ledger(entries={}, shards=0, lost=1)
    rerun = planned(task(annotations={names.LEDGER_DECISION: "rerun"}), [A], ledger=lost)
    assert started(rerun) == ["a"]
    assumed = planned(all_done("assume-done"), [A], ledger=lost)
    assert started(assumed) == []
    assert assumed.records["a"].result == "Succeeded"
    nightly = task(
        annotations={names.LEDGER_DECISION: "assume-done: a"},
        schedule="0 3 * * *",
        status=Status(last_schedule_time="1970-01-12T03:00:00Z"),
    )
    assert states(planned(nightly, [A], ledger=lost)) == {"succeeded": 1}


@pytest.mark.parametrize(
    ("changes", "assumed"),
    [
        pytest.param({"unschedulable": True}, True, id="a cordoned node may have run before it was cordoned"),
        pytest.param({"ready": False}, True, id="a NotReady node may have run before"),
        pytest.param({"taints": (taint("dedicated"),)}, True, id="a tainted node may have run before"),
        pytest.param(
            {"labels": {"kubernetes.io/os": "windows"}}, False, id="a node never selected has not run"
        ),
    ],
)
def test_assume_done_covers_every_node_that_may_have_run(changes: dict[str, Any], assumed: bool) -> None:
    wanted = all_done("assume-done")
    result = planned(wanted, [node("a", **changes)], ledger=Ledger(entries={}, shards=0, lost=1))
    assert ("a" in result.records) == assumed
    assert started(result) == []


def test_a_blocked_node_is_looked_at_when_its_progress_deadline_passes() -> None:
    known = task(status=Status(current_revision=REVISION))
    assert planned(known, [node("a", ready=False, ready_since=NOW - 100)]).wake == NOW - 100 + 1800


def test_a_node_that_was_blocked_before_its_rollout_began_is_looked_at_when_that_is_late() -> None:
    """NotReady since yesterday: the task has waited for it since now."""
    assert planned(task(), [node("a", ready=False, ready_since=NOW - 86400)]).wake == NOW + 1800


@pytest.mark.parametrize(
    ("spec", "changes", "hold"),
    [
        ({}, {"invalid": "spec.template.spec.x: no"}, "InvalidSpec"),
        ({"suspend": True}, {}, "Suspended"),
        ({"suspend": True}, {"invalid": "spec.template.spec.x: no"}, "InvalidSpec"),
    ],
)
def test_what_holds_a_task_starts_nothing(spec: dict[str, Any], changes: dict[str, str], hold: str) -> None:
    result = planned(task(**spec), [A], **changes)
    assert (result.hold, result.launch.starts) == (hold, ())


def test_a_storm_of_starts_is_cut_into_batches() -> None:
    result = planned(task(), [node(f"n{i}") for i in range(300)])
    assert (len(result.launch.starts), result.more, result.wake) == (250, True, NOW)


class TestReboot:
    """NodeReboot: every reboot runs again, but those that a task causes and says so; and what is a loop."""

    SPEC: ClassVar[dict[str, Any]] = {"rerun_on": ("TemplateChange", "NodeReboot")}
    OWN: ClassVar[dict[str, Any]] = {**SPEC, "reboots_node": True}

    @pytest.mark.parametrize("ago", [1, 20, 580, 3600])
    def test_a_reboot_runs_again_however_soon_it_comes(self, ago: int) -> None:
        """A sysctl that was set by the run is gone."""
        ended = entry(A, boot_id="before", finished_at=int(NOW - ago))
        result = planned(task(**self.SPEC), [node("a", ready_since=NOW - ago / 2)], [], {"a": ended})
        assert (started(result), result.records, states(result)) == (["a"], {}, {"pending": 1})

    @pytest.mark.parametrize("rebooted", [NOW - 6500, NOW - 5900, NOW - 20])
    def test_nor_is_one_between_start_and_record_ever_the_runs_own(self, rebooted: float) -> None:
        """Restarted in place after it, or ended just before: what was set may be gone."""
        done = succeeded(A, created=NOW - 7000, finished=NOW - 6000, marks={names.POD_BOOT_ID: "before"})
        at = node("a", ready_since=rebooted)
        record = planned(task(**self.SPEC), [at], [done]).records["a"]
        assert (record.result, record.boot_id) == ("Succeeded", "before")
        assert started(planned(task(**self.SPEC), [at], [done], {"a": record})) == ["a"]

    @pytest.mark.parametrize("limit", [0, 3])
    def test_a_run_that_a_reboot_cut_off_runs_again_and_has_failed_once(self, limit: int) -> None:
        cut = failed(A, exit_code=137, marks={names.POD_BOOT_ID: "before"})
        record = planned(task(backoff_limit=limit, **self.SPEC), [A], [cut]).records["a"]
        assert (record.result, record.attempts) == ("Retry", 1)
        result = planned(task(backoff_limit=limit, **self.SPEC), [A], [cut], {"a": record})
        assert [start.trigger for start in result.launch.starts] == ["NodeReboot"]

    def test_one_that_is_made_at_most_once_has_failed(self) -> None:
        spec = {**self.SPEC, "run_guarantee": "AtMostOnce", "backoff_limit": 0}
        cut = failed(A, exit_code=137, marks={names.POD_BOOT_ID: "before"})
        record = planned(task(**spec), [A], [cut]).records["a"]
        assert (record.result, record.boot_id, record.boot_absorbed) == ("Failed", "boot-a", True)

    def test_the_first_reboot_after_a_run_is_its_own_where_the_task_reboots_its_node(self) -> None:
        ended = entry(A, boot_id="before", finished_at=int(NOW - 300))
        result = planned(task(**self.OWN), [node("a", ready_since=NOW - 200)], [], {"a": ended})
        assert started(result) == []
        assert (result.records["a"].boot_id, result.records["a"].boot_absorbed) == ("boot-a", True)

    def test_the_second_one_runs_again(self) -> None:
        ended = entry(A, boot_id="before", boot_absorbed=True, finished_at=int(NOW - 300))
        assert started(planned(task(**self.OWN), [A], [], {"a": ended})) == ["a"]

    def test_one_that_came_later_runs_again(self) -> None:
        ended = entry(A, boot_id="before", finished_at=int(NOW - 3600))
        result = planned(task(**self.OWN), [node("a", ready_since=NOW - 1800)], [], {"a": ended})
        assert started(result) == ["a"]

    def test_one_that_was_missed_while_the_operator_was_down_is_still_the_runs_own(self) -> None:
        ended = entry(A, boot_id="before", finished_at=int(NOW - 7200))
        result = planned(task(**self.OWN), [node("a", ready_since=NOW - 7100)], [], {"a": ended})
        assert started(result) == []

    def test_a_reboot_during_a_run_that_causes_it_does_not_repeat_it(self) -> None:
        done = succeeded(A, created=NOW - 7000, finished=NOW - 6000, marks={names.POD_BOOT_ID: "before"})
        result = planned(task(**self.OWN), [node("a", ready_since=NOW - 6500)], [done])
        assert result.records["a"].boot_id == "boot-a"

    @pytest.mark.parametrize(("result", "again"), [("Failed", []), ("Succeeded", ["a"])])
    def test_a_run_that_is_made_at_most_once_is_not_repeated_for_what_may_have_cut_it_off(
        self, result: str, again: list[str]
    ) -> None:
        spec = {**self.SPEC, "run_guarantee": "AtMostOnce", "backoff_limit": 0}
        ended = entry(A, result, boot_id="before", finished_at=int(NOW - 300))
        at = node("a", ready_since=NOW - 200)
        assert started(planned(task(**spec), [at], [], {"a": ended})) == again

    def test_a_fourth_reboot_within_six_hours_is_a_loop(self) -> None:
        runs = (int(NOW - 9000), int(NOW - 6000), int(NOW - 3000))
        ended = entry(A, boot_id="before", boot_absorbed=True, reboot_runs=runs)
        result = planned(task(**self.SPEC), [A], [], {"a": ended})
        assert (states(result), result.records["a"].reason) == ({"failed": 1}, "RebootLoop")

    def test_reboots_spread_over_more_than_six_hours_are_none(self) -> None:
        runs = (int(NOW - 30000), int(NOW - 6000), int(NOW - 3000))
        ended = entry(A, boot_id="before", boot_absorbed=True, reboot_runs=runs)
        assert started(planned(task(**self.SPEC), [A], [], {"a": ended})) == ["a"]


class TestRetention:
    """Finished Pods: never before they are recorded, and the last failed one stays for its logs."""

    def deleted(self, pods: list[Any], entries: dict[str, Any], **spec: Any) -> list[str]:
        return [p.uid for p in planned(task(**spec), [A], pods, entries).deletes]

    def test_without_a_ttl_the_last_pod_stays(self) -> None:
        assert self.deleted([succeeded(A, finished=NOW - 9e5)], {"a": entry(A)}) == []

    def test_with_a_ttl_it_goes_when_its_time_is_over(self) -> None:
        old, of = succeeded(A, finished=NOW - 61), entry(A, finished_at=int(NOW - 61))
        assert self.deleted([old], {"a": of}, ttl_seconds_after_finished=60) == ["pod-a-1"]
        assert self.deleted([old], {"a": of}, ttl_seconds_after_finished=62) == []

    def test_an_unrecorded_pod_never_goes(self) -> None:
        assert self.deleted([succeeded(A, finished=NOW - 61)], {}, ttl_seconds_after_finished=0) == []

    def test_the_last_failed_pod_stays_until_the_node_succeeds(self) -> None:
        old = failed(A, finished=NOW - 9000)
        assert self.deleted([old], {"a": entry(A, "Failed")}, ttl_seconds_after_finished=60) == []
        after = entry(A, seq=2, pod_uid="pod-a-2")
        assert self.deleted([old], {"a": after}, ttl_seconds_after_finished=60) == ["pod-a-1"]

    def test_a_record_that_is_only_just_known_keeps_the_name_taken(self) -> None:
        old = succeeded(A, finished=NOW - 9000)
        ledger = Ledger(entries={"a": entry(A)}, shards=1, since={"a": NOW - 29})
        given = task(ttl_seconds_after_finished=0), [A], [old]
        result = planned(*given, ledger=ledger)
        assert (result.deletes, result.wake) == ((), NOW + 1)
        assert planned(*given, ledger=ledger, now=NOW + 1).deletes == (old,)
