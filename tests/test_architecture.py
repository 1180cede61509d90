"""Rules of the house that neither linter nor type checker knows."""

import ast
import functools
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest

from caretaker.registry import KINDS
from chart import contracts

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "operator" / "caretaker"
MODULES = sorted(PACKAGE.rglob("*.py"))
PROBE = sorted((ROOT / "operator" / "caretaker_probe").rglob("*.py"))
# Our own Python, generated files and caches left out.
SOURCES = sorted(f for part in ("operator", "dev", "tests", "bench") for f in (ROOT / part).rglob("*.py"))
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def name_of(module: Path) -> str:
    parts = module.relative_to(ROOT / "operator").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


_DOC = re.compile(r'\s*(?:#.*\n\s*)*"""(.+?)"""', re.DOTALL)


@functools.cache
def parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text())


def imported_by(module: Path) -> set[str]:
    used = set()
    for found in ast.walk(parsed(module)):
        if isinstance(found, ast.Import):
            used |= {alias.name for alias in found.names}
        elif isinstance(found, ast.ImportFrom):
            used.add(found.module or "")
    return used


def doc_of(module: Path) -> str:
    found = _DOC.match(module.read_text())
    return found[1] if found is not None else ""


def test_the_source_root_is_no_package() -> None:
    """A package called `operator` would shadow the standard library's."""
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_no_module_is_named_like_one_of_the_standard_library() -> None:
    """resource.py is exempt: each kind decodes its resource there."""
    taken = sys.stdlib_module_names - {"resource", "__main__"}
    assert [name_of(m) for m in MODULES if m.stem in taken] == []


def test_a_module_says_what_it_is_for() -> None:
    modules = [module for module in (*MODULES, *PROBE) if module.read_text().strip()]
    assert modules
    assert [name_of(module) for module in modules if not doc_of(module)] == []


def test_a_file_holds_one_idea() -> None:
    """Tests are exempt: a table grows by a row for every fault."""
    code = [f for f in SOURCES if f.relative_to(ROOT).parts[0] != "tests"]
    long = {str(f.relative_to(ROOT)): n for f in code if (n := len(f.read_text().splitlines())) > 400}
    assert long == {}


def test_nothing_is_left_for_later() -> None:
    marks = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "X" * 3 + r"\b", r"pytest\.mark\.(skip|xfail)")))
    assert [str(f.relative_to(ROOT)) for f in SOURCES if marks.search(f.read_text())] == []


def test_the_probe_needs_the_standard_library_alone() -> None:
    """Its image is Python and this folder."""
    used = set().union(*map(imported_by, PROBE))
    assert len(PROBE) > 3
    assert {name.split(".")[0] for name in used} - sys.stdlib_module_names == {"caretaker_probe"}


def test_only_settings_reads_the_environment() -> None:
    # `os.environ` as code: prose may name it.
    readers = {
        name_of(module)
        for module in MODULES
        if re.search("environ|getenv", module.read_text())
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    }
    assert readers == {"caretaker.settings"}


def test_modules_that_call_themselves_pure_are_held_to_it() -> None:
    """The contract forbids them I/O, clocks and chance; lint-imports checks it. `make chart` lists them."""
    contract = next(c for c in CONTRACTS if c["name"].startswith("Decisions and data"))
    assert len(contracts.pure()) > 80
    assert set(contracts.pure()) <= set(contract["source_modules"])
    text = (ROOT / "pyproject.toml").read_text()
    assert contracts.filled(text) == text


def test_every_kind_has_its_crd_its_page_and_an_example() -> None:
    for kind in KINDS:
        assert (ROOT / "crds" / f"{kind.plural}.yaml").exists()
        assert (ROOT / "docs" / "spec" / f"{kind.kind.lower()}.md").exists()
        examples = "".join(f.read_text() for f in (ROOT / "examples").glob("*.yaml"))
        assert re.search(rf"^kind: {kind.kind}$", examples, re.MULTILINE)


@pytest.mark.parametrize("room", ["app.py", "handlers.py", "runtime", "kube", "aws", "obs"])
def test_the_wiring_and_the_shared_rooms_name_no_kind(room: str) -> None:
    """They loop over the registry: a further kind edits none of them."""
    shared = [m for m in MODULES if m.relative_to(PACKAGE).parts[0] == room]
    text = "".join(module.read_text().lower() for module in shared)
    words = {word.lower() for kind in KINDS for word in (kind.kind, kind.plural, kind.short, kind.package)}
    assert text
    assert [word for word in sorted(words) if word in text] == []


@pytest.mark.parametrize("package", ["obs", *(kind.package for kind in KINDS)])
def test_every_metric_is_moved_by_some_code(package: str) -> None:
    """One that nothing moves shows 0 for ever. A method that moves it has to be called."""
    own = sorted((PACKAGE / package).rglob("*.py"))
    code = "".join(module.read_text() for module in (MODULES if package == "obs" else own))
    declared, methods = set(), set()
    for text in (module.read_text() for module in own):
        if found := re.findall(r"self\.(\w+) = (?i:counter|gauge|histogram)\(", text):
            declared.update(found)
            methods.update(re.findall(r"^    def ([a-z]\w+)\(self", text, re.MULTILINE))
    moved = r"\.{0}\.(labels|inc|observe|set|set_function)\(|GaugeSeries\(self\.{0}\)"
    assert declared or package != "obs"  # a kind may have none
    unmoved = [name for name in sorted(declared) if not re.search(moved.format(name), code)]
    assert unmoved == [], f"metrics that no code sets: as `.NAME.labels(...)`, `.NAME.set(...)` in {package}/"
    uncalled = [name for name in sorted(methods) if not re.search(rf"\.{name}\b", code)]
    assert uncalled == [], f"methods of metrics that no code calls: observe() of {package}/controller.py"


def test_the_registry_imports_no_code_of_a_kind() -> None:
    """The commands import it, and must load neither controllers nor boto3."""
    assert {m for m in imported_by(PACKAGE / "registry.py") if m.startswith("caretaker")} == {
        "caretaker.api.names"
    }


def test_resolvers_have_not_fallen_back_to_an_ancient_boto3() -> None:
    """kubernetes and botocore disagree on python-dateutil in some versions; uv then resolved boto3 0.0.3."""
    version = tuple(int(n) for n in importlib.metadata.version("boto3").split(".")[:2])
    assert version >= (1, 44)


def test_kubernetes_asyncio_is_not_installed() -> None:
    """kopf imports it where it finds it, at 60 MiB."""
    installed = {(d.name or "").lower().replace("-", "_") for d in importlib.metadata.distributions()}
    assert "kubernetes_asyncio" not in installed
