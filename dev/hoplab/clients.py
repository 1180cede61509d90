"""The SDKs that the lab measures: how each is made ready here, and one of them at work in a place.

boto3 is the project's own. The Go and JS SDKs are built from `sdks/` into the user's cache where Go and
npm are at hand; where not, `prepare` says what is missing. A client gets an environment with nothing
in it but PATH and a HOME that is not there: its credentials can come from the metadata service alone.
"""

import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from awsdoubles.cached import ensure
from hoplab.lab import HopLab
from hoplab.needs import HopLabError

SDKS: Final = Path(__file__).with_name("sdks")
ANSWER_SECONDS: Final = 60.0
NO_HOME: Final = "/nonexistent"


class Resolved(msgspec.Struct, frozen=True):
    """How long it took to have credentials, in seconds, or to give up with `error`."""

    seconds: float = 0.0
    error: str = ""


class Client:
    """One SDK in one place; it lives as long as the lab."""

    def __init__(self, lab: HopLab, place: str, command: list[str]) -> None:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": NO_HOME}
        self._process = lab.start(place, command, environment)
        self._ready = False

    def resolve(self) -> Resolved:
        """Resolve credentials afresh, as a program that starts would."""
        # Not at the start: clients of several places load their SDK side by side.
        if not self._ready:
            self._answer()
            self._ready = True
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Resolved:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
        if not ready:
            raise HopLabError(f"{self._process.args!r} says nothing for {ANSWER_SECONDS:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise HopLabError(
                f"{self._process.args!r} ended: {self._process.communicate()[1].strip()[-500:]}"
            )
        return msgspec.json.decode(line, type=Resolved)


def boto3() -> list[str]:
    """The command of the boto3 client, in the project's own environment."""
    return [sys.executable, str(SDKS / "boto3_client.py")]


def go() -> list[str]:
    """The command of the aws-sdk-go-v2 client, which is built where the cache lacks it."""
    compiler = shutil.which("go")
    if compiler is None:
        raise HopLabError("go is missing: install Go from https://go.dev/dl/")
    sources = sorted((SDKS / "go").iterdir())

    def fill(folder: Path) -> None:
        environment = {**os.environ, "CGO_ENABLED": "0"}
        _run([compiler, "build", "-trimpath", "-o", str(folder / "client"), "."], SDKS / "go", environment)

    return [str(_cached("hoplab-go", sources, fill, "aws-sdk-go-v2") / "client")]


def js() -> list[str]:
    """The command of the aws-sdk-js v3 client, which is installed where the cache lacks it."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise HopLabError("node or npm is missing: apt-get install nodejs npm")
    sources = [SDKS / "js" / name for name in ("client.mjs", "package.json", "package-lock.json")]

    def fill(folder: Path) -> None:
        for source in sources:
            shutil.copy(source, folder)
        _run([npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"], folder, dict(os.environ))

    return [node, str(_cached("hoplab-js", sources, fill, "aws-sdk-js v3") / "client.mjs")]


CLIENTS: Final[dict[str, Callable[[], list[str]]]] = {
    "boto3": boto3,
    "aws-sdk-go-v2": go,
    "aws-sdk-js-v3": js,
}


def _cached(name: str, sources: list[Path], fill: Callable[[Path], None], what: str) -> Path:
    return ensure(name, "\0".join(source.read_text() for source in sources), fill, what=what)


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = " ".join((done.stderr or done.stdout).split())[-300:]
        raise HopLabError(f"{' '.join(command[:2])} failed; is its registry reachable? {last}")
