"""docs/security.md: every defence names a test that is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
TABLE = PAGE.partition("\n## Threats and defences\n")[2].partition("\n## ")[0]
ROWS = [row.strip("|").split(" | ") for row in TABLE.splitlines() if row.startswith("|")][2:]


def named_in(file: Path) -> set[str]:
    """The names of the tests of a file, those of classes as well."""
    found = ast.walk(ast.parse(file.read_text()))
    return {node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip())
def test_a_threat_has_a_defence_and_a_test_that_tries_it(row: list[str]) -> None:
    threat, defence, tests = (cell.strip() for cell in row)
    assert threat
    assert defence
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
    assert ", ".join(f"`{file}::{name}`" for file, name in named) == tests
    for file, name in named:
        assert name in named_in(ROOT / file), f"{file} has no {name}"


def test_the_table_is_not_empty() -> None:
    assert len(ROWS) > 20
