"""The documented role and IAM policies are enough for IMDSPolicies in each mode, and nothing else is used."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from awsdoubles.cloudwatch.server import CloudWatch
from awsdoubles.ec2.server import Ec2
from caretaker.aws.services import iam_action
from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testbed.steer import behaviour, steer_node
from testing.accounts import audited, bind, grant, kubeconfig_of, shipped
from testing.cluster import Nodes
from testing.imds import NOWHERE, SLOW, Fleet
from testing.operator import OperatorProcess
from testing.refreshing import LOOPBACK, grants
from testing.rights import refused, used
from testing.roles import KOPF, METRIC, SYSTEM, until

pytestmark = pytest.mark.slow

IAM = CHECKOUT / "docs" / "iam"


def allowed(*files: str) -> set[str]:
    """The actions of these policies."""
    statements = [one for file in files for one in json.loads((IAM / file).read_text())["Statement"]]
    return {action for statement in statements for action in statement["Action"]}


def requested(operator: OperatorProcess) -> set[str]:
    """The IAM actions of all that was asked of AWS."""
    found = set()
    for series in operator.metrics():
        if series.startswith("caretaker_aws_requests_total{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', series))
            found.add(iam_action(labels["service"], labels["operation"]))
    return found


@pytest.fixture
async def config(admin: Admin, cluster: Cluster, namespace: str, tmp_path: Path) -> Path:
    """A kubeconfig of a service account that has no role yet."""
    await admin.apply(
        path("namespaces", name=SYSTEM),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}},
    )
    await admin.wait_for(path("serviceaccounts", SYSTEM, "default"), lambda _: True)
    return await kubeconfig_of(admin, cluster, namespace, "operator", tmp_path / "operator")


def process(config: Path, namespace: str, *flags: str) -> OperatorProcess:
    """The operator as that service account."""
    where = (*grants(config.parent), *LOOPBACK, "--operator-namespace", SYSTEM, "--lease-name", namespace)
    return OperatorProcess(config, time_scale=0.1, args=(*where, *flags), env=NOWHERE, allowed=KOPF)


@pytest.fixture
async def operator(config: Path, admin: Admin, namespace: str) -> AsyncIterator[OperatorProcess]:
    """The operator with the documented role and no other."""
    await grant(admin, namespace)
    with process(config, namespace) as started:
        yield started


@pytest.fixture
async def fleet(operator: OperatorProcess, admin: Admin, nodes: Nodes, ec2: Ec2) -> AsyncIterator[Fleet]:
    """Nodes of the test."""
    made = Fleet(admin, nodes, ec2.control, ec2.url)
    yield made
    await made.clear()


async def test_the_documented_role_and_policies_are_enough_in_each_mode(
    operator: OperatorProcess,
    fleet: Fleet,
    admin: Admin,
    cluster: Cluster,
    namespace: str,
    cloudwatch: CloudWatch,
) -> None:
    template = fleet.control.put_template("workers", [{}])["id"]
    fleet.control.put_group("spot", LaunchTemplate={"LaunchTemplateId": template, "Version": "$Latest"})
    ages = [8 * 86400.0, 86400.0]  # as spec.tokenGate wants them
    made = [one for age in ages for one in await fleet.add(1, options=SLOW, group="spot", age=age)]
    told = msgspec.json.encode({"verdict": "Reachable", "latencyMs": 3, "neededHops": 2}).decode()
    for name, _ in made:
        await steer_node(admin, name, behaviour(run_seconds=0.1, message=told))
    policy = await fleet.create(options={"httpPutResponseHopLimit": 2}, verification={"probe": True})
    await policy.summary(nodes=2, drifted=2)
    urls = {"ec2": fleet.url, "autoscaling": fleet.url, "cloudwatch": cloudwatch.url}
    gate = {"options": {"httpTokens": "required"}, "tokenGate": {}, "aws": {"endpointURLs": urls}}
    gated = await fleet.create("gate", **gate)
    await gated.when(lambda f: bool((f["status"].get("tokenGate") or {}).get("readAt")))
    assert requested(operator) == allowed("imdspolicy.json")
    await policy.edit(mode="Enforce", safety={"allowLoosening": ["HopLimit"], "canary": {"soak": "1s"}})
    await policy.condition("Ready", "True", "Enforced")
    await policy.condition("Verified", "True", "Proved")
    assert requested(operator) == allowed("imdspolicy.json", "imdspolicy-enforce.json")
    await policy.edit(verification={"probe": False})
    await admin.wait_gone(path("daemontasks", SYSTEM, "caretaker-imds-probe"))
    user = f"system:serviceaccount:{namespace}:operator"

    def verbs() -> set[str]:
        return {verb for verb, resource, _ in audited(cluster, user) if resource == "daemontasks"}

    await until(lambda: {"create", "patch", "delete"} <= verbs())  # the audit log is a moment behind
    assert refused(cluster, user) == []


async def test_with_the_other_kinds_off_the_roles_are_still_enough(
    config: Path, admin: Admin, cluster: Cluster, namespace: str, nodes: Nodes, ec2: Ec2
) -> None:
    others = ("daemonTask", "s3AggregatedRefresh")
    for role in await shipped(namespace, *(f"--set=kinds.{kind}.enabled=false" for kind in others)):
        await bind(admin, role, "operator", namespace)
    fleet = Fleet(admin, nodes, ec2.control, ec2.url)
    user = f"system:serviceaccount:{namespace}:operator"
    with process(config, namespace, "--kinds=imdspolicies"):
        await fleet.add(2, options=SLOW)
        policy = await fleet.create(
            mode="Enforce",
            options={"httpPutResponseHopLimit": 2},
            safety={"allowLoosening": ["HopLimit"], "canary": None},
        )
        await policy.condition("Ready", "True", "Enforced")
        await fleet.delete(*nodes.names[:1])
        await policy.summary(nodes=1, compliant=1)
        rights, _ = used(cluster, user)
        assert refused(cluster, user) == []
        assert {right.verb for right in rights if right.resource == "nodes"} == {"list", "watch"}
        await fleet.clear()


@pytest.mark.parametrize("verb", ["create", "patch"])
async def test_a_permission_that_the_probe_misses_is_named(
    operator: OperatorProcess, fleet: Fleet, admin: Admin, namespace: str, verb: str
) -> None:
    operator.terminate()
    await grant(admin, namespace, but=(verb, "daemontasks"))
    operator.start()
    await fleet.add(1)
    policy = await fleet.create(verification={"probe": True, "nodesPerGroup": 1})
    if verb == "patch":
        await admin.wait_for(path("daemontasks", SYSTEM, "caretaker-imds-probe"), lambda _: True)
        (name, _), *_ = await fleet.add(1, labels={"eks.amazonaws.com/nodegroup": "apps"})
        assert name
    await until(lambda: operator.metric(METRIC, verb=verb, resource="daemontasks") == 1)
    await grant(admin, namespace)
    await policy.condition("Ready", "True", "Audited")
    await until(lambda: operator.metric(METRIC, verb=verb, resource="daemontasks") == 0)
    await policy.delete()
