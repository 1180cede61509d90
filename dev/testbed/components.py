"""The command lines and configuration files of the control plane's components.

Inputs: the cluster's folder, ports, credentials and speeds. Pure but for the files it writes into that
folder; it starts nothing.
"""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from testbed.paths import STAGES
from testbed.pki import Credentials

DEFAULT_SCHEDULER_QPS: Final = 50  # k8s.io/kubernetes/pkg/scheduler/apis/config/v1/defaults.go
DEFAULT_CONTROLLER_QPS: Final = 20  # k8s.io/kubernetes/pkg/controller/apis/config/v1alpha1/defaults.go
NODE_LEASE_SECONDS: Final = 40  # the kubelet's nodeLeaseDurationSeconds
# Where MutatingAdmissionPolicy, which steers fake nodes, is beta and off (GA in 1.36, KEP-3962).
_WITHOUT_STEERING: Final = ("1.34", "1.35")
_STEERING: Final = (
    "--feature-gates=MutatingAdmissionPolicy=true",
    "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
)
MANAGED_BY_KWOK: Final = "kwok.x-k8s.io/node=fake"


@dataclass(frozen=True)
class Ports:
    """The loopback ports of one cluster."""

    etcd: int
    etcd_peer: int
    apiserver: int


@dataclass(frozen=True)
class Layout:
    """Everything a command line is made from."""

    folder: Path
    programs: Path
    ports: Ports
    credentials: Credentials
    scheduler_qps: int = DEFAULT_SCHEDULER_QPS
    controller_qps: int = DEFAULT_CONTROLLER_QPS
    node_lease_seconds: int = NODE_LEASE_SECONDS
    audit: bool = False
    kubernetes: str = ""  # such as 1.34; empty for the newest that is known

    @property
    def url(self) -> str:
        """The API server's address."""
        return f"https://127.0.0.1:{self.ports.apiserver}"

    @property
    def audit_log(self) -> Path:
        """One JSON line per write, and per request of a service account, when auditing is on."""
        return self.folder / "logs" / "audit.jsonl"

    def kubeconfig(self, user: str) -> Path:
        """The kubeconfig of a component."""
        return self.folder / "config" / f"{user}.kubeconfig"


def commands(layout: Layout) -> dict[str, list[str]]:
    """The command line of each component, in the order they are started."""
    makers = {
        "etcd": _etcd,
        "kube-apiserver": _apiserver,
        "kube-controller-manager": _controller_manager,
        "kube-scheduler": _scheduler,
        "kwok": _kwok,
    }
    return {name: [str(layout.programs / name), *make(layout)] for name, make in makers.items()}


def write_configs(layout: Layout) -> None:
    """Write what the command lines refer to."""
    (layout.folder / "config").mkdir(parents=True, exist_ok=True)
    for user, token in layout.credentials.tokens.items():
        write_kubeconfig(layout.kubeconfig(user), layout.url, layout.credentials.ca, user, token)
    _write_yaml(
        layout.folder / "config" / "scheduler.yaml",
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {
                "kubeconfig": str(layout.kubeconfig("kube-scheduler")),
                "qps": layout.scheduler_qps,
                # The default burst is twice the default rate.
                "burst": layout.scheduler_qps * 2,
            },
        },
    )
    accounts = {"level": "Metadata", "userGroups": ["system:serviceaccounts"]}
    writes = {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]}
    _write_yaml(
        layout.folder / "config" / "audit.yaml",
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [accounts, writes, {"level": "None"}],
        },
    )


def write_kubeconfig(path: Path, url: str, ca: Path, user: str, token: str) -> None:
    """Write a kubeconfig with everything inline, so that the file alone can be handed on."""
    authority = base64.b64encode(ca.read_bytes()).decode()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    _write_yaml(
        fresh,
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "testbed", "cluster": {"server": url, "certificate-authority-data": authority}}
            ],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
            "current-context": "testbed",
        },
    )
    fresh.chmod(0o600)
    fresh.replace(path)


def _write_yaml(path: Path, data: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(data, sort_keys=False))


def _etcd(layout: Layout) -> list[str]:
    client, peer = (f"http://127.0.0.1:{port}" for port in (layout.ports.etcd, layout.ports.etcd_peer))
    return [
        "--name=testbed",
        f"--data-dir={layout.folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=testbed={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _apiserver(layout: Layout) -> list[str]:
    credentials = layout.credentials
    audit = [
        f"--audit-policy-file={layout.folder / 'config' / 'audit.yaml'}",
        f"--audit-log-path={layout.audit_log}",
    ]
    return [
        f"--etcd-servers=http://127.0.0.1:{layout.ports.etcd}",
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.ports.apiserver}",
        # An address is wanted for the `kubernetes` Service and must not be loopback; one from
        # RFC 5737 spares the search for an interface, which fails on a machine without a network.
        "--advertise-address=192.0.2.1",
        f"--tls-cert-file={credentials.server_certificate}",
        f"--tls-private-key-file={credentials.server_key}",
        f"--cert-dir={layout.folder / 'pki'}",
        f"--token-auth-file={credentials.token_file}",
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={credentials.account_public_key}",
        f"--service-account-signing-key-file={credentials.account_key}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--allow-privileged=true",
        *(audit if layout.audit else []),
        *(_STEERING if layout.kubernetes in _WITHOUT_STEERING else []),
    ]


def _controller_manager(layout: Layout) -> list[str]:
    return [
        f"--kubeconfig={layout.kubeconfig('kube-controller-manager')}",
        f"--service-account-private-key-file={layout.credentials.account_key}",
        f"--root-ca-file={layout.credentials.ca}",
        "--leader-elect=false",
        "--secure-port=0",
        f"--kube-api-qps={layout.controller_qps}",
        # The default burst is one and a half times the default rate.
        f"--kube-api-burst={layout.controller_qps * 3 // 2}",
        # Every second, not every 5: what tests await follows from it.
        "--node-monitor-period=1s",
        # The default, 50 s, tells a lost node from one that renews its Lease every 10 s.
        f"--node-monitor-grace-period={layout.node_lease_seconds * 5 // 4}s",
    ]


def _scheduler(layout: Layout) -> list[str]:
    return [f"--config={layout.folder / 'config' / 'scheduler.yaml'}", "--secure-port=0"]


def _kwok(layout: Layout) -> list[str]:
    return [
        f"--kubeconfig={layout.kubeconfig('kwok')}",
        f"--config={STAGES}",
        f"--manage-nodes-with-annotation-selector={MANAGED_BY_KWOK}",
        f"--node-lease-duration-seconds={layout.node_lease_seconds}",
    ]
