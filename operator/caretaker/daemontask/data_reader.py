"""Reads the ConfigMaps and Secrets of spec.dataRefs.

Inputs: a client, the task, the result of the last read. An object is read whole only where its metadata has
changed since. Its data is not kept.

A watch of each object would be a connection for each. A read names its object: the verb get, on Secrets that
are named, is enough.
"""

import asyncio
import time
from collections.abc import Iterable, Sized
from typing import Final, TypeVar

from caretaker.api.daemontask import DaemonTask, DataRef
from caretaker.api.objects import WireMeta
from caretaker.daemontask.bulk import Bulk
from caretaker.daemontask.referenced_data import (
    Content,
    DataCache,
    ReferencedData,
    data_part,
    part_for,
    size_of,
)
from caretaker.kube.client import KubeClient, PartialObjectMetadata
from caretaker.kube.errors import ApiError
from caretaker.runtime.controller import Postponed

DATA_SECONDS: Final = 30.0  # between two reads of a task
# Bytes that count beside those of the data: of a read of one object, and of the hash.
READ: Final = 1024
HASH: Final = 16 * 1024
_PLURALS: Final = {"ConfigMap": "configmaps", "Secret": "secrets"}

T = TypeVar("T")


class _Object(Content, frozen=True, kw_only=True):
    metadata: WireMeta


class DataUnavailableError(Exception):
    """An object does not exist, or, `denied`, may not be read. The text has its field and the remedy."""

    def __init__(self, text: str, *, denied: bool) -> None:
        super().__init__(text)
        self.denied = denied


class DataReader:
    """Reads the data of any task."""

    def __init__(self, client: KubeClient, scale: float = 1.0) -> None:
        self._client = client
        self._seconds = DATA_SECONDS * scale
        self._one_hash = asyncio.Lock()  # each takes 4 MiB

    async def read(self, task: DaemonTask, cache: DataCache, bulk: Bulk) -> ReferencedData:
        """The data of the task, DATA_SECONDS old at most, or older while its namespace has used up `bulk`.
        The `fault` is the text of a DataUnavailableError. Raises Postponed where no data is known and the
        task has to wait for its turn, and ApiError when the API server does not respond."""
        refs, last, now = task.spec.data_refs, cache.last, time.monotonic()
        known = last.refs == refs
        if not refs or (known and now < cache.due):
            return last if refs else ReferencedData()
        if wait := self._wait(cache, len(refs) * READ + (0 if known else HASH), bulk, now):
            if not known:
                raise Postponed(wait)
            cache.due = now + wait
            return last
        try:
            changed = known and (bool(last.fault) or last.versions != await self._versions(task))
            if changed or not known:
                bulk.take_data(HASH if changed else 0, now)
                last = await self.fetch(task, bulk)
        except DataUnavailableError as error:
            part = last.part or data_part(task.status.current_revision)
            last = ReferencedData(refs, (), part, str(error))
        cache.last, cache.due, cache.turn = last, now + self._seconds, None
        return last

    async def fetch(self, task: DaemonTask, bulk: Bulk | None = None) -> ReferencedData:
        """The data of the task now. Raises DataUnavailableError, and ApiError as read() does."""
        refs = task.spec.data_refs
        found = [await self._get(task, place, _Object) for place in range(len(refs))]
        if bulk is not None:
            bulk.take_data(size_of(found), time.monotonic())
        async with self._one_hash:
            part = await asyncio.to_thread(part_for, task.metadata.uid, refs, found)
        return ReferencedData(refs, _versions_of(one.metadata for one in found), part)

    def sooner(self, refs: Sized, cache: DataCache, delay: float | None) -> float | None:
        """Seconds until the next pass: `delay`, or until the data is to be read again. None: no such time."""
        if not refs:
            return delay
        due = max(cache.due - time.monotonic(), 0.0)
        return due if delay is None else min(due, delay)

    def _wait(self, cache: DataCache, size: int, bulk: Bulk, now: float) -> float:
        """Seconds until the read may begin; 0 = it begins. Tasks that ask first begin first; after one that
        has read much all wait."""
        if cache.turn is None:
            cache.turn = now + bulk.take_data(size, now)
        elif now >= cache.turn:
            cache.turn = now + bulk.take_data(0, now)
        return max(cache.turn - now, 0.0)

    async def _versions(self, task: DaemonTask) -> tuple[tuple[str, str], ...]:
        count = len(task.spec.data_refs)
        found = [await self._get(task, place, PartialObjectMetadata) for place in range(count)]
        return _versions_of(one.metadata for one in found)

    async def _get(self, task: DaemonTask, place: int, wanted: type[T]) -> T:
        ref, namespace = task.spec.data_refs[place], task.metadata.namespace
        try:
            path = f"/api/v1/namespaces/{namespace}/{_PLURALS[ref.kind]}/{ref.name}"
            return await self._client.get(path, wanted)
        except ApiError as error:
            field = f"spec.dataRefs[{place}]: {ref.kind} {ref.name}"
            if error.not_found:
                words = f"{field} does not exist in namespace {namespace}; create it"
                raise DataUnavailableError(words, denied=False) from error
            if not error.forbidden:
                raise
            raise DataUnavailableError(f"{field}: {_remedy(ref)}", denied=True) from error


def _remedy(ref: DataRef) -> str:
    place = (
        "add it to the chart's value dataSecrets" if ref.kind == "Secret" else "give its role the verb get"
    )
    return f"the operator may not get it; {place}"


def _versions_of(found: Iterable[WireMeta]) -> tuple[tuple[str, str], ...]:
    return tuple((meta.uid, meta.resource_version) for meta in found)
