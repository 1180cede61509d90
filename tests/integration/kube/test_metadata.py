"""What kopf is given to speak through: our own TLS and proxy, metadata alone, and lines that it can read."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from caretaker.handlers import CustomResources
from caretaker.kube.client import PAGE_BYTES, KubeClient
from caretaker.kube.metadata import MetadataSession
from caretaker.kube.rest_config import RestConfig
from caretaker.registry import DAEMON_TASK
from caretaker.runtime.work_queue import Key
from fakes.answers import event, listing, unauthorized, version_expired
from fakes.apiserver import FakeApiServer, Handler, answer, paged, status
from testing.authority import loose_certificate

GROUP = "/apis/caretaker.dev/v1alpha1"
TASKS = f"{GROUP}/daemontasks"
ONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
MANY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def session(api: FakeApiServer, tmp_path: Path) -> AsyncIterator[MetadataSession]:
    access = await RestConfig.load(api.kubeconfig(tmp_path))
    made = MetadataSession({"Authorization": "Bearer secret"}, access.request, [DAEMON_TASK.plural])
    yield made
    await made.close()


def named(name: str, **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **meta}}


async def test_lists_and_watches_of_the_kinds_alone_ask_for_metadata(
    api: FakeApiServer, session: MetadataSession
) -> None:
    namespaced = f"{GROUP}/namespaces/ns/daemontasks"
    for path in ("/apis", GROUP, TASKS, f"{TASKS}?watch=true&resourceVersion=7", f"{namespaced}?limit=500"):
        await session.request("get", api.url + path, headers=None, json=None)
    assert [request.headers["Accept"] for request in api.requests] == ["*/*", "*/*", MANY, ONE, MANY]
    assert {request.headers["Authorization"] for request in api.requests} == {"Bearer secret"}


async def test_a_list_of_none_is_a_list(api: FakeApiServer, session: MetadataSession) -> None:
    async def empty(_: web.Request) -> web.StreamResponse:
        return answer({"metadata": {"resourceVersion": "7"}, "items": None})

    api.on("GET", TASKS, empty)
    found = await session.request("get", api.url + TASKS)
    assert await found.json() == {"metadata": {"resourceVersion": "7"}, "items": []}


async def test_pages_of_large_objects_have_fewer_of_them(
    api: FakeApiServer, session: MetadataSession
) -> None:
    large = named("a", labels={"l": "x" * (PAGE_BYTES // 5)})
    api.on("GET", TASKS, paged([large] * 12))
    found, token = list[dict[str, Any]](), ""
    while not found or token:
        query = f"labelSelector=a%3Db&limit=500&continue={token or 0}"
        page = await (await session.request("get", f"{api.url}{TASKS}?{query}")).json()
        found += page["items"]
        token = page["metadata"].get("continue", "")
    assert found == [named("a")] * 12
    assert [int(request.query["limit"]) for request in api.requests] == [500, 62, 7, 1, 2, 2, 2, 2, 2, 2]
    assert {request.query["labelSelector"] for request in api.requests} == {"a=b"}


async def test_lines_of_a_watch_come_whole_however_they_arrive(
    api: FakeApiServer, session: MetadataSession
) -> None:
    events = [{"type": "ADDED", "object": named(name, managedFields=[{"manager": "é"}])} for name in "ab"]
    events.append({"type": "ERROR", "object": {"kind": "Status", "code": 410, "metadata": None}})
    text = "\n\n".join(json.dumps(event, ensure_ascii=False) for event in events).encode() + b"\n{"

    async def in_bytes(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for byte in text:
            await response.write(bytes([byte]))
        return response

    api.on("GET", TASKS, in_bytes)
    async with await session.request("get", f"{api.url}{TASKS}?watch=true") as found:
        seen = [json.loads(line) async for line in found.content.iter_chunked(1 << 20)]
    assert seen == [{"type": "ADDED", "object": named(name)} for name in "ab"] + events[2:]


async def test_a_closed_session_is_opened_again(api: FakeApiServer, session: MetadataSession) -> None:
    """Else a watch that outlives its run of kopf waits for ever, and kopf kills the process."""
    await session.request("get", api.url + TASKS)
    await session.close()
    assert not session.closed
    assert (await session.request("get", api.url + TASKS)).status == 404


async def test_the_proxy_of_a_kubeconfig_is_used(api: FakeApiServer, tmp_path: Path) -> None:
    cluster = {"server": "http://cluster.example", "proxy-url": api.url}
    access = await RestConfig.load(api.kubeconfig(tmp_path, cluster=cluster))
    session = MetadataSession({}, access.request, [])
    assert (await session.request("get", f"{access.host}/apis")).status == 404
    assert api.requests[0].host == "cluster.example"
    await session.close()


async def test_a_cluster_whose_authority_is_not_to_the_letter_of_rfc_5280_is_connected_to(
    tmp_path: Path,
) -> None:
    """As those of EKS are; from Python 3.13 on, TLS is strict unless it is told otherwise."""
    certificate = loose_certificate(tmp_path, "127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    async with FakeApiServer(tls) as api:
        cluster = {"certificate-authority": str(certificate)}
        access = await RestConfig.load(api.kubeconfig(tmp_path, cluster=cluster))
        session = MetadataSession({}, access.request, [])
        assert (await session.request("get", f"{access.host}/apis")).status == 404
        await session.close()


def kinds(plural: str, kind: str) -> Handler:
    """A group of one kind."""
    names = {"name": plural, "singularName": kind.lower(), "kind": kind}

    async def listed(_: web.Request) -> web.StreamResponse:
        one = {**names, "namespaced": True, "verbs": ["list", "watch"]}
        return answer({"kind": "APIResourceList", "resources": [one]})

    return listed


class Guarded:
    """What kopf asks of an API server with one kind and one object, which has the name of the one token that
    is let in."""

    def __init__(self, api: FakeApiServer) -> None:
        self.token = "old"
        self.changed = asyncio.Event()
        answers = {"/api": self._core, "/apis": self._groups, TASKS: self._tasks}
        lists = {
            "/api/v1": kinds("namespaces", "Namespace"),
            GROUP: kinds(DAEMON_TASK.plural, DAEMON_TASK.kind),
        }
        for path, handler in (answers | lists).items():
            api.on("GET", path, self._checked(handler))

    def change(self, token: str) -> None:
        self.token = token
        self.changed.set()

    def _checked(self, handler: Handler) -> Handler:
        async def checked(request: web.Request) -> web.StreamResponse:
            if request.headers.get("Authorization") != f"Bearer {self.token}":
                return status(unauthorized())
            return await handler(request)

        return checked

    async def _core(self, _: web.Request) -> web.StreamResponse:
        return answer({"kind": "APIVersions", "versions": ["v1"]})

    async def _groups(self, _: web.Request) -> web.StreamResponse:
        version = {"groupVersion": "caretaker.dev/v1alpha1", "version": "v1alpha1"}
        one = {"name": "caretaker.dev", "versions": [version], "preferredVersion": version}
        return answer({"kind": "APIGroupList", "groups": [one]})

    async def _tasks(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            one = named(self.token, namespace="ns")
            return answer(listing(7, one, kind=DAEMON_TASK.kind))
        response = web.StreamResponse()
        await response.prepare(request)
        await self.changed.wait()
        self.changed.clear()
        gone = event("ERROR", version_expired(7, 9))
        await response.write(json.dumps(gone).encode() + b"\n")
        return response


async def test_kopf_goes_on_with_new_credentials_when_the_old_are_refused(
    api: FakeApiServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    guarded, keys = Guarded(api), asyncio.Queue[Key]()
    async with await KubeClient.connect(api.kubeconfig(tmp_path, {"tokenFile": str(file)})) as client:
        resources = CustomResources(client, [DAEMON_TASK], None, keys.put_nowait)
        running = asyncio.create_task(resources.run())
        try:
            async with asyncio.timeout(60):
                assert (await keys.get()).name == "old"
                file.write_text("new")
                guarded.change("new")
                while (await keys.get()).name != "new":
                    pass
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await resources.stop()
