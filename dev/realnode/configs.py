"""The configuration files and command lines of what makes a node: containerd, CNI, kubelet, kube-proxy, DNS.

Inputs: a cluster's layout and the node's addresses. Pure but for the files it writes into the cluster's
folder; it starts nothing.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from realnode.needs import CNI_PLUGINS, program
from realnode.place import PODS
from testbed.components import NODE_LEASE_SECONDS, Layout

PAUSE: Final = "registry.invalid/pause:1"
# Where containerd looks for each registry, whenever it pulls: https://github.com/containerd/containerd/blob/main/docs/hosts.md
REGISTRIES: Final = "certs.d"
# In the node's own /run.
SOCKET: Final = "/run/containerd/containerd.sock"
DOMAIN: Final = "cluster.local"
API_SERVICE: Final = "10.96.0.1"


@dataclass(frozen=True)
class Kubelet:
    """What the node's own programs are told."""

    layout: Layout
    name: str
    address: str
    cgroup: str

    def commands(self) -> dict[str, list[str]]:
        """The command line of each program, in the order they are started."""
        config = self.layout.folder / "config"
        programs = self.layout.programs
        return {
            "containerd": [program("containerd"), "--config", str(config / "containerd.toml")],
            "dns": _dns(self.address),
            "kube-proxy": [
                str(programs / "kube-proxy"),
                f"--config={config / 'kube-proxy.yaml'}",
                f"--hostname-override={self.name}",
            ],
            "kubelet": [
                str(programs / "kubelet"),
                f"--kubeconfig={self.layout.kubeconfig(user(self.name))}",
                f"--config={config / 'kubelet.yaml'}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
            ],
        }

    def write(self) -> None:
        """Write what the command lines refer to."""
        config = self.layout.folder / "config"
        (config / "cni").mkdir(parents=True, exist_ok=True)
        (config / "containerd.toml").write_text(_containerd(config / "cni", config / REGISTRIES))
        (config / "cni" / "10-node.conflist").write_text(json.dumps(_cni(), indent=1))
        (config / "resolv.conf").write_text(f"nameserver {self.address}\n")
        for name, body in {"kubelet": self._kubelet(config), "kube-proxy": self._proxy()}.items():
            (config / f"{name}.yaml").write_text(yaml.safe_dump(body, sort_keys=False))

    def _kubelet(self, config: Path) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            # Only the API server's network reaches it, and nothing here is about the kubelet's own guard.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "enforceNodeAllocatable": [],
            # Kubernetes is about to drop version 1; machines that have it still run tests.
            "failCgroupV1": False,
            "failSwapOn": False,
            "readOnlyPort": 0,
            "clusterDomain": DOMAIN,
            "clusterDNS": [self.address],
            "resolvConf": str(config / "resolv.conf"),
            # The images were imported and cannot be pulled again.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
            "nodeLeaseDurationSeconds": NODE_LEASE_SECONDS,
            # What tests await: a stopped pod, a changed one.
            "syncFrequency": "5s",
            "shutdownGracePeriod": "0s",
        }

    def _proxy(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.layout.kubeconfig("kube-proxy"))},
            "mode": "iptables",
            "clusterCIDR": PODS,
            # Zero leaves alone what is the whole machine's.
            "conntrack": {"maxPerCore": 0, "min": 0},
            "iptables": {"minSyncPeriod": "100ms"},
        }


def user(node: str) -> str:
    """The name that a node's kubelet goes by."""
    return f"system:node:{node}"


def _dns(address: str) -> list[str]:
    """Answers for the API server's name, and says no to everything else at once."""
    return [
        program("dnsmasq"),
        "--keep-in-foreground",
        "--no-resolv",
        "--no-hosts",
        "--conf-file=/dev/null",
        "--pid-file=",
        "--user=root",
        "--log-facility=-",
        "--bind-interfaces",
        f"--listen-address={address}",
        f"--local=/{DOMAIN}/",
        f"--address=/kubernetes.default.svc.{DOMAIN}/{API_SERVICE}",
    ]


def _cni() -> dict[str, Any]:
    """Pods on a bridge, one router away from whatever is outside; their addresses end at the node."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": PODS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "node", "plugins": [bridge, ports]}


def _containerd(cni: Path, registries: Path) -> str:
    """Version 2 of the file, which containerd 1 reads and 2 converts.

    All state is in memory, half a gigabyte with our images: unpacking them costs no disk writes.
    """
    return f"""version = 2
root = "/run/containerd/root"
state = "/run/containerd/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Without CAP_SYS_RESOURCE runc cannot lower a sandbox's oom_score_adj, and every sandbox would die.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{registries}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""
