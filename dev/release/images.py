"""Both images as OCI layouts, built by buildah from the Dockerfile of a commit; no container engine is asked.

What they are built on is chosen by name: the bases that the Dockerfile names, or Debian's Python, which shows
that the steps work and is nothing to publish. The platforms are those of this machine.
"""

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from realnode import needs
from realnode.errors import NodeError
from realnode.images import TARGETS, Storage
from release.checks import Release, ReleaseError
from testbed.paths import cache

CHOICES: Final = ("auto", "published", "debian", "none")
DEBIAN: Final = "localhost/caretaker/debian-python:bookworm"
# Both are the user's, and a storage of the other's bases would have layers of the same names.
_STORAGE: Final = {"published": "release-storage", "debian": "node-storage"}
_INSTEAD: Final = (
    "IMAGES=debian builds them on Debian's Python, to try it; IMAGES=none makes a release without images"
)
_PULL_SECONDS: Final = 600.0


def choose(wanted: str, source: Path) -> str:
    """What the images are built on: `wanted`, or of `auto` the first that this machine can do.

    Raises ReleaseError where it cannot do what is wanted.
    """
    for bases in CHOICES[1:] if wanted == "auto" else [wanted]:
        try:
            _prepare(bases, source)
        except (ReleaseError, NodeError) as error:
            said = " ".join(str(error).split())
            if wanted != "auto":
                raise ReleaseError(f"images cannot be built: {said}: {_INSTEAD}") from None
            print(f"IMAGES={bases} cannot be had here: {said}", file=sys.stderr, flush=True)
        else:
            return bases
    raise AssertionError("IMAGES=none needs nothing")


def build(source: Path, release: Release, bases: str, folder: Path) -> None:
    """Write a layout for each target into the folder; none for the bases `none`."""
    if bases == "none":
        return
    with _storage(bases) as storage:
        for target in TARGETS:
            print(f"building the image {target}", flush=True)
            _build(storage, target, source, release, bases, folder / target)


def _prepare(bases: str, source: Path) -> None:
    if bases == "none":
        return
    if sys.platform != "linux" or os.geteuid():
        raise ReleaseError("this takes root on Linux")
    for name in ("buildah", "unshare", *(["mmdebstrap"] if bases == "debian" else [])):
        needs.install(name)
        needs.program(name)
    with _storage(bases) as storage:
        if bases == "debian":
            storage.stand_in([DEBIAN])
        for base in _named(source) if bases == "published" else ():
            _pull(storage, base)


def _pull(storage: Storage, base: str) -> None:
    try:
        storage.run("pull", "--quiet", "--policy", "ifnewer", base, seconds=_PULL_SECONDS)
    except NodeError as error:
        raise ReleaseError(f"{base} cannot be pulled ({str(error).splitlines()[-1].strip()})") from None
    except subprocess.TimeoutExpired:
        raise ReleaseError(f"{base} cannot be pulled in {_PULL_SECONDS:.0f} s") from None


def _named(source: Path) -> list[str]:
    """The bases that the Dockerfile names."""
    return re.findall(r"^ARG PYTHON\w*=(\S+)$", (source / "Dockerfile").read_text(), re.MULTILINE)


def _build(storage: Storage, target: str, source: Path, release: Release, bases: str, out: Path) -> None:
    name = f"{release.registry}/{target}:{release.version}"
    stand_ins = [f"--build-arg={arg}={DEBIAN}" for arg in ("PYTHON", "PYTHON_SMALL") if bases == "debian"]
    said = [f"--build-arg=VERSION={release.version}", f"--build-arg=REVISION={release.commit}"]
    # Nothing of earlier builds: a LABEL of another revision counts as the same step.
    storage.build(target, name, "--no-cache", *said, *stand_ins, context=source)
    listed = f"localhost/caretaker/index-of-{target}"
    with suppress(NodeError):  # none was left
        storage.run("manifest", "rm", listed)
    storage.run("manifest", "create", listed)
    storage.run("manifest", "add", listed, name)
    out.parent.mkdir(exist_ok=True)
    where = f"oci:{out}:{release.version}"
    storage.run("manifest", "push", "--quiet", "--all", "--rm", "--format", "oci", listed, where)


@contextmanager
def _storage(bases: str) -> Iterator[Storage]:
    """For one process at a time."""
    folder = cache().with_name(_STORAGE[bases])
    # The lock that the images of the real node are built under.
    lock = cache().with_name("node-archives") / "lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield Storage(folder)
