"""Removes the taint of spec.nodeGate from nodes on which the task has succeeded.

I/O only: which nodes, was decided before. Nothing of it is remembered but refusals: the taint itself says
what is left to do. A patch removes what was seen of this very node, or fails: taints that kubelets and cloud
controllers change at the same time are never lost. It must never add a taint.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from caretaker.api.hashing import HASHED
from caretaker.api.objects import Node, WireNode
from caretaker.daemontask.pod_control import run_all
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.task_state import TaskState
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError, by_admission, or_none
from caretaker.kube.store import Store

logger = logging.getLogger(__name__)

CONCURRENCY: Final = 32


class GateControl:
    """Writes Nodes, and updates the store by the answers of the API server."""

    def __init__(self, client: KubeClient, nodes: Store[Node], scale: float) -> None:
        self._client = client
        self._nodes = nodes
        self._scale = scale

    async def open(
        self, snapshot: Snapshot, nodes: Sequence[Node], state: TaskState
    ) -> tuple[frozenset[str], bool]:
        """Remove the taint from these nodes. A refusal holds up neither the others nor the rest of the pass.
        Returns (names of the nodes that no longer have it, whether another plan is needed at once)."""
        gate, turn, again = snapshot.eligibility_rules.gate, asyncio.Semaphore(CONCURRENCY), False

        async def one(node: Node) -> bool:
            nonlocal again
            async with turn:
                if state.unopened.of_all and not snapshot.unopened_until:
                    return False  # it became the task's concern in this pass
                try:
                    found: WireNode = await self._client.patch(
                        _path(node), opening(node, gate, snapshot.task.spec.rerun_on), WireNode
                    )
                except ApiError as error:
                    again |= await self._was_another(node, error) or self._refused(node, error, state)
                    return False
            self._nodes.observe_write(found.record(), int(found.metadata.resource_version))
            again |= state.unopened.created(node.uid)
            return True

        opened = await run_all(one(node) for node in nodes)
        return frozenset(node.name for node, is_open in zip(nodes, opened, strict=True) if is_open), again

    def _refused(self, node: Node, error: ApiError, state: TaskState) -> bool:
        state.unopened.add(node.uid, error.message or str(error), time.time(), self._scale)
        logger.warning("node %s keeps its taint: %s", node.name, error)
        return False

    async def _was_another(self, node: Node, error: ApiError) -> bool:
        """Whether the node differs from the one that was decided on; the next plan sees the current one."""
        if error.not_found:
            self._nodes.observe_delete(("", node.name), node.uid)
            return True
        if error.status not in (409, 422) or by_admission(error):
            return False
        found: WireNode | None = await or_none(self._client.get(_path(node), WireNode))
        if found is None:
            self._nodes.observe_delete(("", node.name), node.uid)
            return True
        record = found.record()
        self._nodes.observe_write(record, int(found.metadata.resource_version))
        return (record.uid, record.boot_id, record.taints) != (node.uid, node.boot_id, node.taints)


def opening(node: Node, gate: str, rerun_on: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The JSON patch. The API server tests the node that it then stores, or refuses with 422."""
    tests: list[tuple[str, Any]] = [("/metadata/uid", node.uid)]
    if "NodeReboot" in rerun_on and node.boot_id and not node.boot_id.startswith(HASHED):
        tests.append(("/status/nodeInfo/bootID", node.boot_id))
    steps = [{"op": "test", "path": place, "value": value} for place, value in tests]
    # From the end, so that the places of the others stay as they are.
    for place in reversed([place for place, taint in enumerate(node.taints) if taint.key == gate]):
        at = f"/spec/taints/{place}"
        steps.append({"op": "test", "path": f"{at}/key", "value": gate})
        steps.append({"op": "test", "path": f"{at}/effect", "value": node.taints[place].effect})
        steps.append({"op": "remove", "path": at})
    return steps


def _path(node: Node) -> str:
    return f"/api/v1/nodes/{node.name}"
