"""GitHub's files agree with the project: actions are pinned, rights are few, and what is named is there."""

import json
import re
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


def test_what_is_not_updated_is_there() -> None:
    rules = json.loads((GITHUB / "renovate.json").read_text())["packageRules"]
    files = [pattern for rule in rules for pattern in rule.get("matchFileNames", ())]
    assert files
    assert [pattern for pattern in files if not any(ROOT.glob(pattern))] == []
