"""`python -m awsdoubles nodes`, `deny` and `allow`: what a person needs to try an IMDSPolicy by hand."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from awsdoubles.clients import client
from awsdoubles.stack import EC2_VARIABLE, Stack
from testbed.admin import path
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT

NODES = 6
NODEGROUP = "eks.amazonaws.com/nodegroup"
EXPECTED = {"apps-a": 4, "builders-a": 1, "spot": 1}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "awsdoubles", "--folder", str(folder), *words],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / "dev")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def given(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Group -> how many nodes have got an instance."""
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    return {row[0]: int(row[1]) for row in rows}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """As `make cluster` and `make aws` leave it; the doubles do not run yet."""
    with Cluster(tmp_path / "cluster", nodes=NODES, detached=True):
        yield tmp_path.resolve()
    Stack(tmp_path).stop()


async def placed(folder: Path) -> dict[str, tuple[str, str]]:
    """Node -> its instance and node group."""
    async with Cluster(folder / "cluster", detached=True).visit() as admin:
        nodes = await admin.list(path("nodes"))
    return {
        node["metadata"]["name"]: (
            node["spec"].get("providerID", "").rpartition("/")[2],
            node["metadata"]["labels"].get(NODEGROUP, ""),
        )
        for node in nodes
    }


async def test_fake_nodes_get_instances_that_the_double_has(folder: Path) -> None:
    assert run(folder, "nodes").stderr == "the AWS doubles are not running: make aws\n"
    assert run(folder, "up").returncode == 0
    assert given(run(folder, "nodes")) == EXPECTED
    of = await placed(folder)
    assert [group for _, group in of.values()] == [*["apps-a"] * 3, "builders-a", "", "apps-a"]
    ec2 = client("ec2", Stack(folder).variables()[EC2_VARIABLE])
    told = [one for r in ec2.describe_instances()["Reservations"] for one in r["Instances"]]
    assert {one["InstanceId"] for one in told} == {instance for instance, _ in of.values()}
    assert {one["MetadataOptions"]["HttpPutResponseHopLimit"] for one in told} == {1}
    # Again: each keeps its own, and the launch template has no further version.
    assert given(run(folder, "nodes")) == dict.fromkeys(EXPECTED, 0)
    assert await placed(folder) == of
    (template,) = ec2.describe_launch_templates()["LaunchTemplates"]
    assert template["LatestVersionNumber"] == 1
    ec2.close()
    # Other doubles know none of them, and a Node's providerID is for ever.
    assert run(folder, "down").returncode == 0
    assert run(folder, "up").returncode == 0
    lost = run(folder, "nodes")
    assert lost.returncode == 1
    assert "node-0, node-1" in lost.stderr
    assert "make cluster-down cluster" in lost.stderr


def test_a_call_is_denied_and_allowed_again_and_a_missing_cluster_is_told(tmp_path: Path) -> None:
    try:
        assert run(tmp_path, "up").returncode == 0
        assert run(tmp_path, "nodes").stderr == "no cluster is running: make cluster\n"
        ec2 = client("ec2", Stack(tmp_path).variables()[EC2_VARIABLE])
        assert run(tmp_path, "deny", "DescribeInstances").stdout == "DescribeInstances is denied\n"
        with pytest.raises(ClientError, match="UnauthorizedOperation"):
            ec2.describe_instances()
        assert run(tmp_path, "allow", "DescribeInstances").stdout == "DescribeInstances is allowed\n"
        assert ec2.describe_instances()["Reservations"] == []
        ec2.close()
        assert "no operation 'Describe'" in run(tmp_path, "deny", "Describe").stderr
    finally:
        Stack(tmp_path).stop()
