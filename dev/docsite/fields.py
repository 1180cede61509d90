"""The reference of a kind, in Markdown with HTML tables, from its CRD alone. Pure.

A keyword of a schema that the page could not tell is an error, so that no constraint is left out in silence.
"""

import html
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

Json = dict[str, Any]

_RULES: Final = "x-kubernetes-validations"
_ANY: Final = "x-kubernetes-int-or-string"
# Of these a field's own cells and rows are made.
_TOLD: Final = {"type", "format", "description", "default", "properties", "required", "items", _RULES, _ANY}
_BOUNDS: Final = (
    ("minimum", "maximum", ""),
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"),
    ("minProperties", "maxProperties", " entries"),
)


class Field(NamedTuple):
    """One field: its path below the resource, such as `spec.budgets[].nodes`. All but `path` is HTML."""

    path: str
    type: str
    default: str
    constraints: str
    description: str


class Rule(NamedTuple):
    """A CEL rule, and the field that it is about."""

    path: str
    message: str
    rule: str


def page(crd: Json, guide: str, source: str) -> str:
    """The page. `guide` and `source`: links to the text about the kind, and to the CRD."""
    spec, kind = crd["spec"], crd["spec"]["names"]["kind"]
    parts = [
        f"---\nhide: [toc]\n---\n\n# Fields of {kind}\n",
        f"From the [CRD]({source}). What the fields do together: [{kind}]({guide}).\n",
    ]
    for version in spec["versions"]:
        schema, name = version["schema"]["openAPIV3Schema"], f"{spec['group']}/{version['name']}"
        parts.append(f"{html.escape(schema.get('description', ''), quote=False)}\n")
        for part in ("spec", "status"):
            found = fields(schema["properties"].get(part, {}), part)
            parts.append(f"## {part} of {name}\n\n{_table(Field._fields, map(_row, found))}")
        rules = ((_code(rule.path), _text(rule.message), _code(rule.rule)) for rule in rules_of(schema, ""))
        parts.append(f"## Rules of {name}\n\n{_table(('field', 'message', 'rule'), rules)}")
        columns = (
            (
                _text(c["name"]),
                _code(c["jsonPath"]),
                _text(c.get("description", "")),
                "wide" * (c.get("priority", 0) > 0),
            )
            for c in version.get("additionalPrinterColumns", ())
        )
        parts.append(
            f"## Columns of {name}\n\n{_table(('column', 'path', 'description', 'output'), columns)}"
        )
    return "\n".join(parts)


def fields(schema: Json, path: str, *, required: bool = False) -> Iterator[Field]:
    """The field at `path` and all below it. ValueError: a keyword that is not known here."""
    constraints = list(_constraints(schema, path))
    if required:
        constraints.insert(0, "required")
    default = _code(json.dumps(schema["default"])) if "default" in schema else ""
    if constraints or default or "description" in schema or not path.endswith(("[]", ".*")):
        description = _text(schema.get("description", ""))
        yield Field(path, _text(_type(schema)), default, "; ".join(constraints), description)
    needed = schema.get("required", ())
    for name, child in schema.get("properties", {}).items():
        yield from fields(child, f"{path}.{name}", required=name in needed)
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from fields(schema["additionalProperties"], f"{path}.*")


def rules_of(schema: Json, path: str) -> Iterator[Rule]:
    """Every CEL rule, by the field that it is about."""
    for rule in schema.get(_RULES, ()):
        yield Rule((path + rule.get("fieldPath", "")).lstrip("."), rule["message"], rule["rule"])
    for name, child in schema.get("properties", {}).items():
        yield from rules_of(child, f"{path}.{name}")
    if "items" in schema:
        yield from rules_of(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from rules_of(schema["additionalProperties"], f"{path}.*")


def _constraints(schema: Json, path: str) -> Iterator[str]:
    """In HTML, but for those that the parent has."""
    known = set(_TOLD)
    if "enum" in schema:
        known.add("enum")
        yield "one of " + ", ".join(_code(str(one)) or "(empty)" for one in schema["enum"])
    for least, most, unit in _BOUNDS:
        known |= {least, most}
        if least in schema and most in schema:
            yield f"{schema[least]} to {schema[most]}{unit}"
        elif least in schema:
            yield f"at least {schema[least]}{unit}"
        elif most in schema:
            yield f"at most {schema[most]}{unit}"
    for keyword, words in _WORDS.items():
        known.add(keyword)
        if keyword in schema:
            yield from words(schema[keyword])
    unknown = set(schema) - known
    if unknown:
        raise ValueError(f"{path or 'the schema'}: no words for {', '.join(sorted(unknown))}")


_WORDS: Final[dict[str, Callable[[Any], list[str]]]] = {
    "pattern": lambda value: [f"matches {_code(value)}"],
    "nullable": lambda value: ["may be null"] * value,
    "x-kubernetes-list-type": lambda value: ["no value twice"] * (value == "set"),
    "x-kubernetes-list-map-keys": lambda value: [f"one for each {', '.join(map(_code, value))}"],
    "x-kubernetes-preserve-unknown-fields": lambda value: ["other fields are kept"] * value,
    "additionalProperties": lambda value: ["other fields are kept"] * (value is True),
}


def _type(schema: Json) -> str:
    if schema.get(_ANY):
        return "integer or string"
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type(schema['additionalProperties'])}"
    form = f" ({schema['format']})" if "format" in schema else ""
    return f"{schema.get('type', 'any')}{form}"


def _row(field: Field) -> tuple[str, ...]:
    """Its cells; the first one is what links lead to."""
    path = _code(field.path).replace(".", ".<wbr>")
    return (f'<a id="{field.path}" href="#{field.path}">{path}</a>', *field[1:])


def _table(heads: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """In HTML, since Markdown would take pipes, stars and underscores of rules and patterns for its own."""
    head = "".join(f"<th>{one.capitalize()}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"


def _code(text: str) -> str:
    return f"<code>{html.escape(text, quote=False)}</code>" if text else ""


def _text(text: str) -> str:
    """In one line; what stands in backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(" ".join(text.split()), quote=False))
