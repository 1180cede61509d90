"""Makes dist/: first what would refuse a release, then every file in a folder of its own, which takes dist/'s
place when it is whole. One at a time in a checkout.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from realnode.images import TARGETS
from release import bundles, checks, documents, images, python, source
from release.checks import Release, ReleaseError
from release.oci import Layout
from testbed.paths import CHECKOUT, STATE

DIST: Final = CHECKOUT / "dist"
IMAGES: Final = "images"
_ASIDE: Final = STATE / "release.old"  # dist/, while another one takes its place
_WORK: Final = "release."
_BILLS: Final = "usr/share/sbom"


@dataclass(frozen=True)
class Asked:
    """What `make release` was given."""

    version: str
    repository: str
    registry: str
    images: str
    builder: str


def make(asked: Asked) -> Release:
    """Write dist/. Raises ReleaseError, and leaves dist/ as it was, where there is no release."""
    release = _checked(asked)
    os.umask(0o022)  # which the builders of images pass on
    with _alone() as work:
        files = work / "source"
        source.export(release.commit, files)
        images.prepare(asked.images, files, work)
        made = work / "dist"
        made.mkdir()
        _write(release, files, work, made, asked.images)
        _replace(DIST, made, _ASIDE)
    return release


def _checked(asked: Asked) -> Release:
    texts = {name: (CHECKOUT / name).read_text() for name in checks.PLACES}
    checks.check_version(asked.version, texts)
    checks.check_names(asked.repository, asked.registry)
    if asked.images not in images.CHOICES:
        raise ReleaseError(f"IMAGES={asked.images} is none of {', '.join(images.CHOICES)}")
    commit = source.commit()
    checks.check_commit(asked.version, commit)
    checks.section((CHECKOUT / checks.CHANGELOG).read_text(), asked.version)
    builder = asked.builder or f"{asked.repository}#make-release"
    return Release(asked.version, commit.id, commit.seconds, asked.repository, asked.registry, builder)


def _write(release: Release, files: Path, work: Path, made: Path, bases: str) -> None:
    name = f"caretaker-{release.version}"
    print("building wheel and sdist", flush=True)
    wheel, locked = python.build(files, release, made), work / bundles.LOCKED
    python.locked(files, locked)
    (made / f"{name}.cdx.json").write_bytes(python.bill(files, wheel, locked, work))
    tools = images.build(files, release, bases, work, made / IMAGES)
    layouts = {target: Layout(made / IMAGES / target) for target in TARGETS if bases != "none"}
    _write_bills(layouts, made)

    print("packing chart, manifests and plugin", flush=True)
    digests = {target: layout.digest for target, layout in layouts.items()}
    packed = made / f"caretaker-chart-{release.version}.tgz"
    folder = bundles.write_chart(files, release, digests, work, packed)
    (made / "crds.yaml").write_text(bundles.crds(files))
    (made / "install.yaml").write_text(bundles.manifest(files, folder, release))
    plugin = made / f"{bundles.PLUGIN}-{release.version}.tar.gz"
    plugin.write_bytes(bundles.plugin(wheel, locked, files / "LICENSE", release.seconds))
    (made / "caretaker.krew.yaml").write_text(documents.krew(release, plugin.name, digest(plugin)))

    section = checks.section((files / checks.CHANGELOG).read_text(), release.version)
    (made / "NOTES.md").write_text(documents.notes(release, section))
    bases_of = [image.base for layout in layouts.values() for image in layout.images()]
    materials = [base for at, base in enumerate(bases_of) if base not in bases_of[:at]]
    tools |= {"python": platform.python_version(), "uv": python.run("--version").strip()}
    statement = documents.provenance(release, digests_of(made), materials, bases, tools)
    (made / documents.PROVENANCE).write_text(statement)
    for list_of, text in documents.sums(digests_of(made)).items():
        (made / list_of).write_text(text)


def _write_bills(layouts: dict[str, Layout], folder: Path) -> None:
    for target, layout in layouts.items():
        for image in layout.images():
            (bill,) = layout.files(image, _BILLS).values()
            (folder / f"{target}.{image.platform}.cdx.json").write_bytes(bill)


def digests_of(folder: Path) -> dict[str, str]:
    """SHA-256 of each file below a folder, by its path in it."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): digest(file) for file in files}


def digest(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


@contextmanager
def _alone() -> Iterator[Path]:
    """A folder for the work, which is gone afterwards; so are those of runs that were killed."""
    STATE.mkdir(exist_ok=True)
    with (STATE / "release.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ReleaseError(
                "another `make release` is at work in this checkout: wait for it, or end it"
            ) from None
        for left in STATE.glob(f"{_WORK}*.work"):
            shutil.rmtree(left)
        if _ASIDE.exists() and not DIST.exists():
            _ASIDE.rename(DIST)
        shutil.rmtree(_ASIDE, ignore_errors=True)
        place = tempfile.TemporaryDirectory(
            prefix=_WORK, suffix=".work", dir=STATE, ignore_cleanup_errors=True
        )
        with place as work:
            yield Path(work)


def _replace(old: Path, new: Path, aside: Path) -> None:
    """Put `new` where `old` may be."""
    new.chmod(0o755)
    there = old.exists() or old.is_symlink()
    if there:
        old.rename(aside)
    try:
        new.rename(old)
    except BaseException:
        if there:
            aside.rename(old)
        raise
    shutil.rmtree(aside, ignore_errors=True)
