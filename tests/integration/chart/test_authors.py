"""Who writes a resource needs the rights that its effect needs: the chart's policy for authors, with real
users, groups, service accounts and impersonation."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import yaml

import chart
from caretaker.imds.probe import task as probe_task
from testbed.admin import Admin, ApiError, Json, path
from testbed.cluster import Cluster
from testing.accounts import grant, kubeconfig_of
from testing.roles import SYSTEM
from testing.s3refreshes import refresh

CRS = {"DaemonTask": "daemontasks", "S3AggregatedRefresh": "s3aggregatedrefreshes"}
OURS = {"apiGroups": ["caretaker.dev"], "resources": ["*"], "verbs": ["*"]}
PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
JOBS = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create"]}
ROBOT = {
    "apiGroups": [""],
    "resources": ["serviceaccounts"],
    "resourceNames": ["robot"],
    "verbs": ["impersonate"],
}
EVICT = {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}
NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}
KEYS = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["keys"], "verbs": ["get"]}
MAPS = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["maps"], "verbs": ["get"]}
BINDINGS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
RBAC = "rbac.authorization.k8s.io"


def body(kind: str, spec: Json, name: str = "one") -> Json:
    return {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def pod(**fields: str) -> Json:
    return {"spec": {**fields, "containers": [{"name": "main", "image": "test:1"}]}}


def runs(**fields: str) -> Json:
    return body("DaemonTask", {"template": pod(**fields)})


def refers(kind: str, *names: str) -> Json:
    refs = [{"kind": kind, "name": name} for name in names]
    spec = {"template": pod(), "rerunOn": ["ReferencedDataChange"], "dataRefs": refs}
    return body("DaemonTask", spec)


def ecs() -> Json:
    queue = "https://sqs.eu-west-1.amazonaws.com/111122223333/ecs"
    spec = {"aws": {"region": "eu-west-1"}, "service": "a", "events": {"sqsQueueURL": queue}}
    return body("DaemonTask", {"ecs": spec})


def job(**fields: str) -> Json:
    buckets = {"filter": {"buckets": ["media"]}}
    return body("S3AggregatedRefresh", refresh(target={"job": {"template": pod(**fields)}}, **buckets))


def http(secret: str) -> Json:
    target = {"url": "https://x.example", "headersFrom": [{"secretRef": {"name": secret}}]}
    return body("S3AggregatedRefresh", refresh(target={"http": target}, filter={"buckets": ["media"]}))


def keys(secret: str) -> Json:
    aws = {"region": "eu-west-1", "credentialsSecretRef": {"name": secret}}
    return body("S3AggregatedRefresh", refresh(aws=aws))


class Place:
    """A namespace in which the policy of a release with default values is in force."""

    def __init__(self, admin: Admin, cluster: Cluster, namespace: str) -> None:
        self.admin, self.cluster, self.namespace = admin, cluster, namespace

    def acting(self, user: str, *groups: str) -> AbstractAsyncContextManager[Admin]:
        """A client of an administrator who impersonates a user."""
        headers = [("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups)]
        return Admin(self.cluster.url, self.cluster.token, self.cluster.ca, headers=headers)

    async def bind(self, subject: Json, rules: list[Json] | None = None, role: str = "") -> None:
        """Give rules, or a ClusterRole, to somebody in this namespace."""
        name = f"{subject['name'].replace(':', '-')}-{role or 'own'}"
        if rules is not None:
            await self.admin.create(
                path("roles", self.namespace), {"metadata": {"name": name}, "rules": rules}
            )
        ref = {"apiGroup": RBAC, "kind": "ClusterRole" if role else "Role", "name": role or name}
        made = {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject]}
        await self.admin.create(path("rolebindings", self.namespace), made)

    async def user(self, *rules: Json) -> AbstractAsyncContextManager[Admin]:
        """A user who may write our kinds, and has these rights."""
        await self.bind({"apiGroup": RBAC, "kind": "User", "name": "jane"}, [OURS, *rules])
        return self.acting("jane")

    async def write(self, client: Admin, resource: Json) -> None:
        """Create it for a trial, once the client's rights act: a binding acts some moments later."""
        url = f"{path(CRS[resource['kind']], self.namespace)}?dryRun=All"
        async with asyncio.timeout(30):
            while True:
                try:
                    await client.request("POST", url, resource)
                except ApiError as error:
                    if "cannot create resource" not in error.message:
                        raise
                else:
                    return
                await asyncio.sleep(0.1)


@pytest.fixture
async def place(admin: Admin, cluster: Cluster, namespace: str) -> AsyncIterator[Place]:
    found = Place(admin, cluster, namespace)
    async with in_force(found, authors("--set", f"watchNamespace={namespace}")):
        yield found


@asynccontextmanager
async def in_force(place: Place, bodies: list[Json]) -> AsyncIterator[None]:
    """Until exit, a policy and its binding are in effect."""
    for one in bodies:
        await place.admin.create(path(BINDINGS[one["kind"]]), one)
    url = f"{path('daemontasks', place.namespace)}?dryRun=All"
    await place.bind({"apiGroup": RBAC, "kind": "User", "name": "trial"}, [OURS])
    async with place.acting("trial") as trial, asyncio.timeout(30):
        while True:  # nothing says when a policy begins to act
            try:
                await trial.request("POST", url, runs())
            except ApiError as error:
                if "ValidatingAdmissionPolicy" in error.message:
                    break
            await asyncio.sleep(0.1)
    yield
    for one in bodies:
        await place.admin.delete(path(BINDINGS[one["kind"]], name=one["metadata"]["name"]))


async def test_a_task_is_refused_where_tasks_run_no_pods(
    admin: Admin, cluster: Cluster, namespace: str
) -> None:
    """An administrator's task, too: the operator could create none of its pods."""
    place = Place(admin, cluster, namespace)
    policy, binding = authors("--set", "taskNamespaces.names={others}")
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    binding["spec"]["matchResources"] = {"namespaceSelector": here}
    async with in_force(place, [policy, binding]):
        with pytest.raises(ApiError, match="taskNamespaces of caretaker's chart has to name it"):
            await place.write(admin, runs())
        await place.write(admin, ecs())
        await place.write(admin, job())


RULES = {
    "pods": (runs(), [JOBS, KEYS], "you may not create pods", [PODS]),
    "pods as another account": (runs(serviceAccountName="robot"), [PODS], "impersonate", [PODS, ROBOT]),
    "by the field's old name": (runs(serviceAccount="robot"), [PODS], "impersonate", [PODS, ROBOT]),
    "jobs": (job(), [PODS], "you may not create jobs.batch", [JOBS]),
    "jobs as another account": (job(serviceAccountName="robot"), [JOBS], "impersonate", [JOBS, ROBOT]),
    "a Secret of headers": (http("keys"), [PODS, JOBS], "you may not get", [KEYS]),
    "another Secret of headers": (http("others"), [KEYS], "you may not get", None),
    "a Secret of AWS keys": (keys("keys"), [PODS, JOBS], "you may not get", [KEYS]),
    "a ConfigMap of data": (
        refers("ConfigMap", "maps"),
        [PODS, KEYS],
        "ConfigMap that you may not get",
        [PODS, MAPS],
    ),
    "a Secret of data": (refers("Secret", "keys"), [PODS, MAPS], "Secret that you may not get", [PODS, KEYS]),
    "the default account": (runs(serviceAccountName="default"), [], "you may not create pods", [PODS]),
}


@pytest.mark.parametrize(("resource", "lacking", "words", "enough"), RULES.values(), ids=RULES.keys())
async def test_an_author_needs_the_rights_that_the_effect_needs(
    place: Place, resource: Json, lacking: list[Json], words: str, enough: list[Json] | None
) -> None:
    async with await place.user(*lacking) as jane:
        with pytest.raises(ApiError, match=words) as refused:
            await place.write(jane, resource)
    assert refused.value.status == 403
    if enough is not None:
        subject = {"apiGroup": RBAC, "kind": "User", "name": "joe"}
        await place.bind(subject, [OURS, *enough])
        async with place.acting("joe") as joe:
            await accepted(place, joe, resource)


async def test_an_author_who_drains_needs_the_rights_to_evict_everywhere_and_to_patch_nodes(
    place: Place,
) -> None:
    """Rights in his own namespace are not enough: the pods of a node are of all namespaces."""
    task = body("DaemonTask", {"template": pod(), "parallelism": 1, "drain": {}})
    roles, bindings, name = path("clusterroles"), path("clusterrolebindings"), f"drain-{place.namespace}"
    subject = {"apiGroup": RBAC, "kind": "User", "name": "jane"}
    async with await place.user(PODS, EVICT, NODES) as jane:
        with pytest.raises(ApiError, match="you may not create pods/eviction in all namespaces"):
            await accepted(place, jane, task, until="pods/eviction")
        await place.admin.create(roles, {"metadata": {"name": name}, "rules": [EVICT]})
        ref = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
        await place.admin.create(
            bindings, {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject]}
        )
        try:
            with pytest.raises(ApiError, match="you may not patch nodes"):
                await accepted(place, jane, task, until="patch nodes")
            await place.admin.patch(f"{roles}/{name}", {"rules": [EVICT, NODES]})
            await accepted(place, jane, task)
        finally:
            await place.admin.delete(f"{bindings}/{name}")
            await place.admin.delete(f"{roles}/{name}")


async def accepted(place: Place, client: Admin, resource: Json, until: str = "") -> None:
    """Return once it is; rights act some moments after they were given. Raises a refusal with the words
    `until`."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await place.write(client, resource)
            except ApiError as error:
                if "ValidatingAdmissionPolicy" not in error.message or (until and until in error.message):
                    raise
            await asyncio.sleep(0.1)


def bearer(place: Place, config: Path) -> Admin:
    """A client with the token of a kubeconfig."""
    token = yaml.safe_load(config.read_text())["users"][0]["user"]["token"]
    return Admin(place.cluster.url, token, place.cluster.ca)


async def test_no_way_to_write_goes_around_it(place: Place) -> None:
    """Server-side apply, generateName, replace, subresources."""
    await place.admin.create(path("daemontasks", place.namespace), runs())
    url = path("daemontasks", place.namespace, "one")
    robot = pod(serviceAccount="robot")
    robot["spec"]["initContainers"] = [{"name": "first", "image": "test:1"}]
    made = {**runs(), "metadata": {"generateName": "one-"}}
    async with await place.user() as jane:
        with pytest.raises(ApiError, match="you may not create pods"):
            await place.write(jane, made)
        with pytest.raises(ApiError, match="you may not create pods"):
            await jane.apply(
                path("daemontasks", place.namespace, "two"), {**runs(), "metadata": {"name": "two"}}
            )
        stored = await jane.get(url)
        stored["spec"] = {"template": robot}
        with pytest.raises(ApiError, match="you may not create pods"):
            await jane.request("PUT", url, stored)
        await jane.patch(f"{url}/status", {"status": {"observedGeneration": 1}, "spec": {"template": robot}})
        assert "robot" not in str(await jane.get(url)), "the status subresource writes no spec"
        for sub in ("scale", "ephemeralcontainers"):
            with pytest.raises(ApiError):
                await jane.patch(f"{url}/{sub}", {"spec": {"template": robot}})


@pytest.mark.parametrize("account", [None, "", "default"])
async def test_no_account_needs_no_right_on_one(place: Place, account: str | None) -> None:
    """All forms of a template without a service account."""
    resource = runs()
    resource["spec"]["template"]["spec"].update(serviceAccountName=account, serviceAccount=account)
    async with await place.user(PODS) as jane:
        await accepted(place, jane, resource)


@pytest.mark.parametrize("odd", [1, ["robot"], {"name": "robot"}, True])
async def test_an_account_that_is_no_name_is_refused(place: Place, odd: object) -> None:
    resource = runs()
    resource["spec"]["template"]["spec"]["serviceAccountName"] = odd
    async with await place.user(PODS) as jane:
        await accepted(place, jane, runs())
        with pytest.raises(ApiError) as refused:
            await place.write(jane, resource)
    assert refused.value.status in (400, 403, 422)


async def test_rights_of_a_group_count(place: Place) -> None:
    await place.bind({"apiGroup": RBAC, "kind": "Group", "name": "team"}, [OURS, PODS, ROBOT])
    async with place.acting("ann", "team", "system:authenticated") as ann:
        await accepted(place, ann, runs(serviceAccountName="robot"))


async def test_who_is_impersonated_counts_not_who_impersonates(place: Place) -> None:
    """The impersonator is an administrator here."""
    async with await place.user() as jane:
        with pytest.raises(ApiError, match="you may not create pods"):
            await place.write(jane, runs())
    await place.write(place.admin, runs(serviceAccountName="robot"))


@pytest.mark.parametrize("role", ["edit", "admin", "cluster-admin"])
async def test_a_gitops_account_with_a_usual_role_may_write_all(
    place: Place, tmp_path: Path, role: str
) -> None:
    config = await kubeconfig_of(place.admin, place.cluster, place.namespace, "gitops", tmp_path / "gitops")
    subject = {"kind": "ServiceAccount", "name": "gitops", "namespace": place.namespace}
    await place.bind(subject, [OURS])
    await place.bind(subject, role=role)
    async with bearer(place, config) as gitops:
        for resource in (runs(serviceAccountName="robot"), job(serviceAccountName="robot"), http("keys")):
            await accepted(place, gitops, resource)


async def test_what_leaves_the_spec_as_it_is_needs_no_more_rights(place: Place) -> None:
    await place.admin.create(path("daemontasks", place.namespace), runs())
    url = path("daemontasks", place.namespace, "one")
    async with await place.user() as jane:
        with pytest.raises(ApiError, match="you may not create pods"):
            await place.write(jane, runs())
        marked = await jane.patch(url, {"metadata": {"annotations": {"a": "b"}, "finalizers": ["a.b/c"]}})
        assert marked["metadata"]["annotations"] == {"a": "b"}
        await jane.patch(url, {"metadata": {"finalizers": None}})
        await jane.patch(f"{url}/status", {"status": {"observedGeneration": 1}})
        with pytest.raises(ApiError, match="you may not create pods"):
            await jane.patch(url, {"spec": {"template": pod(hostname="other")}})
        await jane.delete(url)


async def test_each_of_as_many_secrets_as_a_spec_may_name_is_checked(place: Place) -> None:
    """The API server limits the cost of an expression: it allows two questions to the authorizer."""
    aws = {"region": "eu-west-1", "credentialsSecretRef": {"name": "keys-8"}}
    sources = [{"secretRef": {"name": f"keys-{n}"}} for n in range(8)]
    target = {"http": {"url": "https://x.example", "headersFrom": sources}}
    made = body("S3AggregatedRefresh", refresh(target=target, filter={"buckets": ["media"]}, aws=aws))
    for missing in ("keys-7", "keys-8", ""):
        names = [name for n in range(9) if (name := f"keys-{n}") != missing]
        user = {"apiGroup": RBAC, "kind": "User", "name": f"with-all-but-{missing or 'none'}"}
        await place.bind(user, [OURS, {**KEYS, "resourceNames": names}])
        async with place.acting(user["name"]) as author:
            if missing:
                with pytest.raises(ApiError, match="names a Secret that you may not get"):
                    await place.write(author, made)
            else:
                await accepted(place, author, made)


@pytest.mark.parametrize(("kind", "rule"), [("Secret", KEYS), ("ConfigMap", MAPS)])
async def test_each_of_as_much_data_as_a_spec_may_name_is_checked(
    place: Place, kind: str, rule: Json
) -> None:
    names = [f"data-{n}" for n in range(8)]
    made = refers(kind, *names)
    for missing in ("data-7", ""):
        user = {"apiGroup": RBAC, "kind": "User", "name": f"with-all-but-{missing or 'none'}"}
        some = {**rule, "resourceNames": [name for name in names if name != missing]}
        await place.bind(user, [OURS, PODS, some])
        async with place.acting(user["name"]) as author:
            if missing:
                with pytest.raises(ApiError, match=f"names a {kind} that you may not get"):
                    await place.write(author, made)
            else:
                await accepted(place, author, made)


async def test_the_operator_may_make_the_task_of_its_probe(place: Place, tmp_path: Path) -> None:
    """With the right on Pods that the chart gives it."""
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    await place.admin.apply(path("namespaces", name=SYSTEM), system)
    file = tmp_path / "operator"
    config = await kubeconfig_of(place.admin, place.cluster, place.namespace, "operator", file)
    await grant(place.admin, place.namespace)
    await place.bind({"kind": "ServiceAccount", "name": "operator", "namespace": place.namespace}, [OURS])
    async with bearer(place, config) as operator:
        await accepted(place, operator, probe_task(place.namespace, "test:1", {"node": ""}) or {})


@pytest.mark.parametrize(
    ("off", "resources"),
    [
        ("imdsPolicy", ["daemontasks", "s3aggregatedrefreshes"]),
        ("daemonTask", ["s3aggregatedrefreshes"]),
        ("s3AggregatedRefresh", ["daemontasks"]),
    ],
)
def test_it_is_on_for_the_kinds_that_are_served_where_they_are(off: str, resources: list[str]) -> None:
    policy, binding = authors("--set", f"kinds.{off}.enabled=false,watchNamespace=team-a")
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert rule["resources"] == resources
    place = binding["spec"]["matchResources"]["namespaceSelector"]
    assert place == {"matchLabels": {"kubernetes.io/metadata.name": "team-a"}}


def test_it_is_on_everywhere_by_default_and_may_be_switched_off() -> None:
    assert "matchResources" not in authors()[1]["spec"]
    assert authors("--set", "authorPolicy.enabled=false") == []


def authors(*flags: str) -> list[Json]:
    """The policy for authors and its binding, as the chart renders them."""
    return [one for one in chart.objects(*flags) if one["metadata"]["name"].endswith("-authors")]
