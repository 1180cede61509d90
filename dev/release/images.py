"""Both images as OCI layouts, built by buildah from the Dockerfile of a commit; no container engine is asked.

What they are built on is chosen by name: the bases that the Dockerfile names, or Debian's Python, which shows
that the steps work and is nothing to publish. Each is built for every platform, on a machine of any of them.
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
from release.oci import Image, Layout

CHOICES: Final = ("published", "debian", "none")
ARCHITECTURES: Final = ("amd64", "arm64")
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
        for image in Layout(folder / target).images():
            print(f"{target} {image.platform}: {_sizes(image)}", flush=True)
    return {"buildah": storage.run("--version")}


def _sizes(image: Image) -> str:
    """What a node pulls, by layer."""
    layers = [f"{place} {size / 1e6:.1f}" for place, size in image.sizes]
    return f"{sum(size for _, size in image.sizes) / 1e6:.1f} MB compressed: {', '.join(layers)}"


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
        storage.join(DEBIAN, [storage.base(one) for one in ARCHITECTURES])
    for base in _named(source).values() if bases == "published" else ():
        _pull(storage, base)


def _storage(work: Path, bases: str) -> Storage:
    """One of this release alone: to a cache a LABEL of another revision is the same step."""
    return Storage(work / f"storage-{bases}")


def _pull(storage: Storage, base: str) -> None:
    """Have an image of a registry for all platforms under its name, at one moment's state."""
    try:
        names = [_pulled(storage, base, one) for one in ARCHITECTURES]
    except NodeError as error:
        raise ReleaseError(f"{base} cannot be pulled ({str(error).splitlines()[-1].strip()})") from None
    except subprocess.TimeoutExpired:
        raise ReleaseError(f"{base} cannot be pulled in {_PULL_SECONDS:.0f} s") from None
    storage.join(base, names)


def _pulled(storage: Storage, base: str, architecture: str) -> str:
    """Its name for one platform."""
    platform = f"--platform=linux/{architecture}"
    image = storage.run("pull", "--quiet", platform, base, seconds=_PULL_SECONDS)
    name = f"localhost/{base.partition('/')[2]}-{architecture}"
    storage.run("tag", image, name)
    storage.run("rmi", base)  # the name, which the other platforms' image would take
    return name


def _named(source: Path) -> dict[str, str]:
    """The bases that the Dockerfile names, by argument."""
    text = (source / "Dockerfile").read_text()
    return dict(re.findall(r"^ARG (PYTHON\w*)=(\S+)$", text, re.MULTILINE))


def _base(source: Path, target: str) -> str:
    """What the Dockerfile builds a target on."""
    text = (source / "Dockerfile").read_text()
    (argument,) = re.findall(rf"^FROM .*\$\{{(\w+)\}} AS {target}$", text, re.MULTILINE)
    return _named(source)[argument]


def _build(storage: Storage, target: str, source: Path, release: Release, bases: str, out: Path) -> None:
    stand_ins = [f"--build-arg={arg}={DEBIAN}" for arg in ("PYTHON", "PYTHON_SMALL") if bases == "debian"]
    said = [f"--build-arg=VERSION={release.version}", f"--build-arg=REVISION={release.commit}"]
    base = DEBIAN if bases == "debian" else _base(source, target)
    names = []
    for one in ARCHITECTURES:
        # buildah would give a name that is known here alone, and the digest of the step before the last.
        about = {"name": base, "digest": storage.digest(base, one)}
        told = [f"--annotation=org.opencontainers.image.base.{key}={text}" for key, text in about.items()]
        names.append(f"localhost/caretaker/{target}:{one}")
        storage.build(target, names[-1], *said, *told, *stand_ins, context=source, architecture=one)
    listed = f"localhost/caretaker/index-of-{target}"
    storage.join(listed, names)
    out.parent.mkdir(exist_ok=True)
    where = f"oci:{out}:{release.version}"
    storage.run("manifest", "push", "--quiet", "--all", "--format", "oci", listed, where)
