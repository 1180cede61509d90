"""Cordons, drains and uncordons the nodes of spec.drain.

I/O only: which nodes and Pods, was decided before. Nodes are written as they were seen, or not at all; a Pod
is evicted by its UID, so a successor of its name is never meant. It must evict by the Eviction API alone,
which obeys PodDisruptionBudgets, and list the Pods of single nodes alone, at a bounded rate.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from caretaker.api.objects import Node, WireNode
from caretaker.daemontask.cordon import cordoning, mark_of, uncordoning
from caretaker.daemontask.decision import DrainView, NodeReport
from caretaker.daemontask.drain import FIRST_WAIT, NodePod, eviction, label_selector, next_wait, step
from caretaker.daemontask.metrics import DaemonTaskMetrics
from caretaker.daemontask.pod_control import run_all
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.task_state import TaskState
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError, by_admission, or_none
from caretaker.kube.store import Store
from caretaker.runtime.work_queue import Key

logger = logging.getLogger(__name__)

CONCURRENCY: Final = 16
LOOKS: Final = 20  # nodes of a task whose Pods are listed in a second
EVICTIONS: Final = 100  # in a pass
_MESSAGE: Final = 300  # characters of an answer


class Drained(msgspec.Struct, frozen=True):
    """The result of a pass.

    next_at  when nodes are to be looked at again; 0 = none is being drained
    again    whether another plan is needed at once
    """

    next_at: float = 0.0
    again: bool = False


class DrainControl:
    """Writes Nodes and Evictions, and updates the store of Nodes by the answers of the API server."""

    def __init__(
        self, client: KubeClient, nodes: Store[Node], metrics: DaemonTaskMetrics, scale: float
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._metrics = metrics
        self._scale = scale

    # ------------------------------------------------------------------ nodes

    async def cordon(self, snapshot: Snapshot, nodes: Sequence[Node], state: TaskState) -> None:
        """Cordon and mark them. A node whose cordon is refused waits like one whose Pod is refused."""

        async def one(node: Node) -> None:
            body = cordoning(node, self._version(node), snapshot.task.metadata, time.time())
            try:
                found: WireNode = await self._client.patch(_path(node), body, WireNode)
            except ApiError as error:
                if await self._was_another(node, error):
                    state.creation.again = True
                else:
                    state.refused(node.uid, error, time.time(), self._scale)
                    logger.warning("node %s cannot be cordoned: %s", node.name, error)
                return
            self._observe(found)
            state.created(node.uid)

        await self._each(nodes, one)

    async def release(self, nodes: Sequence[Node], state: TaskState) -> bool:
        """Take the cordon and the mark back. A refusal holds up neither the others nor the rest of the pass.
        Returns whether another plan is needed at once."""
        again = False

        async def one(node: Node) -> None:
            nonlocal again
            try:
                await self._uncordon(node)
            except ApiError as error:
                if await self._was_another(node, error):
                    again = True
                else:
                    state.unreleased.add(node.uid, error.message or str(error), time.time(), self._scale)
                    logger.warning("node %s stays cordoned: %s", node.name, error)
                return
            again |= state.unreleased.created(node.uid)

        await self._each(nodes, one)
        return again

    async def release_all(self, key: Key) -> None:
        """Take the cordons of a task back that is gone. Raises the first ApiError, after all were tried."""

        async def one(node: Node) -> ApiError | None:
            mark = mark_of(node)
            if mark is None or (mark.namespace, mark.name) != (key.namespace, key.name):
                return None
            try:
                await self._uncordon(node)
            except ApiError as error:
                return None if error.not_found else error
            return None

        marked = [node for node in self._nodes.values() if node.cordon]
        errors = [error for error in await self._each(marked, one) if error is not None]
        if errors:
            raise errors[0]

    async def _uncordon(self, node: Node) -> None:
        body = uncordoning(node, self._version(node))
        self._observe(await self._client.patch(_path(node), body, WireNode))

    async def _was_another(self, node: Node, error: ApiError) -> bool:
        """Whether the node was written meanwhile; the next plan sees it as it is."""
        if not error.not_found and (error.status != 409 or by_admission(error)):
            return False
        found: WireNode | None = await or_none(self._client.get(_path(node), WireNode))
        if found is None:
            self._nodes.observe_delete(("", node.name), node.uid)
        else:
            self._observe(found)
        return True

    def _observe(self, found: WireNode) -> None:
        self._nodes.observe_write(found.record(), int(found.metadata.resource_version))

    def _version(self, node: Node) -> int:
        """The resourceVersion of the node as it was planned for; 1, which no node has, if it differs now."""
        held = self._nodes.get("", node.name)
        if held is None or _state(held) != _state(node):
            return 1
        return self._nodes.version_of(("", node.name))

    async def _each(self, nodes: Iterable[Node], work: Callable[[Node], Awaitable[Any]]) -> list[Any]:
        turn = asyncio.Semaphore(CONCURRENCY)

        async def one(node: Node) -> Any:
            async with turn:
                return await work(node)

        return await run_all(one(node) for node in nodes)

    # ------------------------------------------------------------------ Pods

    async def drain(self, snapshot: Snapshot, reports: Sequence[NodeReport], state: TaskState) -> Drained:
        """Look at the first of these nodes, and evict their Pods."""
        if time.monotonic() < state.drain_turn:
            return Drained(time.time() + self._scale if reports else 0.0)
        left, turn = EVICTIONS, asyncio.Semaphore(CONCURRENCY)

        async def one(report: NodeReport) -> DrainView:
            nonlocal left
            async with turn:
                most, left = min(left, EVICTIONS // 2), left - min(left, EVICTIONS // 2)
                view, sent = await self._look(snapshot, report, state.drains.get(report.node.uid), most)
                left += most - sent
                return view

        looked = reports[:LOOKS]
        views = await run_all(one(report) for report in looked)
        state.drains.update((report.node.uid, view) for report, view in zip(looked, views, strict=True))
        holders = {report.node.uid for report in reports}
        moments = [view.next for uid, view in state.drains.items() if uid in holders]
        if len(reports) > LOOKS:
            state.drain_turn = time.monotonic() + self._scale
            moments.append(time.time() + self._scale)
        return Drained(min(moments, default=0.0), any(view.empty for view in views))

    async def _look(
        self, snapshot: Snapshot, report: NodeReport, before: DrainView | None, most: int
    ) -> tuple[DrainView, int]:
        """(the node's view, how many evictions were sent)."""
        node, drain, now = report.node, snapshot.task.spec.drain, time.time()
        assert drain is not None  # noqa: S101 - only nodes of such tasks are drained
        if before is not None and (before.mark, before.seq) != (node.cordon, report.decision.seq):
            before = None
        view = DrainView(
            node.cordon, report.decision.seq, before.first if before is not None else now, now, now
        )
        params = {"fieldSelector": f"spec.nodeName={node.name}"}
        if selector := label_selector(drain.pod_selector):
            params["labelSelector"] = selector
        try:
            pods, _ = await self._client.list("/api/v1/pods", NodePod, params=params)
        except ApiError as error:
            wait = next_wait(before, False, self._scale)
            return _failed(view, f"its Pods cannot be listed: {_words(error)}", error, now + wait), 0
        found = step(pods, drain, snapshot.task.metadata.uid)
        if found.empty:
            return msgspec.structs.replace(view, empty=True, next=now + FIRST_WAIT * self._scale), 0
        if found.blocked:
            wait = next_wait(before, False, self._scale)
            return msgspec.structs.replace(view, message=found.blocked, next=now + wait), 0
        tried = found.evict[:most]
        errors = [await self._evict(pod, eviction(pod, drain)) for pod in tried]
        refused = [(pod, fault) for pod, fault in zip(tried, errors, strict=True) if fault is not None]
        moved = len(refused) < len(tried) or not tried
        next_at = time.time() + next_wait(before, moved, self._scale)
        if refused:
            pod, fault = refused[0]
            next_at = max(next_at, now + min(fault.retry_after or 0.0, 60.0) * self._scale)
            return _failed(view, f"Pod {pod.full_name} stays: {_words(fault)}", fault, next_at), len(tried)
        waits = [*found.ending, *found.evict]
        message = f"{len(waits)} Pod(s) have not ended yet, first {min(pod.full_name for pod in waits)}"
        return msgspec.structs.replace(view, message=message, next=next_at), len(tried)

    async def _evict(self, pod: NodePod, body: Mapping[str, Any]) -> ApiError | None:
        """Why it was not evicted. None: it was, or it is gone, or another Pod has its name, or it goes with
        its namespace."""
        meta, result, refusal = pod.metadata, "Evicted", None
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}/eviction"
        try:
            await self._client.create(path, body)
        except ApiError as error:
            if error.not_found or error.terminating or (error.conflict and not by_admission(error)):
                result = "Gone"
            else:
                result, refusal = "Refused" if error.throttled else "Failed", error
        self._metrics.evictions.labels(result).inc()
        return refusal


def _failed(view: DrainView, message: str, error: ApiError, next_at: float) -> DrainView:
    denied = error.missing_permission is not None
    return msgspec.structs.replace(view, message=message, denied=denied, next=next_at)


def _words(error: ApiError) -> str:
    """The API server's words. It names the PodDisruptionBudget in a cause."""
    causes = "; ".join(message for _, message in error.causes if message)
    return (causes or error.message or str(error))[:_MESSAGE]


def _state(node: Node) -> tuple[str, bool, str]:
    return node.uid, node.unschedulable, node.cordon


def _path(node: Node) -> str:
    return f"/api/v1/nodes/{node.name}"
