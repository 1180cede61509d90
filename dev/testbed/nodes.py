"""Fake nodes: what a kubelet would register, for kwok to keep alive.

Annotations under `testbed.caretaker.dev/` steer them (see stages.yaml and steer.py).
"""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from testbed.admin import Admin, Json, path

PREFIX: Final = "testbed.caretaker.dev"
READY: Final = f"{PREFIX}/ready"  # on a node: "False" or "Unknown" keeps it not ready
NOT_READY: Final = "node.kubernetes.io/not-ready"
FAKE: Final = {"kwok.x-k8s.io/node": "fake"}

# The beta labels are there because the controller manager would add them, at one write per node.
_LABELS: Final = {
    f"{prefix}kubernetes.io/{key}": value
    for prefix in ("", "beta.")
    for key, value in (("os", "linux"), ("arch", "amd64"))
}
_PRESSURES: Final = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


def node(
    name: str,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    *,
    ready: bool = True,
    taints: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A Node with a status like a running kubelet's, with a bootID of its own, 32 cores and 110 pods."""
    steering = {} if ready else {READY: "False"}
    capacity = {"cpu": "32", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
    hostname = {"kubernetes.io/hostname": name} if len(name) <= 63 else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**_LABELS, **hostname, **(labels or {})},
            "annotations": {**FAKE, **steering, **(annotations or {})},
        },
        "spec": {"taints": taints} if taints else {},
        "status": {
            "phase": "Running",
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": conditions("True" if ready else "False"),
            "addresses": [{"type": "InternalIP", "address": "192.0.2.2"}],
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": str(uuid.uuid4()),
                "containerRuntimeVersion": "fake://1",
                "kernelVersion": "6.1.0-fake",
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.36.3",
                "machineID": uuid.uuid4().hex,
                "operatingSystem": "linux",
                "osImage": "Debian GNU/Linux 12 (bookworm)",
                "systemUUID": str(uuid.uuid4()),
            },
        },
    }


def conditions(ready: str) -> list[dict[str, str]]:
    """A node's conditions with the given Ready status."""
    why = {"True": "KubeletReady", "False": "KubeletNotReady", "Unknown": "NodeStatusUnknown"}[ready]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    rest = [{"type": kind, "status": "False", "reason": f"No{kind}", **times} for kind in _PRESSURES]
    return [{"type": "Ready", "status": ready, "reason": why, **times}, *rest]


async def register(admin: Admin, body: Json) -> None:
    """Create a node; if it is Ready, free it of the taint that admission gives every new node.

    The controller manager frees it too, but at its default rate that takes minutes for 1,000 nodes.
    """
    created = await admin.create(path("nodes"), body)
    if reports_ready(created):
        left = [taint for taint in created["spec"].get("taints", []) if taint["key"] != NOT_READY]
        url = path("nodes", name=body["metadata"]["name"])
        await admin.patch(url, {"spec": {"taints": left or None}})


def reports_ready(body: Mapping[str, Any]) -> bool:
    """Ready=True, whatever the taints."""
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in body.get("status", {}).get("conditions") or []
    )


def is_ready(node: Mapping[str, Any]) -> bool:
    """Ready=True and free of the lifecycle taints, so that the scheduler would use it."""
    taints = {taint["key"] for taint in node.get("spec", {}).get("taints", [])}
    return reports_ready(node) and not taints & {NOT_READY, "node.kubernetes.io/unreachable"}
