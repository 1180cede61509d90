"""What the client sends, what it makes of answers, and what it refuses to send."""

import asyncio
import contextlib
import json
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from caretaker.api.objects import WireNode
from caretaker.kube.client import PAGE_BYTES, KubeClient, PartialObjectMetadata
from caretaker.kube.errors import ApiError, NotLeader
from caretaker.kube.transport import LARGE, Request, resource_of
from fakes.answers import failure, listing, page_expired, version_expired
from fakes.apiserver import FakeApiServer, Handler, answer, hang, paged, refusing, status
from testing.authority import loose_certificate

NODES = "/api/v1/nodes"
NODE = {"metadata": {"name": "a", "uid": "u", "resourceVersion": "7"}}


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def client(api: FakeApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(api.kubeconfig(tmp_path)) as connected:
        yield connected


def replying(body: Any, code: int = 200) -> Handler:
    async def reply(_: web.Request) -> web.StreamResponse:
        return answer(body, code)

    return reply


class TestRead:
    async def test_an_object_is_decoded_into_the_struct_asked_for(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        api.on("GET", f"{NODES}/a", replying(NODE))
        assert (await client.get(f"{NODES}/a", WireNode)).record().uid == "u"
        assert await client.get(f"{NODES}/a") == NODE
        assert json.loads(await client.get(f"{NODES}/a", bytes)) == NODE
        assert json.loads(bytes(await client.get(f"{NODES}/a", msgspec.Raw))) == NODE

    async def test_reads_are_by_quorum(self, api: FakeApiServer, client: KubeClient) -> None:
        api.on("GET", f"{NODES}/a", replying(NODE))
        await client.get(f"{NODES}/a", WireNode)
        assert "resourceVersion" not in api.requests[0].query

    async def test_an_answer_that_nests_deeper_than_can_be_read_is_an_error_of_its_own(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        deep = b'{"metadata":{},"items":[{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}]}"

        async def reply(_: web.Request) -> web.StreamResponse:
            return web.Response(body=deep, content_type="application/json")

        api.on("GET", NODES, reply)
        for asked in (client.get(NODES), client.list(NODES)):
            with pytest.raises(ApiError, match="nests deeper") as caught:
                await asked
            assert (caught.value.reason, caught.value.transient) == ("NestedTooDeep", False)

    async def test_metadata_alone_can_be_asked_for(self, api: FakeApiServer, client: KubeClient) -> None:
        api.on("GET", f"{NODES}/a", replying(NODE))
        api.on("GET", NODES, replying(listing(5)))
        await client.get(f"{NODES}/a", PartialObjectMetadata)
        await client.list(NODES, PartialObjectMetadata)
        one, many = (request.headers["Accept"] for request in api.requests)
        assert ";as=PartialObjectMetadata;" in one
        assert ";as=PartialObjectMetadataList;" in many

    async def test_an_answer_that_does_not_fit_names_the_field(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        api.on("GET", f"{NODES}/a", replying({"metadata": {"name": 7}}))
        with pytest.raises(msgspec.ValidationError, match=r"\$\.metadata\.name"):
            await client.get(f"{NODES}/a", WireNode)

    async def test_a_get_is_sent_again_when_the_kept_connection_was_closed(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        async def once(request: web.Request) -> web.StreamResponse:
            if len(api.requests) == 2:
                assert request.transport is not None
                request.transport.abort()
            return answer(NODE)

        api.on("GET", f"{NODES}/a", once)
        for _ in range(2):
            assert (await client.get(f"{NODES}/a", WireNode)).metadata.name == "a"
        assert len(api.requests) == 3


def page(names: str, version: int = 50, token: str = "") -> dict[str, Any]:
    items = [{"metadata": {"name": name, "resourceVersion": "1"}} for name in names]
    return listing(version, *items, token=token)


class Pages:
    """Answers list requests in order."""

    def __init__(self, *pages: dict[str, Any] | None) -> None:
        self.pages = list(pages)

    async def __call__(self, _: web.Request) -> web.StreamResponse:
        found = self.pages.pop(0)
        return status(page_expired()) if found is None else answer(found)


class TestList:
    async def names(self, client: KubeClient, **options: Any) -> tuple[str, str]:
        items, version = await client.list(NODES, WireNode, **options)
        return "".join(item.metadata.name for item in items), version

    async def test_pages_are_followed_to_the_end(self, api: FakeApiServer, client: KubeClient) -> None:
        api.on("GET", NODES, Pages(page("ab", token="t1"), page("cd", token="t2"), page("e")))
        assert await self.names(client, page=2, params={"labelSelector": "x=y"}) == ("abcde", "50")
        assert [dict(r.query) for r in api.requests] == [
            {"labelSelector": "x=y", "limit": "2"},
            {"labelSelector": "x=y", "limit": "2", "continue": "t1"},
            {"labelSelector": "x=y", "limit": "2", "continue": "t2"},
        ]

    async def test_an_expired_continue_token_starts_over_from_nothing(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        api.on("GET", NODES, Pages(page("ab", token="t1"), None, page("b", 60, "t2"), page("c", 60)))
        assert await self.names(client) == ("bc", "60")

    async def test_a_list_that_keeps_expiring_is_read_in_one_piece(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        api.on("GET", NODES, Pages(page("a", token="t1"), None, page("a", token="t2"), None, page("xyz", 70)))
        assert await self.names(client) == ("xyz", "70")
        assert "limit" not in api.requests[-1].query

    async def test_pages_of_large_objects_have_fewer_of_them(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        text = "x" * (PAGE_BYTES // 10)
        large = [{"metadata": {"name": str(number), "annotations": {"a": text}}} for number in range(40)]
        small = [{"metadata": {"name": f"small-{number}"}} for number in range(60)]
        every = large + small
        api.on("GET", NODES, paged(every))
        found, _ = await client.list(NODES, WireNode, each=lambda item: item.metadata.name, page=64)
        assert found == [item["metadata"]["name"] for item in every]
        assert [int(request.query["limit"]) for request in api.requests] == [64, *[8] * 6, 16, 32, 64]

    async def test_an_object_is_read_however_large_it_is(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        large = {"metadata": {"name": "a", "annotations": {"a": "x" * PAGE_BYTES}}}
        api.on("GET", NODES, replying(listing(50, large)))
        assert await self.names(client) == ("a", "50")
        assert [int(request.query["limit"]) for request in api.requests] == [500, 62, 7, 1]

    async def test_a_failed_page_returns_no_part(self, api: FakeApiServer, client: KubeClient) -> None:
        pages = Pages(page("ab", token="t1"))

        async def reply(request: web.Request) -> web.StreamResponse:
            return await pages(request) if pages.pages else status(failure(500, "InternalError"))

        api.on("GET", NODES, reply)
        with pytest.raises(ApiError) as caught:
            await self.names(client)
        assert caught.value.transient

    async def test_items_are_mapped_as_they_come(self, api: FakeApiServer, client: KubeClient) -> None:
        api.on("GET", NODES, Pages(page("ab", token="t1"), page("c")))
        found, _ = await client.list(NODES, WireNode, each=lambda item: item.metadata.name)
        assert found == ["a", "b", "c"]

    async def test_null_items_are_no_items(self, api: FakeApiServer, client: KubeClient) -> None:
        api.on("GET", NODES, replying({"metadata": {"resourceVersion": "5"}, "items": None}))
        assert await client.list(NODES) == ([], "5")


class TestWrite:
    async def test_writes_name_their_manager_and_their_time(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        for method in ("POST", "PATCH", "DELETE"):
            api.on(method, NODES, replying(NODE))
        await client.create(NODES, NODE, WireNode, params={"dryRun": "All"})
        await client.patch(NODES, {"a": 1}, timeout=1.5)
        await client.patch(NODES, [{"op": "remove", "path": "/a"}])
        await client.delete(NODES, body={"preconditions": {"uid": "u"}})
        sent = [(dict(r.query), r.content_type) for r in api.requests]
        assert sent == [
            ({"dryRun": "All", "timeout": "5000ms", "fieldManager": "caretaker"}, "application/json"),
            ({"timeout": "1500ms", "fieldManager": "caretaker"}, "application/merge-patch+json"),
            ({"timeout": "5000ms", "fieldManager": "caretaker"}, "application/json-patch+json"),
            ({"timeout": "5000ms"}, "application/json"),
        ]
        assert [json.loads(body) for body in api.bodies] == [
            NODE,
            {"a": 1},
            [{"op": "remove", "path": "/a"}],
            {"preconditions": {"uid": "u"}},
        ]

    @pytest.mark.parametrize("verb", ["create", "patch", "delete"])
    async def test_a_write_that_the_guard_refuses_is_not_sent(
        self, api: FakeApiServer, client: KubeClient, verb: str
    ) -> None:
        asked: list[float] = []

        def guard(timeout: float) -> None:
            asked.append(timeout)
            raise NotLeader("held by another")

        client.guard = guard
        client.write_seconds = 3
        body = {"body": {}} if verb != "delete" else {}
        with pytest.raises(NotLeader):
            await getattr(client, verb)(NODES, **body)
        assert (api.requests, asked) == ([], [3])

    @pytest.mark.parametrize(
        "open_already", [True, False], ids=["a kept-alive connection", "a new connection"]
    )
    async def test_the_guard_has_the_last_word_when_the_connection_is_there(
        self, api: FakeApiServer, client: KubeClient, open_already: bool
    ) -> None:
        """The Lease may be lost between the first look and the first byte."""
        if open_already:
            api.on("GET", NODES, replying(page("a")))
            await client.list(NODES)
        looks = 0

        def guard(_: float) -> None:
            nonlocal looks
            looks += 1
            if looks == 2:
                raise NotLeader

        client.guard = guard
        before = len(api.requests)
        with pytest.raises(NotLeader):
            await client.create(NODES, {})
        assert len(api.requests) == before
        api.on("POST", NODES, replying(NODE))
        await client.create(NODES, {})
        assert len(api.requests) == before + 1

    async def test_what_the_loop_does_before_the_first_byte_may_cost_the_lease(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        """aiohttp writes a body in a task, which before Python 3.12 waits for the loop's next round."""
        api.on("GET", NODES, replying(page("a")))
        api.on("POST", NODES, replying(NODE))
        await client.list(NODES)
        leading, looks = True, 0

        def lose() -> None:
            nonlocal leading
            leading = False

        def guard(_: float) -> None:
            nonlocal looks
            looks += 1
            if looks == 2:
                asyncio.get_running_loop().call_soon(lose)
            if not leading:
                raise NotLeader

        client.guard = guard
        at_once = sys.version_info >= (3, 12)
        with contextlib.nullcontext() if at_once else pytest.raises(NotLeader):
            await client.create(NODES, {})
        assert len(api.requests) == (2 if at_once else 1)
        client.guard = None
        await client.create(NODES, {})
        assert len(api.requests) == (3 if at_once else 2)

    async def test_reads_and_the_leases_own_writes_pass_the_guard(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        def guard(_: float) -> None:
            raise NotLeader

        client.guard = guard
        api.on("GET", NODES, replying(page("a")))
        api.on("PATCH", NODES, replying(NODE))
        await client.list(NODES)
        await client.urgent(Request("patch", NODES, body=b"{}"), dict)
        assert len(api.requests) == 2

    async def test_a_queued_write_asks_the_guard_when_its_turn_comes(
        self, api: FakeApiServer, tmp_path: Path
    ) -> None:
        leading = True

        def guard(_: float) -> None:
            if not leading:
                raise NotLeader

        release = asyncio.Event()

        async def slow(_: web.Request) -> web.StreamResponse:
            await release.wait()
            return answer(NODE)

        api.on("POST", NODES, slow)
        async with await KubeClient.connect(api.kubeconfig(tmp_path), pool=1) as client:
            client.guard = guard
            first = asyncio.create_task(client.create(NODES, {}))
            await api.received(1)
            second = asyncio.create_task(client.create(NODES, {}))
            await asyncio.sleep(0)
            leading = False
            release.set()
            await first
            with pytest.raises(NotLeader):
                await second
        assert len(api.requests) == 1

    async def test_a_namespaces_burst_delays_another_by_one_request(
        self, api: FakeApiServer, tmp_path: Path
    ) -> None:
        api.on("POST", "/api/v1/namespaces/a/pods", replying(NODE))
        api.on("POST", "/api/v1/namespaces/b/pods", replying(NODE))
        api.on("PATCH", "/apis/caretaker.dev/v1alpha1/namespaces/a/daemontasks/t/status", replying(NODE))
        async with await KubeClient.connect(api.kubeconfig(tmp_path), pool=1) as client:
            burst = [client.create("/api/v1/namespaces/a/pods", {}) for _ in range(5)]
            other = client.create("/api/v1/namespaces/b/pods", {})
            url = "/apis/caretaker.dev/v1alpha1/namespaces/a/daemontasks/t/status"
            await asyncio.gather(*burst, other, client.patch(url, {}))
        assert [request.path.rpartition("namespaces/")[2] for request in api.requests] == [
            *("a/pods", "a/pods", "b/pods", "a/daemontasks/t/status"),
            *("a/pods", "a/pods", "a/pods"),
        ]

    async def test_the_lease_does_not_queue_behind_writes(self, api: FakeApiServer, tmp_path: Path) -> None:
        api.on("POST", NODES, hang)
        api.on("GET", NODES, replying(NODE))
        api.on("PATCH", NODES, replying(NODE))
        async with await KubeClient.connect(api.kubeconfig(tmp_path), pool=1) as client:
            stuck = asyncio.create_task(client.create(NODES, {}, timeout=2))
            await api.received(1)
            await client.urgent(Request("get", NODES), dict)
            await client.urgent(Request("patch", NODES, body=b"{}"), dict)
            assert not stuck.done()
            with pytest.raises(ApiError):
                await stuck


REFUSALS: dict[str, tuple[int, str, set[str]]] = {
    "not found": (404, "NotFound", {"not_found", "not_executed"}),
    "a resourceVersion that no longer holds": (409, "Conflict", {"conflict", "not_executed"}),
    "a name that is taken": (409, "AlreadyExists", {"already_exists"}),
    "a resourceVersion too old to be served": (410, "Expired", {"gone", "not_executed"}),
    "a missing permission": (403, "Forbidden", {"forbidden", "not_executed"}),
    "an object against its schema": (422, "Invalid", {"invalid", "not_executed"}),
    "a server under load": (429, "TooManyRequests", {"throttled", "transient", "not_executed"}),
    "a request that took too long to arrive": (408, "Timeout", {"transient"}),
    "a server out of order": (503, "ServiceUnavailable", {"transient"}),
    "a server that ran out of time": (504, "Timeout", {"transient"}),
}
KINDS = (
    "not_found",
    "conflict",
    "already_exists",
    "gone",
    "forbidden",
    "invalid",
    "throttled",
    "transient",
    "not_executed",
)


class TestConnections:
    @pytest.fixture
    async def peers(self, api: FakeApiServer) -> list[Any]:
        """The connection of each request; an answer is as large as the parameter `size` says."""
        came: list[Any] = []

        async def reply(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            came.append(request.transport.get_extra_info("peername"))
            return answer({**NODE, "data": {"a": "a" * int(request.query.get("size", "1"))}})

        api.on("GET", f"{NODES}/a", reply)
        api.on("PATCH", f"{NODES}/a", reply)
        return came

    async def test_one_is_kept_for_the_next_request(self, client: KubeClient, peers: list[Any]) -> None:
        for _ in range(3):
            await client.get(f"{NODES}/a", params={"size": LARGE // 2})
            await client.patch(f"{NODES}/a", {"data": {"a": "a" * (LARGE // 2)}})
        assert len(peers) == 6
        assert len(set(peers)) == 1

    async def test_one_that_carried_a_large_answer_is_closed(
        self, client: KubeClient, peers: list[Any]
    ) -> None:
        for _ in range(3):
            await client.get(f"{NODES}/a", params={"size": 4 * LARGE})
        assert len(set(peers)) == 3

    async def test_one_that_carried_a_large_body_is_closed(
        self, client: KubeClient, peers: list[Any]
    ) -> None:
        for _ in range(3):
            await client.patch(f"{NODES}/a", {"data": {"a": "a" * LARGE}})
        assert len(set(peers)) == 3


class TestErrors:
    @pytest.mark.parametrize("case", REFUSALS)
    async def test_a_refusal_is_told_apart(self, api: FakeApiServer, client: KubeClient, case: str) -> None:
        code, reason, kinds = REFUSALS[case]
        api.on("POST", NODES, refusing(failure(code, reason, "because")))
        with pytest.raises(ApiError) as caught:
            await client.create(NODES, {})
        error = caught.value
        assert {kind for kind in KINDS if getattr(error, kind)} == kinds
        assert (error.status, error.reason, error.message) == (code, reason, "because")
        assert str(error) == f"create {NODES}: {code} {reason}: because"

    async def test_causes_and_the_time_to_wait_are_kept(self, api: FakeApiServer, client: KubeClient) -> None:
        cause = {"reason": "FieldValueInvalid", "field": "spec.x", "message": "must be small"}
        api.on("POST", NODES, refusing(failure(429, "TooManyRequests", retryAfterSeconds=7, causes=[cause])))
        with pytest.raises(ApiError) as caught:
            await client.create(NODES, {})
        assert caught.value.retry_after == 7.0
        assert caught.value.causes == (("spec.x", "must be small"),)

    async def test_an_answer_from_something_else_in_between_is_an_error_too(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        async def proxy(_: web.Request) -> web.StreamResponse:
            return web.Response(status=502, text="<html>Bad Gateway</html>")

        async def redirect(_: web.Request) -> web.StreamResponse:
            return web.Response(status=302, headers={"Location": "/login"})

        for handler, code in ((proxy, 502), (redirect, 302)):
            api.on("GET", NODES, handler)
            with pytest.raises(ApiError) as caught:
                await client.get(NODES)
            assert caught.value.status == code

    async def test_no_answer_in_time_is_status_0(self, api: FakeApiServer, client: KubeClient) -> None:
        api.on("POST", NODES, hang)
        with pytest.raises(ApiError) as caught:
            await client.create(NODES, {}, timeout=0.05)
        assert (caught.value.status, caught.value.reason) == (0, "Timeout")
        assert caught.value.transient

    async def test_a_lost_connection_is_status_0_and_a_write_is_not_repeated(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        async def drop(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            request.transport.abort()
            return answer(NODE)

        api.on("GET", NODES, replying(page("")))
        await client.list(NODES)
        api.on("POST", NODES, drop)
        with pytest.raises(ApiError) as caught:
            await client.create(NODES, {})
        assert (caught.value.status, caught.value.reason) == (0, "Unreachable")
        assert not caught.value.not_executed, "it may have been"
        assert [r.method for r in api.requests] == ["GET", "POST"]

    async def test_nobody_at_the_address_is_status_0(self, tmp_path: Path) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            api = FakeApiServer()
            api.url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            async with await KubeClient.connect(api.kubeconfig(tmp_path)) as client:
                with pytest.raises(ApiError) as caught:
                    await client.create(NODES, {})
        assert (caught.value.status, caught.value.not_executed) == (0, True)


class TestObserve:
    async def test_each_request_is_told_with_its_verb_resource_and_code(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        told: list[tuple[str, str, int]] = []
        client.observe = lambda verb, resource, code, _: told.append((verb, resource, code))
        api.on("GET", NODES, replying(page("")))
        api.on("POST", NODES, hang)
        await client.list(NODES)
        with pytest.raises(ApiError):
            await client.get(f"{NODES}/a")
        with pytest.raises(ApiError):
            await client.create(NODES, {}, timeout=0.05)
        async with aclosing(client.stream(NODES, {"watch": "1"})) as lines:
            async for _ in lines:
                pass
        assert told == [
            ("list", "nodes", 200),
            ("get", "nodes", 404),
            ("create", "nodes", 0),
            ("watch", "nodes", 200),
        ]

    @pytest.mark.parametrize(
        ("path", "resource"),
        [
            ("/api/v1/nodes", "nodes"),
            ("/api/v1/namespaces/a/pods/b/status", "pods"),
            ("/api/v1/namespaces/a", "namespaces"),
            ("/apis/caretaker.dev/v1alpha1/daemontasks", "daemontasks"),
            ("/apis/caretaker.dev/v1alpha1/namespaces/a/daemontasks/b", "daemontasks"),
            ("/version", ""),
            ("/apis", ""),
        ],
    )
    def test_the_resource_is_the_plural_in_the_path(self, path: str, resource: str) -> None:
        assert resource_of(path) == resource


class TestStream:
    async def lines(self, client: KubeClient, **options: Any) -> list[bytes]:
        found = []
        async with aclosing(client.stream(NODES, {"watch": "1"}, **options)) as lines:
            async for line in lines:
                found.append(line)  # noqa: PERF401 - a watch that raises has told its lines before
        return found

    def sending(self, *chunks: bytes) -> Handler:
        async def send(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for chunk in chunks:
                await response.write(chunk)
            return response

        return send

    async def test_lines_are_put_together_from_pieces(self, api: FakeApiServer, client: KubeClient) -> None:
        api.on("GET", NODES, self.sending(b'{"a"', b":1}\n{", b"}\n", b"\n[]\n[1]\nunfinished"))
        assert await self.lines(client) == [b'{"a":1}', b"{}", b"[]", b"[1]"]

    async def test_a_line_may_be_as_long_as_an_object(self, api: FakeApiServer, client: KubeClient) -> None:
        long = b"x" * (3 * 512 * 1024)
        api.on("GET", NODES, self.sending(long + b"\nshort\n"))
        assert await self.lines(client) == [long, b"short"]

    async def test_a_refused_watch_is_an_error(self, api: FakeApiServer, client: KubeClient) -> None:
        api.on("GET", NODES, refusing(version_expired(5, 80)))
        with pytest.raises(ApiError) as caught:
            await self.lines(client)
        assert (caught.value.gone, caught.value.verb) == (True, "watch")

    async def test_silence_ends_a_watch(self, api: FakeApiServer, client: KubeClient) -> None:
        async def silent(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            return await hang(request)

        opened = []
        api.on("GET", NODES, silent)
        with pytest.raises(ApiError) as caught:
            await self.lines(client, dead_after=0.1, on_open=lambda: opened.append(1))
        assert (caught.value.reason, opened) == ("StreamStalled", [1])

    async def test_a_cut_connection_is_an_error(self, api: FakeApiServer, client: KubeClient) -> None:
        async def cut(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"{}\n")
            assert request.transport is not None
            request.transport.abort()
            return response

        api.on("GET", NODES, cut)
        with pytest.raises(ApiError) as caught:
            await self.lines(client)
        assert (caught.value.status, caught.value.reason) == (0, "Unreachable")


SECRETS = "/api/v1/namespaces/a/secrets"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("../../b/secrets/keys", id="of another namespace"),
        pytest.param("keys/../../../b/secrets/keys", id="of another namespace, by way of its own"),
        pytest.param("..", id="the collection's parent"),
        pytest.param(".", id="the collection"),
        pytest.param("", id="the collection, by an empty name"),
        pytest.param("%2e%2e/%2e%2e/b/secrets/keys", id="escaped"),
        pytest.param("..\\..\\b\\secrets\\keys", id="backslashes"),
        pytest.param("keys?x=y", id="a query"),
        pytest.param("keys#x", id="a fragment"),
        pytest.param("keys\n", id="a line break"),
    ],
)
async def test_a_name_never_leads_to_another_object(
    api: FakeApiServer, client: KubeClient, name: str
) -> None:
    """What tenants write into a spec or a status becomes part of a path."""
    for call in (client.get, client.delete):
        with pytest.raises(ApiError, match="no object can have such a name") as refused:
            await call(f"{SECRETS}/{name}")
        assert refused.value.not_found
    with pytest.raises(ApiError, match="no object can have such a name"):
        async with aclosing(client.stream(f"{SECRETS}/{name}", {})) as lines:
            await anext(lines)
    assert api.requests == []


@pytest.mark.parametrize("answered", [replying("x" * 2 * LARGE), hang], ids=["large", "late"])
async def test_a_closed_client_leaves_no_connection(answered: Handler, tmp_path: Path) -> None:
    """Not one of TLS either, which aiohttp closes in the orderly way after such an answer."""
    certificate = loose_certificate(tmp_path, "127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)

    async def ask(config: str) -> list[str]:
        async with await KubeClient.connect(config) as client:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await client.get(f"{NODES}/a", bytes)
        loop: Any = asyncio.get_running_loop()
        return [repr(each) for each in loop._transports.values()]

    async with FakeApiServer(tls) as api:
        api.on("GET", f"{NODES}/a", answered)
        config = api.kubeconfig(tmp_path, cluster={"certificate-authority": str(certificate)})
        left = await asyncio.to_thread(lambda: asyncio.run(ask(config)))
    assert left
    assert all(each.startswith("<_SelectorSocketTransport closed") for each in left)
