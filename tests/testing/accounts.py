"""Service accounts with rights of their own, as an administrator makes them for an operator or a person; and
what they then ask for."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import chart
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testbed.components import write_kubeconfig
from testbed.paths import CHECKOUT
from testing import manifests


async def bind(admin: Admin, role: Json, account: str, namespace: str) -> None:
    """Grant a role or cluster role to a service account of `namespace`."""
    kind, meta = role["kind"], role["metadata"]
    plural = {"Role": "roles", "ClusterRole": "clusterroles"}[kind]
    await admin.apply(path(plural, meta.get("namespace"), meta["name"]), role)
    name = f"{meta['name']}-{account}"
    body: dict[str, Any] = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": meta["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    bindings = {"Role": "rolebindings", "ClusterRole": "clusterrolebindings"}[kind]
    await admin.apply(path(bindings, meta.get("namespace"), name), body)


async def kubeconfig_of(admin: Admin, cluster: Cluster, namespace: str, account: str, file: Path) -> Path:
    """A kubeconfig with a token of a new service account."""
    await admin.apply(
        path("serviceaccounts", namespace, account),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}},
    )
    token = await admin.create(path("serviceaccounts", namespace, account, "token"), {"spec": {}})
    write_kubeconfig(file, cluster.url, cluster.ca, account, token["status"]["token"])
    return file


def documented(heading: str) -> list[Json]:
    """The objects of the YAML block below a heading of docs/operations.md."""
    page = (CHECKOUT / "docs" / "operations.md").read_text()
    section = re.split(r"^##", page.partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    block = re.search(r"^```yaml\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert block, f"no YAML below {heading}"
    return list(manifests.load_all(block[1]))


async def shipped(namespace: str, *flags: str) -> list[Json]:
    """The roles that the chart ships, under names of this namespace's own, as its operator's Lease is."""
    roles = await asyncio.to_thread(chart.roles, *flags)
    for role in roles:
        role["metadata"]["name"] += f"-{namespace}"
        for rule in role["rules"]:
            if rule["resources"] == ["leases"] and "resourceNames" in rule:
                rule["resourceNames"] = [namespace]
    return roles


async def grant(admin: Admin, namespace: str, *flags: str, but: tuple[str, str] = ("", "")) -> None:
    """Give the namespace's operator the role that the chart ships with these flags, without one verb on one
    resource."""
    for role in await shipped(namespace, *flags):
        for rule in role["rules"]:
            if but[1] in rule["resources"]:
                rule["verbs"] = [verb for verb in rule["verbs"] if verb != but[0]]
        role["rules"] = [rule for rule in role["rules"] if rule["verbs"]]
        await bind(admin, role, "operator", namespace)


def audited(cluster: Cluster, user: str) -> list[tuple[str, str, int]]:
    """(verb, resource or path, HTTP status) of all that the user asked of the API server. The last line may
    be half written."""
    text = cluster.audit_log.read_text()
    lines = (line for line in text.splitlines(keepends=True) if f'"{user}"' in line and line.endswith("\n"))
    found = []
    for event in map(json.loads, lines):
        where = event.get("objectRef", {}).get("resource") or event["requestURI"]
        found.append((event["verb"], where, event.get("responseStatus", {}).get("code", 0)))
    return found


async def may(
    admin: Admin, namespace: str, where: str, verb: str, resource: str, name: str = "", group: str = ""
) -> bool:
    """Whether the account of this namespace's operator may do that in the namespace `where`."""
    attributes = {"namespace": where, "group": group, "verb": verb, "resource": resource, "name": name}
    spec = {"user": f"system:serviceaccount:{namespace}:operator", "resourceAttributes": attributes}
    review = await admin.create(
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec},
    )
    return bool(review["status"]["allowed"])


async def effective(
    admin: Admin, namespace: str, verb: str, resource: str, name: str = "", group: str = "", where: str = ""
) -> None:
    """Return once the operator's account may do that, in its namespace or in `where`: a binding acts some
    moments after it was made."""
    async with asyncio.timeout(60):
        while not await may(admin, namespace, where or namespace, verb, resource, name, group):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
