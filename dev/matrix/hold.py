"""Make what a row needs: an interpreter, an environment, a control plane. It runs no tests.

Everything that is fetched or built is kept in the user's cache. Raises Missing when this machine cannot
hold a row.
"""

import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from awsdoubles import venvs
from awsdoubles.cached import DoubleError
from matrix import debian
from matrix.missing import Missing
from matrix.rows import KUBERNETES, Row
from testbed import build
from testbed.compiling import BuildError
from testbed.paths import CHECKOUT, cache

LOWEST: Final = Path(__file__).with_name("lowest.txt")
SLOWER: Final = 5.0  # of QEMU's user emulation
LOWEST_COMMAND: Final = (
    "uv pip compile pyproject.toml --group dev --resolution lowest-direct --universal --generate-hashes "
    "--no-annotate -o dev/matrix/lowest.txt"
)


@dataclass(frozen=True)
class Place:
    """What pytest is run with."""

    python: list[str]
    variables: dict[str, str] = field(default_factory=dict)


def hold(row: Row, suite: str = "") -> Place:
    """The place of a row, fetched or built where the cache lacks it."""
    try:
        if suite == "all" or row.has("kubernetes") or (row.machine and not suite):
            _helpers()
        version = row.version("python")
        python = _python(row, None if version is None else _interpreter(version, row.machine))
        kubernetes = row.version("kubernetes") or (KUBERNETES[-1] if suite == "all" else None)
        return Place(python, _control_plane(kubernetes) | _pace(row.machine))
    except (BuildError, DoubleError) as error:
        raise Missing(str(error)) from None


def _python(row: Row, interpreter: str | None) -> list[str]:
    """The command that runs Python with the row's dependencies. `interpreter`: None for this one."""
    if row.has("lowest"):
        return _alone(venvs.python("matrix-lowest", LOWEST, "the oldest dependencies", interpreter))
    if row.has("highest"):
        return _alone(venvs.python("matrix-highest", _newest(), "the newest dependencies", interpreter))
    if interpreter is None:
        return [sys.executable]
    return [_uv(), "run", "--quiet", "--python", interpreter, "--isolated", "--frozen", "python"]


def _interpreter(version: str, machine: str) -> str:
    uv = _uv()
    if machine not in ("", platform.machine()):
        return debian.python(version, machine)
    known = _said([uv, "python", "find", "--no-project", version]) or _of_pyenv(version)
    if known:
        return known
    print(f"no Python {version} on the PATH: fetching it", flush=True)
    if subprocess.run([uv, "python", "install", "--quiet", version], check=False).returncode == 0:
        return version
    print(f"uv cannot fetch Python {version}: looking among Debian's packages", flush=True)
    return debian.python(version)


def _of_pyenv(version: str) -> str:
    """pyenv's shims stand on the PATH for versions that they then refuse to run."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = sorted(root.glob(f"{version}.*/bin/python"))
    return str(found[-1]) if found else ""


def _alone(python: Path) -> list[str]:
    """This interpreter, with what an environment with caretaker installed has: its packages, for processes
    of tests, too, and the command beside it."""
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    (packages / "caretaker.pth").write_text(f"{CHECKOUT / 'operator'}\n")
    command = python.with_name("caretaker")
    command.write_text(f'#!/bin/sh\nexec "{python}" -m caretaker "$@"\n')
    command.chmod(0o755)
    return [str(python)]


def _newest() -> Path:
    """What a user gets today: asked for anew each time."""
    folder = cache().with_name("matrix-highest")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / "highest.txt"
    command = [_uv(), "pip", "compile", "--quiet", "pyproject.toml", "--group", "dev", "--upgrade"]
    command += ["--resolution", "highest", "--universal", "--generate-hashes", "--no-annotate"]
    if subprocess.run([*command, "-o", str(wanted)], cwd=CHECKOUT, check=False).returncode:
        raise Missing("uv cannot resolve the newest dependencies, see above")
    return wanted


def _control_plane(version: str | None) -> dict[str, str]:
    """The variables that choose it."""
    if version is None:
        return {}
    build.ensure(version)
    return {"KUBERNETES": version}


def _pace(machine: str) -> dict[str, str]:
    """What tests that bound CPU time are told of an emulated processor."""
    return {"CPU_SLOWER": str(SLOWER)} if machine not in ("", platform.machine()) else {}


def _helpers() -> None:
    """What tests need beside a control plane."""
    if subprocess.run(["make", "--silent", "gotools", "doubles"], cwd=CHECKOUT, check=False).returncode:
        raise Missing("what the tests need beside the control plane cannot be made, see above")


def _uv() -> str:
    found = venvs.uv()
    if found is None:
        raise Missing("uv is missing: make setup")
    return found


def _said(command: list[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.stdout.strip() if ran.returncode == 0 else ""
