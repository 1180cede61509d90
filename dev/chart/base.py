"""The kustomize base in deploy/, from the chart with its default values. Text in, text out.

Helm's own labels and annotations are left out, since nothing of Helm is there to read them.
"""

import re
from pathlib import Path
from typing import Final

import chart
from testbed.paths import CHECKOUT

FOLDER: Final = CHECKOUT / "deploy"
CRDS: Final = CHECKOUT / "crds"
_HEAD: Final = (
    "# Made of helm/caretaker by `make chart`, not edited by hand: patch it in an overlay of your own.\n"
)
_HELMS: Final = re.compile(
    r"^( +helm\.sh/chart: .*| +app\.kubernetes\.io/managed-by: Helm|# Source: .*)\n",
    re.MULTILINE,
)


def files() -> dict[Path, str]:
    """What belongs into deploy/, beside the kustomization itself, which is written by hand."""
    made = {FOLDER / "operator.yaml": _HEAD + operator()}
    for crd in sorted(CRDS.glob("*.yaml")):
        made[FOLDER / "crds" / crd.name] = crd.read_text()
    return made


def operator(folder: Path = chart.CHART) -> str:
    """All objects of the chart in a folder but the CRDs."""
    return _HELMS.sub("", chart.text("--skip-tests", "--set", "crds.install=false", chart=folder))
