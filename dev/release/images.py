"""Both images as OCI layouts, built by buildah from the Dockerfile of a commit; no container engine is asked.

What they are built on is chosen by name: the bases that the Dockerfile names, or Debian's Python, which shows
that the steps work and is nothing to publish. The platforms are those of this machine.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from realnode import needs
from realnode.errors import NodeError
from realnode.images import TARGETS, Storage
from release.checks import Release, ReleaseError

CHOICES: Final = ("published", "debian", "none")
DEBIAN: Final = "localhost/caretaker/debian-python:bookworm"
_INSTEAD: Final = (
    "IMAGES=debian builds them on Debian's Python, to try it; IMAGES=none makes a release without images"
)
_PULL_SECONDS: Final = 600.0


def prepare(bases: str, source: Path, work: Path) -> None:
    """Fetch or make what the images are built on. Raises ReleaseError where this machine cannot."""
    try:
        _prepare(bases, source, work)
    except (ReleaseError, NodeError) as error:
        said = " ".join(str(error).split())
        raise ReleaseError(f"images cannot be built: {said}: {_INSTEAD}") from None


def build(source: Path, release: Release, bases: str, work: Path, folder: Path) -> dict[str, str]:
    """Write a layout for each target into the folder, on the prepared bases; the versions of the tools.
    Nothing for the bases `none`."""
    if bases == "none":
        return {}
    storage = _storage(work, bases)
    for target in TARGETS:
        print(f"building the image {target}", flush=True)
        _build(storage, target, source, release, bases, folder / target)
    return {"buildah": storage.run("--version")}


def _prepare(bases: str, source: Path, work: Path) -> None:
    if bases == "none":
        return
    if sys.platform != "linux" or os.geteuid():
        raise ReleaseError("this takes root on Linux")
    for name in ("buildah", "unshare", *(["mmdebstrap"] if bases == "debian" else [])):
        needs.install(name)
        needs.program(name)
    storage = _storage(work, bases)
    if bases == "debian":
        storage.stand_in([DEBIAN])
    for base in _named(source) if bases == "published" else ():
        _pull(storage, base)


def _storage(work: Path, bases: str) -> Storage:
    """One of this release alone: to a cache a LABEL of another revision is the same step."""
    return Storage(work / f"storage-{bases}")


def _pull(storage: Storage, base: str) -> None:
    try:
        storage.run("pull", "--quiet", base, seconds=_PULL_SECONDS)
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
    storage.build(target, name, *said, *stand_ins, context=source)
    listed = f"localhost/caretaker/index-of-{target}"
    storage.run("manifest", "create", listed)
    storage.run("manifest", "add", listed, name)
    out.parent.mkdir(exist_ok=True)
    where = f"oci:{out}:{release.version}"
    storage.run("manifest", "push", "--quiet", "--all", "--format", "oci", listed, where)
