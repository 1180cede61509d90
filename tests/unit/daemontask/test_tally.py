"""What a plan counts and lists of the nodes, for status to tell."""

import pytest

from caretaker.api.objects import Node, Pod
from unit.daemontask.build import NOW, entry, node, planned, pod, task

A, B, C = node("a"), node("b"), node("c")
DEADLINE = 1800


def starting(of: Node, waiting: str = "ErrImagePull", ago: float = 60) -> Pod:
    return pod(of, phase="Pending", waiting=waiting, created=NOW - ago)


@pytest.mark.parametrize(
    ("nodes", "pods", "waiting", "stuck"),
    [
        pytest.param([A], [pod(A, created=NOW - 9000)], {}, [], id="one that runs, however long"),
        pytest.param(
            [node("a", ready=False, ready_since=NOW - 9000)], [pod(A)], {}, [], id="one on a NotReady node"
        ),
        pytest.param(
            [A, B, C],
            [starting(A), starting(B), starting(C, "ContainerCreating")],
            {"ErrImagePull": 2, "ContainerCreating": 1},
            [],
            id="those that start, by reason",
        ),
        pytest.param(
            [A, B],
            [starting(A, ago=DEADLINE - 1), starting(B, ago=DEADLINE)],
            {"ErrImagePull": 2},
            ["b"],
            id="one that is late",
        ),
    ],
)
def test_active_pods_that_do_not_run(
    nodes: list[Node], pods: list[Pod], waiting: dict[str, int], stuck: list[str]
) -> None:
    found = planned(task(), nodes, pods)
    assert found.nodes.counts["active"] == len(nodes)
    assert (found.nodes.waiting, [report.node.name for report in found.nodes.stuck]) == (waiting, stuck)


def test_nodes_that_rest_after_their_success_are_counted() -> None:
    fresh, old = int(NOW - 10), int(NOW - 90)
    entries = {"a": entry(A, finished_at=fresh), "b": entry(B, finished_at=fresh)}
    entries |= {"c": entry(C, finished_at=old)}
    found = planned(task(min_success_seconds=60), [A, B, C, node("d")], [pod(node("d"))], entries)
    assert (found.nodes.resting, found.nodes.counts["succeeded"], len(found.nodes.holders)) == (2, 3, 3)
