"""Hooks on a botocore client's connections: they count them, keep them alive, guard writes, bound answers.

Inputs: a client, and callbacks that run in the thread of the call; for an endpoint from a tenant's spec, the
rule for addresses (EgressCheck). It must not change requests.
"""

import io
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from http.client import HTTPResponse
from typing import Any, Final, Protocol

from urllib3.exceptions import HTTPError, NewConnectionError

from caretaker.api.egress import Egress
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.aws.large_answers import LARGE_BYTES, acquire_slot
from caretaker.aws.response_check import UNREADABLE
from caretaker.aws.responses import UnreadableError, unreadable
from caretaker.aws.services import CONNECT_SECONDS, READ_SECONDS, is_write, policy

ADDRESS_REFUSED = "AddressRefused"


class EgressCheck:
    """Applies the address rule of target.http (api/egress.py) to an endpoint from a tenant's spec. `allowed`:
    the exceptions. Called in worker threads. It resolves names and opens no connection."""

    def __init__(self, allowed: Collection[str], api_server: str) -> None:
        self._egress = Egress(allowed)
        self._api_server = api_server

    def addresses(self, host: str, port: int) -> Iterator[str]:
        """The addresses that the host resolves to now and that are allowed, in order. Raises OSError if the
        name does not resolve, AwsError if every address is refused."""
        name = host.strip("[]").rstrip(".").lower()
        own = _addresses(self._api_server, 443) if self._api_server else ()
        refusals = {found: self._egress.refusal(name, found, own) for found in _addresses(name, port)}
        if all(refusals.values()):
            raise AwsError(
                ErrorClass.INVALID_REQUEST, ADDRESS_REFUSED, f"endpointURLs: {next(iter(refusals.values()))}"
            )
        return (found for found, refusal in refusals.items() if not refusal)


def _addresses(host: str, port: int) -> tuple[str, ...]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(info[4][0]) for info in found))


# Below the 350 s after which an AWS NAT gateway or load balancer forgets an idle connection and answers the
# next packet with a reset (Amazon VPC user guide, "NAT gateways"); the kernel's own default is two hours.
_KEEPALIVE: Final = (
    (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", None), 60),
    (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPINTVL", None), 15),
    (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPCNT", None), 4),
)
# For one of the addresses of a name, however many it has.
LEAST_SECONDS: Final = 0.01


class Observer(Protocol):
    """Gets events for metrics. Methods are called in the threads that make the calls."""

    def request(self, service: str, operation: str, code: str, seconds: float | None) -> None:
        """One request got a response ("OK" or an error's code), or none (""); retries count each.

        seconds is None for a long poll.
        """

    def connection_opened(self, service: str) -> None:
        """One TCP connection was opened."""

    def polls(self, change: int) -> None:
        """A long poll began (+1) or ended (-1)."""


class Hooks:
    """The callbacks of all clients.

    `guard` is called with the seconds that a write may take from now on, and raises if the Lease may end
    before. The seconds are those of connecting and of reading the answer.
    """

    def __init__(self, connect_seconds: float = CONNECT_SECONDS, read_seconds: float = READ_SECONDS) -> None:
        self.write_seconds = connect_seconds + read_seconds
        self.read_seconds = read_seconds
        self.guard: Callable[[float], None] | None = None
        self.observer: Observer | None = None

    def install(
        self, client: Any, service: str, *, timed: bool = True, egress_check: EgressCheck | None = None
    ) -> None:
        """Hook one botocore client. `timed`: whether its latencies are measured; `egress_check`: the rule for
        the addresses that it connects to, None = no restriction."""
        events = _ClientEvents(self, service, timed=timed, egress_check=egress_check)
        prefix = client.meta.service_model.service_id.hyphenize()
        client.meta.events.register(f"before-send.{prefix}", events.before_send)
        client.meta.events.register(f"response-received.{prefix}", events.response_received)
        # botocore has no hook for connections; its pools are made from this dict, which proxies share.
        pools = client._endpoint.http_session._pool_classes_by_scheme
        for scheme, pool in list(pools.items()):
            members = {"events": events, "response_class": partial(_bounded, events)}
            connection = type("Connection", (_Connection, pool.ConnectionCls), members)
            pools[scheme] = type("Pool", (pool,), {"ConnectionCls": connection})


class RequestBlocked(BaseException):
    """Carries an error of ours through botocore: not an Exception, because botocore would retry the
    request."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class _ClientEvents:
    """The events of one client."""

    def __init__(self, hooks: Hooks, service: str, *, timed: bool, egress_check: EgressCheck | None) -> None:
        self.egress_check = egress_check
        self.answer_mib = policy(service).answer_mib
        self._hooks = hooks
        self._service = service
        self._timed = timed
        self._thread = threading.local()

    def before_send(self, event_name: str, **_: Any) -> None:
        """Each request, retries included, a moment before it is sent."""
        self._thread.operation = event_name.rpartition(".")[2]
        self._thread.write = is_write(self._thread.operation)
        if self._thread.write:
            self._call_guard(self._hooks.write_seconds)
        self._thread.started = time.monotonic()

    def connected(self) -> None:
        """A connection was opened for the request that is about to be sent."""
        if self._hooks.observer is not None:
            self._hooks.observer.connection_opened(self._service)
        # Name resolution and several addresses have no common timeout: the Lease may have ended meanwhile.
        if getattr(self._thread, "write", False):
            self._call_guard(self._hooks.read_seconds)

    def response_received(
        self,
        event_name: str,
        parsed_response: dict[str, Any] | None,
        exception: Exception | None,
        **_: Any,
    ) -> None:
        """Each response, and each request without one."""
        code = "" if exception is not None else _code(parsed_response or {})
        self._count(event_name.rpartition(".")[2], code)

    def cut(self, fault: str) -> RequestBlocked:
        """An answer is not read any further; returns the error to raise."""
        self._count(getattr(self._thread, "operation", ""), UNREADABLE)
        return RequestBlocked(UnreadableError(unreadable(fault), 0))

    def _count(self, operation: str, code: str) -> None:
        if self._hooks.observer is None:
            return
        seconds = time.monotonic() - getattr(self._thread, "started", time.monotonic())
        self._hooks.observer.request(self._service, operation, code, seconds if self._timed else None)

    def _call_guard(self, seconds: float) -> None:
        if self._hooks.guard is None:
            return
        try:
            self._hooks.guard(seconds)
        except Exception as error:
            raise RequestBlocked(error) from error


def _code(response: dict[str, Any]) -> str:
    error = response.get("Error")
    return str(error.get("Code") or "Unknown") if isinstance(error, dict) and "Code" in error else "OK"


class _Answer(io.RawIOBase):
    """The bytes of one response, interim ones and headers included: at most so many, and all within the
    socket's timeout, which by itself is one of each read. A large one waits for a slot, and then comes
    within READ_SECONDS."""

    def __init__(self, events: _ClientEvents, sock: socket.socket) -> None:
        self._events = events
        self._socket = sock
        self._raw: Any = None
        self._left = events.answer_mib << 20
        self._before_slot: int | None = LARGE_BYTES  # bytes that may still come; None = all
        self._begun = False
        self._seconds: float = sock.gettimeout() or READ_SECONDS
        self._deadline = time.monotonic() + self._seconds

    def makefile(self, _mode: str) -> io.BufferedReader:
        """As that of a socket, for reading bytes."""
        self._raw = self._socket.makefile("rb", buffering=0)
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """See RawIOBase. A response of which nothing has come is a timeout like any other."""
        if self._before_slot == 0:
            self._wait_for_slot()
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise self._late()
        try:
            self._socket.settimeout(seconds)
            count: int = self._raw.readinto(memoryview(buffer)[: self._before_slot])
        except TimeoutError:
            if not self._begun:
                raise
            raise self._late() from None
        self._begun = True
        if self._before_slot is not None:
            self._before_slot -= count
        self._left -= count
        if self._left < 0:
            raise self._events.cut(f"it is larger than {self._events.answer_mib} MiB")
        return count

    def _wait_for_slot(self) -> None:
        began, self._before_slot, self._seconds = time.monotonic(), None, READ_SECONDS
        if not acquire_slot():
            raise self._events.cut("other large answers are being read")
        now = time.monotonic()
        self._deadline = min(self._deadline + now - began, now + READ_SECONDS)

    def _late(self) -> RequestBlocked:
        return self._events.cut(f"it takes longer than {self._seconds:g} s")

    def close(self) -> None:
        """Close the file of makefile()."""
        if self._raw is not None:
            self._raw.close()
        super().close()


def _bounded(events: _ClientEvents, sock: socket.socket, *args: Any, **kwargs: Any) -> HTTPResponse:
    """The response that http.client reads from a connection."""
    return HTTPResponse(_Answer(events, sock), *args, **kwargs)  # type: ignore[arg-type]


class _Connection:
    """Mixed into botocore's connection classes."""

    events: _ClientEvents
    port: int
    timeout: float
    _dns_host: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        options = [option for option in _KEEPALIVE if option[1] is not None]
        kwargs["socket_options"] = [*(kwargs.get("socket_options") or ()), *options]
        super().__init__(*args, **kwargs)

    def _new_conn(self) -> Any:
        """Overrides urllib3's method that opens the socket. With an `egress_check` it connects to checked
        addresses, not to the name: a second lookup could return another address. They share the timeout."""
        egress_check = self.events.egress_check
        if egress_check is None:
            return super()._new_conn()  # type: ignore[misc]
        name, seconds, failure = self._dns_host, self.timeout, None
        try:
            addresses = list(self._allowed(egress_check, name))
            deadline = time.monotonic() + seconds
            for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
                if failure is not None and time.monotonic() > deadline:
                    break
                self._dns_host = address
                self.timeout = max((deadline - time.monotonic()) / left, LEAST_SECONDS)
                try:
                    return super()._new_conn()  # type: ignore[misc]
                except HTTPError as error:
                    failure = error
        finally:
            self._dns_host = name  # the certificate is checked against the name
            self.timeout = seconds
        raise failure or NewConnectionError(self, "it has no address")  # type: ignore[arg-type]

    def _allowed(self, egress_check: EgressCheck, name: str) -> Iterator[str]:
        try:
            return egress_check.addresses(name, self.port)
        except AwsError as error:
            raise RequestBlocked(error) from None
        except OSError as error:
            raise NewConnectionError(self, f"its name is not known: {error}") from error  # type: ignore[arg-type]

    def connect(self) -> None:
        """Connect, count, call the guard again."""
        super().connect()  # type: ignore[misc]
        self.events.connected()
