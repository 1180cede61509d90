"""What kwok needs beside its configuration: a push after a new start.

Inputs: an administrator's client. It must change nothing that a kubelet's pods or nodes would show.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from testbed.admin import Admin, ApiError, Json, path
from testbed.nodes import FAKE, PREFIX

NAMESPACE: Final = "kube-node-lease"
SEEN: Final = f"{PREFIX}/kwok-started-anew"


async def nudge_pods(admin: Admin, check: Callable[[], None]) -> None:
    """Write to each pod on kwok's nodes that is not over, once kwok plays pods of all these nodes.

    kwok skips the pods of a node whose Lease its own watch has not shown it to hold, and looks at them again
    only when they change (v0.8.0, controllers/node_lease_controller.go, `Held`). It looks at them once when
    it has written that Lease, which is often too early. `check` is called while waiting, and raises when
    waiting is of no use.
    """
    seconds = 1.0
    # Nodes come and go meanwhile, so they are read each time.
    while not await _plays(admin, nodes := await _nodes(admin), seconds):
        check()
        seconds = min(seconds * 1.5, 10.0)
    pods = await admin.list(path("pods"))
    await asyncio.gather(*(_nudge(admin, pod) for pod in pods if _waits_for_kwok(pod, nodes)))


async def _plays(admin: Admin, nodes: set[str], seconds: float) -> bool:
    """Whether kwok plays a pod of the node whose Lease it wrote last.

    Its watch shows Leases in the order of their writes, so it holds the other nodes' too.
    """
    leases = await admin.list(path("leases", NAMESPACE))
    account = await admin.find(path("serviceaccounts", NAMESPACE, "default"))
    if account is None or not nodes <= _names(leases):
        await asyncio.sleep(0.1)
        return False
    if not nodes:
        return True
    held = [lease["metadata"] for lease in leases if lease["metadata"]["name"] in nodes]
    last = max(held, key=lambda meta: int(meta["resourceVersion"]))["name"]
    spec = {"containers": [{"name": "main", "image": "example.invalid/probe:1"}], "nodeName": last}
    probe = {"metadata": {"generateName": "kwok-probe-"}, "spec": spec}
    made = await admin.create(path("pods", NAMESPACE), probe)
    url = path("pods", NAMESPACE, made["metadata"]["name"])
    try:
        await admin.wait_for(url, lambda pod: bool(pod["status"]["phase"] != "Pending"), seconds)
    except TimeoutError:
        return False
    finally:
        await admin.delete(url, grace=0)
    return True


async def _nodes(admin: Admin) -> set[str]:
    found = await admin.list(path("nodes"))
    return _names([node for node in found if FAKE.items() <= node["metadata"].get("annotations", {}).items()])


def _names(items: list[Json]) -> set[str]:
    return {item["metadata"]["name"] for item in items}


def _waits_for_kwok(pod: Json, nodes: set[str]) -> bool:
    finished = pod["status"].get("phase") in {"Succeeded", "Failed"}
    on_its_node = pod["spec"].get("nodeName") in nodes
    return on_its_node and (not finished or "deletionTimestamp" in pod["metadata"])


async def _nudge(admin: Admin, pod: Json) -> None:
    url = path("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
    try:
        await admin.patch(url, {"metadata": {"annotations": {SEEN: pod["metadata"]["resourceVersion"]}}})
    except ApiError as error:
        if error.status != 404:  # deleted meanwhile
            raise
