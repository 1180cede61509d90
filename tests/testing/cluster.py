"""Fixtures of the real control plane: one cluster for the run, and for each test what it may call its own.

Tests share the API server, so a test must keep to its namespace and select its nodes by their label.
The clients, steering helpers and recorders come from `testbed`, where benchmarks and the demo find them.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from testbed.admin import Admin, ApiError, Json, path
from testbed.cluster import START_TIMEOUT, Cluster
from testbed.nodes import is_ready, node, register
from testbed.paths import CHECKOUT
from testbed.recorder import PodRecorder
from testing import manifests, suiterole

SHARED_NODES: Final = 4  # each renews its Lease every 10 s, in every control plane of a run
CRDS: Final = sorted((CHECKOUT / "crds").glob("*.yaml"))
TEST_LABEL: Final = "testbed.caretaker.dev/test"


class Nodes:
    """Fake nodes of one test: `selector` is the nodeSelector that finds them and no others."""

    def __init__(self, admin: Admin, test: str) -> None:
        self._admin = admin
        self._prefix = f"n-{test}"
        self.selector: dict[str, str] = {TEST_LABEL: test}
        self.names: list[str] = []

    async def add(
        self,
        count: int = 1,
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        taints: list[dict[str, Any]] | None = None,
        ready: bool = True,
        wait: bool = True,
        names: list[str] | None = None,
    ) -> list[str]:
        """Register nodes (of the given `names`, or numbered) and wait until the scheduler may use them."""
        first = len(self.names)
        fresh = names or [f"{self._prefix}-{number:03d}" for number in range(first, first + count)]
        every = {**self.selector, **(labels or {})}
        bodies = [node(name, every, annotations, ready=ready, taints=taints) for name in fresh]
        await asyncio.gather(*(register(self._admin, body) for body in bodies))
        self.names += [name for name in fresh if name not in self.names]
        if ready and wait:
            await self.wait_ready(fresh)
        return fresh

    async def wait_ready(self, names: list[str]) -> None:
        """Return once all of these are Ready and free of lifecycle taints."""
        await self._admin.wait_for_all(
            path("nodes"),
            lambda items: set(names) <= {item["metadata"]["name"] for item in items if is_ready(item)},
            START_TIMEOUT,
            labels=f"{TEST_LABEL}={self.selector[TEST_LABEL]}",
        )

    async def delete(self, *names: str) -> None:
        """Delete nodes, as a cloud controller does when the machines are gone."""
        await asyncio.gather(*(self._admin.delete(path("nodes", name=name)) for name in names))

    async def uid(self, name: str) -> str:
        """The node's uid."""
        found = await self._admin.get(path("nodes", name=name))
        return str(found["metadata"]["uid"])


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The control plane of this run, with our CRDs and a few fake nodes that belong to no test. Operators
    have an account of their own, and all that they ask for is to be granted to it."""
    started = Cluster(tmp_path_factory.mktemp("cluster"), nodes=SHARED_NODES, audit=True)
    with started:
        bodies = [body for file in CRDS for body in manifests.load_all(file.read_text())]
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, _prepare(started, bodies)).result()
        yield started
        assert suiterole.lacking(started) == []


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane of this module's own, without our CRDs and without nodes."""
    with Cluster(tmp_path_factory.mktemp("bare")) as started:
        yield started


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    """A client with all rights."""
    async with cluster.admin() as client:
        yield client


@pytest.fixture
async def namespace(admin: Admin) -> AsyncIterator[str]:
    """A fresh namespace in which pods can be created. What operators look at in it is deleted afterwards,
    without waiting; the namespace goes with the cluster: its deletion would ask for every kind of object."""
    name = f"t-{secrets.token_hex(4)}"
    await admin.create(path("namespaces"), {"metadata": {"name": name}})
    await admin.wait_for(path("serviceaccounts", name, "default"), lambda _: True)
    yield name
    for kind in ("daemontasks", "s3aggregatedrefreshes", "pods"):
        await admin.delete(path(kind, name), grace=0)


@pytest.fixture
async def nodes(admin: Admin) -> AsyncIterator[Nodes]:
    """A builder of nodes that only this test sees; they are deleted afterwards."""
    built = Nodes(admin, secrets.token_hex(4))
    yield built
    await built.delete(*built.names)


@pytest.fixture
def recorders(admin: Admin, namespace: str) -> Callable[[], PodRecorder]:
    """Makes a recorder of this test's namespace: `async with recorders() as record: ...`."""
    return lambda: PodRecorder(admin, namespace)


async def _prepare(cluster: Cluster, crds: list[Json]) -> None:
    async with cluster.admin() as admin:
        for body in crds:
            await apply_crd(admin, body)
        await suiterole.prepare(admin, cluster)


def crd(plural: str) -> Json:
    """The CRD of one of our kinds."""
    found: Json = manifests.load((CHECKOUT / "crds" / f"{plural}.yaml").read_text())
    return found


async def delete_crd(admin: Admin, name: str) -> None:
    """Return once the CRD is gone, with all of its objects.

    An attempt fails while the storage of its objects is not ready. Where the next one meets a conflict with
    the status that this one has written, there is no other for minutes. A change of the CRD brings one at
    once (k8s.io/apiextensions-apiserver pkg/controller/finalizer).
    """
    url = path("customresourcedefinitions", name=name)
    await admin.delete(url)
    for attempt in range(18):
        try:
            return await admin.wait_gone(url, 10)
        except TimeoutError:
            with contextlib.suppress(ApiError):  # it is gone since
                await admin.patch(url, {"metadata": {"annotations": {"attempt": str(attempt)}}})
    return await admin.wait_gone(url, 10)


async def apply_crd(admin: Admin, body: Json) -> None:
    """Apply a CRD and wait until the API server serves it, and tells so."""
    url = path("customresourcedefinitions", name=body["metadata"]["name"])
    await admin.apply(url, body)
    await admin.wait_for(url, lambda crd: _condition(crd, "Established") == "True")
    # Of a group that is new, discovery knows a moment later.
    spec = body["spec"]
    served = next(version["name"] for version in spec["versions"] if version["served"])
    version = f"/apis/{spec['group']}/{served}"
    async with asyncio.timeout(START_TIMEOUT):
        while not _tells_of(spec["names"]["plural"], await admin.find(version)):  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0.05)


def _tells_of(plural: str, discovered: Json | None) -> bool:
    return plural in {resource["name"] for resource in (discovered or {}).get("resources", ())}


def _condition(body: Mapping[str, Any], kind: str) -> str | None:
    conditions = body.get("status", {}).get("conditions") or []  # null before the first condition
    return next((condition["status"] for condition in conditions if condition["type"] == kind), None)
