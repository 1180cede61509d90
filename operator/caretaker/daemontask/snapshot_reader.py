"""The snapshot of a task as a pass would read it, for the command line.

Inputs: a client and the task's name, or a task that does not exist yet. Nothing is written. The memory of
the operator (backoff after a vanished Pod, deprioritised nodes) is out of reach; status has the conditions
that follow from it.

A ledger is read after the Pods, because the operator records a run before it deletes the run's Pod: in
this order a finished run is seen in one of the two.
"""

import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import Reason
from caretaker.api.daemontask import DaemonTask, DataRef, drainer_of, gate_of
from caretaker.api.names import LABEL_TASK, POD_EXCLUSIVE
from caretaker.api.objects import Node, Pod, WireMeta, WireNode, WirePod
from caretaker.daemontask.data_reader import DataReader, DataUnavailableError
from caretaker.daemontask.decision import PodsByNode
from caretaker.daemontask.dependencies import Dependencies, Dependency, circle_of, names_of, on_ecs
from caretaker.daemontask.exclusive import of_pods, view_of
from caretaker.daemontask.forecast import settle
from caretaker.daemontask.group_view import GroupView, Other
from caretaker.daemontask.losses import expected
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.plan import plan
from caretaker.daemontask.pods import revisions_of
from caretaker.daemontask.referenced_data import ReferencedData, data_part, with_data
from caretaker.daemontask.resource import RawTask, has_ecs, read_task
from caretaker.daemontask.shard import WireConfigMap
from caretaker.daemontask.shards import Shards
from caretaker.daemontask.snapshot import Snapshot
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import or_none
from caretaker.kube.store import PodIndex, Store
from caretaker.kube.watches import Watches, running
from caretaker.registry import DAEMON_TASK

MOST_TASKS: Final = 100  # that are read to find a circle
_UNREAD: Final = "unread"  # in place of the data part: it equals none


async def observe(
    client: KubeClient, raw: RawTask, former_refs: tuple[DataRef, ...] | None = None
) -> Snapshot:
    """The cluster around this task, which need not exist: a dry run's answer will do. `former_refs`: its
    dataRefs as the operator knows them, where these are others. Raises ApiError."""
    nodes = await _nodes(client)
    snapshot = await _alone(client, raw, nodes, former_refs)
    names = names_of(snapshot.task.spec)
    if not names:
        return snapshot
    tasks = await _reachable(client, raw.metadata, names)
    each = [await _dependency(client, name, tasks.get(name), nodes) for name in names]
    others = {name: names_of(read_task(task)[0].spec) for name, task in tasks.items()}
    circle = circle_of(raw.metadata.name, names, lambda name: others.get(name, ()))
    return msgspec.structs.replace(snapshot, dependencies=Dependencies(tuple(each), circle))


async def _reachable(client: KubeClient, meta: WireMeta, names: Iterable[str]) -> dict[str, RawTask]:
    """The tasks that are there of those with these names, and those that they depend on."""
    found, wanted, seen = dict[str, RawTask](), list(names), {meta.name, *names}
    while wanted and len(found) < MOST_TASKS:
        name = wanted.pop(0)
        raw: RawTask | None = await or_none(client.get(DAEMON_TASK.path(meta.namespace, name), RawTask))
        if raw is not None and raw.metadata.deletion_timestamp is None:
            found[name] = raw
            further = [one for one in names_of(read_task(raw)[0].spec) if one not in seen]
            wanted += further
            seen |= {*further}
    return found


async def _dependency(
    client: KubeClient, name: str, raw: RawTask | None, nodes: dict[str, Node]
) -> Dependency:
    """How far the task is by the operator's own plan, once everything that has finished is recorded."""
    if raw is None:
        return Dependency(name, missing=True)
    if has_ecs(raw):
        return Dependency(name, on_ecs(raw.metadata))
    snapshot = msgspec.structs.replace(await _alone(client, raw, nodes), awaited=True)
    return Dependency(name, settle(snapshot)[1].progress)


async def _alone(
    client: KubeClient,
    raw: RawTask,
    nodes: dict[str, Node],
    former_refs: tuple[DataRef, ...] | None = None,
) -> Snapshot:
    """observe(), without other tasks."""
    meta = raw.metadata
    pods = await _pods(client, meta.namespace, meta.name, meta.uid)
    shards = Shards(client, meta.namespace, meta.name, meta.uid)
    now = time.time()
    task, invalid = read_task(raw)
    data = await _data(client, task, former_refs)
    await shards.load(now, expected(task.status.ledger))
    ledger = shards.ledger(task.status.ledger, strict=task.spec.at_most_once)
    found = Snapshot(**_of_task(task, invalid, data), nodes=nodes, pods=pods, ledger=ledger, now=now)
    if task.spec.exclusive is None:
        return found
    return msgspec.structs.replace(found, exclusion=await _group(client, task, nodes))


async def _group(client: KubeClient, task: DaemonTask, nodes: Mapping[str, Node]) -> GroupView:
    """The nodes that the other tasks of the group hold, as their next passes would find them, and Pods of
    those that are gone."""
    meta, exclusive = task.metadata, task.spec.exclusive
    path = f"/api/v1/namespaces/{meta.namespace}/pods"
    listed, _ = await client.list(DAEMON_TASK.path(meta.namespace), RawTask)
    pods, _ = await client.list(path, WirePod, each=WirePod.record, params={"labelSelector": LABEL_TASK})
    by_owner: dict[str, dict[str, dict[str, Pod]]] = {}
    for pod in pods:
        by_owner.setdefault(pod.owner_uid, {}).setdefault(pod.node_uid, {})[pod.name] = pod
    others, now = list[Other](), time.time()
    for raw in listed:
        other, invalid = read_task(raw)
        mine = by_owner.pop(raw.metadata.uid, {})
        group = other.spec.exclusive.group if other.spec.exclusive is not None else ""
        if exclusive is None or group != exclusive.group or raw.metadata.name == meta.name:
            continue
        shards = Shards(client, meta.namespace, raw.metadata.name, raw.metadata.uid)
        await shards.load(now, expected(other.status.ledger))
        ledger = shards.ledger(other.status.ledger, strict=other.spec.at_most_once)
        found = Snapshot(
            **_of_task(other, invalid), nodes=nodes, pods=mine, ledger=ledger, now=now, exclusion=GroupView()
        )
        if (held := plan(found).holding) is not None:
            others.append(Other(raw.metadata.name, held))
    uids = {node.name: node.uid for node in nodes.values()}
    for of_node in by_owner.values():
        marked = [pod for found in of_node.values() for pod in found.values()]
        marked = [
            pod for pod in marked if exclusive and pod.annotations.get(POD_EXCLUSIVE) == exclusive.group
        ]
        if (held := of_pods(marked, uids)).nodes:
            others.append(Other(marked[0].labels.get(LABEL_TASK, ""), held))
    return view_of(meta.name, others)


def reported_invalid(task: DaemonTask) -> str:
    """Why the operator found this generation's spec invalid; empty if it did not, or has not looked."""
    condition = c.find(task.status.conditions, c.SPEC_VALID)
    if condition is None or condition.reason != Reason.INVALID_SPEC:
        return ""
    return condition.message if condition.observed_generation == task.metadata.generation else ""


def _reported(task: DaemonTask) -> Dependencies:
    """A circle that the operator has found for this generation, without the names between."""
    condition, name = c.find(task.status.conditions, c.READY), task.metadata.name
    current = condition is not None and condition.observed_generation == task.metadata.generation
    found = current and condition is not None and condition.reason == Reason.DEPENDENCY_CYCLE
    return Dependencies(circle=(name, "...", name) if found else ())


async def _data(
    client: KubeClient, task: DaemonTask, former_refs: tuple[DataRef, ...] | None
) -> ReferencedData:
    """The data now; where this user may not read it, as the operator has reported it. A report about other
    objects says nothing of these."""
    reported = _reported_data(task)
    try:
        return await DataReader(client).fetch(task) if task.spec.data_refs else reported
    except DataUnavailableError as error:
        if not error.denied:
            return msgspec.structs.replace(reported, fault=str(error))
        part = reported.part if former_refs in (None, task.spec.data_refs) else _UNREAD
        return msgspec.structs.replace(reported, part=part, unread=str(error).partition(": the operator")[0])


def _reported_data(task: DaemonTask) -> ReferencedData:
    """The data that the operator has found last."""
    condition, fault = c.find(task.status.conditions, c.READY), ""
    if condition is not None and condition.reason == Reason.DATA_UNAVAILABLE:
        fault = condition.message.partition(";")[0]
    part = data_part(task.status.current_revision) if task.spec.data_refs else ""
    return ReferencedData(task.spec.data_refs, (), part, fault)


def _of_task(task: DaemonTask, invalid: str, data: ReferencedData | None = None) -> dict[str, Any]:
    """The fields of a Snapshot that follow from the task, and from the data that it refers to."""
    template, former = revisions_of(task.spec, task.status)
    found = data or _reported_data(task)
    revision = with_data(template, found.part)
    return {
        "task": task,
        "revision": revision,
        "former": former,
        "data": found,
        "eligibility_rules": EligibilityRules(
            task.spec.template,
            gate_of(task.metadata, task.spec),
            drainer_of(task.metadata, task.spec),
            task.spec.health_conditions,
        ),
        "invalid": invalid or reported_invalid(task),
    }


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


class Follower:
    """One task and all that bears on it, kept up to date by watches. Made by follow().

    Like every cache it may show one object before another: a Pod gone before the record of its run.
    Other tasks are not read: the waits of nodes by spec.dependsOn are in status alone.
    """

    def __init__(self, client: KubeClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self.watches = Watches(client)
        base = f"/api/v1/namespaces/{namespace}"
        pods = f"{LABEL_TASK}={name}"
        ledger = Shards(client, namespace, name, "").selector
        self._tasks = self.watches.add(DAEMON_TASK.path(namespace), RawTask)
        self._nodes: Store[Node] = self.watches.add("/api/v1/nodes", WireNode, WireNode.record)
        self._pods: Store[Pod] = self.watches.add(
            f"{base}/pods", WirePod, WirePod.record, label_selector=pods
        )
        self._shards = self.watches.add(f"{base}/configmaps", WireConfigMap, label_selector=ledger)
        self._index = PodIndex(self._pods)
        self._eligibility_rules: tuple[object, EligibilityRules] | None = None

    def snapshot(self) -> Snapshot | None:
        """The task now; None before everything has been read, and when the task is gone."""
        if not self.watches.synced:
            return None
        found = self._tasks.get(self._namespace, self._name)
        if found is None:
            return None
        raw: RawTask = found.wire
        task, invalid = read_task(raw)
        shards = Shards(self._client, self._namespace, self._name, raw.metadata.uid)
        now = time.time()
        shards.take((record.wire for record in self._shards.values()), now)
        nodes = {node.name: node for node in self._nodes.values()}
        pods = self._index.pods_of(self._namespace, raw.metadata.uid)
        # The task may be seen before the shards that its status counts the writes of.
        reported = msgspec.structs.replace(task.status.ledger, writes=())
        ledger = shards.ledger(reported, strict=task.spec.at_most_once)
        snapshot = Snapshot(**_of_task(task, invalid), nodes=nodes, pods=pods, ledger=ledger, now=now)
        # The eligibility of each node is cached for as long as the template is the same.
        basis = snapshot.revision, snapshot.eligibility_rules.health
        if self._eligibility_rules is None or self._eligibility_rules[0] != basis:
            self._eligibility_rules = basis, snapshot.eligibility_rules
        return msgspec.structs.replace(
            snapshot, eligibility_rules=self._eligibility_rules[1], dependencies=_reported(task)
        )


@asynccontextmanager
async def follow(client: KubeClient, namespace: str, name: str) -> AsyncIterator[Follower]:
    """A Follower whose watches run inside the block."""
    follower = Follower(client, namespace, name)
    async with running(follower.watches):
        yield follower
