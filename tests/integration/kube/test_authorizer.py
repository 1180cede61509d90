"""Authentication of metrics: real tokens, real roles, and only the two rights that the chart grants."""

import asyncio
import json
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

import chart
from caretaker.kube.authorizer import ALLOWED_SECONDS, AT_ONCE, CACHED, REFUSED_SECONDS, DelegatingAuthorizer
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import NotLeader
from caretaker.obs.server import ObsServer
from fakes.answers import failure, forbidden
from fakes.apiserver import FakeApiServer, refusing
from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testing.accounts import bind, effective, kubeconfig_of, shipped
from testing.operator import OperatorProcess
from testing.rights import granted, refused, used
from testing.roles import KOPF, SYSTEM

FLAG = ("--set", "metrics.authentication=true")


async def reader(admin: Admin, namespace: str, name: str, *, may: bool) -> str:
    """The token of an account with the chart's role for reading metrics (`may`), or without it."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    await admin.apply(path("serviceaccounts", namespace, name), account)
    if may:
        (role,) = [one for one in chart.objects(*FLAG) if one["metadata"]["name"].endswith("-metrics-reader")]
        role["metadata"]["name"] += f"-{namespace}"
        await bind(admin, role, name, namespace)
    token = await admin.create(path("serviceaccounts", namespace, name, "token"), {"spec": {}})
    return str(token["status"]["token"])


async def scrape(port: int, **headers: str) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics", headers=headers) as answer,
    ):
        return answer.status


async def test_only_who_is_allowed_reads_the_metrics_of_an_operator(
    admin: Admin, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """An operator that is not the leader authenticates readers, too."""
    await admin.apply(
        path("namespaces", name=SYSTEM),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}},
    )
    config = await kubeconfig_of(admin, cluster, namespace, "operator", tmp_path / "operator")
    ours = await shipped(namespace, *FLAG)
    for role in ours:
        await bind(admin, role, "operator", namespace)
    await effective(admin, namespace, "create", "tokenreviews", group="authentication.k8s.io")
    good = await reader(admin, namespace, "prometheus", may=True)
    other = await reader(admin, namespace, "other", may=False)
    lease = {
        "metadata": {"name": namespace},
        "spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600},
    }
    await admin.create(path("leases", SYSTEM), lease)
    flags = ("--operator-namespace", SYSTEM, "--lease-name", namespace, "--metrics-authentication")
    with OperatorProcess(config, namespace=namespace, args=flags, allowed=KOPF) as process:
        port = process.metrics_port
        assert await scrape(port) == 401
        assert await scrape(port, Authorization="Bearer made-up") == 401
        assert await scrape(port, Authorization=f"Bearer {other}") == 403
        async with asyncio.timeout(30):  # a binding takes effect some time after its creation
            while await scrape(port, Authorization=f"Bearer {good}") != 200:  # noqa: ASYNC110
                await asyncio.sleep(1)
        assert process.healthz()[0] == 200
        process.terminate()
    user = f"system:serviceaccount:{namespace}:operator"
    review_rights = {one for one in used(cluster, user)[0] if one.resource.endswith("reviews")}
    assert {(one.verb, one.resource) for one in review_rights} == {
        ("create", "tokenreviews"),
        ("create", "subjectaccessreviews"),
    }
    assert all(any(right.covers(one) for right in granted(ours)) for one in review_rights)
    assert [one for one in refused(cluster, user) if "reviews" in one] == []


def answers(server: FakeApiServer, *, authenticated: bool = True, allowed: bool = True) -> list[str]:
    """Let the fake return these reviews. Returns the list of reviewed kinds."""
    asked: list[str] = []

    def saying(status: dict[str, Any]) -> Any:
        async def reply(request: web.Request) -> web.StreamResponse:
            asked.append(request.path.rpartition("/")[2])
            return web.json_response({"status": status}, status=201)

        return reply

    user = {"username": "jane", "uid": "u", "groups": ["g"], "extra": {"k": ["v"]}}
    server.on(
        "POST",
        "/apis/authentication.k8s.io/v1/tokenreviews",
        saying({"authenticated": authenticated, "user": user} if authenticated else {"error": "no"}),
    )
    server.on("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", saying({"allowed": allowed}))
    return asked


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def client(api: FakeApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(api.kubeconfig(tmp_path)) as connected:
        yield connected


def not_leading(_: float) -> None:
    raise NotLeader("held by another")


async def test_what_is_asked_is_what_was_told_of_the_token(api: FakeApiServer, client: KubeClient) -> None:
    asked = answers(api)
    client.guard = not_leading  # reviews write nothing
    assert await DelegatingAuthorizer(client)("secret") is HTTPStatus.OK
    assert asked == ["tokenreviews", "subjectaccessreviews"]
    token, access = (json.loads(body) for body in api.bodies)
    assert (token["kind"], token["spec"]) == ("TokenReview", {"token": "secret"})
    assert access["kind"] == "SubjectAccessReview"
    assert access["spec"] == {
        "user": "jane",
        "uid": "u",
        "groups": ["g"],
        "extra": {"k": ["v"]},
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }


@pytest.mark.parametrize(
    ("authenticated", "allowed", "status", "kept", "each"),
    [
        (True, True, HTTPStatus.OK, ALLOWED_SECONDS, 2),
        (True, False, HTTPStatus.FORBIDDEN, REFUSED_SECONDS, 2),
        (False, True, HTTPStatus.UNAUTHORIZED, REFUSED_SECONDS, 1),
    ],
)
async def test_an_answer_is_remembered_for_a_while(
    api: FakeApiServer,
    client: KubeClient,
    authenticated: bool,
    allowed: bool,
    status: HTTPStatus,
    kept: float,
    each: int,
) -> None:
    asked, clock = answers(api, authenticated=authenticated, allowed=allowed), Clock()
    authorizer = DelegatingAuthorizer(client, clock)
    assert set(await asyncio.gather(*(authorizer("a") for _ in range(20)))) == {status}
    assert len(asked) <= AT_ONCE * each, "concurrent requests share a review"
    before = len(asked)
    clock.now += kept - 1
    assert (await authorizer("a"), len(asked)) == (status, before)
    assert await authorizer("b") is status
    assert len(asked) == before + each, "another token needs its own review"
    clock.now += 1
    assert await authorizer("a") is status
    assert len(asked) == before + 2 * each


async def test_while_the_api_server_does_not_answer_nobody_reads(
    api: FakeApiServer, client: KubeClient
) -> None:
    authorizer = DelegatingAuthorizer(client)
    for handler in (
        refusing(failure(500, "InternalError")),
        refusing(forbidden("create", "tokenreviews.authentication.k8s.io")),
    ):
        api.on("POST", "/apis/authentication.k8s.io/v1/tokenreviews", handler)
        assert await authorizer("a") is HTTPStatus.SERVICE_UNAVAILABLE
    answers(api)
    assert await authorizer("a") is HTTPStatus.OK, "errors are not cached"


async def test_invented_tokens_are_not_kept_for_ever(api: FakeApiServer, client: KubeClient) -> None:
    answers(api, authenticated=False)
    authorizer = DelegatingAuthorizer(client)
    for number in range(CACHED + 20):
        await authorizer(str(number))
    assert len(authorizer._refused) == CACHED


async def test_a_token_that_is_no_text_is_nobodys(api: FakeApiServer, client: KubeClient) -> None:
    asked = answers(api)
    server = ObsServer(CollectorRegistry(), authorize=DelegatingAuthorizer(client))
    bound = await server.start("127.0.0.1", 0, 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", bound.metrics_port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\xff\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"401"
    assert asked == []
    writer.close()
    await server.stop()


async def test_invented_tokens_displace_nobody_who_may_read(api: FakeApiServer, client: KubeClient) -> None:
    answers(api)
    authorizer = DelegatingAuthorizer(client)
    assert await authorizer("prometheus") is HTTPStatus.OK
    answers(api, authenticated=False)
    for number in range(CACHED + 20):
        assert await authorizer(str(number)) is HTTPStatus.UNAUTHORIZED
    assert await authorizer("prometheus") is HTTPStatus.OK
