"""The chart as a release on a real node: installed as users install it, looked at from outside, its leader
ended at will.

Inputs: a node that runs, values for the chart. Blocking calls are helm's and kubectl's own; they belong into
a thread.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import psutil
import yaml

import chart
import gotools
from awsdoubles.loopback import past_proxy
from realnode.containers import processes
from realnode.kind import KindNode
from testbed import build
from testbed.admin import Admin, Json, path
from testbed.paths import CHECKOUT
from testing.installed import block

NAMESPACE: Final = chart.NAMESPACE
NAME: Final = chart.RELEASE
REPLICAS: Final = 2
PODS: Final = f"app.kubernetes.io/name={NAME}"
LEASE: Final = path("leases", NAMESPACE, NAME)
DEPLOYMENT: Final = path("deployments", NAMESPACE, NAME)
# The kubelet's own words at the end of a log that is followed, where the container goes between two looks.
GONE: Final = re.compile(
    r"rpc error: code = NotFound desc = an error occurred when try to find container \"\w+\": not found"
)


class PodLogs:
    """The logs of the operator's pods, followed from each one's beginning: a pod that goes takes its own
    along."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._environment = environment
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Follow the pods that come from now on, once."""
        if self._thread is None:
            self._folder.mkdir()
            watch = self._kubectl(subprocess.PIPE, "get", "pods", "-l", PODS, "--watch", "--output=name")
            self._thread = threading.Thread(target=self._follow, args=(watch,), daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End all that follows."""
        for process in self._processes:
            process.terminate()
        if self._thread is not None:
            self._thread.join()
        for process in self._processes:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def all(self) -> dict[str, str]:
        """What has come until now, by pod."""
        return {file.stem: file.read_text() for file in sorted(self._folder.glob("*.log"))}

    def forget(self) -> None:
        """Nothing has come."""
        for file in self._folder.glob("*.log"):
            file.unlink()

    def _follow(self, watch: subprocess.Popen[str]) -> None:
        known = set[str]()
        assert watch.stdout is not None
        for line in watch.stdout:
            name = line.strip().removeprefix("pod/")
            if name not in known:
                known.add(name)
                with (self._folder / f"{name}.log").open("w") as file:
                    self._kubectl(file, "logs", "--follow", "--pod-running-timeout=2m", name)

    def _kubectl(self, out: IO[str] | int, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["kubectl", "--namespace", NAMESPACE, *words],
            env=dict(self._environment),
            stdout=out,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._processes.append(process)
        return process


class Release:
    """One release. `values` are written to a file that every install and upgrade is given; `chart` is what
    helm installs: a folder, or a place with flags."""

    def __init__(self, node: KindNode, folder: Path, values: Mapping[str, Any]) -> None:
        self.node = node
        self.installed = False
        self.chart: Sequence[str] = (str(chart.CHART),)
        self._home = folder / "helm"  # its settings and cache: those of the user are not read
        self._values = folder / "values.yaml"
        self._values.write_text(yaml.safe_dump(dict(values)))
        self._last: list[Json] = []  # up to the uninstallation
        self._logs = PodLogs(self._environment(), folder / "logs")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._logs.stop()

    def install(self, *arguments: str) -> None:
        """`helm install --wait`."""
        self._logs.start()
        self._helm("install", NAME, *self.chart, "--values", str(self._values), "--wait", *arguments)
        self.installed = True

    def upgrade(self, *arguments: str) -> None:
        """`helm upgrade --wait`."""
        self._helm("upgrade", NAME, *self.chart, "--values", str(self._values), "--wait", *arguments)

    def rollback(self) -> None:
        """`helm rollback --wait`, to the revision before."""
        self._helm("rollback", NAME, "--wait")

    def test(self) -> str:
        """`helm test --logs`; what it printed."""
        return self._helm("test", NAME, "--logs")

    def uninstall(self) -> None:
        """`helm uninstall --wait`. What pods log from then on counts no more: their rights go with them."""
        self.installed = False
        self._last = self._followed()
        self._helm("uninstall", NAME, "--wait")
        self._logs.forget()

    def _helm(self, command: str, *arguments: str) -> str:
        where = ["--kubeconfig", str(self.node.kubeconfig), "--namespace", NAMESPACE, "--timeout", "120s"]
        places = {f"HELM_{part}_HOME": str(self._home / part) for part in ("CACHE", "CONFIG", "DATA")}
        registry = urllib.parse.urlsplit(self.chart[0]).hostname
        direct = past_proxy(registry) if registry else {}
        variables = {**places, "DOCKER_CONFIG": str(self._home), **direct}
        return chart.helm(command, *where, *arguments, env=variables)

    def shell(self, script: str) -> str:
        """Run commands of a guide, with kubectl on the PATH and this cluster as its own; their output."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=self._environment(),
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def documented(self, page: str, heading: str, number: int = 0, **names: str) -> str:
        """Run a block of a guide, where `names` are to stand in place of such words; its output."""
        script = block(page, heading, number)
        for word, name in names.items():
            script = re.sub(rf"\b{word}\b", name, script)
        return self.shell(script)

    def logs(self) -> list[Json]:
        """What every pod since the installation has logged, those that are gone included, oldest first in
        each; what is no JSON as {"line": ...}."""
        return self._followed() if self.installed else self._last

    def _followed(self) -> list[Json]:
        return [_parsed(line) for text in self._logs.all().values() for line in _own(text)]

    def logged(self, pod: str) -> bool:
        """Whether this pod's lines are among them, up to now or to its end."""
        return bool(self._logs.all().get(pod))

    def _environment(self) -> dict[str, str]:
        """kubectl and helm on the PATH, and this cluster as their own."""
        places = [str(build.ensure()), str(gotools.path("helm").parent), os.environ["PATH"]]
        return {**os.environ, "KUBECONFIG": str(self.node.kubeconfig), "PATH": os.pathsep.join(places)}


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


def _own(log: str) -> list[str]:
    """The lines that the pod wrote."""
    lines = log.splitlines()
    return lines[:-1] if lines and GONE.fullmatch(lines[-1]) else lines


def _parsed(line: str) -> Json:
    try:
        entry = json.loads(line)
    except ValueError:
        return {"line": line}
    return entry if isinstance(entry, dict) else {"line": line}
