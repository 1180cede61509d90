"""The images that a real node runs, made on this machine: no registry is asked.

Inputs: the project's Dockerfile and what it copies. The base images that it names are stood in for by one of
Debian's Python, so that its steps are proved and not its base. Output: files for `ctr images import`, in the
user's cache, keyed by all that they depend on. buildah keeps the layers there: a change of our own code
repeats none of the steps before it.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from awsdoubles.cached import ensure
from realnode import archive
from realnode.errors import NodeError
from realnode.needs import program
from testbed import compiling
from testbed.paths import CHECKOUT, cache

SUITE: Final = "bookworm"
BASE: Final = ("python3", "python3-venv", "ca-certificates")
TARGETS: Final = ("probe", "operator")
# Archives of so many versions of our code stay, 0.4 GB each, and those that another checkout may be reading.
KEPT: Final = 2
IN_USE_SECONDS: Final = 1800.0
# Layers that no build uses any more are dropped by starting anew.
LARGEST_STORAGE: Final = 4 * 1024**3
_PAUSE: Final = Path(__file__).with_name("pause")
_NOT_IN_IMAGES: Final = ("doc", "man", "locale", "info")


def reference(target: str, version: str) -> str:
    """What an image is called in a pod."""
    return f"registry.example.com/caretaker/{target}:{version}"


def version() -> str:
    """The project's, which is the images' tag."""
    found = re.search(r'^version = "(.+)"$', (CHECKOUT / "pyproject.toml").read_text(), re.MULTILINE)
    if found is None:
        raise NodeError("pyproject.toml has no version")
    return found[1]


def archives() -> list[Path]:
    """The files to import: those of the Dockerfile as it is now."""
    return [_built() / f"{target}.tar" for target in TARGETS]


def pause() -> Path:
    """The folder with the one layer of the pause image, `layer.tar`."""
    sources = [_PAUSE / "go.mod", _PAUSE / "main.go"]

    def fill(folder: Path) -> None:
        environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
        out = folder / "pause"
        command = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(out), "."]
        done = subprocess.run(
            command, cwd=_PAUSE, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NodeError(f"the pause image cannot be built: {done.stderr.strip()}\n{compiling.MEND_GO}")
        (folder / "layer.tar").write_bytes(archive.tar({"pause": out.read_bytes()}, 0o755))

    depends_on = "\0".join([*(source.read_text() for source in sources), arch(), "layer.tar"])
    return ensure("node-pause", depends_on, fill, what="the pause image")


def busybox() -> bytes:
    """A file system, as a tar, of Debian's BusyBox alone: a link in /bin for each of its programs."""

    command = ["--quiet", "--variant=extract", "--format=directory", "--include=busybox-static", SUITE]

    def fill(folder: Path) -> None:
        mmdebstrap([*command, str(folder)], "the image of BusyBox cannot be made")

    depends_on = "\0".join([*command, arch()])
    binary = ensure("node-busybox", depends_on, fill, what="BusyBox") / "bin" / "busybox"
    listed = subprocess.run([binary, "--list"], capture_output=True, text=True, check=True).stdout.split()
    return archive.tar({"bin/busybox": binary.read_bytes()}, 0o755, {f"bin/{n}": "busybox" for n in listed})


def mmdebstrap(arguments: list[str], failure: str) -> None:
    """Run it; NodeError where it fails. What it mounts ends with it and is nobody else's."""
    # Without root it makes namespaces by itself.
    apart = [] if os.geteuid() else [program("unshare"), "--mount"]
    command = [*apart, program("mmdebstrap"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NodeError(f"{failure}:\n{done.stderr.strip()}")


def _built() -> Path:
    """The folder with the archives of the Dockerfile's targets."""
    folder = cache().with_name("node-archives") / _key()
    if not all((folder / f"{target}.tar").exists() for target in TARGETS):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for target in TARGETS:
                if not (folder / f"{target}.tar").exists():
                    _build(target, folder / f"{target}.tar")
    os.utime(folder)
    _keep_newest(folder.parent)
    return folder


def _key() -> str:
    named = [reference(target, version()) for target in TARGETS]
    digest = hashlib.sha256("\0".join([SUITE, *BASE, *named, arch()]).encode())
    for path in _context():
        name = path.relative_to(CHECKOUT).as_posix()
        digest.update(f"{name} {path.stat().st_mode & 0o777:o} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _context() -> Iterator[Path]:
    """What the builder is sent, by .dockerignore, and the files that tell it what to do."""
    ignore = CHECKOUT / ".dockerignore"
    yield from (CHECKOUT / "Dockerfile", ignore)
    for line in ignore.read_text().splitlines():
        if line.startswith("!"):
            named = CHECKOUT / line[1:].strip()
            found = sorted(named.rglob("*")) if named.is_dir() else [named]
            yield from (path for path in found if path.is_file() and "__pycache__" not in path.parts)


def _build(target: str, out: Path) -> None:
    storage = Storage(cache().with_name("node-storage"))
    print(f"building the image {target}", flush=True)
    started = time.monotonic()
    fresh = out.with_suffix(".new")
    name = reference(target, version())
    storage.stand_in(
        re.findall(r"^ARG PYTHON\w*=(\S+)$", (CHECKOUT / "Dockerfile").read_text(), re.MULTILINE)
    )
    storage.build(target, name, f"--build-arg=VERSION={version()}")
    fresh.unlink(missing_ok=True)
    storage.run("push", "--quiet", name, f"docker-archive:{fresh}:{name}")
    fresh.rename(out)
    print(f"built the image {target} in {time.monotonic() - started:.0f} s", flush=True)


class Storage:
    """buildah's images and layers, in a folder of ours; nothing in the machine's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if folder.exists() and _size(folder) > LARGEST_STORAGE:
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, *arguments: str, seconds: float | None = None) -> str:
        """Run a command of buildah; its output. NodeError with the end of it when it fails, TimeoutExpired
        when it takes longer."""
        places = ["--root", str(self._folder / "root"), "--runroot", str(self._folder / "run")]
        # Its mounts, one of which it never undoes, end with it and are nobody else's.
        command = [program("unshare"), "--mount", program("buildah"), *places, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
            raise NodeError(f"buildah {arguments[0]} failed:\n{said}")
        return done.stdout.strip()

    def stand_in(self, names: list[str]) -> None:
        """Have our base image under the names that the Dockerfile begins with."""
        self.run("tag", self.base(arch()), *names)

    def base(self, architecture: str) -> str:
        """The name of our base image for an architecture."""
        base = _base(architecture)
        tag = f"localhost/base:{base.parent.name}"
        if tag not in self._names():
            container = self.run("from", "scratch")
            self.run("add", "--quiet", container, str(base), "/")
            path = "PATH=/usr/local/bin:/usr/bin:/bin"
            self.run("config", "--arch", architecture, "--env", path, container)
            self.run("commit", "--quiet", "--timestamp", "0", "--rm", container, tag)
        return tag

    def join(self, name: str, images: list[str]) -> None:
        """Have images of one platform each as one image of several."""
        self.run("manifest", "create", name)
        for image in images:
            self.run("manifest", "add", name, image)

    def digest(self, name: str, architecture: str) -> str:
        """Of the manifest for a platform in an image of several."""
        listed = json.loads(self.run("manifest", "inspect", name))["manifests"]
        (found,) = (one["digest"] for one in listed if one["platform"]["architecture"] == architecture)
        return str(found)

    def build(
        self, target: str, name: str, *arguments: str, context: Path = CHECKOUT, architecture: str = ""
    ) -> None:
        """Build one target, of this machine's architecture or another; steps that were done before are not
        done again."""
        # Never isolation by an OCI runtime, whose network edits the machine's firewall.
        self.run(
            "bud",
            *("--isolation", "chroot", "--pull-never", "--layers", "--timestamp", "0"),
            *("--platform", f"linux/{architecture or arch()}"),
            *("--build-arg", f"BUILDPLATFORM=linux/{arch()}"),  # which buildah 1.28 does not set
            *("--target", target, "--tag", name, *arguments),
            *(f"--volume={place}:{place}:ro" for place in _of_the_machine()),
            str(context),
        )

    def _names(self) -> set[str]:
        return set(self.run("images", "--format", "{{.Name}}:{{.Tag}}").splitlines())


def _of_the_machine() -> list[str]:
    """What makes its package indexes reachable from a build as they are from outside."""
    places = ("/etc/ssl/certs", "/etc/pip.conf", "/etc/uv/uv.toml")
    return [place for place in places if Path(place).exists()]


def _base(architecture: str) -> Path:
    """Its files, as a tar. Of another architecture nothing can be run: packages are only unpacked."""
    native = architecture == arch()
    command = [
        "--quiet",
        "--variant=essential" if native else "--variant=extract",
        *([] if native else [f"--architectures={architecture}", "--skip=check/qemu"]),
        f"--include={','.join(BASE)}",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _NOT_IN_IMAGES),
        SUITE,
    ]

    def fill(folder: Path) -> None:
        mmdebstrap([*command, str(folder / "base.tar")], "the base image cannot be made")

    depends_on = "\0".join([*command, arch()])
    what = f"the base image, Debian's {SUITE} for {architecture}"
    return ensure("node-base", depends_on, fill, what=what) / "base.tar"


def arch() -> str:
    """This machine's processor, as images name it."""
    machine = platform.machine().lower()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _size(folder: Path) -> int:
    done = subprocess.run(["du", "-s", "-B1", str(folder)], capture_output=True, text=True, check=False)
    return int(done.stdout.split()[0]) if done.stdout else 0


def _keep_newest(folder: Path) -> None:
    made = sorted((one for one in folder.iterdir() if one.is_dir()), key=lambda one: one.stat().st_mtime)
    for one in made[:-KEPT]:
        if time.time() - one.stat().st_mtime > IN_USE_SECONDS:
            shutil.rmtree(one, ignore_errors=True)
