"""Python packages in environments of their own, outside the checkout: they pin what caretaker pins otherwise.

Input: a requirements file with hashes. An environment is made once for its content and this Python.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from functools import partial
from pathlib import Path

from awsdoubles.cached import DoubleError, ensure
from testbed.paths import cache


def python(name: str, requirements: Path, what: str) -> Path:
    """The interpreter of the environment called `name`, which is made when the cache lacks it."""
    depends_on = requirements.read_text() + sys.version + sysconfig.get_platform() + sys.base_prefix
    install = partial(_install, requirements=requirements, what=what)
    return ensure(name, depends_on, install, what=what) / "bin" / "python"


def _install(folder: Path, *, requirements: Path, what: str) -> None:
    # The folder is renamed afterwards: only `bin/python -m` is used, which does not mind.
    venv.create(folder, symlinks=True, with_pip=False)
    target = str(folder / "bin" / "python")
    wanted = ["--require-hashes", "-r", str(requirements)]
    if found := uv():
        command = [found, "pip", "install", "--python", target, *wanted]
    else:
        subprocess.run([target, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
        command = [target, "-m", "pip", "install", "--no-input", *wanted]
    try:
        # There, so that no settings of a project around us apply; those of the user do.
        subprocess.run(command, cwd=folder, check=True, env={**os.environ, "PYTHONPATH": ""})
    except subprocess.CalledProcessError as error:
        raise DoubleError(
            f"{what} cannot be installed (exit code {error.returncode}, see above): "
            "is the package index reachable? PIP_INDEX_URL or UV_DEFAULT_INDEX name another"
        ) from None


def uv() -> str | None:
    """The machine's, or what dev/bootstrap.py fetched where it has none."""
    ours = cache().with_name("uv") / "bin" / "uv"
    return shutil.which("uv") or (str(ours) if ours.exists() else None)
