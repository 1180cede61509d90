"""The documented role is enough for IMDSPolicies that look at EC2NodeClasses; what a missing verb shows."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testing.accounts import audited, grant, kubeconfig_of
from testing.imds import NOWHERE, Fleet
from testing.karpenter import URL, node_class, node_classes
from testing.operator import OperatorProcess
from testing.refreshing import LOOPBACK, grants
from testing.roles import KOPF, METRIC, SYSTEM, until

LABELS = {"karpenter.sh/nodepool": "pool", "karpenter.k8s.aws/ec2nodeclass": "default"}
LISTED = {"verb": "list", "resource": "ec2nodeclasses"}


@pytest.fixture
async def operator(
    admin: Admin, cluster: Cluster, namespace: str, tmp_path: Path
) -> AsyncIterator[OperatorProcess]:
    """As a service account that has the documented role, but for the list of EC2NodeClasses."""
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    await admin.apply(path("namespaces", name=SYSTEM), system)
    config = await kubeconfig_of(admin, cluster, namespace, "operator", tmp_path / "operator")
    await grant(admin, namespace, but=("list", "ec2nodeclasses"))
    process = OperatorProcess(
        config,
        namespace=namespace,
        time_scale=0.1,
        args=(*grants(tmp_path), *LOOPBACK, "--operator-namespace", SYSTEM, "--lease-name", namespace),
        env=NOWHERE,
        allowed=KOPF,
    )
    with process as started:
        yield started


@pytest.mark.slow
async def test_the_documented_role_lists_node_classes_and_its_lack_is_named(
    fleet: Fleet, operator: OperatorProcess, admin: Admin, cluster: Cluster, namespace: str
) -> None:
    await fleet.add(1, labels=LABELS)
    async with node_classes(admin):
        await admin.create(URL, node_class("default", httpPutResponseHopLimit=2, httpTokens="required"))
        policy = await fleet.create()
        told = await policy.condition("PermissionOK", "False", "PermissionDenied")
        assert 'cannot list resource "ec2nodeclasses"' in told["message"]
        await policy.condition("SourcesCompliant", "Unknown", "SourcesUnknown")
        await policy.condition("Ready", "True", "Audited")
        await policy.summary(nodes=1, compliant=1)
        await until(lambda: operator.metric(METRIC, **LISTED) == 1)

        await grant(admin, namespace)
        await policy.condition("PermissionOK", "True", "Permitted")
        await policy.condition("SourcesCompliant", "True", "SourcesCompliant")
        await until(lambda: operator.metric(METRIC, **LISTED) == 0)
    asked = audited(cluster, f"system:serviceaccount:{namespace}:operator")
    assert ("list", "ec2nodeclasses", 200) in asked
    assert {(verb, what) for verb, what, code in asked if code == 403} == {("list", "ec2nodeclasses")}
