"""The one DaemonTask that probes for all policies: read with its ledger, and written when the nodes change.

Inputs: each policy's marks. I/O only: which nodes, and when, was decided before (verify.py). A task that
cannot be read or written (DaemonTask is not installed, or may not be used) is reported: there is no evidence
for changes then. The next pass of any policy corrects a failed write and the task of another process.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from caretaker.api import names
from caretaker.api.objects import Node, WireMeta
from caretaker.api.times import normalise_time
from caretaker.imds.probe import (
    LEDGER_SELECTOR,
    TASK_NAME,
    Finding,
    ProbeState,
    findings,
    fitting,
    needs_write,
    task,
)
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError, or_none
from caretaker.runtime.controller import Conflict

logger = logging.getLogger(__name__)

_TASKS: Final = f"/apis/{names.API_VERSION}/namespaces/{{}}/daemontasks"


class _Shard(msgspec.Struct):
    metadata: WireMeta
    data: dict[str, str] = {}


class _Demand(msgspec.Struct, frozen=True):
    """The demand of a policy: node -> mark, as normalise_time() writes it, and those that come first."""

    marks: Mapping[str, str]
    first: Collection[str] = ()


class Prober:
    """Keeps the task. `image`: the probe's; `unserved`: why it would not run, "" = it would."""

    def __init__(self, client: KubeClient, namespace: str, image: str, unserved: str = "") -> None:
        self._client = client
        self._namespace = namespace
        self._image = image
        self._unserved = unserved
        self.tokenless = True  # whether probes also ask without a token
        self._demands: dict[str, _Demand] = {}  # by policy
        self._found: Mapping[str, Finding] = {}  # the last result
        self._settled = False  # the task is known to match the demands
        self._refusal = ""  # why it could not be written the last time
        self._lock = asyncio.Lock()

    def clear(self) -> None:
        """Another process may have written it."""
        self._demands.clear()
        self._found = {}
        self._settled = False
        self._refusal = ""

    def serves(self, policy: str) -> bool:
        """Whether want() has something to do even for a policy that asks for nothing."""
        return not self._unserved and (policy in self._demands or not self._settled)

    async def probe_state(self, nodes: Mapping[str, Node]) -> ProbeState:
        """The state of the probe, by name of the node."""
        if self._unserved:
            return ProbeState(problem=self._unserved)
        try:
            body = await self._read()
            if body is None:
                self._found = {}
                return ProbeState(problem=self._refusal)
            url = f"/api/v1/namespaces/{self._namespace}/configmaps"
            shards, _ = await self._client.list(url, _Shard, params={"labelSelector": LEDGER_SELECTOR})
        except ApiError as error:
            if error.transient:
                raise
            return ProbeState(problem=str(error))
        # A task of before, switched off and on again, may have left its own for the garbage collector.
        own = [shard.data for shard in shards if _owned(shard.metadata, body["metadata"]["uid"])]
        self._found = findings(own, nodes)
        # With those for which the task has no room yet.
        return ProbeState(self._found, self._merged(_marks(body)), self._refusal)

    async def want(
        self,
        policy: str,
        marks: Mapping[str, str],
        wanting: Collection[str],
        nodes: Collection[str],
        first: Collection[str] = (),
    ) -> str:
        """These nodes for this policy, `first` before all others where there is no room for all; `wanting`
        names all policies that probe, `nodes` all that there are. Why it could not be written, or "". Until
        every one of them has named its nodes, as after a restart, no node is removed."""
        if self._unserved:
            return self._unserved
        async with self._lock:
            self._settled = False
            self._demands = {name: its for name, its in self._demands.items() if name in wanting}
            if policy in wanting:
                self._demands[policy] = _Demand(marks, first)
            return await self._keep(wanting, nodes)

    async def _keep(self, wanting: Collection[str], nodes: Collection[str]) -> str:
        complete = self._demands.keys() >= set(wanting)
        try:
            body = await self._read()
            wanted = self._wanted(None if complete else body, nodes)
            # Without a node to probe, as when EC2 does not answer, earlier findings still count: they are in
            # the task's ledger.
            if wanted is not None or not wanting:
                await self._write(body, wanted)
        except ApiError as error:
            if error.already_exists:
                raise Conflict(str(error)) from error
            if error.transient or error.conflict:
                raise
            logger.warning("the DaemonTask of the probe: %s", error)
            self._refusal = str(error)
            return self._refusal
        self._settled, self._refusal = complete, ""
        return ""

    def _wanted(self, kept: dict[str, Any] | None, nodes: Collection[str]) -> dict[str, Any] | None:
        """The task for the demands of all policies and for the nodes of `kept`."""
        before: dict[str, str] = {}
        if kept is not None:
            before = {**dict.fromkeys(_nodes(kept), ""), **_marks(kept)}
        merged = self._merged({node: mark for node, mark in before.items() if node in nodes})
        first = frozenset(node for its in self._demands.values() for node in its.first)
        marks = fitting(merged, first, self._found)
        return task(self._namespace, self._image, marks, tokenless=self.tokenless)

    def _merged(self, before: Mapping[str, str]) -> dict[str, str]:
        """The latest mark of each node."""
        merged = {node: normalise_time(mark) for node, mark in before.items()}
        for its in self._demands.values():
            for node, mark in its.marks.items():
                merged[node] = max(merged.get(node, ""), mark)
        return merged

    async def _write(self, body: dict[str, Any] | None, wanted: dict[str, Any] | None) -> None:
        url = _TASKS.format(self._namespace)
        if wanted is None:
            if body is not None:
                await or_none(self._client.delete(f"{url}/{TASK_NAME}"))
        elif body is None:
            await self._client.create(url, wanted)
        elif needs_write(body, wanted):
            meta = body["metadata"]
            fenced = {**wanted["metadata"], "uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
            await self._client.patch(f"{url}/{TASK_NAME}", {"metadata": fenced, "spec": wanted["spec"]})

    async def _read(self) -> dict[str, Any] | None:
        return await or_none(self._client.get(f"{_TASKS.format(self._namespace)}/{TASK_NAME}"))


def _owned(meta: WireMeta, uid: str) -> bool:
    return any(owner.uid == uid for owner in meta.owner_references or ())


def _marks(body: Mapping[str, Any]) -> dict[str, str]:
    """The re-runs that stand in the task."""
    text = (body["metadata"].get("annotations") or {}).get(names.RERUN_NODES, "{}")
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        return {}


def _nodes(body: Mapping[str, Any]) -> list[str]:
    """The nodes that it names."""
    try:
        affinity = body["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        return [term["matchFields"][0]["values"][0] for term in terms]
    except (KeyError, IndexError, TypeError):
        return []


def unserved(daemontasks: bool, watched: str | None, namespace: str) -> str:
    """Why the probe's task would not run."""
    if not daemontasks:
        return "the operator runs no DaemonTasks (--kinds), and the probe is one: have it serve daemontasks"
    if watched in (None, namespace):
        return ""
    return (
        f"the operator runs DaemonTasks of namespace {watched} alone (--namespace), and the probe's "
        f"would be in its own, {namespace}: run it without --namespace, or in that one"
    )
