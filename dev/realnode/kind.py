"""A real node in a kind cluster, where a container engine answers: the same to a test as `node.Node`.

Inputs: a folder. The engine builds the images, on the bases that the Dockerfile names. It needs root beside
the engine: to end containers with a signal, and to lay a wire into the node's network. The cluster is deleted
with the block.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from realnode import images
from realnode.errors import NodeError
from realnode.needs import program
from testbed.admin import Admin
from testbed.demo_place import Kind, PlaceError, find_engine
from testbed.paths import CHECKOUT

CLUSTER: Final = "caretaker-e2e"
NETWORK: Final = "kind"


class KindPlace:
    """The network of kind's node, as `place.Place` has it."""

    def __init__(self, pid: int, outside: str) -> None:
        self.pid = pid
        self.outside = outside

    def run(self, command: list[str], given: str = "") -> str:
        """Run a command in the node's network; its output. NodeError when it fails."""
        done = subprocess.run(
            [program("nsenter"), "--target", str(self.pid), "--net", "--", *command],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode:
            raise NodeError(f"{' '.join(command)} failed in the node's network: {done.stderr.strip()}")
        return done.stdout


class KindNode:
    """Use as a context manager."""

    name: Final = f"{CLUSTER}-control-plane"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kind = Kind(folder, keep=False, name=CLUSTER)
        self.kubeconfig = self._kind.kubeconfig
        self.place: KindPlace

    def __enter__(self) -> Self:
        engine = check()
        try:
            self._kind.start()
            pid = _engine(engine, "inspect", "--format", "{{.State.Pid}}", self.name).strip()
            self.place = KindPlace(int(pid), _gateway(engine))
            for target in images.TARGETS:
                self._load(engine, target)
        except BaseException:
            self._kind.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kind.stop()

    def admin(self) -> Admin:
        """A client with all rights, to be used as an async context manager."""
        return self._kind.admin()

    def _load(self, engine: str, target: str) -> None:
        print(f"building the image {target} with {engine}", flush=True)
        name = images.reference(target, images.version())
        archive = self._folder / f"{target}.tar"
        _engine(engine, "build", "--target", target, "--tag", name, str(CHECKOUT))
        _engine(engine, "save", "--output", str(archive), name)
        self._kind.load(archive)
        archive.unlink()


def check() -> str:
    """The engine that answers; NodeError with all that is missing."""
    lines = []
    engine = ""
    try:
        engine = find_engine("a kind cluster", "run `make e2e-node`, which needs none")
    except PlaceError as error:
        lines.append(str(error))
    if sys.platform != "linux" or os.geteuid():
        lines.append("root on Linux is needed beside the engine: a wire is laid into the node's network")
    if lines:
        raise NodeError("\n".join(lines))
    return engine


def _gateway(engine: str) -> str:
    """This machine's own address in the nodes' network."""
    told = _engine(engine, "network", "inspect", NETWORK)
    found = re.search(r'"gateway":\s*"(\d+\.\d+\.\d+\.\d+)"', told, re.IGNORECASE)
    if found is None:
        raise NodeError(f"{engine}'s network {NETWORK} has no IPv4 gateway:\n{told}")
    return found[1]


def _engine(engine: str, *arguments: str) -> str:
    done = subprocess.run([engine, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-15:])
        raise NodeError(f"{engine} {arguments[0]} failed:\n{said}")
    return done.stdout
