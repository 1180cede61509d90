"""The ledger's shards in the cluster: read, compared, written.

I/O only: what an entry means and where it goes is decided in ledger.py and judge.py, what a shard is known
by in shard.py. Every write carries the shard's uid and resourceVersion, so of two writers one gets a
Conflict, reads again and plans again. A shard that somebody took the labels from is found all the same, and
gets them back.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from caretaker.api import names
from caretaker.api.objects import WireMeta
from caretaker.daemontask.ledger import Entry, Ledger, encode_entry, merge, place, shared
from caretaker.daemontask.pods import owner_reference
from caretaker.daemontask.shard import Marks, Shard, WireConfigMap, WireMetaOnly, decode
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.runtime.controller import Conflict

logger = logging.getLogger(__name__)

_MOST: Final = 64  # shards that are looked for by name: status may be edited, and say any number


class Shards:
    """The ledger of one task. Not loaded until load() has succeeded; a Conflict unloads it."""

    def __init__(self, client: KubeClient, namespace: str, task: str, task_uid: str) -> None:
        self._client = client
        self._task = task
        self._marks = Marks(task, task_uid)
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._shards: dict[int, Shard] = {}
        self._entries: dict[str, Entry] = {}
        self._since: dict[str, float] = {}
        self._suspects: set[int] = set()  # to be looked for by name: something is there that was not listed
        self._foreign: dict[int, str] = {}  # index -> ConfigMap that has the name and is not this task's
        self.loaded = False

    @property
    def selector(self) -> str:
        """The label selector of the shards of every task that has or had this name."""
        return self._marks.selector

    @property
    def count(self) -> int:
        """Shards that exist."""
        return len(self._shards)

    @property
    def recorded(self) -> int:
        """Entries that exist and can be read."""
        return len(self._entries)

    @property
    def node_names(self) -> set[str]:
        """Every node that has an entry, readable or not."""
        return {name for shard in self._shards.values() for name in shard.node_names}

    @property
    def stray(self) -> bool:
        """Whether a shard is without its labels, which the next write gives back."""
        return any(shard.stray for shard in self._shards.values())

    def find(self, node_name: str) -> Entry | None:
        """The entry of a node, as last seen."""
        return self._entries.get(node_name)

    def view(self, expected: int) -> Ledger:
        """What a plan reads. `expected`: how many shards status says existed."""
        corrupt: dict[str, str] = {}
        for shard in self._shards.values():
            corrupt.update(shard.corrupt)
        return Ledger(
            entries=self._entries,
            corrupt={name: why for name, why in corrupt.items() if name not in self._entries},
            shards=self.count,
            version=max(shard.version for shard in self._shards.values()) if corrupt else 0,
            lost=max(expected - self.count, 0),
            since=self._since,
        )

    async def load(self, now: float, expected: int = 0) -> None:
        """Read all shards, consistently; those of the `expected` that are not listed, by name."""
        items, _ = await self._client.list(
            self._path, WireConfigMap, params={"labelSelector": self.selector}, page=20
        )
        listed = {self._marks.index(item.metadata) for item in items}
        missed = {*range(min(expected, _MOST)), *self._shards, *self._suspects, *self._foreign} - listed
        found = await asyncio.gather(*(self._by_name(index) for index in sorted(missed)))
        self._suspects, self._foreign, strays = set(), {}, list[Shard]()
        for index, item in zip(sorted(missed), found, strict=True):
            if item is None:
                continue
            if self._marks.ours(index, item.metadata):
                strays.append(decode(index, item, stray=not self._marks.labelled(index, item.metadata)))
            else:
                self._foreign[index] = item.metadata.name
        self.take(items, now, strays)

    def take(self, items: Iterable[WireConfigMap], now: float, strays: Iterable[Shard] = ()) -> None:
        """Have these ConfigMaps, as a list or a watch of `selector` told them, be the ledger."""
        self._shards = {shard.index: shard for shard in strays}
        for item in items:
            index = self._marks.index(item.metadata)
            if index is not None:
                self._shards[index] = decode(index, item)
        ordered = (self._shards[index].entries for index in sorted(self._shards))
        before, self._entries = self._entries, merge(ordered)
        self._since = {
            name: self._since.get(name, now) if before.get(name) == entry else now
            for name, entry in self._entries.items()
        }
        self.loaded = True

    async def current(self, nodes: Iterable[str]) -> bool:
        """Whether the shards of these nodes, and the absence of any further shard, are as last seen.

        Quorum reads of metadata, one per shard: the last look before something irreversible. A node without
        an entry may have got one in any shard: another operator may have found the earlier ones full.
        """
        wanted = set(nodes)
        everywhere = not wanted <= self.node_names
        indices = {i for i, s in self._shards.items() if everywhere or not wanted.isdisjoint(s.node_names)}
        indices.add(max(self._shards, default=-1) + 1)
        return all(await asyncio.gather(*(self._unchanged(index) for index in indices)))

    def taken(self, nodes: Iterable[str], *, lost: bool) -> str:
        """Why the entries of these nodes, or while a shard is lost any, cannot be stored; "" if they can.

        What is in the way may go at any time, so the ledger is read again.
        """
        homes = place(nodes, self._names()) if self._foreign else {}
        index = min((index for index in self._foreign if lost or index in homes), default=None)
        if index is None:
            return ""
        self.loaded = False
        return (
            f"ConfigMap {self._foreign[index]} has the name of a part of the ledger and is not this task's: "
            f"delete it, or if it is the ledger, give it the labels {names.LABEL_LEDGER}={index} and "
            f"{names.LABEL_TASK}={self._task} back"
        )

    async def write(
        self, task: WireMeta, entries: Mapping[str, Entry], forget: Iterable[str], now: float
    ) -> int:
        """Store entries, drop those of nodes that are gone, and give shards the labels back that they lost;
        returns the number of writes.

        Raises Conflict when somebody else wrote first.
        """
        known = self._names()
        homes = place(entries, known)
        leaving = set(forget)
        gone = {index: leaving.intersection(have) for index, have in known.items()}
        strays = (index for index, shard in self._shards.items() if shard.stray)
        writes = 0
        for index in sorted({*homes, *(i for i, dropped in gone.items() if dropped), *strays}):
            new = {name: entries[name] for name in homes.get(index, ())}
            dropped = [n for n in gone.get(index, ()) if n not in new]
            shard = self._shards.get(index)
            try:
                if shard is None:
                    await self._create(task, index, new)
                else:
                    await self._patch(shard, new, dropped)
            except ApiError as error:
                if error.conflict or error.already_exists or error.not_found or error.status == 0:
                    # Somebody else wrote, or our own write may have happened: only reading tells, and what
                    # has the name may not be listed.
                    self.loaded = False
                    self._suspects.add(index)
                    raise Conflict(f"ledger shard {index}: {error}") from error
                if shard is not None and shard.stray:
                    error.message = (
                        f"ConfigMap {self._marks.name(index)} has lost its labels, and they cannot be given "
                        f"back: {error.message}"
                    )
                raise
            writes += 1
            self._note(new, dropped, now)
        return writes

    def _note(self, new: Mapping[str, Entry], dropped: Iterable[str], now: float) -> None:
        for name, entry in new.items():
            self._entries[name] = shared(entry)
            self._since[name] = now
        for name in dropped:
            self._entries.pop(name, None)
            self._since.pop(name, None)

    async def _create(self, task: WireMeta, index: int, new: Mapping[str, Entry]) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self._marks.name(index),
                "labels": self._marks.labels(index),
                "ownerReferences": [owner_reference(task)],
            },
            "data": {name: encode_entry(entry) for name, entry in new.items()},
        }
        made: WireMetaOnly = await self._client.create(self._path, body, WireMetaOnly)
        self._shards[index] = Shard(index, made.metadata.uid, made.metadata.resource_version, dict(new), {})

    async def _patch(self, shard: Shard, new: Mapping[str, Entry], dropped: Iterable[str]) -> None:
        data: dict[str, Any] = {name: encode_entry(entry) for name, entry in new.items()}
        data.update(dict.fromkeys(dropped))
        meta: dict[str, Any] = {"uid": shard.uid, "resourceVersion": shard.resource_version}
        if shard.stray:
            meta["labels"] = self._marks.labels(shard.index)
        path = self._path_of(shard.index)
        done: WireMetaOnly = await self._client.patch(path, {"metadata": meta, "data": data}, WireMetaOnly)
        if shard.stray:
            told = "ConfigMap %s had lost its labels and has them back"
            logger.warning(told, self._marks.name(shard.index))
        shard.resource_version, shard.stray = done.metadata.resource_version, False
        shard.entries.update(new)
        for name in new:
            shard.corrupt.pop(name, None)
        for name in dropped:
            shard.entries.pop(name, None)
            shard.corrupt.pop(name, None)

    async def _unchanged(self, index: int) -> bool:
        shard = self._shards.get(index)
        try:
            path = self._path_of(index)
            found: WireMetaOnly = await self._client.get(path, WireMetaOnly, metadata_only=True)
        except ApiError as error:
            if error.not_found:
                self._foreign.pop(index, None)
                return shard is None
            raise
        meta = found.metadata
        if shard is not None:
            return (meta.uid, meta.resource_version) == (shard.uid, shard.resource_version)
        if not self._marks.ours(index, meta):  # no shard: see taken()
            self._foreign[index] = meta.name
            return True
        self._suspects.add(index)
        return False

    async def _by_name(self, index: int) -> WireConfigMap | None:
        try:
            found: WireConfigMap = await self._client.get(self._path_of(index), WireConfigMap)
        except ApiError as error:
            if error.not_found:
                return None
            raise
        return found

    def _path_of(self, index: int) -> str:
        return f"{self._path}/{self._marks.name(index)}"

    def _names(self) -> dict[int, list[str]]:
        return {index: shard.node_names for index, shard in self._shards.items()}
