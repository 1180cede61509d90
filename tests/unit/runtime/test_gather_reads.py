"""gather changes nothing that outlives it, in the class that it belongs to: no attribute of an object that it
did not make itself is assigned, deleted or changed by a method. Caches of what it read are the exception.

Changes in other modules are not covered; those of a DaemonTask's state see test_task_state.py.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import pytest

from caretaker.daemontask.controller import DaemonTaskKind
from caretaker.daemontask.ecs.controller import EcsTarget
from caretaker.daemontask.wiring import Targets
from caretaker.imds.controller import IMDSPolicyKind
from caretaker.s3refresh.controller import S3AggregatedRefreshKind
from caretaker.s3refresh.gather import Reader

# What gather may set, with a reason.
CACHES: Final[dict[type[Any], set[str]]] = {
    IMDSPolicyKind: set(),
    S3AggregatedRefreshKind: set(),
    # A dry run shows whether the CRD keeps the record of a request, and is not repeated once it does.
    Reader: {"self._of.client.patch", "self._shared.keeps_requests"},
    EcsTarget: set(),
    Targets: set(),
    # An event that comes before before() is compared with the spec that was read; and neither a dry run nor
    # a list of the ledger is repeated because the pass failed after it. A ledger that was read again may be
    # ahead of the data of spec.dataRefs, which is therefore due.
    DaemonTaskKind: {"state.spec", "state.ledger.shards", "state.spec.data.due"},
}
CHANGES: Final = frozenset(
    (
        *("add", "append", "clear", "discard", "extend", "pop", "remove", "setdefault", "update"),
        *(
            "create",
            "create_task",
            "delete",
            "forget",
            "observe_delete",
            "observe_write",
            "patch",
            "set",
            "want",
        ),
        *("put", "recorded", "refused", "remember", "withdrawn", "write"),
    )
)
Method = ast.FunctionDef | ast.AsyncFunctionDef


def methods(of: type[Any]) -> dict[str, Method]:
    [made] = ast.parse(textwrap.dedent(inspect.getsource(of))).body
    assert isinstance(made, ast.ClassDef)
    return {one.name: one for one in made.body if isinstance(one, Method)}


def root(node: ast.AST) -> str:
    """The name that an attribute, an item or a call of a method begins with."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Await | ast.Attribute | ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func
        else:
            return ""
    return node.id


def shared(method: Method) -> set[str]:
    """Its names of objects that it did not make: parameters, and what it got from them."""
    found = {arg.arg for arg in (*method.args.args, *method.args.kwonlyargs)}
    for node in ast.walk(method):  # in the order of the source, within a block
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            each = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            values = node.value.elts if each else [node.value] * len(names)
            for name, value in zip(names, values, strict=True):
                parts = value.values if isinstance(value, ast.BoolOp) else [value]
                if isinstance(name, ast.Name) and any(root(part) in found for part in parts):
                    found.add(name.id)
    return found


def reached(every: dict[str, Method], name: str) -> set[str]:
    """It, and the methods that it calls."""
    found, left = set[str](), [name]
    while left:
        one = left.pop()
        if one in every and one not in found:
            found.add(one)
            nodes = ast.walk(every[one])
            left += [node.attr for node in nodes if isinstance(node, ast.Attribute) and root(node) == "self"]
    return found


def changes(method: Method) -> Iterator[str]:
    names = shared(method)
    for node in ast.walk(method):
        kept = node.func if isinstance(node, ast.Call) else node
        if not isinstance(kept, ast.Attribute | ast.Subscript) or root(kept) not in names:
            continue
        called = isinstance(node, ast.Call) and isinstance(kept, ast.Attribute) and kept.attr in CHANGES
        if called or not isinstance(kept.ctx, ast.Load):
            yield ast.unparse(kept)


@pytest.mark.parametrize("kind", CACHES, ids=lambda kind: kind.__name__)
def test_gather_changes_nothing_but_caches(kind: type[Any]) -> None:
    every = methods(kind)
    assert {one for name in reached(every, "gather") for one in changes(every[name])} == CACHES[kind]


class Writes:
    """A kind whose gather writes."""

    def __init__(self) -> None:
        self._states: dict[str, Any] = {}

    async def gather(self, key: str) -> None:
        state, own = self._states.get(key), dict[str, int]()
        own["a"] = 1
        own.clear()
        self._further(state)

    def _further(self, state: Any) -> None:
        turn = state.turn
        turn.taken = 1.0
        state.refused.clear()
        del self._states["a"]


def test_a_change_is_found_in_whatever_it_is_called_by_and_by_another_name() -> None:
    every = methods(Writes)
    found = {one for name in reached(every, "gather") for one in changes(every[name])}
    assert found == {"turn.taken", "state.refused.clear", "self._states['a']"}
