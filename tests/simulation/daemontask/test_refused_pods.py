"""Pods that the API server refuses: one refused node holds up no other; what refuses all is asked seldom."""

from collections.abc import Callable
from typing import Any

import pytest

from caretaker.api import names
from caretaker.api.conditions import Condition
from caretaker.daemontask.refused_pods import BACKOFF_BASE, BACKOFF_MAX, ROW, RefusedPods
from caretaker.kube.errors import ApiError
from simulation.daemontask.cluster import PODS
from simulation.daemontask.world import Make, SimWorld

ONCE: dict[str, Any] = {"runGuarantee": "AtMostOnce", "backoffLimit": 0}
GUARANTEES = pytest.mark.parametrize("guarantee", [{}, ONCE], ids=["AtLeastOnce", "AtMostOnce"])


def refuse(world: SimWorld, by: Callable[[str], bool], status: int = 403) -> list[str]:
    """The API server refuses the Pods of these nodes; returns whose it has refused, in order."""
    create, refused = world.cluster.create, list[str]()

    def judged(path: str, body: Any, wanted: Any) -> Any:
        if path == PODS:
            name = body["metadata"]["annotations"][names.POD_NODE_NAME]
            if by(name):
                refused.append(name)
                raise ApiError(status, "Forbidden", f"no Pods on {name}")
        return create(path, body, wanted)

    world.cluster.create = judged  # type: ignore[method-assign]
    return refused


def grow(world: SimWorld, count: int) -> list[str]:
    for number in range(count):
        world.cluster.add_node(f"n{number:02}")
    return sorted(world.cluster.nodes)


def pass_by(world: SimWorld, passes: int, seconds: float) -> None:
    for _ in range(passes):
        world.whole_pass(0)
        world.run_pods()
        world.let_time_pass(seconds)


def condition(world: SimWorld, kind: str) -> Condition:
    return next(c for c in world.cluster.status.conditions if c.type == kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guarantee", "status"),
    [({}, 403), ({}, 409), ({}, 500), (ONCE, 403), (ONCE, 422)],
    ids=["403", "409", "500", "403 AtMostOnce", "422 AtMostOnce"],
)
@pytest.mark.parametrize("place", [0, 5, 11])
def test_one_refused_node_holds_up_no_other(
    make: Make, guarantee: dict[str, Any], status: int, place: int
) -> None:
    world = make(parallelism=1, **guarantee)
    bad = grow(world, 10)[place]
    refused = refuse(world, lambda name: name == bad, status)
    pass_by(world, 40, 1)
    found = world.cluster.status
    assert found.succeeded == 11
    assert [(n.node_name, n.reason, n.message) for n in found.blocked_nodes] == [
        (bad, "PodRefused", f"no Pods on {bad}")
    ]
    assert (condition(world, "Ready").status, condition(world, "Ready").reason) == (
        "False",
        "PodCreationRefused",
    )
    assert bad in condition(world, "Degraded").message
    before = len(refused)
    pass_by(world, 60, 10)
    assert before < len(refused) <= before + 8, "it is tried again, ever later"


@pytest.mark.slow
@GUARANTEES
def test_a_refused_node_runs_once_it_is_accepted(make: Make, guarantee: dict[str, Any]) -> None:
    world = make(**guarantee)
    closed = {"a"}
    refuse(world, lambda name: name in closed)
    pass_by(world, 10, 10)
    closed.clear()
    pass_by(world, 3, BACKOFF_MAX)
    assert (world.cluster.status.succeeded, condition(world, "Ready").reason) == (2, "Succeeded")


@pytest.mark.slow
@GUARANTEES
def test_what_refuses_all_is_asked_about_one_node_at_a_time(make: Make, guarantee: dict[str, Any]) -> None:
    world = make(**guarantee)
    nodes = grow(world, 40)
    closed = set(nodes)
    refused = refuse(world, lambda name: name in closed)
    pass_by(world, 5, 1)
    assert ROW <= len(refused) <= ROW + 5
    assert condition(world, "Ready").reason == "PodCreationRefused"
    closed.clear()
    pass_by(world, 12, 1)
    assert world.cluster.status.succeeded == len(nodes), "one Pod that is created lets all others follow"


@pytest.mark.slow
def test_pods_of_another_template_are_tried_at_once(make: Make) -> None:
    world = make()
    grow(world, 40)
    refused = refuse(world, lambda _: True)
    pass_by(world, 20, 1)
    before = len(refused)
    pass_by(world, 1, 1)
    assert len(refused) == before, "they wait"
    world.cluster.edit_raw(template={"spec": {"containers": [{"name": "main", "image": "other"}]}})
    pass_by(world, 1, 1)
    assert len(refused) >= before + ROW, "and none counts as refused"


@pytest.mark.slow
def test_six_nodes_that_stay_refused_are_asked_about_ever_later_and_leave_a_complete_task_ready(
    make: Make,
) -> None:
    world = make()
    pass_by(world, 3, 1)
    assert condition(world, "Ready").status == "True"
    bad = set(grow(world, 6)) - {"a", "b"}
    refused = refuse(world, lambda name: name in bad)
    pass_by(world, 60, 1)
    seen = {(condition(world, "Ready").status, condition(world, "Degraded").message)}
    writes, tries = world.cluster.writes, len(refused)
    for _ in range(200):
        pass_by(world, 1, 10)
        seen.add((condition(world, "Ready").status, condition(world, "Degraded").message))
    assert len(seen) == 1, seen
    assert seen.pop()[0] == "True"
    assert world.cluster.writes == writes, "no write while nothing changes"
    assert len(refused) - tries <= 6 * 9, "each after 64, 128, 256 and then every 300 s"


def test_the_wait_of_a_node_doubles_to_its_limit() -> None:
    refused_pods, waits = RefusedPods(), []
    for _ in range(12):
        refused_pods.add("a", "no", now=100.0)
        waits.append(refused_pods.by_node["a"].until - 100.0)
    assert waits[:3] == [BACKOFF_BASE, 2 * BACKOFF_BASE, 4 * BACKOFF_BASE]
    assert waits[-1] == BACKOFF_MAX
    assert refused_pods.by_node["a"].since == 100.0


def test_refusals_of_different_nodes_in_a_row_concern_the_task_and_a_success_between_them_ends_the_row() -> (
    None
):
    refused_pods = RefusedPods()
    assert [refused_pods.add(str(n), "no", 0.0) for n in range(ROW)] == [False] * (ROW - 1) + [True]
    assert refused_pods.created("other"), "the others may try again"
    assert refused_pods.by_node == {}
    assert not any(refused_pods.add(str(n), "no", 0.0) for n in range(ROW - 1))
    assert not refused_pods.created("other")
    assert not any(refused_pods.add(str(n), "no", 0.0) for n in range(ROW - 1))
    assert len(refused_pods.by_node) == ROW - 1, "each by itself"


def test_every_refused_node_is_named_however_many_there_are() -> None:
    refused_pods = RefusedPods()
    for number in range(3 * ROW):
        refused_pods.add(str(number), "no", 0.0)
    assert len(refused_pods.by_node) == 3 * ROW


# ---------------------------------------------------------------- the next try


def refused() -> RefusedPods:
    """All of a row of nodes, at 100 s."""
    refused_pods = RefusedPods()
    assert [refused_pods.add(str(n), "no", 100.0) for n in range(ROW)] == [False] * (ROW - 1) + [True]
    return refused_pods


def test_a_task_is_tried_again_with_one_node_at_a_time_ever_more_seldom() -> None:
    refused_pods = refused()
    assert refused_pods.until == 101
    for number, wait in enumerate((2, 4, 8)):
        assert refused_pods.add(f"new-{number}", "no", 200.0)
        assert refused_pods.until == 200 + wait


def test_a_node_that_was_refused_before_says_nothing_of_the_others() -> None:
    refused_pods = refused()
    assert refused_pods.add("0", "no", 200.0)
    assert refused_pods.until == 101
    assert (refused_pods.by_node["0"].since, refused_pods.by_node["0"].until) == (100, 202)


def test_one_that_completes_the_row_does() -> None:
    refused_pods = RefusedPods()
    refused_pods.add("known", "no", 0.0)
    refused_pods.created("another")
    for number in range(ROW - 1):
        refused_pods.add(str(number), "no", 0.0)
    assert refused_pods.add("known", "no", 200.0)
    assert refused_pods.until == 201


def test_once_it_is_over_the_backoff_begins_anew() -> None:
    refused_pods = refused()
    assert refused_pods.created("0")
    assert (refused_pods.of_all, refused_pods.until, dict(refused_pods.by_node)) == (False, 0.0, {})
    for number in range(ROW):
        refused_pods.add(str(number), "no", 300.0)
    assert refused_pods.until == 301
