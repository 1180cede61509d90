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


def python(name: str, requirements: Path, what: str, interpreter: str | None = None) -> Path:
    """The interpreter of the environment called `name`, which is made when the cache lacks it.

    interpreter  another Python than this one, which takes uv
    """
    base = [sys.version, sys.base_prefix] if interpreter is None else [interpreter, _version(interpreter)]
    depends_on = "".join([requirements.read_text(), sysconfig.get_platform(), *base])
    install = partial(_install, requirements=requirements, what=what, interpreter=interpreter)
    return ensure(name, depends_on, install, what=what) / "bin" / "python"


def _version(interpreter: str) -> str:
    return subprocess.run([interpreter, "-VV"], capture_output=True, text=True, check=True).stdout


def _install(folder: Path, *, requirements: Path, what: str, interpreter: str | None) -> None:
    # The folder is renamed afterwards: only `bin/python -m` is used, which does not mind.
    if interpreter is None:
        venv.create(folder, symlinks=True, with_pip=False)
    else:
        subprocess.run([interpreter, "-m", "venv", "--without-pip", str(folder)], check=True)
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
