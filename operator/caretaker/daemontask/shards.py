"""The ledger's shards in the cluster: read, compared, written.

I/O only: what an entry means and where it goes is decided in ledger.py and judge.py. Every write carries
the shard's uid and resourceVersion, so of two writers one gets a Conflict, reads again and plans again.
"""

import asyncio
from collections.abc import Iterable, Mapping
from sys import intern
from typing import Any, Final

import msgspec

from caretaker.api import names
from caretaker.api.hashing import h10
from caretaker.api.objects import WireMeta
from caretaker.daemontask.ledger import Entry, Ledger, decode_entry, encode_entry, merge, place, shared
from caretaker.daemontask.pods import owner_reference
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.runtime.controller import Conflict

_PREFIX: Final = 40


class WireConfigMap(msgspec.Struct):
    """A ConfigMap as a shard is read."""

    metadata: WireMeta
    data: dict[str, str] | None = None


class WireMetaOnly(msgspec.Struct):
    """Any object, of which only the metadata is decoded."""

    metadata: WireMeta


class Shard(msgspec.Struct):
    """One shard as last seen."""

    index: int
    uid: str
    resource_version: str
    entries: dict[str, Entry]
    corrupt: dict[str, str]

    @property
    def node_names(self) -> list[str]:
        """Every data key, readable or not."""
        return [*self.entries, *self.corrupt]


class Shards:
    """The ledger of one task. Not loaded until load() has succeeded; a Conflict unloads it."""

    def __init__(self, client: KubeClient, namespace: str, task: str, task_uid: str) -> None:
        self._client = client
        self._task = task
        self._task_uid = task_uid
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._stem = f"{task[:_PREFIX].replace('.', '-').rstrip('-')}-{h10(task_uid)}-ledger"
        self._shards: dict[int, Shard] = {}
        self._entries: dict[str, Entry] = {}
        self._since: dict[str, float] = {}
        self.loaded = False

    @property
    def selector(self) -> str:
        """The label selector of the shards of every task that has or had this name."""
        return f"{names.LABEL_LEDGER},{names.LABEL_TASK}={self._task}"

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
            lost=max(expected - self.count, 0),
            since=self._since,
        )

    async def load(self, now: float) -> None:
        """Read all shards, consistently."""
        items, _ = await self._client.list(
            self._path, WireConfigMap, params={"labelSelector": self.selector}, page=20
        )
        self.take(items, now)

    def take(self, items: Iterable[WireConfigMap], now: float) -> None:
        """Have these ConfigMaps, as a list or a watch of `selector` told them, be the ledger."""
        self._shards = {}
        for item in items:
            index = self._index(item.metadata)
            if index is not None:
                self._shards[index] = _decode(index, item)
        before, self._entries = self._entries, merge(shard.entries for shard in self._shards.values())
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

    async def write(
        self, task: WireMeta, entries: Mapping[str, Entry], forget: Iterable[str], now: float
    ) -> int:
        """Store entries and drop those of nodes that are gone; returns the number of writes.

        Raises Conflict when somebody else wrote first.
        """
        known = {i: s.node_names for i, s in self._shards.items()}
        homes = place(entries, known)
        leaving = set(forget)
        gone = {index: leaving.intersection(have) for index, have in known.items()}
        writes = 0
        for index in sorted({*homes, *(i for i, dropped in gone.items() if dropped)}):
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
                    # Somebody else wrote, or our own write may have happened: only reading tells.
                    self.loaded = False
                    raise Conflict(f"ledger shard {index}: {error}") from error
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
                "name": f"{self._stem}-{index}",
                "labels": {
                    names.LABEL_MANAGED_BY: names.MANAGED_BY,
                    names.LABEL_TASK: task.name,
                    names.LABEL_LEDGER: str(index),
                },
                "ownerReferences": [owner_reference(task)],
            },
            "data": {name: encode_entry(entry) for name, entry in new.items()},
        }
        made: WireMetaOnly = await self._client.create(self._path, body, WireMetaOnly)
        self._shards[index] = Shard(index, made.metadata.uid, made.metadata.resource_version, dict(new), {})

    async def _patch(self, shard: Shard, new: Mapping[str, Entry], dropped: Iterable[str]) -> None:
        data: dict[str, Any] = {name: encode_entry(entry) for name, entry in new.items()}
        data.update(dict.fromkeys(dropped))
        body = {"metadata": {"uid": shard.uid, "resourceVersion": shard.resource_version}, "data": data}
        path = f"{self._path}/{self._stem}-{shard.index}"
        done: WireMetaOnly = await self._client.patch(path, body, WireMetaOnly)
        shard.resource_version = done.metadata.resource_version
        shard.entries.update(new)
        for name in new:
            shard.corrupt.pop(name, None)
        for name in dropped:
            shard.entries.pop(name, None)
            shard.corrupt.pop(name, None)

    async def _unchanged(self, index: int) -> bool:
        shard = self._shards.get(index)
        try:
            path = f"{self._path}/{self._stem}-{index}"
            found: WireMetaOnly = await self._client.get(path, WireMetaOnly, metadata_only=True)
        except ApiError as error:
            if error.not_found:
                return shard is None
            raise
        return (
            shard is not None
            and found.metadata.uid == shard.uid
            and found.metadata.resource_version == shard.resource_version
        )

    def _index(self, meta: WireMeta) -> int | None:
        """The shard's index; None if it is not of this very task (another UID, another maker)."""
        text = (meta.labels or {}).get(names.LABEL_LEDGER, "")
        if meta.name != f"{self._stem}-{text}" or not (text.isascii() and text.isdigit()):
            return None
        return int(text)


def _decode(index: int, item: WireConfigMap) -> Shard:
    entries: dict[str, Entry] = {}
    corrupt: dict[str, str] = {}
    for name, text in (item.data or {}).items():
        entry = decode_entry(text)
        if isinstance(entry, Entry):
            entries[intern(name)] = entry  # one copy for all tasks
        else:
            corrupt[name] = entry
    return Shard(index, item.metadata.uid, item.metadata.resource_version, entries, corrupt)
