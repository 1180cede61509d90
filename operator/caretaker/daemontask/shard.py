"""One shard of the ledger: the ConfigMap that it is, what it is known by, what it holds.

Pure. A shard is known by its name and its owner: one that somebody took the labels from is known all the
same. Reading and writing shards is shards.py.
"""

from sys import intern
from typing import Final

import msgspec

from caretaker.api import names
from caretaker.api.hashing import h10
from caretaker.api.objects import MAX_SEQ, WireMeta
from caretaker.daemontask.ledger import Entry, decode_entry

_PREFIX: Final = 40
_DIGITS: Final = 15  # below what api.daemontask.Figure may be


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
    stray: bool = False  # the labels that it is listed by are gone
    writes: int = 0  # which write it is of; 0 where an operator wrote it that did not count
    records: int = 0  # how many node names that write left in it

    @property
    def unmarked(self) -> bool:
        """Whether its labels or its figures are to be given to it."""
        return self.stray or not self.writes

    @property
    def version(self) -> int:
        """The resourceVersion as a number, one that a seq may be; 0 where it is none."""
        text = self.resource_version
        if not (text.isascii() and text.isdigit() and len(text) < len(str(MAX_SEQ))):
            return 0
        return int(text)

    @property
    def size(self) -> int:
        """How many nodes it has an entry of, readable or not."""
        return len(self.entries) + len(self.corrupt)

    @property
    def node_names(self) -> list[str]:
        """Every data key, readable or not."""
        return [*self.entries, *self.corrupt]


class Marks:
    """What tells the shards of one task from other ConfigMaps, and from each other."""

    def __init__(self, task: str, task_uid: str) -> None:
        self._task = task
        self._task_uid = task_uid
        self._stem = f"{task[:_PREFIX].replace('.', '-').rstrip('-')}-{h10(task_uid)}-ledger"

    @property
    def selector(self) -> str:
        """The label selector of the shards of every task that has or had this name."""
        return f"{names.LABEL_LEDGER},{names.LABEL_TASK}={self._task}"

    def name(self, index: int) -> str:
        """The ConfigMap's name."""
        return f"{self._stem}-{index}"

    def labels(self, index: int) -> dict[str, str]:
        """What a shard is listed by, and whose it is."""
        return {
            names.LABEL_MANAGED_BY: names.MANAGED_BY,
            names.LABEL_TASK: self._task,
            names.LABEL_LEDGER: str(index),
        }

    def labelled(self, index: int, meta: WireMeta) -> bool:
        """Whether the shard is listed by `selector`, and under its index."""
        return self.index(meta) == index and (meta.labels or {}).get(names.LABEL_TASK) == self._task

    def ours(self, index: int, meta: WireMeta) -> bool:
        """Whether what has the name of a shard is one: by its labels, or else by its owner."""
        owned = any(owner.uid == self._task_uid for owner in meta.owner_references or ())
        return owned or self.labelled(index, meta)

    def index(self, meta: WireMeta) -> int | None:
        """The shard's index; None if it is not of this very task (another UID, another maker)."""
        text = (meta.labels or {}).get(names.LABEL_LEDGER, "")
        if meta.name != f"{self._stem}-{text}" or not (text.isascii() and text.isdigit()):
            return None
        return int(text)


def decode(index: int, item: WireConfigMap, *, stray: bool = False) -> Shard:
    """What a ConfigMap holds, entry by entry; what cannot be read is kept as such."""
    entries: dict[str, Entry] = {}
    corrupt: dict[str, str] = {}
    for name, text in (item.data or {}).items():
        entry = decode_entry(text)
        if isinstance(entry, Entry):
            entries[intern(name)] = entry  # one copy for all tasks
        else:
            corrupt[name] = entry
    meta = item.metadata
    marks = meta.annotations or {}
    writes, records = (_figure(marks.get(key, "")) for key in (names.LEDGER_WRITES, names.LEDGER_RECORDS))
    return Shard(index, meta.uid, meta.resource_version, entries, corrupt, stray, writes, records)


def figures(writes: int, records: int) -> dict[str, str]:
    """The annotations of a shard as this write leaves it."""
    return {names.LEDGER_WRITES: str(writes), names.LEDGER_RECORDS: str(records)}


def _figure(text: str) -> int:
    """0 where it was written by hand, and is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
