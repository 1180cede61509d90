"""The example for Flux: Flux's own types, kubectl, the API server and the chart take what is theirs of it."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

import gotools
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testing import manifests
from testing.installed import Shell

FLEET = CHECKOUT / "examples" / "gitops" / "flux"  # the root of the user's repository


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path) -> Shell:
    """kubectl and helm."""
    return Shell(cluster, tmp_path)


def documents() -> list[Json]:
    found = [body for file in sorted(FLEET.rglob("*.yaml")) for body in manifests.load_all(file.read_text())]
    return [body for body in found if ".toolkit.fluxcd.io/" in body["apiVersion"]]


def of(kind: str) -> list[Json]:
    return [body for body in documents() if body["kind"] == kind]


async def built(shell: Shell, kustomization: Json) -> list[Json]:
    """What Flux's kustomize-controller would apply."""
    folder = FLEET / kustomization["spec"]["path"]
    return list(manifests.load_all(await shell.kubectl("kustomize", str(folder))))


def decoded(bodies: Iterable[Json]) -> subprocess.CompletedProcess[str]:
    """By Flux's own types, strictly."""
    text = yaml.safe_dump_all(bodies)
    tool = str(gotools.path("fluxtypes"))
    return subprocess.run([tool], input=text, capture_output=True, text=True, check=False)


def test_fluxs_own_types_take_every_document() -> None:
    found = decoded(documents())
    assert (found.returncode, found.stdout.strip()) == (0, "4"), found.stderr
    wrong = [{**of("Kustomization")[0], "spec": {"intervall": "1h"}}]
    assert 'unknown field "spec.intervall"' in decoded(wrong).stderr


async def test_what_is_waited_for_is_what_is_applied(shell: Shell) -> None:
    names = {one["metadata"]["name"] for one in of("Kustomization")}
    for one in of("Kustomization"):
        spec, bodies = one["spec"], await built(shell, one)
        applied = {(b["kind"], b["metadata"]["name"], b["metadata"].get("namespace")) for b in bodies}
        assert {(c["kind"], c["name"], c["namespace"]) for c in spec.get("healthChecks", ())} <= applied
        assert spec.get("wait") or spec["healthChecks"]
        assert {other["name"] for other in spec.get("dependsOn", ())} <= names


async def test_the_api_server_takes_the_tasks(shell: Shell, namespace: str) -> None:
    (tasks,) = (one for one in of("Kustomization") if "dependsOn" in one["spec"])
    bodies = await built(shell, tasks)
    for body in bodies:
        body["metadata"]["namespace"] = namespace
    how = ("--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    said = await shell.kubectl("apply", *how, stdin=yaml.safe_dump_all(bodies))
    assert said.split() == ["daemontask.caretaker.dev/hello", "serverside-applied", "(server", "dry", "run)"]


async def test_the_chart_takes_the_values(shell: Shell, tmp_path: Path) -> None:
    (release,) = of("HelmRelease")
    chart = CHECKOUT / release["spec"]["chart"]["spec"]["chart"]
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(release["spec"]["values"]))
    rendered = await shell.run("helm", "template", "caretaker", str(chart), "-f", str(values))
    kinds = [
        body["metadata"]["name"] for body in manifests.load_all(rendered) if "Definition" in body["kind"]
    ]
    assert sorted(kinds) == ["daemontasks.caretaker.dev", "s3aggregatedrefreshes.caretaker.dev"]
    (version,) = {one["spec"]["ref"]["tag"] for one in of("GitRepository")}
    assert version == f"v{manifests.load((chart / 'Chart.yaml').read_text())['version']}"


async def test_the_health_script_goes_where_argo_cd_reads_it(shell: Shell, admin: Admin) -> None:
    # Other tests of this control plane may have run the command of the page.
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "argocd"}}
    await admin.apply(path("namespaces", name="argocd"), namespace)
    await admin.delete(path("configmaps", "argocd", "argocd-cm"))
    await shell.kubectl("create", "configmap", "argocd-cm", "-n", "argocd", "--from-literal=url=https://argo")
    await shell.documented("gitops.md", "## Argo CD")
    data = manifests.load(await shell.kubectl("get", "configmap", "argocd-cm", "-n", "argocd", "-o", "yaml"))[
        "data"
    ]
    script = (CHECKOUT / "docs" / "argocd-health.lua").read_text()
    key = "resource.customizations.health.caretaker.dev_"
    kinds = ("DaemonTask", "S3AggregatedRefresh", "IMDSPolicy")
    assert data == {"url": "https://argo", **{f"{key}{kind}": script for kind in kinds}}
