"""What the ledger asks of the API server when it reads, and what plans see of it."""

import tracemalloc

import msgspec
import pytest

from caretaker.api.daemontask import LedgerStatus
from caretaker.api.objects import WireMeta
from caretaker.daemontask.ledger import SHARD_NODES, encode_entry
from caretaker.daemontask.shard import WireConfigMap
from caretaker.daemontask.shards import Shards
from caretaker.kube.client import PartialObjectMetadata
from caretaker.kube.errors import ApiError
from simulation.daemontask.cluster import CONFIGMAPS, TASK, TASK_UID
from simulation.daemontask.ledger import (
    ALL,
    MARKS,
    SELECTOR,
    UNREPORTED,
    Server,
    requests,
    some,
    write,
)
from unit.daemontask.build import NOW


async def test_what_only_has_the_labels_is_not_kept(server: Server, shards: Shards) -> None:
    """Each may have 1 MiB, and each author of ConfigMaps in the namespace may make thousands."""
    await shards.load(NOW)
    each = server.sent[2]["each"]
    for name, kept in ((MARKS.name(0), True), ("other", False), (MARKS.name(1), False)):
        one = WireConfigMap(WireMeta(name=name, labels=MARKS.labels(0)), {"a": "x"})
        assert each(one) is (one if kept else None)
    marks = WireMeta(name=MARKS.name(0), labels=MARKS.labels(0))
    many = WireConfigMap(marks, dict.fromkeys(map(str, range(9999)), "x"))
    assert len(each(many).data) == SHARD_NODES + 1


async def test_the_requests_in_full(server: Server, shards: Shards) -> None:
    path = f"{CONFIGMAPS}/{MARKS.name(0)}"
    a, b = (encode_entry(ALL[name]) for name in "ab")
    await shards.load(NOW)
    assert server.sent == (
        CONFIGMAPS,
        WireConfigMap,
        {"each": shards._ours, "params": {"labelSelector": SELECTOR}, "page": 4},
    )
    await shards.load(NOW, 1)
    assert server.sent == (path, WireConfigMap, {})
    await shards.write(some("a"), ())
    meta = {
        "name": MARKS.name(0),
        "labels": MARKS.labels(0),
        "annotations": {"caretaker.dev/ledger-writes": "1", "caretaker.dev/ledger-records": "1"},
        "ownerReferences": [
            {
                "apiVersion": "caretaker.dev/v1alpha1",
                "kind": "DaemonTask",
                "name": TASK,
                "uid": TASK_UID,
                "controller": True,
            }
        ],
    }
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": a}}
    assert server.sent == (CONFIGMAPS, body, PartialObjectMetadata, {"timeout": 5.0})
    made = server.cluster.configmaps[MARKS.name(0)].metadata
    await shards.write(some("b"), ["a"])
    meta = {
        "uid": made.uid,
        "resourceVersion": made.resource_version,
        "annotations": {"caretaker.dev/ledger-writes": "2", "caretaker.dev/ledger-records": "1"},
    }
    assert server.sent == (
        path,
        {"metadata": meta, "data": {"b": b, "a": None}},
        PartialObjectMetadata,
        {"timeout": 5.0},
    )
    assert await shards.current([])
    assert server.sent[1:] == (PartialObjectMetadata, {})


async def test_shards_that_are_not_listed_are_read_by_name(server: Server, shards: Shards) -> None:
    server.hold(0, "a").hold(1, "b", labels=None).hold(3, "d", labels=None)
    await shards.load(NOW, 3)
    assert requests(server) == ["list", "get 1", "get 2"]
    assert (shards.loaded, shards.count, sorted(shards.node_names)) == (True, 2, ["a", "b"])
    await shards.load(NOW)
    assert requests(server) == ["list", "get 1"], "it is known now"
    await shards.load(NOW, 1000)
    assert len(requests(server)) == 64
    assert shards.count == 3


async def test_a_shard_that_is_made_between_list_and_read_has_its_labels(
    server: Server, shards: Shards
) -> None:
    """Whose it is shows by either labels or owner."""
    server.hold(0, "a", owner_references=None).hold(1, "b").unlisted = (MARKS.name(0), MARKS.name(1))
    await shards.load(NOW, 2)
    assert (shards.count, shards.unmarked) == (2, False)
    server.hold(2, "c", owner_references=None)
    assert not await shards.current("")


async def test_config_maps_that_are_no_shard_are_none(server: Server, shards: Shards) -> None:
    server.hold(0, "a")
    stranger = WireMeta(name="other", labels=MARKS.labels(1))
    server.cluster.configmaps["other"] = WireConfigMap(stranger, {"b": encode_entry(ALL["b"])})
    await shards.load(NOW)
    assert (shards.count, shards.node_names) == (1, {"a"})


async def test_a_shard_that_cannot_be_read_leaves_the_ledger_unread(server: Server, shards: Shards) -> None:
    server.failure = ApiError(500, "InternalError")
    with pytest.raises(ApiError):
        await shards.load(NOW, 1)
    assert not shards.loaded


LOOKS = {
    "the shards of these nodes and the next": ("ac", {}, ["get 0", "get 2", "get 3"], True),
    "all for a node without an entry": ("x", {}, ["get 0", "get 1", "get 2", "get 3"], True),
    "the next alone": ("", {}, ["get 3"], True),
    "a shard was written": ("a", {"resource_version": "7"}, ["get 0", "get 3"], False),
    "a shard was replaced": ("a", {"uid": "other"}, ["get 0", "get 3"], False),
    "another shard was written": ("b", {"resource_version": "7"}, ["get 1", "get 3"], True),
}


@pytest.mark.parametrize(("nodes", "change", "asked", "same"), LOOKS.values(), ids=LOOKS)
async def test_the_last_look_is_at_the_shards_that_matter(
    server: Server, shards: Shards, nodes: str, change: dict[str, str], asked: list[str], same: bool
) -> None:
    server.hold(0, "a").hold(1, "b").hold(2, "c")
    await shards.load(NOW)
    requests(server)
    first = server.cluster.configmaps[MARKS.name(0)]
    meta = msgspec.structs.replace(first.metadata, **change)
    server.cluster.configmaps[MARKS.name(0)] = WireConfigMap(meta, first.data)
    assert await shards.current(nodes) == same
    assert sorted(requests(server)) == asked


async def test_the_last_look_leaves_out_shards_without_entries(server: Server, shards: Shards) -> None:
    server.hold(0, "a").hold(1)
    await shards.load(NOW)
    requests(server)
    assert await shards.current("a")
    assert sorted(requests(server)) == ["get 0", "get 2"]


async def test_the_last_look_finds_what_is_gone_and_what_is_new(server: Server, shards: Shards) -> None:
    await shards.load(NOW)
    assert await shards.current("a")
    server.hold(0, "a", labels=None)
    assert not await shards.current("a")
    requests(server)
    await shards.load(NOW)
    assert (requests(server), shards.node_names) == (["list", "get 0"], {"a"})
    del server.cluster.configmaps[MARKS.name(0)]
    assert not await shards.current("a")
    server.failure = ApiError(500, "InternalError")
    with pytest.raises(ApiError):
        await shards.current("a")


# ---------------------------------------------------------------- parts that caretaker did not write


@pytest.mark.parametrize("labels", [MARKS.labels(1), None], ids=["labelled", "stray"])
async def test_a_shard_with_more_entries_than_fit_is_lost_as_a_whole(
    server: Server, shards: Shards, labels: dict[str, str] | None
) -> None:
    server.hold(0, "a").hold(1, "b", labels=labels)
    item = server.cluster.configmaps[MARKS.name(1)]
    item.data = {**(item.data or {}), **{f"n{number}": "" for number in range(SHARD_NODES)}}
    await shards.load(NOW, 2)
    read = shards.ledger(LedgerStatus(shards=2, writes=(1, 1)))
    words = f"ConfigMap {MARKS.name(1)} has more than 1000 records (take out what was added, or delete it)"
    assert (read.entries, read.corrupt, read.lost, read.loss) == (some("a"), {}, 1, f"ledger {words}")
    assert shards.ledger(UNREPORTED).lost == 1, "whatever status says"
    assert shards.taken((), lost=True) == words
    assert not shards.loaded
    item.data.popitem()
    await shards.load(NOW)
    assert shards.ledger(UNREPORTED).lost == 0
    assert len(shards.node_names) == SHARD_NODES + 1
    assert shards.taken("ab", lost=False) == ""


def least(more: str = "") -> str:
    return '{"nodeUID":"","revision":"","runKey":"","result":"Retry","seq":0' + more + "}"


WIDE = "x" * 950 + "\U0001f600"
FORGED: dict[str, dict[str, str]] = {
    "names": {f"n{number}": "" for number in range(90_000)},
    "entries": {f"n{number}": least() for number in range(14_000)},
    "results": {"n": least(',"results":{' + ",".join(f'"{number}":0.5' for number in range(90_000)) + "}")},
    "reboots": {"n": least(',"rebootRuns":[' + ",".join(["999"] * 250_000) + "]")},
    "a foreign result": {f"n{number}": f'{{"result":"{WIDE}"}}' for number in range(1000)},
    "long texts": {f"n{number}": least(f',"reason":"{WIDE}"') for number in range(1000)},
}


@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED)
def test_a_forged_part_of_1_mib_takes_4_at_most(shards: Shards, data: dict[str, str]) -> None:
    """A text takes four times its bytes where one of its characters is beyond U+FFFF."""
    meta = {"name": MARKS.name(0), "labels": MARKS.labels(0), "uid": "u", "resourceVersion": "1"}
    body = msgspec.json.encode({"metadata": meta, "data": data})
    tracemalloc.start()
    try:
        shards.take([msgspec.json.decode(body, type=WireConfigMap)], NOW)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4.1 * 1024 * 1024


# ---------------------------------------------------------------- names that are taken


def in_the_way(index: int) -> str:
    return (
        f"ConfigMap {MARKS.name(index)} has the name of a part of the ledger and is not this task's: delete "
        f"it, or if it is the ledger, give it the labels caretaker.dev/ledger={index} and "
        "caretaker.dev/daemontask=task back"
    )


@pytest.mark.parametrize(
    ("nodes", "lost", "taken"),
    [("bc", False, True), ("a", False, False), ("a", True, True), ("", False, False)],
)
async def test_a_name_that_is_taken_is_in_the_way_of_what_goes_there(
    server: Server, shards: Shards, monkeypatch: pytest.MonkeyPatch, nodes: str, lost: bool, taken: bool
) -> None:
    monkeypatch.setattr("caretaker.daemontask.ledger.SHARD_NODES", 1)
    server.hold(0, "a").foreign(1).foreign(2)
    await shards.load(NOW, 3)
    assert shards.taken(nodes, lost=lost) == (in_the_way(1) if taken else "")
    assert shards.loaded is not taken


async def test_a_name_is_taken_from_the_look_that_finds_it_to_the_one_that_does_not(
    server: Server, shards: Shards
) -> None:
    await shards.load(NOW)
    assert shards.taken("a", lost=True) == ""
    server.foreign(0)
    assert await shards.current("a")
    assert shards.taken("a", lost=False) == in_the_way(0)
    requests(server)
    await shards.load(NOW)
    assert requests(server) == ["list", "get 0"]
    assert shards.taken("a", lost=False) == in_the_way(0)
    del server.cluster.configmaps[MARKS.name(0)]
    assert await shards.current("a")
    assert shards.taken("a", lost=True) == ""
    server.foreign(0)
    await shards.load(NOW, 1)
    del server.cluster.configmaps[MARKS.name(0)]
    await shards.load(NOW, 1)
    assert shards.taken("a", lost=True) == ""
    assert await shards.current("a")


# ---------------------------------------------------------------- what plans read


async def test_what_plans_read_of_shards_that_overlap(server: Server, shards: Shards) -> None:
    server.hold(0, "a", broken="b").hold(1, "bc", broken="d")
    server.cluster.configmaps[MARKS.name(1)].metadata.resource_version = "4711"
    await shards.load(NOW)
    read = shards.ledger(LedgerStatus(shards=-1))
    assert (read.entries, set(read.corrupt), read.shards, read.version) == (some("abc"), {"d"}, 2, 4711)
    assert (read.lost, read.loss, read.older, read.since) == (0, "", frozenset(), dict.fromkeys("abc", NOW))
    unread = shards.ledger(LedgerStatus(shards=-1), strict=True)
    assert (unread.lost, unread.loss) == (1, "status.ledger could not be read")


async def test_an_entry_is_known_since_it_was_first_read_or_written(server: Server, shards: Shards) -> None:
    server.hold(0, "ab").hold(1, "c")
    await shards.load(NOW)
    later = msgspec.structs.replace(ALL["b"], seq=2)
    server.cluster.configmaps[MARKS.name(0)].data = {"a": encode_entry(ALL["a"]), "b": encode_entry(later)}
    await shards.load(NOW + 1)
    server.cluster.clock.now = NOW + 2
    await write(shards, "d", "c")
    assert shards.ledger(UNREPORTED).since == {"a": NOW, "b": NOW + 1, "d": NOW + 2}


async def test_a_loss_names_three_shards(server: Server, shards: Shards) -> None:
    server.hold(0, "a").hold(1, "b", writes=9)
    await shards.load(NOW)
    read = shards.ledger(LedgerStatus(shards=5, writes=(3, 9)))
    why = ("is an older copy: it counts 1 writes, and there were 3", "is gone", "is gone")
    named = zip((0, 2, 3), why, strict=True)
    assert read.loss == "; ".join(f"ledger ConfigMap {MARKS.name(index)} {text}" for index, text in named)
    assert (read.lost, read.older) == (4, {"a"})


async def test_the_count_of_writes_never_falls(server: Server, shards: Shards) -> None:
    server.hold(0, "a", writes=5).hold(1, "b", writes=0)
    await shards.load(NOW)
    assert shards.write_counts(UNREPORTED) == (5,)
    server.hold(0, "a", writes=3)
    await shards.load(NOW)
    assert shards.write_counts(UNREPORTED) == (5,)
    assert shards.ledger(UNREPORTED).lost == 1
    await write(shards, "b")
    assert shards.write_counts(LedgerStatus(writes=(7,))) == (7, 1)


async def test_nothing_is_known_of_a_ledger_that_was_not_read(server: Server, shards: Shards) -> None:
    read = shards.ledger(UNREPORTED)
    assert (shards.loaded, shards.unanswered, shards.count, read.entries, read.lost) == (False, 0, 0, {}, 0)
    assert (shards.selector, shards.write_counts(UNREPORTED), server.asked) == (SELECTOR, (), [])
