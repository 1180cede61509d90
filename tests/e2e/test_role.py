"""The roles of docs/operations.md are enough, and the operator asks for nothing beyond its own."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from awsdoubles.gateway.server import StorageGateway
from caretaker.aws.services import iam_action
from fakes.apiserver import FakeApiServer
from testbed import steer
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testing.accounts import audited, bind, documented, effective, grant, kubeconfig_of
from testing.aws import Aws
from testing.cli import Cli
from testing.cluster import Nodes
from testing.kubeletlogs import KubeletLogs
from testing.operator import OperatorProcess
from testing.refreshing import Refreshing, grants
from testing.refreshing import operator as refresher

SYSTEM = "caretaker-system"


@pytest.fixture
async def operator(
    request: pytest.FixtureRequest, admin: Admin, cluster: Cluster, namespace: str, tmp_path: Path
) -> AsyncIterator[OperatorProcess]:
    """The operator as a service account that has the documented role and no other. It watches the test's
    namespace, or whatever the test's parameter says; a test with one sees every write succeed, which must
    then have more than half a second."""
    await admin.apply(
        path("namespaces", name=SYSTEM),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}},
    )
    config = await kubeconfig_of(admin, cluster, namespace, "operator", tmp_path / "operator")
    await grant(admin, namespace)
    arguments = ("--operator-namespace", SYSTEM, "--lease-name", namespace)
    watched = namespace if getattr(request, "param", "one") == "one" else None
    scale = 0.3 if hasattr(request, "param") else 0.1
    process = OperatorProcess(config, namespace=watched, time_scale=scale, args=arguments, allowed=KOPF)
    with process as started:
        yield started


# kopf's own words on a list that is refused.
KOPF = ("APIForbiddenError",)


def small_task(name: str, nodes: Nodes, **spec: Any) -> Json:
    """A task that is done in a moment on this test's nodes."""
    container = {"name": "main", "image": "busybox"}
    template = {
        "metadata": {"annotations": steer.behaviour(run_seconds=0.1)},
        "spec": {"nodeSelector": nodes.selector, "containers": [container]},
    }
    return {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "DaemonTask",
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


@pytest.mark.parametrize(
    "operator", ["one", "every"], ids=["one namespace", "every namespace"], indirect=True
)
async def test_the_documented_role_is_enough_for_a_whole_life_of_a_task(
    operator: OperatorProcess, cluster: Cluster, admin: Admin, namespace: str, nodes: Nodes
) -> None:
    names = await nodes.add(3)
    await steer.steer_node(admin, names[0], steer.behaviour("fail", run_seconds=0.1))
    again = ["TemplateChange", "NodeReboot"]
    task = small_task("whole", nodes, backoffLimit=1, rerunOn=again, ttlSecondsAfterFinished=0)
    url = path("daemontasks", namespace, "whole")
    await admin.create(path("daemontasks", namespace), task)
    await admin.wait_for(url, lambda t: t.get("status", {}).get("failed") == 1, 60)
    await steer.release_node(admin, names[0])
    await admin.patch(url, {"metadata": {"annotations": {"caretaker.dev/rerun-at": "2026-01-01T00:00:00Z"}}})
    await admin.wait_for(url, lambda t: t["status"]["succeeded"] == 3, 60)
    # The TTL's deletes, too.
    await admin.wait_for_all(path("pods", namespace), lambda pods: not pods, 60)
    events = await admin.list(path("events", namespace), fields="involvedObject.kind=DaemonTask")
    assert {"RunStarted", "RunFailed", "RunSucceeded"} <= {event["reason"] for event in events}
    assert operator.metric("caretaker_api_requests_total", code="403") == 0
    assert operator.metric("caretaker_leader") == 1
    # Not all that it asks goes through its own client: kopf asks, too.
    asked = audited(cluster, f"system:serviceaccount:{namespace}:operator")
    assert ("watch", "daemontasks") in {(verb, resource) for verb, resource, _ in asked}
    assert ("watch", "pods") in {(verb, resource) for verb, resource, _ in asked}
    assert [call for call in asked if call[2] == 403] == []


async def test_the_documented_rights_of_people_are_enough(
    operator: OperatorProcess, admin: Admin, cluster: Cluster, namespace: str, nodes: Nodes, tmp_path: Path
) -> None:
    (node,) = await nodes.add(1)
    config = await kubeconfig_of(admin, cluster, namespace, "person", tmp_path / "person")
    for role in documented("### For people"):
        await bind(admin, role, "person", namespace)
    manifest = tmp_path / "task.yaml"
    body = small_task("seen", nodes, failurePolicy={"action": "Pause"})
    manifest.write_text(yaml.safe_dump(body))
    await admin.create(path("daemontasks", namespace), body)
    url = path("daemontasks", namespace, "seen")
    await admin.wait_for(url, lambda t: t.get("status", {}).get("succeeded") == 1, 60)
    caretaker = Cli(config, namespace)
    keys = cluster.folder / "pki"
    async with KubeletLogs(admin, keys / "apiserver.crt", keys / "apiserver.key") as kubelet:
        await kubelet.serve([node])
        for command in (
            ["plan", "-f", str(manifest)],
            ["status", "daemontask", "seen"],
            ["logs", "daemontask", "seen", "--nodes", node],
            ["rerun", "daemontask", "seen"],
            ["status", "daemontask", "seen", "--watch"],
            ["resume", "daemontask", "seen"],
        ):
            said = await caretaker(*command)
            assert said.code == 0, (command, said)
    refused = [
        call for call in audited(cluster, f"system:serviceaccount:{namespace}:person") if call[2] == 403
    ]
    assert refused == []


MISSING = {
    "the ledger cannot be listed": ("list", "configmaps", True),
    "the ledger cannot be created": ("create", "configmaps", True),
    "the ledger cannot be read before a start": ("get", "configmaps", True),
    "pods cannot be created": ("create", "pods", True),
    "pods cannot be listed": ("list", "pods", False),
    "tasks cannot be read": ("get", "daemontasks", False),
    "tasks cannot be listed": ("list", "daemontasks", False),
    "status cannot be written": ("patch", "daemontasks/status", False),
    "events cannot be created": ("create", "events", False),
}


@pytest.mark.parametrize(("verb", "resource", "shown"), MISSING.values(), ids=MISSING.keys())
async def test_a_missing_permission_is_named_by_a_metric_and_where_possible_by_a_condition(
    verb: str,
    resource: str,
    shown: bool,
    operator: OperatorProcess,
    admin: Admin,
    namespace: str,
    nodes: Nodes,
) -> None:
    operator.terminate()
    await grant(admin, namespace, but=(verb, resource))
    operator.start()
    await nodes.add(1)
    await admin.create(path("daemontasks", namespace), small_task("t", nodes))
    url = path("daemontasks", namespace, "t")

    await until(lambda: operator.metric(METRIC, verb=verb, resource=resource) == 1)
    if shown:
        task = await admin.wait_for(url, lambda t: ready(t).get("reason") == "PermissionDenied")
        assert f'cannot {verb} resource "{resource}"' in ready(task)["message"]
    assert operator.running

    await grant(admin, namespace)
    await admin.wait_for(url, lambda t: ready(t).get("status") == "True", 90)
    # What is not asked again is not known to be granted: an event may be the last for long.
    if resource != "events":
        await until(lambda: operator.metric(METRIC, verb=verb, resource=resource) == 0)


METRIC = "caretaker_missing_permission"


def ready(task: Json) -> Json:
    """The Ready condition, or nothing."""
    conditions = task.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == "Ready"), {})


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return once it holds; asked of the operator's metrics, which announce nothing."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.2)


SECRET = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
POLICY = CHECKOUT / "docs" / "iam" / "s3aggregatedrefresh.json"


@pytest.fixture
async def refreshing(
    admin: Admin, cluster: Cluster, namespace: str, aws: Aws, storage_gateway: StorageGateway, tmp_path: Path
) -> AsyncIterator[tuple[OperatorProcess, Refreshing]]:
    """The operator as a service account that has the documented role and no other, with doubles of AWS."""
    await admin.apply(
        path("namespaces", name=SYSTEM),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}},
    )
    config = await kubeconfig_of(admin, cluster, namespace, "operator", tmp_path / "operator")
    await grant(admin, namespace)
    flags = ("--operator-namespace", SYSTEM, "--lease-name", namespace)
    process = refresher(
        config,
        tmp_path,
        aws.environment(storage_gateway.url),
        namespace=namespace,
        leader_elect=True,
        args=(*grants(tmp_path), *flags, "--egress-allow", "127.0.0.1"),
        allowed=KOPF,
    )
    with process as started:
        yield started, Refreshing(admin, namespace, aws, storage_gateway.control)


async def test_the_documented_role_and_policy_are_enough_for_a_whole_life_of_a_refresh(
    refreshing: tuple[OperatorProcess, Refreshing], admin: Admin, cluster: Cluster, namespace: str, aws: Aws
) -> None:
    """With keys from a Secret, ends that are heard of, and onDelete: Flush."""
    operator, place = refreshing
    (role,) = documented("### Secrets with AWS keys")
    role["metadata"]["namespace"] = namespace
    await bind(admin, role, "operator", namespace)
    (name,) = role["rules"][0]["resourceNames"]
    await admin.create(path("secrets", namespace), {"metadata": {"name": name}, "stringData": SECRET})
    source, ends = aws.source(), aws.queue(max_receives=None)
    place.control.settings(completion_queue=ends.url)
    gateway = place.control.add_gateway()
    share = place.control.add_share(gateway, bucket=source.bucket)
    place.control.add_share(gateway, bucket=source.bucket, prefix="team/", protocol="SMB")
    resource = await place.create(
        source.queue,
        aws={"region": aws.region, "credentialsSecretRef": {"name": name}},
        target={"storageGateway": {"shares": {"discover": {}}, "completion": {"queueURL": ends.url}}},
        onDelete="Flush",
    )
    await resource.condition("Ready")
    await asyncio.to_thread(aws.put, source.bucket, "in/a.csv", "team/b/c.csv")
    await resource.when(succeeded)
    await asyncio.to_thread(place.control.wait_fresh, share)
    await asyncio.to_thread(aws.put, source.bucket, "in/late.csv")
    await resource.when(lambda r: any(t.get("dirty") for t in r["status"]["targets"]))
    await resource.delete()
    await admin.wait_gone(resource.url, 60)
    await asyncio.to_thread(place.control.wait_fresh, share)
    asked = audited(cluster, f"system:serviceaccount:{namespace}:operator")
    assert ("patch", "s3aggregatedrefreshes") in {(verb, resource) for verb, resource, _ in asked}
    # 422 is what kopf's patches of a finalizer come to.
    assert [call for call in asked if call[2] in (403, 422)] == []
    events = await admin.list(path("events", namespace), fields="involvedObject.kind=S3AggregatedRefresh")
    assert "RefreshStarted" in {event["reason"] for event in events}
    statements = json.loads(POLICY.read_text())["Statement"]
    granted = {action for statement in statements for action in statement["Action"]}
    # What this does not come to: roles to assume, keys of KMS, a message that has to be kept.
    aside = {"sts:AssumeRole", "kms:Decrypt", "sqs:ChangeMessageVisibility"}
    assert granted - aside <= requested(operator) <= granted


MISSING_OF_REFRESHES = {
    "the finalizer cannot be set": ("patch", "s3aggregatedrefreshes", True),
    "refreshes cannot be read": ("get", "s3aggregatedrefreshes", False),
    "status cannot be written": ("patch", "s3aggregatedrefreshes/status", False),
}


@pytest.mark.parametrize(
    ("verb", "resource", "shown"), MISSING_OF_REFRESHES.values(), ids=MISSING_OF_REFRESHES.keys()
)
async def test_a_permission_that_a_refresh_misses_is_named_and_noticed_when_it_is_granted(
    verb: str,
    resource: str,
    shown: bool,
    refreshing: tuple[OperatorProcess, Refreshing],
    admin: Admin,
    namespace: str,
    aws: Aws,
) -> None:
    operator, place = refreshing
    operator.terminate()
    await grant(admin, namespace, but=(verb, resource))
    operator.start()
    source = aws.source()
    place.control.add_share(place.control.add_gateway(), bucket=source.bucket)
    made = await place.create(source.queue, onDelete="Flush")
    await until(lambda: operator.metric(METRIC, verb=verb, resource=resource) == 1)
    if shown:
        found = await admin.wait_for(made.url, lambda r: ready(r).get("reason") == "PermissionDenied", 60)
        assert f'cannot {verb} resource "{resource}"' in ready(found)["message"]
    await grant(admin, namespace)
    await made.condition("Ready", timeout=90)
    await until(lambda: operator.metric(METRIC, verb=verb, resource=resource) == 0)
    await made.edit(onDelete="Discard")
    await admin.wait_for(made.url, lambda r: not r["metadata"].get("finalizers"), 60)


async def test_a_secret_that_the_operator_may_not_read_is_named(
    refreshing: tuple[OperatorProcess, Refreshing], admin: Admin, namespace: str, aws: Aws
) -> None:
    _, place = refreshing
    source = aws.source()
    place.control.add_share(place.control.add_gateway(), bucket=source.bucket)
    (role,) = documented("### Secrets with AWS keys")
    (name,) = role["rules"][0]["resourceNames"]
    await admin.create(path("secrets", namespace), {"metadata": {"name": name}, "stringData": SECRET})
    keys = {"region": aws.region, "credentialsSecretRef": {"name": name}}
    made = await place.create(source.queue, aws=keys)
    refused = await made.condition("Ready", "False", "CredentialsUnavailable")
    assert f"may not read Secret {name}" in refused["message"]
    role["metadata"]["namespace"] = namespace
    await bind(admin, role, "operator", namespace)
    await effective(admin, namespace, "get", "secrets", name)
    await made.edit(aws={**keys, "endpointURLs": {"sqs": ""}})  # an edit is looked at at once
    await made.condition("Ready")


async def test_the_documented_roles_are_enough_for_jobs_and_for_calls_by_http(
    refreshing: tuple[OperatorProcess, Refreshing],
    admin: Admin,
    cluster: Cluster,
    namespace: str,
    nodes: Nodes,
    aws: Aws,
) -> None:
    _, place = refreshing
    await nodes.add(1)
    jobs, headers = (documented(f"### {title}")[0] for title in ("Jobs of refreshes", "Secrets with headers"))
    (secret,) = headers["rules"][0]["resourceNames"]
    await admin.create(path("secrets", namespace), {"metadata": {"name": secret}, "stringData": {"X-A": "b"}})
    for role in (jobs, headers):
        role["metadata"]["namespace"] = namespace
        await bind(admin, role, "operator", namespace)
    await effective(admin, namespace, "create", "jobs", group="batch")
    await effective(admin, namespace, "get", "secrets", secret)
    template = small_task("t", nodes)["spec"]["template"]
    async with FakeApiServer() as service:
        service.on("POST", "/purge", taken)
        url = {"url": f"{service.url}/purge", "headersFrom": [{"secretRef": {"name": secret}}]}
        for target in ({"job": {"template": template}}, {"http": url}):
            source = aws.source()
            (kind,) = target
            buckets = {"buckets": [source.bucket]}
            made = await place.create(source.queue, kind, filter=buckets, target=target)
            await asyncio.to_thread(aws.put, source.bucket, "in/a.csv")
            await made.when(lambda found: bool(found["status"].get("targets")) and succeeded(found))
        assert service.requests[0].headers["X-A"] == "b"
    asked = audited(cluster, f"system:serviceaccount:{namespace}:operator")
    called = {(verb, resource) for verb, resource, _ in asked}
    assert {("create", "jobs"), ("get", "jobs"), ("get", "secrets")} <= called
    assert [call for call in asked if call[2] in (403, 422)] == []


async def taken(_: web.Request) -> web.StreamResponse:
    """The answer of a service."""
    return web.Response(status=202)


async def test_jobs_that_the_operator_may_not_create_are_named(
    refreshing: tuple[OperatorProcess, Refreshing], admin: Admin, namespace: str, nodes: Nodes, aws: Aws
) -> None:
    operator, place = refreshing
    source = aws.source()
    target = {"job": {"template": small_task("t", nodes)["spec"]["template"]}}
    made = await place.create(source.queue, filter={"buckets": [source.bucket]}, target=target)
    said = await made.condition("TargetsResolved", "False", "TargetsUnresolved")
    assert 'cannot create resource "jobs"' in said["message"]
    assert operator.metric(METRIC, verb="create", resource="jobs") == 1
    (role,) = documented("### Jobs of refreshes")
    role["metadata"]["namespace"] = namespace
    await bind(admin, role, "operator", namespace)
    await made.condition("Ready", timeout=150)  # it is looked for every 10 min, scaled
    assert operator.metric(METRIC, verb="create", resource="jobs") == 0


def succeeded(refresh: Json) -> bool:
    """Whether the end of a refresh was heard of for every target, and nothing is left to do."""
    targets = refresh["status"]["targets"]
    caught_up = any(
        c["type"] == "CaughtUp" and c["status"] == "True" for c in refresh["status"]["conditions"]
    )
    return caught_up and all(t.get("last", {}).get("result") == "Succeeded" for t in targets)


def requested(operator: OperatorProcess) -> set[str]:
    """The IAM actions of all requests that the operator sent to AWS."""
    series = [name for name in operator.metrics() if name.startswith("caretaker_aws_requests_total{")]
    labels = [dict(re.findall(r'(\w+)="([^"]*)"', name)) for name in series]
    return {iam_action(one["service"], one["operation"]) for one in labels}
