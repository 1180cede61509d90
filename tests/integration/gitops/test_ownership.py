"""Over a whole life of an object that GitOps tools apply, caretaker manages its status, and of the rest a
finalizer where one is asked for; no apply conflicts with it, and it writes nothing when nothing changes."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from awsdoubles.ec2.server import Ec2
from awsdoubles.gateway.server import StorageGateway
from awsdoubles.ministack import MiniStack
from awsdoubles.stack import environment
from caretaker.api.names import FIELD_MANAGER
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testing.apicalls import Call
from testing.apiproxy import ApiProxy
from testing.argocd import health
from testing.aws import Aws
from testing.cluster import Nodes
from testing.customresource import Resource, stands
from testing.imds import SLOW, Fleet
from testing.installed import Shell
from testing.kstatus import words
from testing.kubelet import Kubelet
from testing.operator import OperatorProcess
from testing.refreshing import Refreshing, grants
from testing.refreshing import operator as refresher
from testing.rollouts import until
from testing.versions import Versions, managed, meant
from testing.world import World, holds_for

TIME_SCALE = 0.05
QUIET_SECONDS = 1.5
FINALIZER = "caretaker.dev/finalizer"
ARGO = {"Current": {"Healthy"}, "InProgress": {"Progressing"}, "Terminating": {"Progressing"}}


@pytest.fixture(scope="module")
def proxy(cluster: Cluster) -> Iterator[ApiProxy]:
    """All that the operator asks of the API server goes through it."""
    with ApiProxy(cluster.kubeconfig, "operator") as started:
        yield started


@pytest.fixture(scope="module")
def operator(
    cluster: Cluster, proxy: ApiProxy, ministack: MiniStack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One operator for all kinds, in all namespaces, under its own manager's name."""
    folder = tmp_path_factory.mktemp("operator")
    kubeconfig = proxy.write_kubeconfig(folder / "kubeconfig")
    env = environment(ministack.url, ministack.url)
    args = (*grants(folder), "--egress-allow", "localhost,127.0.0.1")
    with refresher(kubeconfig, folder, env, "gitops", time_scale=TIME_SCALE, args=args) as started:
        yield started


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path) -> Shell:
    """The kubectl of a GitOps tool."""
    return Shell(cluster, tmp_path)


@pytest.fixture
async def world(
    operator: OperatorProcess, admin: Admin, namespace: str, nodes: Nodes
) -> AsyncIterator[World]:
    """Nodes whose pods succeed."""
    async with Kubelet(admin, namespace) as kubelet:
        yield World(admin, namespace, nodes, kubelet)


class Life:
    """What happens to one object; `body` is its manifest in Git."""

    def __init__(self, shell: Shell, admin: Admin, proxy: ApiProxy, body: Json, collection: str) -> None:
        self.shell, self.admin, self.proxy = shell, admin, proxy
        self.body, self.collection = body, collection
        self.resource = Resource(admin, f"{collection}/{body['metadata']['name']}")

    async def apply(self, *flags: str) -> Json:
        """`kubectl apply`, which must not conflict; the object right after it."""
        await self.shell.kubectl("apply", "-f", "-", *flags, stdin=json.dumps(self.body))
        return await self.resource.get()

    async def ready(self) -> Json:
        """The object once it is current, and nothing more is written."""
        found = await self.resource.when(lambda f: stands(f, "Ready"))
        await self.settled()
        return found

    async def settled(self) -> float:
        """When nothing has been written for a while: the time from which on nothing may be."""
        await until(lambda: not self.written(time.time() - QUIET_SECONDS), 60)
        return time.time()

    def written(self, since: float) -> list[Call]:
        """What the operator has tried to write."""
        return self.proxy.ledger.writes(since=since)

    async def applied_again(self, *flags: str, may_note: bool = False) -> None:
        """Twice the same manifest: no write of ours, and but for what kubectl notes down the first time
        (`may_note`) no new version at all."""
        since = await self.settled()
        before = await self.resource.get()
        first = await self.apply(*flags)
        if not may_note:
            assert first["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        second = await self.apply(*flags)
        assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        assert second["metadata"]["generation"] == before["metadata"]["generation"]

        await holds_for(QUIET_SECONDS, lambda: self.written(since) == [])
        after = await self.resource.get()
        assert after["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


FLUX = ("--server-side", "--field-manager=kustomize-controller")
ARGO_CD = ("--server-side", "--force-conflicts", "--field-manager=argocd-controller")


async def live(life: Life, change: Json, work: Callable[[], Awaitable[None]]) -> list[Json]:
    """A whole life, by several tools in turn; its versions. `work` returns when the object did its own."""
    name = life.body["metadata"]["name"]
    async with Versions(life.admin, life.collection, name) as versions:
        await life.apply(*FLUX)
        await work()
        await life.ready()
        await life.applied_again(*FLUX)
        life.body["spec"] |= change
        await life.apply(*FLUX)
        await life.ready()
        await life.applied_again(may_note=True)
        await life.applied_again(*ARGO_CD, may_note=True)
        await life.resource.delete()
        await life.admin.wait_gone(life.resource.url, 60)
        await asyncio.wait_for(versions.gone.wait(), 30)
    return versions.seen


def judge(seen: list[Json], *, finalizer: bool = False) -> None:
    """What no version may show, and what all of them together must."""
    ours = {path for version in seen for path in owned(version)}
    assert "status.observedGeneration" in ours
    extra = {path for path in ours if path.split(".")[0] != "status"}
    assert extra == ({f'metadata.finalizers.v:"{FINALIZER}"'} if finalizer else set())
    before, *_ = seen
    for version in seen:
        managers = {manager for manager, part in managed(version) if part == "status"}
        assert managers <= {FIELD_MANAGER}
        kept = meant(version)
        finalizers = kept.pop("finalizers", [])
        assert finalizers in ([], [FINALIZER] if finalizer else [])
        assert kept == meant(before)
    specs = {v["metadata"]["generation"]: v["spec"] for v in seen if not deleted(v)}
    assert len(specs) == 2, "as it was applied first, and as it was applied then"
    assert [v for v in seen if v["spec"] != specs.get(v["metadata"]["generation"], v["spec"])] == []
    shown = words(seen)
    assert shown[0] == "InProgress"
    assert "Current" in shown
    assert ("Terminating" in shown) == finalizer
    wrong = [(w, health(v)) for w, v in zip(shown, seen, strict=True) if health(v)[0] not in ARGO[w]]
    assert wrong == []


def owned(version: Json) -> set[str]:
    """The paths of the fields that the operator manages."""
    return {p for (manager, _), paths in managed(version).items() if manager == FIELD_MANAGER for p in paths}


def deleted(version: Json) -> bool:
    return "deletionTimestamp" in version["metadata"]


async def test_a_daemon_task(shell: Shell, proxy: ApiProxy, world: World) -> None:
    await world.join(2)
    body = {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "DaemonTask",
        "metadata": {"name": "t", "namespace": world.namespace, "labels": {"team": "a"}},
        "spec": {"template": world.template(), "parallelism": 1},
    }
    life = Life(shell, world.admin, proxy, body, path("daemontasks", world.namespace))

    async def work() -> None:
        await world.handle("t").done(2)

    judge(await live(life, {"parallelism": 2}, work))


async def test_an_s3_aggregated_refresh(
    shell: Shell,
    proxy: ApiProxy,
    operator: OperatorProcess,
    admin: Admin,
    namespace: str,
    aws: Aws,
    storage_gateway: StorageGateway,
) -> None:
    endpoints = {"sqs": aws.url, "storagegateway": storage_gateway.url}
    place = Refreshing(admin, namespace, aws, storage_gateway.control, scale=TIME_SCALE, endpoints=endpoints)
    source = aws.source()
    share = place.share(source.bucket)
    body = place.body(source.queue, onDelete="Flush")
    body["metadata"]["namespace"] = namespace
    life = Life(shell, admin, proxy, body, path("s3aggregatedrefreshes", namespace))

    async def work() -> None:
        await life.resource.condition("Ready")
        await place.put(source.bucket, "a/1")
        await place.fresh(share)
        await life.resource.condition("CaughtUp")

    judge(await live(life, {"filter": {"prefixes": ["a/"]}}, work), finalizer=True)


async def test_an_imds_policy(
    shell: Shell, proxy: ApiProxy, operator: OperatorProcess, admin: Admin, nodes: Nodes, ec2: Ec2
) -> None:
    fleet = Fleet(admin, nodes, ec2.control, ec2.url)
    await fleet.add(2, options=SLOW)
    safety = {"allowLoosening": ["HopLimit"], "allowTightening": ["Tokens"], "canary": {"instances": 0}}
    life = Life(shell, admin, proxy, fleet.body(mode="Audit", safety=safety), path("imdspolicies"))

    async def work() -> None:
        await life.resource.condition("Compliant", "False", "Drifted")

    judge(await live(life, {"mode": "Enforce"}, work))
    assert {one["inForce"]["HttpPutResponseHopLimit"] for one in ec2.control.instances()} == {2}
