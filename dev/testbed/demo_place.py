"""Where the demo runs: a control plane of its own with fake nodes, or a kind cluster with fake nodes.

Inputs: a folder, and whether what is started shall outlive the demo. Everything that is started is
recorded there, so that `down` ends it whoever started it. It must not touch any other cluster, nor the
user's kubeconfig.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final, Protocol

import yaml

from testbed import build
from testbed.admin import Admin
from testbed.cluster import Cluster
from testbed.compiling import MEND_GO
from testbed.components import MANAGED_BY_KWOK, write_kubeconfig
from testbed.paths import STAGES
from testbed.processes import Processes

KIND: Final = "sigs.k8s.io/kind@v0.33.0"
KIND_CLUSTER: Final = "caretaker-demo"
ENGINES: Final = ("docker", "podman", "nerdctl")
ENGINE_SECONDS: Final = 15.0


class PlaceError(Exception):
    """The place cannot be had; the message says why and what mends it."""


class Place(Protocol):
    """A cluster to start, to use and to take away again."""

    kubeconfig: Path  # of an administrator; there once start() has returned
    about: str  # what it is, for a person

    def start(self) -> None:
        """Block until the API server answers. What was begun by a failed start is ended by stop()."""

    def stop(self) -> None:
        """End everything, whoever started it. Harmless when there is nothing."""

    def running(self) -> bool:
        """Whether it is there already."""

    def admin(self) -> Admin:
        """A client with all rights, to be used as an async context manager."""


class Embedded:
    """A control plane of our own build: kube-apiserver, etcd, scheduler, controller manager and kwok."""

    def __init__(self, folder: Path, *, keep: bool) -> None:
        self.about = f"a real Kubernetes {build.minor()} control plane; the nodes are simulated by kwok"
        self._cluster = Cluster(folder / "cluster", detached=keep)
        self.kubeconfig = self._cluster.kubeconfig

    def start(self) -> None:
        """See Place."""
        self._cluster.start()

    def stop(self) -> None:
        """See Place."""
        self._cluster.stop()

    def running(self) -> bool:
        """See Place."""
        return self._cluster.running()

    def admin(self) -> Admin:
        """See Place."""
        return self._cluster.admin()


class Kind:
    """A kind cluster (one real node, in a container), with kwok beside it for the fake nodes."""

    about = "a kind cluster with one real node; the other nodes are simulated by kwok"

    def __init__(self, folder: Path, *, keep: bool, name: str = KIND_CLUSTER) -> None:
        self._name = name
        self._folder = folder / "kind"
        self._processes = Processes(self._folder, end_with_parent=not keep)
        self.kubeconfig = self._folder / "kubeconfig"

    def start(self) -> None:
        """See Place."""
        engine = find_engine()
        self._folder.mkdir(parents=True, exist_ok=True)
        kind = self._program()
        print(
            f"creating a kind cluster with {engine} (the first time it downloads its node image)", flush=True
        )
        self._kind(kind, engine, "delete")  # of a run that was killed
        self._kind(kind, engine, "create", "--wait", "120s")
        self._follow_kwok()

    def stop(self) -> None:
        """See Place."""
        self._processes.stop()
        kind = self._folder / "bin" / "kind"
        if kind.exists():
            self._kind(str(kind), find_engine(), "delete")
        for name in ("kubeconfig", "kwok.kubeconfig", "ca.crt"):
            (self._folder / name).unlink(missing_ok=True)

    def running(self) -> bool:
        """See Place."""
        return bool(self._processes.running())

    def admin(self) -> Admin:
        """See Place."""
        user = yaml.safe_load((self._folder / "kwok.kubeconfig").read_text())
        url = user["clusters"][0]["cluster"]["server"]
        return Admin(url, user["users"][0]["user"]["token"], self._folder / "ca.crt")

    def load(self, archive: Path) -> None:
        """Give the node an image, from the file that an engine's `save` wrote."""
        command = [self._program(), "load", "image-archive", str(archive), "--name", self._name]
        self._run(command, find_engine())

    def _kind(self, kind: str, engine: str, verb: str, *more: str) -> None:
        """Given a file of its own, kind leaves ~/.kube/config alone."""
        own = ["--name", self._name, "--kubeconfig", str(self.kubeconfig)]
        self._run([kind, verb, "cluster", *own, *more], engine)

    def _run(self, command: list[str], engine: str) -> None:
        done = subprocess.run(command, env={**os.environ, "KIND_EXPERIMENTAL_PROVIDER": engine}, check=False)
        if done.returncode:
            raise PlaceError(f"{' '.join(command)} ended with code {done.returncode}")

    def _program(self) -> str:
        program = self._folder / "bin" / "kind"
        if not program.exists():
            go = shutil.which("go")
            if go is None:
                raise PlaceError(f"go is missing: {MEND_GO}")
            print(f"go install {KIND}", flush=True)
            subprocess.run(
                [go, "install", KIND], env={**os.environ, "GOBIN": str(program.parent)}, check=True
            )
        return str(program)

    def _follow_kwok(self) -> None:
        self._write_token()
        kwok = [
            str(build.ensure() / "kwok"),
            f"--kubeconfig={self._folder / 'kwok.kubeconfig'}",
            f"--config={STAGES}",
            f"--manage-nodes-with-annotation-selector={MANAGED_BY_KWOK}",
            "--node-lease-duration-seconds=40",
        ]
        self._processes.start("kwok", kwok)

    def _write_token(self) -> None:
        """An administrator's token: kind's kubeconfig has a client certificate, which Admin cannot use."""
        import kubernetes  # noqa: PLC0415 - half a second that the other place need not spend

        with kubernetes.config.new_client_from_config(str(self.kubeconfig)) as client:
            token = _administrator(client)
            configuration = client.configuration
            (self._folder / "ca.crt").write_bytes(Path(configuration.ssl_ca_cert).read_bytes())
            write_kubeconfig(
                self._folder / "kwok.kubeconfig",
                configuration.host,
                self._folder / "ca.crt",
                "caretaker-demo",
                token,
            )


def find_engine(
    what: str = "CLUSTER=kind", instead: str = "run `make demo` without CLUSTER=kind, which needs none"
) -> str:
    """The container engine that answers, as kind looks for them. PlaceError when none does.

    what: what needs one. instead: what else to do.
    """
    said = []
    for name in ENGINES:
        program = shutil.which(name)
        if program is None:
            said.append(f"{name} is not installed")
            continue
        try:
            asked = subprocess.run(
                [program, "ps", "--quiet"],
                capture_output=True,
                text=True,
                timeout=ENGINE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            said.append(f"{name} does not answer within {ENGINE_SECONDS:.0f} s")
            continue
        if asked.returncode == 0:
            return name
        said.append(f"{name}: {asked.stderr.strip() or f'exit code {asked.returncode}'}")
    raise PlaceError(
        f"{what} needs a container engine, and none answers:\n  "
        + "\n  ".join(said)
        + f"\nstart one, or {instead}"
    )


def _administrator(client: Any) -> str:
    """A token, good for a day, of a service account with all rights."""
    import kubernetes  # noqa: PLC0415

    name, namespace = "caretaker-demo", "kube-system"
    core, rbac = kubernetes.client.CoreV1Api(client), kubernetes.client.RbacAuthorizationV1Api(client)
    core.create_namespaced_service_account(namespace, {"metadata": {"name": name}})
    rbac.create_cluster_role_binding(
        {
            "metadata": {"name": name},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "cluster-admin",
            },
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
    )
    request = {"spec": {"expirationSeconds": 86400, "audiences": []}}
    return str(core.create_namespaced_service_account_token(name, namespace, request).status.token)
