"""A control plane and one real node, as one thing to start and to stop.

Inputs: a folder of its own, files with images to import. Everything runs in namespaces of the node's own
(`place`); the API server is reached from here at the node's address. It must leave no process, link, mount or
cgroup behind: not on failure, not on Ctrl-C, not when the process that started it is killed.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

from realnode import needs
from realnode.configs import REGISTRIES, SOCKET, Kubelet, user
from realnode.errors import NodeError
from realnode.place import Place, claim
from testbed import build, pki
from testbed.admin import path
from testbed.cluster import APISERVER, Cluster
from testbed.components import Layout, Ports, commands, write_configs, write_kubeconfig
from testbed.nodes import is_ready
from testbed.paths import cache

NAME: Final = "node-1"
READY_SECONDS: Final = 90.0
IMPORT_SECONDS: Final = 180.0
# Nobody else is in the node's network.
PORTS: Final = Ports(etcd=2379, etcd_peer=2380, apiserver=6443)
CONTROL_PLANE: Final = ("etcd", APISERVER)


class Node(Cluster):
    """A cluster whose node `NAME` is real; `add_nodes` adds fake ones. `images`: archives to import."""

    name: Final = NAME

    def __init__(self, folder: Path, images: Sequence[Path] = (), *, audit: bool = False) -> None:
        # The end of this process reaches them through the namespaces, which its guard ends.
        super().__init__(folder, audit=audit, detached=True)
        self._images = list(images)
        self._place: Place | None = None
        self._claimed: IO[str] | None = None
        self.times: dict[str, float] = {}  # step -> seconds since the start

    @property
    def place(self) -> Place:
        """The node's namespaces; NodeError before the start."""
        if self._place is None:
            raise NodeError("the node was not started")
        return self._place

    def start(self) -> None:
        """Install what is missing, if root may; return when the node is Ready and has its images."""
        needs.check()
        super().start()

    def stop(self) -> None:
        """End everything and drop the state; the logs stay until the next start."""
        if self._place is not None:
            self._place.close()
            self._place = None
        super().stop()
        if self._claimed is not None:
            self._claimed.close()
            self._claimed = None

    def add_image(self, archive: Path) -> None:
        """Import one more archive."""
        self.place.run([needs.program("ctr"), "-a", SOCKET, "-n", "k8s.io", "images", "import", str(archive)])

    def name_image(self, known: str, alias: str) -> None:
        """Let an image that is there go by another name as well; both in full."""
        names = ["images", "tag", "--force", known, alias]
        self.place.run([needs.program("ctr"), "-a", SOCKET, "-n", "k8s.io", *names])

    def has_image(self, name: str) -> bool:
        """Whether the node has an image of this name, in full."""
        listed = ["images", "ls", "--quiet"]
        return name in self.place.run([needs.program("ctr"), "-a", SOCKET, "-n", "k8s.io", *listed]).split()

    def pull_from(self, registry: str, url: str) -> None:
        """From now on containerd asks `url`, by plain HTTP, for what is of `registry`, such as docker.io."""
        folder = self.folder / "config" / REGISTRIES / registry
        folder.mkdir(parents=True, exist_ok=True)
        text = f'server = "{url}"\n[host."{url}"]\n  capabilities = ["pull", "resolve"]\n'
        (folder / "hosts.toml").write_text(text)

    def _start_once(self, programs: Path) -> None:
        started = time.monotonic()
        number, self._claimed = claim(cache().with_name("node-places"))
        self._place = place = Place(number, self.folder)
        place.open()
        layout = Layout(
            folder=self.folder,
            programs=programs,
            ports=PORTS,
            credentials=pki.write(self.folder / "pki", addresses=[place.address], kubelets=[user(NAME)]),
            audit=self._audit,
            kubernetes=build.minor(),
            address=place.address,
        )
        self._layout = layout
        kubelet = Kubelet(layout, NAME, place.address, place.cgroup)
        write_configs(layout)
        kubelet.write()
        with ThreadPoolExecutor(1) as pool:
            imported = self._run(layout, kubelet, pool, started)
            self._await_node(imported, started)
        write_kubeconfig(self.kubeconfig, layout.url, layout.credentials.ca, "admin", self.token)

    def _run(
        self, layout: Layout, kubelet: Kubelet, pool: ThreadPoolExecutor, started: float
    ) -> "Future[None]":
        plane, node = commands(layout), kubelet.commands()
        plane[APISERVER] += ["--kubelet-preferred-address-types=InternalIP"]
        for name in CONTROL_PLANE:
            self._launch(name, plane.pop(name))
        self._launch("containerd", node.pop("containerd"))
        self._await(self._containerd_answers, "containerd")
        self.times["containerd answers"] = time.monotonic() - started
        imported = pool.submit(self._import, started)
        self._await(self._ready, "the API server's /readyz")
        self.times["API server ready"] = time.monotonic() - started
        for name, command in (plane | node).items():
            self._launch(name, command)
        return imported

    def _await_node(self, imported: "Future[None]", started: float) -> None:
        self._await(self._node_is_ready, f"{NAME} Ready")
        self.times["node Ready"] = time.monotonic() - started
        account = path("serviceaccounts", "default", "default")
        self._await(lambda: self._answers(account), account)
        imported.result(IMPORT_SECONDS)
        self._complain_of_the_dead()
        self.times["usable"] = time.monotonic() - started

    def _launch(self, name: str, command: Sequence[str]) -> None:
        environment = {"PATH": needs.SEARCH, "HOME": "/run"}
        # Their own end is that of the namespaces; a parent outside is none that they could see.
        assignments = [f"{key}={value}" for key, value in environment.items()]
        self._processes.start(name, self.place.enter(["env", *assignments, *command]))

    def _import(self, started: float) -> None:
        for archive in self._images:
            self.add_image(archive)
        self.times["images imported"] = time.monotonic() - started

    def _containerd_answers(self) -> bool:
        try:
            self.place.run([needs.program("ctr"), "-a", SOCKET, "version"])
        except NodeError:
            return False
        return True

    def _node_is_ready(self) -> bool:
        found = self._get(path("nodes", name=NAME))
        return found is not None and is_ready(found)
