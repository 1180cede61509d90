"""Pods as a kubelet reports them: the wire object of a run, decoded by the record that plans read."""

from collections.abc import Mapping
from typing import Any

import msgspec

from caretaker.api.objects import Node, Pod, WirePod
from caretaker.api.times import format_time
from unit.daemontask.build import NOW, pod

Json = Mapping[str, Any]


def reported_pod(
    of: Node, seq: int = 1, *, created: float = NOW - 60, spec: Json | None = None, **status: Any
) -> Pod:
    """The Pod of that node with this status; times as text, in the API's own words."""
    like = pod(of, seq)
    meta = {
        "name": like.name,
        "namespace": like.namespace,
        "uid": like.uid,
        "labels": like.labels,
        "annotations": like.annotations,
        "creationTimestamp": format_time(created),
        "ownerReferences": [{"uid": like.owner_uid, "controller": True}],
    }
    body = {"metadata": meta, "spec": {"nodeName": of.name, **(spec or {})}, "status": status}
    return msgspec.convert(body, WirePod).record()


def container(
    state: Json, name: str = "main", *, restarts: int = 0, made: bool = True, last: Json | None = None
) -> dict[str, Any]:
    """A container status; `made`: the kubelet has an ID of it; `last`: how it ended before its restart."""
    found: dict[str, Any] = {"name": name, "restartCount": restarts, "state": state, "lastState": last or {}}
    return found | ({"containerID": f"containerd://{name}"} if made else {})


def ended(code: int = 1, reason: str = "Error", **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, **more}}


# What a kubelet says of a container that it gave up before it created it, and of one that it lost.
LOST = ended(137, "ContainerStatusUnknown")
CRASHING: dict[str, Any] = {"waiting": {"reason": "CrashLoopBackOff"}}
PULLING: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
RUNNING: dict[str, Any] = {"running": {}}
