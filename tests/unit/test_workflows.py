"""GitHub's files agree with the project: actions are pinned, rights are few, and what is named is there."""

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from caretaker.registry import KINDS

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").iterdir())
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").iterdir() if path.name != "config.yml")
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
# A job that writes anything: what, as far as its work needs it.
WRITES = {
    ("codeql", "analyze"): {"security-events"},
    ("release", "publish"): {"contents", "packages", "id-token", "attestations"},
    ("scorecard", "analysis"): {"security-events", "id-token"},
}

workflows = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text())["jobs"]
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(path).values() for step in job["steps"]]


@workflows
def test_actions_are_pinned_by_commit_and_say_which_version(path: Path) -> None:
    assert path.suffix == ".yml"
    lines = re.findall(r"\buses: *(.+)", path.read_text())
    assert len(lines) == sum("uses" in step for step in steps(path))
    assert [line for line in lines if not PINNED.fullmatch(line)] == []


def test_an_action_is_pinned_once() -> None:
    pins: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for action, pin in re.findall(r"\buses: *([\w.-]+/[\w.-]+)[^@]*@(.+)", path.read_text()):
            pins.setdefault(action, set()).add(pin)
    assert {action: found for action, found in pins.items() if len(found) > 1} == {}


@workflows
def test_every_job_has_the_least_rights(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    for name, job in jobs(path).items():
        assert set(job["permissions"].values()) <= {"read", "write"}
        writes = {right for right, access in job["permissions"].items() if access == "write"}
        assert writes == WRITES.get((path.stem, name), set()), name
        assert 0 < job["timeout-minutes"] <= 120


@workflows
def test_no_token_is_left_in_a_checkout(path: Path) -> None:
    checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@workflows
def test_a_step_is_one_command_without_text_of_others(path: Path) -> None:
    """A pull request's title in `${{ }}` would be run; one command is no logic, and can be typed."""
    for step in steps(path):
        command = step.get("run", "make")
        assert "\n" not in command.strip()
        assert "${{" not in command


@workflows
def test_commands_of_the_project_exist(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for step in steps(path):
        for target in re.findall(r"\bmake ([a-z][a-z0-9-]*)", step.get("run", "")):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        for script in re.findall(r"(?<!\S)\.[\w./]*/\w+", step.get("run", "")):
            assert (ROOT / script).stat().st_mode & 0o111, script


def test_ci_runs_all() -> None:
    commands = [step["run"] for step in steps(GITHUB / "workflows" / "ci.yml") if "run" in step]
    assert [command for command in commands if command.endswith(" .ci/run")]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_can_be_filled_in(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    ids = [field["id"] for field in fields]
    assert len(set(ids)) == len(ids)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_who_reports_a_fault_is_asked_for_the_status_of_each_kind() -> None:
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text())
    fields = {field.get("id"): field for field in form["body"]}
    asked = fields["status"]["attributes"]["description"]
    for info in KINDS:
        assert re.search(rf"`caretaker status {info.kind.lower()} NAME .*-o json`", asked), info.kind
        assert info.kind in fields["part"]["attributes"]["options"]


def test_paths_with_owners_exist() -> None:
    lines = (GITHUB / "CODEOWNERS").read_text().splitlines()
    paths = [line.split()[0] for line in lines if line.startswith("/")]
    assert paths
    assert [path for path in paths if not (ROOT / path[1:]).exists()] == []


RENOVATE = json.loads((GITHUB / "renovate.json").read_text())
# What managers of Renovate read by themselves.
READ = {
    "pep621": ["pyproject.toml"],
    "github-actions": ["/^\\.github/workflows/[^/]+\\.ya?ml$/"],
    "dockerfile": ["Dockerfile"],
    "gomod": ["/(^|/)go\\.mod$/"],
}
# A file that pins versions -> how such a line begins.
PINS = {
    "*.txt": r"[\w.-]+==\d",
    "*.in": r"[\w.-]+==\d",
    "*.mod": r"(require|tool) ",
    "*.jars": r"[0-9a-f]{64} ",
    "package.json": r' +"[\w@/-]+": "[~^]?\d',
    "Dockerfile": r"FROM ",
    "*.yml": r" +(- )?uses: ",
    "*.yaml": r" +(- )?image: [\w/]+:\d",
    "*.md": r" +(- )?image: [\w/]+:\d",
}


def matches(pattern: str, path: str) -> bool:
    """As Renovate reads `managerFilePatterns` and `matchFileNames`."""
    if pattern.startswith("/"):
        return re.search(pattern[1:-1], path) is not None
    return fnmatch(path, pattern)


def by_hand() -> list[str]:
    rules = [rule for rule in RENOVATE["packageRules"] if rule.get("enabled") is False]
    return [pattern for rule in rules for pattern in rule["matchFileNames"]]


def compiled() -> list[Path]:
    patterns = RENOVATE["pip-compile"]["managerFilePatterns"]
    files = [path for folder in ("bench", "dev") for path in (ROOT / folder).rglob("*.txt")]
    return [path for path in files if any(matches(p, path.relative_to(ROOT).as_posix()) for p in patterns)]


def test_what_is_not_updated_is_there() -> None:
    assert by_hand()
    assert [pattern for pattern in by_hand() if not any(ROOT.glob(pattern))] == []


def test_every_place_of_a_version_is_read_by_renovate_or_kept_by_hand() -> None:
    enabled = RENOVATE["enabledManagers"]
    patterns = [pattern for manager in enabled for pattern in READ.get(manager, ())]
    patterns += [one for manager in RENOVATE["customManagers"] for one in manager["managerFilePatterns"]]
    read = {path.relative_to(ROOT).as_posix() for path in compiled()}
    read |= {name.removesuffix(".txt") + ".in" for name in read}
    # The preset would leave examples and tests out.
    assert RENOVATE["ignorePaths"] == ["**/node_modules/**"]
    folders = (".github", "bench", "deploy", "dev", "docs", "examples", "helm")
    files = [*ROOT.iterdir(), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    places = set()
    for path in filter(Path.is_file, files):
        for pattern, line in PINS.items():
            if fnmatch(path.name, pattern) and re.search(rf"^{line}", path.read_text(), re.MULTILINE):
                places.add(path.relative_to(ROOT).as_posix())
    assert len(places) > 30
    missing = {name for name in places if not any(matches(p, name) for p in [*patterns, *by_hand()])}
    assert missing - read == set(), "a manager in .github/renovate.json, or a rule that says why by hand"


@pytest.mark.parametrize("path", compiled(), ids=lambda path: path.name)
def test_a_list_of_python_packages_says_how_it_is_made_in_words_that_renovate_takes(path: Path) -> None:
    head = "# This file was autogenerated by uv via the following command:\n"
    command = re.match(rf"{head}#    uv pip compile (.+)\n", path.read_text())
    assert command is not None
    *options, source = command[1].split()
    assert source == f"{path.stem}.in"
    assert (path.parent / source).exists()
    assert options == [
        *("--universal", "--generate-hashes", "--python-version=3.11"),
        f"--output-file={path.name}",
    ]


@pytest.mark.parametrize("manager", RENOVATE["customManagers"], ids=lambda one: one["datasourceTemplate"])
def test_expressions_of_ours_find_versions(manager: dict[str, Any]) -> None:
    (expression,) = (text.replace("(?<", "(?P<") for text in manager["matchStrings"])
    found: dict[str, set[str]] = {}
    for path in (path for folder in ("dev", "examples") for path in (ROOT / folder).rglob("*.*")):
        name = path.relative_to(ROOT).as_posix()
        if any(matches(pattern, name) for pattern in manager["managerFilePatterns"]):
            for one in re.finditer(expression, path.read_text()):
                found.setdefault(one["depName"], set()).add(one["currentValue"])
    expected = {"docker": {"busybox", "nginx", "python"}, "maven": {"elasticmq-server_2.13"}}
    assert found.keys() == expected[manager["datasourceTemplate"]]
    assert all(len(versions) == 1 for versions in found.values())
