"""One operator for all tests of this folder; each test's tasks lead it to that test's own doubles."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from awsdoubles.ecs.server import Ecs
from awsdoubles.sqsproxy.proxy import SqsProxy
from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testing.aws import Aws
from testing.ecstasks import TIME_SCALE, EcsTasks
from testing.imds import NOWHERE
from testing.operator import OperatorProcess
from testing.refreshing import ALL, LOOPBACK, grants


@pytest.fixture(scope="package")
def shared_namespace(cluster: Cluster) -> str:
    """The namespace of the shared operator."""
    name = f"ecs-{secrets.token_hex(4)}"

    async def create() -> None:
        async with cluster.admin() as admin:
            await admin.create(path("namespaces"), {"metadata": {"name": name}})

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, create()).result()
    return name


@pytest.fixture(scope="package")
def operator(
    cluster: Cluster, shared_namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """Everything is granted to it; what a test does not lead to a double fails."""
    args = (*grants(tmp_path_factory.mktemp("ecs"), {**ALL, "ownIdentity": True}), *LOOPBACK)
    process = OperatorProcess(
        cluster.kubeconfig,
        "ecs",
        namespace=shared_namespace,
        leader_elect=False,
        time_scale=TIME_SCALE,
        env=NOWHERE,
        args=args,
    )
    with process as started:
        yield started


@pytest.fixture
async def place(
    operator: OperatorProcess,
    shared_namespace: str,
    admin: Admin,
    aws: Aws,
    ecs: Ecs,
    sqs_proxy: SqsProxy,
) -> AsyncIterator[EcsTasks]:
    """This test's own doubles, with the shared operator at work. SQS is `sqs_proxy`."""
    since = len(operator.lines)
    endpoints = {"ecs": ecs.url, "sqs": sqs_proxy.url}
    made = EcsTasks(admin, shared_namespace, aws, ecs.control, endpoints, f"{secrets.token_hex(3)}-")
    try:
        yield made
    finally:
        print("\n".join(operator.lines[since:]))  # pytest shows it when the test fails
        sqs_proxy.clear()
        await made.clear()
