"""The chart's ClusterRoles for people, on the real API server: the rights that Kubernetes' own roles get."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import chart
from caretaker.registry import KINDS
from chart.kinds import switch
from testbed.admin import Admin, Json, path

RBAC = "rbac.authorization.k8s.io"
READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete", "deletecollection")


def people(*flags: str) -> list[Json]:
    """The ClusterRoles for people that the chart makes."""
    found = chart.objects(*flags, "--show-only", "templates/people.yaml")
    return [one for one in found if one["kind"] == "ClusterRole"]


@pytest.fixture
async def roles(admin: Admin, namespace: str) -> AsyncIterator[None]:
    """Apply the ClusterRoles, and bind one user to each role in this namespace, named after the role."""
    made = people()
    for role in made:
        await admin.create(path("clusterroles"), role)
    for role in ("view", "edit", "admin", "caretaker-imds-admin"):
        ref = {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}
        subject = {"apiGroup": RBAC, "kind": "User", "name": f"{namespace}-{role}"}
        body = {"metadata": {"name": f"{namespace}-{role}"}, "roleRef": ref, "subjects": [subject]}
        if role == "caretaker-imds-admin":
            await admin.create(path("clusterrolebindings"), body)
        else:
            await admin.create(path("rolebindings", namespace), body)
    yield
    for role in made:
        await admin.delete(path("clusterroles", name=role["metadata"]["name"]))
    await admin.delete(path("clusterrolebindings", name=f"{namespace}-caretaker-imds-admin"))


async def may(admin: Admin, namespace: str, who: str, verb: str, resource: str, where: str = "") -> bool:
    about = {"namespace": where or namespace, "group": "caretaker.dev", "verb": verb}
    resource, _, sub = resource.partition("/")
    spec = {
        "user": f"{namespace}-{who}",
        "resourceAttributes": {**about, "resource": resource, "subresource": sub},
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    review = await admin.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(review["status"]["allowed"])


async def test_each_may_what_his_role_in_the_namespace_stands_for(
    roles: None, admin: Admin, namespace: str
) -> None:
    async with asyncio.timeout(60):  # Kubernetes aggregates roles asynchronously
        for who, verb in (("admin", "deletecollection"), ("view", "watch")):
            while not await may(admin, namespace, who, verb, "daemontasks"):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        while not await may(admin, namespace, "caretaker-imds-admin", "create", "imdspolicies"):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    for plural in ("daemontasks", "s3aggregatedrefreshes"):
        for who, verbs in (("view", READ), ("edit", (*READ, *WRITE)), ("admin", (*READ, *WRITE))):
            given = {verb for verb in (*READ, *WRITE) if await may(admin, namespace, who, verb, plural)}
            assert given == set(verbs), (who, plural)
            assert not await may(admin, namespace, who, "get", plural, where="default")
            assert not await may(admin, namespace, who, "patch", f"{plural}/status")
        assert not await may(admin, namespace, "caretaker-imds-admin", "get", plural)
    for who in ("view", "edit", "admin"):
        for verb in (*READ, *WRITE):
            assert not await may(admin, namespace, who, verb, "imdspolicies"), (who, verb)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ((), ["view", "edit", "imds-admin"]),
        (("--set", "kinds.imdsPolicy.enabled=false"), ["view", "edit"]),
        (
            tuple(f"--set=kinds.{switch(info.kind)}.enabled=false" for info in KINDS if info.namespaced),
            ["imds-admin"],
        ),
        (("--set", "rbac.people=false,metrics.authentication=true"), ["metrics-reader"]),
        (("--set", "metrics.authentication=true,rbac.create=false"), []),
    ],
)
def test_they_follow_kinds_and_values(flags: tuple[str, ...], names: list[str]) -> None:
    found = [one["metadata"]["name"] for one in chart.objects(*flags) if one["kind"] == "ClusterRole"]
    assert [name.removeprefix("caretaker-") for name in found if name != "caretaker"] == names


def test_metrics_ask_for_a_token_where_a_value_says_so() -> None:
    flags = ("--set", "metrics.authentication=true,serviceMonitor.enabled=true,datadog.enabled=true")
    objects, usual = chart.objects(*flags), chart.text()
    assert "--metrics-authentication" in str(objects)
    assert "bearer_token_auth" in str(objects)
    (monitor,) = (one for one in objects if one["kind"] == "ServiceMonitor")
    assert monitor["spec"]["endpoints"][0]["bearerTokenFile"].endswith("/serviceaccount/token")
    for word in ("--metrics-authentication", "tokenreviews", "subjectaccessreviews", "metrics-reader"):
        assert word not in usual
