"""caretaker plan on a real API server: what it tells, and that it changes nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testing import manifests
from testing.apiproxy import ApiProxy
from testing.cli import Cli
from testing.customresource import stands
from testing.kubelet import HOLD, SUCCEED
from testing.world import World, allowed

pytestmark = pytest.mark.slow


@pytest.fixture
def watched(cluster: Cluster) -> Iterator[ApiProxy]:
    with ApiProxy(cluster.kubeconfig, "cli") as proxy:
        yield proxy


@pytest.fixture
def cli(watched: ApiProxy, namespace: str, tmp_path: Path) -> Cli:
    return Cli(watched.write_kubeconfig(tmp_path / "kubeconfig"), namespace)


def manifest(world: World, name: str = "t", image: str = "test:1", **spec: Any) -> str:
    """A DaemonTask for this test's nodes; spec starts at line 7, the image stands in line 11 and later."""
    template = {"spec": {"nodeSelector": world.selector, "containers": [{"name": "main", "image": image}]}}
    head = f"apiVersion: caretaker.dev/v1alpha1\nkind: DaemonTask\nmetadata:\n  name: {name}\n"
    return head + yaml.safe_dump({"spec": {**spec, "template": template}}, sort_keys=False)


def line_of(text: str, words: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if words in line)


async def test_a_new_task_tells_who_runs_and_why_the_others_do_not(
    world: World, cli: Cli, watched: ApiProxy
) -> None:
    a, b, c = await world.join(3)
    (tainted,) = await world.join(taints=[{"key": "gpu", "effect": "NoSchedule"}])
    (away,) = await world.join(ready=False)
    await world.cordon(c)
    said = await cli("plan", "-f", "-", "-o", "json", stdin=manifest(world, parallelism=1))
    assert (said.code, said.err) == (0, "")
    (found,) = said.json["tasks"]
    nodes = {row["node"]: (row["state"], row["reason"]) for row in found["nodes"]}
    assert {name: nodes[name] for name in (a, b, c, tainted, away)} == {
        a: ("pending", "Queued"),
        b: ("pending", "Queued"),
        c: ("blocked", "Cordoned"),
        tainted: ("excluded", "Taint"),
        away: ("blocked", "NodeNotReady"),
    }
    shared = {state for name, state in nodes.items() if name not in world.nodes.names}
    assert shared == {("excluded", "NodeSelector")}
    assert (found["exists"], found["desired"], found["startAtOnce"], found["waves"]) == (False, 4, 1, 2)
    assert watched.ledger.writes() == []
    assert [call.verb for call in watched.ledger.calls(lambda call: call.dry_run)] == ["create", "create"]


async def test_a_task_that_has_run_has_nothing_to_do_until_its_template_changes(
    world: World, cli: Cli, watched: ApiProxy
) -> None:
    await world.join(2)
    said = await cli("plan", "-f", "-", stdin=manifest(world))
    task = await world.task(template=manifests.load(manifest(world))["spec"]["template"])
    await task.done(2)
    before = await task.when(lambda t: t["status"]["ledger"]["recorded"] == 2)
    same = (await cli("plan", "-f", "-", "-o", "json", stdin=manifest(world))).json["tasks"][0]
    assert (same["exists"], same["templateChanges"], same["waves"], same["counts"]["succeeded"]) == (
        True,
        False,
        0,
        2,
    )
    other = await cli("plan", "-f", "-", stdin=manifest(world, image="test:2", parallelism=1))
    assert "its template changes, revision" in other.lines[0]
    assert "2 of 2 nodes it is for would run: 1 at once, 2 waves" in other.lines[1]
    assert "wave 2" in other.out
    assert said.code == other.code == 0
    assert watched.ledger.writes() == []
    assert await task.get() == before


async def test_a_rerun_asked_for_in_the_file_counts(world: World, cli: Cli) -> None:
    await world.join(1)
    task = await world.task()
    await task.done(1)
    body = await task.get()
    body["metadata"]["annotations"] = {"caretaker.dev/rerun-at": "2040-01-01T00:00:00Z"}
    said = await cli("plan", "-f", "-", "-o", "json", stdin=json.dumps(body))
    assert [row["trigger"] for row in said.json["tasks"][0]["nodes"] if row["state"] == "pending"] == [
        "Rerun"
    ]


async def test_the_tasks_that_come_first_are_read_from_the_cluster(
    world: World, cli: Cli, watched: ApiProxy
) -> None:
    a, b = await world.join(2)
    world.kubelet.script(a, HOLD)
    world.kubelet.script(b, SUCCEED)
    first = await world.task("first")
    await first.running(1)
    await first.counts(succeeded=1, active=1)
    text = manifest(world, dependsOn=[{"name": "first"}])
    said = await cli("plan", "-f", "-", stdin=text)
    assert said.lines[1:3] == [
        "  1 of 2 nodes it is for would run, all at once",
        "  after DaemonTask first: 1 node waiting",
    ]
    assert watched.ledger.writes() == []
    lists = [call.resource for call in watched.ledger.calls(lambda call: call.verb == "list")]
    assert lists.count("nodes") == 1, "nodes are read once, however many tasks come first"
    second = await world.task(
        template=manifests.load(text)["spec"]["template"], dependsOn=[{"name": "first"}]
    )
    await second.counts(succeeded=1, pending=1)
    said = await cli("status", "daemontask", "t", "-o", "json")
    expected = [{"name": "first", "problem": None, "waiting": 1, "failed": 0}]
    assert said.json["dependsOn"] == expected
    reasons = {row["node"]: row["reason"] for row in said.json["nodes"] if row["state"] == "pending"}
    assert reasons == {a: "AwaitingDependency"}
    said = await cli("plan", "-f", "-", stdin=manifest(world, dependsOn=[{"name": "absent"}]))
    assert "  after DaemonTask absent, which is not in this namespace: 1 node waiting" in said.lines
    await first.edit(dependsOn=[{"name": "t"}])
    await second.when(lambda t: stands(t, "Ready", "False", "DependencyCycle"))
    said = await cli("status", "daemontask", "t")
    assert "  circle t -> first -> t: nothing is started" in said.lines
    said = await cli("status", "daemontask", "t", "--watch")
    assert said.code == 1


@pytest.mark.parametrize(
    ("change", "at", "words"),
    [
        pytest.param(
            ("parallelism: 1", "parallelism: 0"),
            "parallelism: 0",
            "spec.parallelism: ",
            id="a value out of range",
        ),
        pytest.param(
            ("parallelism: 1", "paralelism: 1"),
            "paralelism: 1",
            "spec.paralelism: unknown field",
            id="a typo",
        ),
        pytest.param(
            ("image: test:1", "image: ''"),
            "image: ''",
            "spec.template.spec.containers[0].image: Required value",
            id="a pod that the API server refuses",
        ),
        pytest.param(
            ("image: test:1", "imagee: test:1"),
            "imagee: test:1",
            "spec.template.spec.containers[0].imagee: unknown field",
            id="a typo in the pod",
        ),
    ],
)
async def test_a_refusal_has_its_line_and_exit_code_1(
    world: World, cli: Cli, change: tuple[str, str], at: str, words: str
) -> None:
    text = manifest(world, parallelism=1).replace(*change)
    said = await cli("plan", "-f", "-", stdin=text)
    assert said.code == 1
    assert said.err.startswith(f"caretaker plan: <stdin>:{line_of(text, at)}: {words}")


async def test_a_typo_has_its_line_in_a_task_that_exists_too(world: World, cli: Cli) -> None:
    await world.task(suspend=True)
    text = manifest(world, parallelism=1).replace("parallelism", "paralelism")
    said = await cli("plan", "-f", "-", stdin=text)
    line = line_of(text, "paralelism")
    assert (said.code, said.err) == (1, f"caretaker plan: <stdin>:{line}: spec.paralelism: unknown field\n")


async def test_a_namespace_that_does_not_exist_yet_is_noted(world: World, cli: Cli) -> None:
    await world.join(1)
    said = await cli("plan", "-f", "-", stdin=manifest(world), namespace="not-yet")
    assert said.code == 0
    assert "note: not checked by the API server, since there is no namespace not-yet yet" in said.out
    assert "1 of 1 node it is for would run" in said.out


async def test_namespace_of_file_and_flag_must_agree(world: World, cli: Cli) -> None:
    text = manifest(world).replace("  name: t\n", "  name: t\n  namespace: elsewhere\n")
    said = await cli("plan", "-f", "-", stdin=text)
    assert said.code == 2
    assert f"<stdin>:5: namespace elsewhere is not the -n {world.namespace} asked for" in said.err


async def test_who_may_only_read_gets_the_plan_and_is_told_what_was_not_checked(
    world: World, admin: Admin, watched: ApiProxy, namespace: str, tmp_path: Path
) -> None:
    await world.join(2)
    token = await reader(admin, namespace)
    await world.until(
        lambda: allowed(admin, f"system:serviceaccount:{namespace}:reader", "list", "daemontasks", namespace)
    )
    cli = Cli(watched.write_kubeconfig(tmp_path / "reader", token), namespace)
    said = await cli("plan", "-f", "-", stdin=manifest(world))
    assert said.code == 0
    assert 'cannot create resource "daemontasks"' in said.out
    assert "ask for a role that allows it" in said.out
    assert "2 of 2 nodes it is for would run, all at once" in said.out
    await world.task(suspend=True)
    said = await cli("plan", "-f", "-", stdin=manifest(world))
    assert 'cannot patch resource "daemontasks"' in said.out
    assert "2 of 2 nodes it is for would run" in said.out


async def test_data_that_the_user_may_not_get_is_never_taken_for_unchanged(
    world: World, admin: Admin, watched: ApiProxy, namespace: str, tmp_path: Path
) -> None:
    await world.join(2)
    for name in ("a", "b"):
        body = {"metadata": {"name": name}, "stringData": {"token": "hunter2"}}
        await admin.create(path("secrets", namespace), body)
    refs = [{"kind": "Secret", "name": "a"}]
    on_data: dict[str, Any] = {"rerunOn": ["TemplateChange", "ReferencedDataChange"]}
    task = await world.task(**on_data, dataRefs=refs)
    await task.done(2)
    token = await reader(admin, namespace)
    await world.until(
        lambda: allowed(admin, f"system:serviceaccount:{namespace}:reader", "list", "daemontasks", namespace)
    )
    cli = Cli(watched.write_kubeconfig(tmp_path / "reader", token), namespace)
    template = (await task.get())["spec"]["template"]
    document: Json = {"apiVersion": "caretaker.dev/v1alpha1", "kind": "DaemonTask", "metadata": {"name": "t"}}
    for changed, due in ((refs, 0), ([{"kind": "Secret", "name": "b"}], 2)):
        document["spec"] = {**on_data, "dataRefs": changed, "template": template}
        said = await cli("plan", "-f", "-", "-o", "json", stdin=yaml.safe_dump(document))
        (found,) = said.json["tasks"]
        assert found["dataRefs"] == {"changed": None, "fault": ""}
        assert "you may not get it; whether its data changed is unknown" in " ".join(found["notes"])
        triggers = [row["trigger"] for row in found["nodes"] if row["trigger"]]
        assert triggers == ["ReferencedDataChange"] * due


async def reader(admin: Admin, namespace: str) -> str:
    """The token of a ServiceAccount that may read what plan reads and no more."""
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "pods", "configmaps"], "verbs": ["get", "list"]},
        {"apiGroups": ["caretaker.dev"], "resources": ["daemontasks"], "verbs": ["get", "list"]},
    ]
    name = f"reader-{namespace}"
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    await admin.create(path("serviceaccounts", namespace), {"metadata": {"name": "reader"}})
    await admin.create(path("clusterroles"), {"metadata": {"name": name}, "rules": rules})
    body = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    await admin.create(path("clusterrolebindings"), body)
    request = await admin.create(path("serviceaccounts", namespace, "reader", "token"), {"spec": {}})
    return str(request["status"]["token"])


async def test_a_schedule_that_never_comes_is_refused_with_its_line(world: World, cli: Cli) -> None:
    await world.join()
    said = await cli("plan", "-f", "-", stdin=manifest(world, schedule="0 0 30 2 *"))
    assert said.code == 1
    assert "<stdin>:6: spec.schedule: '0 0 30 2 *' never comes" in said.err
    assert "refused, 1 node would not run it" in said.out


async def test_nodes_that_wait_for_another_task_of_the_group_are_shown(world: World, cli: Cli) -> None:
    (held,) = await world.join(1)
    world.kubelet.default = HOLD
    exclusive = {"group": "kernel", "parallelism": 1}
    first = await world.task("first", exclusive=exclusive)
    await first.running()
    (free,) = await world.join(1)
    words = "1 node(s) wait for DaemonTask first of exclusive group kernel"
    text = manifest(world, "second", exclusive=exclusive)
    said = await cli("plan", "-f", "-", stdin=text)
    assert said.code == 0
    assert words in said.out
    said = await cli("plan", "-f", "-", "-o", "json", stdin=text)
    (shown,) = said.json["tasks"]
    assert shown["exclusive"] == {"group": "kernel", "parallelism": 1, "waiting": [held]}
    nodes = {row["node"]: (row["state"], row["reason"]) for row in shown["nodes"]}
    assert nodes[held] == ("pending", "HeldByGroup")
    assert nodes[free] == ("pending", "Queued")
    second = await world.task("second", exclusive=exclusive)
    await second.condition("Progressing", "True", "HeldByGroup")
    said = await cli("status", "daemontask", "second")
    assert said.code == 0
    assert words in said.out
