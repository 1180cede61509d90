"""Refreshes by Job, against a real API server with its Job controller."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from caretaker.api.names import ENV_PAYLOAD
from caretaker.api.objects import WireMeta
from caretaker.kube.client import KubeClient
from caretaker.s3refresh.debounce import UNKNOWN, Claim
from caretaker.s3refresh.folders import Request
from caretaker.s3refresh.match import of_buckets
from caretaker.s3refresh.snapshot import End, Result
from caretaker.s3refresh.targets.job import Jobs, JobTarget, job_name
from caretaker.s3refresh.targets.payload import payload_of
from fakes.answers import failure
from fakes.apiserver import FakeApiServer, refusing
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testbed.steer import Outcome, behaviour
from testing import manifests
from testing.apiproxy import ApiProxy
from testing.cluster import Nodes
from testing.faults import LoseReply, Match

BUCKET = of_buckets(["bucket"])[0]
CLAIM = Claim("c1", "me", 1_800_000_000.0, Request(("a$(b)", "/"), recursive=False), 1_799_999_990.0)


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[KubeClient]:
    """The operator's own client; no Lease guards it."""
    async with await KubeClient.connect(str(cluster.kubeconfig)) as connected:
        yield connected


@pytest.fixture
async def resource(admin: Admin, namespace: str) -> WireMeta:
    """The owner: without one that exists, Jobs would be collected as garbage."""
    made = await admin.create(
        f"/apis/caretaker.dev/v1alpha1/namespaces/{namespace}/s3aggregatedrefreshes",
        {
            "apiVersion": "caretaker.dev/v1alpha1",
            "kind": "S3AggregatedRefresh",
            "metadata": {"name": "media"},
            "spec": {
                "suspend": True,
                "aws": {"region": "eu-west-1"},
                "source": {"sqs": {"queueURL": "https://sqs.eu-west-1.amazonaws.com/123456789012/q"}},
                "target": {"storageGateway": {"shares": {"discover": {}}}},
            },
        },
    )
    return WireMeta(name="media", namespace=namespace, uid=made["metadata"]["uid"])


def template(outcome: Outcome = "succeed", nodes: Nodes | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"annotations": behaviour(outcome)},
        "spec": {
            "containers": [{"name": "main", "image": "example.com/refresh:1"}],
            "nodeSelector": nodes.selector if nodes else {},
            **spec,
        },
    }


def jobs(client: KubeClient, resource: WireMeta, wanted: dict[str, Any], **fields: Any) -> Jobs:
    return Jobs(client, resource, JobTarget(wanted, **fields), ["bucket"])


async def ended(admin: Admin, target: Jobs, resource: WireMeta, name: str) -> End:
    """How the Job has ended, once it has."""

    def terminal(job: Json) -> bool:
        conditions = job.get("status", {}).get("conditions") or []
        return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)

    await admin.wait_for(path("jobs", resource.namespace, name), terminal, 60.0)
    (end,) = await target.ended([name])
    return end


async def test_a_refresh_is_a_job_that_is_told_what_to_do(
    client: KubeClient, admin: Admin, nodes: Nodes, resource: WireMeta
) -> None:
    await nodes.add(1)
    target = jobs(client, resource, template(nodes=nodes))
    assert (await target.discover()).faults == ()
    name = job_name(resource, "c1")
    assert await target.refresh(BUCKET, CLAIM) == Result("bucket", "c1", notification_id=name)
    found = await admin.get(path("jobs", resource.namespace, name))
    (variable,) = found["spec"]["template"]["spec"]["containers"][0]["env"]
    assert (variable["name"], json.loads(variable["value"])["folders"]) == (ENV_PAYLOAD, ["a$(b)", "/"])
    assert variable["value"].encode() == payload_of(BUCKET, CLAIM)
    assert found["metadata"]["ownerReferences"][0]["uid"] == resource.uid
    assert found["spec"]["ttlSecondsAfterFinished"] == 3600
    assert await ended(admin, target, resource, name) == End(name)


async def test_a_job_that_fails_says_why(
    client: KubeClient, admin: Admin, nodes: Nodes, resource: WireMeta
) -> None:
    await nodes.add(1)
    target = jobs(client, resource, template("fail", nodes), backoff_limit=0)
    name = (await target.refresh(BUCKET, CLAIM)).notification_id
    end = await ended(admin, target, resource, name)
    assert end.code == "BackoffLimitExceeded"
    assert name in end.message


async def test_a_job_that_runs_has_not_ended_and_one_that_is_gone_has_failed(
    client: KubeClient, admin: Admin, resource: WireMeta
) -> None:
    target = jobs(client, resource, template())
    name = (await target.refresh(BUCKET, CLAIM)).notification_id
    assert await target.ended([name]) == []
    await admin.delete(path("jobs", resource.namespace, name))
    await admin.wait_gone(path("jobs", resource.namespace, name))
    assert [end.code for end in await target.ended([name])] == ["JobDeleted"]


async def test_the_same_claim_is_one_job(client: KubeClient, admin: Admin, resource: WireMeta) -> None:
    target = jobs(client, resource, template())
    first = await target.refresh(BUCKET, CLAIM)
    again = await target.refresh(BUCKET, msgspec.structs.replace(CLAIM, owner="you", attempt=2))
    other = await target.refresh(BUCKET, msgspec.structs.replace(CLAIM, id="c2"))
    assert first == again
    names = {job["metadata"]["name"] for job in await admin.list(path("jobs", resource.namespace))}
    assert names == {first.notification_id, other.notification_id}


async def test_a_job_of_somebody_else_is_not_adopted(
    client: KubeClient, admin: Admin, resource: WireMeta
) -> None:
    name = job_name(resource, "c1")
    spec = {"template": {"spec": {**template()["spec"], "restartPolicy": "Never"}}}
    await admin.create(path("jobs", resource.namespace), {"metadata": {"name": name}, "spec": spec})
    result = await jobs(client, resource, template()).refresh(BUCKET, CLAIM)
    assert (result.code, result.notification_id) == ("AlreadyExists", "")


async def test_a_lost_answer_is_unknown_and_asking_again_finds_the_job(
    cluster: Cluster, admin: Admin, resource: WireMeta, tmp_path: Path
) -> None:
    with ApiProxy(cluster.kubeconfig) as proxy:
        kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")
        async with await KubeClient.connect(str(kubeconfig)) as client:
            target = jobs(client, resource, template())
            proxy.add(Match(verb="create", resource="jobs", times=1), LoseReply())
            assert (await target.refresh(BUCKET, CLAIM)).code == UNKNOWN
            again = await target.refresh(BUCKET, msgspec.structs.replace(CLAIM, attempt=2))
    assert again.notification_id == job_name(resource, "c1")
    assert len(await admin.list(path("jobs", resource.namespace))) == 1


async def test_a_quota_that_is_full_refuses_a_new_job_and_hides_none_that_is_there(
    client: KubeClient, admin: Admin, resource: WireMeta
) -> None:
    """The quota is looked at before the name: the answer is 403 though the Job exists."""
    target = jobs(client, resource, template())
    first = await target.refresh(BUCKET, CLAIM)
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"count/jobs.batch": "1"}}}
    await admin.create(path("resourcequotas", resource.namespace), quota)
    await admin.wait_for(
        path("resourcequotas", resource.namespace, "q"),
        lambda found: found.get("status", {}).get("used", {}).get("count/jobs.batch") == "1",
    )
    async with asyncio.timeout(30):  # admission has a view of its own, which lags
        while not (await target.discover()).faults:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.05)
    refused = await target.refresh(BUCKET, msgspec.structs.replace(CLAIM, id="c2"))
    assert (refused.code, "quota" in refused.message) == ("Forbidden", True)
    assert await target.refresh(BUCKET, CLAIM) == first
    found = await target.discover()
    assert ([share.ready for share in found.shares], "quota" in found.faults[0]) == ([True], True)
    assert found.blocked == "", "a quota may be free again when a Job is due"


async def test_a_namespace_that_is_being_deleted_bars_every_job(
    client: KubeClient, admin: Admin, resource: WireMeta
) -> None:
    await admin.create(
        path("configmaps", resource.namespace), {"metadata": {"name": "stays", "finalizers": ["test/stays"]}}
    )
    await admin.delete(path("namespaces", name=resource.namespace))
    target = jobs(client, resource, template())
    async with asyncio.timeout(30):  # admission has a view of its own, which lags
        while not (found := await target.discover()).blocked:  # noqa: ASYNC110 - without an event
            await asyncio.sleep(0.05)
    assert found.complete
    assert "is being terminated" in found.blocked
    await admin.patch(path("configmaps", resource.namespace, "stays"), {"metadata": {"finalizers": None}})


@pytest.mark.parametrize(
    ("wanted", "fields", "words"),
    [
        pytest.param(
            {"spec": {"containers": []}},
            {},
            "spec.target.job.template.spec.containers: Required",
            id="no container",
        ),
        pytest.param(
            template(restartPolicy="Always"), {}, "spec.target.job.template.spec.restartPolicy", id="restarts"
        ),
        pytest.param(template(imaginary=1), {}, 'unknown field "spec.template.spec.imaginary"', id="unknown"),
        pytest.param(template(), {"backoff_limit": -1}, "spec.target.job.backoffLimit", id="negative"),
        pytest.param(
            {"spec": {"containers": [{"env": "A=b"}]}},
            {},
            "`spec.target.job.template.spec.containers[0].env`",
            id="a wrong type where we read",
        ),
    ],
)
async def test_a_template_that_is_invalid_is_told_before_anything_runs(
    client: KubeClient, admin: Admin, resource: WireMeta, wanted: Any, fields: Any, words: str
) -> None:
    target = jobs(client, resource, wanted, **fields)
    found = await target.discover()
    assert found.complete
    assert [share.ready for share in found.shares] == [False]
    assert words in found.faults[0]
    assert await admin.list(path("jobs", resource.namespace)) == []


@pytest.mark.parametrize(("status", "ready"), [(503, True), (422, False), (403, True)])
async def test_it_is_for_its_prefix_whatever_the_api_server_says(
    tmp_path: Path, status: int, ready: bool
) -> None:
    async with FakeApiServer() as api:
        api.on("POST", "/apis/batch/v1/namespaces/team/jobs", refusing(failure(status, "Busy")))
        async with await KubeClient.connect(api.kubeconfig(tmp_path)) as client:
            owner = WireMeta(name="media", namespace="team", uid="u1")
            found = await jobs(client, owner, template(), prefix="in/").discover()
    assert found.shares == of_buckets(["bucket"], "in/", ready=ready)


async def test_the_template_of_the_example_is_valid(client: KubeClient, resource: WireMeta) -> None:
    example = manifests.load((CHECKOUT / "examples" / "s3-refresh-job.yaml").read_text())
    wanted = msgspec.convert(example["spec"]["target"]["job"], JobTarget)
    found = await Jobs(client, resource, wanted, ["media"]).discover()
    assert (found.faults, [share.ready for share in found.shares]) == ((), [True])


@pytest.mark.parametrize(
    ("create", "get", "code"),
    [
        pytest.param((500, "InternalError"), (404, "NotFound"), UNKNOWN, id="it may have been created"),
        pytest.param((403, "Forbidden"), (404, "NotFound"), "Forbidden", id="it was not"),
        pytest.param((409, "AlreadyExists"), (503, "Busy"), UNKNOWN, id="nobody can look"),
        pytest.param((409, "AlreadyExists"), (404, "NotFound"), "AlreadyExists", id="it was, and is gone"),
    ],
)
async def test_what_a_refusal_means(
    tmp_path: Path, create: tuple[int, str], get: tuple[int, str], code: str
) -> None:
    owner = WireMeta(name="media", namespace="team", uid="u1")
    collection = "/apis/batch/v1/namespaces/team/jobs"
    async with FakeApiServer() as api:
        api.on("POST", collection, refusing(failure(*create, "no")))
        api.on("GET", f"{collection}/{job_name(owner, 'c1')}", refusing(failure(*get)))
        async with await KubeClient.connect(api.kubeconfig(tmp_path)) as client:
            target = jobs(client, owner, template())
            assert await target.refresh(BUCKET, CLAIM) == Result("bucket", "c1", "", code, "no")
            gone = [end.code for end in await target.ended([job_name(owner, "c1")])]
    assert gone == (["JobDeleted"] if get[0] == 404 else [])
