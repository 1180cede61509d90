"""With examples/admission/ the operator works, and its account touches nothing but what is a DaemonTask's."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.admin import Admin, ApiError, Json, path
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testing.accounts import grant, kubeconfig_of
from testing.cluster import Nodes
from testing.operator import OperatorProcess
from testing.roles import KOPF, SYSTEM, ready, small_task

EXAMPLE = CHECKOUT / "examples" / "admission" / "operator.yaml"
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


@pytest.fixture
async def config(admin: Admin, cluster: Cluster, namespace: str, tmp_path: Path) -> AsyncIterator[Path]:
    """A kubeconfig of the operator's account, for which the example is in force."""
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    await admin.apply(path("namespaces", name=SYSTEM), system)
    made = await kubeconfig_of(admin, cluster, namespace, "operator", tmp_path / "operator")
    await grant(admin, namespace)
    text = EXAMPLE.read_text().replace(ACCOUNT, f"system:serviceaccount:{namespace}:operator")
    bodies = [renamed(body, namespace) for body in yaml.safe_load_all(text)]
    for body in bodies:
        await admin.create(path(PLURALS[body["kind"]]), body)
    yield made
    for body in bodies:
        await admin.delete(path(PLURALS[body["kind"]], name=body["metadata"]["name"]))


def token_in(config: Path) -> str:
    """The bearer token of a kubeconfig."""
    return str(yaml.safe_load(config.read_text())["users"][0]["user"]["token"])


def renamed(body: Json, name: str) -> Json:
    """The same under a name of this test."""
    body["metadata"]["name"] = name
    if "policyName" in body["spec"]:
        body["spec"]["policyName"] = name
    return body


async def test_the_operator_works_within_the_bounds(
    config: Path, admin: Admin, cluster: Cluster, namespace: str, nodes: Nodes
) -> None:
    async with Admin(cluster.url, token_in(config), cluster.ca) as account:
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

    def meta(name: str, **more: Any) -> Json:
        return {"metadata": {"name": name, **more}}

    label = {"caretaker.dev/daemontask": "t"}
    await admin.create(path("configmaps", namespace), {**meta("theirs"), "data": {"a": "b"}})
    await admin.create(path("pods", namespace), {**meta("theirs"), "spec": POD})
    words = "the pods and ledgers of DaemonTasks only"
    await acting(account, namespace)
    for body in (meta("a"), meta("a", labels=label), meta("a", ownerReferences=[OWNER])):
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


async def acting(account: Admin, namespace: str) -> None:
    """Return once the policy refuses something: it acts some moments after it was made."""
    trial = {"metadata": {"name": "trial"}, "data": {}}
    async with asyncio.timeout(30):
        while True:
            try:
                await account.request("POST", f"{path('configmaps', namespace)}?dryRun=All", trial)
            except ApiError:
                return
            await asyncio.sleep(0.1)
