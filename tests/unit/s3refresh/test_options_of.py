"""Every field of the spec that says when a refresh starts has an effect: options_of() maps it."""

from typing import Any

import msgspec
import pytest
from msgspec import inspect

from caretaker.api.s3refresh import BucketStatus, CostSpec, CostStatus, Debounce, Resync, Retry
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.resource import options_of
from caretaker.s3refresh.targets import registry
from caretaker.s3refresh.targets.storagegateway import Completion

PARTS: dict[str, type[msgspec.Struct]] = {
    "debounce": Debounce,
    "retry": Retry,
    "resync": Resync,
    "cost": CostSpec,
    "completion": Completion,
}
# Fields with another way into the plan: PlanInput (snapshot.py), which gather.py fills.
ELSEWHERE = {("resync", "onStart")}
FIELDS = {
    (part, field.encode_name): field.type
    for part, struct in PARTS.items()
    for field in inspect.type_info(struct).fields  # type: ignore[attr-defined]
    if (part, field.encode_name) not in ELSEWHERE
}
COUNTED = CostStatus(buckets=(BucketStatus("media", "eu-west-1", objects=100_000),))


def options(part: str = "", **fields: object) -> DebounceOptions:
    """With these fields in the part. Prices matter with a budget alone, so there is one."""
    parts: dict[str, Any] = {name: {} for name in PARTS}
    parts["cost"]["maxEstimatedCostPerDay"] = "100"
    if part:
        parts[part].update(fields)
    gateway = {"shares": {"discover": {}}, "completion": parts.pop("completion")}
    spec = {
        "aws": {"region": "eu-west-1"},
        "source": {"sqs": {"queueURL": "https://sqs.eu-west-1.amazonaws.com/111122223333/q"}},
        "target": {"storageGateway": gateway},
        **parts,
    }
    return options_of(msgspec.convert(spec, registry().spec), COUNTED)


def values_of(part: str, found: inspect.Type) -> list[object]:
    """Values, of which one at least is not the default."""
    match found:
        case inspect.UnionType():
            return [value for one in found.types for value in values_of(part, one)]
        case inspect.LiteralType():
            return list(found.values)
        case inspect.BoolType():
            return [False, True]
        case inspect.IntType():
            return [7]
        case inspect.StrType():
            return ["9.5" if part == "cost" else "77s"]
    return []


@pytest.mark.parametrize(("part", "field"), FIELDS, ids=[".".join(one) for one in FIELDS])
def test_a_field_changes_the_options(part: str, field: str) -> None:
    values = values_of(part, FIELDS[part, field])
    assert values, f"values_of() here has none of the type of {part}.{field}"
    changed = [options(part, **{field: value}) != options() for value in values]
    assert any(changed), (
        f"{part}.{field} is read and has no effect: options_of() in operator/caretaker/s3refresh/resource.py "
        "has to give it to a field of DebounceOptions (s3refresh/options.py); a field of PlanInput goes into "
        "ELSEWHERE of tests/unit/s3refresh/test_options_of.py"
    )
