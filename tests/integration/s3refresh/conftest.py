"""What the tests of this folder share: the operator's AWS layer aimed at the doubles, and one operator.

The shared operator watches one namespace, which no other operator does; each test's resources lead it to that
test's own doubles by their spec.aws.endpointURLs. A test that harms its operator starts one of its own, in a
namespace of its own.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from awsdoubles.gateway.server import StorageGateway
from awsdoubles.ministack import MiniStack
from awsdoubles.sqsproxy.proxy import SqsProxy
from awsdoubles.stack import environment
from caretaker.aws.calls import Aws as AwsCalls
from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testing.aws import Aws
from testing.operator import OperatorProcess
from testing.refreshing import Refreshing, operator

TIME_SCALE = 0.05  # the floor of 60 s is 3 s


@pytest.fixture
async def calls(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AwsCalls]:
    """Calls with the doubles' keys; their endpoints are in the targets."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    async with AwsCalls() as made:
        yield made


@pytest.fixture(scope="package")
def shared_namespace(cluster: Cluster) -> str:
    """The namespace of the shared operator."""
    name = f"refreshes-{secrets.token_hex(4)}"

    async def create() -> None:
        async with cluster.admin() as admin:
            await admin.create(path("namespaces"), {"metadata": {"name": name}})

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, create()).result()
    return name


@pytest.fixture(scope="package")
def shared_operator(
    cluster: Cluster, ministack: MiniStack, shared_namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One operator for all tests that do not harm it."""
    env = environment(ministack.url, ministack.url)
    how = {"namespace": shared_namespace, "time_scale": TIME_SCALE}
    folder = tmp_path_factory.mktemp("refresher")
    with operator(cluster.kubeconfig, folder, env, "shared-refresher", **how) as started:
        yield started


@pytest.fixture
async def shared(
    shared_operator: OperatorProcess,
    shared_namespace: str,
    admin: Admin,
    aws: Aws,
    storage_gateway: StorageGateway,
    sqs_proxy: SqsProxy,
) -> AsyncIterator[Refreshing]:
    """This test's own doubles, with the shared operator at work. SQS is `sqs_proxy`."""
    since = len(shared_operator.lines)
    made = Refreshing(
        admin,
        shared_namespace,
        aws,
        storage_gateway.control,
        scale=TIME_SCALE,
        prefix=f"{secrets.token_hex(3)}-",
        endpoints={"sqs": sqs_proxy.url, "storagegateway": storage_gateway.url},
    )
    try:
        yield made
    finally:
        # pytest shows it when the test fails.
        print("\n".join(shared_operator.lines[since:]))
        sqs_proxy.clear()
        await made.clear()
