"""The real nodes of the tests, in a kind cluster.

Inputs: a folder. An engine that answers builds the images, on the bases that the Dockerfile names; our own
has no way to the network, and is given those of `images`. It needs root beside the engine: to end containers
with a signal, and to lay a wire into a node's network. The cluster is deleted with the block.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import gotools
from realnode import engine, images, needs, nodeimage
from realnode.engine import Engine, OwnEngine
from realnode.errors import NodeError
from realnode.needs import program
from testbed.admin import Admin
from testbed.demo_place import Kind
from testbed.paths import CHECKOUT

CLUSTER: Final = "caretaker-e2e"
WORKERS: Final = 2
BUILD_SECONDS: Final = 1800.0
CTR: Final = ("ctr", "--namespace", "k8s.io", "images")


class KindPlace:
    """The namespaces of one of kind's nodes, with `enter` and `run` of `place.Place`."""

    def __init__(self, pid: int, outside: str) -> None:
        self.pid = pid
        self.outside = outside

    def enter(self, command: list[str]) -> list[str]:
        """The command line that runs `command` in here."""
        inside = ["--target", str(self.pid), "--mount", "--net", "--pid"]
        return [program("nsenter"), *inside, "--", *command]

    def run(self, command: list[str], given: str = "") -> str:
        """Run a command in the node to its end; its output. NodeError when it fails."""
        done = subprocess.run(
            self.enter(command), input=given, capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode:
            raise NodeError(f"{' '.join(command)} failed in the node: {done.stderr.strip()}")
        return done.stdout


class KindNode:
    """Use as a context manager. `name` and `place` are the first worker's, `places` those of all workers.

    The others are not in the cluster until they `join`, so that what asks for one node finds one.
    """

    def __init__(self, folder: Path, *, ours: bool = True) -> None:
        """`ours`: whether the nodes are given the images of this checkout."""
        self._folder = folder
        self._ours = ours
        self._kind = Kind(folder, keep=False, name=CLUSTER, workers=WORKERS)
        self.name = self._kind.nodes[0]
        self.kubeconfig = self._kind.kubeconfig
        self.places: dict[str, KindPlace] = {}

    @property
    def place(self) -> KindPlace:
        """The first worker."""
        return self.places[self.name]

    def __enter__(self) -> Self:
        check(ours=self._ours)
        try:
            self._kind.start()
            found = self._kind.engine
            outside = found.outside()
            self.places = {name: KindPlace(found.pid(name), outside) for name in self._kind.nodes}
            for archive in self._images() if self._ours else ():
                self.add_image(archive)
            for name in self.others:
                self.leave(name)
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

    @property
    def others(self) -> list[str]:
        """The names of the further workers."""
        return [name for name in self._kind.nodes if name != self.name]

    def join(self, name: str) -> None:
        """Start a worker's kubelet, which registers a Node."""
        self.systemctl(name, "start")

    def leave(self, name: str) -> None:
        """Stop a worker's kubelet, and delete its Node."""
        self.systemctl(name, "stop")
        delete = ("kubectl", "delete", "node", name, "--ignore-not-found")
        self._kind.engine.run("exec", self._kind.control_plane, *delete)

    def systemctl(self, name: str, verb: str) -> None:
        """Start, stop or restart a worker's kubelet."""
        self._kind.engine.run("exec", name, "systemctl", verb, "kubelet")

    def freeze(self, name: str, *, thaw: bool = False) -> None:
        """Stop every process of a worker where it is, as when a machine hangs; or let all go on."""
        self._kind.engine.run("unpause" if thaw else "pause", name)

    def add_image(self, archive: Path) -> None:
        """Import one more archive, into all nodes."""

        def load(place: KindPlace) -> None:
            with archive.open("rb") as file:
                command = place.enter([*CTR, "import", "-"])
                done = subprocess.run(command, stdin=file, capture_output=True, text=False, check=False)
            if done.returncode:
                raise NodeError(f"{archive.name} cannot be imported: {done.stderr.decode().strip()}")

        with ThreadPoolExecutor() as pool:
            list(pool.map(load, self.places.values()))

    def name_image(self, known: str, alias: str) -> None:
        """Let an image that is there go by another name as well; both in full."""
        for place in self.places.values():
            place.run([*CTR, "tag", "--force", known, alias])

    def has_image(self, name: str) -> bool:
        """Whether the first worker has an image of this name, in full."""
        return name in self.place.run([*CTR, "ls", "--quiet"]).split()

    def pull(self, name: str) -> None:
        """Have the nodes pull an image, from where they were told to."""
        folder = "/etc/containerd/certs.d"
        with ThreadPoolExecutor() as pool:
            command = [*CTR, "pull", "--hosts-dir", folder, name]
            list(pool.map(lambda place: place.run(command), self.places.values()))

    def pull_from(self, registry: str, url: str) -> None:
        """From now on the nodes ask `url`, by plain HTTP, for what is of `registry`, such as docker.io."""
        folder = f"/etc/containerd/certs.d/{registry}"
        text = f'server = "{url}"\n[host."{url}"]\n  capabilities = ["pull", "resolve"]\n'
        for place in self.places.values():
            place.run(["mkdir", "-p", folder])
            place.run(["tee", f"{folder}/hosts.toml"], text)

    def _images(self) -> list[Path]:
        if isinstance(self._kind.engine, OwnEngine):
            return images.archives()
        return [self._build(target) for target in images.TARGETS]

    def _build(self, target: str) -> Path:
        found = self._kind.engine
        print(f"building the image {target} with {found.name}", flush=True)
        name = images.reference(target, images.version())
        archive = self._folder / f"{target}.tar"
        found.run("build", "--target", target, "--tag", name, str(CHECKOUT), seconds=BUILD_SECONDS)
        found.run("save", "--output", str(archive), name)
        return archive


def check(*, ours: bool = True) -> Engine | None:
    """The engine that answers; None where one of our own can be started. Packages are installed for that, and
    for the images of tests. `ours`: as of KindNode.

    NodeError, in a line, where kind cannot be used.
    """
    found = engine.check("a kind cluster")
    if found is not None and (sys.platform != "linux" or os.geteuid()):
        raise NodeError(
            f"tests in kind need root on Linux beside {found.name}: a wire is laid into a node's network"
        )
    if found is not None and ours:
        needs.install("mmdebstrap")
        program("mmdebstrap")
    return found


def prepare(*, ours: bool = True) -> None:
    """Have in the cache what takes minutes to make, and needs the network. `ours`: as of KindNode."""
    found = check(ours=ours)
    if found is None or shutil.which("kind") is None:  # as Kind looks for it
        gotools.path("kind")
    if found is None:
        nodeimage.node()
        nodeimage.pods()
        if ours:
            images.archives()
    if ours:
        images.busybox()
