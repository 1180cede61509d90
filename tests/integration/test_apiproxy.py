"""ApiProxy against a real API server: what a client sees, and what truly happened behind it."""

import asyncio
import json
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import pytest

from testing.apiproxy import ApiProxy
from testing.faults import (
    Action,
    Answer,
    Delay,
    Exchange,
    Hang,
    Lag,
    LoseReply,
    Match,
    Reset,
    Run,
    Stall,
)
from testing.upstream import Upstream

MAPS = "/api/v1/namespaces/default/configmaps"
OF_MAPS = Match(resource="configmaps")


class HasKubeconfig(Protocol):
    kubeconfig: Path


@pytest.fixture
async def truth(cluster: HasKubeconfig) -> AsyncIterator["Client"]:
    """A client that goes past the proxy."""
    async with Upstream.from_kubeconfig(cluster.kubeconfig) as upstream:
        yield Client(upstream)


@pytest.fixture
def proxy(cluster: HasKubeconfig) -> Any:
    """A proxy of its own for each test."""
    with ApiProxy(cluster.kubeconfig, "under-test") as started:
        yield started


@pytest.fixture
async def client(proxy: ApiProxy, tmp_path: Path) -> AsyncIterator["Client"]:
    """A client that goes through the proxy, by the proxy's kubeconfig."""
    async with Upstream.from_kubeconfig(proxy.write_kubeconfig(tmp_path / "kubeconfig")) as upstream:
        yield Client(upstream)


class Client:
    """As much of an API client as the tests need. Methods return (status, body)."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def send(
        self, method: str, path: str, body: Any = None, **query: str
    ) -> tuple[int, dict[str, Any], Any]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        raw = json.dumps(body).encode() if body is not None else b""
        headers = {"Content-Type": kind, "User-Agent": "a-test/1"}
        async with self._upstream.send(method, path, query, headers, raw) as response:
            return response.status, await response.json(content_type=None), response.headers

    async def create(self, name: str, **data: str) -> int:
        return (await self.send("POST", MAPS, {"metadata": {"name": name}, "data": data}))[0]

    async def get(self, name: str) -> dict[str, Any] | None:
        status, body, _ = await self.send("GET", f"{MAPS}/{name}")
        return body if status == 200 else None

    async def names(self, **query: str) -> set[str]:
        _, body, _ = await self.send("GET", MAPS, **query)
        return {item["metadata"]["name"] for item in body["items"]}

    @asynccontextmanager
    async def watch(self, **query: str) -> AsyncIterator["Lines"]:
        """Watch config maps from now on."""
        if "resourceVersion" not in query:
            query["resourceVersion"] = await self.revision()
        query = {"watch": "true", "timeoutSeconds": "60", **query}
        async with self._upstream.send("GET", MAPS, query, {}, b"") as response:
            assert response.status == 200, await response.text()
            yield Lines(response)

    async def revision(self) -> str:
        _, body, _ = await self.send("GET", MAPS, limit="1")
        return str(body["metadata"]["resourceVersion"])


class Lines:
    """Events of a watch, as (type, name) or, for errors, (ERROR, code)."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._content = response.content

    async def next(self, timeout: float = 20.0) -> tuple[str, str] | None:
        """The next event, None at the end of the stream; TimeoutError if there is none."""
        line = await asyncio.wait_for(self._content.readline(), timeout)
        if not line:
            return None
        event = json.loads(line)
        subject = event["object"]
        return event["type"], str(subject["code"] if "code" in subject else subject["metadata"]["name"])

    async def next_of(self, name: str, timeout: float = 20.0) -> str:
        """The type of the next event about `name`."""
        async with asyncio.timeout(timeout):
            while True:
                event = await self.next(timeout)
                assert event is not None, f"the watch ended before anything was heard of {name}"
                if event[1] == name:
                    return event[0]


def fresh(prefix: str = "cm") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


async def in_thread(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run what blocks on the proxy's thread beside the test's loop."""
    return await asyncio.to_thread(work, *args, **kwargs)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait, 20 s at most, for a condition that nothing signals."""
    async with asyncio.timeout(20):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


# ---------------------------------------------------------------- the ledger


async def test_the_ledger_names_every_request(proxy: ApiProxy, client: Client) -> None:
    name = fresh()
    await client.create(name, k="v")
    await client.get(name)
    await client.names()
    await client.send("PATCH", f"{MAPS}/{name}", {"data": {"k": "w"}})
    await client.send("POST", MAPS, {"metadata": {"name": fresh()}}, dryRun="All")
    await client.send("DELETE", f"{MAPS}/{name}")
    await client.send("GET", "/version")
    seen = [(c.verb, c.resource, c.namespace, c.name, c.code) for c in proxy.ledger.calls()]
    assert seen[:4] == [
        ("create", "configmaps", "default", name, 201),
        ("get", "configmaps", "default", name, 200),
        ("list", "configmaps", "default", "", 200),
        ("patch", "configmaps", "default", name, 200),
    ]
    assert seen[5:] == [("delete", "configmaps", "default", name, 200), ("get", "", "", "", 200)]
    assert [c.verb for c in proxy.ledger.writes()] == ["create", "patch", "delete"]
    assert proxy.ledger.counts()["create", "configmaps"] == 2
    first = proxy.ledger.calls()[0]
    assert (first.client, first.user_agent) == ("under-test", "a-test/1")
    assert first.request_bytes > 20


async def test_leases_are_left_out_of_the_writes_unless_asked_for(proxy: ApiProxy, client: Client) -> None:
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    status, *_ = await client.send("POST", leases, {"metadata": {"name": fresh()}})
    assert status == 201
    assert proxy.ledger.writes() == []
    assert len(proxy.ledger.writes(exclude_leases=False)) == 1


async def test_waiting_for_a_call_ends_when_it_is_answered(proxy: ApiProxy, client: Client) -> None:
    name = fresh()
    waiting = asyncio.create_task(in_thread(proxy.ledger.wait, lambda c: c.name == name and c.code == 201))
    await client.create(name)
    assert len(await waiting) == 1


async def test_the_clients_own_credentials_are_passed_on(proxy: ApiProxy, tmp_path: Path) -> None:
    kubeconfig = proxy.write_kubeconfig(tmp_path / "other", token="nobody")
    async with Upstream.from_kubeconfig(kubeconfig) as upstream:
        assert (await Client(upstream).send("GET", MAPS))[0] == 401


async def test_a_megabyte_passes_both_ways(client: Client) -> None:
    name, text = fresh(), "x" * 900_000
    assert await client.create(name, k=text) == 201
    found = await client.get(name)
    assert found is not None
    assert found["data"]["k"] == text


async def test_two_proxies_keep_separate_ledgers_and_rules(cluster: HasKubeconfig, client: Client) -> None:
    with ApiProxy(cluster.kubeconfig, "second") as second:
        second.add(OF_MAPS, Answer(500))
        assert await client.create(fresh()) == 201
        assert second.ledger.calls() == []


# ---------------------------------------------------------------- faults of requests


@pytest.mark.parametrize(
    ("action", "client_sees", "is_there"),
    [
        pytest.param(Answer(500), 500, False, id="an answered request never reaches the API server"),
        pytest.param(Answer(429, retry_after=3), 429, False, id="a throttled request is not executed"),
        pytest.param(Reset(), 0, False, id="a reset request is not executed"),
        pytest.param(LoseReply(), 0, True, id="a request whose reply is lost is executed"),
        pytest.param(Run(forward=False), 0, False, id="a client that dies before sending sends nothing"),
        pytest.param(Delay(0.05, 0.05), 201, True, id="a delayed request is executed and answered"),
    ],
)
async def test_fault(
    proxy: ApiProxy, client: Client, truth: Client, action: Action, client_sees: int, is_there: bool
) -> None:
    name = fresh()
    rule = proxy.add(Match(verb="create", name=name), action)
    assert await outcome(client.create(name)) == client_sees
    assert (await truth.get(name) is not None) == is_there
    assert [(c.name, c.code) for c in rule.hits] == [(name, client_sees)]
    rule.remove()
    assert await client.create(fresh()) == 201


async def outcome(request: Awaitable[int]) -> int:
    """The status, or 0 for a reset connection."""
    try:
        return await request
    except aiohttp.ClientConnectionError:
        return 0


async def test_retry_after_and_the_reason_reach_the_client(proxy: ApiProxy, client: Client) -> None:
    proxy.add(OF_MAPS, Answer(429, reason="TooManyRequests", retry_after=7))
    status, body, headers = await client.send("GET", MAPS)
    assert (status, body["reason"], headers["Retry-After"]) == (429, "TooManyRequests", "7")


async def test_only_the_nth_fitting_request_is_hit(proxy: ApiProxy, client: Client) -> None:
    proxy.add(Match(verb="create", resource="configmaps", nth=2), Answer(503))
    assert [await client.create(fresh()) for _ in range(3)] == [201, 503, 201]


async def test_only_the_first_times_are_hit(proxy: ApiProxy, client: Client) -> None:
    proxy.add(Match(verb="create", resource="configmaps", times=2), Answer(503))
    assert [await client.create(fresh()) for _ in range(3)] == [503, 503, 201]


async def test_a_rule_spares_what_does_not_match(proxy: ApiProxy, client: Client) -> None:
    proxy.add(Match(verb="create", resource=("pods", "nodes")), Answer(500))
    proxy.add(Match(user_agent="another"), Answer(500))
    proxy.add(Match(subresource="status"), Answer(500))
    assert await client.create(fresh()) == 201


async def test_a_callback_sees_the_world_before_and_after_the_request(
    proxy: ApiProxy, client: Client, truth: Client
) -> None:
    name, loop, seen = fresh(), asyncio.get_running_loop(), []

    def look(exchange: Exchange) -> None:
        found = asyncio.run_coroutine_threadsafe(truth.get(name), loop).result(5)
        status = exchange.reply.status if exchange.reply else 0
        seen.append((found is not None, status, exchange.call.code))

    proxy.add(Match(verb="create", name=name), Run(run_before=look, run_after=look))
    assert await client.create(name) == 201
    assert seen == [(False, 0, 0), (True, 201, 0)]


async def test_a_callback_may_be_a_coroutine_function(proxy: ApiProxy, client: Client) -> None:
    ran = threading.Event()

    async def note(exchange: Exchange) -> None:
        ran.set()

    proxy.add(OF_MAPS, Run(run_before=note))
    assert await client.create(fresh()) == 201
    assert ran.is_set()


async def test_what_a_callback_raises_is_raised_when_the_proxy_stops(
    cluster: HasKubeconfig, tmp_path: Path
) -> None:
    def fail(exchange: Exchange) -> None:
        raise AssertionError("the invariant broke")

    proxy = ApiProxy(cluster.kubeconfig).start()
    proxy.add(OF_MAPS, Run(run_before=fail))
    async with Upstream.from_kubeconfig(proxy.write_kubeconfig(tmp_path / "k")) as upstream:
        assert await outcome(Client(upstream).create(fresh())) == 0
    with pytest.raises(AssertionError, match="the invariant broke"):
        await in_thread(proxy.stop)


async def test_a_request_is_executed_though_its_client_is_gone(
    proxy: ApiProxy, client: Client, truth: Client
) -> None:
    name = fresh()
    rule = proxy.add(Match(verb="create", name=name), Delay(before_seconds=0.3))
    request = asyncio.create_task(client.create(name))
    await in_thread(rule.wait)
    request.cancel()
    await in_thread(proxy.ledger.wait, lambda c: c.name == name and c.code == 201)
    assert await truth.get(name) is not None


async def test_a_hanging_request_is_reset_when_the_rule_goes(
    proxy: ApiProxy, client: Client, truth: Client
) -> None:
    name = fresh()
    rule = proxy.add(Match(verb="create", name=name), Hang())
    request = asyncio.create_task(outcome(client.create(name)))
    await in_thread(rule.wait)
    assert not request.done()
    rule.remove()
    assert await request == 0
    assert await truth.get(name) is None


async def test_a_partition_resets_everything_and_heals(proxy: ApiProxy, client: Client) -> None:
    async with client.watch() as watch:
        with proxy.partition():
            assert await outcome(client.create(fresh())) == 0
            with pytest.raises(aiohttp.ClientError):
                await watch.next()
        assert await client.create(fresh()) == 201


async def test_an_api_server_that_is_down_is_a_reset_connection(tmp_path: Path) -> None:
    config = tmp_path / "nowhere"
    config.write_text(
        json.dumps(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "c", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            }
        )
    )
    with ApiProxy(config) as proxy:
        async with Upstream.from_kubeconfig(proxy.write_kubeconfig(tmp_path / "k")) as upstream:
            assert await outcome(Client(upstream).create(fresh())) == 0


# ---------------------------------------------------------------- faults of watches


async def test_a_watch_streams_events_as_they_happen(proxy: ApiProxy, client: Client, truth: Client) -> None:
    async with client.watch() as watch:
        for name in (fresh(), fresh()):
            await truth.create(name)
            assert await watch.next_of(name) == "ADDED"
        assert proxy.open_watches(OF_MAPS) == 1
        assert [(c.verb, c.code) for c in proxy.ledger.calls() if c.verb == "watch"] == [("watch", 200)]


async def test_a_watch_of_a_client_that_is_gone_is_closed(proxy: ApiProxy, client: Client) -> None:
    async with client.watch():
        assert proxy.open_watches() == 1

    async def closed() -> bool:
        return proxy.open_watches() == 0

    await until(closed)


async def test_a_stalled_watch_is_silent_and_open_until_the_rule_goes(
    proxy: ApiProxy, client: Client, truth: Client
) -> None:
    async with client.watch() as watch:
        rule = proxy.add(OF_MAPS, Stall())
        name = fresh()
        await truth.create(name)
        await in_thread(rule.wait)
        with pytest.raises(TimeoutError):
            await watch.next(0.3)
        assert proxy.open_watches(OF_MAPS) == 1
        rule.remove()
        assert await watch.next_of(name) == "ADDED"


async def test_a_lagging_watch_tells_events_late_and_in_order(
    proxy: ApiProxy, client: Client, truth: Client
) -> None:
    async with client.watch() as watch:
        proxy.add(OF_MAPS, Lag(0.5))
        begin, first, second = time.monotonic(), fresh(), fresh()
        await truth.create(first)
        await truth.create(second)
        assert await watch.next_of(first) == "ADDED"
        assert time.monotonic() - begin >= 0.5
        assert await watch.next_of(second) == "ADDED"


async def test_a_cut_watch_ends_in_a_reset(proxy: ApiProxy, client: Client) -> None:
    async with client.watch() as watch:
        assert proxy.cut_watches(Match(resource="pods")) == 0
        assert proxy.cut_watches() == 1
        with pytest.raises(aiohttp.ClientError):
            await watch.next()


async def test_a_watch_ends_with_the_error_that_the_test_sends(proxy: ApiProxy, client: Client) -> None:
    async with client.watch() as watch:
        assert proxy.send_watch_error(OF_MAPS, 410) == 1
        assert await watch.next() == ("ERROR", "410")
        assert await watch.next() is None


async def test_a_stalled_watch_can_be_cut(proxy: ApiProxy, client: Client, truth: Client) -> None:
    async with client.watch() as watch:
        rule = proxy.add(OF_MAPS, Stall())
        await truth.create(fresh())
        await in_thread(rule.wait)
        assert proxy.cut_watches() == 1
        with pytest.raises(aiohttp.ClientError):
            await watch.next()


async def test_the_api_servers_refusal_of_a_watch_passes(client: Client) -> None:
    status, body, _ = await client.send("GET", MAPS, watch="true", fieldSelector="no.such.field=1")
    assert (status, body["kind"]) == (400, "Status")


# ---------------------------------------------------------------- a stale world


async def test_a_stale_list_is_what_was_true_and_catches_up(
    proxy: ApiProxy, client: Client, truth: Client
) -> None:
    old, new = fresh(), fresh()
    await truth.create(old)
    rule = proxy.stale(3.0, OF_MAPS)
    await truth.create(new)
    await truth.send("DELETE", f"{MAPS}/{old}")
    seen = await client.names()
    assert old in seen
    assert new not in seen
    assert await client.names(resourceVersion="0") & {old, new} == {old}
    assert await client.get(new) is not None  # a quorum read stays true unless the test asks otherwise

    async def current() -> bool:
        return await client.names() & {old, new} == {new}

    await until(current)
    rule.remove()
    await truth.send("DELETE", f"{MAPS}/{new}")
    assert new not in await client.names()


async def test_a_stale_get_knows_only_what_was_there(proxy: ApiProxy, client: Client, truth: Client) -> None:
    changed, new = fresh(), fresh()
    await truth.create(changed, k="old")
    proxy.stale(60, OF_MAPS, gets=True)
    await truth.create(new)
    await truth.send("PATCH", f"{MAPS}/{changed}", {"data": {"k": "new"}})
    assert await client.get(new) is None
    found = await client.get(changed)
    assert found is not None
    assert (found["kind"], found["apiVersion"], found["data"]) == ("ConfigMap", "v1", {"k": "old"})


async def test_writes_to_a_stale_world_meet_the_true_one(
    proxy: ApiProxy, client: Client, truth: Client
) -> None:
    name = fresh()
    proxy.stale(60, OF_MAPS)
    await truth.create(name)
    assert name not in await client.names()
    assert await client.create(name) == 409


async def test_a_watch_from_a_stale_list_tells_the_rest_when_it_is_old_enough(
    proxy: ApiProxy, client: Client, truth: Client
) -> None:
    proxy.stale(3.0, OF_MAPS)
    begin, name = time.monotonic(), fresh()
    await truth.create(name)
    _, listed, _ = await client.send("GET", MAPS)
    assert name not in {item["metadata"]["name"] for item in listed["items"]}
    async with client.watch(resourceVersion=listed["metadata"]["resourceVersion"]) as watch:
        assert await watch.next_of(name) == "ADDED"
    # Late by the lag, not by twice the lag, though the watch began after the event.
    assert 3.0 <= time.monotonic() - begin < 5.9
