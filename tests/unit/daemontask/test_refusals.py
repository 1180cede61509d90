"""When nodes are tried again for which the API server created no Pod: alone, and where all are refused."""

import pytest

from caretaker.daemontask.refusals import ROW, Refusals


def refused(scale: float = 1.0) -> Refusals:
    """All of a row of nodes, at 100 s."""
    refusals = Refusals()
    assert [refusals.add(str(n), "no", 100.0, scale) for n in range(ROW)] == [False] * (ROW - 1) + [True]
    return refusals


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_task_is_tried_again_with_one_node_at_a_time_ever_more_seldom(scale: float) -> None:
    refusals = refused(scale)
    assert refusals.until == 100 + scale
    for number, wait in enumerate((2, 4, 8)):
        assert refusals.add(f"new-{number}", "no", 200.0, scale)
        assert refusals.until == 200 + wait * scale


def test_a_node_that_was_refused_before_says_nothing_of_the_others() -> None:
    refusals = refused()
    assert refusals.add("0", "no", 200.0)
    assert refusals.until == 101
    assert (refusals.by_node["0"].since, refusals.by_node["0"].until) == (100, 202)


def test_one_that_completes_the_row_does() -> None:
    refusals = Refusals()
    refusals.add("known", "no", 0.0)
    refusals.created("another")
    for number in range(ROW - 1):
        refusals.add(str(number), "no", 0.0)
    assert refusals.add("known", "no", 200.0)
    assert refusals.until == 201


@pytest.mark.parametrize("ends", ["a Pod is created", "the Pods are others"])
def test_once_it_is_over_the_backoff_begins_anew(ends: str) -> None:
    refusals = refused()
    if ends == "a Pod is created":
        assert refusals.created("0")
    else:
        refusals.clear()
    assert (refusals.of_all, refusals.until, dict(refusals.by_node)) == (False, 0.0, {})
    for number in range(ROW):
        refusals.add(str(number), "no", 300.0)
    assert refusals.until == 301
