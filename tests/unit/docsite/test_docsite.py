"""The site of docs/: the reference made of CRDs, links and anchors of pages that are written for GitHub."""

import html
import re
from pathlib import Path
from typing import Any

import pytest

from docsite import fields
from docsite.pages import Anchors, Checkout
from testing import manifests

ROOT = Path(__file__).resolve().parents[3]
CRDS = {file.stem: manifests.load(file.read_text()) for file in sorted((ROOT / "crds").glob("*.yaml"))}

NODES = {
    "description": "How many. At most | so many.",
    "x-kubernetes-int-or-string": True,
    "default": "10%",
    "pattern": "^(a|b)*_[0-9]+%$",
}
SPEC: dict[str, Any] = {
    "type": "object",
    "required": ["mode"],
    "x-kubernetes-validations": [
        {"rule": "self.a <= 2 && self.b", "message": "a and <b>", "fieldPath": ".budgets"}
    ],
    "properties": {
        "mode": {"type": "string", "enum": ["Audit", ""], "default": "Audit", "maxLength": 63},
        "budgets": {
            "type": "array",
            "maxItems": 20,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "required": ["nodes"], "properties": {"nodes": NODES}},
        },
        "labels": {"type": "object", "additionalProperties": {"type": "string", "minLength": 1}},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 6}},
    },
}


def crd(spec: dict[str, Any]) -> dict[str, Any]:
    schema = {"description": "A *toy*.", "type": "object", "properties": {"spec": spec}}
    column = {"name": "Mode", "jsonPath": ".spec.mode", "priority": 1}
    version = {
        "name": "v1",
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [column],
    }
    return {"spec": {"group": "toys.dev", "names": {"kind": "Toy"}, "versions": [version]}}


def plain(cell: str) -> str:
    return html.unescape(re.sub("<[^>]+>", "", cell))


def cells(page: str) -> list[list[str]]:
    """Of each row of its tables, as they are read."""
    rows = re.findall(r"<tr><td>(.*)</td></tr>", page)
    return [[plain(cell) for cell in row.split("</td><td>")] for row in rows]


@pytest.mark.parametrize(
    "row",
    [
        ["spec.mode", "string", '"Audit"', "required; one of Audit, (empty); at most 63 characters", ""],
        ["spec.budgets", "list of object", "", "at most 20 items; one for each name", ""],
        [
            "spec.budgets[].nodes",
            "integer or string",
            '"10%"',
            "required; matches ^(a|b)*_[0-9]+%$",
            "How many. At most | so many.",
        ],
        ["spec.labels", "map of string", "", "", ""],
        ["spec.labels.*", "string", "", "at least 1 characters", ""],
        ["spec.days[]", "integer", "", "0 to 6", ""],
        ["spec.budgets", "a and <b>", "self.a <= 2 && self.b"],
        ["Mode", ".spec.mode", "", "wide"],
    ],
    ids=lambda row: row[0],
)
def test_the_reference_tells_what_a_schema_says(row: list[str]) -> None:
    assert row in cells(fields.page(crd(SPEC), "../spec/toy.md", "https://example.com/toy.yaml"))


def test_code_in_a_description_is_code() -> None:
    (row,) = fields.fields({"type": "string", "description": "Not `a: <b>`."}, "spec")
    assert row.description == "Not <code>a: &lt;b&gt;</code>."


def test_a_keyword_that_the_reference_has_no_words_for_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"spec\.a: no words for multipleOf"):
        fields.page(
            crd({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 2}}}), "g", "s"
        )


@pytest.mark.parametrize("name", CRDS)
def test_every_field_has_a_row_that_can_be_linked_to(name: str) -> None:
    def paths(schema: dict[str, Any], path: str) -> set[str]:
        below = schema.get("items", schema)
        end = "[]" if "items" in schema else ""
        children = below.get("properties", {}).items()
        return {path}.union(*(paths(child, f"{path}{end}.{key}") for key, child in children))

    schema = CRDS[name]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    wanted = paths(schema["spec"], "spec") | paths(schema["status"], "status")
    page = fields.page(CRDS[name], "g", "s")
    assert len(wanted) > 80
    assert wanted - set(re.findall(r'<a id="([^"]+)"', page)) == set()


# Field and default of a row in a table by hand.
ROW = re.compile(r"^\| `([\w.]+)(?:\[\])?` \| [^|]* \| ([^|]*) \|", re.MULTILINE)
# The operator's own, which depends on other fields; the last is not of one field.
NOT_OF_THE_SCHEMA = {"target.storageGateway.completion.assumeAfter", "ecs.aws"}


@pytest.mark.parametrize(
    ("plural", "guide", "heading", "prefix"),
    [
        ("daemontasks", "daemontask", "Spec", ""),
        ("daemontasks", "daemontask", "ECS target", "ecs."),
        ("s3aggregatedrefreshes", "s3aggregatedrefresh", "Spec", ""),
        ("imdspolicies", "imdspolicy", "Fields", ""),
    ],
)
def test_defaults_in_tables_by_hand_are_those_of_the_schema(
    plural: str, guide: str, heading: str, prefix: str
) -> None:
    """Those of lists and objects are told in words."""
    schema = CRDS[plural]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    cell = {f.path.removeprefix("spec."): f.default for f in fields.fields(schema, "spec")}
    text = (ROOT / "docs" / "spec" / f"{guide}.md").read_text()
    rows = ROW.findall(text.partition(f"\n## {heading}\n")[2].partition("\n##")[0])
    told = {prefix + path: (re.match(r"`([^`\[{]+)`", words) or ("", ""))[1] for path, words in rows}
    real = {path: plain(cell.get(path, "")).strip('"') for path in told}
    scalars = {path for path in told if real[path][:1] not in ("[", "{")} - NOT_OF_THE_SCHEMA
    assert len(scalars) > 5
    assert {path: told[path] for path in scalars} == {path: real[path] for path in scalars}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    for file in (
        "README.md",
        "docs/a.md",
        "docs/spec/b.md",
        "docs/iam/c.json",
        "crds/d.yaml",
        "examples/e.yaml",
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    pages = {"README.md": "index.md", "crds/d.yaml": "reference/d.md"}
    return Checkout(tmp_path, pages, "https://git.example.com/o/r", "v1")


@pytest.mark.parametrize(
    ("source", "target", "on_site"),
    [
        ("README.md", "docs/a.md#x", "a.md#x"),
        ("README.md", "crds/d.yaml", "reference/d.md"),
        ("docs/spec/b.md", "../a.md", "../a.md"),
        ("docs/spec/b.md", "../../crds/d.yaml", "../reference/d.md"),
        ("docs/spec/b.md", "../../README.md#limits", "../index.md#limits"),
        ("docs/spec/b.md", "../iam/c.json", "../iam/c.json"),
        ("docs/spec/b.md", "../iam", "https://git.example.com/o/r/tree/v1/docs/iam"),
        ("docs/a.md", "../examples/e.yaml", "https://git.example.com/o/r/blob/v1/examples/e.yaml"),
        ("docs/a.md", "../examples/", "https://git.example.com/o/r/tree/v1/examples"),
        ("docs/a.md", "#here", "#here"),
        ("docs/a.md", "https://example.com/x#y", "https://example.com/x#y"),
        ("docs/a.md", "gone.md", "gone.md"),
        ("docs/a.md", "../gone.md", "../gone.md"),
    ],
)
def test_links_lead_to_the_site_or_to_the_repository(
    checkout: Checkout, source: str, target: str, on_site: str
) -> None:
    assert checkout.on_site(f"See [`this`]({target}).\n", source) == f"See [`this`]({on_site}).\n"
    assert checkout.on_site(f"[x]: {target}\n", source) == f"[x]: {on_site}\n"


def test_what_is_code_stays(checkout: Checkout) -> None:
    text = "`[a](../README.md)`\n\n```yaml\nx:\n  - '[a](../README.md)'\n```\n"
    assert checkout.on_site(text, "docs/a.md") == text


def test_pipes_in_code_are_escaped_in_tables_of_github_alone(checkout: Checkout) -> None:
    assert checkout.on_site("| `a\\|b` |\n", "docs/a.md") == "| `a|b` |\n"
    assert checkout.on_site("`a\\|b`\n", "docs/a.md") == "`a\\|b`\n"


def test_lists_in_lists_get_the_indent_that_the_site_needs(checkout: Checkout) -> None:
    text = "- a\n  - b\n    of it\n\n1. c\n\n   | d |\n"
    assert checkout.on_site(text, "docs/a.md") == "- a\n    - b\n    of it\n\n1. c\n\n    | d |\n"


def test_anchors_are_numbered_by_page() -> None:
    anchors = Anchors()
    assert [anchors(h, "-") for h in ("A `b`: c / d", "NotGranted", "NotGranted", "NotGranted")] == [
        "a-b-c--d",
        "notgranted",
        "notgranted-1",
        "notgranted-2",
    ]
    anchors.begin()
    assert anchors("NotGranted", "-") == "notgranted"
