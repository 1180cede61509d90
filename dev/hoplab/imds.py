"""The fake metadata service: HTTP on listening sockets given to it, with a true hop limit.

A connection begins with the system's own TTL. Once a token request has been read, the accepted socket
gets the hop limit as its TTL, so that the handshake has gone through and only the answer dies on its
way; the next request on that connection makes it normal again. It keeps a record of the requests.
"""

import contextlib
import http.server
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from hoplab.answers import TOKEN, Metadata
from hoplab.needs import HopLabError
from hoplab.network import place_of
from hoplab.options import Source

SERVER: Final = "EC2ws"  # as the real one calls itself
SYSTEM_TTL: Final = -1  # ip(7): back to the default
END_SECONDS: Final = 5.0
_RST: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close at once, with a reset


@dataclass(frozen=True)
class Request:
    """One request as it came: from which place, and whether it bore a token (IMDSv2)."""

    place: str
    method: str
    path: str
    token: bool
    status: int


class FakeImds:
    """Serves until `close`. `source` is asked for the options at every request."""

    def __init__(self, listeners: Sequence[socket.socket], source: Source, instance_id: str) -> None:
        self.source = source
        self.server_name = SERVER  # what the header Server says
        self.metadata = Metadata(instance_id)
        self.requests: list[Request] = []
        self._servers = [_Server(self, listener) for listener in listeners]
        self._threads = [
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            for server in self._servers
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End listening and every connection: a socket that stays would keep its namespace alive."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
            server.drop_connections()
        for thread in self._threads:
            thread.join(END_SECONDS)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, imds: FakeImds, listener: socket.socket) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()  # made by the base class, in our own namespace
        self.socket = listener
        self.imds = imds
        self.ipv6 = listener.family == socket.AF_INET6
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """With a reset, since a FIN and its retries would die where the answer did, for minutes."""
        with self._guard:
            if request in self._open:
                self._open.remove(request)
                _end(request)

    def drop_connections(self) -> None:
        """End what is open; its threads end by that."""
        with self._guard:
            while self._open:
                _end(self._open.pop())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # an answer leaves as one packet: in two, the second waits for a delayed ACK
    server: _Server

    def do_GET(self) -> None:
        self._serve("GET")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def version_string(self) -> str:
        return self.server.imds.server_name

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """The record is kept instead."""

    def _serve(self, method: str) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        imds = self.server.imds
        try:
            options = imds.source()
        except HopLabError as error:
            self.send_error(500, str(error))
            return
        if self.server.ipv6 and options.http_protocol_ipv6 == "disabled":
            self.close_connection = True
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = imds.metadata.answer(method, self.path, headers, options, time.time())
        imds.requests.append(
            Request(place_of(self.client_address[0]), method, self.path, TOKEN in headers, answer.status)
        )
        _limit(self.connection, options.http_put_response_hop_limit if answer.limited else SYSTEM_TTL)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        body = answer.body.encode()
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if self.close_connection:
            self.wfile.flush()
            _await_end(self.connection)


def _limit(connection: socket.socket, hops: int) -> None:
    """The TTL of whatever leaves this socket from now on."""
    if connection.family == socket.AF_INET6:
        connection.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, hops)
    else:
        connection.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hops)


def _await_end(connection: socket.socket) -> None:
    """After the last answer: until the client has read it and closes, or gives up."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(END_SECONDS)
        while connection.recv(4096):
            pass


def _end(connection: socket.socket) -> None:
    """Shut down first: another thread may be reading, and a close alone would not wake it."""
    with contextlib.suppress(OSError):
        # The reset itself has to arrive, or the client's side lingers.
        _limit(connection, SYSTEM_TTL)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
        connection.shutdown(socket.SHUT_RD)
    connection.close()
