"""dist/ as who publishes it finds it: what is in it, and whether that is what was made. It changes nothing.

A file is as SHA256SUMS says, which names it by its path or, as a downloaded one is called, by its name alone;
or as a list says that is itself in SHA256SUMS. Of an image layout the chart has the digest, and each blob is
named by its own.
"""

import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from realnode.images import TARGETS
from release.checks import ReleaseError
from release.documents import SUMS
from release.make import IMAGES, digest
from release.oci import Layout

_AGAIN: Final = "make it again with `make release`"
# An archive that was cut off or changed has any of these.
_BROKEN: Final = (OSError, EOFError, ValueError, KeyError, tarfile.TarError, yaml.YAMLError)

Json = dict[str, Any]


@dataclass(frozen=True)
class Dist:
    """A whole dist/, with images."""

    folder: Path
    version: str
    registry: str  # where the chart says that the images are: ghcr.io/owner/name
    digests: Mapping[str, str]  # target -> of its index

    @property
    def chart(self) -> Path:
        """The packed chart."""
        return self.folder / f"caretaker-chart-{self.version}.tgz"

    @property
    def sums(self) -> Path:
        """The list of all files."""
        return self.folder / SUMS

    def layout(self, target: str) -> Path:
        """The folder of an image."""
        return self.folder / IMAGES / target

    def image(self, target: str) -> str:
        """What a pod names the image."""
        return f"{self.registry}/{target}@{self.digests[target]}"


def read(folder: Path) -> Dist:
    """What is in it; ReleaseError, in a line that says what to do, where it cannot be published."""
    if not folder.is_dir():
        raise ReleaseError(f"{folder} is missing: make release VERSION=x.y.z, with IMAGES=debian to try")
    if not (folder / IMAGES).is_dir():
        raise ReleaseError(f"{folder} has no images: make release with IMAGES=published, or debian to try")
    listed = set(_checked(folder))
    for file in (file for file in folder.rglob("*") if file.is_file()):
        if file not in listed and not _vouched_for(folder, file):
            raise ReleaseError(f"{file} is not in {SUMS}: remove it, or {_AGAIN}")
    charts = sorted(folder.glob("caretaker-chart-*.tgz"))
    if len(charts) != 1:
        raise ReleaseError(f"{folder} has {len(charts)} charts and not one: {_AGAIN}")
    about, values = (_of_chart(charts[0], name) for name in ("Chart.yaml", "values.yaml"))
    digests = {target: _layout_digest(folder / IMAGES / target) for target in TARGETS}
    registries = {_registry(target, values, digests[target], charts[0]) for target in TARGETS}
    if len(registries) != 1:
        raise ReleaseError(f"{charts[0]}: its images are at {' and '.join(sorted(registries))}: {_AGAIN}")
    return Dist(folder.resolve(), str(about["version"]), registries.pop(), digests)


def _checked(folder: Path, sums: str = SUMS) -> Iterator[Path]:
    """The files that the sums are of, and those of lists among them; they agree."""
    try:
        lines = (folder / sums).read_text().splitlines()
    except OSError:
        raise ReleaseError(f"{folder / sums} is missing: {_AGAIN}") from None
    for line in lines:
        expected, _, name = line.partition("  ")
        found = [folder / name] if (folder / name).is_file() else sorted(folder.rglob(Path(name).name))
        if len(found) != 1:
            raise ReleaseError(f"{folder} has {len(found)} files {name} and {sums} one: {_AGAIN}")
        if digest(found[0]) != expected:
            raise ReleaseError(f"{found[0]} is not what {sums} says: {_AGAIN}")
        yield found[0]
        if name.startswith(f"{SUMS}."):
            yield from _checked(folder, name)


def _vouched_for(folder: Path, file: Path) -> bool:
    """Whether it is known without the sums: part of a layout, or what signs them."""
    place, name = file.parent.relative_to(folder).parts, file.name
    if place[:1] == (IMAGES,) and len(place) > 1:
        return name in ("oci-layout", "index.json") or digest(file) == name
    return not place and re.fullmatch(rf"{SUMS}(\.sigstore\.json)?", name) is not None


def _of_chart(chart: Path, name: str) -> Json:
    try:
        with tarfile.open(chart) as archive:
            data = archive.extractfile(f"caretaker/{name}")
            found = yaml.safe_load(data.read()) if data else None
    except _BROKEN as error:
        raise ReleaseError(f"{chart} cannot be read ({error}): {_AGAIN}") from None
    if not isinstance(found, dict):
        raise ReleaseError(f"{chart} has no {name}: {_AGAIN}")
    return found


def _layout_digest(layout: Path) -> str:
    try:
        return Layout(layout).digest
    except _BROKEN as error:
        raise ReleaseError(f"{layout} is no image ({error}): {_AGAIN}") from None


def _registry(target: str, values: Json, built: str, chart: Path) -> str:
    """Where the chart says that this image is; it names the one that was built."""
    image = values.get("image", {}) if target == "operator" else values.get(target, {}).get("image", {})
    place, _, name = str(image.get("repository", "")).rpartition("/")
    named = image.get("digest")
    if not named:
        raise ReleaseError(f"{chart} names the image {target} by no digest: {_AGAIN}")
    if (name, named) != (target, built):
        raise ReleaseError(f"{chart} names {name}@{named}, and {target}@{built} was built: {_AGAIN}")
    return place
