"""A place for S3AggregatedRefreshes under faults: everything that one needs, and a proxy at every seam.

    operator --+-- ApiProxy ----------------------> API server     (one for each operator)
               +-- Gate --> SqsProxy (shared) ----> MiniStack
               +-- Gate --------------------------> Storage Gateway double

Inputs: a cluster, MiniStack. Time is scaled as in testing.refreshing; many places may be open side by side.
"""

import asyncio
import contextlib
import secrets
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from awsdoubles.envelopes import Queue
from awsdoubles.gateway.server import StorageGateway
from awsdoubles.sqsproxy.proxy import SqsProxy
from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.aws import Aws
from testing.gate import Gate
from testing.operator import OperatorProcess
from testing.refreshing import TIME_SCALE, Refresh, Refreshing, grants, stands
from testing.witness import PLURAL, Witness

MOST_RECEIVES: Final = 1000  # an event that is received this often without being deleted is a fault of ours
START_SECONDS: Final = 120.0
CAUGHT_UP_SECONDS: Final = 150.0


@dataclass(frozen=True)
class Replica:
    """One operator and what stands between it and the world."""

    process: OperatorProcess
    api: ApiProxy
    sqs: Gate
    gateway: Gate
    # A proxy's thread may kill the process while the test starts it anew.
    life: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start it; return once it is ready, which takes its time where many start at once."""
        self.process.start(timeout=START_SECONDS)

    def kill9(self) -> None:
        """SIGKILL, if it runs."""
        with self.life:
            self.process.kill9()

    def revive(self) -> bool:
        """Start it if it does not run, without waiting until it is ready; whether that was so."""
        with self.life:
            if self.process.running:
                return False
            self.process.kill9()  # it ended by itself, perhaps: buried before its successor comes
            self.process.start(wait=False)
            return True


class Place(Refreshing):
    """One test's namespace, doubles and operators; see Refreshing for what it makes. `folder` is its own."""

    def __init__(
        self,
        cluster: Cluster,
        admin: Admin,
        namespace: str,
        aws: Aws,
        gateway: StorageGateway,
        sqs: SqsProxy,
        folder: Path,
    ) -> None:
        super().__init__(admin, namespace, aws, gateway.control)
        self.cluster = cluster
        self.gateway = gateway
        self.sqs = sqs
        self.witness = Witness()
        self.replicas: list[Replica] = []
        self._folder = folder
        self._stack = contextlib.ExitStack()

    async def operator(self, name: str = "operator", **how: Any) -> Replica:
        """An operator behind proxies of its own, all ended with the test; not started with `start=False`.
        `how` as of OperatorProcess; its `args` and `env` come on top."""
        start = how.pop("start", True)
        replica = await asyncio.to_thread(self._replica, name, how)
        self.replicas.append(replica)
        if start:
            await asyncio.to_thread(replica.start)
        return replica

    def _replica(self, name: str, how: dict[str, Any]) -> Replica:
        api = self._stack.enter_context(ApiProxy(self.cluster.kubeconfig, name))
        self.witness.watch(api)
        sqs = self._stack.enter_context(Gate(self.sqs.url))
        gateway = self._stack.enter_context(Gate(self.gateway.url))
        config = api.write_kubeconfig(self._folder / f"{name}.kubeconfig")
        lease = ("--operator-namespace", self.namespace, "--lease-name", "test")
        defaults = {"leader_elect": False, "time_scale": TIME_SCALE, "namespace": self.namespace}
        process = OperatorProcess(
            config,
            name,
            args=(*grants(self._folder), *lease, *how.pop("args", ())),
            env={**self.aws.environment(gateway.url, sqs.url), **how.pop("env", {})},
            **{**defaults, **how},
        )
        self._stack.callback(process.assert_clean_logs)
        self._stack.callback(process.kill9)
        return Replica(process, api, sqs, gateway)

    async def empty(self, *queues: Queue, timeout: float = CAUGHT_UP_SECONDS) -> None:
        """Return once the queues hold nothing, visible or not; their dead-letter queues have to be empty."""
        for queue in queues:
            await self._emptied(queue.url, timeout)
            if queue.dead_letters:
                assert await asyncio.to_thread(self.aws.depth, queue.dead_letters) == (0, 0)

    async def _emptied(self, url: str, timeout: float) -> None:
        await self.until(lambda: self.aws.depth(url) == (0, 0), f"{url} is empty", timeout)

    async def caught_up(self, resource: Refresh, timeout: float = CAUGHT_UP_SECONDS) -> None:
        """Return once the resource is Ready and says that every event was followed by a refresh."""
        await resource.when(lambda r: stands(r, "Ready") and stands(r, "CaughtUp"), timeout)

    async def fresh(self, *shares: str, timeout: float = CAUGHT_UP_SECONDS) -> None:
        """Return once the shares show their buckets as they are: the oracle."""
        for share in shares:
            await asyncio.to_thread(self.control.wait_fresh, share, timeout)

    def promises(self) -> None:
        """Assert what must hold of all that was written and called until now."""
        problems = self.witness.problems(self.control.calls(), self.control.refreshes())
        assert not problems, "\n".join(problems)

    def close(self) -> None:
        """End what was started, newest first."""
        self._stack.close()


@asynccontextmanager
async def refresh_place(
    cluster: Cluster, admin: Admin, aws_url: str, folder: Path, *, seed: int = 0
) -> AsyncIterator[Place]:
    """A place of its own, and everything ended afterwards. `seed` decides chance in the SQS proxy."""
    name = f"s-{secrets.token_hex(4)}"
    (folder / name).mkdir()
    await admin.create(path("namespaces"), {"metadata": {"name": name}})
    with contextlib.ExitStack() as stack:
        aws = stack.enter_context(contextlib.closing(Aws(aws_url)))
        gateway = stack.enter_context(StorageGateway(aws_url))
        sqs = stack.enter_context(SqsProxy(aws_url, seed=seed))
        place = Place(cluster, admin, name, aws, gateway, sqs, folder / name)
        try:
            yield place
        finally:
            await asyncio.to_thread(place.close)
            await admin.delete(path(PLURAL, name))
            await admin.delete(path("namespaces", name=name))
