"""EC2's metadata service beyond the node, one router away from its pods: the hop limit is true.

Inputs: the node's place; a source of the instance's metadata options, asked at every request. The fake runs
in this process, and only its socket is in a network of its own behind the node, so that an answer with a
small IP TTL dies where the node would have forwarded it to a pod. It ends with the block.
"""

import contextlib
from types import TracebackType
from typing import Final, Protocol, Self

from hoplab.imds import FakeImds
from hoplab.lab import PORT
from hoplab.namespaces import Namespace
from hoplab.network import IMDS_IPV4
from hoplab.options import Source
from realnode.needs import program

WIRE: Final = "imds0"
HERE, THERE = "10.254.0.2", "10.254.0.1"


class Network(Protocol):
    """A node's: the process whose network it is, and a way to run commands in it."""

    @property
    def pid(self) -> int:
        """As this process sees it."""

    def run(self, command: list[str], given: str = "") -> str:
        """Run a command in there to its end; its output."""


class MetadataService:
    """Use as a context manager; `imds.requests` are those that came."""

    def __init__(self, place: Network, source: Source, instance_id: str) -> None:
        self.imds: FakeImds
        self._place = place
        self._source = source
        self._instance_id = instance_id
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            beyond = Namespace("imds")
            stack.callback(beyond.close)
            beyond.links(
                [
                    "link set lo up",
                    f"address add {IMDS_IPV4}/32 dev lo",
                    f"link add name inner type veth peer name {WIRE} netns {self._place.pid}",
                    f"address add {THERE}/30 dev inner",
                    "link set inner up",
                ]
            )
            lines = [
                f"address add {HERE}/30 dev {WIRE}",
                f"link set {WIRE} up",
                f"route add {IMDS_IPV4} via {THERE}",
            ]
            self._place.run([program("ip"), "-batch", "-"], "".join(f"{line}\n" for line in lines))
            listener = stack.enter_context(beyond.new_socket())
            listener.bind((IMDS_IPV4, PORT))
            listener.listen()
            self.imds = FakeImds([listener], self._source, self._instance_id)
            stack.callback(self.imds.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
