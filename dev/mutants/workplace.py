"""A copy of the tree for mutmut, which wants its sources in `src` and writes the mutants beside the tests.

It is made anew for each module; what earlier runs found stays in `.dev/mutants/notes`.
"""

import ast
import json
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Final

from testbed.paths import CHECKOUT, STATE

HOME: Final = STATE / "mutants"
NOTES: Final = HOME / "notes"
WORK: Final = HOME / "work"
MUTANTS: Final = WORK / "mutants"
PROGRAM: Final = HOME / "venv" / "bin" / "mutmut"
# What tests and their fixtures read beside themselves.
READ: Final = (
    *("crds", "docs", "deploy", "examples", "helm", "dev", "operator"),
    *("README.md", "CONTRIBUTING.md"),
)
# Packages whose tests cover a module, beside its own.
HELD_BY: Final = {"api.imds": "imds", "api.objects": "daemontask", "s3refresh.metrics": "observability"}
# Tests over loopback of the pure modules of a kind.
LOOPBACK: Final = {"s3refresh": ("tests/integration/aws/test_message_targets.py",)}
# Its one function runs while it is imported, where no mutant is in force.
AT_IMPORT: Final = frozenset(("api.podtypes",))
# Worth the same care: decisions rest on it, and tests without servers reach all of it.
ALSO: Final = ("daemontask.task_state", "daemontask.shards", "aws.errors")
# Exit codes of a mutant's tests that say nothing for good: passed, interrupted, no tests, suspicious; then
# those of a timeout, which is by the clock: on a busy machine a mutant that survives may run into it.
_OPEN: Final = (0, 2, 5, 33, 35, -24, 24, 36, 152, 255)
# `mutmut show` takes a second for each mutant.
_SHOW: Final = """
import json, sys
from mutmut.mutation.diff_apply import get_diff_for_mutant
print(json.dumps({name: get_diff_for_mutant(name, path=sys.argv[1]) for name in sys.argv[2:]}))
"""
# mutmut ends tests that never end. Long and random histories would take seconds for each mutant.
SETTINGS: Final = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = ["{source}"]
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = [
  "-p", "no:cacheprovider", "-p", "no:unraisableexception", "--timeout=0", "-m", "not slow and not random",
]
use_git_change_detection = false
"""


class MutantsError(Exception):
    """mutmut could not be run; what it said is on the terminal."""


def modules(kind: str) -> list[str]:
    """Those of a kind that import-linter keeps from I/O, by themselves or with their package, and ALSO;
    without `caretaker.`. mutmut refuses a module without functions."""
    contracts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    pure = [name.removeprefix("caretaker.") for one in contracts for name in one.get("source_modules", ())]
    operator = CHECKOUT / "operator"
    within = [
        f"{name}.{one.stem}" for name in pure for one in (operator / _file(name)).with_suffix("").glob("*.py")
    ]
    found = sorted(name for name in {*pure, *within, *ALSO} - AT_IMPORT if name.startswith(f"{kind}."))
    return [name for name in found if _has_functions(operator / _file(name))]


def _has_functions(file: Path) -> bool:
    """Whether mutmut can change it: it skips decorated functions, except class and static methods."""
    found = ast.walk(ast.parse(file.read_text())) if file.is_file() else ()
    return any(
        isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        and {ast.unparse(decorator) for decorator in one.decorator_list} <= {"classmethod", "staticmethod"}
        for one in found
    )


class Workplace:
    """The copy, with one module to mutate."""

    def __init__(self, module: str) -> None:
        self._source = Path("src", _file(module))
        kinds = (module.partition(".")[0], *([HELD_BY[module]] if module in HELD_BY else ()))
        folders = (f"tests/{part}/{kind}" for kind in kinds for part in ("unit", "simulation"))
        self._tests = [folder for folder in folders if (CHECKOUT / folder).is_dir()]
        self._tests += [file for kind in kinds for file in LOOPBACK.get(kind, ())]
        self._notes = NOTES / f"{module}.json"

    def make(self, *, fresh: bool) -> None:
        """`fresh`: forget what earlier runs found of this module. Else its mutants that were not killed by
        a test are tried again, since tests may have been added, and those of functions that have changed."""
        _keep_notes()
        shutil.rmtree(WORK, ignore_errors=True)
        MUTANTS.mkdir(parents=True)
        for name, there in (("operator", "src"), ("tests", "tests")):
            shutil.copytree(CHECKOUT / name, WORK / there, ignore=shutil.ignore_patterns("__pycache__"))
        for name in READ:
            (MUTANTS / name).symlink_to(CHECKOUT / name)
        project = (CHECKOUT / "pyproject.toml").read_text().replace('["operator", "dev"', '["src", "dev"')
        settings = SETTINGS.format(source=self._source, tests=json.dumps(self._tests))
        (WORK / "pyproject.toml").write_text(project + settings)
        if self._notes.exists() and not fresh:
            found = json.loads(self._notes.read_text())
            codes: dict[str, Any] = found["exit_code_by_key"]
            found["exit_code_by_key"] = {key: None if code in _OPEN else code for key, code in codes.items()}
            notes = MUTANTS / f"{self._source}.meta"
            notes.parent.mkdir(parents=True)
            notes.write_text(json.dumps(found))

    def run(self) -> None:
        """Try what has not been tried. Raises MutantsError."""
        if subprocess.run([PROGRAM, "run", "--max-children", "1"], cwd=WORK, check=False).returncode:
            raise MutantsError(f"mutmut failed on {self._source}; its copy of the tree is {WORK}")

    def statuses(self) -> dict[str, str]:
        """mutmut's word for each mutant."""
        command = [str(PROGRAM), "results", "--all", "true"]
        said = subprocess.run(command, cwd=WORK, check=True, capture_output=True, text=True).stdout
        return {
            name.strip(): status for name, _, status in (line.partition(": ") for line in said.splitlines())
        }

    def diffs(self, names: list[str]) -> dict[str, str]:
        """What each mutant changes, as `mutmut show` has it."""
        command = [str(PROGRAM.with_name("python")), "-c", _SHOW, str(self._source), *names]
        return dict(json.loads(subprocess.run(command, cwd=WORK, check=True, capture_output=True).stdout))


def _file(module: str) -> Path:
    return Path("caretaker", *module.split(".")).with_suffix(".py")


def _keep_notes() -> None:
    NOTES.mkdir(parents=True, exist_ok=True)
    for path in MUTANTS.rglob("*.meta"):
        module = ".".join(path.relative_to(MUTANTS / "src" / "caretaker").parts).removesuffix(".py.meta")
        path.replace(NOTES / f"{module}.json")
