"""/metrics, /healthz and /readyz as the kubelet and Prometheus ask for them."""

import asyncio
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest

from caretaker.obs.http import ListenError, ObsServer
from caretaker.obs.metrics import create_metrics
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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
