"""The chart's admission policy: the operator works with it, and its account can write only pods and ledgers
of DaemonTasks, in their namespaces."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import chart
from testbed.admin import Admin, ApiError, Json, path
from testbed.cluster import Cluster
from testing.accounts import bind, effective, grant, kubeconfig_of
from testing.cluster import Nodes
from testing.operator import OperatorProcess
from testing.roles import KOPF, SYSTEM, ready, small_task
from testing.s3refreshes import refresh

pytestmark = pytest.mark.slow

ACCOUNT = "system:serviceaccount:caretaker-system:caretaker"
PLURALS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
POD = {"containers": [{"name": "main", "image": "test:1"}]}
OWNER = {
    "apiVersion": "caretaker.dev/v1alpha1",
    "kind": "DaemonTask",
    "name": "t",
    "uid": "00000000-0000-0000-0000-000000000000",
    "controller": True,
}
ELSEWHERE = "DaemonTasks run no pods in this namespace"

Bounded = Callable[..., Awaitable[Path]]


@pytest.fixture
async def bounded(admin: Admin, cluster: Cluster, namespace: str, tmp_path: Path) -> AsyncIterator[Bounded]:
    """With helm's flags: a kubeconfig of the operator's account, for which the chart's policy is in force."""
    made: list[Json] = []

    async def bound(*flags: str) -> Path:
        await space(admin, SYSTEM)
        config = await kubeconfig_of(admin, cluster, namespace, "operator", tmp_path / "operator")
        await grant(admin, namespace)
        text = await asyncio.to_thread(chart.text, "--show-only", "templates/admissionpolicy.yaml", *flags)
        for body in yaml.safe_load_all(text.replace(ACCOUNT, f"system:serviceaccount:{namespace}:operator")):
            made.append(renamed(body, namespace))
            await admin.create(path(PLURALS[body["kind"]]), body)
        async with client(cluster, config) as account:
            await acting(account, namespace)
        return config

    yield bound
    for body in made:
        await admin.delete(path(PLURALS[body["kind"]], name=body["metadata"]["name"]))


async def space(admin: Admin, name: str, **labels: str) -> None:
    """A namespace with these labels."""
    meta = {"name": name, "labels": labels}
    await admin.apply(
        path("namespaces", name=name), {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}
    )


def client(cluster: Cluster, config: Path) -> Admin:
    """A client with the bearer token of a kubeconfig."""
    token = str(yaml.safe_load(config.read_text())["users"][0]["user"]["token"])
    return Admin(cluster.url, token, cluster.ca)


def renamed(body: Json, name: str) -> Json:
    """The same under a name of this test."""
    body["metadata"]["name"] = name
    if "policyName" in body["spec"]:
        body["spec"]["policyName"] = name
    return body


def meta(name: str, **more: Any) -> Json:
    return {"metadata": {"name": name, **more}}


async def acting(account: Admin, namespace: str) -> None:
    """Return once the policy refuses a request: it takes effect some time after its creation."""
    trial = {"metadata": {"name": "trial"}, "data": {}}
    async with asyncio.timeout(30):
        while True:
            try:
                await account.request("POST", f"{path('configmaps', namespace)}?dryRun=All", trial)
            except ApiError:
                return
            await asyncio.sleep(0.1)


async def test_the_operator_works_within_the_bounds(
    bounded: Bounded, admin: Admin, cluster: Cluster, namespace: str, nodes: Nodes
) -> None:
    config = await bounded()
    async with client(cluster, config) as account:
        await refused(account, admin, namespace)
    await nodes.add(2)
    flags = ("--operator-namespace", SYSTEM, "--lease-name", namespace)
    with OperatorProcess(config, namespace=namespace, time_scale=0.3, args=flags, allowed=KOPF):
        url = path("daemontasks", namespace, "t")
        await admin.create(path("daemontasks", namespace), small_task("t", nodes, ttlSecondsAfterFinished=0))
        found = await admin.wait_for(url, lambda t: t.get("status", {}).get("succeeded") == 2, 60)
        await admin.wait_for(url, lambda t: ready(t).get("status") == "True", 60)
        ours = "caretaker.dev/daemontask=t"
        await admin.wait_for_all(path("pods", namespace), lambda pods: not pods, 60, labels=ours)
        assert found["metadata"]["name"] == "t"


async def refused(account: Admin, admin: Admin, namespace: str) -> None:
    """What the roles allow and the bounds do not."""
    label = {"caretaker.dev/daemontask": "t"}
    await admin.create(path("configmaps", namespace), {**meta("theirs"), "data": {"a": "b"}})
    await admin.create(path("pods", namespace), {**meta("theirs"), "spec": POD})
    words = "the pods and ledgers of DaemonTasks only"
    for body in (meta("a"), meta("a", labels=label), meta("a", ownerReferences=[OWNER])):
        with pytest.raises(ApiError, match=words):
            await account.create(path("pods", namespace), {**body, "spec": POD})
    for other in ({"controller": False}, {"kind": "Job"}, {"apiVersion": "batch/v1"}):
        body = meta("a", labels=label, ownerReferences=[{**OWNER, **other}])
        with pytest.raises(ApiError, match=words):
            await account.create(path("pods", namespace), {**body, "spec": POD})
    ledger = {"caretaker.dev/ledger": "0"}
    theirs = path("configmaps", namespace, "theirs")
    for patch in ({"data": {"a": "c"}}, {"metadata": {"labels": ledger, "ownerReferences": [OWNER]}}):
        with pytest.raises(ApiError, match=words):
            await account.patch(theirs, patch)
    with pytest.raises(ApiError, match=words):
        await account.delete(path("pods", namespace, "theirs"))
    assert (await admin.get(theirs))["data"] == {"a": "b"}
    # With a finalizer: the garbage collector deletes what belongs to an owner that does not exist.
    kept = meta("ledger", ownerReferences=[OWNER], finalizers=["test.caretaker.dev/kept"])
    await admin.create(path("configmaps", namespace), kept)
    lost = path("configmaps", namespace, "ledger")
    with pytest.raises(ApiError, match=words):
        await account.patch(lost, {"data": {"a": "c"}})
    await account.patch(lost, {"metadata": {"labels": ledger}})  # it had lost them
    await admin.delete(lost)
    await admin.patch(lost, {"metadata": {"finalizers": None}})


def named(*names: str) -> tuple[str, str]:
    return "--set", f"taskNamespaces.names={{{','.join(names)}}}"


# Where pods may be created: kube-system, SYSTEM (the release's), `*` (the test's own), one labelled pool=a.
PLACES = {
    "by default": ((), {SYSTEM, "*", "labelled"}),
    "named": (named("kube-system"), {SYSTEM, "kube-system"}),
    "by label": (("--set", "taskNamespaces.labels.pool=a"), {SYSTEM, "labelled"}),
    "by a label without a value": (("--set-string", "taskNamespaces.labels.pool="), {SYSTEM}),
    "by label and name": (("--set", "taskNamespaces.labels.pool=a", *named("*")), {SYSTEM, "labelled", "*"}),
    "one namespace": (("--set", "watchNamespace=*"), {"*"}),
}


@pytest.mark.parametrize(("flags", "allowed"), PLACES.values(), ids=PLACES.keys())
async def test_pods_and_ledgers_are_made_in_task_namespaces_alone(
    bounded: Bounded,
    admin: Admin,
    cluster: Cluster,
    namespace: str,
    flags: tuple[str, ...],
    allowed: set[str],
) -> None:
    """With correct label and owner: the holder of the token can invent both."""
    labelled = f"{namespace}-a"
    await space(admin, labelled, pool="a")
    config = await bounded(*(flag.replace("*", namespace) for flag in flags))
    places = {"kube-system": "kube-system", SYSTEM: SYSTEM, "*": namespace, "labelled": labelled}
    found = set()
    async with client(cluster, config) as account:
        for name, place in places.items():
            said = [await trial(account, place, kind) for kind in ("pods", "configmaps")]
            assert len(set(said)) == 1, said
            found |= {name} if said[0] else set()
    assert found == allowed
    await admin.delete(path("namespaces", name=labelled))


async def trial(account: Admin, place: str, plural: str) -> bool:
    """Whether the account may create that there."""
    key = {"pods": "caretaker.dev/daemontask", "configmaps": "caretaker.dev/ledger"}[plural]
    body = meta("t", labels={key: "t"}, ownerReferences=[OWNER])
    try:
        await account.request(
            "POST",
            f"{path(plural, place)}?dryRun=All",
            {**body, **({"spec": POD} if plural == "pods" else {})},
        )
    except ApiError as error:
        if ELSEWHERE not in error.message and "service account" not in error.message:
            raise
        return ELSEWHERE not in error.message
    return True


async def test_a_label_of_kube_system_does_not_let_tasks_in(
    bounded: Bounded, admin: Admin, cluster: Cluster
) -> None:
    url = path("namespaces", name="kube-system")
    await admin.patch(url, {"metadata": {"labels": {"pool": "a"}}})
    try:
        async with client(cluster, await bounded("--set", "taskNamespaces.labels.pool=a")) as account:
            assert not await trial(account, "kube-system", "pods")
    finally:
        await admin.patch(url, {"metadata": {"labels": {"pool": None}}})


async def test_a_task_elsewhere_tells_which_value_is_to_name_its_namespace(
    bounded: Bounded, admin: Admin, namespace: str, nodes: Nodes
) -> None:
    await nodes.add(1)
    config = await bounded(*named("others"))
    url = path("daemontasks", namespace, "t")
    flags = ("--operator-namespace", SYSTEM, "--lease-name", namespace)
    with OperatorProcess(config, namespace=namespace, time_scale=0.3, args=flags, allowed=KOPF):
        await admin.create(path("daemontasks", namespace), small_task("t", nodes))
        await admin.wait_for(url, lambda t: "taskNamespaces" in ready(t).get("message", ""), 60)


async def test_of_refreshes_the_account_may_change_finalizers_alone(
    bounded: Bounded, admin: Admin, cluster: Cluster, namespace: str
) -> None:
    body = {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "S3AggregatedRefresh",
        **meta("r"),
        "spec": refresh(),
    }
    await admin.create(path("s3aggregatedrefreshes", namespace), body)
    url = path("s3aggregatedrefreshes", namespace, "r")
    async with client(cluster, await bounded()) as account:
        await account.patch(url, {"metadata": {"finalizers": ["caretaker.dev/finalizer"]}})
        with pytest.raises(ApiError, match="finalizers of S3AggregatedRefreshes only"):
            await account.patch(url, {"spec": {"suspend": True}})
        await account.patch(url, {"metadata": {"finalizers": None}})


GATES = ("--set", "nodeGate.enabled=true")
MINE = {"key": "team.gate.caretaker.dev/prepare", "value": "v", "effect": "NoExecute"}
SECOND = {"key": "other.gate.caretaker.dev/prepare", "effect": "NoSchedule"}
THEIRS = {"key": "example.com/gate.caretaker.dev", "effect": "PreferNoSchedule"}
BARE = {"key": "x.gate.caretaker.dev", "effect": "PreferNoSchedule"}  # the gate of no task
CHANGES: dict[str, Json] = {
    "a taint of somebody else goes": {"spec": {"taints": [MINE, SECOND]}},
    "all taints go": {"spec": {"taints": None}},
    "a taint comes": {"spec": {"taints": [MINE, SECOND, THEIRS, {"key": "a", "effect": "NoSchedule"}]}},
    "a gate comes": {
        "spec": {"taints": [MINE, SECOND, THEIRS, {"key": "x.gate.caretaker.dev/a", "effect": "NoSchedule"}]}
    },
    "the value of a taint changes": {"spec": {"taints": [{**MINE, "value": "w"}, SECOND, THEIRS]}},
    "a gate goes and a label comes": {
        "spec": {"taints": [SECOND, THEIRS]},
        "metadata": {"labels": {"caretaker.dev/x": "y"}},
    },
    "a label goes": {"metadata": {"labels": {"kubernetes.io/os": None}}},
    "an annotation comes": {"metadata": {"annotations": {"a": "b"}}},
    "a finalizer comes": {"metadata": {"finalizers": ["test.caretaker.dev/kept"]}},
    "an owner comes": {
        "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}
    },
    "it gets the beginning of a name": {"metadata": {"generateName": "n-"}},
    "it is cordoned": {"spec": {"unschedulable": True}},
    "it gets a provider": {"spec": {"providerID": "aws:///a/i-1"}},
    "it gets addresses": {"spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}},
}


async def test_of_nodes_the_account_may_remove_the_taints_of_gates_alone(
    bounded: Bounded, admin: Admin, cluster: Cluster, namespace: str, nodes: Nodes
) -> None:
    config = await bounded(*GATES)
    await grant(admin, namespace, *GATES)
    # More than the chart grants: what a stolen token, and a role that someone has widened, may do.
    rules = [{"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["*"]}]
    role = {"kind": "ClusterRole", "metadata": {"name": f"wide-{namespace}"}, "rules": rules}
    role |= {"apiVersion": "rbac.authorization.k8s.io/v1"}
    await bind(admin, role, "operator", namespace)
    await effective(admin, namespace, "delete", "nodes")
    (name,) = await nodes.add(taints=[MINE, SECOND, THEIRS])
    url, words = path("nodes", name=name), "may do nothing to nodes but remove the taints of gates"
    async with client(cluster, config) as account:
        for what, change in CHANGES.items():
            with pytest.raises(ApiError, match=words):
                print(what, await account.patch(url, change))
        status = path("nodes", name=name, sub="status")
        with pytest.raises(ApiError, match=words):
            await account.patch(status, {"status": {"phase": "Terminated"}})
        with pytest.raises(ApiError, match=words):
            await account.delete(url)
        with pytest.raises(ApiError, match=words):
            await account.create(path("nodes"), meta("forged"))
        step = {"op": "remove", "path": "/spec/taints/0"}
        left = (await account.patch(url, [step], "json"))["spec"]["taints"]
        assert [taint["key"] for taint in left] == [SECOND["key"], THEIRS["key"]]
        left = (await account.patch(url, {"spec": {"taints": [THEIRS]}}))["spec"]["taints"]
        assert left == [THEIRS]
        ours = {"spec": {"taints": [THEIRS, SECOND]}}
        await admin.patch(url, ours)  # it bounds nobody else
        await admin.patch(url, {"spec": {"taints": [BARE]}})
        with pytest.raises(ApiError, match=words):
            await account.patch(url, {"spec": {"taints": None}})


async def test_the_operator_opens_gates_within_the_bounds(
    bounded: Bounded, admin: Admin, namespace: str, nodes: Nodes
) -> None:
    config = await bounded(*GATES)
    await grant(admin, namespace, *GATES)
    await effective(admin, namespace, "patch", "nodes")
    mine = {"key": f"{namespace}.gate.caretaker.dev/t", "effect": "NoExecute"}
    names = await nodes.add(2, taints=[mine, THEIRS])
    flags = ("--operator-namespace", SYSTEM, "--lease-name", namespace)
    with OperatorProcess(config, namespace=namespace, time_scale=0.3, args=flags, allowed=KOPF):
        await admin.create(path("daemontasks", namespace), small_task("t", nodes, nodeGate={}))
        for name in names:
            await admin.wait_for(
                path("nodes", name=name), lambda node: node["spec"].get("taints") == [THEIRS], 60
            )


DRAINS = ("--set", "drain.enabled=true")
MARK = "caretaker.dev/cordoned-by"


def marked(text: str | None, unschedulable: bool | None = None) -> Json:
    spec = {} if unschedulable is None else {"spec": {"unschedulable": unschedulable}}
    return {"metadata": {"annotations": {MARK: text}}, **spec}


async def test_of_nodes_the_account_may_change_its_own_cordons_alone(
    bounded: Bounded, admin: Admin, cluster: Cluster, namespace: str, nodes: Nodes
) -> None:
    config = await bounded(*DRAINS)
    await grant(admin, namespace, *DRAINS)
    await effective(admin, namespace, "patch", "nodes")
    (name,) = await nodes.add(taints=[MINE, THEIRS])
    url, theirs = path("nodes", name=name), "uncordon those that have it"
    refused: dict[str, Json] = {
        "cordon them with its mark": {
            **marked("a/b/c/d", True),
            "spec": {"unschedulable": True, "taints": None},
        },
        "cordon them with its mark, ": {"metadata": {"annotations": {"other": "x"}}},
        "mark, and take both back": {"metadata": {"annotations": {"other": ""}}},
        "and take both back": {"metadata": {"labels": {"x": "y"}}},
        theirs: {"spec": {"unschedulable": True}},
        "cordon nodes with its mark alone": marked("a/b/c/d"),
    }
    async with client(cluster, config) as account:
        for words, change in refused.items():
            with pytest.raises(ApiError, match=words):
                print(await account.patch(url, change))
        await account.patch(url, marked("a/b/c/d", True))
        for change in (marked(None), marked("e/f/g/h"), {"spec": {"unschedulable": None}}):
            with pytest.raises(ApiError, match=theirs):
                await account.patch(url, change)
        await account.patch(url, marked(None, False))
        await admin.patch(url, {"spec": {"unschedulable": True}})
        with pytest.raises(ApiError, match=theirs):
            await account.patch(url, {"spec": {"unschedulable": False}})
        await admin.patch(url, {"spec": {"unschedulable": False}, **marked("a/b/c/d")})
        await account.patch(url, marked(None))  # of a cordon that somebody has ended
    # The node controller adds a taint for a cordon, and takes it away a moment later.
    await admin.wait_for(url, lambda node: node["spec"]["taints"] == [MINE, THEIRS])


async def test_where_gates_are_off_the_policy_is_not_asked_about_nodes() -> None:
    shown = await asyncio.to_thread(chart.text, "--show-only", "templates/admissionpolicy.yaml")
    assert "nodes/status" not in shown
