"""docs/spec/tests.md: every promise names a section of the spec and tests, each in its column."""

import re
from collections import Counter
from pathlib import Path

import pytest

from testing.namedtests import left_out, named

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "spec" / "tests.md").read_text()
ROWS = [
    [cell.strip() for cell in row.strip("|").split("|")]
    for row in re.findall(r"^\|.*\|$", PAGE, re.MULTILINE)
]
PROMISES = [row for row in ROWS if re.fullmatch(r"[A-Z]\d+", row[0])]


def test_a_promise_has_tests_that_hold_it() -> None:
    for number, promise, quick, slow in PROMISES:
        form = re.fullmatch(r"(.+) \(\[spec\]\([\w.-]*#[\w.#-]*\)\)", promise)
        assert form is not None, number
        assert len(form[1].split()) <= 20, number
        found = {(file, name): left_out(file).get(name) for file, name in named(quick)}
        assert set(found.values()) <= {False}, f"{number}: in `make test-all` alone, or not there: {found}"
        left = {(file, name): left_out(file).get(name) for file, name in named(slow)}
        assert set(left.values()) <= {True}, f"{number}: in `make test`, or not there: {left}"
        assert found or left, number


def test_promises_are_numbered_through() -> None:
    counts = Counter(number[0] for number, *_ in PROMISES)
    assert [row[0] for row in PROMISES] == [
        f"{kind}{n}" for kind in counts for n in range(1, counts[kind] + 1)
    ]
    assert set(counts) == set("DESI")
    assert min(counts.values()) > 10


@pytest.mark.parametrize(
    ("test", "slow"),
    [
        ("tests/unit/test_promises_page.py::test_promises_are_numbered_through", False),
        ("tests/simulation/daemontask/test_model.py::TestModel", False),
        pytest.param(
            "tests/simulation/daemontask/test_slow_ledgers.py::test_every_node_runs_once_however_long_the_ledger_takes",
            True,
            id="a slow file",
        ),
        (
            "tests/unit/daemontask/test_events.py::test_a_rollout_over_5000_nodes_by_1_percent_posts_at_most_10_events",
            True,
        ),
        ("tests/e2e/test_crash.py::test_killed_while", False),
        ("tests/e2e/test_demo.py::test_an_unknown_cluster_is_refused", True),
        ("tests/node/test_kinds.py::test_the_pod_of_a_task_runs_and_its_log_can_be_read", True),
    ],
)
def test_what_is_left_to_make_test_all_is_known(test: str, slow: bool) -> None:
    file, _, name = test.partition("::")
    assert left_out(file)[name] is slow
