"""The tests' own boto3 clients."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from awsdoubles import clients
from awsdoubles.clients import client


def test_no_request_is_sent_on_a_connection_that_the_server_may_be_closing() -> None:
    """Each has a connection of its own."""
    peers: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            peers.append(self.client_address[1])
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            if self.close_connection:  # the request asked for it
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        sqs = client("sqs", f"http://127.0.0.1:{server.server_port}")
        try:
            for _ in range(3):
                sqs.list_queues()
        finally:
            sqs.close()
            server.shutdown()
    assert len(set(peers)) == 3


@pytest.mark.parametrize(
    ("operation", "arguments", "repeated"),
    [
        ("create_queue", {"QueueName": "q"}, True),
        ("send_message", {"QueueUrl": "http://127.0.0.1/0/q", "MessageBody": "m"}, False),
        ("receive_message", {"QueueUrl": "http://127.0.0.1/0/q"}, False),
    ],
)
def test_only_what_sets_up_is_asked_again_and_only_once(
    operation: str, arguments: dict[str, str], repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second message, or a second receipt, would be another history."""
    asked: list[str] = []
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.headers["X-Amz-Target"])
            over.wait()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    monkeypatch.setattr(clients, "READ_TIMEOUT", 0.2)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        sqs: Any = client("sqs", f"http://127.0.0.1:{server.server_port}")
        try:
            with pytest.raises(ReadTimeoutError):
                getattr(sqs, operation)(**arguments)
        finally:
            over.set()
            sqs.close()
            server.shutdown()
    assert len(asked) == (2 if repeated else 1)
