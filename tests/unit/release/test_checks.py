"""What is no release is refused in one line that says what to do."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from release import checks
from release.checks import Commit, ReleaseError, section
from testbed.paths import CHECKOUT

HEAD: Final = "a" * 40
OTHER: Final = "b" * 40
COMMIT: Final = Commit(HEAD, 1_700_000_000, (), {})
FILES: Final = {
    "pyproject.toml": '[project]\nname = "caretaker"\nversion = "1.2.3"\n',
    "operator/caretaker/__init__.py": '"""..."""\n\n__version__ = "1.2.3"\n',
    "helm/caretaker/Chart.yaml": "apiVersion: v2\nversion: 1.2.3\nappVersion: 1.2.3\n",
    "Dockerfile": "FROM scratch\nARG VERSION=1.2.3\nARG REVISION=unknown\n",
}
CHANGELOG: Final = """\
# Changelog

## [Unreleased]

- Later.

## [1.2.3] - 2026-11-27

### Added

- A thing, [here](docs/install.md).

## [1.2.0] - 2026-01-01

- Earlier.

[1.2.3]: https://example.com
"""
Refused = Callable[[], object]


def of_commit(**changed: object) -> Refused:
    return lambda: checks.check_commit("1.2.3", replace(COMMIT, **changed))  # type: ignore[arg-type]


def of_file(name: str, text: str) -> Refused:
    return lambda: checks.check_version("1.2.3", {**FILES, name: text})


REFUSED: Final[dict[str, tuple[Refused, str]]] = {
    "no version": (lambda: checks.check_version("", FILES), "VERSION is missing: make release VERSION=1.2.3"),
    "a version with v": (lambda: checks.check_version("v1.2.3", FILES), "not three numbers"),
    "two numbers": (lambda: checks.check_version("1.2", FILES), "not three numbers"),
    "a candidate": (lambda: checks.check_version("1.2.3rc1", FILES), "not three numbers"),
    "another version": (
        lambda: checks.check_version("1.2.4", FILES),
        r"not the version here \(pyproject.toml, version: 1.2.3; .*Dockerfile, ARG VERSION: 1.2.3\): .*make",
    ),
    "a chart of another version": (
        of_file("helm/caretaker/Chart.yaml", "version: 1.2.2\nappVersion: 1.2.3\n"),
        r"\(helm/caretaker/Chart.yaml, version: 1.2.2\)",
    ),
    "a chart without a version": (of_file("helm/caretaker/Chart.yaml", ""), "not where it belongs"),
    "a changed tree": (of_commit(changes=(" M README.md", "?? x")), r"\(M README.md and 1 more\): commit"),
    "another tag": (of_commit(tags={"v1.2.2": HEAD}), r"v1.2.2, not v1.2.3"),
    "the tag elsewhere": (
        of_commit(tags={"v1.2.3": OTHER}),
        r"v1.2.3 is at b+, not here: git checkout v1.2.3",
    ),
    "a path as repository": (lambda: checks.check_names("/tmp/x", "r.example/c"), "REPOSITORY=https://"),
    "a registry in upper case": (
        lambda: checks.check_names("https://example.com/c", "ghcr.io/Owner/c"),
        "in lower case",
    ),
    "no section": (lambda: section(CHANGELOG, "1.2.4"), r"## \[1.2.4\] - YYYY-MM-DD"),
    "an empty section": (lambda: section("## [1.2.4] - 2026-11-27\n\n## [1.2.3]\n- x\n", "1.2.4"), "1.2.4"),
    "a version that begins like it": (lambda: section(CHANGELOG, "1.2"), r"## \[1.2\]"),
}


@pytest.mark.parametrize(("refused", "said"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_in_a_line(refused: Refused, said: str) -> None:
    with pytest.raises(ReleaseError, match=said) as error:
        refused()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "tags", [{}, {"v1.2.3": HEAD}, {"v1.2.3": HEAD, "v1": HEAD}, {"v1.2.2": OTHER}], ids=str
)
def test_tags_that_do_not_contradict_are_let_through(tags: dict[str, str]) -> None:
    checks.check_version("1.2.3", FILES)
    checks.check_commit("1.2.3", replace(COMMIT, tags=tags))
    checks.check_names("https://github.com/owner/caretaker", "ghcr.io/owner/caretaker")
    checks.check_names("https://example.com/caretaker", "localhost:5000/caretaker")


def test_a_section_is_its_lines_alone() -> None:
    assert section(CHANGELOG, "1.2.3") == "### Added\n\n- A thing, [here](docs/install.md)."
    assert section(CHANGELOG, "1.2.0") == "- Earlier."
    assert section("## [1.0.0]\n- [a][b]\n\n[b]: https://c.example\n\n- Last.\n", "1.0.0").endswith("- Last.")


def test_the_checkout_has_one_version() -> None:
    texts = {name: (CHECKOUT / name).read_text() for name in checks.PLACES}
    said = re.search(r'^version = "(.+)"$', texts["pyproject.toml"], re.MULTILINE)
    assert said
    checks.check_version(said[1], texts)
