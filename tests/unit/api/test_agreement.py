"""Each CRD and its structs of caretaker/api describe the same object, field by field, in both directions."""

from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from caretaker.api import daemontask, durations, ecs, names, s3refresh
from caretaker.api.conditions import MAX_MESSAGE
from caretaker.daemontask import results
from caretaker.registry import DAEMON_TASK, KINDS, S3_AGGREGATED_REFRESH, KindInfo
from caretaker.s3refresh import folders, targets
from testing import manifests

CRDS = Path(__file__).parents[3] / "crds"
Schema = dict[str, Any]


@cache
def loaded(plural: str) -> Schema:
    found: Schema = manifests.load((CRDS / f"{plural}.yaml").read_text())
    return found


class Case(msgspec.Struct, frozen=True):
    """A kind: its CRD, the struct of the whole object, the structs of its parts."""

    info: KindInfo
    object: type
    spec: type
    status: type
    # Paths that are another type's: a plain dict here, partly declared in the CRD.
    opaque: frozenset[str] = frozenset()

    @property
    def crd(self) -> Schema:
        return loaded(self.info.plural)

    @property
    def version(self) -> Schema:
        found: Schema = self.crd["spec"]["versions"][0]
        return found

    @property
    def schema(self) -> Schema:
        found: Schema = self.version["schema"]["openAPIV3Schema"]
        return found

    @property
    def all(self) -> dict[str, Schema]:
        """Every field by its path."""
        return dict(properties(self.schema))


OPAQUE = {
    DAEMON_TASK: frozenset({"spec.template"}),  # Kubernetes' own PodTemplateSpec
    S3_AGGREGATED_REFRESH: frozenset({"spec.target.job.template"}),
}
# The targets make it; of the others it is Spec.
SPECS: dict[KindInfo, type] = {S3_AGGREGATED_REFRESH: targets.registry().spec}


def case(info: KindInfo) -> Case:
    """Of a kind whose structs are in the module of caretaker.api that is named as its package."""
    module = import_module(f"caretaker.api.{info.package}")
    spec = SPECS.get(info) or module.Spec
    return Case(info, getattr(module, info.kind), spec, module.Status, OPAQUE.get(info, frozenset()))


CASES = {info: case(info) for info in KINDS}
TASK, REFRESH = CASES[DAEMON_TASK], CASES[S3_AGGREGATED_REFRESH]
each_kind = pytest.mark.parametrize("case", CASES.values(), ids=[info.kind for info in CASES])

# Declared for its CEL rule, or for completeness; the struct is shared by all kinds.
OBJECT_META = {"apiVersion", "kind", "metadata"}

SCALARS: dict[type, str] = {
    inspect.LiteralType: "string",
    inspect.StrType: "string",
    inspect.IntType: "integer",
    inspect.BoolType: "boolean",
    inspect.FloatType: "number",
}
# A struct says "nothing" with these, a schema by having no default.
NOTHING = (None, "", [])


def faults(found: inspect.Type, schema: Schema, path: str, opaque: frozenset[str]) -> Iterator[str]:
    """Every difference between a type and a schema, as `path: what differs`."""
    match found:
        case _ if path in opaque:
            return
        case inspect.StructType():
            yield from struct_faults(found, schema, path, opaque)
        case inspect.UnionType():
            yield from union_faults(found, schema, path, opaque)
        case inspect.VarTupleType():
            yield from type_faults("array", schema, path)
            yield from faults(found.item_type, schema.get("items", {}), f"{path}[]", opaque)
        case inspect.DictType():
            yield from type_faults("object", schema, path)
            yield from faults(found.value_type, schema.get("additionalProperties", {}), f"{path}{{}}", opaque)
        case _:
            yield from type_faults(SCALARS.get(type(found), repr(found)), schema, path)
            values = set(found.values) if isinstance(found, inspect.LiteralType) else set()
            if values != set(schema.get("enum", ())):
                yield f"{path}: values {values} in the struct, enum {schema.get('enum')} in the CRD"


def type_faults(wanted: str, schema: Schema, path: str) -> Iterator[str]:
    if schema.get("type") != wanted:
        yield f"{path}: {wanted} in the struct, {schema.get('type')} in the CRD"


def union_faults(
    found: inspect.UnionType, schema: Schema, path: str, opaque: frozenset[str]
) -> Iterator[str]:
    types = [t for t in found.types if not isinstance(t, inspect.NoneType)]
    if len(types) == 1:
        yield from faults(types[0], schema, path, opaque)
    elif {type(t) for t in types} != {inspect.IntType, inspect.StrType}:
        yield f"{path}: {types} has no counterpart in a schema"
    elif not schema.get("x-kubernetes-int-or-string"):
        yield f"{path}: an integer or a string in the struct, not in the CRD"


def struct_faults(
    found: inspect.StructType, schema: Schema, path: str, opaque: frozenset[str]
) -> Iterator[str]:
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
        yield from faults(fields[name].type, properties[name], here, opaque)
        if here not in opaque:
            yield from default_faults(fields[name], properties[name], here)
        yield from null_faults(found, fields[name], properties[name], here)


def default_faults(field: inspect.Field, schema: Schema, path: str) -> Iterator[str]:
    ours = None if field.required else plain_default(field)
    theirs = schema.get("default")
    # The API server never fills in status: the operator writes it whole. What stands there before the
    # first pass is kstatus' observedGeneration.
    by_server = not path.startswith("status") or "default" in schema
    if by_server and ours != theirs and not (theirs is None and says_nothing(ours, schema)):
        yield f"{path}: default {ours!r} in the struct, {theirs!r} in the CRD"


def says_nothing(ours: Any, schema: Schema) -> bool:
    """Whether a default may be left out of the CRD. Of an object only where nothing below it has one either:
    the API server fills in the parts of what is there."""
    below = (child for _, child in properties(schema))
    return ours in NOTHING or (ours == {} and not any("default" in child for child in below))


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


def schemas(schema: Schema) -> Iterator[Schema]:
    """The schema and every one in it: of fields, items and values."""
    yield schema
    children = (schema.get("items"), schema.get("additionalProperties"))
    for child in (*schema.get("properties", {}).values(), *children):
        if isinstance(child, dict):
            yield from schemas(child)


@pytest.mark.parametrize("part", ["spec", "status"])
@each_kind
def test_struct_and_crd_agree(case: Case, part: str) -> None:
    struct = inspect.type_info(getattr(case, part))
    assert list(faults(struct, case.schema["properties"][part], part, case.opaque)) == []


@each_kind
def test_the_object_has_no_other_parts(case: Case) -> None:
    found = inspect.type_info(case.object)
    assert isinstance(found, inspect.StructType)
    fields = {f.encode_name for f in found.fields}
    assert case.schema["properties"].keys() | fields == OBJECT_META | {"spec", "status"}


BOOLEAN = {"type": "boolean", "default": False}


@pytest.mark.parametrize(
    ("case", "change", "fault"),
    [
        pytest.param(
            TASK,
            {"suspend": {"type": "string"}},
            "spec.suspend: boolean in the struct",
            id="another type",
        ),
        pytest.param(TASK, {"suspend": None}, "spec.suspend: only in the struct", id="a field left out"),
        pytest.param(
            TASK, {"someday": {"type": "string"}}, "spec.someday: only in the CRD", id="a field too many"
        ),
        pytest.param(
            TASK, {"backoffLimit": {"type": "integer", "default": 6}}, "default 3", id="another default"
        ),
        pytest.param(TASK, {"parallelism": {"type": "integer"}}, "an integer or a string", id="half a union"),
        pytest.param(TASK, {"suspend": {**BOOLEAN, "nullable": True}}, "as null", id="a stray null"),
        pytest.param(
            REFRESH,
            {"onDelete": {"type": "string", "enum": ["Discard"], "default": "Discard"}},
            "spec.onDelete: values",
            id="half an enum",
        ),
        pytest.param(
            REFRESH,
            {"debounce": lambda schema: {k: v for k, v in schema.items() if k != "default"}},
            "spec.debounce: default {} in the struct, None in the CRD",
            id="an object whose parts the API server would not fill in",
        ),
        pytest.param(
            REFRESH,
            {
                "aws": lambda schema: {
                    **schema,
                    "properties": {**schema["properties"], "endpointURLs": {"type": "object"}},
                }
            },
            "spec.aws.endpointURLs{}: string in the struct",
            id="a map of anything",
        ),
    ],
)
def test_a_difference_is_found(
    case: Case, change: dict[str, Schema | Callable[[Schema], Schema] | None], fault: str
) -> None:
    spec = case.schema["properties"]["spec"]
    fields = dict(spec["properties"])
    for name, schema in change.items():
        fields[name] = schema(fields[name]) if callable(schema) else schema
    fields = {name: schema for name, schema in fields.items() if schema is not None}
    changed = {**spec, "properties": fields}
    found = list(faults(inspect.type_info(case.spec), changed, "spec", case.opaque))
    assert len(found) >= 1
    assert fault in found[0]


@each_kind
def test_names_are_those_of_the_code(case: Case) -> None:
    spec = case.crd["spec"]
    assert (spec["group"], case.version["name"]) == (names.GROUP, names.VERSION)
    assert case.crd["metadata"]["name"] == f"{case.info.plural}.{names.GROUP}"
    assert (spec["names"]["kind"], spec["names"]["plural"]) == (case.info.kind, case.info.plural)
    assert case.object.__name__ == case.info.kind
    assert spec["scope"] == ("Namespaced" if case.info.namespaced else "Cluster")


@pytest.mark.parametrize(
    ("case", "path", "limit", "wanted"),
    [
        (TASK, "status.failedNodes", "maxItems", daemontask.MAX_LISTED),
        (TASK, "status.blockedNodes", "maxItems", daemontask.MAX_LISTED),
        (TASK, "status.resultErrors", "maxItems", results.MAX_ERRORS),
        (TASK, "status.ecs", "maxItems", ecs.MAX_CLUSTERS),
        (TASK, "status.results[].values", "maxItems", results.MAX_VALUES),
        (TASK, "status.conditions[].message", "maxLength", MAX_MESSAGE),
        (REFRESH, "status.conditions[].message", "maxLength", MAX_MESSAGE),
        (REFRESH, "status.targets", "maxItems", s3refresh.MAX_TARGETS),
        (REFRESH, "spec.target.storageGateway.shares.fileShareARNs", "maxItems", s3refresh.MAX_TARGETS),
        (REFRESH, "status.targets[].dirty.folders", "maxItems", folders.MAX_FOLDERS),
        (REFRESH, "status.targets[].dirty.trees", "maxItems", folders.MAX_FOLDERS),
    ],
)
def test_limits_are_those_of_the_code(case: Case, path: str, limit: str, wanted: int) -> None:
    assert case.all[path][limit] == wanted


def test_a_call_records_as_many_folders_as_it_may_name() -> None:
    fields = REFRESH.all
    most = fields["spec.target.storageGateway.maxFolders"]["maximum"]
    for call in ("claim", "inFlight"):
        assert fields[f"status.targets[].{call}.folders"]["maxItems"] == most


def test_every_duration_has_the_pattern_that_the_code_reads() -> None:
    fields = REFRESH.all
    found = [path for path, schema in fields.items() if schema.get("pattern") == durations.PATTERN]
    assert len(found) == 12
    given = {path: fields[path]["default"] for path in found if "default" in fields[path]}
    # Its default depends on whether ends are heard of: targets/storagegateway.py.
    assert set(found) - set(given) == {"spec.target.storageGateway.completion.assumeAfter"}
    for default in given.values():
        durations.seconds(default)


@each_kind
def test_every_field_is_described(case: Case) -> None:
    bare = [
        path
        for path, schema in case.all.items()
        if not schema.get("description") and path.split(".")[0] != "metadata"
    ]
    assert bare == []


@each_kind
def test_every_optional_setting_tells_its_default(case: Case) -> None:
    fields = case.all
    required = {f"spec.{name}" for name in case.schema["properties"]["spec"].get("required", ())}
    optional = [p for p in fields if p.startswith("spec.") and p.count(".") == 1 and p not in required]
    assert optional
    assert [p for p in optional if "Default" not in fields[p]["description"]] == []


@each_kind
def test_every_rule_tells_what_is_wrong_and_where(case: Case) -> None:
    rules = [rule for s in schemas(case.schema) for rule in s.get("x-kubernetes-validations", ())]
    assert len(rules) >= 5
    assert [r["rule"] for r in rules if not (r.get("message") and r.get("reason"))] == []


@each_kind
def test_what_a_regular_expression_refuses_is_told_in_words_too(case: Case) -> None:
    """The API server tells of a pattern that does not match by the pattern alone."""
    given = [s for s in schemas(case.schema["properties"]["spec"]) if "pattern" in s]
    assert given
    assert [s["pattern"] for s in given if not in_words(s)] == []


def in_words(schema: Schema) -> bool:
    """Whether one of the rules refuses, too, what the pattern does."""
    same = f"self.matches(r'{schema['pattern']}')"
    return any(
        same in rule["rule"] and "||" not in rule["rule"] and "must" in rule["message"]
        for rule in schema.get("x-kubernetes-validations", ())
    )


def test_nothing_below_the_template_gets_a_default_but_the_restart_policy() -> None:
    defaults = [p for p, s in TASK.all.items() if p.startswith("spec.template") and "default" in s]
    assert defaults == ["spec.template.spec.restartPolicy"]
