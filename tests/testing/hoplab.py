"""Plain requests from a place of the hop-limit lab, and what is left of namespaces that have ended."""

import contextlib
import http.client
import math
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from hoplab.answers import TOKEN_PATH, TOKEN_TTL
from hoplab.lab import PORT, HopLab
from hoplab.network import IMDS_IPV4, IMDS_IPV6

# An answer takes a few ms in the lab; one that was dropped never comes.
SILENCE_SECONDS: Final = 0.5
A_MINUTE: Final = {TOKEN_TTL: "60"}
ANSWER_SECONDS: Final = 10.0  # on a busy machine


class Connection(http.client.HTTPConnection):
    """One connection from a place to the metadata service; `connected` is how long the handshake took."""

    def __init__(self, lab: HopLab, place: str, family: socket.AddressFamily = socket.AF_INET) -> None:
        super().__init__(IMDS_IPV6 if family == socket.AF_INET6 else IMDS_IPV4, PORT)
        self.sock = lab.new_socket(place, family)
        self.sock.settimeout(ANSWER_SECONDS)
        started = time.monotonic()
        try:
            self.sock.connect((self.host, PORT))
        except OSError:
            self.sock.close()
            raise
        self.connected = time.monotonic() - started

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str, str | None]:
        """The answer's status and body, and who says that it is the server."""
        self.request(method, path, headers=dict(headers))
        answer = self.getresponse()
        return answer.status, answer.read().decode(), answer.headers["Server"]

    def token(self) -> str:
        """A token of a minute."""
        return self.ask("PUT", TOKEN_PATH, A_MINUTE)[1]

    def silent(self) -> bool:
        """Whether the request for a token, which is taken, is not answered."""
        self.sock.settimeout(SILENCE_SECONDS)
        try:
            self.token()
        except TimeoutError:
            return True
        return False


def handles(began: float = math.inf) -> set[str]:
    """The network namespaces that some process is in which began before that (Unix seconds)."""
    found = set()
    for handle in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            name = os.readlink(handle)
            if psutil.Process(int(handle.parts[2])).create_time() < began:
                found.add(name)
    return found


def gone(namespaces: Collection[str]) -> bool:
    """Whether no process is left in any of them, soon enough. The kernel gives a name again, perhaps at once
    to another test's lab: its processes are younger."""
    now = time.time()
    return until(lambda: not handles(now) & set(namespaces))


def until(wanted: Callable[[], bool], *, within: float = 10.0) -> bool:
    """Whether it comes to hold in that many seconds."""
    end = time.monotonic() + within
    while not wanted():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
