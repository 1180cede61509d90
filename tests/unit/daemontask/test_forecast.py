"""What a forecast tells of waves and of nodes, as the planner that it asks would have it."""

from typing import Any

import pytest

from caretaker.api import names
from caretaker.api.daemontask import Budget, FailurePolicy, ObservedSchedule, Status
from caretaker.api.objects import Pod
from caretaker.api.times import format_time
from caretaker.daemontask.forecast import NodeState, forecast
from caretaker.daemontask.ledger import Entry, Ledger
from caretaker.daemontask.pods import run_key
from unit.daemontask.build import NOW, REVISION, UID, entry, failed, node, pod, snapshot, succeeded, task

NODES = [node(name) for name in "abcdef"]
A, B = NODES[:2]
KEY = run_key(UID, REVISION, A.uid, "", "")


@pytest.mark.parametrize(
    ("spec", "pods", "entries", "at_once", "waves"),
    [
        pytest.param({}, [], {}, 6, [6], id="without a limit all run at once"),
        pytest.param({"parallelism": 6}, [], {}, 6, [6], id="a limit that is not reached changes nothing"),
        pytest.param(
            {"parallelism": 4}, [], {}, 4, [4, 2], id="what is above the limit runs in the next wave"
        ),
        pytest.param(
            {"parallelism": "10%"}, [], {}, 1, [1] * 6, id="a percentage rounds up, to one at least"
        ),
        pytest.param(
            {"parallelism": 2}, [pod(A)], {}, 1, [1, 2, 2], id="a running pod holds one of the slots"
        ),
        pytest.param(
            {"parallelism": 2},
            [pod(A), pod(B)],
            {},
            0,
            [2, 2],
            id="while all slots are held nobody starts at once",
        ),
        pytest.param(
            {"parallelism": 1},
            [pod(A), pod(B)],
            {},
            0,
            [1] * 4,
            id="more running than allowed holds all others",
        ),
        pytest.param(
            {"parallelism": 3},
            [],
            {"a": entry(A), "b": entry(B)},
            3,
            [3, 1],
            id="who has run is not in a wave",
        ),
        pytest.param({"suspend": True}, [], {}, 0, [], id="a suspended task starts nothing"),
        pytest.param(
            {"failure_policy": FailurePolicy(0, "Pause")},
            [],
            {"a": entry(A, "Failed")},
            0,
            [],
            id="a paused task starts nothing",
        ),
    ],
)
def test_waves(spec: Any, pods: Any, entries: Any, at_once: int, waves: list[int]) -> None:
    made = forecast(snapshot(task(**spec), NODES, pods, entries))
    assert made.at_once == at_once
    assert [list(made.turns.values()).count(wave) for wave in range(1, made.waves + 1)] == waves


def test_waves_behind_a_window_are_those_after_it() -> None:
    spec = {"budgets": (Budget(0, "0 13 * * *", "1h"),), "parallelism": 4}
    made = forecast(snapshot(task(**spec), NODES))
    assert (made.at_once, made.waves, made.room.width, made.room.beyond) == (0, 2, 0, 4)


def test_a_tick_that_is_due_counts_before_it_is_stored() -> None:
    done = {found.name: entry(found, tick=int(NOW - 86400)) for found in NODES}
    seen = ObservedSchedule("0 13 * * *", "Etc/UTC", format_time(NOW - 864000))
    stored = Status(
        observed_generation=1, last_schedule_time=format_time(NOW - 86400), observed_schedule=seen
    )
    made = forecast(snapshot(task(status=stored, schedule="0 13 * * *"), NODES, entries=done))
    assert (len(made.turns), made.at_once) == (6, 6)
    assert made.plan.tick.last == NOW - 2800


def test_the_first_wave_is_what_the_planner_starts() -> None:
    made = forecast(snapshot(task(parallelism=2), NODES))
    first = {name for name, wave in made.turns.items() if wave == 1}
    assert first == {start.node_name for start in made.plan.launch.starts}


def test_what_has_finished_counts_before_it_is_recorded() -> None:
    made = forecast(snapshot(task(parallelism=2), NODES, [succeeded(A), failed(B)]))
    assert made.plan.nodes.counts["succeeded"] == 1
    assert made.state_of("a").state == "succeeded"
    assert (made.state_of("b").state, made.state_of("b").reason) == ("pending", "Backoff")
    assert made.plan.records == {}
    assert made.snapshot.ledger.entries["b"].result == "Retry"


def test_two_finished_pods_of_a_node_are_both_counted() -> None:
    pods = [failed(A, 1, exit_code=1, finished=NOW - 300), failed(A, 2, exit_code=7, finished=NOW - 200)]
    state = forecast(snapshot(task(backoff_limit=1), [A], pods)).state_of("a")
    assert (state.state, state.attempts, state.exit_code) == ("failed", 2, 7)


def test_with_a_lost_ledger_nothing_is_assumed() -> None:
    made = forecast(snapshot(task(), NODES, [succeeded(A)], ledger=Ledger({}, lost=1)))
    assert (made.plan.hold, made.turns) == ("LedgerLost", {})


FAILED = {
    "attempts": 4,
    "exit_code": 3,
    "reason": "Error",
    "message": "no disk",
    "pod_uid": "pod-a-4",
    "seq": 4,
}


@pytest.mark.parametrize(
    ("pods", "entries", "state"),
    [
        pytest.param(
            [],
            {},
            NodeState("a", "pending", "Queued", "", 0, None, None, None, KEY),
            id="one that is due has its key",
        ),
        pytest.param(
            [pod(A, marks={names.POD_RUN_KEY: "other"})],
            {},
            NodeState("a", "active", "Running", "", 0, None, None, pod(A).name, "other", slot=True),
            id="one that runs has the key of its pod",
        ),
        pytest.param(
            [succeeded(A)],
            {"a": entry(A)},
            NodeState("a", "succeeded", "", "", 0, "1970-01-12T12:46:40Z", None, pod(A).name, KEY),
            id="one that has run has the key of its record, and its pod while that is there",
        ),
        pytest.param(
            [],
            {"a": entry(A)},
            NodeState("a", "succeeded", "", "", 0, "1970-01-12T12:46:40Z", None, None, KEY),
            id="a pod that is gone is not told",
        ),
        pytest.param(
            [failed(A, 4)],
            {"a": entry(A, "Failed", **FAILED)},
            NodeState("a", "failed", "Error", "no disk", 4, "1970-01-12T12:46:40Z", 3, pod(A, 4).name, KEY),
            id="one that has failed tells how, how often and where the logs are",
        ),
        pytest.param(
            [],
            {"a": entry(A, node_uid="other")},
            NodeState("a", "pending", "Queued", "", 0, None, None, None, KEY),
            id="a replaced node has no past",
        ),
    ],
)
def test_one_node(pods: Any, entries: dict[str, Entry], state: NodeState) -> None:
    assert forecast(snapshot(task(), [A], pods, entries)).state_of("a") == state


@pytest.mark.parametrize(
    ("pods", "seq"),
    [
        pytest.param([failed(A, 3), failed(A, 4)], 4, id="the one that is recorded"),
        pytest.param(
            [pod(A, 5, created=NOW - 60), pod(A, 6, created=NOW - 9)], 6, id="of two live ones the newer"
        ),
        pytest.param([pod(A, 6), pod(A, 5)], 6, id="of one moment the later"),
    ],
)
def test_of_several_pods_one_is_named(pods: list[Pod], seq: int) -> None:
    made = forecast(snapshot(task(), [A], pods, {"a": entry(A, "Failed", **FAILED)}))
    assert made.state_of("a").pod == pod(A, seq).name


def test_a_node_has_the_results_of_its_last_run() -> None:
    made = forecast(snapshot(task(), [A], entries={"a": entry(A, results={"free": 3})}))
    assert made.state_of("a").results == {"free": 3}


def test_while_failures_gate_the_rollout_only_retries_have_a_turn() -> None:
    spec: dict[str, Any] = {"failure_policy": FailurePolicy(0, "Pause"), "backoff_limit": 6}
    failing = entry(A, "Retry", attempts=1, finished_at=int(NOW - 900), failing_since=int(NOW - 900))
    assert forecast(snapshot(task(**spec), NODES, entries={"a": failing})).turns == {"a": 1}


def test_a_slot_of_a_node_that_does_not_count_is_no_other_nodes() -> None:
    """The Pod of the node that it replaced is still there; without a limit all others run at once."""
    again = node("a", uid="uid-again", labels={"kubernetes.io/os": "windows"})
    made = forecast(snapshot(task(), [again, B], [pod(A, deletion=NOW + 9)]))
    assert (made.state_of("a").state, made.state_of("a").slot, made.at_once) == ("excluded", True, 1)


def test_an_excluded_node_tells_why() -> None:
    selective = {"spec": {"nodeSelector": {"disk": "ssd"}, "containers": [{"name": "main"}]}}
    state = forecast(snapshot(task(template=selective), [A])).state_of("a")
    assert (state.state, state.reason, state.message) == (
        "excluded",
        "NodeSelector",
        "nodeSelector wants disk=ssd",
    )
