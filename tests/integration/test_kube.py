"""Client, Store and Reflector against a real API server, through a proxy where something must go wrong."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pytest

from caretaker.api import names
from caretaker.api.objects import Pod, WirePod
from caretaker.kube.client import METADATA_ONLY, KubeClient
from caretaker.kube.errors import ApiError
from caretaker.kube.reflector import Collection, ReflectorOptions
from caretaker.kube.rest_config import RestConfig
from caretaker.kube.store import Store
from caretaker.kube.transport import Request
from testing.apiproxy import ApiProxy
from testing.examples import SEED
from testing.faults import Match, Stall
from testing.reflecting import Recorder

LABEL = "test.caretaker.dev/kube"
FAST = ReflectorOptions(dead_after=2.0, backoff=(0.05, 0.5), denied=0.3)


class ACluster(Protocol):
    kubeconfig: Path
    url: str
    ca: Path


@pytest.fixture
async def client(cluster: ACluster) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(str(cluster.kubeconfig)) as connected:
        connected.write_seconds = 60  # a busy machine is no failure
        yield connected


def maps(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps{'/' if name else ''}{name}"


STEP = names.POD_ATTEMPT  # an annotation that is kept


def pods(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods{'/' if name else ''}{name}"


def pod(name: str, **annotations: str) -> dict[str, Any]:
    """A Pod that no scheduler touches."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {LABEL: "yes"}, "annotations": annotations},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "c", "image": "none"}],
            "terminationGracePeriodSeconds": 30,
        },
    }


class TestClient:
    async def test_an_object_lives_from_create_to_delete(self, client: KubeClient, namespace: str) -> None:
        made = await client.create(maps(namespace), {"metadata": {"name": "a"}, "data": {"k": "1"}})
        assert made["metadata"]["managedFields"][0]["manager"] == "caretaker"
        changed = await client.patch(maps(namespace, "a"), {"data": {"k": "2"}})
        assert (await client.get(maps(namespace, "a")))["data"] == {"k": "2"}
        bare = await client.call(Request("get", maps(namespace, "a"), accept=METADATA_ONLY))
        assert (b'"PartialObjectMetadata"' in bare, b'"data"' in bare) == (True, False)
        uid = changed["metadata"]["uid"]
        await client.delete(maps(namespace, "a"), body={"preconditions": {"uid": uid}})
        with pytest.raises(ApiError) as caught:
            await client.get(maps(namespace, "a"))
        assert caught.value.not_found

    async def test_refusals_are_told_apart(self, client: KubeClient, namespace: str) -> None:
        async def refused(attempt: Any) -> ApiError:
            with pytest.raises(ApiError) as caught:
                await attempt
            return caught.value

        made = await client.create(maps(namespace), {"metadata": {"name": "a"}})
        await client.patch(maps(namespace, "a"), {"data": {"k": "1"}})
        old = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"k": "2"}}
        assert (await refused(client.patch(maps(namespace, "a"), old))).conflict
        assert (await refused(client.create(maps(namespace), {"metadata": {"name": "a"}}))).already_exists
        foreign = {"preconditions": {"uid": "another"}}
        assert (await refused(client.delete(maps(namespace, "a"), body=foreign))).conflict
        invalid = await refused(client.create(maps(namespace), {"metadata": {"name": "A_"}}))
        assert invalid.invalid
        assert invalid.causes[0][0] == "metadata.name"

    async def test_pages_make_one_list_of_one_moment(self, client: KubeClient, namespace: str) -> None:
        await asyncio.gather(
            *(client.create(maps(namespace), {"metadata": {"name": f"m{i}"}}) for i in range(10))
        )
        items, version = await client.list(maps(namespace), page=3)
        assert {f"m{i}" for i in range(10)} <= {item["metadata"]["name"] for item in items}
        assert int(version) >= max(int(item["metadata"]["resourceVersion"]) for item in items)

    async def test_a_dry_run_stores_nothing(self, client: KubeClient, namespace: str) -> None:
        await client.create(pods(namespace), pod("dry"), params={"dryRun": "All"})
        assert (await client.list(pods(namespace), WirePod))[0] == []

    async def test_a_deleted_pod_is_answered_with_the_version_of_its_deletion(
        self, client: KubeClient, namespace: str
    ) -> None:
        made = await client.create(pods(namespace), pod("a"), WirePod)
        gone = await client.delete(pods(namespace, "a"), body={"gracePeriodSeconds": 0}, type=WirePod)
        assert gone.metadata.uid == made.metadata.uid
        assert int(gone.metadata.resource_version) > int(made.metadata.resource_version)


class TestServiceAccount:
    async def test_in_cluster_access_follows_a_rotated_token(
        self,
        cluster: ACluster,
        client: KubeClient,
        namespace: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        token, ca = tmp_path / "token", tmp_path / "ca.crt"
        token.write_text("expired")
        ca.write_bytes(cluster.ca.read_bytes())
        (tmp_path / "namespace").write_text(namespace)
        server = urlsplit(cluster.url)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(server.hostname))
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        monkeypatch.setattr("kubernetes.config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
        access = await RestConfig.load(service_account=str(tmp_path))
        async with KubeClient(access) as inside:
            assert inside.default_namespace == namespace
            token.write_text(await issue_token(client, namespace))
            review = await inside.create(
                "/apis/authentication.k8s.io/v1/selfsubjectreviews",
                {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
            )
        assert review["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:default"


async def issue_token(client: KubeClient, namespace: str) -> str:
    """A token of the namespace's default ServiceAccount, who may do nothing."""
    where = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    return str((await client.create(where, {"spec": {}}))["status"]["token"])


def mirroring(client: KubeClient, namespace: str) -> AbstractAsyncContextManager[Recorder[Pod]]:
    """A running reflector of a namespace's Pods."""
    collection: Collection[Pod] = Collection(pods(namespace), WirePod, label_selector=LABEL)
    return Recorder(client, collection, FAST).run()


@asynccontextmanager
async def proxied(cluster: ACluster, folder: Path) -> AsyncIterator[tuple[ApiProxy, KubeClient]]:
    """A proxy and a client that goes through it. The proxy's thread is waited for off the loop."""
    proxy = await asyncio.to_thread(ApiProxy(cluster.kubeconfig, "reflector").start)
    try:
        kubeconfig = proxy.write_kubeconfig(folder / "proxied")
        async with await KubeClient.connect(str(kubeconfig)) as client:
            yield proxy, client
    finally:
        await asyncio.to_thread(proxy.stop)


WATCHES = Match(verb="watch", resource="pods")


class TestReflector:
    async def test_the_store_follows_the_server(self, client: KubeClient, namespace: str) -> None:
        await client.create(pods(namespace), pod("before"))
        async with mirroring(client, namespace) as mirror:
            await mirror.store.synced.wait()
            assert mirror.names() == {"before"}
            await client.create(pods(namespace), pod("after"))
            await client.create(pods(namespace), pod("other") | {"metadata": {"name": "unselected"}})
            await client.delete(pods(namespace, "before"), body={"gracePeriodSeconds": 0})
            await mirror.until(lambda: mirror.names() == {"after"})
            assert mirror.comings_and_goings == [(None, "before"), (None, "after"), ("before", None)]
            assert mirror.states == [("synced", "")]

    async def test_our_own_writes_are_visible_at_once_and_told_once(
        self, client: KubeClient, namespace: str
    ) -> None:
        async with mirroring(client, namespace) as mirror:
            await mirror.store.synced.wait()
            for number in range(20):
                name = f"p{number}"
                made = await client.create(pods(namespace), pod(name), WirePod)
                mirror.store.observe_write(made.record(), int(made.metadata.resource_version))
                assert name in mirror.names()
                body = {"gracePeriodSeconds": 0}
                gone = await client.delete(pods(namespace, name), body=body, type=WirePod)
                version = int(gone.metadata.resource_version)
                mirror.store.observe_delete((namespace, name), gone.metadata.uid, version)
                assert name not in mirror.names()
            await mirror.until(lambda: mirror.counts["DELETED"] == 20)
            expected = [change for n in range(20) for change in ((None, f"p{n}"), (f"p{n}", None))]
            assert mirror.comings_and_goings == expected

    async def test_a_late_watch_never_hides_our_own_writes(
        self, cluster: ACluster, client: KubeClient, namespace: str, tmp_path: Path
    ) -> None:
        made = await client.create(pods(namespace), pod("a", **{STEP: "0"}), WirePod)
        async with proxied(cluster, tmp_path) as (proxy, through), mirroring(through, namespace) as mirror:
            await mirror.store.synced.wait()
            await mirror.until(lambda: mirror.counts["WATCH"] == 1)
            stall = proxy.add(WATCHES, Stall())
            for step in ("1", "2"):
                body = {"metadata": {"annotations": {STEP: step}}}
                made = await client.patch(pods(namespace, "a"), body, WirePod)
            mirror.store.observe_write(made.record(), int(made.metadata.resource_version))
            seen: list[str] = []
            mirror.store.subscribe(lambda _, new: seen.append(new.annotations[STEP]) if new else None)
            stall.remove()
            await mirror.until(lambda: mirror.counts["MODIFIED"] >= 2)
            assert seen == []
            assert [p.annotations[STEP] for p in mirror.store.values()] == ["2"]

    async def test_an_expired_watch_lists_again_and_tells_the_missed_deletes(
        self, cluster: ACluster, client: KubeClient, namespace: str, tmp_path: Path
    ) -> None:
        for name in ("a", "b"):
            await client.create(pods(namespace), pod(name))
        async with proxied(cluster, tmp_path) as (proxy, through), mirroring(through, namespace) as mirror:
            await mirror.store.synced.wait()
            await mirror.until(lambda: mirror.counts["WATCH"] == 1)
            with proxy.fault(WATCHES, Stall()):
                await client.delete(pods(namespace, "a"), body={"gracePeriodSeconds": 0})
                assert await asyncio.to_thread(proxy.send_watch_error) == 1
                await mirror.until(lambda: mirror.names() == {"b"})
            assert mirror.comings_and_goings == [(None, "a"), (None, "b"), ("a", None)]
            assert (mirror.counts["EXPIRED"], mirror.counts["DELETED"]) == (1, 0)

    async def test_a_watch_that_falls_silent_recovers_by_itself(
        self, cluster: ACluster, client: KubeClient, namespace: str, tmp_path: Path
    ) -> None:
        async with proxied(cluster, tmp_path) as (proxy, through), mirroring(through, namespace) as mirror:
            await mirror.store.synced.wait()
            await mirror.until(lambda: mirror.counts["WATCH"] == 1)
            with proxy.fault(WATCHES, Stall()):
                await client.create(pods(namespace), pod("a"))
                await mirror.until(lambda: mirror.counts["STALLED"] >= 1)
            await mirror.until(lambda: mirror.names() == {"a"})

    async def test_a_partition_of_the_network_is_survived(
        self, cluster: ACluster, client: KubeClient, namespace: str, tmp_path: Path
    ) -> None:
        async with proxied(cluster, tmp_path) as (proxy, through), mirroring(through, namespace) as mirror:
            await mirror.store.synced.wait()
            partition = proxy.partition()
            await asyncio.to_thread(partition.__enter__)
            await mirror.until(lambda: mirror.state == "failing")
            await client.create(pods(namespace), pod("a"))
            partition.__exit__(None, None, None)
            await mirror.until(lambda: mirror.names() == {"a"})
            assert mirror.state == "synced"

    async def test_a_missing_permission_is_named_and_its_grant_noticed(
        self, cluster: ACluster, client: KubeClient, namespace: str, tmp_path: Path
    ) -> None:
        await client.create(pods(namespace), pod("a"))
        kubeconfig = tmp_path / "unprivileged"
        kubeconfig.write_text(json.dumps(config_of(cluster, await issue_token(client, namespace))))
        async with (
            await KubeClient.connect(str(kubeconfig)) as unprivileged,
            mirroring(unprivileged, namespace) as mirror,
        ):
            await mirror.until(lambda: mirror.states == [("denied", "list pods")])
            await allow(client, namespace, "list")
            await mirror.until(lambda: mirror.states[-1] == ("denied", "watch pods"))
            assert mirror.names() == {"a"}
            await allow(client, namespace, "watch")
            await mirror.until(lambda: mirror.states[-1] == ("synced", ""))
            await client.create(pods(namespace), pod("b"))
            await mirror.until(lambda: mirror.names() == {"a", "b"})

    async def test_the_store_equals_the_server_after_any_trouble(
        self, cluster: ACluster, client: KubeClient, namespace: str, tmp_path: Path
    ) -> None:
        chance = random.Random(SEED)
        async with proxied(cluster, tmp_path) as (proxy, through), mirroring(through, namespace) as mirror:
            await mirror.store.synced.wait()
            for _ in range(60):
                await a_write(client, mirror.store, namespace, chance)
                match chance.randrange(12):
                    case 0:
                        await asyncio.to_thread(proxy.cut_watches)
                    case 1:
                        await asyncio.to_thread(proxy.send_watch_error)
                    case 2:
                        await mirror.reflector.relist()
            last = await client.create(pods(namespace), pod("last"), WirePod)
            await mirror.until(lambda: mirror.store.version >= int(last.metadata.resource_version))
            items, _ = await client.list(pods(namespace), WirePod)
            assert {p.name: p for p in mirror.store.values()} == {
                item.metadata.name: item.record() for item in items
            }


async def a_write(client: KubeClient, store: Store[Pod], namespace: str, chance: random.Random) -> None:
    """Create, change or delete one of five Pods; half of the answers are shown to the store."""
    name, shown = f"p{chance.randrange(5)}", chance.random() < 0.5
    held = store.get(namespace, name)
    try:
        if held is None:
            answer = await client.create(pods(namespace), pod(name), WirePod)
        elif chance.random() < 0.5:
            body = {"metadata": {"annotations": {"n": str(chance.random())}}}
            answer = await client.patch(pods(namespace, name), body, WirePod)
        else:
            gone = await client.delete(pods(namespace, name), body={"gracePeriodSeconds": 0}, type=WirePod)
            if shown:
                version = int(gone.metadata.resource_version)
                store.observe_delete((namespace, name), gone.metadata.uid, version)
            return
    except ApiError as error:
        # What the store has not been told of yet.
        assert error.not_found or error.already_exists  # noqa: PT017
        return
    if shown:
        store.observe_write(answer.record(), int(answer.metadata.resource_version))


async def allow(client: KubeClient, namespace: str, verb: str) -> None:
    """Let the namespace's default ServiceAccount do that to Pods."""
    group = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": [verb]}]
    where = f"/apis/{group}/v1/namespaces/{namespace}"
    await client.create(f"{where}/roles", {"metadata": {"name": f"may-{verb}"}, "rules": rules})
    await client.create(
        f"{where}/rolebindings",
        {
            "metadata": {"name": f"may-{verb}"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": f"may-{verb}"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
        },
    )


def config_of(cluster: ACluster, token: str) -> dict[str, Any]:
    """A kubeconfig for somebody else."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [
            {"name": "c", "cluster": {"server": cluster.url, "certificate-authority": str(cluster.ca)}}
        ],
        "users": [{"name": "c", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }
