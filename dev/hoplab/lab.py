"""The lab as one thing: the network, the fake metadata service in it, and a way for programs into it.

Input: a source of metadata options (a file, a URL, a callable), asked at every request, so that what
changes there takes effect here; without one, `setting` is set by hand. The service runs in this
process and only its sockets are in the lab: a source may therefore ask a server on our loopback.
Everything ends with the block, whatever ended it.
"""

import contextlib
import itertools
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from hoplab import needs, network
from hoplab.imds import FakeImds
from hoplab.namespaces import Namespace
from hoplab.needs import HopLabError
from hoplab.options import MetadataOptions, Setting, Source

PORT: Final = 80
START_SECONDS: Final = 5.0
INSTANCE_ID: Final = "i-0123456789abcdef0"


class HopLab:
    """Use as a context manager; raises HopLabError where the machine lacks what it needs."""

    def __init__(self, source: Source | None = None, *, instance_id: str = INSTANCE_ID) -> None:
        self.setting = Setting(MetadataOptions())
        self.ipv6 = network.ipv6()
        self.imds: FakeImds
        self._source: Source = source or self.setting
        self._instance_id = instance_id
        self._namespaces: dict[str, Namespace]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        needs.check()
        with contextlib.ExitStack() as stack:
            self._namespaces = stack.enter_context(network.network(with_ipv6=self.ipv6))
            self.imds = FakeImds(self._listeners(), self._source, self._instance_id)
            stack.callback(self.imds.close)
            self._await()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def namespaces(self) -> dict[str, Path]:
        """The kernel's handles of the namespaces, by place."""
        return {name: namespace.path for name, namespace in self._namespaces.items()}

    def new_socket(self, place: str, family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
        """A TCP socket in a place. The caller closes it."""
        return self._namespaces[place].new_socket(family)

    def start(self, place: str, command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        """Start a program in a place, with pipes; killed at the end if it is still there.

        It should end with its stdin, so that it goes even if we are killed.
        """
        process = subprocess.Popen(
            self._namespaces[place].enter(command),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._stack.callback(_end, process)
        return process

    def _await(self) -> None:
        """Until every place reaches the service: the first packet on a wire waits for its neighbour."""
        for place, (family, address) in itertools.product(network.PLACES, self._addresses()):
            with self.new_socket(place, family) as first:
                first.settimeout(START_SECONDS)
                if code := first.connect_ex((address, PORT)):
                    raise HopLabError(f"the {place} of the lab does not reach {address}: {os.strerror(code)}")

    def _addresses(self) -> list[tuple[socket.AddressFamily, str]]:
        four, six = (socket.AF_INET, network.IMDS_IPV4), (socket.AF_INET6, network.IMDS_IPV6)
        return [four, six] if self.ipv6 else [four]

    def _listeners(self) -> list[socket.socket]:
        with contextlib.ExitStack() as stack:
            made = []
            for family, address in self._addresses():
                listener = stack.enter_context(self._namespaces[network.IMDS].new_socket(family))
                listener.bind((address, PORT))
                listener.listen()
                made.append(listener)
            stack.pop_all()
        return made


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
