"""What README, CONTRIBUTING, CHANGELOG, docs/ and the chart's page name exists: files, headings, metrics."""

import ast
import contextlib
import importlib.util
import io
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from caretaker.api import conditions
from caretaker.api.conditions import EcsReason, PolicyReason, Reason, RefreshReason
from caretaker.cli import main
from caretaker.registry import KINDS
from testing import manifests
from testing.alertcases import RULES
from testing.allmetrics import AllMetrics

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "helm").rglob("*.md")])
# A path in backticks is looked up from here; the first that has it will do.
BASES = (
    ROOT,
    ROOT / "operator" / "caretaker",
    *(ROOT / "operator" / "caretaker" / info.package for info in KINDS),
    ROOT / "operator" / "caretaker" / "daemontask" / "ecs",
    ROOT / "tests",
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)

pages = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


@cache
def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def blocks(page: Path, *languages: str) -> Iterator[str]:
    return (body for language, body in FENCE.findall(page.read_text()) if language in languages)


@cache
def headings(page: Path) -> dict[str, str]:
    """By anchor, which are GitHub's: lower case, spaces to hyphens, punctuation dropped, repeats numbered."""
    found: dict[str, str] = {}
    times: Counter[str] = Counter()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found[f"{anchor}-{times[anchor]}" if times[anchor] else anchor] = heading
        times[anchor] += 1
    return found


def anchors(page: Path) -> set[str]:
    return set(headings(page))


def code(page: Path) -> Iterator[str]:
    """Everything that is set as code: spans and blocks."""
    yield from re.findall(r"`([^`\n]+)`", prose(page))
    yield from (body for _, body in FENCE.findall(page.read_text()))


@pages
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


@pages
def test_files_that_are_named_exist(page: Path) -> None:
    named = {
        name
        for text in code(page)
        for name in re.findall(
            r"(?<![\w/.<-])((?:crds|examples|docs|dev|tests|operator|bench)/[\w./-]*)", text
        )
    }
    named |= set(re.findall(r"`([\w/-]+\.(?:py|ya?ml|md|toml))`", prose(page)))
    missing = {n for n in named if not any((base / n).exists() for base in BASES)}
    assert missing - USERS_FILES == set()


USERS_FILES = {"task.yaml", "refresh.yaml", "install.yaml", "crds.yaml"}


@pages
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for text in code(page) for name in re.findall(r"\bmake ([a-z][a-z0-9-]*)", text)}
    assert named - targets == set()


@cache
def usage_of(command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
        main([command, "--help"])
    return printed.getvalue()


@pages
def test_commands_of_caretaker_exist(page: Path) -> None:
    for text in code(page):
        for command, rest in re.findall(
            r"(?:^|[\s/;(])caretaker (plan|status|rerun|resume|logs|run)\b([^\n;|#]*)", text
        ):
            usage = usage_of(command)
            for flag in re.findall(r"(?<=[\s\[])(--?[a-z][a-z-]*)", rest):
                assert flag in re.findall(r"--?[a-z][a-z-]*", usage), f"caretaker {command} {flag}"


@pages
def test_python_modules_that_are_named_exist(page: Path) -> None:
    spans = " ".join(code(page))
    named = set(re.findall(r"\b((?:testbed|testing)\.[a-z_]+)\b(?!\.dev)", spans))
    assert {name for name in named if importlib.util.find_spec(name) is None} == set()


@pages
def test_yaml_can_be_read(page: Path) -> None:
    for body in blocks(page, "yaml"):
        list(manifests.load_all(body))


@pages
def test_metrics_exist(page: Path) -> None:
    collected = AllMetrics().registry.collect()
    known = {f"{family.name}{suffix}" for family in collected for suffix in ("", "_total")}
    named = {name for text in code(page) for name in re.findall(r"\bcaretaker_[a-z0-9_]+[a-z]", text)}
    packages = {folder.name for folder in (ROOT / "operator").iterdir()}
    assert named - known - packages == set()


CONTRIBUTING = ROOT / "CONTRIBUTING.md"


def test_contributing_names_every_command_of_the_makefile() -> None:
    told = re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    page = CONTRIBUTING.read_text() + (ROOT / "README.md").read_text()
    missing = [target for target in told if not re.search(rf"\bmake {target}(?![\w-])", page)]
    assert missing == ["help"]  # that is `make` alone


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "docs/install.md", "docs/s3-walkthrough.md"]
)
def test_who_begins_is_told_of_kubectl_before_the_first_command_that_needs_it(page: str) -> None:
    """As prose: make brings all else along, or the page says so."""
    fenced = re.split(r"^```.*\n", (ROOT / page).read_text(), flags=re.MULTILINE)
    prose, code = fenced[::2], fenced[1::2]
    first = next(at for at, text in enumerate(code) if re.search(r"^(\$ )?kubectl ", text, re.MULTILINE))
    assert "kubectl" in "".join(prose[: first + 1])


README = ROOT / "README.md"


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 200


@pytest.mark.parametrize("kind", [info.kind for info in KINDS])
def test_the_readme_has_a_first_manifest_of_each_kind(kind: str) -> None:
    part = README.read_text().partition(f"\n## {kind}\n")[2].split("\n## ")[0]
    (body,) = re.findall(r"^```yaml\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
    assert manifests.load(body)["kind"] == kind


def test_the_readmes_task_is_the_one_that_its_command_applies() -> None:
    first, *_ = blocks(README, "yaml")
    assert manifests.load(first) == manifests.load((ROOT / "examples" / "hello.yaml").read_text())


def test_the_folder_map_names_every_folder_of_tools_and_packages() -> None:
    part = CONTRIBUTING.read_text().partition("\n## Folder map\n")[2].partition("\n## ")[0]
    named = {name for line in part.splitlines() for name in re.findall(r"^([\w/]+)/ ", line)}
    there = [one for parent in ("dev", "operator") for one in (ROOT / parent).glob("[a-z]*/")]
    assert {one.relative_to(ROOT).as_posix() for one in there} - named == set()


def glossary() -> list[str]:
    part = CONTRIBUTING.read_text().partition("\n## Glossary\n")[2].partition("\n## ")[0]
    return [line for line in part.splitlines() if line.startswith("| ")][1:]


def is_in_the_code(term: str) -> bool:
    """Whether the operator defines it: a package, class, function, field, constant, argument."""
    if (ROOT / "operator" / term).exists():
        return True
    forms = (f"class {term}", f"def {term}", f"{term}: ", f"{term} = ")  # few files have to be parsed
    named = (file for file, text in sources().items() if any(form in text for form in forms))
    return any(term in names_in(file) for file in named)


@cache
def sources() -> dict[Path, str]:
    return {file: file.read_text() for file in sorted((ROOT / "operator").rglob("*.py"))}


@cache
def names_in(file: Path) -> frozenset[str]:
    found = set()
    for node in ast.walk(ast.parse(sources()[file])):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add(name)
    return frozenset(found)


def test_the_glossary_is_short() -> None:
    assert 0 < len(glossary()) <= 40


def test_a_term_of_the_glossary_exists_in_the_code() -> None:
    for line in glossary():
        terms = re.findall(r"`([^`]+)`", line)
        assert terms, line
        files = {term for term in terms if "/" in term}  # test_files_that_are_named_exist checks these
        assert [term for term in terms if term not in files and not is_in_the_code(term)] == []


# DaemonTask's second target, with reasons of its own.
ECS_TARGET = "ECS target"

# Reasons that end by themselves, or say that all is well.
FINE: dict[type, set[str]] = {
    Reason: {
        *(Reason.ROLLING_OUT, Reason.ROLLOUT_COMPLETE, Reason.SUCCEEDED, Reason.RUNNING, Reason.SUSPENDED),
        *(Reason.ACCEPTED, Reason.NOT_CHECKED, Reason.NODES_BLOCKED, Reason.NO_MATCHING_NODES),
        Reason.AWAITING_SCHEDULE,
    },
    RefreshReason: {
        *(RefreshReason.CONSUMING, RefreshReason.STARTING, RefreshReason.SUSPENDED, RefreshReason.REACHABLE),
        *(RefreshReason.NOT_CHECKED, RefreshReason.RESOLVED, RefreshReason.WAITING),
        *(RefreshReason.REFRESHING, RefreshReason.UP_TO_DATE, RefreshReason.ESTIMATED),
        RefreshReason.INTERVAL_WIDENED,
    },
    EcsReason: {
        *(EcsReason.IN_STEP, EcsReason.STARTING, EcsReason.SUSPENDED, EcsReason.ACCEPTED),
        *(EcsReason.REACHABLE, EcsReason.NOT_CHECKED),
    },
    PolicyReason: {
        *(PolicyReason.AUDITED, PolicyReason.SUSPENDED, PolicyReason.PERMITTED, PolicyReason.COMPLIANT),
        *(PolicyReason.NO_MATCHING_NODES, PolicyReason.PENDING, PolicyReason.ENFORCED),
        *(PolicyReason.CHANGING, PolicyReason.CANARY_SOAKING, PolicyReason.CANARY_PASSED),
        *(PolicyReason.PROVED, PolicyReason.PROBING, PolicyReason.SOURCES_COMPLIANT),
    },
}


@pytest.mark.parametrize(
    ("kind", "reasons"),
    [
        ("DaemonTask", Reason),
        ("S3AggregatedRefresh", RefreshReason),
        ("IMDSPolicy", PolicyReason),
        (ECS_TARGET, EcsReason),
    ],
    ids=str,
)
def test_operations_has_a_section_for_every_reason_that_needs_a_hand(kind: str, reasons: type) -> None:
    assert kind in {ECS_TARGET, *(info.kind for info in KINDS)}
    every = {value for name, value in vars(reasons).items() if name.isupper()}
    page = (ROOT / "docs" / "operations.md").read_text()
    part = page.partition(f"\n## {kind}: what the conditions say\n")[2].partition("\n## ")[0]
    sections = set(" ".join(re.findall(r"^### (.+)$", part, re.MULTILINE)).replace(" and ", " ").split())
    assert every - FINE[reasons] - sections == set(), "a section in docs/operations.md, or an entry in FINE"
    assert sections - every == set()


def test_every_kind_has_reasons_that_operations_tells() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert [info.kind for info in KINDS if f"\n## {info.kind}: what the conditions say\n" not in page] == []


OPERATIONS = ROOT / "docs" / "operations.md"


def index() -> str:
    return OPERATIONS.read_text().partition("\n## What you see\n")[2].partition("\n## ")[0]


def test_the_index_of_operations_leads_to_every_reason_and_alert() -> None:
    there = headings(OPERATIONS)
    led = re.findall(r"\[([A-Z]\w+)\]\(#([\w-]+)\)", index())
    assert [(word, anchor) for word, anchor in led if word not in re.findall(r"\w+", there[anchor])] == []
    order = list(there)
    kinds = [*(info.kind for info in KINDS), ECS_TARGET]
    parts = [*(f"{kind}: what the conditions say" for kind in kinds), "Alerts"]
    wanted = set()
    for part in parts:
        start = list(there.values()).index(part)
        sections = re.search(
            rf"^## {re.escape(part)}\n(.*?)^## ", prose(OPERATIONS), re.MULTILINE | re.DOTALL
        )
        assert sections is not None
        wanted |= set(order[start + 1 : start + 1 + len(re.findall(r"^### ", sections[1], re.MULTILINE))])
    assert wanted - {anchor for _, anchor in led} == set(), "a link in What you see of docs/operations.md"


def test_the_index_of_operations_names_every_condition_and_no_other() -> None:
    types = {value for name, value in vars(conditions).items() if name.isupper() and isinstance(value, str)}
    named = set(re.findall(r"`(\w+)=(?:True|False)`", index()))
    assert named == types, "a row in What you see of docs/operations.md"


def test_the_index_of_operations_tells_which_alerts_are_critical() -> None:
    severities = {alert: rule["labels"]["severity"] for alert, rule in RULES.items()}
    row = next(line for line in index().splitlines() if line.startswith("| **Alert**, critical"))
    critical = {alert for alert, severity in severities.items() if severity == "critical"}
    assert set(re.findall(r"\[(\w+)\]", row)) == critical
