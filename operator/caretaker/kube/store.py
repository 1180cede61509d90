"""The objects of one resource, from list, watch and our own writes.

Inputs: list entries and watch events (from a Reflector), responses to our own writes (from the writers).
It must not do I/O, and never goes back in time: objects older than the stored ones are ignored, so that a
plan always sees our own last writes.

resourceVersions of one resource are compared as integers (Kubernetes 1.35 made that part of the API,
KEP-5504). `version` is the resourceVersion up to which list and watch are complete: list, then watch from
there, never both at a time.

                      own write (rv 9)                     own delete (rv 12)
                            |                                    |
    list (rv 5) ... watch: 6  7  8  [9: echo, ignored]  10  [11: of the dead uid, ignored]  [12: confirms]
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, ValuesView
from types import MappingProxyType
from typing import Generic, NamedTuple, Protocol, TypeVar

from caretaker.api.objects import Pod

Key = tuple[str, str]  # (namespace, name); the namespace of a cluster-scoped record is ""
Owner = tuple[str, str]  # (namespace, UID)


class Record(Protocol):
    """The attributes of every record; a namespaced one has `namespace` too."""

    @property
    def name(self) -> str:
        """metadata.name."""
        ...

    @property
    def uid(self) -> str:
        """metadata.uid."""
        ...


R = TypeVar("R", bound=Record)
Subscriber = Callable[[R | None, R | None], None]


class _Tombstone(NamedTuple):
    version: int  # of the deletion; 0 = not known
    lists: int  # lists that had been taken before it


def key_of(record: Record) -> Key:
    """The key of a record in the Store."""
    return (getattr(record, "namespace", ""), record.name)


class Store(Generic[R]):
    """The current records of one resource.

    synced        set once a first list is in
    version       resourceVersion up to which list and watch are complete
    last_contact  time of the server's last response or event, on the monotonic clock
    records       read-only view, (namespace, name) -> record
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.synced = asyncio.Event()
        self.version = 0
        self._clock = clock
        self.last_contact = clock()
        self._records: dict[Key, R] = {}
        self._versions: dict[Key, int] = {}
        self.records: Mapping[Key, R] = MappingProxyType(self._records)
        # Our writes that no event or list has confirmed yet.
        self._unconfirmed: dict[Key, int] = {}
        # Deleted objects whose DELETED event has not arrived yet, by uid.
        self._tombstones: dict[str, _Tombstone] = {}
        self._lists = 0
        self._subscribers: list[Subscriber[R]] = []

    # ------------------------------------------------------------------ reads

    def get(self, namespace: str, name: str) -> R | None:
        """The record, or None."""
        return self._records.get((namespace, name))

    def values(self) -> ValuesView[R]:
        """All records, live."""
        return self._records.values()

    def __len__(self) -> int:
        return len(self._records)

    def version_of(self, key: Key) -> int:
        """The resourceVersion of the record as held; 0 when there is none."""
        return self._versions.get(key, 0)

    def subscribe(self, callback: Subscriber[R]) -> None:
        """Have `callback(old, new)` called at every change, synchronously, after it is in `records`.

        old None = new object, new None = deleted. A name that another object (uid) takes over is reported
        as deleted, then as new. A subscriber must be quick and must not raise.
        """
        self._subscribers.append(callback)

    # ------------------------------------------------- from the list and the watch

    def touch(self) -> None:
        """Note that the server responded."""
        self.last_contact = self._clock()

    def passed(self, version: int) -> None:
        """Note that the watch is complete up to `version` (a bookmark, or any event)."""
        self.version = max(self.version, version)
        while self._tombstones:
            uid, tombstone = next(iter(self._tombstones.items()))
            if not 0 < tombstone.version <= version:
                break
            del self._tombstones[uid]

    def apply(self, record: R, version: int) -> None:
        """An ADDED or MODIFIED event."""
        self.passed(version)
        key = key_of(record)
        held = self._versions.get(key, 0)
        if version < held or record.uid in self._tombstones:
            return
        self._unconfirmed.pop(key, None)
        if version > held:
            self._put(key, record, version)

    def remove(self, key: Key, uid: str, version: int) -> None:
        """A DELETED event; `version` is that of the deletion."""
        self.passed(version)
        self._tombstones.pop(uid, None)
        if self._versions.get(key, version) <= version:
            self._drop(key)

    def replace_all(self, items: Iterable[tuple[R, int]], version: int) -> None:
        """A complete list and its resourceVersion. Missing records were deleted: subscribers are called."""
        if version < self.version:
            # A consistent list is never older than the watch's events, unless etcd was restored
            # from a backup: then every version held here is from a history that never happened.
            self._unconfirmed.clear()
            self._tombstones.clear()
        self.version = version
        self._lists += 1
        self._tombstones = {
            uid: tombstone for uid, tombstone in self._tombstones.items() if self._keeps(tombstone)
        }
        listed = set()
        for record, its_version in items:
            key = key_of(record)
            listed.add(key)
            if record.uid in self._tombstones or its_version < self._unconfirmed.get(key, 0):
                continue
            self._unconfirmed.pop(key, None)
            self._put(key, record, its_version)
        for key in [key for key in self._records if key not in listed]:
            # Created by us after the list was taken: the watch will deliver it.
            if self._unconfirmed.get(key, 0) <= version:
                self._drop(key)
        self.touch()
        self.synced.set()

    def _keeps(self, tombstone: _Tombstone) -> bool:
        # The list in progress at the deletion may still contain the object; the next one cannot.
        return tombstone.version > self.version if tombstone.version else self._lists < tombstone.lists + 2

    # ------------------------------------------------------- from our own writes

    def observe_write(self, record: R, version: int) -> None:
        """The server's response to our own create or patch: visible from now on.

        Ignored when the watch is already past it: the object was changed or deleted since.
        """
        key = key_of(record)
        if version <= max(self.version, self._versions.get(key, 0)) or record.uid in self._tombstones:
            return
        self._put(key, record, version)
        self._unconfirmed[key] = version

    def observe_delete(self, key: Key, uid: str, version: int = 0) -> None:
        """Our own delete succeeded and the object is gone: no older event or list brings it back.

        version: resourceVersion of the object in the answer (that of the deletion), 0 when the answer was
        a bare Status. An answer whose object still terminates (deletionGracePeriodSeconds above 0, or
        finalizers) belongs to observe_write().
        """
        held = self._records.get(key)
        if version and version <= self.version:
            return
        if held is None or held.uid != uid:
            if version:
                self._tombstones[uid] = _Tombstone(version, self._lists)
            return
        self._tombstones[uid] = _Tombstone(version, self._lists)
        self._drop(key)

    # ---------------------------------------------------------------- changes

    def _put(self, key: Key, record: R, version: int) -> None:
        old = self._records.get(key)
        self._versions[key] = version
        if old is not None and old.uid != record.uid:
            # Its successor proves the deletion before the DELETED event arrives.
            self._tombstones[old.uid] = _Tombstone(version, self._lists)
            self._drop(key)
            self._versions[key] = version
            old = None
        if old == record:
            return
        self._records[key] = record
        for subscriber in self._subscribers:
            subscriber(old, record)

    def _drop(self, key: Key) -> None:
        self._unconfirmed.pop(key, None)
        self._versions.pop(key, None)
        old = self._records.pop(key, None)
        if old is not None:
            for subscriber in self._subscribers:
                subscriber(old, None)


class PodIndex:
    """The Pods of each owner by the node they were created for, kept up to date event by event.

    A planning pass reads its task's Pods here, and no other Pods. The key of an owner is its namespace and
    UID: an owner reference never leads out of a namespace, even if a Pod elsewhere has the UID.
    """

    def __init__(self, store: Store[Pod]) -> None:
        self._owners: dict[Owner, dict[str, dict[str, Pod]]] = {}
        for pod in store.values():
            self._changed(None, pod)
        store.subscribe(self._changed)

    def pods_of(self, namespace: str, owner_uid: str) -> Mapping[str, Mapping[str, Pod]]:
        """Node UID -> Pod name -> Pod, of the Pods that the owner controls. A live view: do not keep it."""
        return self._owners.get((namespace, owner_uid), {})

    def owners(self) -> Iterable[Owner]:
        """(namespace, UID) of all owners of Pods."""
        return self._owners.keys()

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        place = None if new is None else (new.owner_uid, new.node_uid)
        if old is not None and (old.owner_uid, old.node_uid) != place:
            self._forget(old)
        if new is not None and new.owner_uid:
            nodes = self._owners.setdefault((new.namespace, new.owner_uid), {})
            nodes.setdefault(new.node_uid, {})[new.name] = new

    def _forget(self, pod: Pod) -> None:
        owner = (pod.namespace, pod.owner_uid)
        nodes = self._owners.get(owner, {})
        pods = nodes.get(pod.node_uid, {})
        if pods.pop(pod.name, None) is None:
            return
        if not pods:
            del nodes[pod.node_uid]
        if not nodes:
            del self._owners[owner]
