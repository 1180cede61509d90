"""Events on a real API server: accepted, found by the object they are about, and posted once."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from caretaker.api.conditions import Event, ObjectRef
from caretaker.kube.client import KubeClient
from caretaker.runtime.events import EventRecorder
from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.faults import LoseReply, Match


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[KubeClient]:
    """The operator's own client; no Lease guards it."""
    client = await KubeClient.connect(str(cluster.kubeconfig))
    yield client
    await client.close()


def some(kind: str, namespace: str, name: str) -> ObjectRef:
    return ObjectRef("caretaker.dev/v1alpha1", kind, namespace, name, str(uuid.uuid4()))


async def events_of(admin: Admin, ref: ObjectRef) -> list[tuple[str, str, str, str]]:
    """(type, reason, message, component), as `kubectl describe` looks them up."""
    items = await admin.list(
        path("events", ref.namespace or "default"), fields=f"involvedObject.uid={ref.uid}"
    )
    return [(e["type"], e["reason"], e["message"], e["source"]["component"]) for e in items]


@pytest.mark.parametrize(
    ("kind", "name", "namespaced"),
    [
        pytest.param("DaemonTask", "t", True, id="of a namespaced object"),
        pytest.param("DaemonTask", "x" * 63, True, id="of a task with the longest name"),
        pytest.param("Node", "n." * 126 + "n", False, id="of a cluster-scoped object with 253 characters"),
    ],
)
async def test_events_are_found_by_their_object(
    client: KubeClient, admin: Admin, namespace: str, kind: str, name: str, namespaced: bool
) -> None:
    ref = some(kind, namespace if namespaced else "", name)
    recorder = EventRecorder(client, identity="a-pod-with-a-name")
    await recorder.post(ref, [Event("Normal", "RunStarted", "é" * 2000), Event("Warning", "RunFailed", "x")])
    assert sorted(await events_of(admin, ref)) == [
        ("Normal", "RunStarted", "é" * 510 + "...", "caretaker"),
        ("Warning", "RunFailed", "x", "caretaker"),
    ]


async def test_two_replicas_post_a_transition_once(client: KubeClient, admin: Admin, namespace: str) -> None:
    ref = some("DaemonTask", namespace, "t")
    for identity in ("pod-1", "pod-2"):
        await EventRecorder(client, identity=identity).post(ref, [Event("Normal", "Resumed", "x")])
    assert len(await events_of(admin, ref)) == 1


async def test_a_lost_reply_disturbs_nothing_and_doubles_nothing(
    cluster: Cluster, admin: Admin, namespace: str, tmp_path: Path
) -> None:
    ref, event = some("DaemonTask", namespace, "t"), Event("Normal", "Suspended", "x")
    with ApiProxy(cluster.kubeconfig) as proxy:
        proxy.add(Match(verb="create", resource="events", times=1), LoseReply())
        client = await KubeClient.connect(str(proxy.write_kubeconfig(tmp_path / "kubeconfig")))
        recorder = EventRecorder(client)
        await recorder.post(ref, [event])
        await recorder.post(ref, [event])
        await client.close()
        assert len(proxy.ledger.writes()) == 2
    assert len(await events_of(admin, ref)) == 1
