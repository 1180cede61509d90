"""Reads and writes the ledger's shards.

I/O only: ledger.py and pod_failure_policy.py decide the content of an entry and its shard, shard.py names
shards.
Every write carries the shard's UID and resourceVersion, so of two writers one gets a Conflict, reads again
and plans again. A shard without its labels is found by its name and gets them back.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from caretaker.api import names
from caretaker.api.daemontask import NOT_KNOWN, LedgerStatus
from caretaker.daemontask.intents import sent_at
from caretaker.daemontask.ledger import SHARD_NODES, Entry, Ledger, encode_entry, merge, place, shared
from caretaker.daemontask.losses import MOST, Loss, beyond, losses, write_counts
from caretaker.daemontask.pods import owner_reference
from caretaker.daemontask.shard import (
    Marks,
    Shard,
    WireConfigMap,
    bounded,
    decode,
    figures,
    overfull,
)
from caretaker.kube.client import KubeClient, PartialObjectMetadata
from caretaker.kube.errors import ApiError, or_none
from caretaker.runtime.controller import Conflict

logger = logging.getLogger(__name__)

# After a slow write the next one gets this many times the usual timeout: still less than INTENT_SECONDS in
# apply.py.
_PATIENT: Final = 2.2
# Of such a ConfigMap no entry is read, so which nodes have run is not known.
_OVERFULL: Final = f"more than {SHARD_NODES} records (take out what was added, or delete it)"
# Unanswered writes in a row before a condition reports them.
TOO_MANY: Final = 3


NO_ENTRIES: Final[Mapping[str, Entry]] = {}
UNREPORTED: Final = LedgerStatus()


class ShardChange(NamedTuple):
    """One write of a shard."""

    new: Mapping[str, Entry]
    dropped: Collection[str]  # node names
    intents: Mapping[str, Entry]
    floor: int  # the least count of writes after it

    @property
    def entries(self) -> dict[str, Entry]:
        """All entries that the write stores."""
        return {**self.new, **self.intents}


class Written(NamedTuple):
    """The intents that a write stored, and time.monotonic() when the first of them was sent."""

    intents: dict[str, Entry]
    began: float


class Shards:
    """The ledger of one task. load() or take() loads it, and a Conflict unloads it."""

    def __init__(self, client: KubeClient, namespace: str, task: str, task_uid: str) -> None:
        self._client = client
        self._marks = Marks(namespace, task, task_uid)
        self._shards: dict[int, Shard] = {}
        self._write_counts: dict[int, int] = {}  # index -> the highest count of writes seen
        self._entries: dict[str, Entry] = {}
        self._since: dict[str, float] = {}
        self._suspects: set[int] = set()  # indices to read by name: present, but not listed
        self._foreign: dict[int, str] = {}  # index -> ConfigMap of that name that is not this task's
        self._overfull: set[int] = set()  # indices of ConfigMaps with too many entries: see shard.py
        self.loaded = False
        self.unanswered = 0  # unanswered writes in a row
        self._slow = False  # the last write was slow or unanswered

    @property
    def selector(self) -> str:
        """The label selector of the shards of every task of this name, earlier ones included."""
        return self._marks.selector

    @property
    def count(self) -> int:
        """How many shards exist."""
        return len(self._shards)

    @property
    def node_names(self) -> set[str]:
        """Every node that has an entry, readable or not."""
        return {name for shard in self._shards.values() for name in shard.node_names}

    @property
    def unmarked(self) -> bool:
        """Whether a shard lacks its labels or counts, which the next write restores."""
        return any(shard.unmarked for shard in self._shards.values())

    def find(self, node_name: str) -> Entry | None:
        """The entry of a node, as last read or written."""
        return self._entries.get(node_name)

    def write_counts(self, before: LedgerStatus) -> tuple[int, ...]:
        """The new status.ledger.writes; `before`: the present status.ledger."""
        return write_counts(before, self._shards, self._write_counts)

    def ledger(self, reported: LedgerStatus, *, strict: bool = False) -> Ledger:
        """The ledger of a plan. `reported`: status.ledger, read before the shards; `strict`: see losses."""
        corrupt: dict[str, str] = {}
        for shard in self._shards.values():
            corrupt.update(shard.corrupt)
        found = losses(reported, self._write_counts, self._shards, strict=strict)
        lost = [Loss(index, f"has {_OVERFULL}") for index in sorted(self._overfull)]
        lost += [loss for loss in found if loss.index not in self._overfull]
        older = [self._shards[loss.index] for loss in lost if loss.older]
        return Ledger(
            entries=self._entries,
            corrupt={name: why for name, why in corrupt.items() if name not in self._entries},
            shards=self.count,
            version=max(shard.version for shard in self._shards.values()) if corrupt else 0,
            lost=len(lost),
            loss="; ".join(self._words(loss) for loss in lost[:3]),
            older=frozenset(name for shard in older for name in shard.entries),
            since=self._since,
        )

    def _words(self, loss: Loss) -> str:
        if loss.index == NOT_KNOWN:
            return loss.why
        return f"ledger ConfigMap {self._marks.name(loss.index)} {loss.why}"

    async def load(self, now: float, expected: int = 0) -> None:
        """Read all shards with one consistent list; read those of `expected` by name that it lacks."""
        # Each may have 1 MiB, also those that others gave the labels.
        path, ours = self._marks.collection, {"labelSelector": self.selector}
        found_items, _ = await self._client.list(path, WireConfigMap, each=self._ours, params=ours, page=4)
        items = self._indexed(item for item in found_items if item is not None)
        known = {*self._shards, *self._suspects, *self._foreign, *self._overfull}
        missed = {*range(min(expected, MOST)), *known} - items.keys()
        found = await asyncio.gather(*(self._by_name(index) for index in sorted(missed)))
        self._suspects, self._foreign = set(), {}
        for index, item in zip(sorted(missed), found, strict=True):
            if item is None:
                continue
            if self._marks.ours(index, item.metadata):
                items[index] = item
            else:
                self._foreign[index] = item.metadata.name
        self._take(items, now)

    def _ours(self, item: WireConfigMap) -> WireConfigMap | None:
        return bounded(item) if self._marks.index(item.metadata) is not None else None

    def _indexed(self, items: Iterable[WireConfigMap]) -> dict[int, WireConfigMap]:
        found = ((self._marks.index(item.metadata), item) for item in items)
        return {index: item for index, item in found if index is not None}

    def take(self, items: Iterable[WireConfigMap], now: float) -> None:
        """Take these ConfigMaps, from a watch of `selector`, as the ledger."""
        self._take(self._indexed(items), now)

    def _take(self, items: Mapping[int, WireConfigMap], now: float) -> None:
        self._overfull = {index for index, item in items.items() if overfull(item)}
        self._shards = {}
        for index, item in items.items():
            whole = index not in self._overfull
            stray = not self._marks.labelled(index, item.metadata)
            shard = decode(index, item if whole else WireConfigMap(item.metadata), stray=stray)
            # The writes of an overfull one count, too: it may be deleted, or an older copy put in its place.
            self._write_counts[index] = max(shard.writes, self._write_counts.get(index, 0))
            if whole:
                self._shards[index] = shard
        ordered = (self._shards[index].entries for index in sorted(self._shards))
        before, self._entries = self._entries, merge(ordered)
        self._since = {
            name: self._since[name] if before.get(name) == entry else now
            for name, entry in self._entries.items()
        }
        self.loaded = True

    async def current(self, nodes: Iterable[str]) -> bool:
        """Whether the shards of these nodes are unchanged, and no further shard exists.

        One quorum read of metadata per shard, before an action that cannot be undone. For a node without an
        entry all shards are read: another operator may have put its entry into any of them.
        """
        wanted = set(nodes)
        everywhere = not wanted <= self.node_names
        indices = {i for i, s in self._shards.items() if everywhere or not wanted.isdisjoint(s.node_names)}
        indices.add(max(self._shards, default=-1) + 1)
        return all(await asyncio.gather(*(self._unchanged(index) for index in indices)))

    def taken(self, nodes: Iterable[str], *, lost: bool) -> str:
        """Why the entries of these nodes cannot be stored; "" if they can. `lost`: a shard is lost, so no
        entry can be stored while another ConfigMap has the name of any shard.

        The ledger is read again each time, since that ConfigMap may be gone.
        """
        if self._overfull:
            self.loaded = False
            return f"ConfigMap {self._marks.name(min(self._overfull))} has {_OVERFULL}"
        homes = place(nodes, self._names()) if self._foreign else {}
        index = min((index for index in self._foreign if lost or index in homes), default=None)
        if index is None:
            return ""
        self.loaded = False
        return (
            f"ConfigMap {self._foreign[index]} has the name of a part of the ledger and is not this task's: "
            f"delete it, or if it is the ledger, give it the labels {names.LABEL_LEDGER}={index} and "
            f"{names.LABEL_TASK}={self._marks.task} back"
        )

    async def write(
        self,
        entries: Mapping[str, Entry],
        forget: Iterable[str],
        intents: Mapping[str, Entry] = NO_ENTRIES,
        reported: LedgerStatus = UNREPORTED,
        *,
        decided: bool = False,
    ) -> Written:
        """Store entries and intents, drop the entries of nodes that are gone, and restore missing labels and
        counts. With `decided`, lost shards are written last and count as complete afterwards.

        With a slow API server, intents are written only while the Pods of the first ones can still be created
        in time. Raises Conflict when another writer was first, or may have been.
        """
        lost = losses(reported, self._write_counts, self._shards, strict=False)
        floors = dict.fromkeys((index for index, shard in self._shards.items() if not shard.writes), 1)
        for loss in lost:
            floors[loss.index] = beyond(loss) if decided and (loss.floor or loss.index in self._shards) else 0
        floors = {index: floor for index, floor in floors.items() if floor}
        node_names = {**{index: [] for index in floors}, **self._names()}
        homes = place({**entries, **intents}, node_names)
        leaving, changes = set(forget), dict[int, ShardChange]()
        for index in {*homes, *node_names}:
            new = {name: entries[name] for name in homes.get(index, ()) if name in entries}
            dropped = leaving.intersection(node_names.get(index, ()))
            starting = {name: intents[name] for name in homes.get(index, ()) if name in intents}
            changes[index] = ShardChange(new, dropped, starting, floors.get(index, 0))
        written = Written({}, 0.0)
        for index in sorted(changes, key=lambda i: (floors.get(i, 0), len(changes[i].intents) > 0, i)):
            change = changes[index]
            if change.intents:
                written, change = self._in_time(written, change)
            shard = self._shards.get(index)
            if any(change) or (shard is not None and shard.stray):
                await self._write(index, change)
        return written

    def _in_time(self, written: Written, change: ShardChange) -> tuple[Written, ShardChange]:
        """`written` with the intents of one more shard, and the change with these intents dated now; without
        them where the first intents were sent too long ago."""
        now = time.monotonic()
        if written.intents and now - written.began > self._client.write_seconds:
            return written, change._replace(intents={})
        sent = {name: sent_at(entry, time.time()) for name, entry in change.intents.items()}
        began = written.began if written.intents else now
        return Written({**written.intents, **sent}, began), change._replace(intents=sent)

    async def _write(self, index: int, change: ShardChange) -> None:
        shard, asked = self._shards.get(index), time.monotonic()
        try:
            if shard is None:
                await self._create(index, change)
            else:
                await self._patch(shard, change)
        except ApiError as error:
            if error.transient:
                self.unanswered, self._slow = self.unanswered + 1, True
            if error.conflict or error.already_exists or error.not_found or error.status == 0:
                # Another writer was first, or our own write may have succeeded: read again, by name too.
                self.loaded = False
                self._suspects.add(index)
                raise Conflict(f"ledger ConfigMap {self._marks.name(index)}: {error}") from error
            if shard is not None and shard.stray:
                error.message = (
                    f"ConfigMap {self._marks.name(index)} has lost its labels, and they cannot be given "
                    f"back: {error.message}"
                )
            raise
        self.unanswered, self._slow = 0, time.monotonic() - asked > self._client.write_seconds / 2
        self._write_counts[index] = self._shards[index].writes
        self._note(change.entries, change.dropped, time.time())

    def _note(self, new: Mapping[str, Entry], dropped: Iterable[str], now: float) -> None:
        for name, entry in new.items():
            self._entries[name] = shared(entry)
            self._since[name] = now
        for name in dropped:
            self._entries.pop(name, None)
            self._since.pop(name, None)

    async def _create(self, index: int, change: ShardChange) -> None:
        entries = change.entries
        writes, records = max(change.floor, 1), len(entries)
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self._marks.name(index),
                "labels": self._marks.labels(index),
                "annotations": figures(writes, records),
                "ownerReferences": [owner_reference(self._marks.task, self._marks.task_uid)],
            },
            "data": {name: encode_entry(entry) for name, entry in entries.items()},
        }
        made = await self._client.create(
            self._marks.collection, body, PartialObjectMetadata, timeout=self._timeout()
        )
        meta = made.metadata
        self._shards[index] = Shard(
            index, meta.uid, meta.resource_version, entries, {}, False, writes, records
        )

    async def _patch(self, shard: Shard, change: ShardChange) -> None:
        entries = change.entries
        data: dict[str, Any] = {name: encode_entry(entry) for name, entry in entries.items()}
        data.update(dict.fromkeys(change.dropped))
        meta: dict[str, Any] = {"uid": shard.uid, "resourceVersion": shard.resource_version}
        writes, records = shard.writes, shard.records
        if data or change.floor:
            writes = max(writes + 1, change.floor)
            records = len({*shard.node_names, *entries}.difference(change.dropped))
            meta["annotations"] = figures(writes, records)
        if shard.stray:
            meta["labels"] = self._marks.labels(shard.index)
        path, body = self._marks.path(shard.index), {"metadata": meta, "data": data}
        done = await self._client.patch(path, body, PartialObjectMetadata, timeout=self._timeout())
        if shard.stray:
            message = "ConfigMap %s had lost its labels and has them back"
            logger.warning(message, self._marks.name(shard.index))
        shard.resource_version, shard.stray = done.metadata.resource_version, False
        shard.writes, shard.records = writes, records
        shard.entries.update(entries)
        for name in entries:
            shard.corrupt.pop(name, None)
        for name in change.dropped:
            shard.entries.pop(name, None)
            shard.corrupt.pop(name, None)

    def _timeout(self) -> float:
        return self._client.write_seconds * (_PATIENT if self._slow else 1.0)

    async def _unchanged(self, index: int) -> bool:
        if index in self._overfull:
            return True  # see taken()
        shard = self._shards.get(index)
        read = self._client.get(self._marks.path(index), PartialObjectMetadata)
        found = await or_none(read)
        if found is None:
            self._foreign.pop(index, None)
            return shard is None
        meta = found.metadata
        if shard is not None:
            return (meta.uid, meta.resource_version) == (shard.uid, shard.resource_version)
        if not self._marks.ours(index, meta):  # no shard: see taken()
            self._foreign[index] = meta.name
            return True
        self._suspects.add(index)
        return False

    async def _by_name(self, index: int) -> WireConfigMap | None:
        found: WireConfigMap | None = await or_none(self._client.get(self._marks.path(index), WireConfigMap))
        return found and bounded(found)

    def _names(self) -> dict[int, list[str]]:
        return {index: shard.node_names for index, shard in self._shards.items()}


def write_refusal(error: ApiError | Conflict, shards: Shards) -> str:
    """The reason why the ledger cannot be written, if an immediate retry would not help; else empty."""
    if shards.unanswered >= TOO_MANY:
        return f"{error}; {shards.unanswered} writes of the ledger in a row were not answered"
    if isinstance(error, Conflict) or error.transient or error.missing_permission is not None:
        return ""
    return error.message or str(error)
