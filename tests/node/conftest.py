"""The operator as users install it, on a real node that is one for the run, with doubles of AWS beside it."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from awsdoubles.ec2.server import Ec2
from awsdoubles.gateway.server import StorageGateway
from awsdoubles.ministack import MiniStack
from realnode import images
from realnode.kind import KindNode
from realnode.registry import Registry
from testbed.admin import Admin, path
from testing.aws import Aws
from testing.recipes import HUB, PYTHON
from testing.release import NAMESPACE, Release, complete

# Of a dist/, and of `make release-check` alone.
collect_ignore = ["release"]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KindNode]:
    """A kind cluster whose nodes have our images; fails with what is missing where it cannot run."""
    with KindNode(tmp_path_factory.mktemp("node")) as made:
        yield made


@pytest.fixture(scope="session")
def ministack(node: KindNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniStack]:
    """As the fixture of that name elsewhere, where the node's pods reach it."""
    server = MiniStack(tmp_path_factory.mktemp("ministack"))
    server.host = node.place.outside
    with server:
        yield server


@pytest.fixture(scope="session")
def storage_gateway(node: KindNode, ministack: MiniStack) -> Iterator[StorageGateway]:
    """Likewise, for the run."""
    double = StorageGateway(ministack.url)
    double.host = node.place.outside
    with double:
        yield double


@pytest.fixture(scope="session")
def ec2(node: KindNode) -> Iterator[Ec2]:
    """Likewise, for the run."""
    double = Ec2()
    double.host = node.place.outside
    with double:
        yield double


@pytest.fixture
def registry(node: KindNode) -> Iterator[Registry]:
    """The images of the recipes in place of Docker Hub: BusyBox for itself and nginx, ours for Python's."""
    double = Registry()
    double.host = node.place.outside
    with double:
        for name in ("library/busybox:1.37", "library/nginx:1.29"):
            double.add(name, images.busybox())
        node.pull_from(HUB, double.url)
        node.name_image(images.reference("operator", images.version()), PYTHON)
        yield double


@pytest.fixture(scope="session")
def _release(
    node: KindNode,
    ministack: MiniStack,
    storage_gateway: StorageGateway,
    ec2: Ec2,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Release]:
    aws = Aws(ministack.url)
    variables = aws.environment(storage_gateway.url, ec2_url=ec2.url)
    aws.close()
    del variables["AWS_EC2_METADATA_DISABLED"]  # the chart's own
    values = {
        "extraEnv": [{"name": name, "value": value} for name, value in variables.items()],
        # Further objects that the API server has to accept.
        **{name: {"enabled": True} for name in ("flowSchema", "dashboard")},
        "priorityClass": {"create": True},
        # The doubles of AWS listen on ports of their own.
        "networkPolicy": {"egress": {"extra": [{"ports": [{"port": 1024, "endPort": 65535}]}]}},
        "jobNamespaces": [NAMESPACE],
        "drain": {"enabled": True},
    }
    with Release(node, tmp_path_factory.mktemp("release"), values) as made:
        yield made


@pytest.fixture
async def admin(node: KindNode) -> AsyncIterator[Admin]:
    """A client with all rights."""
    async with node.admin() as client:
        yield client


@pytest.fixture
async def release(_release: Release, admin: Admin) -> AsyncIterator[Release]:
    """The chart, installed in a namespace that admits restricted pods alone, with all replicas Ready.

    Afterwards every line that they logged is a record, and none of them a warning or worse; likewise of pods
    that ended meanwhile.
    """
    if await admin.find(path("namespaces", name=NAMESPACE)) is None:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        await admin.create(path("namespaces"), {"metadata": {"name": NAMESPACE, "labels": labels}})
    if not _release.installed:
        await asyncio.to_thread(_release.install)
    await complete(admin)
    yield _release
    lines = await asyncio.to_thread(_release.logs)
    assert lines
    assert [line for line in lines if line.get("level") not in {"debug", "info"}] == []
