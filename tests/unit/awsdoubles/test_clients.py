"""The tests' own boto3 clients."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

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
