"""Wheel and sdist, and the bill of materials of what the wheel brings along.

Input: the files of a commit. uv builds, with the hatchling that dev/image/tools.txt pins by hash.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from awsdoubles.venvs import uv
from release.checks import Release, ReleaseError


def build(source: Path, release: Release, folder: Path) -> Path:
    """Write sdist and wheel, the latter from the former; the wheel's path."""
    run(
        *("build", "--quiet", "--python", sys.executable, "--no-create-gitignore"),
        *("--build-constraints", source / "dev" / "image" / "tools.txt", "--require-hashes"),
        *("--out-dir", folder, source),
        env={"SOURCE_DATE_EPOCH": str(release.seconds)},
    )
    return folder / f"caretaker-{release.version}-py3-none-any.whl"


def locked(source: Path, out: Path) -> None:
    """Write the lock's part that runs, as requirements with hashes."""
    run(
        *("export", "--quiet", "--frozen", "--project", source, "--no-dev", "--no-emit-project"),
        *("--no-header", "--no-annotate", "--output-file", out),
    )


def bill(source: Path, wheel: Path, requirements: Path, work: Path) -> bytes:
    """The bill of the wheel with the locked packages that this Python takes."""
    place = work / "installed"
    install = ("pip", "install", "--quiet", "--python", sys.executable, "--target", place, "--no-deps")
    run(*install, "--require-hashes", "--only-binary", ":all:", "--requirements", requirements)
    run(*install, wheel)
    command = [sys.executable, str(source / "dev" / "sbom.py"), "--path", str(place)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise ReleaseError(f"dev/sbom.py failed: {_last(done.stderr.decode(errors='replace'))}")
    return done.stdout


def run(*arguments: str | Path, env: Mapping[str, str] | None = None) -> str:
    """What uv prints; ReleaseError with the end of its errors when it fails."""
    program = uv()
    if program is None:
        raise ReleaseError("uv is missing: make setup")
    command = [program, *map(str, arguments)]
    done = subprocess.run(
        command, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"uv {arguments[0]} failed, is the package index reachable? {_last(done.stderr)}")
    return done.stdout


def _last(said: str) -> str:
    return " ".join(said.split())[-500:]
