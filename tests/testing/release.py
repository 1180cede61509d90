"""The chart as a release on a real node: installed as users install it, looked at from outside, its leader
ended at will.

Inputs: a node that runs, values for the chart. Blocking calls are helm's and kubectl's own; they belong into
a thread.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

import chart
import gotools
from realnode.containers import processes
from realnode.kind import KindNode
from realnode.node import Node
from testbed import build
from testbed.admin import Admin, Json, path

NAMESPACE: Final = chart.NAMESPACE
NAME: Final = chart.RELEASE
REPLICAS: Final = 2
PODS: Final = f"app.kubernetes.io/name={NAME}"
LEASE: Final = path("leases", NAMESPACE, NAME)
DEPLOYMENT: Final = path("deployments", NAMESPACE, NAME)


class Release:
    """One release. `values` are written to a file that every install and upgrade is given."""

    def __init__(self, node: Node | KindNode, folder: Path, values: Mapping[str, Any]) -> None:
        self.node = node
        self.installed = False
        self._values = folder / "values.yaml"
        self._values.write_text(yaml.safe_dump(dict(values)))

    def install(self, *arguments: str) -> None:
        """`helm install --wait`."""
        self._helm("install", NAME, str(chart.CHART), "--values", str(self._values), "--wait", *arguments)
        self.installed = True

    def upgrade(self, *arguments: str) -> None:
        """`helm upgrade --wait`."""
        self._helm("upgrade", NAME, str(chart.CHART), "--values", str(self._values), "--wait", *arguments)

    def test(self) -> str:
        """`helm test --logs`; what it printed."""
        return self._helm("test", NAME, "--logs")

    def uninstall(self) -> None:
        """`helm uninstall --wait`."""
        self.installed = False
        self._helm("uninstall", NAME, "--wait")

    def _helm(self, command: str, *arguments: str) -> str:
        where = ["--kubeconfig", str(self.node.kubeconfig), "--namespace", NAMESPACE, "--timeout", "120s"]
        return chart.helm(command, *where, *arguments)

    def shell(self, script: str) -> str:
        """Run commands of a guide, with kubectl on the PATH and this cluster as its own; their output."""
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.node.kubeconfig),
            "PATH": os.pathsep.join(
                [str(build.ensure()), str(gotools.path("helm").parent), os.environ["PATH"]]
            ),
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def logs(self) -> list[Json]:
        """What the processes that are there logged, oldest first in each; what is no JSON as {"line":
        ...}."""
        text = self.shell(f"kubectl logs -n {NAMESPACE} -l {PODS} --tail=-1")
        return [_parsed(line) for line in text.splitlines()]


async def leader(admin: Admin) -> str:
    """The pod that holds the Lease."""
    lease = await admin.wait_for(LEASE, lambda body: bool(body["spec"].get("holderIdentity")))
    return str(lease["spec"]["holderIdentity"])


async def complete(admin: Admin) -> None:
    """Return once all replicas are Ready, and none is left of before."""

    def stands(body: Json) -> bool:
        status = body.get("status", {})
        current = status.get("observedGeneration") == body["metadata"]["generation"]
        counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas")]
        return current and counts == [REPLICAS] * 3

    await admin.wait_for(DEPLOYMENT, stands, 90)
    await admin.wait_for_all(path("pods", NAMESPACE), lambda pods: len(pods) == REPLICAS, 90, labels=PODS)


async def kill(admin: Admin, pod: str) -> None:
    """End a pod's processes with SIGKILL, and have it gone, as when its machine has died: nothing starts it
    again."""
    body = await admin.get(path("pods", NAMESPACE, pod))
    found = processes(body["metadata"]["uid"])
    assert found, f"no process of {pod}"
    # In this order: a pod that is deleted is asked first, and would hand the Lease over.
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(process).send_signal(signal.SIGKILL)
    await admin.delete(path("pods", NAMESPACE, pod), grace=0)


def _parsed(line: str) -> Json:
    try:
        entry = json.loads(line)
    except ValueError:
        return {"line": line}
    return entry if isinstance(entry, dict) else {"line": line}
