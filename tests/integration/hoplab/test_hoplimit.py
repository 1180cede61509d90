"""The hop-limit lab against EC2's rule: the answer to a token request travels no further than the limit."""

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hoplab.answers import INSTANCE_ID_PATH, ROLE, ROLES_PATH, TOKEN
from hoplab.clients import Client, boto3
from hoplab.imds import SERVER
from hoplab.lab import INSTANCE_ID, HopLab
from hoplab.network import DIND, NODE, PLACES, POD
from hoplab.options import MetadataOptions, from_file, from_url
from hoplab.ttlscan import needed
from testing.hoplab import Connection

NEEDS = {NODE: 1, POD: 2, DIND: 3}
FAST = 0.5  # seconds: a handshake takes less than a ms, but the machine may be busy


@pytest.fixture(scope="module")
def running() -> Iterator[HopLab]:
    with HopLab() as lab:
        yield lab


@pytest.fixture
def lab(running: HopLab) -> HopLab:
    running.setting.options = MetadataOptions()
    running.imds.requests.clear()
    return running


def set_options(lab: HopLab, hops: int, tokens: str = "optional") -> None:
    lab.setting.options = MetadataOptions(hops, "required" if tokens == "required" else "optional")


@pytest.mark.parametrize(
    ("place", "hops", "family"),
    [
        *((place, hops, socket.AF_INET) for place in PLACES for hops in (1, 2, 3)),
        *((POD, hops, socket.AF_INET6) for hops in (1, 2)),
    ],
    ids=lambda value: value.name if isinstance(value, socket.AddressFamily) else None,
)
def test_a_token_reaches_a_place_from_its_hop_limit_on(
    lab: HopLab, place: str, hops: int, family: socket.AddressFamily
) -> None:
    """Below it the signature of the fault: a fast connect, then silence."""
    set_options(lab, hops)
    with Connection(lab, place, family) as connection:
        assert connection.connected < FAST
        assert connection.token() if hops >= NEEDS[place] else connection.silent()
    (request,) = lab.imds.requests
    assert (request.place, request.status) == (place, 200)


def test_metadata_itself_is_not_bound_by_the_limit(lab: HopLab) -> None:
    set_options(lab, 2, "required")
    with Connection(lab, POD) as connection:
        token = connection.token()
        set_options(lab, 1, "required")
        assert connection.ask("GET", INSTANCE_ID_PATH, {TOKEN: token}) == (200, INSTANCE_ID, SERVER)
        assert connection.silent()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def test_the_smallest_ttl_that_connects_is_the_hop_limit_needed(
    lab: HopLab, family: socket.AddressFamily
) -> None:
    assert {place: needed(lab, place, family) for place in PLACES} == NEEDS


def test_boto3_in_a_pod_follows_the_options_while_it_runs(tmp_path: Path) -> None:
    """Slow and open, then shut, then as it should be: from one process, by one file."""
    file = tmp_path / "options.json"

    def write(hops: int, tokens: str) -> None:
        file.write_text(json.dumps({"HttpPutResponseHopLimit": hops, "HttpTokens": tokens}))

    def by_token() -> list[bool]:
        wanted = ROLES_PATH + ROLE
        return [r.token for r in lab.imds.requests if (r.path, r.place, r.status) == (wanted, POD, 200)]

    write(2, "optional")
    with HopLab(from_file(file)) as lab:
        client = Client(lab, POD, boto3())
        client.resolve()  # imports, once
        lab.imds.requests.clear()
        write(1, "optional")
        slow = client.resolve()
        assert (slow.error, by_token()) == ("", [False])
        assert slow.seconds > 0.9
        write(1, "required")
        assert client.resolve().error == "no credentials"
        write(2, "required")
        mended = client.resolve()
        assert (mended.error, by_token()) == ("", [False, True])
        assert mended.seconds < slow.seconds / 2


def test_the_options_may_come_from_a_server_on_our_loopback() -> None:
    """As from a double of EC2: outside the lab, asked at every request."""
    options = {"HttpPutResponseHopLimit": 1}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(options).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            with HopLab(from_url(f"http://127.0.0.1:{server.server_port}/")) as lab:
                with Connection(lab, POD) as connection:
                    assert connection.silent()
                options["HttpPutResponseHopLimit"] = 2
                with Connection(lab, POD) as connection:
                    assert connection.token()
        finally:
            server.shutdown()
