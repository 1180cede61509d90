"""A scripted API server and a real one behind one interface: what tests/integration/kube/test_contract.py
compares.

Inputs: for the real one a cluster and a namespace of the test's own.
"""

import base64
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import aiohttp
import pytest

from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.kube.transport import Request
from fakes import answers
from fakes.answers import Json
from fakes.apiserver import FakeApiServer, refusing
from fakes.objects import Objects
from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testbed.components import write_kubeconfig
from testing.accounts import kubeconfig_of

MAP: Final = "configmaps"
TASK: Final = "daemontasks.caretaker.dev"
_POD_SPEC: Final = {"schedulerName": "none", "containers": [{"name": "c", "image": "none"}]}


class Client(KubeClient):
    """The operator's client. It keeps the last answer: its code, and of a refusal headers and body."""

    code = 0
    headers: Mapping[str, str]
    body: Json

    def _error(self, code: int, body: bytes, headers: Mapping[str, str], verb: str, path: str) -> ApiError:
        self.headers, self.body = headers, json.loads(body)
        return super()._error(code, body, headers, verb, path)

    async def ask(self, verb: str, path: str, body: Json | None = None, **params: str | int) -> Json:
        self.observe = lambda _verb, _resource, code, _seconds: setattr(self, "code", code)
        sent = json.dumps(body).encode() if body is not None else None
        found: Json = json.loads(await self.call(Request(verb, path, params, body=sent)))
        return found

    async def refused(self, verb: str, path: str, body: Json | None = None, **params: str | int) -> ApiError:
        with pytest.raises(ApiError) as caught:
            await self.ask(verb, path, body, **params)
        return caught.value


class Side(Protocol):
    """One of the two servers. `maps`, `tasks`: collections of ConfigMaps and of DaemonTasks."""

    client: Client
    maps: str
    tasks: str

    async def compact(self) -> None:
        """Forget what was before now."""

    async def token(self) -> str:
        """A continue token of `tasks` from before."""

    async def throttled(self) -> ApiError:
        """What a request meets that has to wait."""

    async def stranger(self) -> tuple[Client, str]:
        """The client of a user without rights, and who that is."""

    async def unknown(self) -> Client:
        """A client whose token is no one's."""


@dataclass
class Scripted:
    api: FakeApiServer
    client: Client
    maps: str = "/api/v1/namespaces/ns/configmaps"
    tasks: str = "/apis/caretaker.dev/v1alpha1/namespaces/ns/daemontasks"

    def __post_init__(self) -> None:
        self.objects = (
            Objects(self.api, self.maps, MAP, "ConfigMap"),
            Objects(self.api, self.tasks, TASK, "DaemonTask", status=True),
        )

    async def compact(self) -> None:
        for objects in self.objects:
            objects.compact()

    async def token(self) -> str:
        return "of a page that was"

    async def throttled(self) -> ApiError:
        self.api.on("POST", "/eviction", refusing(answers.too_many_requests(10)))
        return await self.client.refused("create", "/eviction", {})

    async def stranger(self) -> tuple[Client, str]:
        self.api.on("GET", self.maps, refusing(answers.forbidden("list", MAP, "someone", "ns")))
        return self.client, "someone"

    async def unknown(self) -> Client:
        self.api.on("GET", self.maps, refusing(answers.unauthorized()))
        return self.client


@dataclass
class Real:
    cluster: Cluster
    admin: Admin
    namespace: str
    folder: Path
    client: Client
    clients: contextlib.AsyncExitStack

    def __post_init__(self) -> None:
        self.maps, self.tasks = path("configmaps", self.namespace), path("daemontasks", self.namespace)

    async def compact(self) -> None:
        """As the API server has it done every five minutes."""
        version = (await self.client.list(self.maps))[1]
        url = f"{self.cluster.etcd_url}/v3/kv/compaction"
        async with aiohttp.ClientSession() as etcd, etcd.post(url, json={"revision": version}) as answer:
            text = await answer.text()
            assert answer.status == 200 or "has been compacted" in text, text

    async def token(self) -> str:
        """Of the first revision; later ones may be in the API server's cache."""
        start = {"v": "meta.k8s.io/v1", "rv": 1, "start": "a\0"}
        return base64.urlsafe_b64encode(json.dumps(start).encode()).decode().rstrip("=")

    async def throttled(self) -> ApiError:
        """An eviction, while the disruption controller has not processed the budget yet. A policy keeps it
        from that: it would be done in milliseconds, and the server would then name no time."""
        await self._keep_status_of_budgets()
        pod = {"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": _POD_SPEC}
        budget: Json = {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}
        budgets = path("poddisruptionbudgets", self.namespace)
        await self.admin.create(path("pods", self.namespace), pod)
        running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await self.admin.patch(path("pods", self.namespace, "p", "status"), {"status": running})
        where = path("pods", self.namespace, "p", "eviction")
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
        for attempt in range(200):  # the server needs a moment to load the policy
            await self.admin.create(budgets, {"metadata": {"name": f"b{attempt}"}, "spec": budget})
            error = await self.client.refused("create", where, eviction)
            if error.retry_after:
                break
            await self.admin.delete(f"{budgets}/b{attempt}")
        return error

    async def _keep_status_of_budgets(self) -> None:
        rule = {
            "apiGroups": ["policy"],
            "apiVersions": ["v1"],
            "operations": ["UPDATE"],
            "resources": ["poddisruptionbudgets/status"],
        }
        here = {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}
        policy = {
            "matchConstraints": {"namespaceSelector": here, "resourceRules": [rule]},
            "validations": [{"expression": "false"}],
        }
        binding = {"policyName": self.namespace, "validationActions": ["Deny"]}
        meta = {"metadata": {"name": self.namespace}}
        await self.admin.create(path("validatingadmissionpolicies"), {**meta, "spec": policy})
        await self.admin.create(path("validatingadmissionpolicybindings"), {**meta, "spec": binding})

    async def stranger(self) -> tuple[Client, str]:
        file = await kubeconfig_of(
            self.admin, self.cluster, self.namespace, "stranger", self.folder / "stranger"
        )
        user = f"system:serviceaccount:{self.namespace}:stranger"
        return await self.clients.enter_async_context(await Client.connect(str(file))), user

    async def unknown(self) -> Client:
        file = self.folder / "unknown"
        write_kubeconfig(file, self.cluster.url, self.cluster.ca, "unknown", "made-up")
        return await self.clients.enter_async_context(await Client.connect(str(file)))


@contextlib.asynccontextmanager
async def scripted(folder: Path) -> AsyncIterator[Side]:
    """The scripted server."""
    async with FakeApiServer() as api, await Client.connect(api.kubeconfig(folder)) as client:
        yield Scripted(api, client)


@contextlib.asynccontextmanager
async def real(cluster: Cluster, folder: Path) -> AsyncIterator[Side]:
    """The real one, in a namespace of its own."""
    async with cluster.admin() as admin, contextlib.AsyncExitStack() as clients:
        name = f"t-{secrets.token_hex(4)}"
        await admin.create(path("namespaces"), {"metadata": {"name": name}})
        await admin.wait_for(path("serviceaccounts", name, "default"), lambda _: True)
        # The ConfigMap that each namespace is given: a test that watches is not to see it come.
        await admin.wait_for(path("configmaps", name, "kube-root-ca.crt"), lambda _: True)
        # Of a kind that is new it says 429 at first: "storage is (re)initializing".
        await admin.wait_for_all(path("daemontasks", name), lambda _: True)
        client = await clients.enter_async_context(await Client.connect(str(cluster.kubeconfig)))
        yield Real(cluster, admin, name, folder, client, clients)
        for kind in ("daemontasks", "pods"):
            await admin.delete(path(kind, name), grace=0)
