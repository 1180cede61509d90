"""The operator that the tests of this folder share, behind a proxy that counts what it asks for."""

from collections.abc import AsyncIterator, Iterator

import pytest

from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.cluster import Nodes
from testing.kubelet import Kubelet
from testing.operator import OperatorProcess
from testing.world import World

TIME_SCALE = 0.1  # backoffs start at 1 s, finished Pods stay for 3 s at least


@pytest.fixture(scope="package")
def proxy(cluster: Cluster) -> Iterator[ApiProxy]:
    """All that the shared operator asks of the API server goes through it."""
    with ApiProxy(cluster.kubeconfig, "shared") as started:
        yield started


@pytest.fixture(scope="package")
def operator(
    cluster: Cluster, proxy: ApiProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One operator for all tests that do not harm it. Without a Lease: scaled times would lose it on a
    loaded machine, and elections have tests of their own. It watches every namespace, so it must have ended
    before tests elsewhere start operators of their own."""
    kubeconfig = proxy.write_kubeconfig(tmp_path_factory.mktemp("operator") / "kubeconfig")
    with OperatorProcess(kubeconfig, "shared", leader_elect=False, time_scale=TIME_SCALE) as started:
        yield started


@pytest.fixture
async def world(
    operator: OperatorProcess, admin: Admin, namespace: str, nodes: Nodes
) -> AsyncIterator[World]:
    """This test's own namespace, nodes and kubelet, with the shared operator at work."""
    since = len(operator.lines)
    try:
        async with Kubelet(admin, namespace) as kubelet:
            yield World(admin, namespace, nodes, kubelet)
    finally:
        # pytest shows it when the test fails.
        print("\n".join(operator.lines[since:]))
