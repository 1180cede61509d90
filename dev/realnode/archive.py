"""Images as a file that `ctr images import` and `docker load` read: no container engine is asked.

Format: "Docker Image Specification v1.2", combined image JSON and file system changeset.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Image:
    """Its name, the tars of its layers, of which each lies on those before it, and how it is run."""

    reference: str
    layers: Sequence[Path]
    config: Mapping[str, Any]


def write(target: Path, images: Sequence[Image], arch: str) -> None:
    """Write `target`; a layer that several of the images have is in it once."""
    digests: dict[Path, str] = {}
    for layer in (layer for image in images for layer in image.layers):
        if layer not in digests:
            with layer.open("rb") as file:
                digests[layer] = hashlib.file_digest(file, "sha256").hexdigest()
    with tarfile.open(target, "w") as written:
        for layer, digest in digests.items():
            info = tarfile.TarInfo(f"{digest}/layer.tar")
            info.size, info.mode = layer.stat().st_size, 0o644
            with layer.open("rb") as file:
                written.addfile(info, file)
        listed = []
        for image in images:
            found = [digests[layer] for layer in image.layers]
            about = _about(image, found, arch)
            name = f"{hashlib.sha256(about).hexdigest()}.json"
            _add(written, name, about, 0o644)
            layers = [f"{digest}/layer.tar" for digest in found]
            listed.append({"Config": name, "RepoTags": [image.reference], "Layers": layers})
        _add(written, "manifest.json", json.dumps(listed).encode(), 0o644)


def tar(parts: Mapping[str, bytes], mode: int, links: Mapping[str, str] | None = None) -> bytes:
    """Files of one mode, and symbolic links (name -> where to); without times and owners, so that the same
    files give the same image."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as written:
        for name, data in parts.items():
            _add(written, name, data, mode)
        for name, where in (links or {}).items():
            if name not in parts:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = tarfile.SYMTYPE, where
                written.addfile(info)
    return made.getvalue()


def _about(image: Image, digests: Sequence[str], arch: str) -> bytes:
    config = {
        "architecture": arch,
        "os": "linux",
        # Its own name in it, so that two images of the same layers have ids of their own.
        "config": {**image.config, "Labels": {"org.opencontainers.image.title": image.reference}},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
    }
    return json.dumps(config).encode()


def _add(written: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    written.addfile(info, io.BytesIO(data))
