"""One shard of the ledger: its ConfigMap, its name and labels, its content.

Pure. A shard is identified by its name and its owner, so that a ConfigMap without its labels is still found.
shards.py reads and writes shards.
"""

from itertools import islice
from sys import intern
from typing import Final

import msgspec

from caretaker.api import names
from caretaker.api.hashing import h10
from caretaker.api.objects import MAX_SEQ, WireMeta
from caretaker.daemontask.ledger import SHARD_NODES, Entry, decode_entry

_PREFIX: Final = 40
_DIGITS: Final = 15  # below the bound of api.daemontask.Figure


class WireConfigMap(msgspec.Struct):
    """A ConfigMap, decoded as far as a shard needs."""

    metadata: WireMeta
    data: dict[str, str] | None = None


class Shard(msgspec.Struct):
    """One shard as last read or written."""

    index: int
    uid: str
    resource_version: str
    entries: dict[str, Entry]
    corrupt: dict[str, str]
    stray: bool = False  # lacks the labels of the selector
    writes: int = 0  # count of writes; 0 = written by a version that does not count
    records: int = 0  # how many nodes the last write left in it

    @property
    def unmarked(self) -> bool:
        """Whether the next write must restore its labels or its counts."""
        return self.stray or not self.writes

    @property
    def version(self) -> int:
        """The resourceVersion as a number below MAX_SEQ; 0 where it is not a number."""
        text = self.resource_version
        if not (text.isascii() and text.isdigit() and len(text) < len(str(MAX_SEQ))):
            return 0
        return int(text)

    @property
    def size(self) -> int:
        """How many nodes have an entry here, readable or not."""
        return len(self.entries) + len(self.corrupt)

    @property
    def node_names(self) -> list[str]:
        """Every data key, readable or not."""
        return [*self.entries, *self.corrupt]


class Marks:
    """Names, paths and labels of the shards of one task. `collection`: the path of all ConfigMaps there."""

    def __init__(self, namespace: str, task: str, task_uid: str) -> None:
        self.task = task
        self.task_uid = task_uid
        self.collection = f"/api/v1/namespaces/{namespace}/configmaps"
        self._stem = f"{task[:_PREFIX].replace('.', '-').rstrip('-')}-{h10(task_uid)}-ledger"

    @property
    def selector(self) -> str:
        """The label selector of the shards of every task of this name, earlier ones included."""
        return f"{names.LABEL_LEDGER},{names.LABEL_TASK}={self.task}"

    def name(self, index: int) -> str:
        """The ConfigMap's name."""
        return f"{self._stem}-{index}"

    def path(self, index: int) -> str:
        """The ConfigMap's path."""
        return f"{self.collection}/{self.name(index)}"

    def labels(self, index: int) -> dict[str, str]:
        """The labels of a shard."""
        return {
            names.LABEL_MANAGED_BY: names.MANAGED_BY,
            names.LABEL_TASK: self.task,
            names.LABEL_LEDGER: str(index),
        }

    def labelled(self, index: int, meta: WireMeta) -> bool:
        """Whether its labels match `selector` and its index."""
        return self.index(meta) == index and (meta.labels or {}).get(names.LABEL_TASK) == self.task

    def ours(self, index: int, meta: WireMeta) -> bool:
        """Whether a ConfigMap with the name of a shard is this task's, by its owner or its labels."""
        owned = any(owner.uid == self.task_uid for owner in meta.owner_references or ())
        return owned or self.labelled(index, meta)

    def index(self, meta: WireMeta) -> int | None:
        """The shard's index; None if the ConfigMap is not of this task's UID."""
        text = (meta.labels or {}).get(names.LABEL_LEDGER, "")
        if meta.name != f"{self._stem}-{text}" or not (text.isascii() and text.isdigit()):
            return None
        return int(text)


def overfull(item: WireConfigMap) -> bool:
    """Whether it has more entries than a write of ours leaves."""
    return len(item.data or ()) > SHARD_NODES


def bounded(item: WireConfigMap) -> WireConfigMap:
    """The ConfigMap; of an overfull one no more than shows that it is: 1 MiB of entries takes up to 28."""
    if not overfull(item):
        return item
    return WireConfigMap(item.metadata, dict.fromkeys(islice(item.data or (), SHARD_NODES + 1), ""))


def decode(index: int, item: WireConfigMap, *, stray: bool = False) -> Shard:
    """The shard in a ConfigMap, with the entries that cannot be decoded in `corrupt`."""
    entries: dict[str, Entry] = {}
    corrupt: dict[str, str] = {}
    for name, text in (item.data or {}).items():
        entry = decode_entry(text)
        if isinstance(entry, Entry):
            entries[intern(name)] = entry  # shared by all tasks
        else:
            corrupt[name] = entry
    meta = item.metadata
    marks = meta.annotations or {}
    writes, records = (_figure(marks.get(key, "")) for key in (names.LEDGER_WRITES, names.LEDGER_RECORDS))
    return Shard(index, meta.uid, meta.resource_version, entries, corrupt, stray, writes, records)


def figures(writes: int, records: int) -> dict[str, str]:
    """The annotations of a shard after this write."""
    return {names.LEDGER_WRITES: str(writes), names.LEDGER_RECORDS: str(records)}


def _figure(text: str) -> int:
    """The number; 0 where the annotation is missing or edited to something else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
