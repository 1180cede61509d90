"""The chart and the kustomize base on a control plane, with the tools that an administrator has.

Fake nodes report every Pod as running, so Helm can wait for the Deployment; what it would run is started as a
process here, with the Deployment's arguments and its service account's token.
"""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import chart
from chart import CHART, NAMESPACE, RELEASE
from testbed import build
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testbed.components import write_kubeconfig
from testbed.paths import CHECKOUT
from testing.operator import OperatorProcess


class Shell:
    """kubectl, helm and the commands of the guides, against one cluster; nothing of the user's is read."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        (programs / "kubectl").symlink_to(build.ensure() / "kubectl")
        (programs / "helm").symlink_to(chart.program())
        self._env = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "KUBECONFIG": str(cluster.kubeconfig),
            "HOME": str(folder),
            **{f"HELM_{part}_HOME": str(folder / part) for part in ("CACHE", "CONFIG", "DATA")},
        }

    async def run(self, *command: str, stdin: str = "", fails: bool = False) -> str:
        """What the command prints, stderr included; AssertionError unless it ends as expected."""
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            input=stdin,
            cwd=CHECKOUT,
            env={**os.environ, **self._env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=200,
        )
        assert (done.returncode != 0) == fails, f"{command}: {done.returncode}\n{done.stdout}"
        return str(done.stdout)

    async def documented(self, page: str, heading: str, number: int = 0) -> str:
        """Run the shell block below a heading of a page, in the checkout, as a reader does."""
        return await self.run("bash", "-euo", "pipefail", "-c", block(page, heading, number))

    async def kubectl(self, *arguments: str, stdin: str = "", fails: bool = False) -> str:
        """`kubectl ARGUMENTS`."""
        return await self.run("kubectl", *arguments, stdin=stdin, fails=fails)

    async def install(
        self,
        *arguments: str,
        source: Path = CHART,
        release: str = RELEASE,
        namespace: str = NAMESPACE,
        fails: bool = False,
    ) -> str:
        """`helm install`, into a namespace that is made where it is not there; Pods are not waited for."""
        place = ("-n", namespace, "--create-namespace")
        return await self.run("helm", "install", release, str(source), *place, *arguments, fails=fails)


def block(page: str, heading: str, number: int = 0) -> str:
    """The shell block below a heading of docs/PAGE, the first one or another by its number."""
    text = (CHECKOUT / "docs" / page).read_text().partition(f"\n{heading}\n")[2]
    return re.findall(r"^```sh\n(.*?)^```", re.split(r"\n## ", text)[0], re.MULTILINE | re.DOTALL)[number]


async def kubeconfig_of(admin: Admin, cluster: Cluster, namespace: str, account: str, file: Path) -> Path:
    """A kubeconfig with a token of a service account that is there."""
    token = await admin.create(path("serviceaccounts", namespace, account, "token"), {"spec": {}})
    write_kubeconfig(file, cluster.url, cluster.ca, account, token["status"]["token"])
    return file


async def operator_of(
    shell: Shell,
    admin: Admin,
    namespace: str = NAMESPACE,
    name: str = RELEASE,
    env: Mapping[str, str] | None = None,
) -> OperatorProcess:
    """The process that the Deployment would run, not started yet."""
    deployment = await admin.get(path("deployments", namespace, name))
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    account = spec["serviceAccountName"]
    config = await kubeconfig_of(
        admin, shell.cluster, namespace, account, shell.folder / f"{namespace}.config"
    )
    assert container["command"] == ["caretaker", "run"]
    values = {e["name"]: e["value"] for e in container["env"] if "value" in e}
    return OperatorProcess(
        config,
        f"{namespace}-{name}",
        time_scale=0.1,
        env={**values, "POD_NAMESPACE": namespace, **(env or {})},
        allowed=(r'"logger":"kopf\.',),
        command=(sys.executable, "-m", "caretaker", "run", *container["args"]),
    )


def older_chart(folder: Path, without: Mapping[str, str]) -> Path:
    """A chart as it was before fields were added: `without` has a field of `spec` by plural."""
    made = folder / "caretaker"
    made.mkdir()
    for file in (f for f in CHART.rglob("*") if f.is_file()):
        copy = made / file.relative_to(CHART)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text())
    about = yaml.safe_load((made / "Chart.yaml").read_text())
    (made / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "0.0.9", "appVersion": "0.0.9"}))
    for plural, field in without.items():
        file = made / "files" / "crds" / f"{plural}.yaml"
        crd = yaml.safe_load(file.read_text())
        for version in crd["spec"]["versions"]:
            _drop(version["schema"]["openAPIV3Schema"]["properties"]["spec"], field)
        # The chart puts its labels and annotations in front of this line.
        meta = {"name": crd.pop("metadata")["name"]}
        file.write_text(yaml.safe_dump(crd) + "\nmetadata:\n  " + yaml.safe_dump(meta))
    return made


def _drop(spec: Json, field: str) -> None:
    """Without the field, and without rules that speak of it."""
    del spec["properties"][field]
    rules: list[dict[str, Any]] = spec.get("x-kubernetes-validations", [])
    spec["x-kubernetes-validations"] = [rule for rule in rules if field not in rule["rule"]]
