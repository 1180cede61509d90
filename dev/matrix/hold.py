"""Make what a row needs: an interpreter, an environment, a control plane. It runs no tests.

Everything that is fetched or built is kept in the user's cache. Raises Missing when this machine cannot
hold a row.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from awsdoubles import venvs
from awsdoubles.cached import DoubleError
from matrix.rows import Held, Row
from testbed import build
from testbed.compiling import BuildError
from testbed.paths import CHECKOUT, cache

LOWEST: Final = Path(__file__).with_name("lowest.txt")
LOWEST_COMMAND: Final = (
    "uv pip compile pyproject.toml --group dev --resolution lowest-direct --universal --generate-hashes "
    "--no-annotate -o dev/matrix/lowest.txt"
)


class Missing(Exception):  # noqa: N818
    """This machine cannot hold the row; the message says what it lacks."""


@dataclass(frozen=True)
class Place:
    """What pytest is run with."""

    python: list[str]
    variables: dict[str, str] = field(default_factory=dict)


def hold(row: Row) -> Place:
    """The place of a row, fetched or built where the cache lacks it."""
    try:
        return _HOLDERS[row.held](row)
    except (BuildError, DoubleError) as error:
        raise Missing(str(error)) from None


def _python(row: Row) -> Place:
    found = _interpreter(row.version)
    run = [_uv(), "run", "--quiet", "--python", found, "--isolated", "--frozen", "python"]
    return Place(run)


def _interpreter(version: str) -> str:
    uv = _uv()
    known = _said([uv, "python", "find", "--no-project", version]) or _of_pyenv(version)
    if known:
        return known
    print(f"no Python {version} on the PATH: fetching it", flush=True)
    if subprocess.run([uv, "python", "install", "--quiet", version], check=False).returncode == 0:
        return version
    raise Missing(f"no Python {version} on the PATH or with pyenv, and uv cannot fetch it")


def _of_pyenv(version: str) -> str:
    """pyenv's shims stand on the PATH for versions that they then refuse to run."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = sorted(root.glob(f"{version}.*/bin/python"))
    return str(found[-1]) if found else ""


def _lowest(_row: Row) -> Place:
    return Place([str(venvs.python("matrix-lowest", LOWEST, "the oldest dependencies"))])


def _highest(_row: Row) -> Place:
    """What a user gets today: asked for anew each time."""
    folder = cache().with_name("matrix-highest")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / "highest.txt"
    command = [_uv(), "pip", "compile", "--quiet", "pyproject.toml", "--group", "dev", "--upgrade"]
    command += ["--resolution", "highest", "--universal", "--generate-hashes", "--no-annotate"]
    if subprocess.run([*command, "-o", str(wanted)], cwd=CHECKOUT, check=False).returncode:
        raise Missing("uv cannot resolve the newest dependencies, see above")
    return Place([str(venvs.python("matrix-highest", wanted, "the newest dependencies"))])


def _kubernetes(row: Row) -> Place:
    build.ensure(row.version)
    if subprocess.run(["make", "--silent", "gotools", "doubles"], cwd=CHECKOUT, check=False).returncode:
        raise Missing("what the tests need beside the control plane cannot be made, see above")
    return Place([sys.executable], {"KUBERNETES": row.version})


_HOLDERS: Final[dict[Held, Callable[[Row], Place]]] = {
    "python": _python,
    "lowest": _lowest,
    "highest": _highest,
    "kubernetes": _kubernetes,
}


def _uv() -> str:
    found = venvs.uv()
    if found is None:
        raise Missing("uv is missing: make setup")
    return found


def _said(command: list[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.stdout.strip() if ran.returncode == 0 else ""
