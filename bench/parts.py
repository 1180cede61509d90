"""What the benches are made of: a cluster, the operator beside it, stopwatches on watches."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, Final, Self

import psutil
import yaml

from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testbed.steer import behaviour
from testing.cluster import apply_crd
from testing.operator import OperatorProcess, Samples

CRDS: Final = CHECKOUT / "crds"
STATE: Final = CHECKOUT / ".dev" / "bench-cluster"
IMAGE: Final = "registry.example/task:1"
RUN_ON: Final = behaviour("run-on")
POLL: Final = 0.25  # seconds between two looks at metrics
# Every node reports at least once meanwhile, as kubelets do every 5 min, here 5 to 5.5. Of a large fleet they
# come evenly, of fake nodes that were registered together within a minute or so.
IDLE_SECONDS: Final = 330.0


def say(text: str) -> None:
    """One line of progress."""
    print(f"   {text}", flush=True)


@asynccontextmanager
async def cluster(
    nodes: int, scheduler_qps: int = 50, controller_qps: int = 20
) -> AsyncIterator[tuple[Cluster, Admin]]:
    """A control plane with the CRDs, and a client."""
    say(f"control plane: {nodes} nodes; QPS: scheduler {scheduler_qps}, controllers {controller_qps}")
    made = Cluster(STATE, nodes=nodes, scheduler_qps=scheduler_qps, controller_qps=controller_qps)
    await asyncio.to_thread(made.start)
    try:
        async with made.admin(connections=64, user_agent="bench") as admin:
            for crd in sorted(CRDS.glob("*.yaml")):
                await apply_crd(admin, yaml.safe_load(crd.read_text()))
            await admin.create(path("namespaces"), {"metadata": {"name": "caretaker-system"}})
            yield made, admin
    finally:
        await asyncio.to_thread(made.stop)


@contextmanager
def operator(of: Cluster) -> Iterator[OperatorProcess]:
    """`caretaker run` at its true pace."""
    with OperatorProcess(of.kubeconfig, "bench", time_scale=1.0) as process:
        yield process


def task(name: str, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A DaemonTask manifest."""
    template = {
        "metadata": {"annotations": annotations or {}},
        "spec": {"containers": [{"name": "main", "image": IMAGE}]},
    }
    return {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "DaemonTask",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": template, **spec},
    }


def daemonset(name: str) -> dict[str, Any]:
    """The same Pods as a DaemonSet."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": RUN_ON},
                "spec": {"containers": [{"name": "main", "image": IMAGE}]},
            },
        },
    }


class PodWatch:
    """Counts Pods of one label selector by phase as a watch tells of them."""

    def __init__(self, admin: Admin, labels: str) -> None:
        self._admin = admin
        self._labels = labels
        self._phases: dict[str, str] = {}
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        # Read before anything is created: the client's pool is shared with the requests that follow.
        version = await self._list()
        self._task = asyncio.create_task(self._follow(version))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    @property
    def count(self) -> int:
        """Pods that there are."""
        return len(self._phases)

    async def reach(self, phase: str, count: int, timeout: float = 300) -> float:
        """Seconds on the monotonic clock when `count` Pods were in `phase`."""
        return await self.until(lambda: sum(1 for p in self._phases.values() if p == phase) >= count, timeout)

    async def until(self, condition: Callable[[], bool], timeout: float = 300) -> float:
        """Seconds on the monotonic clock when `condition` held; it is asked after each event."""
        async with asyncio.timeout(timeout):
            while not condition():
                self._changed.clear()
                change = asyncio.create_task(self._changed.wait())
                await asyncio.wait([change, self._task], return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                if self._task.done():
                    self._task.result()
                    raise RuntimeError("the watch of Pods ended")
        return time.monotonic()

    async def _follow(self, version: str) -> None:
        while True:  # the API server ends the watch of a reader that a burst leaves behind
            events = self._admin.watch(path("pods", "default"), version, labels=self._labels)
            async with aclosing(events):
                async for event in events:
                    if event.type != "BOOKMARK":
                        self._note(event.object, gone=event.type == "DELETED")
            version = await self._list()

    async def _list(self) -> str:
        listed = await self._admin.request(
            "GET", path("pods", "default"), params={"labelSelector": self._labels}
        )
        self._phases.clear()
        for pod in listed["items"]:
            self._note(pod)
        return str(listed["metadata"]["resourceVersion"])

    def _note(self, pod: dict[str, Any], *, gone: bool = False) -> None:
        name = pod["metadata"]["name"]
        if gone:
            self._phases.pop(name, None)
        else:
            self._phases[name] = pod["status"]["phase"]
        self._changed.set()


async def clean(admin: Admin, resource: str, name: str, labels: str) -> None:
    """Delete an owner and wait until its Pods are gone."""
    await admin.delete(path(resource, "default", name))
    await admin.delete(f"/api/v1/namespaces/default/pods?labelSelector={labels}", grace=0)
    await admin.wait_for_all("/api/v1/namespaces/default/pods", lambda pods: not pods, 600, labels=labels)


def writes(samples: Samples, *resources: str) -> float:
    """Writes that the API server answered to the operator: to these resources, or to all but the Lease."""
    total = 0.0
    for series, value in samples.items():
        if not series.startswith("caretaker_api_requests_total{") or 'resource="leases"' in series:
            continue
        wanted = not resources or any(f'resource="{resource}"' in series for resource in resources)
        if wanted and any(f'verb="{verb}"' in series for verb in ("create", "patch", "delete")):
            total += value
    return total


def quantile(before: dict[str, float], after: dict[str, float], name: str, q: float) -> float:
    """A quantile of what a histogram gained between two scrapes: the upper bound of its bucket."""
    gained: list[tuple[float, float]] = []
    for series, value in after.items():
        if series.startswith(f"{name}_bucket{{"):
            bound = series.split('le="')[1].split('"')[0]
            gained.append((float(bound), value - before.get(series, 0.0)))
    gained.sort()
    if not gained or not gained[-1][1]:
        return 0.0
    wanted = q * gained[-1][1]
    return next(bound for bound, count in gained if count >= wanted)


class Usage:
    """CPU and memory of a process, its children included, between two moments."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._cpu = self._seconds()
        self._time = time.monotonic()

    def cpu_share(self) -> float:
        """CPU seconds per second since the start, as a percentage of one core."""
        return 100 * (self._seconds() - self._cpu) / (time.monotonic() - self._time)

    def cpu_seconds(self) -> float:
        """CPU seconds since the start."""
        return self._seconds() - self._cpu

    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._time

    def rss(self) -> float:
        """Resident memory in MiB, now."""
        return float(self._process.memory_info().rss) / 2**20

    def _seconds(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


def percentile(values: list[float], q: float) -> float:
    """The value that a share `q` of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)]


def mean(before: dict[str, float], after: dict[str, float], name: str) -> float:
    """The mean of what a histogram gained between two scrapes."""

    def total(samples: dict[str, float], suffix: str) -> float:
        return sum(v for series, v in samples.items() if series.startswith(f"{name}_{suffix}"))

    count = total(after, "count") - total(before, "count")
    return (total(after, "sum") - total(before, "sum")) / max(count, 1)


def done(before: dict[str, float], after: dict[str, float]) -> str:
    """What the operator did between two scrapes, as a note beside its CPU."""

    def gained(name: str) -> float:
        return sum(v - before.get(series, 0.0) for series, v in after.items() if series.startswith(name))

    passes, events = gained("caretaker_plan_cpu_seconds_count"), gained("caretaker_reflector_events_total{")
    lists, garbage = gained("caretaker_reflector_relists_total{"), gained("python_gc_collections_total{")
    return f"{passes:.0f} passes, {events:.0f} watch events, {lists:.0f} lists, {garbage:.0f} of garbage"


async def succeeded(admin: Admin, name: str, timeout: float = 900) -> dict[str, Any]:
    """The DaemonTask once it is Ready because every node succeeded."""

    def ready(found: dict[str, Any]) -> bool:
        conditions = found.get("status", {}).get("conditions", [])
        return any(c["type"] == "Ready" and c["reason"] == "Succeeded" for c in conditions)

    return await admin.wait_for(path("daemontasks", "default", name), ready, timeout)


async def shown(process: OperatorProcess, condition: Callable[[Samples], bool], timeout: float) -> Samples:
    """The operator's metrics once `condition` holds for them."""
    async with asyncio.timeout(timeout):
        while True:
            samples = await asyncio.to_thread(process.metrics)
            if condition(samples):
                return samples
            await asyncio.sleep(POLL)
