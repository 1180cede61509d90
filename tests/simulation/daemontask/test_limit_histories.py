"""Short histories that the spec allows, in the corners of Slots and resume-at.

Seven nodes whose kubelets' clocks are ten years behind; the judges of test_limits.py look at every step.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from simulation.daemontask.cluster import PODS
from simulation.daemontask.test_limits import NODES, Limited
from simulation.daemontask.world import CLOCKS

FIRST, SECOND = "c", "e"  # by the order of a rollout


@pytest.fixture
def history() -> Iterator[Limited]:
    made = Limited()
    with made.time:
        yield made
        made.world.converge()
        made.world.close()


def begin(history: Limited, *, width: int | None = 1, retries: int = 0, most: int = 0) -> None:
    """A rollout of a template that always fails."""
    spec: dict[str, Any] = {"budgets": [], "policy": {"maxFailedNodes": most, "action": "Pause"}}
    clocks = (CLOCKS[0],) * len(NODES)
    history.begin(shard=2, width=width, retries=retries, rest=0, clocks=clocks, bad=True, **spec)


def attempts(history: Limited) -> dict[str, int]:
    """Node -> failed attempts on record."""
    return {name: entry.attempts for name, entry in history.cluster.entries().items()}


@pytest.mark.parametrize("retries", [0, 1])
def test_resume_at_excuses_a_node_by_its_first_failure_as_its_slow_clock_tells_it(
    history: Limited, retries: int
) -> None:
    begin(history, retries=retries)
    history.resume()
    history.world.whole_pass(0)
    history.let_time_pass(1)
    history.work_for_a_while("Succeeded", 10)
    assert attempts(history)[FIRST] == 1 + retries
    assert SECOND in attempts(history) or any(history.world.live_pods())


def test_a_failure_in_the_second_in_which_a_pod_was_given_up_unplaced_holds_a_slot(history: Limited) -> None:
    begin(history, width=None, retries=3)
    history.begin_all_pods()
    history.run_all_pods("Succeeded")
    history.wait_for_a_pod_to_go(0, kept=False, seconds=301)
    history.begin_all_pods()
    history.cluster.edit(parallelism=1)
    history.work_for_a_while("Succeeded", 120)
    assert max(attempts(history).values()) > 2


def test_to_a_new_operator_a_failing_node_whose_pod_was_given_up_unplaced_holds_its_slot(
    history: Limited,
) -> None:
    begin(history, retries=1, most=1)
    history.work_for_a_while("Succeeded", 1)
    history.wait_for_a_pod_to_go(0, kept=False, seconds=301)
    history.hand_over(0)
    history.work_for_a_while("Succeeded", 1)
    assert attempts(history) == {FIRST: 2, SECOND: 1}


@pytest.mark.parametrize(("seconds", "others"), [(1, {}), (301, {SECOND: 1})])
def test_a_disrupted_node_that_is_not_ready_holds_its_slot_until_the_deadline(
    history: Limited, seconds: int, others: dict[str, int]
) -> None:
    begin(history, most=1)
    history.begin_all_pods()
    history.change_a_node(FIRST, "not ready")
    history.wait_for_a_pod_to_go(0, kept=False, seconds=1)
    history.run_all_pods("Succeeded")
    history.world.whole_pass(0)
    history.let_time_pass(seconds)
    history.work_for_a_while("Succeeded", 1)
    assert attempts(history) == {FIRST: 0, **others}


@pytest.mark.parametrize("how", ["not ready", "rejecting"])
def test_no_other_node_begins_while_a_disrupted_one_is_away_beyond_its_deadline(
    history: Limited, how: str
) -> None:
    begin(history, retries=3)
    history.begin_all_pods()
    history.let_a_run_take_its_node_down(0, how, 1)
    for _ in range(5):
        history.let_time_pass(120)
        history.run_a_whole_pass(pods=True)
        history.run_all_pods("Succeeded")
    assert set(attempts(history)) == {FIRST}


def test_a_failing_node_that_was_rejected_for_so_long_may_stop_the_task_for_good(history: Limited) -> None:
    policy = {"maxFailedNodes": 1, "action": "Fail"}
    clocks = (0.0,) * 3 + (CLOCKS[1],) + (0.0,) * 3
    budgets = [{"nodes": 3}, {"nodes": 1, "schedule": "*/2 * * * *", "duration": "1m"}]
    spec: dict[str, Any] = {"budgets": budgets, "policy": policy, "retries": 1, "rest": 0, "bad": False}
    history.begin(shard=3, width=None, clocks=clocks, **spec)
    history.wait_for_a_pod_to_go(5, kept=True, seconds=62)
    history.work_for_a_while("Failed", 10)
    history.let_time_pass(301)
    history.run_one_pod(6, "reject")
    history.begin_all_pods()
    assert [entry.rejections for entry in history.cluster.entries().values() if entry.rejections] == [1]


def test_no_node_gets_a_pod_that_is_being_deleted(history: Limited) -> None:
    begin(history)
    history.world.whole_pass(0)
    history.delete_a_live_pod(0, kept=True)
    for what in ("bind", "stick", "reject"):
        history.run_one_pod(0, what)
    assert [pod.spec.node_name for pod in history.cluster.pods.values()] == [""]


@pytest.mark.parametrize(("seconds", "finished"), [(290, False), (301, True)])
def test_a_rollout_is_finished_once_all_other_nodes_have_been_refused_for_so_long(
    history: Limited, seconds: int, finished: bool
) -> None:
    policy = {"maxFailedNodes": 0, "action": "Pause"}
    spec: dict[str, Any] = {"budgets": [], "policy": policy, "retries": 0, "rest": 0, "bad": False}
    history.begin(shard=2, width=2, clocks=(CLOCKS[0],) * len(NODES), **spec)
    history.begin_all_pods()
    history.shut_the_namespace(closed=True)
    history.work_for_a_while("Succeeded", 1)
    history.let_time_pass(seconds)
    history.begin_all_pods()
    assert bool(history.cluster.status.finished_rollout) == finished
    history.shut_the_namespace(closed=False)
    history.work_for_a_while("Failed", 1)
    assert (sum(attempts(history).values()) > 1) == finished


def test_a_node_that_failed_a_run_tries_it_again_once_the_template_is_back(history: Limited) -> None:
    """While another was wanted, it got a Pod for that, which never ran."""
    begin(history, width=None, retries=6)
    history.work_for_a_while("Failed", 10)
    history.change_the_template(bad=False)
    history.run_a_whole_pass(pods=False)
    history.shut_the_namespace(closed=True)
    for _ in range(2):
        history.let_time_pass(301)
        history.run_a_whole_pass(pods=True)
    assert not history.world.live_pods()
    history.shut_the_namespace(closed=False)
    history.bring_the_former_template_back()
    history.cluster.set_ready(FIRST, True)  # an event of a node: the next pass knows of nothing older
    history.work_for_a_while("Failed", 120)
    assert min(attempts(history).values()) > 1


def test_a_node_that_was_lost_in_a_former_run_holds_up_no_other_in_the_next(history: Limited) -> None:
    begin(history)
    history.begin_all_pods()
    history.change_a_node(FIRST, "not ready")
    history.run_again(None)
    history.world.whole_pass(0)
    history.let_time_pass(301)
    history.begin_all_pods()
    assert len(history.world.live_pods()) == 2


def test_a_lost_node_may_come_back_while_the_pod_that_has_its_slot_is_being_created(history: Limited) -> None:
    begin(history, most=1)
    history.begin_all_pods()
    history.change_a_node(FIRST, "not ready")
    history.world.whole_pass(0)
    history.let_time_pass(301)
    operator = history.world.act(0)
    operator.catch_up()
    operator.begin()
    while operator.busy and not any(call.what == f"create {PODS}" for call in operator.client.calls):
        operator.answer()
    history.change_a_node(FIRST, "ready")
    operator.finish()
    assert len(history.world.live_pods()) == 2
    history.let_time_pass(1)
    history.work_for_a_while("Succeeded", 1)
