"""Cordons the nodes of spec.drain, and takes the cordons back.

I/O only: which nodes, was decided before. Nodes are written as they were seen, or not at all. It must cordon
no node before the API server accepts the Pod of its run and the operator may evict.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from caretaker.api.daemontask import DaemonTask
from caretaker.api.objects import Node, WireMeta
from caretaker.daemontask.cordon import cordoning, mark_of, uncordoning
from caretaker.daemontask.drain import FIRST_WAIT, words_of
from caretaker.daemontask.node_client import NodeClient
from caretaker.daemontask.pod_control import run_all
from caretaker.daemontask.pods import PodEncoder, Start
from caretaker.daemontask.task_state import TaskState
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.kube.store import Store
from caretaker.runtime.work_queue import Key

logger = logging.getLogger(__name__)

CONCURRENCY: Final = 16
RIGHTS_SECONDS: Final = 300.0  # for which the operator's rights count as known
AGAIN_SECONDS: Final = 1.0  # until cordons that failed or had no answer are looked at again
_RIGHTS: Final = (("patch", "nodes", ""), ("list", "pods", ""), ("create", "pods", "eviction"))
_LACKS: Final = "the operator cannot "
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class _Access(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Access = msgspec.field(default_factory=_Access)


class CordonControl:
    """Writes Nodes, and updates their store by the answers of the API server."""

    def __init__(
        self, client: KubeClient, nodes: Store[Node], ended: Mapping[str, str] | None = None
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._node_client = NodeClient(client, nodes)
        self._ended = ended if ended is not None else {}  # WatchHandlers.ended
        self._known = 0.0  # time.monotonic() until which the rights are known to be there

    async def cordon(
        self,
        task: DaemonTask,
        revision: str,
        nodes: Mapping[str, Node],
        starts: Sequence[Start],
        state: TaskState,
    ) -> float:
        """Cordon and mark the nodes of these runs. Returns when to try again; 0 = nothing is left.

        A node whose Pod is refused by a dry run waits like one whose Pod is refused. One whose cordon is
        refused goes behind the others. A request without an answer may still be executed: its node holds a
        slot until the API server has the node as written by others, which ends the request by its
        resourceVersion.
        """
        names, now = {start.node_name for start in starts}, time.time()
        await self._settle(state, names)
        if not starts:
            return now + AGAIN_SECONDS if state.drains.cordons.unsure else 0.0
        if now < state.drains.cordons.until:
            return state.drains.cordons.until
        if (missing := await self._missing_right()) is not None:
            return self._not_cordoned(state, missing)
        state.drains.cordons = replace(state.drains.cordons, denied=False)
        path = f"/api/v1/namespaces/{task.metadata.namespace}/pods"
        encoder = PodEncoder(task.metadata, task.spec, revision)

        async def one(start: Start) -> None:
            node = nodes.get(start.node_name)
            if node is not None and await self._is_admissible(path, encoder, start, state):
                await self._cordon(task.metadata, node, state)

        await run_all(one(start) for start in starts)
        return max(state.drains.cordons.until, now + AGAIN_SECONDS) if state.drains.cordons.message else 0.0

    async def denied(self, state: TaskState) -> bool:
        """After a refusal: whether the operator lacks a right to drain. Then its nodes are given back."""
        self._known = 0.0
        missing = await self._missing_right()
        state.drains.cordons = replace(
            state.drains.cordons, denied=missing is not None and missing.startswith(_LACKS)
        )
        return state.drains.cordons.denied

    async def _is_admissible(self, path: str, encoder: PodEncoder, start: Start, state: TaskState) -> bool:
        """Whether the API server would create the Pod of this run now."""
        state.pacing.turn = state.bulk.take(state.spec.pod_cost, time.monotonic())
        try:
            await self._client.create(path, encoder.body(start), bytes, params={"dryRun": "All"})
        except ApiError as error:
            if not error.already_exists:  # the name's owner is looked at when the run starts
                logger.warning("node %s is not cordoned, its Pod is refused: %s", start.node_name, error)
                state.refused(start.node_uid, error, time.time())
                return False
        state.pacing.refused_pods.forget(start.node_uid)
        return True

    async def _cordon(self, meta: WireMeta, node: Node, state: TaskState) -> None:
        version = self._version(node)
        try:
            body = cordoning(node, version, meta, time.time())
            await self._node_client.patch(node, body)
        except ApiError as error:
            if not error.not_executed:
                unsure = {**state.drains.cordons.unsure, node.uid: (node.name, version)}
                state.drains.cordons = replace(state.drains.cordons, unsure=unsure)
            elif await self._was_another(node, error):
                self._settled(state, node.uid)
                state.creation.again = True
                return
            state.order.deprioritised[node.uid] = time.time()
            self._not_cordoned(state, f"node {node.name} cannot be cordoned: {words_of(error)}")
            logger.warning("node %s cannot be cordoned: %s", node.name, error)
            return
        state.order.deprioritised.pop(node.uid, None)
        self._settled(state, node.uid)
        state.drains.cordons = replace(state.drains.cordons, message="", times=0, until=0.0)

    def _not_cordoned(self, state: TaskState, message: str) -> float:
        until = time.time() + FIRST_WAIT
        state.drains.cordons = replace(
            state.drains.cordons, message=message, times=state.drains.cordons.times + 1, until=until
        )
        return until

    async def _settle(self, state: TaskState, asked: Iterable[str]) -> None:
        """Look whether cordons without an answer were executed, or no longer can be. One that is asked for
        again settles itself: of two requests with one resourceVersion the API server executes one."""
        for uid, (name, version) in state.drains.cordons.unsure.items():
            if name in asked:
                continue
            try:
                found = await self._node_client.current(name, uid)
            except ApiError as error:
                logger.warning("node %s may be cordoned and cannot be read: %s", name, error)
                continue
            if found is None or found[1] != version:
                self._settled(state, uid)

    def _settled(self, state: TaskState, uid: str) -> None:
        left = {node: at for node, at in state.drains.cordons.unsure.items() if node != uid}
        state.drains.cordons = replace(state.drains.cordons, unsure=left)

    async def _missing_right(self) -> str | None:
        """The right that the operator lacks; None: it may drain. Without an answer nothing is cordoned."""
        if time.monotonic() < self._known:
            return None
        for verb, resource, part in _RIGHTS:
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {"verb": verb, "resource": resource, "subresource": part}},
            }
            try:
                review: _Review = await self._client.create(_REVIEWS, body, _Review)
            except ApiError as error:
                return f"the operator's rights cannot be checked: {words_of(error)}"
            if not review.status.allowed:
                name = f"{resource}/{part}" if part else resource
                return f'{_LACKS}{verb} resource "{name}" in the whole cluster'
        self._known = time.monotonic() + RIGHTS_SECONDS
        return None

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
                    state.drains.unreleased.add(node.uid, error.message or str(error), time.time())
                    logger.warning("node %s stays cordoned: %s", node.name, error)
                return
            state.drains.unreleased.forget(node.uid)

        await self._each(nodes, one)
        return again

    async def release_all(self, key: Key, busy: Callable[[str, str], bool]) -> None:
        """Take the cordons of a task back that is gone, but those of nodes where a run still goes on:
        `busy` of the task's UID and the node's. Raises the first ApiError, after all were tried."""

        async def one(node: Node) -> ApiError | None:
            mark = mark_of(node)
            if mark is None or (mark.namespace, mark.name) != (key.namespace, key.name):
                return None
            if busy(mark.uid, node.uid):
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
        if over := self._ended.get(node.uid):
            node = replace(node, cordon=over)
        body = uncordoning(node, self._version(node), theirs=over is not None)
        await self._node_client.patch(node, body)

    async def _was_another(self, node: Node, error: ApiError) -> bool:
        """Whether the node was written meanwhile; the next plan sees it as it is. A merge patch tests nothing
        but the version: 422 is a refusal."""
        return error.status != 422 and await self._node_client.after(node, error) is not node

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


def _state(node: Node) -> tuple[str, bool, str]:
    return node.uid, node.unschedulable, node.cordon
