"""Refreshes by HTTP, over loopback: what is sent, what an answer means, what is never connected to."""

import asyncio
import base64
import gc
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import pytest
from aiohttp import web

from caretaker.api import names
from caretaker.api.objects import WireMeta
from caretaker.kube.errors import ApiError, NotLeader
from caretaker.runtime.tasks import cancel
from caretaker.s3refresh.debounce import UNKNOWN, Claim
from caretaker.s3refresh.folders import Request
from caretaker.s3refresh.match import of_buckets
from caretaker.s3refresh.snapshot import Result
from caretaker.s3refresh.targets import Tools
from caretaker.s3refresh.targets.call_slots import CALLS, CallSlots
from caretaker.s3refresh.targets.call_slots import EACH as CALLS_EACH
from caretaker.s3refresh.targets.headers import Secret
from caretaker.s3refresh.targets.http_target import HeadersSecret, HeadersSource, HttpCalls, HttpTarget, make
from caretaker.s3refresh.targets.lookups import EACH, Lookups, Resolver
from caretaker.s3refresh.targets.payload import payload_of
from fakes.apiserver import FakeApiServer, Handler, hang

BUCKET = of_buckets(["bucket"])[0]
CLAIM = Claim("c1", "me", 1_800_000_000.0, Request(("a", "/"), recursive=False), 1_799_999_990.0)
AGAIN = msgspec.structs.replace(CLAIM, attempt=2)
LOOPBACK = ("127.0.0.0/8", "http://127.0.0.1")
METADATA = "169.254.169.254"


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as started:
        yield started


class Secrets:
    """Secrets by name, for headers to 127.0.0.1. An exception is raised instead of returning a Secret; bytes
    are content that is not base64."""

    def __init__(self, **found: Mapping[str, str] | Exception | bytes) -> None:
        self.found = found
        self.labels = {names.SECRET_HEADERS: "true"}
        self.hosts = ""

    async def get(self, path: str, _: type[Secret]) -> Secret:
        name = path.removeprefix("/api/v1/namespaces/default/secrets/")
        found = self.found[name]
        if isinstance(found, Exception):
            raise found
        meta = WireMeta(name=name, labels=self.labels, annotations={names.SECRET_HOSTS: self.hosts})
        if isinstance(found, bytes):
            return Secret(meta, {"X": found.decode()})
        return Secret(meta, {key: base64.b64encode(value.encode()).decode() for key, value in found.items()})


def target(
    url: str,
    *,
    allowed: Collection[str] = LOOPBACK,
    api_server: str = "https://192.0.2.1:6443",
    secrets: Secrets | None = None,
    guard: Any = None,
    lookups: Lookups | None = None,
    call_slots: CallSlots | None = None,
    resource: tuple[str, str] = ("default", "r"),
    **spec: Any,
) -> HttpCalls:
    sources = tuple(HeadersSource(HeadersSecret(name)) for name in (secrets.found if secrets else ()))
    wanted = HttpTarget(url, headers_from=sources, **spec)
    read = secrets or Secrets()
    read.hosts = read.hosts or urlsplit(url).netloc
    client: Any = SimpleNamespace(host=api_server, guard=guard, get=read.get)
    aws: Any = None
    namespace, name = resource
    meta = WireMeta(name=name, namespace=namespace, uid=name)
    tools = Tools(aws, client, meta, None, allowed, lookups or Lookups(), call_slots or CallSlots())
    return HttpCalls(wanted, ["bucket"], tools)


def saying(code: int, **more: Any) -> Handler:
    async def reply(_: web.Request) -> web.StreamResponse:
        return web.Response(status=code, **more)

    return reply


async def cut(request: web.Request) -> web.StreamResponse:
    """The connection is lost once the request has been read."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def port_of(server: FakeApiServer) -> int:
    return int(server.url.rpartition(":")[2])


def resolving(monkeypatch: pytest.MonkeyPatch, **answers: list[list[str]]) -> list[str]:
    """A name server: each question for `name.test` takes its next answer. Returns who was asked for."""
    real, asked = socket.getaddrinfo, []

    def getaddrinfo(host: str, port: Any, *args: Any, **kwargs: Any) -> Any:
        name = str(host).removesuffix(".test")
        if name not in answers:
            return real(host, port, *args, **kwargs)
        asked.append(name)
        turn = answers[name][min(asked.count(name), len(answers[name])) - 1]
        return [found for address in turn for found in real(address, port, type=socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


async def test_a_refresh_is_a_post_with_the_claims_id(server: FakeApiServer) -> None:
    server.on("POST", "/refresh", saying(204))
    secrets = Secrets(one={"Authorization": "Bearer one", "X-A": "a\n"}, two={"authorization": "Bearer two"})
    result = await target(f"{server.url}/refresh", secrets=secrets).refresh(BUCKET, CLAIM)
    assert result == Result("bucket", "c1")
    assert server.bodies == [payload_of(BUCKET, CLAIM)]
    assert json.loads(server.bodies[0])["folders"] == ["a", "/"]
    headers = server.requests[0].headers
    assert headers["Idempotency-Key"] == "c1"
    assert headers["Content-Type"] == "application/json"
    assert (headers.getall("Authorization"), headers["X-A"]) == (["Bearer two"], "a")


async def test_an_attempt_is_like_the_first_to_the_letter(server: FakeApiServer) -> None:
    server.on("POST", "/", saying(200))
    calls = target(server.url)
    await calls.refresh(BUCKET, CLAIM)
    await calls.refresh(BUCKET, msgspec.structs.replace(CLAIM, owner="you", attempt=9))
    assert server.bodies[0] == server.bodies[1]
    assert {request.headers["Idempotency-Key"] for request in server.requests} == {"c1"}


@pytest.mark.parametrize(
    ("status", "wanted", "code"),
    [
        (200, (), ""),
        (299, (), ""),
        (202, (202,), ""),
        (409, (200, 409), ""),
        (200, (202,), "HTTP200"),
        (400, (), "HTTP400"),
        (429, (), "HTTP429"),
        (302, (), "HTTP302"),
        (500, (), UNKNOWN),
        (503, (), UNKNOWN),
        pytest.param(408, (), UNKNOWN, id="it took too long to read"),
        pytest.param(409, (), UNKNOWN, id="it is being worked on"),
        pytest.param(425, (), UNKNOWN, id="it comes too early"),
    ],
)
async def test_what_an_answer_means(
    server: FakeApiServer, status: int, wanted: tuple[int, ...], code: str
) -> None:
    server.on("POST", "/", saying(status, text="what only the operator may see"))
    result = await target(server.url, success_codes=wanted).refresh(BUCKET, CLAIM)
    assert result.code == code
    assert "operator" not in result.message
    assert bool(code) == (str(status) in result.message)


@pytest.mark.parametrize(
    ("status", "first", "again"),
    [
        (401, "HTTP401", UNKNOWN),
        (403, "HTTP403", UNKNOWN),
        (429, "HTTP429", UNKNOWN),
        (400, "HTTP400", "HTTP400"),
    ],
)
async def test_what_is_said_before_anything_is_done_says_nothing_of_an_earlier_attempt(
    server: FakeApiServer, status: int, first: str, again: str
) -> None:
    """An attempt that timed out may still take effect: with a new key the work would be done twice."""
    server.on("POST", "/", saying(status))
    assert (await target(server.url).refresh(BUCKET, CLAIM)).code == first
    assert (await target(server.url).refresh(BUCKET, AGAIN)).code == again


@pytest.mark.parametrize("status", [409, 429, 503])
async def test_how_long_to_wait_is_the_services_to_say(server: FakeApiServer, status: int) -> None:
    server.on("POST", "/", saying(status, headers={"Retry-After": "120"}))
    assert (await target(server.url).refresh(BUCKET, CLAIM)).retry_after == 120.0
    server.on("POST", "/", saying(status, headers={"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}))
    assert (await target(server.url).refresh(BUCKET, CLAIM)).retry_after == 0.0
    server.on("POST", "/", saying(200, headers={"Retry-After": "120"}))
    assert (await target(server.url).refresh(BUCKET, CLAIM)).retry_after == 0.0


@pytest.mark.parametrize("handler", [hang, cut], ids=["no answer", "connection lost"])
async def test_an_answer_that_does_not_come_says_nothing(server: FakeApiServer, handler: Handler) -> None:
    server.on("POST", "/", handler)
    result = await target(server.url, timeout="1s").refresh(BUCKET, CLAIM)
    assert (result.code, len(server.requests)) == (UNKNOWN, 1)


async def test_what_was_not_sent_failed_unless_an_earlier_attempt_may_have_been() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    calls = target(f"http://127.0.0.1:{port}/")
    assert (await calls.refresh(BUCKET, CLAIM)).code == "Unreachable"
    assert (await calls.refresh(BUCKET, AGAIN)).code == UNKNOWN


async def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    result = await target("http://nobody.test/", api_server="https://192.0.2.1").refresh(BUCKET, CLAIM)
    assert result.code == "Unreachable"


async def test_without_the_lease_nothing_is_sent(server: FakeApiServer) -> None:
    def guard(_: float) -> None:
        raise NotLeader("held by another")

    with pytest.raises(NotLeader):
        await target(server.url, guard=guard).refresh(BUCKET, CLAIM)
    assert server.requests == []


class TestEgress:
    @pytest.mark.parametrize(
        "host",
        [
            "127.0.0.1",
            "localhost",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "0.0.0.0",
            "[::]",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.1",
            "0",
        ],
    )
    async def test_loopback_in_any_spelling_is_refused(self, server: FakeApiServer, host: str) -> None:
        server.on("POST", "/", saying(200))
        calls = target(f"http://{host}:{port_of(server)}/", allowed=())
        result = await calls.refresh(BUCKET, CLAIM)
        assert result.code in ("AddressRefused", "Unreachable")
        assert server.requests == []

    @pytest.mark.parametrize(
        "host", [METADATA, "[fd00:ec2::254]", f"[::ffff:{METADATA}]", "[64:ff9b::a9fe:a9fe]", "224.0.0.1"]
    )
    async def test_the_metadata_service_is_refused(self, host: str) -> None:
        result = await target(f"http://{host}/latest/").refresh(BUCKET, CLAIM)
        assert (result.code, "refused" in result.message) == ("AddressRefused", True)

    @pytest.mark.parametrize("address", [METADATA, f"::ffff:{METADATA}", "fd00:ec2::254", "127.0.0.1"])
    async def test_a_name_that_leads_there_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, server: FakeApiServer, address: str
    ) -> None:
        resolving(monkeypatch, inside=[[address]])
        calls = target(f"http://inside.test:{port_of(server)}/", allowed=())
        result = await calls.refresh(BUCKET, CLAIM)
        assert (result.code, server.requests) == ("AddressRefused", [])
        assert address in result.message

    async def test_what_is_judged_is_what_is_connected_to(
        self, monkeypatch: pytest.MonkeyPatch, server: FakeApiServer
    ) -> None:
        """A name that leads elsewhere at the second look (DNS rebinding) is not looked up twice."""
        server.on("POST", "/", saying(200))
        asked = resolving(monkeypatch, rebound=[["127.0.0.1"], [METADATA]])
        calls = target(f"http://rebound.test:{port_of(server)}/", allowed=["127.0.0.1"])
        assert (await calls.refresh(BUCKET, CLAIM)).code == ""
        assert (len(server.requests), asked) == (1, ["rebound"])
        assert (await calls.refresh(BUCKET, CLAIM)).code == "AddressRefused"

    async def test_of_several_addresses_only_those_that_may_be_called_are(
        self, monkeypatch: pytest.MonkeyPatch, server: FakeApiServer
    ) -> None:
        server.on("POST", "/", saying(200))
        resolving(monkeypatch, both=[[METADATA, "127.0.0.1"]])
        calls = target(f"http://both.test:{port_of(server)}/", allowed=["127.0.0.1"])
        assert (await calls.refresh(BUCKET, CLAIM)).code == ""

    async def test_a_host_may_be_allowed_by_name(
        self, monkeypatch: pytest.MonkeyPatch, server: FakeApiServer
    ) -> None:
        server.on("POST", "/", saying(200))
        resolving(monkeypatch, hooks=[["127.0.0.1"]])
        calls = target(f"http://hooks.test:{port_of(server)}/", allowed=["hooks.test"])
        assert (await calls.refresh(BUCKET, CLAIM)).code == ""

    @pytest.mark.parametrize("host", ["10.1.2.3", "[::ffff:10.1.2.3]", "kubernetes.test"])
    async def test_the_api_server_is_refused(self, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
        resolving(monkeypatch, kubernetes=[["10.1.2.3"]], api=[["10.1.2.3"]])
        result = await target(f"http://{host}/", api_server="https://api.test:6443").refresh(BUCKET, CLAIM)
        assert (result.code, "API server" in result.message) == ("AddressRefused", True)

    async def test_redirects_are_not_followed(self, server: FakeApiServer) -> None:
        elsewhere = f"{server.url.replace('127.0.0.1', '127.0.0.2')}/secret"
        server.on("POST", "/", saying(307, headers={"Location": elsewhere}))
        result = await target(server.url, allowed=["127.0.0.1"]).refresh(BUCKET, CLAIM)
        assert (result.code, [request.path for request in server.requests]) == ("HTTP307", ["/"])
        server.on("POST", "/", saying(307, headers={"Location": f"{server.url}/secret"}))
        await target(server.url).refresh(BUCKET, CLAIM)
        assert "/secret" not in [request.path for request in server.requests]

    async def test_no_proxy_is_used(self, monkeypatch: pytest.MonkeyPatch, server: FakeApiServer) -> None:
        """A proxy would connect to what we refuse."""
        async with FakeApiServer() as proxy:
            for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url)
            server.on("POST", "/", saying(200))
            assert (await target(server.url).refresh(BUCKET, CLAIM)).code == ""
            assert (await target(f"http://{METADATA}/").refresh(BUCKET, CLAIM)).code == "AddressRefused"
            assert (proxy.requests, len(server.requests)) == ([], 1)


class TestHeaders:
    @pytest.mark.parametrize(
        ("found", "code", "words"),
        [
            pytest.param(
                ApiError(403, "Forbidden", "no"), "SecretUnreadable", "403 Forbidden", id="no right"
            ),
            pytest.param(b"s3cret!", "SecretUnreadable", "decoded", id="no base64"),
            pytest.param(
                {"AWS_SECRET_ACCESS_KEY": "s3cret"}, "HeadersRefused", "AWS_SECRET_ACCESS_KEY", id="AWS keys"
            ),
            pytest.param({"Host": "s3cret"}, "HeaderInvalid", "Host", id="one of ours"),
            pytest.param({"idempotency-key": "s3cret"}, "HeaderInvalid", "idempotency-key", id="the key"),
            pytest.param(
                {"A": "s3cret\r\nHost: b"}, "HeaderInvalid", "A cannot", id="a second header in one"
            ),
            pytest.param({"A": "s3cret\nHost: b"}, "HeaderInvalid", "A cannot", id="a bare line feed"),
            pytest.param({"A": "s3cret\rHost: b"}, "HeaderInvalid", "A cannot", id="a bare carriage return"),
        ],
    )
    async def test_a_secret_that_will_not_do(
        self, server: FakeApiServer, found: Any, code: str, words: str
    ) -> None:
        result = await target(server.url, secrets=Secrets(one=found)).refresh(BUCKET, CLAIM)
        assert (result.code, server.requests) == (code, [])
        assert words in result.message
        assert "one" in result.message
        assert "s3cret" not in result.message

    @pytest.mark.parametrize(
        ("labels", "hosts", "allowed", "words"),
        [
            ({}, "", LOOPBACK, "label it caretaker.dev/headers=true"),
            ({names.SECRET_HEADERS: "true"}, "elsewhere.example", LOOPBACK, "annotation caretaker.dev/hosts"),
            (
                {names.SECRET_HEADERS: "true"},
                "",
                ("127.0.0.0/8",),
                "begin spec.target.http.url with https://",
            ),
        ],
        ids=["no label", "another host", "no TLS"],
    )
    async def test_a_secret_goes_only_where_it_says_itself(
        self,
        server: FakeApiServer,
        labels: dict[str, str],
        hosts: str,
        allowed: Collection[str],
        words: str,
    ) -> None:
        server.on("POST", "/", saying(200))
        secrets = Secrets(one={"X-Token": "s3cret"})
        secrets.labels, secrets.hosts = labels, hosts
        calls = target(server.url, secrets=secrets, allowed=allowed)
        result = await calls.refresh(BUCKET, CLAIM)
        assert (result.code, server.requests) == ("HeadersRefused", [])
        assert "spec.target.http" in result.message
        assert "Secret one" in result.message
        assert words in result.message
        found = await calls.discover()
        assert (found.complete, found.faults) == (True, (result.message,)), "reported before a call is due"
        assert found.blocked == result.message, "a flush does not wait for ever"
        assert [share.ready for share in found.shares] == [True]

    async def test_discovery_asks_again_soon_for_a_secret_that_the_api_server_did_not_tell(self) -> None:
        calls = target("https://x.example", secrets=Secrets(one=ApiError(503, "ServiceUnavailable", "")))
        found = await calls.discover()
        assert (found.complete, len(found.faults), found.blocked) == (False, 1, "")
        calls = target("https://x.example", secrets=Secrets(one=ApiError(404, "NotFound", "")))
        assert (await calls.discover()).complete

    @pytest.mark.parametrize("handler", [saying(200), saying(400), cut], ids=["accepted", "refused", "lost"])
    async def test_values_are_told_to_nobody_else(
        self, server: FakeApiServer, caplog: pytest.LogCaptureFixture, handler: Handler
    ) -> None:
        server.on("POST", "/", handler)
        with caplog.at_level(logging.DEBUG):
            calls = target(server.url, secrets=Secrets(one={"X-Token": "s3cret"}))
            result = await calls.refresh(BUCKET, CLAIM)
        assert server.requests[0].headers["X-Token"] == "s3cret"
        assert "s3cret" not in caplog.text + str(result)


async def test_discovery_finds_the_buckets_and_judges_the_url() -> None:
    found = await target("https://example.com/refresh").discover()
    assert (found.complete, found.shares, found.faults) == (True, (BUCKET,), ())
    found = await target("https://user:password@example.com/", prefix="site/").discover()
    assert found.shares == of_buckets(["bucket"], "site/", ready=False)
    assert found.faults[0].startswith("spec.target.http.url: must be")


@pytest.mark.parametrize("url", ["https://a..b/", f"https://{'a' * 64}/"])
async def test_a_host_that_no_resolver_takes_is_told_and_not_called(url: str) -> None:
    """The CRD lets it through. A claim may be older than the URL."""
    found = await target(url).discover()
    assert [share.ready for share in found.shares] == [False]
    assert found.faults[0].startswith("spec.target.http.url: has no host")
    result = await target(url).refresh(BUCKET, CLAIM)
    assert (result.code, result.message[:20]) == ("Unreachable", "spec.target.http.url")


class SilentNames:
    """A name server that does not answer for *.silent until it gives up."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._real, self._ended = socket.getaddrinfo, threading.Event()

    def getaddrinfo(self, host: str, *args: Any, **kwargs: Any) -> Any:
        if not str(host).endswith(".silent"):
            return self._real(host, *args, **kwargs)
        self.asked.append(str(host))
        self._ended.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.asked) < count:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)

    def give_up(self) -> None:
        self._ended.set()


@pytest.fixture
def silent_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentNames]:
    names = SilentNames()
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    yield names
    names.give_up()


async def test_names_that_take_long_delay_their_own_namespace_alone(
    server: FakeApiServer, silent_names: SilentNames
) -> None:
    """The author of a URL may run its name server. The event loop's own threads read the operator's token."""
    server.on("POST", "/", saying(200))
    lookups, call_slots = Lookups(), CallSlots()
    client = SimpleNamespace(host="https://192.0.2.1:6443", guard=None)

    def of(namespace: str, url: str) -> HttpCalls:
        meta = WireMeta(name="r", namespace=namespace)
        allowed = ["localhost", "127.0.0.1"]
        tools = Tools(cast(Any, None), cast(Any, client), meta, None, allowed, lookups, call_slots)
        spec = SimpleNamespace(filter=SimpleNamespace(buckets=["bucket"]))
        return make(HttpTarget(url, timeout="2s"), cast(Any, spec), tools)

    slow = [of(f"slow-{n % 15}", f"http://{n}.silent/") for n in range(15 * CALLS_EACH)]
    calls = [asyncio.create_task(one.refresh(BUCKET, CLAIM)) for one in slow]
    await silent_names.until(15 * EACH)
    async with asyncio.timeout(10):
        await asyncio.to_thread(int)
        other = of("other", f"http://localhost:{port_of(server)}/")
        assert (await other.refresh(BUCKET, CLAIM)).code == ""
        address = of("slow-0", f"http://127.0.0.1:{port_of(server)}/")
        assert (await address.refresh(BUCKET, CLAIM)).code == "", "an address needs no lookup"
    assert {result.message for result in await asyncio.gather(*calls)} == {"no answer in 2 s"}
    assert (await slow[0].refresh(BUCKET, CLAIM)).code == UNKNOWN
    assert len(silent_names.asked) == 15 * EACH, "a lookup whose caller has given up keeps its slot"


class TestServersThatDoNotAnswer:
    """Such a call keeps its connection until its timeout."""

    @staticmethod
    def send(
        server: FakeApiServer,
        slots: CallSlots,
        count: int,
        namespace: str,
        name: str = "r",
        *,
        path: str = "hang",
        timeout: str = "60s",
    ) -> list[asyncio.Task[Result]]:
        server.on("POST", "/hang", hang)
        server.on("POST", "/answer", saying(200))
        calls = target(f"{server.url}/{path}", timeout=timeout, call_slots=slots, resource=(namespace, name))
        return [asyncio.create_task(calls.refresh(BUCKET, CLAIM)) for _ in range(count)]

    async def test_a_few_calls_of_a_namespace_are_open_and_other_namespaces_do_not_wait(
        self, server: FakeApiServer
    ) -> None:
        slots = CallSlots()
        calls = self.send(server, slots, 16 * CALLS_EACH, "evil")
        await server.received(CALLS_EACH)
        (other,) = self.send(server, slots, 1, "other", path="answer")
        assert (await asyncio.wait_for(other, 10)).code == ""
        assert len(server.bodies) == CALLS_EACH + 1
        await cancel(*calls)

    async def test_the_calls_of_all_are_bounded_and_namespaces_take_turns(
        self, server: FakeApiServer
    ) -> None:
        slots = CallSlots()
        calls = [call for n in range(20) for call in self.send(server, slots, CALLS_EACH, f"evil-{n}")]
        await server.received(CALLS)
        (other,) = self.send(server, slots, 1, "other", path="answer")
        await asyncio.sleep(0)
        assert (len(server.bodies), other.done()) == (CALLS, False)
        # Four namespaces have waited for longer: each has one turn before.
        await cancel(*calls[:5])
        assert (await asyncio.wait_for(other, 10)).code == ""
        await server.received(CALLS + 6)
        assert len(server.bodies) == CALLS + 6, "the slot of the answered call is the next one's"
        await cancel(*calls)

    async def test_resources_of_a_namespace_take_turns(self, server: FakeApiServer) -> None:
        slots = CallSlots()
        calls = self.send(server, slots, 10 * CALLS_EACH, "shared", "hanging")
        await server.received(CALLS_EACH)
        (other,) = self.send(server, slots, 1, "shared", "other", path="answer")
        await cancel(*calls[:2])
        assert (await asyncio.wait_for(other, 10)).code == ""
        assert len(server.bodies) <= CALLS_EACH + 3, "two slots, and that of the answered call"
        await cancel(*calls)

    async def test_the_timeout_of_one_that_waits_begins_with_its_call(self, server: FakeApiServer) -> None:
        slots = CallSlots()
        calls = self.send(server, slots, CALLS_EACH, "evil", timeout="2s")
        await server.received(CALLS_EACH)
        cancelled, waiting = self.send(server, slots, 2, "evil", path="answer", timeout="1s")
        await asyncio.sleep(0)
        await cancel(cancelled)
        assert (await asyncio.wait_for(waiting, 10)).code == ""
        assert any(call.done() for call in calls), "it has waited for one to end"
        assert len(server.bodies) == CALLS_EACH + 1, "the cancelled one was not sent"
        assert {call.code for call in await asyncio.gather(*calls)} == {UNKNOWN}

    async def test_once_a_stop_is_near_no_call_begins_and_those_under_way_are_answered(
        self, server: FakeApiServer
    ) -> None:
        slots, end = CallSlots(), asyncio.Event()

        async def slow(_: web.Request) -> web.StreamResponse:
            await end.wait()
            return web.Response(status=200)

        server.on("POST", "/slow", slow)
        calls = [call for n in range(20) for call in self.send(server, slots, 5, f"of-{n}", path="slow")]
        await server.received(CALLS)
        slots.close()
        late = self.send(server, slots, 1, "late", path="answer")
        while sum(call.done() for call in calls) < len(calls) - CALLS:
            await asyncio.wait(
                [call for call in calls if not call.done()], return_when=asyncio.FIRST_COMPLETED
            )
        end.set()
        results = await asyncio.wait_for(asyncio.gather(*calls, *late, return_exceptions=True), 10)
        refused = [result for result in results if isinstance(result, NotLeader)]
        assert len(refused) == len(calls) + 1 - CALLS
        assert {result.code for result in results if isinstance(result, Result)} == {""}
        assert len(server.bodies) == CALLS


@pytest.mark.parametrize(
    ("begin", "more", "code"),
    [
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n", UNKNOWN),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n", b"x" * 1000, ""),
    ],
    ids=["interim answers", "a body"],
)
async def test_of_an_answer_without_an_end_little_is_read(begin: bytes, more: bytes, code: str) -> None:
    """The call ends long before its timeout, and no answer holds the event loop."""
    sent = 0

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.transport.set_write_buffer_limits(0)
        with suppress(ConnectionError):
            writer.write(begin)
            while True:
                writer.write(more * 100)
                await writer.drain()
                sent += len(more) * 100
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        call = target(f"http://127.0.0.1:{port}", timeout="60s").refresh(BUCKET, CLAIM)
        assert (await asyncio.wait_for(call, 10)).code == code
    assert sent < 16 << 20, "no more than the buffers of the kernel hold"


async def test_lookups_that_end_let_others_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolving(monkeypatch, **{f"n{n}": [[METADATA]] for n in range(3 * EACH)})
    lookups = Lookups()
    found = [target(f"http://n{n}.test/", lookups=lookups).refresh(BUCKET, CLAIM) for n in range(3 * EACH)]
    assert {result.code for result in await asyncio.gather(*found)} == {"AddressRefused"}
    assert len(asked) == 3 * EACH


async def test_a_lookup_given_up_keeps_its_place_and_one_in_line_leaves_it(
    silent_names: SilentNames, caplog: pytest.LogCaptureFixture
) -> None:
    resolver = Resolver(Lookups(), "default")

    def begin(host: str, count: int) -> list[asyncio.Task[Any]]:
        return [asyncio.create_task(resolver.resolve(host)) for _ in range(count)]

    async def give_up(tasks: list[asyncio.Task[Any]]) -> None:
        for one in tasks:
            one.cancel()
        await asyncio.wait(tasks)

    begun = begin("begun.silent", EACH)
    await silent_names.until(EACH)
    in_line = begin("in-line.silent", EACH + 1)
    await asyncio.sleep(0)
    await give_up(begun)
    await give_up(in_line)
    del begun, in_line
    gc.collect()
    others = begin("127.0.0.1", 3 * EACH)
    for _ in range(5):
        await asyncio.to_thread(int)
    assert not any(one.done() for one in others)
    silent_names.give_up()
    async with asyncio.timeout(10):
        assert {found[0]["host"] for found in await asyncio.gather(*others)} == {"127.0.0.1"}
    assert silent_names.asked == ["begun.silent"] * EACH
    gc.collect()
    assert caplog.records == [], "a failure without a caller is not logged"


async def test_nothing_is_in_flight() -> None:
    calls = target("https://example.com/refresh")
    assert await asyncio.wait_for(calls.ended(["x"]), 1) == ()
