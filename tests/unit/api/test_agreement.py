"""The CRD and the structs of caretaker/api describe the same object, field by field, in both directions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec import inspect

from caretaker.api import names
from caretaker.api.conditions import MAX_MESSAGE
from caretaker.api.daemontask import MAX_LISTED, DaemonTask, Spec, Status

CRD = yaml.safe_load((Path(__file__).parents[3] / "crds" / "daemontasks.yaml").read_text())
VERSION = CRD["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]

# Kubernetes' own PodTemplateSpec: a plain dict here, partly declared in the CRD.
OPAQUE = {"spec.template"}
# Declared for its CEL rule only; the struct is shared by all kinds.
OBJECT_META = {"apiVersion", "kind", "metadata"}

SCALARS: dict[type, str] = {
    inspect.LiteralType: "string",
    inspect.StrType: "string",
    inspect.IntType: "integer",
    inspect.BoolType: "boolean",
}
# A struct says "nothing" with these, a schema by having no default.
NOTHING = (None, "", [])

Schema = dict[str, Any]


def faults(found: inspect.Type, schema: Schema, path: str) -> Iterator[str]:
    """Every difference between a type and a schema, as `path: what differs`."""
    match found:
        case _ if path in OPAQUE:
            return
        case inspect.StructType():
            yield from struct_faults(found, schema, path)
        case inspect.UnionType():
            yield from union_faults(found, schema, path)
        case inspect.VarTupleType():
            yield from type_faults("array", schema, path)
            yield from faults(found.item_type, schema.get("items", {}), f"{path}[]")
        case _:
            yield from type_faults(SCALARS.get(type(found), repr(found)), schema, path)
            values = set(found.values) if isinstance(found, inspect.LiteralType) else set()
            if values != set(schema.get("enum", ())):
                yield f"{path}: values {values} in the struct, enum {schema.get('enum')} in the CRD"


def type_faults(wanted: str, schema: Schema, path: str) -> Iterator[str]:
    if schema.get("type") != wanted:
        yield f"{path}: {wanted} in the struct, {schema.get('type')} in the CRD"


def union_faults(found: inspect.UnionType, schema: Schema, path: str) -> Iterator[str]:
    types = [t for t in found.types if not isinstance(t, inspect.NoneType)]
    if len(types) == 1:
        yield from faults(types[0], schema, path)
    elif {type(t) for t in types} != {inspect.IntType, inspect.StrType}:
        yield f"{path}: {types} has no counterpart in a schema"
    elif not schema.get("x-kubernetes-int-or-string"):
        yield f"{path}: an integer or a string in the struct, not in the CRD"


def struct_faults(found: inspect.StructType, schema: Schema, path: str) -> Iterator[str]:
    yield from type_faults("object", schema, path)
    properties: dict[str, Schema] = schema.get("properties", {})
    fields = {f.encode_name: f for f in found.fields}
    for name in sorted(fields.keys() ^ properties.keys()):
        yield f"{path}.{name}: only in the {'struct' if name in fields else 'CRD'}"
    required = {f.encode_name for f in found.fields if f.required}
    for name in sorted(required ^ set(schema.get("required", ()))):
        yield f"{path}.{name}: required only in the {'struct' if name in required else 'CRD'}"
    for name in sorted(fields.keys() & properties.keys()):
        here = f"{path}.{name}".lstrip(".")
        yield from faults(fields[name].type, properties[name], here)
        yield from default_faults(fields[name], properties[name], here)
        yield from null_faults(found, fields[name], properties[name], here)


def default_faults(field: inspect.Field, schema: Schema, path: str) -> Iterator[str]:
    ours = None if field.required else plain_default(field)
    theirs = schema.get("default")
    # The API server never fills in status: the operator writes it whole. What stands there before the
    # first pass is kstatus' observedGeneration.
    by_server = not path.startswith("status") or "default" in schema
    if by_server and ours != theirs and not (ours in NOTHING and theirs is None):
        yield f"{path}: default {ours!r} in the struct, {theirs!r} in the CRD"


def plain_default(field: inspect.Field) -> Any:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return msgspec.json.decode(msgspec.json.encode(value))


def null_faults(owner: inspect.StructType, field: inspect.Field, schema: Schema, path: str) -> Iterator[str]:
    """A field that we write as null must be nullable, or the API server refuses the whole status."""
    optional = isinstance(field.type, inspect.UnionType) and field.type.includes_none
    written = optional and not owner.cls.__struct_config__.omit_defaults
    if written != schema.get("nullable", False):
        yield f"{path}: {'written' if written else 'never written'} as null, the CRD says otherwise"


def properties(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}".lstrip(".")
        yield here, child
        yield from properties(child, here)
        yield from properties(child.get("items", {}), f"{here}[]")


ALL = dict(properties(SCHEMA))


@pytest.mark.parametrize("part", [Spec, Status], ids=["spec", "status"])
def test_struct_and_crd_agree(part: type) -> None:
    name = part.__name__.lower()
    assert list(faults(inspect.type_info(part), SCHEMA["properties"][name], name)) == []


def test_the_object_has_no_other_parts() -> None:
    fields = {f.encode_name for f in inspect.type_info(DaemonTask).fields}
    assert SCHEMA["properties"].keys() | fields == OBJECT_META | {"spec", "status"}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        pytest.param(
            ("suspend", {"type": "string"}), "spec.suspend: boolean in the struct", id="another type"
        ),
        pytest.param(("suspend", None), "spec.suspend: only in the struct", id="a field left out"),
        pytest.param(
            ("schedule", {"type": "string"}), "spec.schedule: only in the CRD", id="a field too many"
        ),
        pytest.param(("backoffLimit", {"type": "integer", "default": 6}), "default 3", id="another default"),
        pytest.param(("parallelism", {"type": "integer"}), "an integer or a string", id="half a union"),
        pytest.param(
            ("suspend", {"type": "boolean", "default": False, "nullable": True}), "as null", id="a stray null"
        ),
    ],
)
def test_a_difference_is_found(change: tuple[str, Schema | None], fault: str) -> None:
    spec = SCHEMA["properties"]["spec"]
    name, schema = change
    changed = {k: v for k, v in {**spec["properties"], name: schema}.items() if v is not None}
    found = list(faults(inspect.type_info(Spec), {**spec, "properties": changed}, "spec"))
    assert len(found) >= 1
    assert fault in found[0]


def test_names_are_those_of_the_code() -> None:
    spec = CRD["spec"]
    assert (spec["group"], VERSION["name"]) == (names.GROUP, names.VERSION)
    assert CRD["metadata"]["name"] == f"{spec['names']['plural']}.{names.GROUP}"
    assert spec["names"]["kind"] == DaemonTask.__name__


def test_limits_are_those_of_the_code() -> None:
    for name in ("failedNodes", "blockedNodes"):
        assert ALL[f"status.{name}"]["maxItems"] == MAX_LISTED
    assert ALL["status.conditions[].message"]["maxLength"] == MAX_MESSAGE


def test_every_field_is_described() -> None:
    bare = [
        path
        for path, schema in ALL.items()
        if not schema.get("description") and path.split(".")[0] != "metadata"
    ]
    assert bare == []


def test_every_optional_setting_tells_its_default() -> None:
    optional = [p for p in ALL if p.startswith("spec.") and p.count(".") == 1 and p != "spec.template"]
    assert [p for p in optional if "Default" not in ALL[p]["description"]] == []


def test_every_rule_tells_what_is_wrong_and_where() -> None:
    rules = [r for s in (SCHEMA, *ALL.values()) for r in s.get("x-kubernetes-validations", ())]
    rules += [r for s in ALL.values() for r in s.get("items", {}).get("x-kubernetes-validations", ())]
    assert len(rules) >= 10
    assert [r["rule"] for r in rules if not (r.get("message") and r.get("reason"))] == []


def test_nothing_below_the_template_gets_a_default_but_the_restart_policy() -> None:
    defaults = [p for p, s in ALL.items() if p.startswith("spec.template") and "default" in s]
    assert defaults == ["spec.template.spec.restartPolicy"]
