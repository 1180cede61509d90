"""PoolStamp's controller: one ConfigMap with a time stamp for each value of a Node label."""

import time
from collections.abc import Collection, Sequence
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Gauge

from caretaker.api.conditions import READY, Condition, Event, merge
from caretaker.api.names import API_VERSION
from caretaker.api.objects import Node, WireMeta
from caretaker.api.times import format_time
from caretaker.kube.errors import ApiError, or_none
from caretaker.runtime.controller import Kind, Next, Subject
from caretaker.runtime.wiring import NODES, Context, Wiring
from caretaker.runtime.work_queue import Key

KIND: Final = "PoolStamp"
LABEL: Final = "caretaker.dev/poolstamp"


class Reason:
    """Of its conditions."""

    STAMPED: Final = "Stamped"


class Spec(msgspec.Struct, frozen=True):
    """As the CRD has it."""

    label: str


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """As the CRD has it."""

    observed_generation: int = 0
    pools: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()


class Resource(msgspec.Struct, frozen=True):
    """As the API server has it."""

    metadata: WireMeta
    spec: Spec
    status: Status = Status()


class Stamp(msgspec.Struct, frozen=True):
    """A ConfigMap."""

    metadata: WireMeta


class Snapshot(msgspec.Struct, frozen=True):
    """Everything that the plan reads."""

    resource: Resource
    pools: frozenset[str]
    stamped: frozenset[str]
    now: float


class Plan(msgspec.Struct, frozen=True):
    """Pools by what becomes of their ConfigMap."""

    create: tuple[str, ...]
    delete: tuple[str, ...]


class PoolStampKind(Kind[Snapshot, Plan, None]):
    """runtime.controller.Kind for PoolStamps."""

    kind = KIND
    stopped: Collection[str] = ()

    def __init__(self, context: Context) -> None:
        self._client = context.client
        self._nodes = context.store(NODES)
        self._unseen = context.unseen
        self._add = context.queue.add
        self._labels: dict[Key, str] = {}
        self._pools = pools(context.metrics.registry)
        self._nodes.subscribe(self._node_changed)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        for key, label in self._labels.items():
            if _pool(old, label) != _pool(new, label):
                self._add(key)

    async def gather(self, key: Key) -> Snapshot | None:
        """The resource, its ConfigMaps, and the pools of all Nodes."""
        if (problem := self._unseen()) is not None:
            raise problem
        resource: Resource | None = await or_none(self._client.get(self.path(key), Resource))
        if resource is None or resource.metadata.deletion_timestamp is not None:
            return None
        self._labels[key] = label = resource.spec.label
        path, selector = _stamp_path(key.namespace), {"labelSelector": f"{LABEL}={key.name}"}
        stamps, _ = await self._client.list(path, Stamp, params=selector)
        pools = frozenset(pool for node in self._nodes.values() if (pool := _pool(node, label)))
        stamped = frozenset(stamp.metadata.name.removeprefix(f"{key.name}-") for stamp in stamps)
        return Snapshot(resource, pools, stamped, time.time())

    def plan(self, snapshot: Snapshot) -> Plan:
        """One ConfigMap for each pool, and no others."""
        return Plan(
            tuple(sorted(snapshot.pools - snapshot.stamped)), tuple(sorted(snapshot.stamped - snapshot.pools))
        )

    async def before(self, snapshot: Snapshot, plan: Plan) -> None:
        """Write the ConfigMaps."""
        meta = snapshot.resource.metadata
        owner = {"apiVersion": API_VERSION, "kind": KIND, "name": meta.name, "uid": meta.uid}
        for pool in plan.create:
            name = {"name": f"{meta.name}-{pool}", "labels": {LABEL: meta.name}, "ownerReferences": [owner]}
            body = {"metadata": name, "data": {"stampedAt": format_time(snapshot.now)}}
            await self._client.create(_stamp_path(meta.namespace), body)
        for pool in plan.delete:
            try:
                await self._client.delete(_stamp_path(meta.namespace, f"{meta.name}-{pool}"))
            except ApiError as error:
                if not error.not_found:
                    raise

    def subject(self, snapshot: Snapshot) -> Subject:
        """The resource."""
        return Subject(snapshot.resource.metadata, snapshot.resource.status)

    def status(self, snapshot: Snapshot, plan: Plan, outcome: None) -> Status:  # noqa: ARG002
        """The pools that have a ConfigMap now."""
        meta = snapshot.resource.metadata
        message = f"{len(snapshot.pools)} node pool(s) are stamped"
        ready = Condition(READY, "True", Reason.STAMPED, message, meta.generation)
        conditions = merge(snapshot.resource.status.conditions, [ready], format_time(snapshot.now))
        return Status(meta.generation, tuple(sorted(snapshot.pools)), conditions)

    def observe(self, snapshot: Snapshot, plan: Plan, status: Status) -> None:  # noqa: ARG002
        """The number of pools."""
        meta = snapshot.resource.metadata
        self._pools.labels(meta.namespace, meta.name).set(len(status.pools))

    def events(self, snapshot: Snapshot, plan: Plan, status: Status) -> Sequence[Event]:  # noqa: ARG002
        """One for each new pool."""
        return [Event("Normal", "Stamped", f"Node pool {pool} is stamped") for pool in plan.create]

    def requeue(self, snapshot: Snapshot, plan: Plan, outcome: None) -> Next:  # noqa: ARG002
        """With the next change of a Node."""
        return Next()

    def forget(self, key: Key) -> None:
        """The resource is gone. Its ConfigMaps go with their owner."""
        if self._labels.pop(key, None) is not None:
            self._pools.remove(key.namespace, key.name)

    async def stop(self) -> None:
        """Another process may lead from now on."""
        self._labels.clear()
        self._pools.clear()


def pools(registry: CollectorRegistry) -> Gauge:
    """Its metric."""
    return Gauge(
        "caretaker_poolstamp_pools",
        "Node pools that have a ConfigMap.",
        ("namespace", "name"),
        registry=registry,
    )


def _pool(node: Node | None, label: str) -> str:
    return node.labels.get(label, "") if node is not None else ""


def _stamp_path(namespace: str, name: str = "") -> str:
    collection = f"/api/v1/namespaces/{namespace}/configmaps"
    return f"{collection}/{name}" if name else collection


WIRING: Final = Wiring((NODES,), PoolStampKind)
