"""Figures that README and the chart quote are those of docs/benchmarks.md, or nearly."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VALUES, README = ROOT / "helm" / "caretaker" / "values.yaml", ROOT / "README.md"
# "About": so far apart runs of the same code are, so that not each of them needs other words.
NEARLY = 0.15

QUOTED = [
    (VALUES, r"about (\S+) MiB with 1,000 nodes", "daemontask", "RSS with 1,000 nodes and 3 tasks"),
    (VALUES, r"(\S+) MiB with 5,000", "daemontask-5000", "5,000 nodes: RSS"),
    (VALUES, r"(\S+) MiB with 200 DaemonTasks on 1,000 ", "daemontask-many", "RSS"),
    (VALUES, r"With 5,000 about (\S+) % of a core", "daemontask-5000", "5,000 nodes: CPU of one core, idle"),
    (VALUES, r"when idle, (\S+) % in a rollout", "daemontask-5000", "5,000 nodes: CPU of one core, rollout"),
    (README, r"5,000 fake nodes \(about (\S+) MiB", "daemontask-5000", "5,000 nodes: RSS"),
    (README, r"MiB, (\S+) s to run on all of them", "daemontask-5000", "5,000 nodes: apply to all Succeeded"),
    (README, r"200 DaemonTasks on 1,000 nodes \((\S+) MiB\)", "daemontask-many", "RSS"),
]


def prose(page: Path) -> str:
    """Its words in one line, those of comments included."""
    return re.sub(r"\s+(# )?", " ", page.read_text())


def measured(bench: str, figure: str) -> float:
    """The value in the bench's table."""
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    table = page.partition(f"<!-- begin {bench} -->")[2].partition(f"<!-- end {bench} -->")[0]
    (value,) = re.findall(rf"^\| {re.escape(figure)}(?: \([^|]*\))? \| (\S+) ", table, re.MULTILINE)
    return float(value)


@pytest.mark.parametrize(("page", "words", "bench", "figure"), QUOTED)
def test_a_figure_that_is_quoted_is_what_was_measured(
    page: Path, words: str, bench: str, figure: str
) -> None:
    (told,) = re.findall(words, prose(page))
    assert float(told) == pytest.approx(measured(bench, figure), rel=NEARLY)
