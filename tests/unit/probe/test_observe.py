"""The steps of the probe, against a service that is one lost packet away."""

import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from caretaker_probe.classify import Answer, classify
from caretaker_probe.observe import Endpoint, observe


class _Imds(http.server.BaseHTTPRequestHandler):
    """Gives metadata without a token, and no token."""

    server_version = "EC2ws"
    sys_version = ""
    tokenless = 0  # requests without a token

    def do_PUT(self) -> None:
        self.send_error(403)

    def do_GET(self) -> None:
        _Imds.tokenless += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"i-0123456789abcdef0")

    def log_message(self, *_: Any) -> None:
        pass


class _Lost:
    """A socket whose SYN gets lost."""

    def __enter__(self) -> "_Lost":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def settimeout(self, _: float) -> None:
        pass

    def connect(self, _: object) -> None:
        raise TimeoutError


def lossy(port: int, losses: int) -> Endpoint:
    """So many connections get lost, the first ones."""
    left = ["lost"] * losses

    class Lossy(Endpoint):
        def new_socket(self) -> Any:
            return _Lost() if left and left.pop() else super().new_socket()

    return Lossy(socket.AF_INET, "127.0.0.1", port)


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Imds) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("losses", "verdict"), [(0, "Proxied"), (1, "Proxied"), (2, "Blocked")])
def test_one_lost_packet_is_not_taken_for_a_place_that_is_shut(port: int, losses: int, verdict: str) -> None:
    """And what is given without a token is asked for, though none came."""
    seen = observe(lossy(port, losses))
    found = classify(seen)
    assert found.verdict == verdict
    if verdict != "Blocked":
        assert isinstance(seen.without, Answer)
        assert found.imdsv1 == "Open"


def test_nothing_is_asked_without_a_token_where_that_is_switched_off(port: int) -> None:
    """EC2 counts such requests (MetadataNoToken)."""
    before = _Imds.tokenless
    seen = observe(lossy(port, 0), tokenless=False)
    assert (seen.without, _Imds.tokenless) == (None, before)
    assert classify(seen).imdsv1 is None
    observe(lossy(port, 0))
    assert _Imds.tokenless == before + 1
