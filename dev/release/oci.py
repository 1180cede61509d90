"""What is in an OCI image layout: https://github.com/opencontainers/image-spec/blob/main/image-layout.md

It reads files of one folder, and changes none.
"""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

INDEX: Final = "application/vnd.oci.image.index.v1+json"
_BASE: Final = "org.opencontainers.image.base"

Json = dict[str, Any]


@dataclass(frozen=True)
class Image:
    """An image for one platform."""

    platform: str  # linux-amd64
    manifest: Json

    @property
    def base(self) -> Json:
        """The ResourceDescriptor of what it was built on, as the builder recorded it."""
        said = self.manifest["annotations"]
        algorithm, _, digest = said[f"{_BASE}.digest"].partition(":")
        return {"name": said[f"{_BASE}.name"], "digest": {algorithm: digest}}


class Layout:
    """A folder with one image index. Raises ValueError where it has none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        listed = json.loads((folder / "index.json").read_text())["manifests"]
        if [one["mediaType"] for one in listed] != [INDEX]:
            raise ValueError(f"{folder.name}: an index of platforms is expected, and nothing beside it")
        self.digest = str(listed[0]["digest"])

    def images(self) -> Iterator[Image]:
        """One for each platform."""
        for one in self._json(self.digest)["manifests"]:
            platform = one["platform"]
            yield Image(f"{platform['os']}-{platform['architecture']}", self._json(one["digest"]))

    def files(self, image: Image, folder: str) -> dict[str, bytes]:
        """What an image has in a folder (`usr/share/sbom`): name -> content, that of the topmost layer."""
        found = {}
        for layer in image.manifest["layers"]:
            with tarfile.open(self._blob(layer["digest"])) as archive:
                for member in archive:
                    parent, _, name = member.name.removeprefix("./").rpartition("/")
                    if parent == folder and member.isfile() and (data := archive.extractfile(member)):
                        found[name] = data.read()
        return found

    def _json(self, digest: str) -> Json:
        made: Json = json.loads(self._blob(digest).read_text())
        return made

    def _blob(self, digest: str) -> Path:
        return self._folder.joinpath("blobs", *digest.split(":"))
