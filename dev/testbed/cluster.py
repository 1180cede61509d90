"""One control plane with fake nodes: start it, change it, stop it.

Inputs: a folder of its own, for state, logs and the record of processes. Many clusters may run at once,
each in its folder. It must leave no process behind: not on failure, not on Ctrl-C, and, unless it was
asked to be detached, not when the process that started it is killed.
"""

import asyncio
import fcntl
import random
import shutil
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml

from testbed import build, kwok, pki
from testbed.admin import Admin, path
from testbed.components import (
    DEFAULT_CONTROLLER_QPS,
    DEFAULT_SCHEDULER_QPS,
    NODE_LEASE_SECONDS,
    Layout,
    Ports,
    commands,
    write_configs,
    write_kubeconfig,
)
from testbed.nodes import is_ready, node, register
from testbed.processes import Processes, signals_later

START_TIMEOUT: Final = 240.0
ANSWER_SECONDS: Final = 2.0  # of one look whether the API server answers: Ctrl-C waits for it
START_ATTEMPTS: Final = 3
APISERVER: Final = "kube-apiserver"
KWOK: Final = "kwok"
SPACE_MIB: Final = 200  # etcd's write-ahead log and database, and logs
# A kwok that starts beside nodes may end with "concurrent map writes" (v0.8.0, pkg/utils/cel/environment.go).
KWOK_STARTS: Final = 3
# Below the ports that Linux and macOS hand out to outgoing connections, which would otherwise take a
# port between our looking and the component's binding.
PORT_RANGE: Final = (20000, 30000)


class ClusterError(Exception):
    """A component did not start or died; the message holds the end of its log."""


class Cluster:
    """A control plane in `folder`, with `nodes` fake nodes once started.

    `scheduler_qps` and `controller_qps` limit the API clients of the scheduler and of the controller
    manager (requests per second; the defaults are the components' own). `node_lease_seconds` is the
    duration of the nodes' Leases, renewed four times in it; by default the kubelet's 40 s, and so much
    longer above 500 nodes that all of them together write 50 times a second, as 500 nodes do. Pass it
    when most of the nodes are added later. Starting and stopping block: inside an event loop, call them
    through `asyncio.to_thread`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 0,
        scheduler_qps: int = DEFAULT_SCHEDULER_QPS,
        controller_qps: int = DEFAULT_CONTROLLER_QPS,
        node_lease_seconds: int | None = None,
        audit: bool = False,
        detached: bool = False,
    ) -> None:
        self.folder = folder.resolve()
        self.kubeconfig = self.folder / "kubeconfig"
        self._nodes = nodes
        self._speeds: dict[str, Any] = {"scheduler_qps": scheduler_qps, "controller_qps": controller_qps}
        lease = node_lease_seconds or NODE_LEASE_SECONDS * max(1, nodes // 500)
        self._speeds["node_lease_seconds"] = lease
        self._audit = audit
        self._processes = Processes(self.folder, end_with_parent=not detached)
        self._layout: Layout | None = None
        self._lock: Any = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The API server's address."""
        return self._started().url

    @property
    def token(self) -> str:
        """The administrator's bearer token."""
        return self._started().credentials.tokens["admin"]

    @property
    def ca(self) -> Path:
        """The certificate authority of the API server."""
        return self._started().credentials.ca

    @property
    def etcd_url(self) -> str:
        """The store behind the API server."""
        return f"http://127.0.0.1:{self._started().ports.etcd}"

    @property
    def audit_log(self) -> Path:
        """Writes, and whatever service accounts ask, as audit events, one JSON object per line; only with
        `audit=True`."""
        return self._started().audit_log

    def admin(self, *, connections: int = 32, user_agent: str = "testbed") -> Admin:
        """A client with all rights, to be used as an async context manager."""
        return Admin(self.url, self.token, self.ca, connections=connections, user_agent=user_agent)

    def visit(self) -> Admin:
        """The same for a cluster that another process started in this folder; ClusterError without one."""
        if not self.running():
            raise ClusterError("no cluster is running: make cluster")
        known = yaml.safe_load(self.kubeconfig.read_text())
        url, token = known["clusters"][0]["cluster"]["server"], known["users"][0]["user"]["token"]
        return Admin(url, token, self.folder / "pki" / pki.AUTHORITY)

    def running(self) -> bool:
        """Whether every component that was started in this folder is alive, whoever started it."""
        recorded = self._processes.recorded()
        return bool(recorded) and recorded == set(self._processes.running())

    def alive(self) -> list[str]:
        """The names of the components that run in this folder, whoever started them."""
        return sorted(self._processes.running())

    def start(self) -> None:
        """Start from an empty state and return when the API answers and the nodes are Ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _require_space(self.folder)
        programs = build.ensure()
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._start(programs)
                if self._nodes:
                    _run_apart(self._first_nodes())
                    self._complain_of_the_dead()
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """End every component and drop the state; the logs stay until the next start."""
        # Nothing is kept, so nobody needs the seconds of a polite end.
        self._processes.stop(hard=True)
        for name in ("etcd", "pki", "config"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self.kubeconfig.unlink(missing_ok=True)
        self._layout = None

    def stop_apiserver(self, *, hard: bool = False) -> None:
        """End the API server alone: politely, closing its watches, or with SIGKILL."""
        # It stops listening at once; then it would wait up to a minute for open connections.
        self._processes.stop([APISERVER], grace=2.0, hard=hard)

    def start_apiserver(self) -> None:
        """Start the API server again on its old port and wait until it answers.

        kwok starts anew as well: it forgets a change that it could not send when a connection broke, and
        its pod would then stay as it is for ever. Where a cluster has nodes of kwok's, the return waits until
        it plays them again.
        """
        self._processes.start(APISERVER, commands(self._started())[APISERVER])
        self._await(self._ready, "the API server's /readyz")
        self._start_kwok_anew()
        _run_apart(self._nudge_pods())

    def restart_apiserver(self, *, hard: bool = False) -> None:
        """Stop and start the API server; everything stored stays."""
        self.stop_apiserver(hard=hard)
        self.start_apiserver()

    async def add_nodes(
        self,
        count: int,
        prefix: str = "node",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        *,
        ready: bool = True,
        wait: bool = True,
        first: int = 0,
    ) -> list[str]:
        """Register nodes `prefix-0`, `prefix-1`, ... and, unless told not to, wait until they are usable."""
        width = len(str(first + count - 1))
        names = [f"{prefix}-{number:0{width}d}" for number in range(first, first + count)]
        async with self.admin() as admin:
            bodies = [node(name, labels, annotations, ready=ready) for name in names]
            await asyncio.gather(*(register(admin, body) for body in bodies))
            if ready and wait:
                wanted = set(names)
                await admin.wait_for_all(
                    path("nodes"),
                    lambda items: wanted <= {item["metadata"]["name"] for item in items if is_ready(item)},
                    timeout=START_TIMEOUT,
                )
        return names

    async def delete_node(self, name: str) -> None:
        """Delete a node, as a cloud controller does when the machine is gone."""
        async with self.admin() as admin:
            await admin.delete(path("nodes", name=name), grace=0)

    def _started(self) -> Layout:
        if self._layout is None:
            raise ClusterError(f"no cluster was started in {self.folder} by this object")
        return self._layout

    def _start(self, programs: Path) -> None:
        self.stop()
        shutil.rmtree(self.folder / "logs", ignore_errors=True)
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._start_once(programs)
            except ClusterError as error:
                if attempt == START_ATTEMPTS or "address already in use" not in str(error):
                    raise
                self.stop()
            else:
                return

    def _start_once(self, programs: Path) -> None:
        layout = Layout(
            folder=self.folder,
            programs=programs,
            ports=_free_ports(),
            credentials=pki.write(self.folder / "pki"),
            audit=self._audit,
            kubernetes=build.minor(),
            **self._speeds,
        )
        self._layout = layout
        write_configs(layout)
        todo = commands(layout)
        if not build.ends_with_parent(programs):
            self._processes.watch()
        for name in ("etcd", APISERVER):
            self._processes.start(name, todo.pop(name))
        self._await(self._ready, "the API server's /readyz")
        for name, command in todo.items():
            self._processes.start(name, command)
        # The ServiceAccount admission plugin refuses pods until the controller manager made this one.
        account = path("serviceaccounts", "default", "default")
        self._await(lambda: self._answers(account), account)
        self._complain_of_the_dead()
        write_kubeconfig(self.kubeconfig, layout.url, layout.credentials.ca, "admin", self.token)

    async def _first_nodes(self) -> None:
        await self.add_nodes(self._nodes)

    def _start_kwok_anew(self) -> None:
        self._processes.stop([KWOK], hard=True)
        # A new kwok has a new identity and would wait until the old one's node Leases expire.
        self._call("DELETE", path("leases", "kube-node-lease"))
        self._processes.start(KWOK, commands(self._started())[KWOK])

    async def _nudge_pods(self) -> None:
        left = KWOK_STARTS

        def check() -> None:
            nonlocal left
            if left and KWOK in self._processes.dead():
                left -= 1
                self._start_kwok_anew()
            self._complain_of_the_dead()

        async with asyncio.timeout(START_TIMEOUT), self.admin() as admin:
            await kwok.nudge_pods(admin, check)

    def _ready(self) -> bool:
        return self._answers("/readyz")

    def _answers(self, url: str) -> bool:
        try:
            return self._call("GET", url, timeout=ANSWER_SECONDS) == 200
        except OSError:  # urllib's own errors, HTTP statuses from 400 on included, are OSErrors
            return False

    def _call(self, method: str, url: str, timeout: float = 10) -> int:
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(self.url + url, headers=headers, method=method)
        context = ssl.create_default_context(cafile=str(self.ca))
        with urllib.request.urlopen(request, context=context, timeout=timeout) as response:
            return int(response.status)

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            with signals_later():
                done = condition()
            if done:
                return
            self._complain_of_the_dead()
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{what}: no answer within {START_TIMEOUT:.0f} s; see {self.folder / 'logs'}"
                )
            time.sleep(0.1)

    def _complain_of_the_dead(self) -> None:
        for name, code in self._processes.dead().items():
            log = self._processes.log(name)
            raise ClusterError(
                f"{name} ended with code {code}; {log} ends:\n{self._processes.log_tail(name)}"
            )


def _run_apart(work: Coroutine[Any, Any, None]) -> None:
    """Run it in a thread of its own: the caller may be running an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


def _require_space(folder: Path) -> None:
    left = shutil.disk_usage(folder).free >> 20
    if left < SPACE_MIB:
        raise ClusterError(
            f"{folder} has {left} MiB left, and a control plane takes {SPACE_MIB}: free some, or set TMPDIR"
        )


def _free_ports() -> Ports:
    """Ports that nobody listens on now; a collision later shows in the log and is tried again."""
    chosen: list[int] = []
    numbers = random.SystemRandom()
    while len(chosen) < 3:
        port = numbers.randrange(*PORT_RANGE)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in chosen:
            chosen.append(port)
    return Ports(*chosen)
