"""What is in an OCI image layout: https://github.com/opencontainers/image-spec/blob/main/image-layout.md

It reads files of one folder, and changes none.
"""

import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

INDEX: Final = "application/vnd.oci.image.index.v1+json"
_BASE: Final = "org.opencontainers.image.base"
_COPIED: Final = re.compile(r"\bCOPY .* in (\S+)\s*$")

Json = dict[str, Any]


@dataclass(frozen=True)
class Image:
    """An image for one platform."""

    platform: str  # linux-amd64
    manifest: Json
    config: Json

    @property
    def sizes(self) -> list[tuple[str, int]]:
        """Compressed bytes: of what it was built on, `base`, and of each layer of its own, by where its files
        are, as the builder noted it; the lowest first."""
        steps = [one.get("created_by", "") for one in self.config["history"] if not one.get("empty_layer")]
        own = list(takewhile(bool, (_COPIED.search(step) for step in reversed(steps))))[::-1]
        sizes = [one["size"] for one in self.manifest["layers"]]
        base = len(sizes) - len(own)
        places = [found[1] for found in own if found]
        return [("base", sum(sizes[:base])), *zip(places, sizes[base:], strict=True)]

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
            manifest = self._json(one["digest"])
            config = self._json(manifest["config"]["digest"])
            yield Image(f"{platform['os']}-{platform['architecture']}", manifest, config)

    def layers(self, image: Image) -> list[Path]:
        """The files of an image's layers, the lowest first."""
        return [self._blob(layer["digest"]) for layer in image.manifest["layers"]]

    def files(self, image: Image, folder: str) -> dict[str, bytes]:
        """What an image has in a folder (`usr/share/sbom`): name -> content, that of the topmost layer."""
        found = {}
        for layer in self.layers(image):
            with tarfile.open(layer) as archive:
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
