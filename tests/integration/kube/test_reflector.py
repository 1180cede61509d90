"""The Store follows the server through everything that can happen to a list and a watch."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from caretaker.api.objects import Node, WireNode
from caretaker.kube.client import KubeClient
from caretaker.kube.reflector import Collection, ReflectorOptions
from fakes.answers import bookmark, failure, forbidden, listing, too_many_requests, version_expired
from fakes.apiserver import FakeApiServer, Handler, Watches, hang, refusing
from testing.reflecting import Recorder

NODES = "/api/v1/nodes"
FAST = ReflectorOptions(watch=(5, 5), dead_after=30.0, backoff=(0.01, 0.05), healthy=60.0, denied=0.05)
IMPATIENT = replace(FAST, dead_after=1.0)


def node(name: str, version: int, **labels: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": labels or None,
        }
    }


class Followed(Recorder[Node]):
    """The fake server's watches, too."""

    def __init__(
        self, client: KubeClient, collection: Collection[Node], options: ReflectorOptions, watches: Watches
    ) -> None:
        super().__init__(client, collection, options)
        self.watches = watches


@asynccontextmanager
async def follow(
    folder: Path,
    *lists: Handler | dict[str, Any],
    options: ReflectorOptions = FAST,
    selector: str | None = None,
) -> AsyncIterator[Followed]:
    """A reflector of the fake server's nodes; cancelled at the end, and no other task is left."""
    watches = Watches(*lists)
    async with FakeApiServer() as api:
        api.on("GET", NODES, watches)
        async with await KubeClient.connect(api.kubeconfig(folder)) as client:
            collection: Collection[Node] = Collection(NODES, WireNode, label_selector=selector)
            async with Followed(client, collection, options, watches).run() as followed:
                yield followed


async def test_lists_then_watches_from_there(tmp_path: Path) -> None:
    async with follow(tmp_path, listing(5, node("a", 3)), selector="x=y") as f:
        watch = await f.watches.next()
        assert f.store.synced.is_set()
        query = watch.request.query
        assert (query["resourceVersion"], query["allowWatchBookmarks"], query["labelSelector"]) == (
            "5",
            "true",
            "x=y",
        )
        await watch.send("ADDED", node("b", 6))
        await watch.send("MODIFIED", node("a", 7, x="y"))
        await watch.send("DELETED", node("b", 8))
        await f.until(lambda: f.counts["DELETED"] == 1)
        assert f.changes == [(None, "a"), (None, "b"), ("a", "a"), ("b", None)]
        assert f.states == [("synced", "")]


async def test_the_server_is_asked_for_watches_of_280_to_340_seconds(tmp_path: Path) -> None:
    async with follow(tmp_path, listing(5), options=ReflectorOptions()) as f:
        watch = await f.watches.next()
        assert 280 <= int(watch.request.query["timeoutSeconds"]) <= 340


async def test_a_watch_that_ends_in_order_is_resumed_where_it_was(tmp_path: Path) -> None:
    async with follow(tmp_path, listing(5)) as f:
        watch = await f.watches.next()
        await watch.send("ADDED", node("a", 6))
        await watch.send("BOOKMARK", bookmark(40))
        watch.end()
        resumed = await f.watches.next()
        assert resumed.request.query["resourceVersion"] == "40"
        assert f.watches.listed == 1
        assert f.store.version == 40


async def test_a_cut_watch_is_resumed_where_it_was(tmp_path: Path) -> None:
    async with follow(tmp_path, listing(5)) as f:
        watch = await f.watches.next()
        await watch.send("ADDED", node("a", 6))
        await f.until(lambda: f.names() == {"a"})
        watch.cut()
        resumed = await f.watches.next()
        assert resumed.request.query["resourceVersion"] == "6"
        await f.until(lambda: [state for state, _ in f.states] == ["synced", "failing", "synced"])


async def test_a_410_in_the_stream_lists_again_and_emits_the_missed_deletes(tmp_path: Path) -> None:
    lists = listing(5, node("a", 3), node("b", 4)), listing(90, node("b", 4), node("c", 80))
    async with follow(tmp_path, *lists) as f:
        watch = await f.watches.next()
        await watch.send("ERROR", version_expired(5, 80))
        resumed = await f.watches.next()
        assert resumed.request.query["resourceVersion"] == "90"
        assert f.changes == [(None, "a"), (None, "b"), (None, "c"), ("a", None)]
        assert f.counts["EXPIRED"] == 1


async def test_any_other_error_in_the_stream_lists_again(tmp_path: Path) -> None:
    async with follow(tmp_path, listing(5, node("a", 3)), listing(9)) as f:
        watch = await f.watches.next()
        await watch.send("ERROR", failure(500, "InternalError", "etcd"))
        await f.watches.next()
        assert f.names() == set()


async def test_a_stalled_watch_recovers_by_itself(tmp_path: Path) -> None:
    async with follow(tmp_path, listing(5, node("a", 3)), options=IMPATIENT) as f:
        await f.watches.next()  # says nothing, for ever
        resumed = await f.watches.next()
        assert resumed.request.query["resourceVersion"] == "5"
        await resumed.send("DELETED", node("a", 6))
        await f.until(lambda: not f.names())
        assert f.counts["STALLED"] == 1
        assert f.watches.listed == 1


async def test_a_watch_that_stalls_twice_lists_again(tmp_path: Path) -> None:
    async with follow(tmp_path, listing(5, node("a", 3)), listing(2), options=IMPATIENT) as f:
        for _ in range(2):
            await f.watches.next()
        third = await f.watches.next()
        assert third.request.query["resourceVersion"] == "2"
        assert f.names() == set()


async def test_bookmarks_keep_a_quiet_watch_alive(tmp_path: Path) -> None:
    options = replace(FAST, dead_after=2.0)
    async with follow(tmp_path, listing(5), options=options) as f:
        watch = await f.watches.next()
        for version in range(10, 16):
            await asyncio.sleep(options.dead_after / 4)
            await watch.send("BOOKMARK", bookmark(version))
        await f.until(lambda: f.counts["BOOKMARK"] == 6)
        assert f.counts["STALLED"] == 0


async def test_an_object_of_a_megabyte_and_a_half_is_one_event(tmp_path: Path) -> None:
    async with follow(tmp_path, listing(5)) as f:
        watch = await f.watches.next()
        await watch.send("ADDED", node("a", 6, big="x" * (3 * 512 * 1024)))
        await f.until(lambda: "a" in f.names())
        record = f.store.get("", "a")
        assert record is not None
        assert len(record.labels["big"]) == 3 * 512 * 1024


async def test_a_missing_permission_is_told_and_tried_again(tmp_path: Path) -> None:
    denied = refusing(forbidden("list", "nodes"))
    async with follow(tmp_path, denied, denied, listing(5, node("a", 3))) as f:
        await f.watches.next()
        assert f.states == [("denied", "list nodes"), ("synced", "")]
        assert f.names() == {"a"}


async def test_a_server_that_fails_is_asked_less_and_less_often(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    asked: list[float] = []

    async def failing(request: web.Request) -> web.StreamResponse:
        asked.append(loop.time())
        return await refusing(failure(500, "InternalError"))(request)

    # The last pauses are long beside what a busy machine adds to the first.
    options = ReflectorOptions(backoff=(0.02, 0.6))
    async with follow(tmp_path, *[failing] * 8, listing(5), options=options) as f:
        await f.watches.next()
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert all(pause >= 0.02 for pause in pauses)
    assert max(pauses[-2:]) > 3 * min(pauses[:2])


async def test_a_410_from_a_server_that_is_back_does_not_wait_as_long_as_its_failures(tmp_path: Path) -> None:
    failing = refusing(failure(503, "ServiceUnavailable"))
    options = ReflectorOptions(backoff=(0.02, 5.0))
    async with follow(tmp_path, *[failing] * 6, listing(5), listing(9), options=options) as f:
        watch = await f.watches.next()
        await watch.send("ERROR", version_expired(5, 8))
        await f.until(lambda: f.counts["EXPIRED"] == 1)
        # As it is planned, whenever a busy machine comes to it; the seventh failure would cost 0.6 to 1.3 s.
        assert f.reflector.due - time.monotonic() < 0.5
        watch = await f.watches.next()
        assert watch.request.query["resourceVersion"] == "9"


async def test_a_server_that_asks_for_time_is_given_it(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    throttled = refusing(too_many_requests(1))
    started = loop.time()
    async with follow(tmp_path, throttled, listing(5)) as f:
        await f.watches.next()
    assert loop.time() - started >= 1.0


async def test_a_server_that_ends_every_watch_at_once_is_not_asked_in_a_loop(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    # So long that a watch does not outlast it on a busy machine: then it would not have been ended at once.
    async with follow(tmp_path, listing(5), options=ReflectorOptions(backoff=(1.0, 1.0))) as f:
        opened = []
        for _ in range(4):
            watch = await f.watches.next()
            opened.append(loop.time())
            watch.end()
    assert min(later - earlier for earlier, later in pairwise(opened)) >= 0.99


async def test_relist_compares_with_a_list_taken_from_now_on(tmp_path: Path) -> None:
    async with follow(tmp_path, listing(5, node("a", 3)), listing(50, node("b", 40))) as f:
        await f.watches.next()
        await f.reflector.relist()
        assert f.names() == {"b"}
        watch = await f.watches.next()
        assert watch.request.query["resourceVersion"] == "50"


async def test_relist_waits_through_failures(tmp_path: Path) -> None:
    failing = refusing(failure(503, "ServiceUnavailable"))
    async with follow(tmp_path, listing(5, node("a", 3)), failing, failing, listing(50)) as f:
        await f.watches.next()
        await f.reflector.relist()
        assert f.names() == set()


async def test_relist_before_the_first_list_and_twice_at_once(tmp_path: Path) -> None:
    async with follow(tmp_path, listing(5), listing(6, node("a", 3))) as f:
        await asyncio.gather(f.reflector.relist(), f.reflector.relist())
        assert f.store.synced.is_set()


async def test_relist_cuts_a_long_backoff_short(tmp_path: Path) -> None:
    options = ReflectorOptions(denied=3600)
    async with follow(tmp_path, refusing(forbidden("list", "nodes")), listing(5), options=options) as f:
        await f.until(lambda: f.state == "denied")
        async with asyncio.timeout(2):
            await f.reflector.relist()
        assert f.state == "synced"


async def test_an_object_that_cannot_be_read_hides_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with follow(tmp_path, listing(5)) as f:
        watch = await f.watches.next()
        await watch.send("ADDED", node("a", 6) | {"spec": {"taints": "none"}})
        await watch.send("ADDED", node("b", 7))
        await f.until(lambda: f.names() == {"b"})
        assert f.counts["UNDECODABLE"] == 1
    assert "$.spec.taints" in caplog.text


async def test_a_subscriber_that_raises_does_not_end_the_reflector(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def bad(_: Node | None, new: Node | None) -> None:
        if new is not None and new.name == "bad":
            raise RuntimeError("boom")

    async with follow(tmp_path, listing(5), listing(9, node("good", 8))) as f:
        f.store.subscribe(bad)
        watch = await f.watches.next()
        await watch.send("ADDED", node("bad", 6))
        await f.watches.next()
        assert f.names() == {"good"}
    assert "boom" in caplog.text


async def test_while_a_server_is_away_the_next_try_is_due_and_not_the_answer(tmp_path: Path) -> None:
    options = replace(FAST, backoff=(40.0, 40.0))
    async with follow(tmp_path, refusing(failure(503, "ServiceUnavailable")), options=options) as f:
        await f.until(lambda: f.state == "failing")
        assert 35 < f.reflector.due - time.monotonic() <= 40


async def test_a_server_that_asks_for_time_is_not_overdue_meanwhile(tmp_path: Path) -> None:
    async with follow(tmp_path, refusing(too_many_requests(600))) as f:
        await f.until(lambda: f.state == "failing")
        assert f.reflector.due - time.monotonic() > 590


async def test_a_quiet_watch_is_due_when_it_would_be_given_up(tmp_path: Path) -> None:
    async with follow(tmp_path, listing(5)) as f:
        watch = await f.watches.next()
        await f.until(lambda: f.counts["WATCH"] == 1)
        before = f.reflector.due
        assert 25 < before - time.monotonic() <= FAST.dead_after
        await watch.send("BOOKMARK", bookmark(6))
        await f.until(lambda: f.counts["BOOKMARK"] == 1)
        assert f.reflector.due > before


async def test_a_list_whose_answer_does_not_come_is_overdue_from_its_start(tmp_path: Path) -> None:
    asked: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def silent(request: web.Request) -> web.StreamResponse:
        asked.set_result(time.monotonic())
        return await hang(request)

    async with follow(tmp_path, refusing(failure(503, "ServiceUnavailable")), silent) as f:
        await f.until(lambda: f.state == "failing")
        at = await asyncio.wait_for(asked, 30)
        assert at - 5 < f.reflector.due <= at


@pytest.mark.parametrize("steps", range(6))
async def test_it_ends_when_asked_to_though_a_list_is_asked_for_just_then(tmp_path: Path, steps: int) -> None:
    """In the pause between two attempts, and whichever comes first by some turns of the event loop."""
    patient = replace(FAST, denied=600.0)
    async with follow(tmp_path, refusing(forbidden("list", "nodes")), options=patient) as f:
        await f.until(lambda: f.state == "denied")
        await asyncio.sleep(0.01)  # it pauses now
        asking = asyncio.create_task(f.reflector.relist())
        for _ in range(steps):
            await asyncio.sleep(0)
        f.cancel()
        ended, _ = await asyncio.wait({f.running}, timeout=10)
        asking.cancel()
        assert ended, "the cancellation was lost"
