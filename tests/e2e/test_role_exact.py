"""The roles that are shipped hold what the operator uses, and nothing else, over a life of every kind.

One operator, in the place of the deployed one, does all that any kind asks the API server for; then the
audit log is compared with the roles, right by right.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from awsdoubles.ec2.server import Ec2
from awsdoubles.gateway.server import StorageGateway
from caretaker.daemontask.pods import pod_name
from fakes.apiserver import FakeApiServer
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testbed.steer import behaviour, steer_node
from testing.accounts import bind, effective, kubeconfig_of, shipped
from testing.aws import Aws
from testing.cluster import Nodes
from testing.imds import SLOW, Fleet
from testing.karpenter import URL, node_class, node_classes
from testing.operator import OperatorProcess
from testing.refreshing import Refreshing, add_headers, grants
from testing.refreshing import operator as refresher
from testing.rights import granted, refused, uncovered, unused, used
from testing.roles import KOPF, SYSTEM, small_task, until

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
AWS_KEYS, HEADERS, DATA = "aws-keys", "cdn-token", "registry-token"
POOL = {"karpenter.sh/nodepool": "pool", "karpenter.k8s.aws/ec2nodeclass": "default"}
TOLD = msgspec.json.encode({"verdict": "Reachable", "latencyMs": 3, "neededHops": 2}).decode()


@pytest.fixture(params=["every namespace", pytest.param("one namespace", marks=pytest.mark.slow)])
def watched(request: pytest.FixtureRequest, namespace: str) -> str:
    """The chart's watchNamespace: "" = all."""
    return namespace if request.param == "one namespace" else ""


@pytest.fixture
async def roles(admin: Admin, namespace: str, watched: str) -> list[Json]:
    """All roles that the chart ships, bound to the operator of this test."""
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    await admin.apply(path("namespaces", name=SYSTEM), system)
    await admin.wait_for(path("serviceaccounts", SYSTEM, "default"), lambda _: True)
    values = {
        "watchNamespace": watched,
        "awsKeySecrets": [{"namespace": namespace, "names": [AWS_KEYS]}],
        "headerSecrets": [{"namespace": namespace, "names": [HEADERS]}],
        "dataSecrets": [{"namespace": namespace, "names": [DATA]}],
        "jobNamespaces": [namespace],
        "nodeGate": {"enabled": True},
        "drain": {"enabled": True},
    }
    flags = [word for name, value in values.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]
    found = await shipped(namespace, *flags)
    for role in found:
        await bind(admin, role, "operator", namespace)
    return found


@pytest.fixture
async def operator(
    roles: list[Json],
    watched: str,
    admin: Admin,
    cluster: Cluster,
    namespace: str,
    aws: Aws,
    storage_gateway: StorageGateway,
    tmp_path: Path,
) -> AsyncIterator[OperatorProcess]:
    """The operator as a service account with these roles and no other."""
    config = await kubeconfig_of(admin, cluster, namespace, "operator", tmp_path / "operator")
    await effective(admin, namespace, "create", "jobs", group="batch")
    flags = (
        "--operator-namespace",
        SYSTEM,
        "--lease-name",
        namespace,
        "--egress-allow",
        "127.0.0.1,http://127.0.0.1",
    )
    process = refresher(
        config,
        tmp_path,
        aws.environment(storage_gateway.url),
        namespace=watched or None,
        leader_elect=True,
        args=(*grants(tmp_path), *flags),
        allowed=KOPF,
    )
    with process as started:
        yield started


@pytest.fixture
def refreshing(admin: Admin, namespace: str, aws: Aws, storage_gateway: StorageGateway) -> Refreshing:
    """What makes S3AggregatedRefreshes."""
    return Refreshing(admin, namespace, aws, storage_gateway.control)


@pytest.fixture
async def fleet(operator: OperatorProcess, admin: Admin, nodes: Nodes, ec2: Ec2) -> AsyncIterator[Fleet]:
    """Nodes of the test."""
    made = Fleet(admin, nodes, ec2.control, ec2.url)
    yield made
    await made.clear()


async def test_the_shipped_roles_are_what_a_life_of_every_kind_uses(
    operator: OperatorProcess,
    roles: list[Json],
    fleet: Fleet,
    admin: Admin,
    cluster: Cluster,
    namespace: str,
    refreshing: Refreshing,
    watched: str,
) -> None:
    nodes = fleet.nodes
    made = await fleet.add(2, options=SLOW, labels=POOL)
    async with node_classes(admin):
        await admin.create(URL, node_class("default", httpPutResponseHopLimit=2, httpTokens="required"))
        lives = (
            _policy(fleet, admin, made, probe=not watched),
            _file_share(refreshing),
            _job(refreshing, nodes),
        )
        await asyncio.gather(*lives, _http(refreshing))
    await _task(admin, namespace, nodes)

    user = f"system:serviceaccount:{namespace}:operator"
    grants_of_roles = granted(roles)
    # The audit log is a moment behind; what is unused for good is told below, by name.
    with contextlib.suppress(TimeoutError):
        await until(lambda: not unused(grants_of_roles, used(cluster, user)[0]), 5)
    allowed, _ = used(cluster, user)
    assert refused(cluster, user) == [], "the roles lack what the operator asks for"
    assert uncovered(grants_of_roles, allowed) == [], "something else than the roles has granted these"
    assert unused(grants_of_roles, allowed) == [], "the roles grant what nothing needs"
    assert operator.running


async def _policy(fleet: Fleet, admin: Admin, made: list[tuple[str, str]], *, probe: bool) -> None:
    """An audit, changes, and in between a probe, its second run and its end: where DaemonTasks of the
    operator's namespace are run, as they are not where it watches another one."""
    for name, _ in made:
        await steer_node(admin, name, behaviour(run_seconds=0.1, message=TOLD))
    policy = await fleet.create(options={"httpPutResponseHopLimit": 2}, verification={"probe": probe})
    await policy.summary(nodes=len(made), drifted=len(made))
    await policy.edit(mode="Enforce", safety={"allowLoosening": ["HopLimit"], "canary": {"soak": "1s"}})
    await policy.condition("Ready", "True", "Enforced")
    if not probe:
        return
    await policy.condition("Verified", "True", "Proved")
    await policy.edit(verification={"probe": False})
    await admin.wait_gone(path("daemontasks", SYSTEM, "caretaker-imds-probe"))


async def _task(admin: Admin, namespace: str, nodes: Nodes) -> None:
    """A pod of somebody else under a run's name, runs, a record, a second run that is recorded in the same
    place, deleted pods, an evicted one, and a node that is replaced under its name, shut until it has run."""
    url, labels = path("daemontasks", namespace, "whole"), "caretaker.dev/daemontask=whole"
    node = await admin.get(path("nodes", name=nodes.names[0]))
    body = small_task(
        "whole", nodes, ttlSecondsAfterFinished=0, suspend=True, nodeGate={}, parallelism="100%"
    )
    body["spec"]["drain"] = {"force": True}
    body["spec"]["rerunOn"] = ["TemplateChange", "ReferencedDataChange"]
    body["spec"]["dataRefs"] = [{"kind": "Secret", "name": DATA}]
    await admin.create(path("secrets", namespace), {"metadata": {"name": DATA}, "stringData": {"a": "b"}})
    task = await admin.create(path("daemontasks", namespace), body)
    name = pod_name("whole", task["metadata"]["uid"], node["metadata"]["uid"], 1)
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "nowhere"}
    await admin.create(path("pods", namespace), {"metadata": {"name": name}, "spec": spec})
    workload = {"metadata": {"name": "workload", "annotations": behaviour("hang")}}
    on = {**spec, "nodeName": nodes.names[-1]}
    await admin.create(path("pods", namespace), {**workload, "spec": on})
    await admin.patch(url, {"spec": {"suspend": False}})
    await admin.wait_for(url, lambda t: t.get("status", {}).get("succeeded") == len(nodes.names), 60)
    await admin.patch(url, {"metadata": {"annotations": {"caretaker.dev/rerun-at": "2026-01-01T00:00:00Z"}}})
    ledger = path("configmaps", namespace)
    await admin.wait_for_all(ledger, lambda found: all(map(_run_again, found)), 60, labels=labels)
    await admin.wait_for_all(path("pods", namespace), lambda pods: not pods, 60, labels=labels)
    await nodes.delete(nodes.names[0])
    gate = {"key": f"{namespace}.gate.caretaker.dev/whole", "effect": "NoSchedule"}
    (fresh,) = await nodes.add(names=[nodes.names[0]], taints=[gate])
    uid = (await admin.get(path("nodes", name=fresh)))["metadata"]["uid"]
    await admin.wait_for_all(
        ledger, lambda found: any(uid in shard["data"].get(fresh, "") for shard in found), 60, labels=labels
    )
    await admin.wait_for(path("nodes", name=fresh), lambda one: not one["spec"].get("taints"), 60)


def _run_again(shard: Json) -> bool:
    """Whether the run that was asked for is recorded for every node."""
    return all("2026-01-01" in entry for entry in shard["data"].values())


async def _file_share(refreshing: Refreshing) -> None:
    """Keys from a Secret, a refresh, and onDelete: Flush."""
    source = refreshing.aws.source()
    await _secret(refreshing, AWS_KEYS, KEYS)
    share = refreshing.share(source.bucket)
    ref = {"region": refreshing.aws.region, "credentialsSecretRef": {"name": AWS_KEYS}}
    resource = await refreshing.create(source.queue, "share", aws=ref, onDelete="Flush")
    await resource.condition("Ready")
    await refreshing.put(source.bucket, "in/a.csv")
    await resource.caught_up()
    await refreshing.put(source.bucket, "in/late.csv")
    await resource.when(lambda r: any(t.get("dirty") for t in r["status"]["targets"]))
    await resource.delete()
    await resource.gone()
    await refreshing.fresh(share)


async def _job(refreshing: Refreshing, nodes: Nodes) -> None:
    source = refreshing.aws.source()
    target = {"job": {"template": small_task("t", nodes)["spec"]["template"]}}
    resource = await refreshing.create(
        source.queue, "job", filter={"buckets": [source.bucket]}, target=target
    )
    await refreshing.put(source.bucket, "in/a.csv")
    await resource.caught_up()


async def _http(refreshing: Refreshing) -> None:
    source = refreshing.aws.source()
    async with FakeApiServer() as service:
        await add_headers(refreshing.admin, refreshing.namespace, HEADERS, service.url, **{"X-A": "b"})
        service.on("POST", "/purge", _taken)
        headers = [{"secretRef": {"name": HEADERS}}]
        target = {"http": {"url": f"{service.url}/purge", "headersFrom": headers}}
        resource = await refreshing.create(
            source.queue, "http", filter={"buckets": [source.bucket]}, target=target
        )
        await refreshing.put(source.bucket, "in/a.csv")
        await resource.caught_up()


async def _secret(refreshing: Refreshing, name: str, content: dict[str, str]) -> None:
    body = {"metadata": {"name": name}, "stringData": content}
    await refreshing.admin.create(path("secrets", refreshing.namespace), body)


async def _taken(_: web.Request) -> web.StreamResponse:
    return web.Response(status=202)
