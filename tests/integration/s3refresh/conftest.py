"""What the tests of this folder share: the operator's AWS layer aimed at the doubles, and one operator.

The shared operator watches one namespace, which no other operator does; each test's resources lead it to that
test's own doubles by their spec.aws.endpointURLs. A test that harms its operator starts one of its own, in a
namespace of its own.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from awsdoubles.gateway.server import StorageGateway
from awsdoubles.ministack import MiniStack
from awsdoubles.sqsproxy.proxy import SqsProxy
from awsdoubles.stack import environment
from caretaker.aws.calls import Aws as AwsCalls
from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.aws import Aws
from testing.operator import OperatorProcess
from testing.refreshing import Refreshing, grants, operator

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
    folder = tmp_path_factory.mktemp("refresher")
    # By this name only: what is refused can be tried by address.
    args = (*grants(folder), "--egress-allow", "localhost,http://localhost")
    how = {"namespace": shared_namespace, "time_scale": TIME_SCALE, "args": args}
    with operator(cluster.kubeconfig, folder, env, "shared-refresher", **how) as started:
        yield started


def by_name(url: str) -> str:
    """The URL with the host name that the shared operator may call."""
    return url.replace("127.0.0.1", "localhost")


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
        endpoints={"sqs": by_name(sqs_proxy.url), "storagegateway": by_name(storage_gateway.url)},
    )
    try:
        yield made
    finally:
        # pytest shows it when the test fails.
        print("\n".join(shared_operator.lines[since:]))
        sqs_proxy.clear()
        await made.clear()


@pytest.fixture
async def own(
    admin: Admin, cluster: Cluster, namespace: str, aws: Aws, storage_gateway: StorageGateway, tmp_path: Path
) -> AsyncIterator[tuple[OperatorProcess, Refreshing, ApiProxy]]:
    """An operator of this test's own, not started yet, for tests that kill it. It may call 127.0.0.1."""
    with ApiProxy(cluster.kubeconfig) as proxy:
        process = operator(
            proxy.write_kubeconfig(tmp_path / "kubeconfig"),
            tmp_path,
            aws.environment(storage_gateway.url),
            namespace=namespace,
            args=(*grants(tmp_path), "--egress-allow", "127.0.0.0/8"),
        )
        place = Refreshing(admin, namespace, aws, storage_gateway.control)
        try:
            yield process, place, proxy
        finally:
            process.kill9()
            print("\n".join(process.lines))
            await place.clear()
        process.assert_clean_logs()
