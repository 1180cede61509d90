"""When nodes are tried again for which the API server created no Pod: alone, and where all are refused."""

import pytest

from caretaker.daemontask.refused_pods import ROW, RefusedPods


def refused(scale: float = 1.0) -> RefusedPods:
    """All of a row of nodes, at 100 s."""
    refused_pods = RefusedPods()
    assert [refused_pods.add(str(n), "no", 100.0, scale) for n in range(ROW)] == [False] * (ROW - 1) + [True]
    return refused_pods


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_task_is_tried_again_with_one_node_at_a_time_ever_more_seldom(scale: float) -> None:
    refused_pods = refused(scale)
    assert refused_pods.until == 100 + scale
    for number, wait in enumerate((2, 4, 8)):
        assert refused_pods.add(f"new-{number}", "no", 200.0, scale)
        assert refused_pods.until == 200 + wait * scale


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
