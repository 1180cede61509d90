"""Tests as docs/security.md and docs/spec/tests.md name them: `tests/unit/test_docs.py::test_links`."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from testbed.paths import CHECKOUT

_TESTS: Final = CHECKOUT / "tests"
_SLOW: Final = "pytest.mark.slow"
_NAME: Final = re.compile(r"`(tests/[\w/]+\.py)::([Tt]est_?\w+)`")


def named(cell: str) -> list[tuple[str, str]]:
    """File and test of each name in a cell of a table, which holds nothing else."""
    found = _NAME.findall(cell)
    assert ", ".join(f"`{file}::{name}`" for file, name in found) == cell
    return found


@cache
def left_out(file: str) -> dict[str, bool]:
    """By name, those of classes and state machines as well: is the whole test left to `make test-all`?"""
    tree = ast.parse((CHECKOUT / file).read_text())
    _, folder, *parts = Path(file).parts
    tooling = {"unit": "_TOOLING_UNITS", "integration": "_TOOLING", "e2e": "_TOOLING"}.get(folder, "")
    slow = folder == "node" or (bool(tooling) and parts[0] in _assigned(tooling))
    found = {}
    for statement in tree.body:
        for name in _targets(statement):
            slow = slow or (name == "pytestmark" and _SLOW in ast.unparse(statement))
            if name.startswith("Test"):
                found[name] = slow
    for node in _statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            found[node.name] = slow or any(ast.unparse(mark) == _SLOW for mark in node.decorator_list)
    return found


def _statements(of: ast.Module | ast.ClassDef) -> Iterator[ast.stmt]:
    """Those of a module and of its classes, where pytest looks for tests."""
    for statement in of.body:
        yield statement
        if isinstance(statement, ast.ClassDef):
            yield from _statements(statement)


def _targets(statement: ast.stmt) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


@cache
def _assigned(name: str) -> set[str]:
    """What tests/conftest.py marks."""
    for statement in ast.parse((_TESTS / "conftest.py").read_text()).body:
        if isinstance(statement, ast.Assign) and _targets(statement) == [name]:
            return set(ast.literal_eval(statement.value))
    raise AssertionError(f"tests/conftest.py has no {name}")
