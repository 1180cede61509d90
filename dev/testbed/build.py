"""Build the control plane program once and keep it in the cache.

Input: the Go module in `dev/controlplane`. Output: a cache folder holding one link per component,
named by a hash of everything the program depends on, so that an unchanged module is never rebuilt
and two checkouts share one program. It must not write into the checkout.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from testbed.paths import MODULE, cache

COMPONENTS: Final = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kwok",
)
PROGRAM: Final = "controlplane"
PLAIN_PROGRESS_SECONDS: Final = 15.0
KEEP_UNUSED_SECONDS: Final = 14 * 24 * 3600
# From 1.21 on, `go` fetches by itself the toolchain that go.mod asks for (https://go.dev/doc/toolchain).
OLDEST_GO: Final = (1, 21)
MEND_GO: Final = (
    "install Go 1.21 or newer from https://go.dev/dl/, or on Debian: "
    "apt-get install golang-go (Debian 13), apt-get install -t bookworm-backports golang-go (Debian 12)"
)


class BuildError(Exception):
    """The program cannot be built; the message says why and what mends it."""


def ensure() -> Path:
    """Return the folder with the components' links, building the program first if the cache lacks it."""
    go = _go()
    folder = cache() / _key(go)
    if not _complete(folder):
        cache().mkdir(parents=True, exist_ok=True)
        with _only_one(cache() / "lock"):
            if not _complete(folder):
                _build(go, folder)
                _drop_unused(keep=folder)
    os.utime(folder)
    return folder


def _go() -> str:
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


def _flags() -> list[str]:
    """Linker flags that give the components their version, which the API server reports and checks."""
    required = re.compile(r"^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)$", re.MULTILINE)
    found = required.search((MODULE / "go.mod").read_text())
    if found is None:
        raise BuildError(f"{MODULE / 'go.mod'} does not require k8s.io/kubernetes")
    values = {"gitVersion": found[1], "gitMajor": found[2], "gitMinor": found[3], "gitTreeState": "clean"}
    version = " ".join(f"-X k8s.io/component-base/version.{k}={v}" for k, v in values.items())
    return ["-trimpath", "-ldflags", f"-s -w {version}"]


def _environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0"}


def _key(go: str) -> str:
    toolchain = subprocess.run(
        [go, "env", "GOVERSION", "GOOS", "GOARCH"],
        cwd=MODULE,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if toolchain.returncode:
        raise BuildError(f"go does not work in {MODULE}: {toolchain.stderr.strip()}\n{MEND_GO}")
    digest = hashlib.sha256()
    for path in [MODULE / "go.mod", MODULE / "go.sum", *sorted(MODULE.glob("*.go"))]:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    digest.update("\0".join([*_flags(), toolchain.stdout, *COMPONENTS]).encode())
    return digest.hexdigest()[:16]


def _complete(folder: Path) -> bool:
    return all((folder / name).exists() for name in COMPONENTS)


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another build of the control plane is running: waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(go: str, folder: Path) -> None:
    print("building the control plane (once; on 2 cores about 10 minutes from nothing)", flush=True)
    work = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        _compile(go, work / PROGRAM)
        for name in COMPONENTS:
            (work / name).symlink_to(PROGRAM)
        work.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        work.rename(folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _compile(go: str, out: Path) -> None:
    command = [go, "build", "-v", *_flags(), "-o", str(out), "."]
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=MODULE, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
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
    print(f"built the control plane in {time.monotonic() - started:.0f} s", flush=True)


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
            self._ended.set()


def _drop_unused(keep: Path) -> None:
    """Each program takes 140 MB: drop those that no checkout has used for two weeks."""
    oldest = time.time() - KEEP_UNUSED_SECONDS
    for entry in cache().iterdir():
        if entry.is_dir() and entry != keep and entry.stat().st_mtime < oldest:
            shutil.rmtree(entry, ignore_errors=True)
