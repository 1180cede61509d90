"""The release's files that are text."""

import hashlib
import json
from typing import Final

import pytest
import yaml

from release import documents
from release.checks import Release
from testbed.paths import CHECKOUT

RELEASE: Final = Release(
    "1.2.3",
    "a" * 40,
    1_700_000_000,
    "https://github.com/owner/caretaker",
    "ghcr.io/owner/caretaker",
    "https://github.com/owner/caretaker/.github/workflows/release.yml@refs/tags/v1.2.3",
)
VALUES: Final = (CHECKOUT / "helm" / "caretaker" / "values.yaml").read_text()
DIGESTS: Final = {"operator": f"sha256:{'1' * 64}", "probe": f"sha256:{'2' * 64}"}


def test_links_of_the_notes_hold_outside_of_the_checkout() -> None:
    made = documents.notes(RELEASE, "- [A](docs/a.md#b), [c](https://c.example), [d](#d).")
    at = "https://github.com/owner/caretaker/blob/v1.2.3"
    assert f"- [A]({at}/docs/a.md#b), [c](https://c.example), [d](#d).\n" in made
    assert f"({at}/docs/install.md#from-a-release)" in made
    assert "`sha256sum --check --ignore-missing SHA256SUMS`" in made


def test_names_of_the_checkout_become_those_of_the_release() -> None:
    text = "home: https://example.com/caretaker\nimage: registry.example.com/caretaker/probe:1.2.3\n"
    expected = f"home: {RELEASE.repository}\nimage: {RELEASE.registry}/probe:1.2.3\n"
    assert documents.named(text, RELEASE) == expected


def test_the_chart_has_its_images_by_digest_and_nothing_else_changes() -> None:
    expected = yaml.safe_load(VALUES)
    for target, image in (("operator", expected["image"]), ("probe", expected["probe"]["image"])):
        image |= {"repository": f"ghcr.io/o/c/{target}", "digest": DIGESTS[target]}
    assert yaml.safe_load(documents.values(VALUES, "ghcr.io/o/c", DIGESTS)) == expected


def test_without_images_the_chart_has_their_names_alone() -> None:
    made = yaml.safe_load(documents.values(VALUES, "ghcr.io/o/c", {}))
    assert (made["image"]["repository"], made["image"]["digest"]) == ("ghcr.io/o/c/operator", "")
    assert (made["probe"]["image"]["repository"], made["probe"]["image"]["digest"]) == (
        "ghcr.io/o/c/probe",
        "",
    )


def test_an_image_that_the_chart_lacks_is_a_fault() -> None:
    with pytest.raises(ValueError, match="no image other"):
        documents.values(VALUES, "ghcr.io/o/c", {"other": DIGESTS["probe"]})


def test_the_plugins_manifest_names_archive_and_digest() -> None:
    made = yaml.safe_load(documents.krew(RELEASE, "kubectl-caretaker-1.2.3.tar.gz", "3" * 64))
    assert made["spec"]["version"] == "v1.2.3"
    assert {(one["selector"]["matchLabels"]["os"], one["sha256"]) for one in made["spec"]["platforms"]} == {
        ("linux", "3" * 64),
        ("darwin", "3" * 64),
    }
    assert {one["uri"] for one in made["spec"]["platforms"]} == {
        "https://github.com/owner/caretaker/releases/download/v1.2.3/kubectl-caretaker-1.2.3.tar.gz"
    }


def test_the_provenance_is_a_statement_of_the_files_and_has_no_times() -> None:
    digests = {"b.whl": "4" * 64, "a.tgz": "5" * 64}
    base = {"name": "docker.io/library/python:3.13", "digest": {"sha256": "6" * 64}}
    made = documents.provenance(RELEASE, digests, [base], "published", {"uv": "uv 1"})
    body = json.loads(made)
    assert body["_type"] == "https://in-toto.io/Statement/v1"
    assert body["predicateType"] == "https://slsa.dev/provenance/v1"
    assert {one["name"]: one["digest"]["sha256"] for one in body["subject"]} == digests
    definition, details = body["predicate"]["buildDefinition"], body["predicate"]["runDetails"]
    source, *others = definition["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": "a" * 40}
    assert others == [base]
    assert details == {"builder": {"id": RELEASE.builder}}
    assert made == documents.provenance(
        RELEASE, dict(reversed(digests.items())), [base], "published", {"uv": "uv 1"}
    )


def test_sums_are_as_sha256sum_reads_them() -> None:
    assert documents.sums({"b": "4" * 64, "a": "5" * 64}) == {"SHA256SUMS": f"{'5' * 64}  a\n{'4' * 64}  b\n"}


def test_who_downloads_files_has_no_folders() -> None:
    made = documents.sums({"images/x": "4" * 64, "a": "5" * 64})
    assert made["SHA256SUMS.images"] == f"{'4' * 64}  images/x\n"
    own = hashlib.sha256(made["SHA256SUMS.images"].encode()).hexdigest()
    assert made["SHA256SUMS"] == f"{own}  SHA256SUMS.images\n{'5' * 64}  a\n"


def test_the_provenance_names_the_commit_and_no_tag_which_may_not_be_there() -> None:
    made = documents.provenance(RELEASE, {}, [], "none", {})
    source = json.loads(made)["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    assert source == {"uri": f"git+{RELEASE.repository}", "digest": {"gitCommit": RELEASE.commit}}
