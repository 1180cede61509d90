"""Where the demo runs: a control plane of its own with fake nodes, or a kind cluster with fake nodes.

Inputs: a folder, and whether what is started shall outlive the demo. Everything that is started is
recorded there, so that `down` ends it whoever started it. It must not touch any other cluster, nor the
user's kubeconfig.
"""

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Final, Protocol

import yaml

import gotools
from realnode import engine, nodeimage
from realnode.engine import Engine, OwnEngine
from testbed import build
from testbed.admin import Admin, Json
from testbed.cluster import Cluster
from testbed.components import MANAGED_BY_KWOK, write_kubeconfig
from testbed.paths import CHECKOUT, STAGES, STATE
from testbed.processes import Processes

KIND_CLUSTER: Final = "caretaker-demo"
NODES_SECONDS: Final = 120.0
INSTEAD: Final = "run it without CLUSTER=kind, which takes no engine"
# Kubernetes is about to drop version 1; machines that have it still run tests.
CGROUPS: Final = "kind: KubeletConfiguration\nfailCgroupV1: false\n"
# Where containerd looks for each registry, whenever it pulls.
REGISTRIES: Final = """[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "/etc/containerd/certs.d"
"""


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
    """A kind cluster, with kwok beside it for fake nodes. `workers` beside the node that has the control
    plane; without any, that one takes pods."""

    about = "a kind cluster with one real node; the other nodes are simulated by kwok"

    def __init__(self, folder: Path, *, keep: bool, name: str = KIND_CLUSTER, workers: int = 0) -> None:
        self._folder = folder / "kind"
        # An engine serves all checkouts; each has clusters of its own.
        self._name = f"{name}-{hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:6]}"
        self._keep = keep
        self._workers = workers
        self._processes = Processes(self._folder, end_with_parent=not keep)
        self._held, self._claimed = contextlib.ExitStack(), False
        self._engine: Engine | None = None
        # The engine that has the cluster, for whoever ends it.
        self._record = self._folder / "engine.name"
        self.kubeconfig = self._folder / "kubeconfig"

    @property
    def engine(self) -> Engine:
        """The container engine that has the nodes; PlaceError before the start."""
        if self._engine is None:
            raise PlaceError("the kind cluster was not started")
        return self._engine

    @property
    def control_plane(self) -> str:
        """The name of the node that has the control plane."""
        return f"{self._name}-control-plane"

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes that take pods."""
        numbers = ["", *(str(number) for number in range(2, self._workers + 1))]
        workers = [f"{self._name}-worker{number}" for number in numbers]
        return workers if self._workers else [self.control_plane]

    def start(self) -> None:
        """See Place."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._engine = engine.check("a kind cluster", INSTEAD) or self._own_engine()
        if isinstance(self._engine, OwnEngine):
            print("starting a container engine, as none answers", flush=True)
            self._engine.start()
            more = ["--image", nodeimage.NODE]
        else:
            self._claim()
            self._record.write_text(self._engine.name)
            self._kind("delete")  # of a run that was killed
            more = []
        print(f"creating a kind cluster with {self._engine.name}", flush=True)
        self._config.write_text(yaml.safe_dump(self._cluster()))
        self._kind("create", "--wait", "180s", "--config", str(self._config), *more)
        self._follow_kwok()

    def stop(self) -> None:
        """See Place."""
        self._processes.stop()
        if isinstance(self._engine, OwnEngine):
            self._engine.stop()
        elif self._record.exists():
            self._claim()
            self._engine = Engine(self._record.read_text())
            self._kind("delete")
        self._held.close()
        self._claimed = False
        for name in ("kubeconfig", "kwok.kubeconfig", "ca.crt", self._config.name, self._record.name):
            (self._folder / name).unlink(missing_ok=True)

    def running(self) -> bool:
        """See Place."""
        return bool(self._processes.running())

    def admin(self) -> Admin:
        """See Place."""
        user = yaml.safe_load((self._folder / "kwok.kubeconfig").read_text())
        url = user["clusters"][0]["cluster"]["server"]
        return Admin(url, user["users"][0]["user"]["token"], self._folder / "ca.crt")

    @property
    def _config(self) -> Path:
        return self._folder / "kind.yaml"

    def _own_engine(self) -> OwnEngine:
        if self._keep:
            raise PlaceError("KEEP=1 with CLUSTER=kind needs a container engine that answers: start one")
        return OwnEngine(self._folder)

    def _claim(self) -> None:
        """PlaceError while another process starts, has or ends the cluster."""
        if self._claimed:
            return
        STATE.mkdir(exist_ok=True)
        lock = self._held.enter_context((STATE / f"{self._name}.lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._claimed = True
        except BlockingIOError:
            raise PlaceError(f"the kind cluster {self._name} is in use by another run: wait for it") from None

    def _cluster(self) -> Json:
        """The configuration that kind is given."""
        made: Json = {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "nodes": [{"role": role} for role in ("control-plane", *["worker"] * self._workers)],
            "kubeadmConfigPatches": [CGROUPS],
            "containerdConfigPatches": [REGISTRIES],
        }
        if isinstance(self._engine, OwnEngine):
            pods = {"hostPath": str(nodeimage.pods()), "containerPath": "/kind/pods.tar", "readOnly": True}
            made["nodes"] = [{**node, "extraMounts": [pods]} for node in made["nodes"]]
            made["networking"] = {"apiServerAddress": self._engine.place.address, "disableDefaultCNI": True}
        return made

    def _kind(self, verb: str, *more: str) -> None:
        """Given a file of its own, kind leaves ~/.kube/config alone."""
        there = None if isinstance(self.engine, OwnEngine) else shutil.which("kind")
        command = [there or str(gotools.path("kind")), verb, "cluster", "--name", self._name]
        command += ["--kubeconfig", str(self.kubeconfig), *more]
        provider = f"KIND_EXPERIMENTAL_PROVIDER={self.engine.name}"
        done = subprocess.run(self.engine.enter(["env", provider, *command]), check=False)
        if done.returncode:
            raise PlaceError(f"{' '.join(command)} ended with code {done.returncode}")

    def _follow_kwok(self) -> None:
        self._write_token()
        kwok = [
            str(build.ensure() / "kwok"),
            f"--kubeconfig={self._folder / 'kwok.kubeconfig'}",
            f"--config={STAGES}",
            f"--manage-nodes-with-annotation-selector={MANAGED_BY_KWOK}",
            "--node-lease-duration-seconds=40",
        ]
        if not build.ends_with_parent(Path(kwok[0]).parent):
            self._processes.watch()
        self._processes.start("kwok", kwok)

    def _write_token(self) -> None:
        """An administrator's token: kind's kubeconfig has a client certificate, which Admin cannot use."""
        import kubernetes  # noqa: PLC0415 - half a second that the other place need not spend

        with kubernetes.config.new_client_from_config(str(self.kubeconfig)) as client:
            if self._workers:
                _await_nodes(client, self._workers + 1)
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


def _await_nodes(client: Any, count: int) -> None:
    """Until so many are Ready: kind itself looks at the one that has the control plane."""
    import kubernetes  # noqa: PLC0415

    deadline = time.monotonic() + NODES_SECONDS
    while True:
        found = kubernetes.client.CoreV1Api(client).list_node().items
        ready = [node.metadata.name for node in found if _is_ready(node)]
        if len(ready) >= count:
            return
        if time.monotonic() > deadline:
            raise PlaceError(f"of {count} nodes of kind only these are Ready: {', '.join(ready) or 'none'}")
        time.sleep(0.5)


def _is_ready(node: Any) -> bool:
    conditions = node.status.conditions or []
    return any(one.type == "Ready" and one.status == "True" for one in conditions)


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
