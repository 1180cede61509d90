"""What kwok needs beside its configuration: a push after a new start.

Inputs: an administrator's client. It must change nothing that a kubelet's pods or nodes would show.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from testbed.admin import Admin, ApiError, Json, path
from testbed.nodes import FAKE, PREFIX

SEEN: Final = f"{PREFIX}/kwok-started-anew"


async def nudge_pods(admin: Admin, check: Callable[[], None]) -> None:
    """Write to each pod on kwok's nodes that is not over, once kwok holds the Leases of all these nodes.

    kwok skips the pods of a node whose Lease it does not see itself hold, and looks at them once, right after
    it has written that Lease: often before its watch has brought the Lease back. A pod that was skipped then
    stays as it is until it changes (v0.8.0, controllers/node_lease_controller.go, `Held`). `check` is called
    while waiting, and raises when waiting is of no use.
    """
    # Nodes come and go meanwhile, so both are read each time.
    while not (nodes := await _nodes(admin)) <= _names(await admin.list(path("leases", "kube-node-lease"))):
        check()
        await asyncio.sleep(0.1)
    pods = await admin.list(path("pods"))
    await asyncio.gather(*(_nudge(admin, pod) for pod in pods if _waits_for_kwok(pod, nodes)))


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
