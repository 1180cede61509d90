"""One operator for all tests of a file; each test's policies lead it to that test's own EC2 double."""

from collections.abc import AsyncIterator, Iterator

import pytest

from awsdoubles.ec2.server import Ec2
from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.cluster import Nodes
from testing.imds import NOWHERE, Fleet
from testing.operator import OperatorProcess
from testing.refreshing import LOOPBACK, grants

TIME_SCALE = 0.05


@pytest.fixture(scope="module")
def operator(
    cluster: Cluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """Credentials that any double takes, and no endpoint: what a test does not lead elsewhere fails. It tells
    when it asked AWS: when a call arrives is the machine's doing as well. A file may have a TIME_SCALE."""
    scale = getattr(request.module, "TIME_SCALE", TIME_SCALE)
    args = (*grants(tmp_path_factory.mktemp("auditor")), *LOOPBACK, "--log-level", "DEBUG")
    how = {"leader_elect": False, "time_scale": scale, "args": args}
    process = OperatorProcess(cluster.kubeconfig, "auditor", env=NOWHERE, **how)
    with process as started:
        yield started


@pytest.fixture
async def fleet(operator: OperatorProcess, admin: Admin, nodes: Nodes, ec2: Ec2) -> AsyncIterator[Fleet]:
    """No nodes yet."""
    since = len(operator.lines)
    made = Fleet(admin, nodes, ec2.control, ec2.url)
    try:
        yield made
    finally:
        print("\n".join(operator.lines[since:]))  # pytest shows it when the test fails
        await made.clear()
