"""The steps of the probe: connect, ask for a token, ask for the instance's id with it and without, scan.

Inputs: the endpoint. Some dozens of packets, one request after the other: all link-local services of an
instance together take 1,024 packets a second (docs of EC2, "Access instance metadata for an EC2 instance",
considerations). It asks for the instance's id and for nothing else, follows no redirect and no proxy, and
decides nothing: classify.py does.
"""

import errno
import http.client
import socket
import time
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from caretaker_probe.classify import TIMEOUT, Answer, NoAnswer, Observation, Reply
from caretaker_probe.ttlscan import minimal_ttl

CONNECT_SECONDS: Final = 1.0
TOKEN_SECONDS: Final = 1.5
GET_SECONDS: Final = 1.0
TOKEN_PATH: Final = "/latest/api/token"  # noqa: S105  a path, no secret
INSTANCE_ID_PATH: Final = "/latest/meta-data/instance-id"
TOKEN_HEADER: Final = "X-aws-ec2-metadata-token"  # noqa: S105
# The shortest that is of use: it is thrown away at once.
TOKEN_TTL: Final = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
MAX_BODY: Final = 1024  # bytes; a token has 56, an id 19
MAX_ID: Final = 64


class EndpointError(ValueError):
    """The endpoint cannot be used; the message says why."""


@dataclass(frozen=True)
class Endpoint:
    """Where the service is. `address` and `port` as connect() takes them."""

    family: socket.AddressFamily
    address: str
    port: int

    def new_socket(self) -> socket.socket:
        """A TCP socket that could reach it."""
        return socket.socket(self.family, socket.SOCK_STREAM)

    @property
    def host(self) -> str:
        """The header Host."""
        name = f"[{self.address}]" if self.family == socket.AF_INET6 else self.address
        return name if self.port == 80 else f"{name}:{self.port}"


def endpoint_of(url: str) -> Endpoint:
    """An endpoint by its URL. A name is looked up, once."""
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError as error:
        raise EndpointError(f"{url}: {error}") from None
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise EndpointError(f"{url}: want http://ADDRESS or http://ADDRESS:PORT")
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise EndpointError(f"{url}: {error}") from None
    family, _, _, _, address = found[0]
    return Endpoint(family, str(address[0]), port)


def observe(endpoint: Endpoint, expected: str = "", *, tokenless: bool = True) -> Observation:
    """All steps, those that make no sense any more left out. `tokenless`: also a request without a token."""
    seen = _token(endpoint, Observation(expected=expected))
    if seen.failure == TIMEOUT:
        # A lost packet looks like this, and would be taken for a place from which nothing is reached.
        seen = _token(endpoint, Observation(expected=expected))
    if seen.failure:
        return seen
    without = _ask(endpoint, "GET", INSTANCE_ID_PATH, {}, GET_SECONDS)[1] if tokenless else None
    needed = minimal_ttl(endpoint.new_socket, (endpoint.address, endpoint.port))
    return replace(seen, without=without, needed_hops=needed)


def _token(endpoint: Endpoint, seen: Observation) -> Observation:
    """Connect and PUT; with a token the instance's id."""
    opened, token = _ask(endpoint, "PUT", TOKEN_PATH, TOKEN_TTL, TOKEN_SECONDS)
    if isinstance(opened, str):
        return replace(seen, failure=opened)
    seen = replace(seen, connect_milliseconds=opened, token=token)
    if (
        isinstance(token, Answer)
        and token.status == 200
        and token.body.isascii()
        and token.body.isprintable()
    ):
        headers = {TOKEN_HEADER: token.body}
        seen = replace(seen, instance=_ask(endpoint, "GET", INSTANCE_ID_PATH, headers, GET_SECONDS)[1])
    return seen


def _ask(
    endpoint: Endpoint, method: str, path: str, headers: dict[str, str], seconds: float
) -> tuple[float | str, Reply]:
    """(milliseconds of the connect, or why there is none; the answer). Each on a connection of its own: one
    whose answer was lost is of no use any more."""
    with endpoint.new_socket() as raw:
        raw.settimeout(CONNECT_SECONDS)
        started = time.monotonic()
        try:
            raw.connect((endpoint.address, endpoint.port))
        except OSError as error:
            return _why(error), NoAnswer(_why(error))
        connected = _milliseconds(started)
        raw.settimeout(seconds)
        connection = http.client.HTTPConnection(endpoint.address, endpoint.port)
        connection.sock = raw
        started = time.monotonic()
        try:
            connection.request(method, path, headers={"Host": endpoint.host, **headers})
            response = connection.getresponse()
            body = response.read(MAX_BODY).decode("latin-1").strip()
        except (OSError, http.client.HTTPException) as error:
            return connected, NoAnswer(_why(error))
        server = response.headers.get("Server", "").strip()
        return connected, Answer(response.status, body, server[:MAX_ID], _milliseconds(started))


def _milliseconds(since: float) -> float:
    return (time.monotonic() - since) * 1000


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return TIMEOUT
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, str(error.errno))
    return type(error).__name__
