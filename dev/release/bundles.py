"""What a cluster or kubectl takes: the chart, manifests, the plugin.

Inputs: the files of a commit, the images' digests, the wheel. Helm packs and renders.
"""

import gzip
import io
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import chart
from chart import base, readme
from release import documents
from release.checks import Release

PLUGIN: Final = "kubectl-caretaker"
LOCKED: Final = "requirements.txt"
_SCRIPT: Final = """\
#!/bin/sh
# `kubectl caretaker`: the command of the wheel beside this file, with the packages of its lock, run by uv.
set -eu
refuse() {{ echo "kubectl caretaker: $1" >&2; exit 1; }}
here=$(dirname "$(readlink -f "$0")")
command -v uv >/dev/null || refuse "uv is missing: https://docs.astral.sh/uv/getting-started/installation/"
cache=$(uv cache dir)
mkdir -p "$cache" 2>/dev/null && test -w "$cache" || refuse "$cache cannot be written: set UV_CACHE_DIR"
run() {{ exec uv tool run --isolated --from "$here/{wheel}" --constraints "$here/{locked}" "$@"; }}
# What uv's cache has is run without a look at the index, which may not be reachable.
(export UV_OFFLINE=1; run python -c "") >/dev/null 2>&1 && export UV_OFFLINE=1
run caretaker "$@"
"""


def write_chart(source: Path, release: Release, digests: Mapping[str, str], work: Path, out: Path) -> Path:
    """Write the packed chart, with the release's images; the folder that it was packed from."""
    folder = work / "chart" / "caretaker"
    shutil.copytree(source / "helm" / "caretaker", folder)
    about, file, page = folder / "Chart.yaml", folder / "values.yaml", folder / "README.md"
    about.write_text(documents.named(about.read_text(), release))
    file.write_text(documents.values(file.read_text(), release.registry, digests))
    page.write_text(readme.filled(documents.named(page.read_text(), release), file.read_text()))
    packed = work / "packed"
    chart.helm("package", folder, "--destination", packed, env={"SOURCE_DATE_EPOCH": str(release.seconds)})
    (made,) = packed.iterdir()
    made.rename(out)
    return folder


def crds(source: Path) -> str:
    """All CRDs, as they are in crds/."""
    return "".join(f"---\n{file.read_text()}" for file in sorted((source / "crds").glob("*.yaml")))


def manifest(source: Path, folder: Path, release: Release) -> str:
    """The chart in this folder with its default values, its namespace and its CRDs."""
    head = f"# caretaker {release.version}: its chart with default values, for kubectl apply -f.\n"
    namespace = (source / "deploy" / "namespace.yaml").read_text()
    return f"{head}---\n{namespace}{crds(source)}{base.operator(folder)}"


def plugin(wheel: Path, requirements: Path, licence: Path, seconds: int) -> bytes:
    """The plugin as krew unpacks it."""
    script = _SCRIPT.format(wheel=wheel.name, locked=LOCKED)
    files = {
        wheel.name: wheel.read_bytes(),
        LOCKED: requirements.read_bytes(),
        "LICENSE": licence.read_bytes(),
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in {PLUGIN: script.encode(), **files}.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(data), seconds, 0o755 if name == PLUGIN else 0o644
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=seconds)
