"""Reads of spec.dataRefs: their requests, their pace, and the fault of an object that cannot be read."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from caretaker.api.daemontask import DaemonTask, DataRef, Status
from caretaker.daemontask import data_reader
from caretaker.daemontask.bulk import BYTES, Bulk
from caretaker.daemontask.data_reader import DataReader
from caretaker.daemontask.referenced_data import DataCache, ReferencedData
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.runtime.controller import Postponed
from fakes.answers import failure
from fakes.apiserver import FakeApiServer, answer, refusing
from unit.daemontask.build import task

MAPS, SECRETS = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/secrets"
MAP, SECRET = DataRef("ConfigMap", "sysctl"), DataRef("Secret", "token")
DENIED = (
    'secrets "token" is forbidden: User "system:serviceaccount:caretaker-system:caretaker" cannot get '
    'resource "secrets" in API group "" in the namespace "default"'
)


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def client(api: FakeApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(api.kubeconfig(tmp_path)) as made:
        yield made


@pytest.fixture
def reader(client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> DataReader:
    """One that reads again at each call."""
    monkeypatch.setattr(data_reader, "DATA_SECONDS", 0.0)
    return DataReader(client)


def serve(api: FakeApiServer, place: str, version: str, note: str = "", **data: str) -> None:
    meta = {"name": place.rsplit("/", 1)[1], "uid": f"uid-{place}", "resourceVersion": version}
    meta |= {"annotations": {"note": note}}

    async def get(request: web.Request) -> web.StreamResponse:
        whole: dict[str, Any] = {} if "PartialObjectMetadata" in request.headers["Accept"] else {"data": data}
        return answer({"metadata": meta, **whole})

    api.on("GET", place, get)


def refers(*refs: DataRef, revision: str = "") -> DaemonTask:
    return task(rerun_on=("ReferencedDataChange",), data_refs=refs, status=Status(current_revision=revision))


def asked(api: FakeApiServer) -> list[tuple[str, bool]]:
    """(name, whether it was read whole) of each request since the last call."""
    found = [
        (one.path.rsplit("/", 1)[1], "PartialObjectMetadata" not in one.headers["Accept"])
        for one in api.requests
    ]
    api.requests.clear()
    return found


def full() -> Bulk:
    return Bulk(time.monotonic())


async def test_an_object_is_read_whole_only_after_its_metadata_has_changed(
    api: FakeApiServer, reader: DataReader
) -> None:
    cache, bulk, of = DataCache(), full(), refers(MAP, SECRET)
    serve(api, f"{MAPS}/sysctl", "1", a="b")
    serve(api, f"{SECRETS}/token", "2", t="eA==")
    first = await reader.read(of, cache, bulk)
    assert asked(api) == [("sysctl", True), ("token", True)]
    assert await reader.read(of, cache, bulk) == first
    assert asked(api) == [("sysctl", False), ("token", False)]
    serve(api, f"{MAPS}/sysctl", "3", a="b")
    labelled = await reader.read(of, cache, bulk)
    assert asked(api)[2:] == [("sysctl", True), ("token", True)]
    assert (labelled.part, labelled.versions != first.versions) == (first.part, True)
    serve(api, f"{MAPS}/sysctl", "4", a="c")
    assert (await reader.read(of, cache, bulk)).part != first.part


async def test_before_a_start_the_metadata_is_read_again_while_half_of_the_bytes_are_left(
    api: FakeApiServer, reader: DataReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, bulk, of = DataCache(), full(), refers(MAP)
    serve(api, f"{MAPS}/sysctl", "1", a="b")
    monkeypatch.setattr(data_reader, "FRESH_SECONDS", 600.0)
    await reader.read(of, cache, bulk)
    assert await reader.is_current(of, cache, bulk)
    assert asked(api) == [("sysctl", True)], "it has just been read"
    monkeypatch.setattr(data_reader, "FRESH_SECONDS", 0.0)
    assert await reader.is_current(of, cache, bulk)
    assert asked(api) == [("sysctl", False)]
    bulk.take_data(100 * BYTES.burst, time.monotonic())
    serve(api, f"{MAPS}/sysctl", "2", a="c")
    assert await reader.is_current(of, cache, bulk)
    assert asked(api) == []
    assert not await reader.is_current(of, cache, full())
    assert await reader.is_current(of, cache, full()), "the plan has been made anew"


async def test_a_read_before_a_start_counts(
    api: FakeApiServer, reader: DataReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, bulk, of = DataCache(), full(), refers(MAP)
    serve(api, f"{MAPS}/sysctl", "1", a="b")
    await reader.read(of, cache, bulk)
    monkeypatch.setattr(data_reader, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(data_reader, "READ", 100 * BYTES.burst)
    bulk = full()
    assert await reader.is_current(of, cache, bulk)
    assert not bulk.has_spare_data(time.monotonic())


async def test_before_a_start_an_object_that_is_gone_is_a_fault_and_one_that_cannot_be_read_is_none(
    api: FakeApiServer, reader: DataReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_reader, "FRESH_SECONDS", 0.0)
    cache, bulk, of = DataCache(), full(), refers(MAP)
    serve(api, f"{MAPS}/sysctl", "1", a="b")
    await reader.read(of, cache, bulk)
    api.on("GET", f"{MAPS}/sysctl", refusing(failure(500, "InternalError", "no key")))
    assert await reader.is_current(of, cache, bulk)
    api.on("GET", f"{MAPS}/sysctl", refusing(failure(404, "NotFound", "not found")))
    assert not await reader.is_current(of, cache, bulk)
    assert "does not exist" in cache.last.fault


async def test_for_a_while_nothing_is_read_again(api: FakeApiServer, client: KubeClient) -> None:
    reader, cache, of = DataReader(client), DataCache(), refers(MAP)
    serve(api, f"{MAPS}/sysctl", "1")
    first = await reader.read(of, cache, full())
    assert await reader.read(of, cache, full()) == first
    assert asked(api) == [("sysctl", True)]
    assert 29 < (reader.sooner(of.spec.data_refs, cache, None) or 0) <= 30
    assert reader.sooner(of.spec.data_refs, cache, 5.0) == 5.0
    assert reader.sooner((), cache, None) is None


@pytest.mark.parametrize(
    ("refusal", "fault"),
    [
        (
            failure(404, "NotFound", 'secrets "token" not found'),
            "spec.dataRefs[1]: Secret token does not exist in namespace default; create it",
        ),
        (
            failure(403, "Forbidden", DENIED),
            "spec.dataRefs[1]: Secret token: the operator may not get it; add it to the chart's value "
            "dataSecrets",
        ),
    ],
)
async def test_an_object_that_cannot_be_read_is_a_fault_and_the_part_is_kept(
    api: FakeApiServer, reader: DataReader, refusal: dict[str, Any], fault: str
) -> None:
    cache, bulk = DataCache(), full()
    serve(api, f"{MAPS}/sysctl", "1", a="b")
    api.on("GET", f"{SECRETS}/token", refusing(refusal))
    unread = await reader.read(refers(MAP, SECRET, revision="t-before"), cache, bulk)
    assert (unread.part, unread.fault) == ("before", fault)
    serve(api, f"{SECRETS}/token", "1", t="eA==")
    found = await reader.read(refers(MAP, SECRET), cache, bulk)
    assert (bool(found.part), found.fault) == (True, "")
    api.on("GET", f"{SECRETS}/token", refusing(refusal))
    gone = await reader.read(refers(MAP, SECRET), cache, bulk)
    assert (gone.part, gone.fault) == (found.part, fault)


@pytest.mark.parametrize("status", [429, 503, 504])
async def test_an_api_server_that_fails_says_nothing_of_the_data(
    api: FakeApiServer, reader: DataReader, status: int
) -> None:
    cache, bulk, of = DataCache(), full(), refers(MAP)
    serve(api, f"{MAPS}/sysctl", "1", a="b")
    first = await reader.read(of, cache, bulk)
    api.on("GET", f"{MAPS}/sysctl", refusing(failure(status, "Any", "etcd")))
    with pytest.raises(ApiError):
        await reader.read(of, cache, bulk)
    assert cache.last == first


async def test_an_object_that_the_api_server_cannot_read_ends_no_pass(
    api: FakeApiServer, reader: DataReader
) -> None:
    """A Secret whose key of encryption is gone has HTTP 500 for ever: active runs still end."""
    cache, bulk, of = DataCache(), full(), refers(SECRET)
    api.on("GET", f"{SECRETS}/token", refusing(failure(500, "InternalError", "no key for hunter2")))
    unread = await reader.read(of, cache, bulk)
    assert unread.fault == (
        "spec.dataRefs[0]: Secret token: the API server cannot read it, HTTP 500; see its log"
    )
    serve(api, f"{SECRETS}/token", "1", t="eA==")
    first = await reader.read(of, cache, bulk)
    assert (bool(first.part), first.fault) == (True, "")
    api.on("GET", f"{SECRETS}/token", refusing(failure(500, "InternalError", "etcd")))
    assert await reader.read(of, cache, bulk) == first


async def test_without_the_field_nothing_is_left_of_the_data(api: FakeApiServer, reader: DataReader) -> None:
    """A fault that outlived the field would hold all starts, and its time would be due for ever."""
    cache = DataCache()
    api.on("GET", f"{MAPS}/sysctl", refusing(failure(404, "NotFound", "not found")))
    assert (await reader.read(refers(MAP), cache, full())).fault
    assert await reader.read(refers(), cache, full()) == ReferencedData()
    assert cache.last == ReferencedData()


async def test_all_that_is_read_counts_even_if_another_object_is_missing(
    api: FakeApiServer, reader: DataReader
) -> None:
    cache, bulk, of = DataCache(), full(), refers(SECRET, MAP)
    serve(api, f"{SECRETS}/token", "1", t="x" * 1024 * 1024)
    api.on("GET", f"{MAPS}/sysctl", refusing(failure(404, "NotFound", "not found")))
    assert (await reader.read(of, cache, bulk)).fault
    assert 5 < bulk.take_data(0, time.monotonic()) < 8
    asked(api)
    assert (await reader.read(of, cache, full())).fault
    assert asked(api) == [("token", False), ("sysctl", False)], "no object is read whole in vain"


async def test_metadata_counts_by_its_size(api: FakeApiServer, reader: DataReader) -> None:
    cache, bulk, of = DataCache(), full(), refers(MAP)
    serve(api, f"{MAPS}/sysctl", "1", a="b")
    await reader.read(of, cache, full())
    serve(api, f"{MAPS}/sysctl", "1", note="x" * 1024 * 1024)
    await reader.read(of, cache, bulk)
    assert 5 < bulk.take_data(0, time.monotonic()) < 8


async def test_a_turn_that_is_far_holds_starts_and_no_pass(api: FakeApiServer, reader: DataReader) -> None:
    """Ends of runs are recorded meanwhile, and edits are seen."""
    cache, bulk, of = DataCache(), full(), refers(MAP, revision="t-was")
    serve(api, f"{MAPS}/sysctl", "1", a="b")
    bulk.take_data(64 * 1024 * 1024, time.monotonic())
    waits = await reader.read(of, cache, bulk)
    assert (waits.part, waits.fault) == (
        "was",
        "spec.dataRefs: not read yet: reads of data take turns in this namespace; wait",
    )
    assert cache.last == waits
    assert (reader.sooner(of.spec.data_refs, cache, None) or 0) > 100
    assert asked(api) == []
    cache.due, cache.turn = 0.0, None
    assert not (await reader.read(of, cache, full())).fault


async def test_the_tasks_of_a_namespace_take_turns(api: FakeApiServer, reader: DataReader) -> None:
    """One with much data makes the others wait; their data as last read is used meanwhile."""
    bulk = full()
    serve(api, f"{MAPS}/sysctl", "1", a="b")
    serve(api, f"{SECRETS}/token", "1", t="x" * 1024 * 1024)
    known, large, fresh = DataCache(), DataCache(), DataCache()
    before = await reader.read(refers(MAP), known, bulk)
    await reader.read(refers(SECRET), large, bulk)
    asked(api)
    with pytest.raises(Postponed) as postponed:
        await reader.read(refers(MAP), fresh, bulk)
    assert 5 < postponed.value.seconds < 8, "1 MiB less the burst of 256 KiB, at 128 KiB a second"
    assert await reader.read(refers(MAP), known, bulk) == before
    assert asked(api) == []
    other = await reader.read(refers(MAP), DataCache(), full())
    assert other.part == before.part, "another namespace has an allowance of its own"


async def test_many_tasks_that_are_new_begin_in_order_without_a_crowd(
    api: FakeApiServer, reader: DataReader
) -> None:
    bulk = full()
    serve(api, f"{MAPS}/sysctl", "1", a="b")
    waits, began = [], time.monotonic()
    for _ in range(40):
        try:
            await reader.read(refers(MAP), DataCache(), bulk)
            waits.append(0.0)
        except Postponed as postponed:
            waits.append(postponed.seconds)
    refilled = (time.monotonic() - began) * 128 / 17  # each takes 17 KiB
    assert 5 <= waits.count(0.0) <= 16 + refilled
    late = [wait for wait in waits if wait]
    assert late == sorted(late)
    assert len({round(wait, 2) for wait in late}) == len(late)


async def test_each_read_counts_and_a_hash_16_times_as_much(
    api: FakeApiServer, reader: DataReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two objects: 2 KiB at rest. Labels that change for ever cost a hash each time."""
    monkeypatch.setattr(data_reader, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    cache, of = DataCache(), refers(MAP, SECRET)
    serve(api, f"{SECRETS}/token", "1")
    for version, kib in (("1", 18), ("1", 2), ("1", 2), ("2", 18), ("2", 2)):
        serve(api, f"{MAPS}/sysctl", version)
        bulk = Bulk(1000.0)
        await reader.read(of, cache, bulk)
        assert bulk.take_data(256 * 1024, 1000.0) * 128 == pytest.approx(kib)
