"""Rights that are taken away while the operator runs: told by a condition and a metric, and mended.

That the documented role is enough, and what a start without a right shows, is in tests/e2e/test_role.py.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.cluster import Nodes
from testing.customresource import TIMEOUT, condition, stands
from testing.kubelet import HOLD, SUCCEED, Kubelet
from testing.operator import OperatorProcess
from testing.world import World, allowed

pytestmark = pytest.mark.slow

METRIC = "caretaker_missing_permission"
RULES: list[dict[str, Any]] = [
    {"apiGroups": ["caretaker.dev"], "resources": ["daemontasks"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["caretaker.dev"], "resources": ["daemontasks/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create", "patch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
]


class Restricted:
    """An operator under a service account whose role can be changed."""

    def __init__(
        self, admin: Admin, namespace: str, account: str, proxy: ApiProxy, process: OperatorProcess
    ) -> None:
        self._admin = admin
        self._namespace = namespace
        self._account = account
        self.proxy = proxy
        self.process = process

    async def grant(self) -> None:
        """The whole role."""
        await self._change("", "")

    async def deny(self, verb: str, resource: str) -> None:
        """The whole role but this; returns once the API server refuses it."""
        await self._change(verb, resource)
        user = f"system:serviceaccount:{self._namespace}:{self._account}"
        async with asyncio.timeout(TIMEOUT):
            while await allowed(self._admin, user, verb, resource, self._namespace):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def _change(self, verb: str, resource: str) -> None:
        rules = [
            {**rule, "verbs": [v for v in rule["verbs"] if (v, rule["resources"][0]) != (verb, resource)]}
            for rule in RULES
        ]
        url = path("clusterroles", name=self._account)
        await self._admin.patch(url, {"rules": rules})

    def missing(self, verb: str, resource: str) -> bool:
        """Whether the metric says so."""
        return self.process.metric(METRIC, verb=verb, resource=resource) == 1


@pytest.fixture
async def restricted(
    operator: OperatorProcess, admin: Admin, cluster: Cluster, namespace: str, tmp_path: Path
) -> AsyncIterator[Restricted]:
    """It has the namespace for itself while it is there: the shared operator stands still."""
    account = f"restricted-{namespace}"
    await admin.create(path("serviceaccounts", namespace), {"metadata": {"name": account}})
    role = {"kind": "ClusterRole", "metadata": {"name": account}, "rules": RULES}
    await admin.create(path("clusterroles"), role)
    binding = {
        "metadata": {"name": account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    await admin.create(path("clusterrolebindings"), binding)
    token = await admin.create(path("serviceaccounts", namespace, account, "token"), {"spec": {}})
    operator.pause()
    try:
        with ApiProxy(cluster.kubeconfig, account) as proxy:
            file = proxy.write_kubeconfig(tmp_path / "kubeconfig", token["status"]["token"])
            process = OperatorProcess(file, account, namespace=namespace, leader_elect=False, time_scale=0.1)
            with process:
                yield Restricted(admin, namespace, account, proxy, process)
    finally:
        operator.resume()
        await admin.delete(path("clusterrolebindings", name=account))
        await admin.delete(path("clusterroles", name=account))


@pytest.fixture
async def world(restricted: Restricted, admin: Admin, namespace: str, nodes: Nodes) -> AsyncIterator[World]:
    """The test's world, under the restricted operator."""
    async with Kubelet(admin, namespace) as kubelet:
        yield World(admin, namespace, nodes, kubelet)


async def test_without_the_right_to_create_pods_nothing_crashes_and_the_grant_mends_it(
    world: World, restricted: Restricted
) -> None:
    task = await world.task()
    await task.condition("Ready", "False", "NoMatchingNodes")
    await restricted.deny("create", "pods")
    await world.join(2)
    found = await task.when(lambda t: stands(t, "Ready", "False", "PermissionDenied"))
    assert 'cannot create resource "pods"' in condition(found, "Ready")["message"]
    assert stands(found, "Degraded", reason="PermissionDenied")
    await world.until(lambda: restricted.missing("create", "pods"))
    later = await world.task("later")
    found = await later.when(lambda t: stands(t, "Ready", "False", "PermissionDenied"))
    assert stands(found, "SpecValid", "Unknown", "NotChecked"), "nobody has looked at its template yet"
    await restricted.grant()
    await later.condition("SpecValid", reason="Accepted")
    found = await task.done(2)
    assert not condition(found, "Degraded")
    await world.until(lambda: not restricted.missing("create", "pods"))


async def test_without_the_right_to_patch_nodes_the_task_is_done_and_the_grant_opens_them(
    world: World, restricted: Restricted
) -> None:
    """As by default: the chart grants it with nodeGate.enabled only."""
    await restricted.deny("patch", "nodes")
    gate = f"{world.namespace}.gate.caretaker.dev/t"
    names = await world.join(6, taints=[{"key": gate, "effect": "NoSchedule"}])
    task = await world.task(nodeGate={}, ttlSecondsAfterFinished=0)
    found = await task.when(
        lambda t: stands(t, "Degraded", reason="GateRefused") and t["status"]["succeeded"] == 6
    )
    message = condition(found, "Degraded")["message"]
    assert 'cannot patch resource "nodes"' in message
    assert "nodeGate.enabled" in message
    assert found["status"]["nodeGate"]["gatedNodes"] == 6
    assert stands(found, "Ready"), "nothing else suffers"
    assert stands(found, "Progressing")
    await world.until(lambda: restricted.missing("patch", "nodes"))
    await task.event("GateRefused")
    asked = [call for call in restricted.proxy.ledger.writes() if call.target.resource == "nodes"]
    assert len(asked) < 4 * len(names), "it is asked seldom"
    await restricted.grant()
    found = await task.when(lambda t: t["status"]["nodeGate"]["gatedNodes"] == 0)
    assert not condition(found, "Degraded")
    await world.until(lambda: not restricted.missing("patch", "nodes"))


async def test_without_the_right_to_patch_nodes_none_is_drained_until_it_is_granted(
    world: World, restricted: Restricted
) -> None:
    """As by default: the chart grants it with drain.enabled only."""
    await restricted.deny("patch", "nodes")
    names = await world.join(2)
    task = await world.task(drain={}, parallelism=1)
    found = await task.when(lambda t: stands(t, "Degraded", reason="DrainRefused"))
    assert 'cannot patch resource "nodes"' in condition(found, "Degraded")["message"]
    assert "drain.enabled" in condition(found, "Degraded")["message"]
    assert not world.kubelet.ran
    await restricted.grant()
    await task.done(2)
    for name in names:
        await world.admin.wait_for(path("nodes", name=name), lambda n: not n["spec"].get("unschedulable"))


async def test_a_right_to_patch_nodes_that_goes_while_one_is_cordoned_is_told_and_the_grant_gives_it_back(
    world: World, restricted: Restricted
) -> None:
    (name,) = await world.join()
    world.kubelet.default = HOLD
    task = await world.task(drain={}, parallelism=1)
    await task.running()
    await restricted.deny("patch", "nodes")
    await world.kubelet.finish(name)
    found = await task.when(lambda t: stands(t, "Degraded", reason="DrainRefused"))
    message = condition(found, "Degraded")["message"]
    assert name in message
    assert "drain.enabled" in message
    await task.event("DrainRefused")
    await restricted.grant()
    await world.admin.wait_for(path("nodes", name=name), lambda n: not n["spec"].get("unschedulable"))
    await task.when(lambda t: not condition(t, "Degraded"))


async def test_without_the_right_to_write_the_ledger_nothing_new_starts_and_the_grant_mends_it(
    world: World, restricted: Restricted
) -> None:
    first, second = await world.join(2)
    world.kubelet.default = HOLD
    task = await world.task()
    await task.counts(active=2)
    await world.kubelet.finish(first)
    await task.ledger_when(lambda entries: first in entries)  # the second is a patch of the same shard
    await restricted.deny("patch", "configmaps")
    await world.kubelet.finish(second)
    found = await task.when(lambda t: stands(t, "Ready", "False", "PermissionDenied"))
    assert 'cannot patch resource "configmaps"' in condition(found, "Ready")["message"]
    await world.until(lambda: restricted.missing("patch", "configmaps"))
    await restricted.grant()
    await task.done(2)
    assert len(world.kubelet.ran) == 2
    await world.until(lambda: not restricted.missing("patch", "configmaps"))


async def test_without_the_right_to_list_nodes_nothing_is_planned_and_the_grant_mends_it(
    world: World, restricted: Restricted
) -> None:
    (node,) = await world.join()
    task = await world.task()
    await task.done(1)
    restricted.process.terminate()
    await restricted.deny("list", "nodes")
    restricted.process.start()
    await world.join()
    found = await task.when(lambda t: stands(t, "Ready", "False", "PermissionDenied"))
    assert 'cannot list resource "nodes"' in condition(found, "Ready")["message"]
    assert found["status"]["desired"] == 1
    await world.until(lambda: restricted.missing("list", "nodes"))
    assert [on for on, _ in world.kubelet.ran] == [node]
    await restricted.grant()
    await task.done(2)
    await world.until(lambda: not restricted.missing("list", "nodes"))


async def test_a_watch_that_is_no_longer_allowed_stops_planning_until_it_is_again(
    world: World, restricted: Restricted
) -> None:
    await world.join()
    world.kubelet.default = HOLD
    task = await world.task()
    await task.counts(active=1)
    await restricted.deny("watch", "nodes")
    restricted.proxy.cut_watches()
    await task.condition("Ready", "False", "PermissionDenied")
    await world.until(lambda: restricted.missing("watch", "nodes"))
    await restricted.grant()
    await world.kubelet.finish_all(SUCCEED)
    await task.done(1)
