"""docs/spec/imdspolicy.md leaves nothing out."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from caretaker.api.conditions import PolicyReason
from caretaker.api.imds import Spec
from caretaker.registry import IMDS_POLICY
from testing import manifests
from testing.examplefiles import examples_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "spec" / "imdspolicy.md").read_text()
SCHEMA = manifests.load((ROOT / "crds" / "imdspolicies.yaml").read_text())["spec"]["versions"][0]
PARTS = SCHEMA["schema"]["openAPIV3Schema"]["properties"]
WORDS = {word for span in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"[\w./-]+", span)}
# Of label selectors, which Kubernetes' own manual tells.
SELECTORS = ("selector.nodeSelector", "selector.exclude")


def leaves(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    below = schema.get("properties") or schema.get("items", {}).get("properties") or {}
    if not below or path in SELECTORS:
        yield path
        return
    for name, child in below.items():
        yield from leaves(child, f"{path}.{name}".lstrip("."))


def test_every_field_of_spec_has_its_row() -> None:
    table = PAGE.partition("\n## Fields\n")[2].partition("\n## ")[0]
    rows = {word.removesuffix("[]") for word in re.findall(r"`([\w.\[\]]+)`", table)}
    fields = {
        path.replace("selector.groups.kind", "selector.groups").replace(
            "selector.groups.names", "selector.groups"
        )
        for path in leaves(PARTS["spec"])
    }
    assert sorted(fields - rows) == [], "docs/spec/imdspolicy.md: a row in the table Fields"


def test_every_field_of_status_is_told() -> None:
    shared = {"type", "status", "reason", "message", "observedGeneration", "lastTransitionTime"}
    told = {"kind", "name", "nodes", "groupsOmitted", "exceptionsOmitted", "node", "instance", "field", "at"}
    fields = {path.rpartition(".")[2] for path in leaves(PARTS["status"])} - shared - told
    assert sorted(fields - {word.rpartition(".")[2] for word in WORDS}) == []


def test_every_reason_is_told() -> None:
    reasons = {value for name, value in vars(PolicyReason).items() if name.isupper()}
    assert sorted(reasons - WORDS) == [], "docs/spec/imdspolicy.md: a row in the table of conditions"


def test_what_can_be_copied_can_be_read() -> None:
    for body in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        msgspec.convert(manifests.load(body)["spec"], Spec)
    assert examples_of(IMDS_POLICY)
