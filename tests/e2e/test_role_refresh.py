"""The documented roles and IAM policy are enough for S3AggregatedRefreshes; what is missing is named."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from awsdoubles.cloudwatch.server import CloudWatch
from awsdoubles.gateway.server import StorageGateway
from caretaker.aws.services import iam_action
from fakes.apiserver import FakeApiServer
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testing.accounts import audited, bind, documented, effective, grant, kubeconfig_of
from testing.aws import Aws
from testing.cluster import Nodes
from testing.operator import OperatorProcess
from testing.refreshing import Refreshing, add_headers, grants
from testing.refreshing import operator as refresher
from testing.rights import refused
from testing.roles import KOPF, METRIC, SYSTEM, ready, small_task, until

pytestmark = pytest.mark.slow

SECRET = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
IAM = CHECKOUT / "docs" / "iam"
ROLE = {"roleARN": "arn:aws:iam::111122223333:role/media-refresh", "externalID": "caretaker-my-cluster"}


@pytest.fixture
async def refreshing(
    request: pytest.FixtureRequest,
    admin: Admin,
    cluster: Cluster,
    namespace: str,
    aws: Aws,
    storage_gateway: StorageGateway,
    cloudwatch: CloudWatch,
    tmp_path: Path,
) -> AsyncIterator[tuple[OperatorProcess, Refreshing]]:
    """The operator as a service account that has the documented role and no other, with doubles of AWS;
    started otherwise where a test is parametrized so."""
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
        aws.environment(storage_gateway.url, cloudwatch_url=cloudwatch.url),
        namespace=namespace,
        args=(*grants(tmp_path), *flags, "--egress-allow", "127.0.0.1,http://127.0.0.1"),
        allowed=KOPF,
        **{"leader_elect": True, **getattr(request, "param", {})},
    )
    with process as started:
        yield started, Refreshing(admin, namespace, aws, storage_gateway.control)


async def test_the_documented_role_and_policy_are_enough_for_a_whole_life_of_a_refresh(
    refreshing: tuple[OperatorProcess, Refreshing], admin: Admin, cluster: Cluster, namespace: str, aws: Aws
) -> None:
    """With keys from a Secret that assume a role, ends that are heard of, one of them too early, and
    onDelete: Flush, before which the Secret has gone."""
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
    point = place.control.add_access_point("team", bucket=source.bucket)["arn"]
    place.control.add_share(
        gateway, bucket=source.bucket, prefix="team/", protocol="SMB", location=f"{point}/team/"
    )
    resource = await place.create(
        source.queue,
        aws={
            **ROLE,
            "region": aws.region,
            "credentialsSecretRef": {"name": name},
            "endpointURLs": {"sts": aws.url},
        },
        target={"storageGateway": {"shares": {"discover": {}}, "completion": {"queueURL": ends.url}}},
        cost={},
        onDelete="Flush",
    )
    await resource.condition("Ready")
    for seconds in (6, 12, 24):  # until its end is received before its reply
        place.control.fault("early_completion")
        place.control.fault("delay", seconds=seconds)
        await asyncio.to_thread(aws.put, source.bucket, f"in/{seconds}.csv", "team/b/c.csv")
        await resource.when(succeeded)
        await asyncio.to_thread(place.control.wait_fresh, share)
        if "sqs:ChangeMessageVisibility" in requested(operator):
            break
    await asyncio.to_thread(aws.put, source.bucket, "in/late.csv")
    await resource.when(lambda r: any(t.get("dirty") for t in r["status"]["targets"]))
    await admin.delete(path("secrets", namespace, name))  # as when the namespace goes
    await resource.delete()
    await admin.wait_gone(resource.url, 60)
    await asyncio.to_thread(place.control.wait_fresh, share)
    asked = audited(cluster, f"system:serviceaccount:{namespace}:operator")
    assert ("patch", "s3aggregatedrefreshes") in {(verb, resource) for verb, resource, _ in asked}
    # 422 is what kopf's patches of a finalizer come to.
    assert [call for call in asked if call[2] == 422] == []
    assert refused(cluster, f"system:serviceaccount:{namespace}:operator") == []
    events = await admin.list(path("events", namespace), fields="involvedObject.kind=S3AggregatedRefresh")
    assert "RefreshStarted" in {event["reason"] for event in events}
    wanted = allowed("s3aggregatedrefresh.json", "assume-roles.json") - FOR_THE_CALLER
    assert requested(operator) == wanted


# SQS asks KMS for it, on the caller's behalf.
FOR_THE_CALLER = {"kms:Decrypt"}


def allowed(*files: str) -> set[str]:
    """The actions of these policies."""
    statements = [one for file in files for one in json.loads((IAM / file).read_text())["Statement"]]
    return {action for statement in statements for action in statement["Action"]}


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
    await made.condition("Ready")
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
    operator, place = refreshing
    await nodes.add(1)
    jobs, headers = (documented(f"### {title}")[0] for title in ("Jobs of refreshes", "Secrets with headers"))
    (secret,) = headers["rules"][0]["resourceNames"]
    for role in (jobs, headers):
        role["metadata"]["namespace"] = namespace
        await bind(admin, role, "operator", namespace)
    await effective(admin, namespace, "create", "jobs", group="batch")
    await effective(admin, namespace, "get", "secrets", secret)
    template = small_task("t", nodes)["spec"]["template"]
    async with FakeApiServer() as service:
        service.on("POST", "/purge", taken)
        await add_headers(admin, namespace, secret, service.url, **{"X-A": "b"})
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
    # Nothing had to be given back to a queue here.
    wanted = allowed("s3aggregatedrefresh-queue.json") - FOR_THE_CALLER - {"sqs:ChangeMessageVisibility"}
    assert requested(operator) == wanted
    assert [call for call in asked if call[2] == 422] == []
    assert refused(cluster, f"system:serviceaccount:{namespace}:operator") == []


async def taken(_: web.Request) -> web.StreamResponse:
    """The answer of a service."""
    return web.Response(status=202)


# What is not permitted is tried again every 10 min: 12 s here, a scale that is too short for a Lease.
OFTEN = {"time_scale": 0.02, "leader_elect": False}


@pytest.mark.parametrize("refreshing", [OFTEN], indirect=True, ids=["often"])
async def test_jobs_that_the_operator_may_not_create_are_named(
    refreshing: tuple[OperatorProcess, Refreshing], admin: Admin, namespace: str, nodes: Nodes, aws: Aws
) -> None:
    operator, place = refreshing
    source = aws.source()
    target = {"job": {"template": small_task("t", nodes)["spec"]["template"]}}
    made = await place.create(source.queue, filter={"buckets": [source.bucket]}, target=target)
    said = await made.condition("TargetsResolved", "False", "TargetsUnresolved")
    assert 'cannot create resource "jobs"' in said["message"]
    await until(lambda: operator.metric(METRIC, verb="create", resource="jobs") == 1)
    (role,) = documented("### Jobs of refreshes")
    role["metadata"]["namespace"] = namespace
    await bind(admin, role, "operator", namespace)
    await made.condition("Ready")
    await until(lambda: operator.metric(METRIC, verb="create", resource="jobs") == 0)


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
