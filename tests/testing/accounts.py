"""Service accounts with rights of their own, as an administrator makes them for an operator or a person."""

from pathlib import Path
from typing import Any

from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testbed.components import write_kubeconfig


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
