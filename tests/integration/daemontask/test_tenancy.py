"""Whoever has rights in one namespace changes nothing in another, and a task runs nothing that its author
could not have run as a pod. docs/security.md lists what is tried here."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import yaml

from caretaker.api import names
from caretaker.api.daemontask import Spec
from caretaker.daemontask.pods import pod_name, revision_of, run_key
from caretaker.imds.probe import TASK_NAME
from caretaker.imds.probe import task as probe_task
from testbed.admin import Admin, ApiError, Json, path
from testbed.cluster import Cluster
from testing.accounts import bind, effective, kubeconfig_of
from testing.customresource import condition, stands
from testing.world import Task, World


@pytest.fixture
async def elsewhere(admin: Admin, namespace: str) -> AsyncIterator[str]:
    """Another tenant's namespace."""
    name = f"{namespace}-b"
    await admin.create(path("namespaces"), {"metadata": {"name": name}})
    await admin.wait_for(path("serviceaccounts", name, "default"), lambda _: True)
    yield name
    for pod in await admin.list(path("pods", name)):
        await admin.patch(path("pods", name, pod["metadata"]["name"]), {"metadata": {"finalizers": None}})
    await admin.delete(path("pods", name), grace=0)
    await admin.delete(path("namespaces", name=name))


async def forged(world: World, task: Task, home: str) -> str:
    """A finished pod in namespace `home` that says to be the task's run, in every word that a true one has;
    its UID. The finalizer keeps the garbage collector from taking it before it was seen."""
    found = await task.get()
    uid, revision = found["metadata"]["uid"], revision_of(msgspec.convert(found["spec"], Spec))
    (node,) = world.nodes.names
    node_uid = await world.nodes.uid(node)
    name = pod_name(task.name, uid, node_uid, 1)
    owner = {"apiVersion": names.API_VERSION, "kind": "DaemonTask", "name": task.name, "uid": uid}
    body = {
        "metadata": {
            "name": name,
            "labels": {names.LABEL_TASK: task.name, names.LABEL_REVISION: revision},
            "annotations": {
                names.POD_NODE_NAME: node,
                names.POD_NODE_UID: node_uid,
                names.POD_RUN_KEY: run_key(uid, revision, node_uid, "", ""),
                names.POD_SEQ: "1",
            },
            "ownerReferences": [{**owner, "controller": True}],
            "finalizers": ["test.caretaker.dev/keep"],
        },
        "spec": {"containers": [{"name": "main", "image": "test:1"}], "nodeName": node},
    }
    made = await world.admin.create(path("pods", home), body)
    await world.admin.patch(path("pods", home, name, "status"), {"status": {"phase": "Succeeded"}})
    return str(made["metadata"]["uid"])


async def test_a_pod_of_another_namespace_does_not_count_as_a_run(world: World, elsewhere: str) -> None:
    """The owner's UID is all that its maker has to know, and whoever may look into the namespace does."""
    await world.join()
    task = await world.task(suspend=True)
    await task.condition("Suspended")
    fake = await forged(world, task, elsewhere)
    await task.edit(suspend=False)
    await task.done(1)
    ledger = await task.ledger()
    assert fake not in {entry["podUID"] for entry in ledger.values()}
    assert len(world.kubelet.ran) == 1


# ---------------------------------------------------------------- nothing beyond `create pods`

TENANT = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]},
    {"apiGroups": [names.GROUP], "resources": ["daemontasks"], "verbs": ["create"]},
]
IMAGE = {"name": "main", "image": "test:1"}
QUOTA = {
    "hard": {"pods": "0"},
    "scopeSelector": {
        "matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}
        ]
    },
}
MEMORY = {"limits": [{"type": "Container", "max": {"memory": "64Mi"}}]}


@pytest.fixture
async def tenant(
    admin: Admin, cluster: Cluster, namespace: str, elsewhere: str, tmp_path: Path
) -> AsyncIterator[Admin]:
    """Somebody who may create Pods and DaemonTasks in a namespace that has bounds: Pod Security, a quota of a
    priority class, a LimitRange. Elsewhere there is a service account `powerful`."""
    await admin.patch(
        path("namespaces", name=namespace),
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}},
    )
    await admin.create(path("serviceaccounts", elsewhere), {"metadata": {"name": "powerful"}})
    await admin.create(path("resourcequotas", namespace), {"metadata": {"name": "critical"}, "spec": QUOTA})
    await admin.create(path("limitranges", namespace), {"metadata": {"name": "memory"}, "spec": MEMORY})
    await admin.wait_for(
        path("resourcequotas", namespace, "critical"), lambda quota: "hard" in quota.get("status", {})
    )
    config = await kubeconfig_of(admin, cluster, namespace, "operator", tmp_path / "tenant")
    meta = {"name": "tenant", "namespace": namespace}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta, "rules": TENANT}
    await bind(admin, role, "operator", namespace)
    await effective(admin, namespace, "create", "daemontasks", group="caretaker.dev")
    token = yaml.safe_load(config.read_text())["users"][0]["user"]["token"]
    async with Admin(cluster.url, token, cluster.ca) as client:
        yield client


REFUSED = {
    "a privileged container": (
        {"containers": [{**IMAGE, "securityContext": {"privileged": True}}]},
        'violates PodSecurity "baseline',
    ),
    "a folder of the host": (
        {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
        'violates PodSecurity "baseline',
    ),
    "the host's network": ({"hostNetwork": True}, 'violates PodSecurity "baseline'),
    "the host's processes": ({"hostPID": True}, 'violates PodSecurity "baseline'),
    "a port of the host": (
        {"containers": [{**IMAGE, "ports": [{"containerPort": 1, "hostPort": 1}]}]},
        'violates PodSecurity "baseline',
    ),
    "another namespace's service account": (
        {"serviceAccountName": "powerful"},
        'serviceaccount "powerful" not found',
    ),
    "a priority that a quota keeps": (
        {"priorityClassName": "system-node-critical"},
        "exceeded quota: critical",
    ),
    "more memory than a LimitRange lets": (
        {"containers": [{**IMAGE, "resources": {"limits": {"memory": "1Gi"}}}]},
        "maximum memory usage per Container is 64Mi",
    ),
}
# The baseline level of Pod Security refuses all of them, as it does a privileged container.
OF_THE_HOST = ("a folder of the host", "the host's", "a port of the host")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param(*given, id=name, marks=pytest.mark.slow if name.startswith(OF_THE_HOST) else ())
        for name, given in REFUSED.items()
    ],
)
async def test_a_task_may_not_be_what_its_author_may_not_create_as_a_pod(
    world: World, tenant: Admin, fields: Json, words: str
) -> None:
    await world.join()
    template = world.template(**fields)
    with pytest.raises(ApiError, match=words) as refused:
        await tenant.create(path("pods", world.namespace), {"metadata": {"name": "own"}, **template})
    assert refused.value.status == 403
    task = {"apiVersion": names.API_VERSION, "kind": "DaemonTask", "metadata": {"name": "t"}}
    await tenant.create(path("daemontasks", world.namespace), {**task, "spec": {"template": template}})
    found = await world.handle("t").when(lambda t: stands(t, "Ready", "False", "PodCreationRefused"))
    assert words in condition(found, "Ready")["message"]
    assert await world.admin.list(path("pods", world.namespace)) == []


async def test_a_template_names_neither_namespace_nor_owner_nor_a_node(
    world: World, tenant: Admin, elsewhere: str
) -> None:
    """What would have a pod be made elsewhere, be taken for somebody else's, or be kept from going."""
    await world.join()
    owner = {"apiVersion": "v1", "kind": "Node", "name": world.nodes.names[0], "uid": "u"}
    meta = {
        "name": "mine",
        "namespace": elsewhere,
        "ownerReferences": [owner],
        "finalizers": ["test.caretaker.dev/never"],
    }
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "DaemonTask",
        "metadata": {"name": "t"},
        "spec": {"template": {**world.template(), "metadata": meta}},
    }
    await tenant.create(path("daemontasks", world.namespace), body)
    task = world.handle("t")
    await task.done(1)
    (pod,) = await task.pods()
    assert pod["metadata"]["namespace"] == world.namespace
    assert "finalizers" not in pod["metadata"]
    assert [owner["uid"] for owner in pod["metadata"]["ownerReferences"]] == [await task.uid()]
    assert await world.admin.list(path("pods", elsewhere)) == []
    for template in (
        {**world.template(), "metadata": {"labels": {names.LABEL_TASK: "other"}}},
        {**world.template(), "metadata": {"annotations": {names.POD_RUN_KEY: "other"}}},
        world.template(nodeName=world.nodes.names[0]),
    ):
        body = {**body, "metadata": {"name": "u"}, "spec": {"template": template}}
        with pytest.raises(ApiError) as refused:
            await tenant.create(path("daemontasks", world.namespace), body)
        assert refused.value.status == 422


async def test_the_probe_runs_in_a_restricted_namespace_and_without_any_credentials(
    world: World, admin: Admin
) -> None:
    (node,) = await world.join()
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await admin.patch(path("namespaces", name=world.namespace), {"metadata": {"labels": labels}})
    await admin.create(
        path("daemontasks", world.namespace), probe_task(world.namespace, "test:1", {node: ""}) or {}
    )
    probe = world.handle(TASK_NAME)
    await probe.done(1)
    (pod,) = await probe.pods()
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert not pod["spec"].get("volumes")
    assert "envFrom" not in pod["spec"]["containers"][0]
