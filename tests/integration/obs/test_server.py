"""/metrics, /healthz and /readyz as the kubelet and Prometheus ask for them."""

import asyncio
import contextlib
import gc
import io
import logging
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from caretaker.obs import log
from caretaker.obs import server as obs_server
from caretaker.obs.metrics import create_metrics
from caretaker.obs.server import (
    CONNECTION_SECONDS,
    MAX_CONNECTIONS,
    ConnectionLimiter,
    ListenError,
    ObsServer,
)
from caretaker.settings import Settings
from testing.operator import parse_metrics


@pytest.fixture
async def server() -> AsyncIterator[ObsServer]:
    server = ObsServer(create_metrics("1.2.3").registry)
    yield server
    await server.stop()


async def get(port: int, path: str, **headers: str) -> tuple[int, str, str]:
    """(status, body, content type)."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as response,
    ):
        return response.status, await response.text(), response.headers["Content-Type"]


async def test_two_free_ports_serve_their_paths_only(server: ObsServer) -> None:
    bound = await server.start("127.0.0.1", 0, 0)
    assert bound.metrics_port != bound.health_port
    status, text, kind = await get(bound.metrics_port, "/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert parse_metrics(text)['caretaker_build_info{version="1.2.3"}'] == 1
    assert (await get(bound.health_port, "/healthz"))[:2] == (200, "ok\n")
    assert (await get(bound.health_port, "/metrics"))[0] == 404
    assert (await get(bound.metrics_port, "/healthz"))[0] == 404


async def test_openmetrics_is_served_to_who_asks_for_it(server: ObsServer) -> None:
    bound = await server.start("127.0.0.1", 0, 0)
    status, text, kind = await get(
        bound.metrics_port, "/metrics", Accept="application/openmetrics-text; version=1.0.0"
    )
    assert status == 200
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")


async def test_one_port_may_serve_both(server: ObsServer) -> None:
    port = free_port()
    assert await server.start("127.0.0.1", port, port) == (port, port)
    assert (await get(port, "/metrics"))[0] == 200
    assert (await get(port, "/readyz"))[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_by_default_both_families_hear_it(server: ObsServer, host: str) -> None:
    bound = await server.start(Settings(identity="a").bind_host, 0, 0)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{host}:{bound.health_port}/healthz") as ok,
    ):
        assert ok.status == 200


@pytest.mark.parametrize(
    ("host", "url"), [("::1", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("localhost", "localhost")]
)
async def test_an_address_that_is_named_is_the_only_one(server: ObsServer, host: str, url: str) -> None:
    bound = await server.start(host, 0, 0)
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://{url}:{bound.health_port}/healthz") as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"http://127.0.0.2:{bound.health_port}/healthz")


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_failing_check_is_a_503_with_its_reason(server: ObsServer, path: str) -> None:
    bound = await server.start("127.0.0.1", 0, 0)
    state: dict[str, str | None] = {"reason": "silent for 200 s"}
    checks = server.healthz if path == "/healthz" else server.readyz
    checks += [("loop", lambda: None), ("reflector nodes", lambda: state["reason"])]
    assert (await get(bound.health_port, path))[:2] == (503, "reflector nodes: silent for 200 s\n")
    verbose = "loop: ok\nreflector nodes: silent for 200 s\n"
    assert (await get(bound.health_port, f"{path}?verbose"))[:2] == (503, verbose)
    state["reason"] = None
    assert (await get(bound.health_port, path))[:2] == (200, "ok\n")


async def test_a_broken_check_is_a_failed_check(server: ObsServer) -> None:
    bound = await server.start("127.0.0.1", 0, 0)
    server.healthz.append(("odd", lambda: {"fine": ""}["odd"]))
    status, text, _ = await get(bound.health_port, "/healthz")
    assert status == 503
    assert text == "odd: the check itself failed: KeyError('odd')\n"


@pytest.mark.parametrize(
    ("taken", "flag"),
    [pytest.param(0, "--metrics-port", id="metrics"), pytest.param(1, "--health-port", id="health")],
)
async def test_a_port_in_use_is_told_with_the_flag_that_mends_it(
    server: ObsServer, taken: int, flag: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupant:
        busy = occupant.getsockname()[1]
        ports = [0, 0]
        ports[taken] = busy
        with pytest.raises(ListenError, match=f"127.0.0.1:{busy}: the port is in use.*{flag}"):
            await server.start("127.0.0.1", *ports)


async def test_stopping_closes_the_ports(server: ObsServer) -> None:
    bound = await server.start("127.0.0.1", 0, 0)
    await server.stop()
    await server.stop()
    for port in bound:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


class Slow:
    """A collector that counts its collections, and blocks its thread until the test releases it."""

    def __init__(self) -> None:
        self.asked = 0
        self.threads: set[int] = set()
        self.may = threading.Event()
        self.begun = threading.Event()

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        self.asked += 1
        self.threads.add(threading.get_ident())
        self.begun.set()
        assert self.may.wait(30)
        yield GaugeMetricFamily("asked", "How often.", value=self.asked)


@pytest.fixture
async def slow() -> AsyncIterator[tuple[Slow, ObsServer]]:
    """A server of one slow metric, which renders at most ten times a second."""
    registry, collector = CollectorRegistry(), Slow()
    registry.register(collector)
    server = ObsServer(registry, metrics_every=0.1)
    yield collector, server
    collector.may.set()
    await server.stop()


async def test_many_scrapes_at_once_are_one_text_made_beside_the_loop(slow: tuple[Slow, ObsServer]) -> None:
    collector, server = slow
    bound = await server.start("127.0.0.1", 0, 0)
    scrapes = [asyncio.create_task(get(bound.metrics_port, "/metrics")) for _ in range(50)]
    await asyncio.to_thread(collector.begun.wait, 30)
    assert (await get(bound.health_port, "/healthz"))[:2] == (200, "ok\n"), "health waits for no metrics"
    assert collector.threads == collector.threads - {threading.get_ident()}
    collector.may.set()
    answers = {(status, text) for status, text, _ in await asyncio.gather(*scrapes)}
    assert {status for status, _ in answers} == {200}
    assert len(answers) == collector.asked <= 2, "a request after the start of a rendering gets the next one"


async def test_scrapes_are_not_answered_all_at_once(server: ObsServer) -> None:
    """Hundreds of responses at once would delay all passes."""
    bound = await server.start("127.0.0.1", 0, 0)
    loop, ends = asyncio.get_running_loop(), list[float]()

    async def scrape() -> None:
        assert (await get(bound.metrics_port, "/metrics"))[0] == 200
        ends.append(loop.time())

    await asyncio.gather(*(scrape() for _ in range(30)))
    assert max(ends) - min(ends) >= 20 * obs_server.TURN_SECONDS


async def test_a_client_that_closes_its_connection_is_no_error(
    server: ObsServer, caplog: pytest.LogCaptureFixture
) -> None:
    bound = await server.start("127.0.0.1", 0, 0)
    for _ in range(20):
        _, writer = await asyncio.open_connection("127.0.0.1", bound.metrics_port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        await writer.drain()
        writer.close()
    assert (await get(bound.metrics_port, "/metrics"))[0] == 200
    assert not [record for record in caplog.records if record.exc_info]


async def test_who_has_gone_takes_no_turn(server: ObsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the turns of these would last longer than a connection may."""
    monkeypatch.setattr(obs_server, "TURN_SECONDS", 0.5)
    bound = await server.start("127.0.0.1", 0, 0)
    for count in range(31):
        reader, writer = await asyncio.open_connection("127.0.0.1", bound.metrics_port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        await writer.drain()
        if count < 30:
            writer.close()
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_what_is_told_was_asked_for_before(slow: tuple[Slow, ObsServer]) -> None:
    """No scrape gets a text that was rendered before its request, and each format is rendered at most once in
    the interval."""
    collector, server = slow
    collector.may.set()
    bound = await server.start("127.0.0.1", 0, 0)
    loop = asyncio.get_running_loop()
    started = loop.time()
    for turn in range(1, 4):
        found = (await get(bound.metrics_port, "/metrics"))[1]
        assert parse_metrics(found)["asked"] == turn
    assert loop.time() - started >= 0.2, "two intervals between three texts"
    accepts = [f"application/openmetrics-text; version=1.0.{n}; escaping=x{n}" for n in range(8)]
    seen = await asyncio.gather(*(get(bound.metrics_port, "/metrics", Accept=accept) for accept in accepts))
    assert len({text for _, text, _ in seen}) <= 2, "unknown versions are not rendered separately"


@pytest.mark.parametrize("accept", ["text/plain; version=abc", "a;b;c,,;", "*/*", "application/json"])
async def test_any_accept_header_is_answered(server: ObsServer, accept: str) -> None:
    bound = await server.start("127.0.0.1", 0, 0)
    status, _, kind = await get(bound.metrics_port, "/metrics", Accept=accept)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")


async def test_a_connection_is_for_one_request(server: ObsServer) -> None:
    bound = await server.start("127.0.0.1", 0, 0)
    for port, path in (
        (bound.metrics_port, "/metrics"),
        (bound.health_port, "/healthz"),
        (bound.health_port, "/x"),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 2)
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"Connection: close" in answer
        writer.close()


@pytest.mark.parametrize("turns", range(5))
def test_a_connection_that_comes_as_the_server_stops_is_closed(turns: int) -> None:
    """In any turn of the loop. It delays neither the client nor the end of the program."""

    async def serve() -> bytes:
        server = ObsServer(create_metrics("1.2.3").registry)
        bound = await server.start("127.0.0.1", 0, 0)
        with socket.create_connection(("127.0.0.1", bound.health_port)) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.stop()
            client.setblocking(False)
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(5):
                    return await asyncio.get_running_loop().sock_recv(client, 1)
            return b""

    assert asyncio.run(serve()) == b""


def bounded(monkeypatch: pytest.MonkeyPatch, most: int, seconds: float) -> list[ConnectionLimiter]:
    """Servers that start from now on use these bounds. Returns their ConnectionLimiters."""
    made: list[ConnectionLimiter] = []

    def make(protocol: object) -> ConnectionLimiter:
        made.append(ConnectionLimiter(protocol, most, seconds))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(obs_server, "ConnectionLimiter", make)
    return made


async def silent(port: int, sent: bytes = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: ") -> asyncio.StreamReader:
    """A connection whose request never ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    WRITERS.append(writer)
    return reader


WRITERS: list[asyncio.StreamWriter] = []


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    for writer in WRITERS:
        writer.transport.abort()
    WRITERS.clear()


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: "], ids=["nothing", "half"])
async def test_who_sends_no_request_keeps_nobody_out(
    server: ObsServer, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    metrics, health = bounded(monkeypatch, 16, 600.0), (await server.start("127.0.0.1", 0, 0))
    for port, path in ((health.metrics_port, "/metrics"), (health.health_port, "/healthz")):
        half_open = [await silent(port, sent) for _ in range(40)]
        assert (await get(port, path))[0] == 200
        cut = [reader for reader in half_open if reader.at_eof() or reader.exception()]
        assert len(cut) >= 40 - 16
        assert cut == half_open[: len(cut)], "the oldest first"
    assert [len(one) <= 16 for one in metrics] == [True, True]


async def test_the_documented_bounds_hold(server: ObsServer) -> None:
    """256 connections of 10 s each."""
    port = (await server.start("127.0.0.1", 0, 0)).health_port
    readers = [await silent(port) for _ in range(300)]
    assert (await get(port, "/healthz"))[0] == 200
    async with asyncio.timeout(5):
        await asyncio.gather(*(reader.read() for reader in readers[: 300 - MAX_CONNECTIONS]))
    assert not any(reader.at_eof() for reader in readers[300 - MAX_CONNECTIONS + 1 :])
    assert (MAX_CONNECTIONS, CONNECTION_SECONDS) == (256, 10.0)


@pytest.mark.parametrize("path", ["/healthz", "/x"])
async def test_a_client_that_sends_no_body_keeps_no_other_out(
    server: ObsServer, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The server waits for no body: such a connection would count as one with a request."""
    _, bound = bounded(monkeypatch, 16, 600.0), await server.start("127.0.0.1", 0, 0)
    half = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n".encode()
    answers = [await silent(bound.health_port, half) for _ in range(16)]
    for reader in answers:
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 ")
        await asyncio.wait_for(reader.read(), 5)
    assert (await get(bound.health_port, "/healthz"))[0] == 200


async def test_a_request_without_an_end_is_cut(server: ObsServer) -> None:
    """Its headers are not kept; more than a scraper sends, with a token, is answered."""
    bound = await server.start("127.0.0.1", 0, 0)
    for port, path in ((bound.metrics_port, "/metrics"), (bound.health_port, "/healthz")):
        kept = "".join(f"X-{n}: {'x' * 8000}\r\n" for n in range(100)).encode()
        reader = await silent(port, b"GET " + path.encode() + b" HTTP/1.1\r\nHost: x\r\n" + kept)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), CONNECTION_SECONDS / 2) == b""
        assert (await get(port, path, Authorization="x" * 8000, Cookie="x" * 7000))[0] == 200


async def test_requests_that_are_no_http_fill_no_log(server: ObsServer) -> None:
    out = io.StringIO()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    handler = log.setup(stream=out)
    try:
        port = (await server.start("127.0.0.1", 0, 0)).health_port
        for sent in (b"GET /healthz HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
            assert (await (await silent(port, sent)).readline()).startswith(b"HTTP/1.0 400")
        assert out.getvalue() == ""
    finally:
        logging.captureWarnings(capture=False)
        root.removeHandler(handler)
        root.handlers[:], root.level = before


async def test_who_is_refused_leaves_no_traceback(
    slow: tuple[Slow, ObsServer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, server = slow
    (limits, _), bound = bounded(monkeypatch, 4, 600.0), await server.start("127.0.0.1", 0, 0)
    for _ in range(4):
        await silent(bound.metrics_port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    while len(limits) < 4 or limits._idle:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)
    for _ in range(20):
        reader = await silent(bound.metrics_port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    gc.collect()
    await asyncio.sleep(0)
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_burst_gets_no_more_connections_than_the_bound(
    server: ObsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio accepts up to a hundred connections in one turn of the loop, before connection_lost() of an
    aborted one runs."""
    (limits, _), bound = bounded(monkeypatch, 16, 600.0), await server.start("127.0.0.1", 0, 0)
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", bound.metrics_port)
        burst = [stack.enter_context(socket.create_connection(address)) for _ in range(90)]
        assert (await get(bound.metrics_port, "/metrics"))[0] == 200
        assert len(limits) <= 16
        cut = [one for one in burst if ended(one)]
        assert len(cut) >= 90 - 16
        assert cut == burst[: len(cut)], "the oldest first"


def ended(connection: socket.socket) -> bool:
    """Whether the server has closed it."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


async def test_who_takes_no_answer_is_cut_in_the_end(
    server: ObsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every connection ends, whatever its state."""
    _, connections = bounded(monkeypatch, 16, 0.3), await server.start("127.0.0.1", 0, 0)
    for port in connections:
        reader = await silent(port)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 30) == b""


async def test_with_only_askers_there_the_new_one_is_cut(
    slow: tuple[Slow, ObsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    collector, server = slow
    (limits := bounded(monkeypatch, 3, 600.0)).clear()
    bound = await server.start("127.0.0.1", 0, 0)
    asking = [asyncio.create_task(get(bound.metrics_port, "/metrics")) for _ in range(3)]
    await asyncio.to_thread(collector.begun.wait, 30)
    async with asyncio.timeout(30):
        while len(limits[0]._active) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    with pytest.raises(aiohttp.ClientError):
        await get(bound.metrics_port, "/metrics")
    collector.may.set()
    assert {status for status, _, _ in await asyncio.gather(*asking)} == {200}


async def test_nothing_of_a_connection_stays(server: ObsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bounded(monkeypatch, 16, 600.0)
    bound = await server.start("127.0.0.1", 0, 0)
    for _ in range(40):
        await get(bound.health_port, "/healthz")
    async with asyncio.timeout(30):
        while any(len(one) for one in made):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_metrics_are_for_whom_the_authorizer_lets(server: ObsServer) -> None:
    asked: list[str] = []

    async def authorize(token: str) -> HTTPStatus:
        asked.append(token)
        return HTTPStatus.OK if token == "good" else HTTPStatus.FORBIDDEN

    guarded = ObsServer(create_metrics("1.2.3").registry, authorize=authorize)
    bound = await guarded.start("127.0.0.1", 0, 0)
    port = bound.metrics_port
    assert (await get(port, "/metrics", Authorization="Bearer good"))[0] == 200
    assert (await get(port, "/metrics", Authorization="bearer  good "))[0] == 200
    assert (await get(port, "/metrics", Authorization="Bearer bad"))[:2] == (403, "Forbidden\n")
    assert asked == ["good", "good", "bad"]
    for header in ({}, {"Authorization": "Basic good"}, {"Authorization": "Bearer "}):
        assert (await get(port, "/metrics", **header))[:2] == (401, "Unauthorized\n")
    assert len(asked) == 3
    assert (await get(bound.health_port, "/healthz"))[0] == 200, "health needs no token"
    await guarded.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
