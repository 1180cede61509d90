"""The CRDs of the Helm chart and of deploy/ are copies of crds/, as `make chart` writes them."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "crds"


@pytest.mark.parametrize("folder", ["helm/caretaker/files/crds", "deploy/crds"])
def test_the_copies_are_the_crds(folder: str) -> None:
    files = {file.name: file.read_bytes() for file in SOURCE.glob("*.yaml")}
    copies = {file.name: file.read_bytes() for file in (ROOT / folder).glob("*.yaml")}
    stale = [f"{folder}/{name}" for name in sorted(files | copies) if files.get(name) != copies.get(name)]
    assert files
    assert stale == [], "edit crds/ and run `make chart`"
