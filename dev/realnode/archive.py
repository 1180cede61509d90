"""An image of one layer as a file that `ctr images import` reads: no container engine is asked.

Format: "Docker Image Specification v1.2", combined image JSON and file system changeset.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def write(
    target: Path, reference: str, entrypoint: Sequence[str], files: Mapping[str, Path], arch: str
) -> None:
    """Write `target`: an image called `reference` with these files (path in the image -> file here)."""
    layer = tar({name: file.read_bytes() for name, file in files.items()}, 0o755)
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": arch,
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    about = json.dumps(config).encode()
    name = f"{hashlib.sha256(about).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [reference], "Layers": [f"{digest}/layer.tar"]}]
    parts = {f"{digest}/layer.tar": layer, name: about, "manifest.json": json.dumps(manifest).encode()}
    target.write_bytes(tar(parts, 0o644))


def tar(parts: Mapping[str, bytes], mode: int, links: Mapping[str, str] | None = None) -> bytes:
    """Files of one mode, and symbolic links (name -> where to); without times and owners, so that the same
    files give the same image."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as written:
        for name, data in parts.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            written.addfile(info, io.BytesIO(data))
        for name, where in (links or {}).items():
            if name not in parts:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = tarfile.SYMTYPE, where
                written.addfile(info)
    return made.getvalue()
