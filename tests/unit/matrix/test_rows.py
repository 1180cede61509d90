"""The rows are what pyproject.toml and dev/controlplane promise, and the oldest versions are true."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from matrix.hold import LOWEST, LOWEST_COMMAND
from matrix.rows import EMULATED, KUBERNETES, PYTHONS, ROWS, Result, Row, chosen, table
from testbed import build
from testbed.compiling import BuildError
from testbed.paths import CHECKOUT

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
DIRECT = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
OURS = [*DIRECT, *map(Requirement, PROJECT["dependency-groups"]["dev"])]
PAGE = (CHECKOUT / "docs" / "compatibility.md").read_text()
PINNED = dict(re.findall(r"^([\w-]+)==(\S+)", LOWEST.read_text(), re.MULTILINE))


def bound(of: Requirement) -> Version:
    (found,) = (Version(one.version) for one in of.specifier if one.operator in (">=", "=="))
    return found


@pytest.mark.parametrize("of", OURS, ids=lambda of: of.name)
def test_the_oldest_version_that_is_allowed_is_the_one_that_is_tested(of: Requirement) -> None:
    """A bound that no resolver can reach promises what nobody has tried: raise it to what it finds."""
    pinned, least = Version(PINNED[of.name.lower()]), bound(of)
    assert pinned.release[: len(least.release)] == least.release, f"run: {LOWEST_COMMAND}"


def test_every_python_that_is_allowed_has_a_row() -> None:
    allowed = Requirement(f"python{PROJECT['project']['requires-python']}").specifier
    assert [v for v in PYTHONS if v not in allowed] == []
    assert [n for n in range(30) if f"3.{n}" in allowed] == [int(v.partition(".")[2]) for v in PYTHONS]


def test_every_kubernetes_that_can_be_built_has_a_row() -> None:
    assert sorted(build.versions()) == sorted(KUBERNETES)
    for version, pins in build.versions().items():
        text = pins.read_text()
        assert f"k8s.io/api => k8s.io/api v0.{version.partition('.')[2]}." in text
        assert pins.with_suffix(".sum").exists()


@pytest.mark.parametrize("suite", ["", "unit", "all"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_no_path_lies_within_another(row: Row, suite: str) -> None:
    """Of such two, pytest 8 runs the inner one's tests alone."""
    paths = [CHECKOUT / path for path in row.tests(suite)]
    assert [one for one in paths if any(other in one.parents for other in paths)] == []


def test_a_kubernetes_that_cannot_be_built_is_told() -> None:
    with pytest.raises(BuildError, match=r"1\.20 is not known here; known are 1\.34, 1\.35, 1\.36"):
        build.ensure("1.20")


def test_rows_are_chosen_by_name_and_a_wrong_one_is_told() -> None:
    assert [row.name for row in chosen(["k8s1.34", "lowest"])] == ["k8s1.34", "lowest"]
    assert chosen([]) == list(ROWS)
    with pytest.raises(ValueError, match=r"no row py2\.7; known are py3\.11"):
        chosen(["py2.7", "lowest"])


def test_rows_are_joined_and_hold_each_thing_once() -> None:
    """All that is allowed has then seen every test in a few runs, not in one for each version."""
    (row,) = chosen(["py3.12+lowest+k8s1.34"])
    assert row.name == "py3.12+lowest+k8s1.34"
    assert [row.version(held) for held in ("python", "kubernetes", "highest")] == ["3.12", "1.34", None]
    assert {"tests/e2e", "tests/integration", "tests/simulation", "tests/unit"} < set(row.tests("all"))
    assert {"tests/integration/test_crd.py", "tests/simulation", "tests/unit"} < set(row.tests(""))
    for wrong in ("py3.12+py3.13", "py3.12+arm64", "lowest+highest", "k8s1.34+k8s1.34"):
        with pytest.raises(ValueError, match=r"names a thing twice"):
            chosen([wrong])


def test_the_row_of_arm64_runs_tests_without_servers_and_an_operator_on_the_python_of_the_images() -> None:
    (row,) = chosen(["arm64"])
    assert (row.machine, row.version("python")) == ("aarch64", EMULATED)
    assert f"PYTHON=docker.io/library/python:{EMULATED}-" in (CHECKOUT / "Dockerfile").read_text()
    assert [(CHECKOUT / path).exists() for path in row.tests("")] == [True] * len(row.tests(""))
    assert set(row.tests("unit")) < set(row.tests(""))


def test_the_table_has_a_line_for_each_row() -> None:
    shown = table([Result("py3.11", "green", "9 passed", 3.2), Result("k8s1.34", "MISSING", "go is missing")])
    head, first, second = shown.splitlines()
    assert head.split() == ["row", "result", "seconds"]
    assert first.split() == ["py3.11", "green", "3", "9", "passed"]
    assert second.split()[:2] == ["k8s1.34", "MISSING"]


def test_the_page_tells_every_row_and_bound() -> None:
    assert [row.name for row in ROWS if f"`{row.name}`" not in PAGE] == []
    assert f"| {', '.join(PYTHONS)} |" in PAGE
    assert f"| {', '.join(KUBERNETES)} |" in PAGE
    rows = set(re.findall(r"^\| ([\w-]+) \| ([\d.]+) \| ([\w .]+) \|$", PAGE, re.MULTILINE))
    wanted = set()
    for of in DIRECT:
        bounds = {one.operator: one.version for one in of.specifier}
        if "==" in bounds:
            wanted.add((of.name, bounds["=="], "this version only"))
        else:
            wanted.add((of.name, bounds[">="], bounds.get("<", "no bound")))
    assert rows == wanted


def test_a_long_name_of_a_row_stays_apart_from_its_result() -> None:
    _, line = table([Result("py3.13+highest+k8s1.35", "green", "9 passed", 1.0)]).splitlines()
    assert line.split()[:2] == ["py3.13+highest+k8s1.35", "green"]
