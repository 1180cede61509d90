"""docs/security.md: every defence names a test that is there."""

from pathlib import Path

import pytest

from testing.namedtests import left_out, named

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
TABLE = PAGE.partition("\n## Threats and defences\n")[2].partition("\n## ")[0]
ROWS = [row.strip("|").split(" | ") for row in TABLE.splitlines() if row.startswith("|")][2:]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip())
def test_a_threat_has_a_defence_and_a_test_that_tries_it(row: list[str]) -> None:
    threat, defence, tests = (cell.strip() for cell in row)
    assert threat
    assert defence
    for file, name in named(tests):
        assert name in left_out(file), f"{file} has no {name}"


def test_the_table_is_not_empty() -> None:
    assert len(ROWS) > 20
