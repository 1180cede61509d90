"""The overlay of docs/install.md, built by kubectl's kustomize."""

import re
from pathlib import Path

from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testing import manifests
from testing.installed import Shell


async def test_the_overlay_of_the_page_brings_its_own_images_and_role(
    cluster: Cluster, tmp_path: Path
) -> None:
    page = (CHECKOUT / "docs" / "install.md").read_text()
    (overlay,) = re.findall(r"```yaml\n# kustomization.yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "overlay").mkdir()
    (tmp_path / "caretaker").symlink_to(CHECKOUT)
    (tmp_path / "overlay" / "kustomization.yaml").write_text(overlay)
    built = await Shell(cluster, tmp_path).kubectl("kustomize", str(tmp_path / "overlay"))
    assert "registry.example.com" not in built
    found = {(one["kind"], one["metadata"]["name"]): one for one in manifests.load_all(built)}
    (container,) = found["Deployment", "caretaker"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.net/caretaker/operator:0.1.0"
    assert "--probe-image=registry.example.net/caretaker/probe:0.1.0" in container["args"]
    assert "role-arn" in str(found["ServiceAccount", "caretaker"]["metadata"]["annotations"])
