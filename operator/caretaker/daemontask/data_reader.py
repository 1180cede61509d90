"""Reads the ConfigMaps and Secrets of spec.dataRefs.

Inputs: a client, the task, the result of the last read. An object is read whole only where its metadata has
changed since. Its data is not kept, and of all objects a few are in memory at a time.

A watch of each object would be a connection for each. A read names its object: the verb get, on Secrets that
are named, is enough.
"""

import asyncio
import logging
import time
from collections.abc import Sized
from typing import Final, TypeVar

import msgspec

from caretaker.api.daemontask import DaemonTask, DataRef
from caretaker.api.objects import WireMeta
from caretaker.daemontask.bulk import Bulk
from caretaker.daemontask.referenced_data import (
    Content,
    DataCache,
    ReferencedData,
    data_part,
    digest_of,
    part_for,
)
from caretaker.kube.client import METADATA_ONLY, NESTED_TOO_DEEP, KubeClient
from caretaker.kube.errors import ApiError
from caretaker.kube.transport import JSON, Request
from caretaker.runtime.controller import Postponed
from caretaker.runtime.tasks import YieldingLock

logger = logging.getLogger(__name__)

DATA_SECONDS: Final = 30.0  # between two reads of a task
FRESH_SECONDS: Final = 1.0  # between two reads of one that starts runs
# For so long a pass may wait for the turn of the first read: no end of a run is recorded meanwhile.
TURN_SECONDS: Final = 30.0
# Bytes that count at least: of a read of one object, and of the hash.
READ: Final = 1024
HASH: Final = 16 * 1024
# Objects that are read whole at a time. One may have 3 MiB with its metadata. Decoded it may have 10 MiB: of
# these there is one at a time.
_WHOLE: Final = 8
_PLURALS: Final = {"ConfigMap": "configmaps", "Secret": "secrets"}
_WAITING: Final = "spec.dataRefs: not read yet: reads of data take turns in this namespace; wait"

Version = tuple[str, str]  # UID and resourceVersion


class _Meta(msgspec.Struct, frozen=True):
    metadata: WireMeta


class _Object(Content, frozen=True, kw_only=True):
    metadata: WireMeta


T = TypeVar("T", _Meta, _Object)


class DataUnavailableError(Exception):
    """An object does not exist, or, `denied`, may not be read. The text has its field and the remedy."""

    def __init__(self, text: str, *, denied: bool = False) -> None:
        super().__init__(text)
        self.denied = denied


class DataReader:
    """Reads the data of any task."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._whole = asyncio.Semaphore(_WHOLE)
        self._yielding = YieldingLock()  # 100,000 keys take 40 ms
        self._one_hash = asyncio.Lock()  # each takes 4 MiB

    async def read(self, task: DaemonTask, cache: DataCache, bulk: Bulk) -> ReferencedData:
        """The data of the task, DATA_SECONDS old at most, or older while its namespace has used up `bulk`.
        It is `cache.last`, too; its `fault` is the text of a DataUnavailableError, or that its turn is far.
        Raises Postponed where no data is known and the turn comes within TURN_SECONDS, and ApiError when the
        API server does not respond."""
        refs, now = task.spec.data_refs, time.monotonic()
        known = cache.last.refs == refs
        if not refs:
            cache.last, cache.turn = ReferencedData(), None
        if not refs or (known and now < cache.due):
            return cache.last
        if wait := self._wait(cache, len(refs) * READ + (0 if known else HASH), bulk, now):
            if not known and now + wait - cache.asked <= TURN_SECONDS:
                raise Postponed(wait)
            cache.last, cache.due = cache.last if known else _without(task, cache, _WAITING), now + wait
            return cache.last
        await self._update(task, cache, bulk, known=known)
        return cache.last

    async def is_current(self, task: DaemonTask, cache: DataCache, bulk: Bulk) -> bool:
        """Whether the data of a task whose data is known is as last read: FRESH_SECONDS ago at most, or as
        read() has it while its namespace has used up half of `bulk`. Raises ApiError as read() does."""
        now, before = time.monotonic(), cache.last
        if not task.spec.data_refs or now < cache.read + FRESH_SECONDS or not bulk.has_spare_data(now):
            return True
        bulk.take_data(len(task.spec.data_refs) * READ, now)
        await self._update(task, cache, bulk, known=True)
        return (cache.last.part, cache.last.fault) == (before.part, before.fault)

    async def fetch(self, task: DaemonTask, bulk: Bulk | None = None) -> ReferencedData:
        """The data of the task now. Raises DataUnavailableError, and ApiError as read() does."""
        found = [await self._digest(task, place, bulk) for place in range(len(task.spec.data_refs))]
        async with self._one_hash:
            digests = [digest for _, digest in found]
            part = await asyncio.to_thread(part_for, task.metadata.uid, task.spec.data_refs, digests)
        return ReferencedData(task.spec.data_refs, tuple(version for version, _ in found), part)

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
            cache.asked, cache.turn = now, now + bulk.take_data(size, now)
        elif now >= cache.turn:
            cache.turn = now + bulk.take_data(0, now)
        return max(cache.turn - now, 0.0)

    async def _update(self, task: DaemonTask, cache: DataCache, bulk: Bulk, *, known: bool) -> None:
        now = time.monotonic()
        try:
            await self._refresh(task, cache, bulk, known=known)
        except DataUnavailableError as error:
            cache.last = _without(task, cache, str(error))
        cache.read, cache.due, cache.turn = now, now + DATA_SECONDS, None

    async def _refresh(self, task: DaemonTask, cache: DataCache, bulk: Bulk, *, known: bool) -> None:
        """Bring cache.last up to date. Data that is known outlasts an error of one object: a Secret whose
        key of encryption is out of reach, say."""
        try:
            versions = await self._versions(task, bulk) if known else ()
            if known and not cache.last.fault and cache.last.versions == versions:
                return
            if known:
                bulk.take_data(HASH, time.monotonic())
            cache.last = await self.fetch(task, bulk)
        except _UnreadableError as error:
            if not known or cache.last.fault:
                raise
            logger.warning("the data as last read is used: %s", error)

    async def _versions(self, task: DaemonTask, bulk: Bulk) -> tuple[Version, ...]:
        """Of the objects of a task whose data is known."""
        places = range(len(task.spec.data_refs))
        return tuple(
            [_version(_decoded(await self._get(task, place, METADATA_ONLY, bulk), _Meta)) for place in places]
        )

    async def _digest(self, task: DaemonTask, place: int, bulk: Bulk | None) -> tuple[Version, bytes]:
        """(the version of the object, a digest of its data)."""
        async with self._whole:
            answer = await self._get(task, place, JSON, bulk)
            async with self._yielding:
                found = _decoded(answer, _Object)
                return _version(found), digest_of(found)

    async def _get(self, task: DaemonTask, place: int, accept: str, bulk: Bulk | None) -> bytes:
        ref, namespace = task.spec.data_refs[place], task.metadata.namespace
        field = f"spec.dataRefs[{place}]: {ref.kind} {ref.name}"
        path = f"/api/v1/namespaces/{namespace}/{_PLURALS[ref.kind]}/{ref.name}"
        try:
            answer = await self._client.call(Request("get", path, accept=accept))
        except ApiError as error:
            raise _reason(error, field, ref, namespace) from error
        if bulk is not None:  # a read has taken READ bytes before it began
            bulk.take_data(max(len(answer) - READ, 0), time.monotonic())
        return answer


class _UnreadableError(DataUnavailableError):
    """The API server responds, but not with this object."""


def _decoded(answer: bytes, wanted: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=wanted)
    except RecursionError:  # as in KubeClient
        raise ApiError(200, NESTED_TOO_DEEP, "it nests deeper than this Python can read") from None


def _reason(error: ApiError, field: str, ref: DataRef, namespace: str) -> Exception:
    """What to raise for it. The text quotes no message: one may have more than the author may read."""
    if error.not_found:
        return DataUnavailableError(f"{field} does not exist in namespace {namespace}; create it")
    if error.forbidden:
        return DataUnavailableError(f"{field}: {_remedy(ref)}", denied=True)
    if error.status == 500:  # that of one object: of the whole server a timeout, 429 and 503 are
        return _UnreadableError(f"{field}: the API server cannot read it, HTTP 500; see its log")
    return error


def _remedy(ref: DataRef) -> str:
    place = (
        "add it to the chart's value dataSecrets" if ref.kind == "Secret" else "give its role the verb get"
    )
    return f"the operator may not get it; {place}"


def _without(task: DaemonTask, cache: DataCache, fault: str) -> ReferencedData:
    """No data now: the part is that of the last data."""
    part = cache.last.part or data_part(task.status.current_revision)
    return ReferencedData(task.spec.data_refs, (), part, fault)


def _version(found: _Meta | _Object) -> Version:
    return found.metadata.uid, found.metadata.resource_version
