"""What a pass reads and decides is not changed while the plan is carried out."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from caretaker.daemontask.ecs.plan import plan as ecs_plan
from caretaker.daemontask.status_input import Outcome
from unit.daemontask.build import NOW, entry, failed, node, planned, pod, succeeded, task
from unit.daemontask.ecs.build import snapshot as ecs_snapshot

A, B, C, D = (node(name) for name in "abcd")
PODS = [succeeded(A), failed(B), pod(C, phase="Pending", node_name="", created=NOW - 9000)]
SPEC: dict[str, Any] = {"parallelism": 2, "run_guarantee": "AtMostOnce", "backoff_limit": 0}


def structs(value: Any) -> Iterator[Any]:
    """The structs and lists in this value."""
    if isinstance(value, msgspec.Struct):
        yield value
        parts = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
        if isinstance(value, list | set):
            yield value
    else:
        parts = []
    for part in parts:
        yield from structs(part)


def is_frozen(value: Any) -> bool:
    return isinstance(value, msgspec.Struct) and value.__struct_config__.frozen


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(planned(task(), [A, B, C, D], PODS), id="of Pods"),
        pytest.param(planned(task(**SPEC), [A, B, C, D], PODS[1:], {"a": entry(A)}), id="at most once"),
        pytest.param(ecs_plan(ecs_snapshot()), id="of an ECS target"),
        pytest.param(Outcome(), id="the outcome"),
    ],
)
def test_a_plan_is_frozen_with_every_struct_in_it(made: Any) -> None:
    found = list(structs(made))
    assert found[0] is made
    assert not {type(each).__name__ for each in found if not is_frozen(each)}
