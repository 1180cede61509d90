"""Programs of a control plane that are there already, in place of compiled ones.

Inputs: a variable that names their folders, as PATH does, and the version of each that is wanted. Output: a
folder in the cache with a link to each, made once for these files. A program of another version is refused.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from testbed.compiling import BuildError
from testbed.paths import cache

KWOK: Final = "kwok"
_ASKED: Final = {"kubectl": ("version", "--client")}  # all others: --version
_SAID: Final = re.compile(r"(?:Kubernetes|etcd Version:|Client Version:|kwok version) v?(\S+)")
ANSWER_SECONDS: Final = 30.0


def folder(variable: str, wanted: Mapping[str, str], kwok: Callable[[], Path]) -> Path:
    """The folder of links to what `variable` names. `wanted`: program -> version. kwok may be missing: `kwok`
    makes it then. Raises BuildError, in a line that says what is expected, where any other is missing or of
    another version."""
    value = os.environ[variable]
    found = {name: path for name in wanted if (path := shutil.which(name, path=value))}
    missing = [f"{name} {version}" for name, version in wanted.items() if name not in found and name != KWOK]
    if missing:
        raise BuildError(f"{variable}={value} has no {', no '.join(missing)}: give all folders, as in PATH")
    programs = {name: Path(path).absolute() for name, path in found.items()}
    given = list(programs)
    if KWOK not in programs:
        programs[KWOK] = kwok()  # each time: what nobody asks for is dropped
    made = cache() / f"given-{_key(programs, wanted)}"
    fresh = not made.exists()
    for name in given if fresh else ():
        _check(variable, programs[name], wanted[name])
    if fresh:
        _link(programs, made)
        told = f"Kubernetes {wanted['kube-apiserver']} from {variable}={value}"
        print(f"taking {told}, not compiled", flush=True)
    os.utime(made)
    return made


def _key(programs: Mapping[str, Path], wanted: Mapping[str, str]) -> str:
    """Of the files as they are now."""
    said = [f"{name} {wanted[name]}" for name in wanted]
    for path in programs.values():
        about = path.stat()
        said.append(f"{path} {about.st_size} {about.st_mtime_ns}")
    return hashlib.sha256("\0".join(said).encode()).hexdigest()[:16]


def _check(variable: str, path: Path, expected: str) -> None:
    command = [str(path), *_ASKED.get(path.name, ("--version",))]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{variable}: {path} does not run ({error}); expected is {expected}") from None
    said = _SAID.search(done.stdout + done.stderr)
    if said is None or said[1] != expected:
        other = "of no known version" if said is None else f"version {said[1]}"
        raise BuildError(
            f"{variable}: {path} is {other}, expected is {expected}: "
            f"give that one, or unset {variable} to compile it"
        )


def _link(programs: Mapping[str, Path], made: Path) -> None:
    made.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{made.name}.", dir=made.parent))
    try:
        for name, path in programs.items():
            (work / name).symlink_to(path)
        work.chmod(0o755)
        work.rename(made)
    except OSError:
        shutil.rmtree(work, ignore_errors=True)
        if not made.exists():  # else another process was first
            raise
