"""Go programs of modules of ours: find the compiler, ask what it makes, compile with visible progress.

Inputs: a folder with go.mod and go.sum, and flags. It decides neither what is built nor where it is kept.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO, Final

PLAIN_PROGRESS_SECONDS: Final = 15.0
# From 1.21 on, `go` fetches by itself the toolchain that go.mod asks for (https://go.dev/doc/toolchain).
OLDEST_GO: Final = (1, 21)
MEND_GO: Final = (
    "install Go 1.21 or newer from https://go.dev/dl/, or on Debian: "
    "apt-get install golang-go (Debian 13), apt-get install -t bookworm-backports golang-go (Debian 12)"
)


class BuildError(Exception):
    """A program cannot be built; the message says why and what mends it."""


def compiler() -> str:
    """The path of a `go` that is new enough."""
    go = shutil.which("go")
    if go is None:
        raise BuildError(f"go is missing: {MEND_GO}")
    said = subprocess.run(
        [go, "version"], cwd=Path.home(), capture_output=True, text=True, check=False
    ).stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    if found and (int(found[1]), int(found[2])) < OLDEST_GO:
        raise BuildError(f"{found[0]} is too old: {MEND_GO}")
    return go


def toolchain(go: str, module: Path) -> str:
    """Version, system and processor of what `go` builds for the module."""
    asked = subprocess.run(
        [go, "env", "GOVERSION", "GOOS", "GOARCH"],
        cwd=module,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        raise BuildError(f"go does not work in {module}: {asked.stderr.strip()}\n{MEND_GO}")
    return asked.stdout


def build(go: str, module: Path, package: str, flags: list[str], out: Path) -> None:
    """Compile a package of the module (`.` or an import path) to `out`; progress goes to stdout."""
    command = [go, "build", "-v", *flags, "-o", str(out), package]
    process = subprocess.Popen(
        command, cwd=module, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    progress = _Progress(process.stdout)
    try:
        progress.show_until_end()
    finally:
        # Ctrl-C reaches go too; a failure of ours must not leave it compiling.
        if process.poll() is None:
            process.terminate()
        code = process.wait()
    if code:
        raise BuildError("go build failed:\n" + "\n".join(progress.tail))


def _environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0"}


class _Progress:
    """Counts the lines of `go build -v`: one per downloaded module, one per compiled package."""

    def __init__(self, lines: IO[str]) -> None:
        self.tail: deque[str] = deque(maxlen=20)
        self._lines = lines
        self._modules = 0
        self._packages = 0
        self._ended = threading.Event()

    def show_until_end(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()
        started = time.monotonic()
        terminal = sys.stdout.isatty()
        try:
            while not self._ended.wait(0.5 if terminal else PLAIN_PROGRESS_SECONDS):
                seconds = int(time.monotonic() - started)
                text = f"{self._modules} modules fetched, {self._packages} packages compiled"
                text = f"  {seconds // 60}:{seconds % 60:02d}  {text}"
                print(f"\r\033[K{text}" if terminal else text, end="" if terminal else "\n", flush=True)
        finally:
            if terminal:
                print("\r\033[K", end="", flush=True)

    def _read(self) -> None:
        try:
            for line in self._lines:
                self.tail.append(line.rstrip())
                if line.startswith("go: downloading"):
                    self._modules += 1
                else:
                    self._packages += 1
        finally:
            self._lines.close()
            self._ended.set()
