"""Clusters that are not as expected: without our CRDs, or with objects that an older CRD let in.

They need a control plane of their own, since the CRDs are everybody's.
"""

import asyncio
import copy
import secrets
import ssl
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from testbed.admin import ApiError, Json, path
from testbed.cluster import Cluster
from testing.cluster import Nodes, apply_crd, crd
from testing.customresource import condition, stands
from testing.kubelet import Kubelet
from testing.operator import OperatorProcess
from testing.world import World, holds_for, seq_of

pytestmark = pytest.mark.slow

CRD_URL = path("customresourcedefinitions", name="daemontasks.caretaker.dev")


@pytest.fixture
async def world(bare: Cluster) -> AsyncIterator[World]:
    """A world in the bare cluster; the CRDs are gone again afterwards."""
    async with bare.admin() as admin:
        name = f"t-{secrets.token_hex(4)}"
        await admin.create(path("namespaces"), {"metadata": {"name": name}})
        await admin.wait_for(path("serviceaccounts", name, "default"), lambda _: True)
        nodes = Nodes(admin, secrets.token_hex(4))
        async with Kubelet(admin, name) as kubelet:
            yield World(admin, name, nodes, kubelet)
        await admin.delete(CRD_URL)
        await admin.wait_gone(CRD_URL)
        await nodes.delete(*nodes.names)


@pytest.fixture
def lone(bare: Cluster) -> Iterator[OperatorProcess]:
    """An operator on the bare cluster, not started yet."""
    kopf = r'"logger":"kopf\.'  # tells what ended it; then it is started again
    process = OperatorProcess(bare.kubeconfig, "lone", leader_elect=False, time_scale=0.1, allowed=[kopf])
    yield process
    process.kill9()
    print("\n".join(process.lines))
    process.assert_clean_logs()


def warnings(process: OperatorProcess) -> list[str]:
    """What it has complained of."""
    return [entry["msg"] for entry in process.logs if entry["level"] not in ("info", "debug")]


async def test_without_the_crds_it_says_so_in_one_line_and_waits_for_them(
    world: World, lone: OperatorProcess
) -> None:
    lone.start()
    await world.until(lambda: warnings(lone) != [])
    await holds_for(4, lambda: lone.running and len(warnings(lone)) == 1)
    (line,) = warnings(lone)
    assert "caretaker.dev/v1alpha1" in line
    assert "crds.yaml of its release, or the Helm chart" in line
    assert lone.healthz()[0] == 200
    await apply_crd(world.admin, crd("daemontasks"))
    await world.join(2)
    task = await world.task()
    await task.done(2)
    # Of kinds that are still missing each has a line of its own now, and none is in the way of the others.
    assert [said for said in warnings(lone)[1:] if not said.startswith("CRD missing")] == []


async def test_crds_that_are_deleted_and_applied_again_while_it_runs_are_served_again(
    world: World, lone: OperatorProcess
) -> None:
    await apply_crd(world.admin, crd("daemontasks"))
    lone.start()
    await world.join(2)
    task = await world.task()
    await task.done(2)
    await world.admin.delete(CRD_URL)
    await world.admin.wait_gone(CRD_URL)
    await holds_for(2, lambda: lone.running)
    await apply_crd(world.admin, crd("daemontasks"))
    again = await world.task("again")
    await again.done(2)


def without_validation(body: Json, *, status: bool = False) -> Json:
    """The CRD as a much older one might have been: any spec is stored, and as asked any status."""
    loose: Json = copy.deepcopy(body)
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for version in loose["spec"]["versions"]:
        declared: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["status"]
        version["schema"]["openAPIV3Schema"] = {
            "type": "object",
            "properties": {"spec": anything, "status": anything if status else declared},
        }
    return loose


READABLE = {"template": {"spec": {"containers": [{"name": "main", "image": "test:1"}]}}}
ODD: dict[str, tuple[dict[str, Any], str]] = {
    "number-as-text": ({"template": {"spec": {}}, "backoffLimit": "3"}, "spec.backoffLimit"),
    "no-template": ({"parallelism": 1}, "template"),
    "containers-of-text": ({"template": {"spec": {"containers": "main"}}}, "spec.template.spec.containers"),
    "selector-of-text": ({"template": {"spec": {"nodeSelector": "y"}}}, "spec.template.spec.nodeSelector"),
    "width-in-words": ({**READABLE, "parallelism": "ten"}, "spec.parallelism"),
    "width-without-a-sign": ({**READABLE, "parallelism": "10"}, "spec.parallelism"),
    "failures-in-words": (
        {**READABLE, "failurePolicy": {"maxFailedNodes": "x"}},
        "spec.failurePolicy.maxFailedNodes",
    ),
    "budget-in-words": ({**READABLE, "budgets": [{"nodes": "few"}]}, "spec.budgets[0].nodes"),
    "endless-window": (
        {**READABLE, "budgets": [{"nodes": 1, "schedule": "0 9 * * *", "duration": "for ever"}]},
        "spec.budgets[0].duration",
    ),
}


async def test_objects_that_an_older_crd_let_in_are_told_invalid_harm_no_other_and_can_be_mended(
    world: World, lone: OperatorProcess
) -> None:
    await apply_crd(world.admin, without_validation(crd("daemontasks")))
    await world.join(2)
    for name, (spec, _) in ODD.items():
        await world.create(name, spec)
    await apply_crd(world.admin, crd("daemontasks"))
    lone.start()
    good = await world.task("good")
    await good.done(2)
    for name, (_, words) in ODD.items():
        odd = world.handle(name)
        found = await odd.when(lambda t: stands(t, "SpecValid", "False", "InvalidSpec"))
        assert words in condition(found, "SpecValid")["message"]
        assert stands(found, "Stalled", reason="InvalidSpec")
        mended = {
            "apiVersion": "caretaker.dev/v1alpha1",
            "kind": "DaemonTask",
            "metadata": {"name": name, "resourceVersion": found["metadata"]["resourceVersion"]},
            "spec": {"template": world.template()},
        }
        await world.admin.put(odd.url, mended)
        await odd.done(2)


@pytest.mark.parametrize(
    ("spec", "field", "mend"),
    [
        pytest.param({"parallelism": ["2"]}, "spec.parallelism", {"parallelism": None}, id="a list"),
        pytest.param({"template": "a script"}, "spec", {}, id="a template of text"),
    ],
)
async def test_an_object_whose_status_cannot_be_written_is_told_by_an_event(
    world: World, lone: OperatorProcess, spec: dict[str, Any], field: str, mend: dict[str, Any]
) -> None:
    """The API server does not even take the status of an object on which a CEL rule cannot be computed."""
    await apply_crd(world.admin, without_validation(crd("daemontasks")))
    await world.join(1)
    await world.create("odd", {"template": world.template(), **spec})
    await apply_crd(world.admin, crd("daemontasks"))
    lone.start()
    good = await world.task("good")
    await good.done(1)
    odd = world.handle("odd")
    assert f"{field}: Invalid value" in (await odd.event("InvalidSpec"))["message"]
    await odd.edit(template=world.template(), **mend)
    await odd.done(1)


async def test_what_is_merely_without_effect_runs_as_before_where_an_older_crd_let_it_in(
    world: World, lone: OperatorProcess
) -> None:
    """A CEL rule on it must not come between the task and its status, nor a re-run, nor another edit; once it
    is mended, the rule holds."""
    await apply_crd(world.admin, without_validation(crd("daemontasks")))
    await world.join(2)
    await world.create("odd", {"template": world.template(), "startingDeadlineSeconds": 60})
    await apply_crd(world.admin, crd("daemontasks"))
    lone.start()
    odd = world.handle("odd")
    found = await odd.done(2)
    assert stands(found, "SpecValid", "True", "Accepted")
    await odd.annotate(rerun_at="2100-01-01T00:00:00Z")
    await odd.pods_when(lambda pods: sorted(map(seq_of, pods)) == [2, 2])
    await odd.edit(backoffLimit=4)
    await odd.edit(startingDeadlineSeconds=60, schedule="@yearly")
    with pytest.raises(ApiError, match=r"is about ticks of spec\.schedule, and there is none"):
        await odd.edit(schedule=None)
    await odd.edit(schedule=None, startingDeadlineSeconds=None)
    await odd.done(2)


async def test_a_status_that_somebody_else_wrote_is_replaced(world: World, lone: OperatorProcess) -> None:
    await apply_crd(world.admin, without_validation(crd("daemontasks"), status=True))
    await world.join(1)
    task = await world.task()
    nonsense = {"status": {"desired": "many", "conditions": "none", "ledger": 7}}
    await world.admin.patch(f"{task.url}/status", nonsense)
    await apply_crd(world.admin, crd("daemontasks"))
    lone.start()
    await task.done(1)


async def test_an_object_that_nests_as_deep_as_the_api_server_lets_it_harms_no_other(
    world: World, bare: Cluster, lone: OperatorProcess
) -> None:
    """Decoders that count on Python's stack give up at a tenth of that."""
    await apply_crd(world.admin, crd("daemontasks"))
    await world.join(1)
    await asyncio.to_thread(post, bare, path("daemontasks", world.namespace), nested(9_000))
    lone.start()
    good = await world.task("good")
    await good.done(1)
    await world.admin.delete(path("daemontasks", world.namespace, "deep"))


def nested(depth: int) -> bytes:
    """A DaemonTask, as text: our own encoder has the same limit."""
    spec = '{"template":{"spec":{"containers":[{"name":"main","image":"test:1"}],"x":%s}}}'
    deep = '{"a":' * depth + "1" + "}" * depth
    head = '{"apiVersion":"caretaker.dev/v1alpha1","kind":"DaemonTask","metadata":{"name":"deep"},"spec":'
    return (head + spec % deep + "}").encode()


def post(cluster: Cluster, url: str, body: bytes) -> None:
    """POST it and read no answer, which would be as deep."""
    context = ssl.create_default_context(cafile=str(cluster.ca))
    headers = {"Authorization": f"Bearer {cluster.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(cluster.url + url, body, headers)  # noqa: S310
    with urllib.request.urlopen(request, context=context) as answer:  # noqa: S310
        assert answer.status == 201
