"""The shipped role, and those of docs/operations.md, are enough, and nothing beyond its own is asked for."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from testbed import steer
from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testing.accounts import audited, bind, documented, effective, grant, kubeconfig_of, may
from testing.cli import Cli
from testing.cluster import Nodes
from testing.kubeletlogs import KubeletLogs
from testing.operator import OperatorProcess
from testing.rights import refused
from testing.roles import KOPF, METRIC, SYSTEM, ready, small_task, until

pytestmark = pytest.mark.slow


@pytest.fixture
async def operator(
    request: pytest.FixtureRequest, admin: Admin, cluster: Cluster, namespace: str, tmp_path: Path
) -> AsyncIterator[OperatorProcess]:
    """The operator as a service account that has the documented role and no other. It watches the test's
    namespace, or whatever the test's parameter says; a test with one sees every write succeed, which must
    then have more than half a second."""
    await admin.apply(
        path("namespaces", name=SYSTEM),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}},
    )
    config = await kubeconfig_of(admin, cluster, namespace, "operator", tmp_path / "operator")
    await grant(admin, namespace)
    arguments = ("--operator-namespace", SYSTEM, "--lease-name", namespace)
    watched = namespace if getattr(request, "param", "one") == "one" else None
    scale = 0.3 if hasattr(request, "param") else 0.1
    process = OperatorProcess(config, namespace=watched, time_scale=scale, args=arguments, allowed=KOPF)
    with process as started:
        yield started


@pytest.mark.parametrize(
    "operator", ["one", "every"], ids=["one namespace", "every namespace"], indirect=True
)
async def test_the_documented_role_is_enough_for_a_whole_life_of_a_task(
    operator: OperatorProcess, cluster: Cluster, admin: Admin, namespace: str, nodes: Nodes
) -> None:
    names = await nodes.add(3)
    await steer.steer_node(admin, names[0], steer.behaviour("fail", run_seconds=0.1))
    again = ["TemplateChange", "NodeReboot"]
    task = small_task("whole", nodes, backoffLimit=1, rerunOn=again, ttlSecondsAfterFinished=0)
    url = path("daemontasks", namespace, "whole")
    await admin.create(path("daemontasks", namespace), task)
    await admin.wait_for(url, lambda t: t.get("status", {}).get("failed") == 1, 60)
    await steer.release_node(admin, names[0])
    await admin.patch(url, {"metadata": {"annotations": {"caretaker.dev/rerun-at": "2026-01-01T00:00:00Z"}}})
    await admin.wait_for(url, lambda t: t["status"]["succeeded"] == 3, 60)
    # The TTL's deletes, too.
    await admin.wait_for_all(path("pods", namespace), lambda pods: not pods, 60)
    events = await admin.list(path("events", namespace), fields="involvedObject.kind=DaemonTask")
    assert {"RunStarted", "RunFailed", "RunSucceeded"} <= {event["reason"] for event in events}
    assert operator.metric("caretaker_api_requests_total", code="403") == 0
    assert operator.metric("caretaker_leader") == 1
    # Not all that it asks goes through its own client: kopf asks, too.
    asked = audited(cluster, f"system:serviceaccount:{namespace}:operator")
    assert ("watch", "daemontasks") in {(verb, resource) for verb, resource, _ in asked}
    assert ("watch", "pods") in {(verb, resource) for verb, resource, _ in asked}
    assert refused(cluster, f"system:serviceaccount:{namespace}:operator") == []


async def test_the_documented_rights_of_people_are_enough(
    operator: OperatorProcess, admin: Admin, cluster: Cluster, namespace: str, nodes: Nodes, tmp_path: Path
) -> None:
    (node,) = await nodes.add(1)
    config = await kubeconfig_of(admin, cluster, namespace, "person", tmp_path / "person")
    author, node_admin = documented("### For people")
    assert "imdspolicies" not in str(author["rules"]), "an author changes no nodes"
    assert "daemontasks" not in str(node_admin["rules"])
    await bind(admin, author, "person", namespace)
    manifest = tmp_path / "task.yaml"
    body = small_task("seen", nodes, failurePolicy={"action": "Pause"})
    manifest.write_text(yaml.safe_dump(body))
    await admin.create(path("daemontasks", namespace), body)
    url = path("daemontasks", namespace, "seen")
    await admin.wait_for(url, lambda t: t.get("status", {}).get("succeeded") == 1, 60)
    caretaker = Cli(config, namespace)
    keys = cluster.folder / "pki"
    async with KubeletLogs(admin, keys / "apiserver.crt", keys / "apiserver.key") as kubelet:
        await kubelet.serve([node])
        for command in (
            ["plan", "-f", str(manifest)],
            ["status", "daemontask", "seen"],
            ["logs", "daemontask", "seen", "--nodes", node],
            ["rerun", "daemontask", "seen"],
            ["status", "daemontask", "seen", "--watch"],
            ["resume", "daemontask", "seen"],
        ):
            said = await caretaker(*command)
            assert said.code == 0, (command, said)
    assert refused(cluster, f"system:serviceaccount:{namespace}:person") == []


async def test_tasks_can_be_looked_at_from_the_operators_pod_with_its_rights(
    operator: OperatorProcess, admin: Admin, namespace: str, nodes: Nodes, tmp_path: Path
) -> None:
    (node,) = await nodes.add(1)
    await admin.create(path("daemontasks", namespace), small_task("seen", nodes))
    url = path("daemontasks", namespace, "seen")
    await admin.wait_for(url, lambda t: t.get("status", {}).get("succeeded") == 1, 60)
    said = await Cli(tmp_path / "operator", namespace)("status", "daemontask", "seen")
    assert (said.code, said.err) == (0, ""), said
    assert node in said.out


OWN = {
    "the Lease": ("leases", "coordination.k8s.io", ("get", "patch")),
    "the probe's task": ("daemontasks", "caretaker.dev", ("patch", "delete")),
}


@pytest.mark.parametrize(("resource", "group", "verbs"), OWN.values(), ids=OWN.keys())
async def test_in_its_own_namespace_it_may_change_what_is_its_own_alone(
    resource: str, group: str, verbs: tuple[str, ...], admin: Admin, namespace: str
) -> None:
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    await admin.apply(path("namespaces", name=SYSTEM), system)
    await grant(admin, namespace)
    name = {"leases": namespace, "daemontasks": "caretaker-imds-probe"}[resource]
    for verb in verbs:
        await effective(admin, namespace, verb, resource, name, group, where=SYSTEM)
        for other in ("kube-scheduler", ""):
            assert not await may(admin, namespace, SYSTEM, verb, resource, other, group)
        assert not await may(admin, namespace, "kube-system", verb, resource, name, group)


MISSING = {
    "the ledger cannot be listed": ("list", "configmaps", True),
    "the ledger cannot be created": ("create", "configmaps", True),
    "the ledger cannot be read before a start": ("get", "configmaps", True),
    "pods cannot be created": ("create", "pods", True),
    "pods cannot be listed": ("list", "pods", False),
    "tasks cannot be read": ("get", "daemontasks", False),
    "tasks cannot be listed": ("list", "daemontasks", False),
    "status cannot be written": ("patch", "daemontasks/status", False),
    "events cannot be created": ("create", "events", False),
}


@pytest.mark.parametrize(("verb", "resource", "shown"), MISSING.values(), ids=MISSING.keys())
async def test_a_missing_permission_is_named_by_a_metric_and_where_possible_by_a_condition(
    verb: str,
    resource: str,
    shown: bool,
    operator: OperatorProcess,
    admin: Admin,
    namespace: str,
    nodes: Nodes,
) -> None:
    operator.terminate()
    await grant(admin, namespace, but=(verb, resource))
    operator.start()
    await nodes.add(1)
    await admin.create(path("daemontasks", namespace), small_task("t", nodes))
    url = path("daemontasks", namespace, "t")

    await until(lambda: operator.metric(METRIC, verb=verb, resource=resource) == 1)
    if shown:
        task = await admin.wait_for(url, lambda t: ready(t).get("reason") == "PermissionDenied")
        assert f'cannot {verb} resource "{resource}"' in ready(task)["message"]
    assert operator.running

    await grant(admin, namespace)
    await admin.wait_for(url, lambda t: ready(t).get("status") == "True", 90)
    # What is not asked again is not known to be granted: an event may be the last for long.
    if resource != "events":
        await until(lambda: operator.metric(METRIC, verb=verb, resource=resource) == 0)
