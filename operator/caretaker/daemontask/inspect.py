"""What a pass would read of a task, gathered by somebody who only looks: the command line.

Inputs: a client and the task's name, or a task that does not exist yet. Nothing is written, and nothing is
known of what the operator keeps in memory (backoff after a vanished Pod, who was parked): conditions that
follow from those are told by status.

A ledger is read after the Pods, because the operator records a run before it deletes the run's Pod: in
this order a finished run is seen in one of the two.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import Reason
from caretaker.api.daemontask import DaemonTask
from caretaker.api.names import LABEL_TASK
from caretaker.api.objects import Node, Pod, WireNode, WirePod
from caretaker.daemontask.fit import NodeFit
from caretaker.daemontask.plan import Snapshot
from caretaker.daemontask.pods import revision_of
from caretaker.daemontask.resource import RawTask, read_task, task_path
from caretaker.daemontask.shards import Shards, WireConfigMap
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.kube.reflector import Reflector
from caretaker.kube.store import PodIndex, Store

PodsByNode = Mapping[str, Mapping[str, Pod]]


async def read_snapshot(client: KubeClient, namespace: str, name: str, scale: float = 1.0) -> Snapshot:
    """The task as it stands. Raises ApiError, 404 when there is none."""
    return await observe(client, await client.get(task_path(namespace, name), RawTask), scale)


async def observe(client: KubeClient, raw: RawTask, scale: float = 1.0) -> Snapshot:
    """The cluster around this task, which need not exist: a dry run's answer will do. Raises ApiError."""
    meta = raw.metadata
    nodes, pods = await asyncio.gather(_nodes(client), _pods(client, meta.namespace, meta.name, meta.uid))
    shards = Shards(client, meta.namespace, meta.name, meta.uid)
    now = time.time()
    await shards.load(now)
    task, invalid = read_task(raw)
    return _snapshot(task, invalid or told_invalid(task), nodes, pods, shards, now, scale)


def told_invalid(task: DaemonTask) -> str:
    """Why the operator found this generation's spec invalid; empty if it did not, or has not looked."""
    condition = c.find(task.status.conditions, c.SPEC_VALID)
    if condition is None or condition.reason != Reason.INVALID_SPEC:
        return ""
    return condition.message if condition.observed_generation == task.metadata.generation else ""


def _snapshot(
    task: DaemonTask,
    invalid: str,
    nodes: Mapping[str, Node],
    pods: PodsByNode,
    shards: Shards,
    now: float,
    scale: float,
) -> Snapshot:
    return Snapshot(
        task=task,
        revision=revision_of(task.spec),
        fit=NodeFit(task.spec.template),
        nodes=nodes,
        pods=pods,
        ledger=shards.view(task.status.ledger.shards),
        now=now,
        invalid=invalid,
        scale=scale,
    )


async def _nodes(client: KubeClient) -> dict[str, Node]:
    found, _ = await client.list("/api/v1/nodes", WireNode, each=WireNode.record)
    return {node.name: node for node in found}


async def _pods(client: KubeClient, namespace: str, task: str, task_uid: str) -> PodsByNode:
    if not task_uid:
        return {}  # a task that does not exist owns nothing
    path = f"/api/v1/namespaces/{namespace}/pods"
    found, _ = await client.list(
        path, WirePod, each=WirePod.record, params={"labelSelector": f"{LABEL_TASK}={task}"}
    )
    index: dict[str, dict[str, Pod]] = {}
    for pod in found:
        if pod.owner_uid == task_uid:
            index.setdefault(pod.node_uid, {})[pod.name] = pod
    return index


# ------------------------------------------------------------------ following


class _Seen(msgspec.Struct, frozen=True):
    """Any object in a Store, whole."""

    name: str
    namespace: str
    uid: str
    wire: Any


def _seen(wire: RawTask | WireConfigMap) -> _Seen:
    return _Seen(wire.metadata.name, wire.metadata.namespace, wire.metadata.uid, wire)


class Follower:
    """One task and all that bears on it, kept up to date by watches. Made by follow().

    Like every cache it may show one object before another: a Pod gone before the record of its run.
    """

    def __init__(self, client: KubeClient, namespace: str, name: str, scale: float) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._scale = scale
        self._changed = asyncio.Event()
        self._denied = ""
        self._troubles: dict[str, str] = {}  # by path
        self._nodes: Store[Node] = Store()
        self._pods: Store[Pod] = Store()
        self._tasks: Store[_Seen] = Store()
        self._shards: Store[_Seen] = Store()
        self._index = PodIndex(self._pods)
        for store in self._stores():
            store.subscribe(lambda *_: self._changed.set())
        self._fit: tuple[str, NodeFit] | None = None

    async def run(self) -> None:
        """Watch until cancelled."""
        base = f"/api/v1/namespaces/{self._namespace}"
        ledger = Shards(self._client, self._namespace, self._name, "").selector
        pods = f"{LABEL_TASK}={self._name}"
        reflectors: list[Reflector[Any]] = [
            self._reflector(task_path(self._namespace), RawTask, self._tasks, _seen, None),
            self._reflector("/api/v1/nodes", WireNode, self._nodes, WireNode.record, None),
            self._reflector(f"{base}/pods", WirePod, self._pods, WirePod.record, pods),
            self._reflector(f"{base}/configmaps", WireConfigMap, self._shards, _seen, ledger),
        ]
        await asyncio.gather(*(reflector.run() for reflector in reflectors))

    async def changed(self, timeout: float | None = None) -> bool:
        """Wait for a change, of the task or of the connection; False when there was none in `timeout` s.

        Raises ApiError (403) when one of the watches is not allowed.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        if self._denied:
            verb, _, resource = self._denied.partition(" ")
            raise ApiError(403, "Forbidden", f"you may not {verb} {resource}")
        return True

    def snapshot(self) -> Snapshot | None:
        """The task now; None before everything has been read, and when the task is gone."""
        if not self.synced:
            return None
        found = self._tasks.get(self._namespace, self._name)
        if found is None:
            return None
        raw: RawTask = found.wire
        task, invalid = read_task(raw)
        shards = Shards(self._client, self._namespace, self._name, raw.metadata.uid)
        now = time.time()
        shards.take((seen.wire for seen in self._shards.values()), now)
        nodes = {node.name: node for node in self._nodes.values()}
        pods = self._index.pods_of(raw.metadata.uid)
        snapshot = _snapshot(task, invalid or told_invalid(task), nodes, pods, shards, now, self._scale)
        # The verdicts are remembered for as long as the template is the same.
        if self._fit is None or self._fit[0] != snapshot.revision:
            self._fit = snapshot.revision, snapshot.fit
        return msgspec.structs.replace(snapshot, fit=self._fit[1])

    @property
    def trouble(self) -> str:
        """Why the API server does not answer now, for people; empty while all is well."""
        return next((detail for detail in self._troubles.values() if detail), "")

    @property
    def synced(self) -> bool:
        """Whether everything has been read once."""
        return all(store.synced.is_set() for store in self._stores())

    def _stores(self) -> Iterable[Store[Any]]:
        return self._tasks, self._nodes, self._pods, self._shards

    def _reflector(
        self, path: str, wire: Any, store: Store[Any], record: Any, selector: str | None
    ) -> Reflector[Any]:
        def told(state: str, detail: str) -> None:
            self._denied = detail if state == "denied" else self._denied
            self._troubles[path] = detail if state == "failing" else ""
            self._changed.set()

        return Reflector(self._client, path, wire, store, record, label_selector=selector, on_state=told)


@asynccontextmanager
async def follow(
    client: KubeClient, namespace: str, name: str, scale: float = 1.0
) -> AsyncIterator[Follower]:
    """A Follower whose watches run inside the block."""
    follower = Follower(client, namespace, name, scale)
    watching = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
