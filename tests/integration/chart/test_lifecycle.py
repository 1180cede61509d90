"""A release on a real API server: installed, at work, upgraded, removed, as the guides say."""

import asyncio
import json
import re
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import chart
from caretaker.registry import KINDS
from chart import CHART, NAMESPACE
from testbed.admin import Admin, ApiError, Json, path
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testing.accounts import audited
from testing.cluster import delete_crd
from testing.installed import Shell, block, kubeconfig_of, older_chart, operator_of
from testing.roles import until

NODES = 3
CRDS = [info.plural for info in KINDS]
# What an older state of each did not have.
FIELDS = {"daemontasks": "results", "s3aggregatedrefreshes": "resync", "imdspolicies": "verification"}
NAMES = [f"{plural}.caretaker.dev" for plural in CRDS]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane of this module's own: CRDs come and go here."""
    with Cluster(tmp_path_factory.mktemp("chart"), nodes=NODES, audit=True) as started:
        yield started


@pytest.fixture
async def admin(place: Cluster) -> AsyncIterator[Admin]:
    async with place.admin() as client:
        yield client


@pytest.fixture
async def shell(place: Cluster, admin: Admin, tmp_path: Path) -> AsyncIterator[Shell]:
    """An administrator's shell; whatever it leaves behind is taken away."""
    made = Shell(place, tmp_path)
    yield made
    for release in json.loads(await made.run("helm", "list", "-A", "-o", "json")):
        await made.run("helm", "uninstall", release["name"], "-n", release["namespace"])
    # Before the CRDs: a namespace that goes with resources of kinds that go takes half a minute.
    await asyncio.gather(*(delete_crd(admin, name) for name in NAMES))


def task(name: str, **spec: Any) -> Json:
    """A DaemonTask that is done in a moment."""
    template = {
        "metadata": {"annotations": {"testbed.caretaker.dev/run-seconds": "0.1"}},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }
    return {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "DaemonTask",
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


def example(file: str) -> Json:
    """The first object of an example."""
    found: Json = next(iter(yaml.safe_load_all((CHECKOUT / "examples" / file).read_text())))
    found["metadata"].pop("namespace", None)
    return found


async def kept(admin: Admin, urls: list[str]) -> list[Json]:
    """What must not change of these: who they are, what they say and what is on record."""
    found = [await admin.get(url) for url in urls]
    return [
        {"uid": one["metadata"]["uid"], "generation": one["metadata"]["generation"], "spec": one["spec"],
         "status": one.get("status")}
        for one in found
    ]  # fmt: skip


async def heard(
    place: Cluster, namespace: str, expected: set[tuple[str, str]], first: int = 0
) -> list[tuple[str, str, int]]:
    """What the operator of a release has asked for since the `first` request, as soon as that is all known:
    the audit log is a moment behind."""

    def asked() -> list[tuple[str, str, int]]:
        return audited(place, f"system:serviceaccount:{namespace}:caretaker")[first:]

    await until(lambda: expected <= {(verb, what) for verb, what, _ in asked()})
    return asked()


def holds(after: Any, before: Any) -> bool:
    """Whether all that was there is there; defaults of new fields may have come."""
    if isinstance(before, dict):
        return all(key in after and holds(after[key], value) for key, value in before.items())
    if isinstance(before, list):
        return len(after) == len(before) and all(map(holds, after, before))
    return bool(after == before)


async def test_it_installs_works_under_its_role_and_is_gone_by_the_guide(
    shell: Shell, admin: Admin, place: Cluster
) -> None:
    await shell.kubectl("create", "namespace", NAMESPACE)
    await shell.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    # `helm test` of the guide: the Pods only seem to run here, so its script is run below.
    said = await shell.documented("install.md", "## With Helm")
    assert f"serves {', '.join(CRDS)}" in said
    assert "Phase:          Succeeded" in said
    pods = await admin.list(path("pods", NAMESPACE), labels="app.kubernetes.io/name=caretaker")
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    assert "name: caretaker" in await shell.documented("operations.md", "## The role")
    async with _smoke(shell, admin) as smoke:
        with await operator_of(shell, admin) as operator:
            assert "every node has run it" in await shell.run(*smoke)
            assert operator.readyz()[0] == 200
            operator.terminate()
        assert {entry["level"] for entry in operator.logs} == {"info"}
    expected = {("patch", "leases"), ("create", "pods"), ("create", "events")}
    asked = await heard(place, NAMESPACE, expected)
    assert [call for call in asked if call[2] == 403] == []
    await shell.documented("uninstall.md", "## Everything")
    assert await _left(shell) == ""


async def test_objects_survive_an_upgrade_from_older_crds_a_rollback_and_a_reinstallation(
    shell: Shell, admin: Admin, tmp_path: Path
) -> None:
    old = older_chart(tmp_path, FIELDS)
    await shell.install("--set", "replicas=1", source=old)
    ns = NAMESPACE
    urls = [
        path("daemontasks", ns, "t"),
        path("s3aggregatedrefreshes", ns, "r"),
        path("imdspolicies", name="p"),
    ]
    made = [task("t"), example("s3-aggregated-refresh.yaml"), example("imds-policy.yaml")]
    for url, body in zip(urls, made, strict=True):
        collection, _, name = url.rpartition("/")
        body["metadata"]["name"] = name
        await admin.create(collection, body)
        status = {"observedGeneration": 1, "conditions": []}
        await admin.patch(f"{url}/status", {"status": status})
    before = await kept(admin, urls)
    newer = task("new", results=[{"name": "free", "type": "Number"}])
    strict = f"{path('daemontasks', ns)}?fieldValidation=Strict&dryRun=All"
    with pytest.raises(ApiError, match="unknown field"):
        await admin.create(strict, newer)

    said = await shell.run("bash", "-euo", "pipefail", "-c", block("upgrade.md", "## With Helm"), fails=True)
    assert re.search(r"^\+ +results:$", said, re.MULTILINE), "the new field"
    assert "replicas: 2" not in said, "the values of before"
    await shell.run("bash", "-euo", "pipefail", "-c", _upgrade())
    after = await kept(admin, urls)
    assert holds(after, before)
    await admin.create(strict, newer)
    deployment = await admin.get(path("deployments", ns, "caretaker"))
    assert deployment["spec"]["replicas"] == 1, "the values of before"
    assert deployment["metadata"]["labels"]["helm.sh/chart"] == "caretaker-0.1.0"

    await shell.documented("upgrade.md", "## Back")
    assert await kept(admin, urls) == before
    await shell.documented("uninstall.md", "## The operator alone")
    assert await kept(admin, urls) == before
    assert await admin.find(path("clusterroles", name="caretaker")) is None
    await shell.install()
    assert await kept(admin, urls) == after


async def test_a_kind_that_is_switched_off_keeps_its_resources_until_it_is_on_again(
    shell: Shell, admin: Admin, place: Cluster
) -> None:
    await shell.install()
    policy = path("imdspolicies", name="workers")
    await admin.create(path("imdspolicies"), example("imds-policy.yaml"))
    before = await kept(admin, [policy])
    off = "kinds.imdsPolicy.enabled=false,kinds.daemonTask.enabled=false"
    await shell.run("helm", "upgrade", "caretaker", str(CHART), "-n", NAMESPACE, "--set", off)
    assert await kept(admin, [policy]) == before
    first = len(audited(place, f"system:serviceaccount:{NAMESPACE}:caretaker"))
    with await operator_of(shell, admin) as operator:
        operator.wait_log(lambda entry: entry["msg"] == "watching s3aggregatedrefreshes")
        operator.wait_log(lambda entry: entry["msg"] == "leading")
        assert operator.readyz()[0] == 200
    expected = {("list", "s3aggregatedrefreshes"), ("get", "leases")}
    asked = await heard(place, NAMESPACE, expected, first)
    resources = {what for _, what, _ in asked if not what.startswith("/")}
    assert resources == {"s3aggregatedrefreshes", "leases"}
    assert [call for call in asked if call[2] == 403] == []
    await shell.run("helm", "upgrade", "caretaker", str(CHART), "-n", NAMESPACE)
    assert await kept(admin, [policy]) == before


async def test_two_releases_serve_a_namespace_each_and_none_of_the_others(
    shell: Shell, admin: Admin, place: Cluster
) -> None:
    operators = []
    for colour in ("blue", "green"):
        await shell.kubectl("create", "namespace", colour)
        first = colour == "blue"
        once = str(first).lower()
        values = f"watchNamespace={colour},crds.install={once},kinds.imdsPolicy.enabled={once}"
        await shell.install("--set", values, namespace=f"{colour}-system")
        operators.append(await operator_of(shell, admin, f"{colour}-system"))
    with operators[0], operators[1]:
        for namespace in ("blue", "green", "default"):
            await admin.create(path("daemontasks", namespace), task("t"))
        for namespace in ("blue", "green"):
            done = path("daemontasks", namespace, "t")
            await admin.wait_for(done, lambda t: t.get("status", {}).get("succeeded") == NODES, 60)
    other = await admin.get(path("daemontasks", "default", "t"))
    assert other.get("status", {}).get("conditions") is None
    for colour in ("blue", "green"):
        asked = await heard(place, f"{colour}-system", {("create", "pods")})
        assert [call for call in asked if call[2] == 403] == []
    await shell.kubectl("delete", "namespace", "blue", "green", "--wait=false")


async def test_crds_that_are_there_already_are_left_alone_or_taken_over(
    shell: Shell, admin: Admin, tmp_path: Path
) -> None:
    older = older_chart(tmp_path, FIELDS)
    await shell.kubectl("apply", "-f", str(older / "files" / "crds"))
    said = await shell.install(fails=True)
    assert "exists and cannot be imported into the current release" in said
    crd = path("customresourcedefinitions", name=NAMES[0])
    taken, left = block("install.md", "## CRDs are there already").splitlines()
    await shell.run("bash", "-c", left)
    found = await admin.get(crd)
    assert "helm.sh/resource-policy" not in found["metadata"].get("annotations", {})
    await shell.documented("uninstall.md", "## The operator alone")
    await shell.run("bash", "-c", taken)
    found = await admin.get(crd)
    assert found["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    shape = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert FIELDS["daemontasks"] in shape, "it is this release's"
    # Without `keep` they go with the release.
    await shell.run("helm", "upgrade", "caretaker", str(CHART), "-n", NAMESPACE, "--set", "crds.keep=false")
    await shell.documented("uninstall.md", "## The operator alone")
    await admin.wait_gone(crd)


async def test_the_server_takes_every_optional_object(shell: Shell, admin: Admin) -> None:
    if await admin.find(path("namespaces", name=NAMESPACE)) is None:
        await shell.kubectl("create", "namespace", NAMESPACE)
    values = {
        "aws": {"identities": [{"namespaces": ["a"]}]},
        "awsKeySecrets": [{"namespace": "default", "names": ["x"]}],
        "headerSecrets": [{"namespace": "default", "names": ["headers"]}],
        "jobNamespaces": ["default"],
        "priorityClass": {"create": True},
        "flowSchema": {"enabled": True},
        "admissionPolicy": {"enabled": True},
        "networkPolicy": {
            "metricsFrom": [{"namespaceSelector": {}}],
            "egress": {"enabled": True, "extra": [{"ports": [{"port": 8443}]}]},
        },
        "datadog": {"enabled": True},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpread": {"whenUnsatisfiable": "DoNotSchedule"},
    }
    file = shell.folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    manifest = chart.text("--values", str(file), "--skip-tests")
    said = await shell.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=manifest)
    assert "Warning" not in said
    assert said.count("serverside-applied") == manifest.count("\nkind: ")


async def test_the_base_is_applied_twice_and_gone_by_one_command(shell: Shell, admin: Admin) -> None:
    await shell.documented("install.md", "## With kubectl")
    # Not `apply`, which always calls PodDisruptionBudgets and NetworkPolicies "configured".
    assert await shell.kubectl("diff", "-k", "deploy") == ""
    for role in chart.roles():
        plural = {"Role": "roles", "ClusterRole": "clusterroles"}[role["kind"]]
        meta = role["metadata"]
        assert (await admin.get(path(plural, meta.get("namespace"), meta["name"])))["rules"] == role["rules"]
    assert "successfully rolled out" in await shell.documented("upgrade.md", "## With kubectl")
    await admin.create(path("daemontasks", "default"), task("t"))
    await shell.kubectl("delete", "-k", "deploy")
    assert await _left(shell) == ""


async def test_a_flush_that_nobody_serves_is_let_go_by_the_guide(shell: Shell, admin: Admin) -> None:
    await shell.kubectl("apply", "-f", "crds/")
    await shell.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", *NAMES)
    await shell.install("--set", "crds.install=false")
    assert "has been upgraded" in await shell.documented("upgrade.md", "## CRDs by hand")
    body = example("s3-aggregated-refresh.yaml")
    body["metadata"] = {"name": "held", "finalizers": ["caretaker.dev/finalizer"]}
    url = path("s3aggregatedrefreshes", "default", "held")
    await admin.create(path("s3aggregatedrefreshes", "default"), body)
    await admin.delete(url)
    assert (await admin.get(url))["metadata"]["deletionTimestamp"], "it hangs"
    await shell.documented("uninstall.md", "## Everything", 1)
    await admin.wait_gone(url)


def _upgrade() -> str:
    """The commands of the guide, but for the test: no Pod runs here."""
    lines = block("upgrade.md", "## With Helm", 1).splitlines()
    return "\n".join(line for line in lines if line.startswith("helm upgrade"))


async def _left(shell: Shell) -> str:
    """What the guide's last commands still find of caretaker's own kinds and objects."""
    crds = await shell.kubectl("api-resources", "--api-group=caretaker.dev", "--no-headers")
    lines = block("uninstall.md", "## What is left").splitlines()
    found = [await shell.run("bash", "-c", line) for line in lines[1:]]
    return "".join([crds, *(text.replace("No resources found\n", "") for text in found)])


class _smoke:  # noqa: N801
    """What the Pod of `helm test` would run: its script, its account and that account's rights."""

    def __init__(self, shell: Shell, admin: Admin) -> None:
        self._shell, self._admin = shell, admin

    async def __aenter__(self) -> list[str]:
        hooks = chart.objects("--show-only", "templates/tests/daemontask.yaml")
        pod = next(o for o in hooks if o["kind"] == "Pod")
        others = [o for o in hooks if o["kind"] != "Pod"]
        await self._shell.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(others))
        account = self._shell.folder / "account"
        account.mkdir()
        config = await kubeconfig_of(
            self._admin, self._shell.cluster, NAMESPACE, pod["spec"]["serviceAccountName"], account / "config"
        )
        user = yaml.safe_load(config.read_text())["users"][0]["user"]
        (account / "token").write_text(user["token"])
        shutil.copy(self._shell.cluster.ca, account / "ca.crt")
        (container,) = pod["spec"]["containers"]
        host, _, port = self._shell.cluster.url.removeprefix("https://").rpartition(":")
        server = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "ACCOUNT": str(account)}
        env = {**server, **{e["name"]: e["value"] for e in container["env"]}}
        assert container["command"][:2] == ["python3", "-c"]
        return ["env", *(f"{k}={v}" for k, v in env.items()), sys.executable, *container["command"][1:]]

    async def __aexit__(self, *_: object) -> None:
        hooks = chart.text("--show-only", "templates/tests/daemontask.yaml")
        await self._shell.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=hooks)
