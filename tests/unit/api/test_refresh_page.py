"""docs/spec/s3aggregatedrefresh.md leaves nothing out, and what can be copied from it works."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.conditions import RefreshReason
from caretaker.api.grants import Grants, refusals
from caretaker.registry import S3_AGGREGATED_REFRESH
from caretaker.s3refresh import queue_view
from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.folders import Request
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.resource import options_of
from caretaker.s3refresh.target_types import target_type_of
from caretaker.s3refresh.targets import registry
from caretaker.s3refresh.targets.headers import RESERVED
from caretaker.s3refresh.targets.payload import payload_of
from testing import manifests
from testing.examplefiles import examples_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "spec" / "s3aggregatedrefresh.md").read_text()
SCHEMA = manifests.load((ROOT / "crds" / "s3aggregatedrefreshes.yaml").read_text())["spec"]["versions"][0]
PARTS = SCHEMA["schema"]["openAPIV3Schema"]["properties"]
SPANS = re.findall(r"`([^`\n]+)`", PAGE)
WORDS = {word for span in SPANS for word in re.findall(r"[\w./-]+", span)}
EXAMPLES = {path.stem: path for path in examples_of(S3_AGGREGATED_REFRESH)}
EXAMPLE = EXAMPLES["s3-aggregated-refresh"]


def leaves(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Every field that holds a value, by its path below spec or status."""
    below = schema.get("properties") or schema.get("items", {}).get("properties") or {}
    if not below:
        yield path
    for name, child in below.items():
        yield from leaves(child, f"{path}.{name}".lstrip("."))


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_every_field_of_spec_has_its_row() -> None:
    rows = set(re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE))
    missing = sorted(set(leaves(PARTS["spec"])) - rows)
    assert missing == [], (
        "docs/spec/s3aggregatedrefresh.md: a row in the table of fields, by the path below spec"
    )


def test_every_field_of_status_is_told() -> None:
    shared = {"type", "status", "reason", "message", "observedGeneration", "lastTransitionTime"}
    fields = {path.rpartition(".")[2] for path in leaves(PARTS["status"])} - shared
    assert sorted(fields - WORDS) == []


@pytest.mark.parametrize("part", ["spec", "status"])
def test_every_value_of_an_enum_is_told(part: str) -> None:
    def values(schema: Any) -> Iterator[str]:
        if isinstance(schema, dict):
            yield from (v for v in schema.get("enum", ()) if v)
            for child in schema.values():
                yield from values(child)

    assert sorted(set(values(PARTS[part])) - WORDS - {"True", "False", "Unknown"}) == []


def test_every_reason_is_told() -> None:
    reasons = {value for name, value in vars(RefreshReason).items() if name.isupper()}
    assert sorted(reasons - WORDS) == [], "docs/spec/s3aggregatedrefresh.md: a row in the table of conditions"


def test_every_event_is_told() -> None:
    source = (ROOT / "operator" / "caretaker" / "s3refresh" / "status.py").read_text()
    named = set(re.findall(r'"(?:Normal|Warning)",\s*"(\w+)"', source))
    assert len(named) >= 3
    assert sorted(named - WORDS) == []


def test_every_example_is_told() -> None:
    assert len(EXAMPLES) == 8
    assert [stem for stem in EXAMPLES if f"examples/{stem}.yaml" not in PAGE] == []


def test_every_field_of_the_payload_is_told() -> None:
    share, request = Share("b", "", "b"), Request(("2026/11", "2026", "/"), recursive=False)
    told = json.loads(payload_of(share, Claim("c", "me", 0.0, request, 0.0)))
    (shown,) = [json.loads(b) for b in blocks("json") if '"claimID"' in b]
    assert shown.keys() == told.keys()
    assert shown["folders"] == told["folders"]
    assert sorted(told.keys() - WORDS) == []


def test_every_header_that_a_secret_may_not_set_is_told() -> None:
    assert sorted(RESERVED - {word.lower() for word in WORDS}) == []


def test_the_annotations_of_a_request_are_told() -> None:
    assert {names.REFRESH_AT, names.REFRESH_FOLDERS} <= set(SPANS)


def test_what_a_secret_of_headers_says_itself_is_told() -> None:
    assert {names.SECRET_HEADERS, names.SECRET_HOSTS} <= set(re.findall(r"`([^`\n]+)`", PAGE))


def test_the_example_on_the_page_is_one_the_operator_reads() -> None:
    (first,) = [b for b in blocks("yaml") if f"kind: {S3_AGGREGATED_REFRESH.kind}" in b]
    options_of(msgspec.convert(manifests.load(first)["spec"], registry().spec))


def test_the_file_of_identities_on_the_page_grants_what_the_example_uses() -> None:
    (file,) = [b for b in blocks("yaml") if b.startswith("identities:")]
    grants = Grants.decode(manifests.load(file))
    spec = msgspec.convert(manifests.load(EXAMPLE.read_text())["spec"], registry().spec)
    target_type = target_type_of(spec)
    used = {
        "spec.source.sqs.queueURL": spec.source.sqs.queue_url,
        target_type.ends_field.removeprefix("spec.target.storageGateway."): target_type.ends_url,
    }
    assert refusals(grants, "media", spec.aws, used) == ()
    (refused,) = refusals(grants, "games", spec.aws, used)[:1]
    assert refused.field == "spec.aws.roleARN"


def test_the_queue_on_the_page_will_do() -> None:
    """The attributes of the CLI's example, as SQS tells them."""
    (file,) = [b for b in blocks("json") if '"RedrivePolicy"' in b]
    attributes = json.loads(file)
    spec = msgspec.convert(manifests.load(EXAMPLE.read_text())["spec"], registry().spec)
    assert queue_view.fault_of(attributes, spec.source.sqs) == ""
    assert int(attributes["MessageRetentionPeriod"]) == 4 * 24 * 3600
