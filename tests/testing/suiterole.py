"""The account of the suite's operators: every one works with what the chart's roles grant, and no more.

Tests have namespaces, Leases and Secrets of their own, so the rules are bound everywhere and without names;
where a right ends in an installation is looked at by tests/e2e/test_role_exact.py. A kubeconfig that has a
companion stands for an operator's: OperatorProcess takes the companion, people and tests the file itself.
"""

import json
from pathlib import Path
from typing import Any, Final

import yaml

import chart
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testbed.components import write_kubeconfig
from testing.accounts import bind, effective
from testing.rights import granted, uncovered, used

NAMESPACE: Final = "default"
ACCOUNT: Final = "operator"
USER: Final = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
DAY: Final = 86_400
# Whatever the chart may grant: its values leave these out where nobody asks for them.
FLAGS: Final = {
    "awsKeySecrets": [{"namespace": "any", "names": ["any"]}],
    "jobNamespaces": ["any"],
    "nodeGate": {"enabled": True},
    "drain": {"enabled": True},
}


def companion(kubeconfig: Path | str) -> Path:
    """Where the operator's kubeconfig beside this one is, if there is one."""
    file = Path(kubeconfig)
    return file.with_name(f"{file.name}.operator")


def as_operator(kubeconfig: Path | str) -> Path:
    """What an operator is to be started with."""
    found = companion(kubeconfig)
    return found if found.exists() else Path(kubeconfig)


def token_of(kubeconfig: Path | str) -> str:
    """The token in the companion; "" where there is none."""
    file = companion(kubeconfig)
    if not file.exists():
        return ""
    return str(yaml.safe_load(file.read_text())["users"][0]["user"]["token"])


def everywhere() -> Json:
    """All rules of the shipped roles as one ClusterRole."""
    flags = [word for name, value in FLAGS.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]
    rules: list[dict[str, Any]] = [rule for role in chart.roles(*flags) for rule in role["rules"]]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "suite-operator"},
        "rules": [{key: value for key, value in rule.items() if key != "resourceNames"} for rule in rules],
    }


async def prepare(admin: Admin, cluster: Cluster) -> None:
    """Make the account, and the companion of the cluster's kubeconfig."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
    await admin.apply(path("serviceaccounts", NAMESPACE, ACCOUNT), account)
    await bind(admin, everywhere(), ACCOUNT, NAMESPACE)
    url = path("serviceaccounts", NAMESPACE, ACCOUNT, "token")
    token = await admin.create(url, {"spec": {"expirationSeconds": DAY}})
    await effective(admin, NAMESPACE, "create", "pods")
    file = companion(cluster.kubeconfig)
    write_kubeconfig(file, cluster.url, cluster.ca, ACCOUNT, token["status"]["token"])


def lacking(cluster: Cluster) -> list[str]:
    """What operators were refused so far, and no rule of the chart grants. An API server that has just
    started knows no roles yet, and refuses for a moment what they grant."""
    return [
        one
        for one in uncovered(granted([everywhere()]), used(cluster, USER)[1])
        if not one.partition(" ")[2].startswith(
            "/"
        )  # discovery, which is nobody's but Kubernetes' own to grant
    ]
