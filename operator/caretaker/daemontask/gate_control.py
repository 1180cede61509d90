"""Removes the taint of spec.nodeGate from nodes on which the task has succeeded.

I/O only: which nodes, was decided before. Only refusals are remembered (gate_pacing.py): the taint itself is
the work that is left. A patch tests the node and the taint as they were read, or fails: concurrent changes of
kubelets and cloud controllers are never lost. It must never add a taint.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from caretaker.api.hashing import HASHED
from caretaker.api.objects import Node
from caretaker.daemontask.node_client import NodeClient
from caretaker.daemontask.plan import Plan
from caretaker.daemontask.pod_control import run_all
from caretaker.daemontask.task_state import TaskState
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.kube.store import Store

logger = logging.getLogger(__name__)

CONCURRENCY: Final = 32
SECONDS: Final = 5.0  # no patch of a pass begins later: the rest of the pass has ended by then, mostly
MOST_FAILURES: Final = 5  # of the API server, and no success: the others are left to a later pass


class GateControl:
    """Writes Nodes, and updates the store by the answers of the API server."""

    def __init__(
        self, client: KubeClient, nodes: Store[Node], clock: Callable[[], float] = time.time
    ) -> None:
        self._node_client = NodeClient(client, nodes)
        self._clock = clock

    async def open(
        self, gate: str, rerun_on: Sequence[str], plan: Plan, state: TaskState
    ) -> tuple[frozenset[str], bool]:
        """Remove the taint `gate` from the nodes of the plan. A refusal ends neither the others' turn nor the
        pass. Returns (names of the nodes that no longer have it, whether another plan is needed at once)."""
        turn, stop_at = asyncio.Semaphore(CONCURRENCY), time.monotonic() + SECONDS
        opened, errors = dict[str, str](), dict[str, ApiError]()

        async def one(node: Node) -> bool:
            """Whether it differs from the one that was decided on."""
            async with turn:
                if time.monotonic() > stop_at or _fails_for_all(errors, opened):
                    return False
                try:
                    await self._node_client.patch(node, opening(node, gate, rerun_on))
                except ApiError as error:
                    if await self._was_another(node, error):
                        return True
                    logger.warning("node %s keeps its taint: %s", node.name, error)
                    errors[node.uid] = error
                    return False
            opened[node.uid] = node.name
            return False

        others = await run_all(one(node) for node in plan.opens)
        state.gates = state.gates.after(plan.shut, opened, errors, self._clock())
        return frozenset(opened.values()), any(others)

    async def _was_another(self, node: Node, error: ApiError) -> bool:
        """Whether the node differs from the one that was decided on; the next plan sees the current one."""
        found = await self._node_client.after(node, error)
        if found is None:
            return True
        return (found.uid, found.boot_id, found.taints) != (node.uid, node.boot_id, node.taints)


def _fails_for_all(errors: Mapping[str, ApiError], opened: Collection[str]) -> bool:
    """Whether the nodes that are left would most likely fare as these."""
    if any(error.missing_permission is not None for error in errors.values()):
        return True
    return not opened and sum(error.transient for error in errors.values()) >= MOST_FAILURES


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
