"""gather of IMDSPolicyKind assigns no attribute of its own, itself or through a method.

Memory that other objects keep, such as the modifier's, is not covered.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import pytest

from caretaker.imds.controller import IMDSPolicyKind

KINDS: Final = (IMDSPolicyKind,)
CHANGES: Final = frozenset(
    (
        *("add", "append", "clear", "discard", "pop", "remove", "setdefault", "update"),
        *("create", "create_task", "delete", "forget", "patch", "set", "want"),
    )
)


def methods(of: type[Any]) -> dict[str, ast.AST]:
    [made] = ast.parse(textwrap.dedent(inspect.getsource(of))).body
    assert isinstance(made, ast.ClassDef)
    return {one.name: one for one in made.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


def own(node: ast.AST) -> bool:
    """Whether it is an attribute of self, or a part of one."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            return True
        node = node.value
    return False


def reached(every: dict[str, ast.AST], name: str) -> set[str]:
    """It, and the methods that it calls."""
    found, left = set[str](), [name]
    while left:
        one = left.pop()
        if one in every and one not in found:
            found.add(one)
            left += [
                node.attr for node in ast.walk(every[one]) if isinstance(node, ast.Attribute) and own(node)
            ]
    return found


def changes(method: ast.AST) -> Iterator[str]:
    for node in ast.walk(method):
        kept = node.func if isinstance(node, ast.Call) else node
        if not isinstance(kept, ast.Attribute | ast.Subscript) or not own(kept):
            continue
        called = isinstance(node, ast.Call) and isinstance(kept, ast.Attribute) and kept.attr in CHANGES
        if called or not isinstance(kept.ctx, ast.Load):
            yield ast.unparse(kept)


@pytest.mark.parametrize("kind", KINDS)
def test_gather_changes_nothing(kind: type[Any]) -> None:
    every = methods(kind)
    assert {name: [*found] for name in reached(every, "gather") if (found := [*changes(every[name])])} == {}
