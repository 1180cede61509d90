"""One bad template, one refused node, one Pod that does not go: none of them reaches the rest."""

import asyncio
import time
from typing import Any

import pytest

from caretaker.daemontask.bulk import BYTES, ENTRY, FREE, cost_of
from testbed.admin import Admin, path
from testing.apiproxy import ApiProxy
from testing.cluster import Nodes
from testing.customresource import condition, stands
from testing.kubelet import EVICTED, HOLD, SUCCEED, Kubelet, Outcome, fail, rejected
from testing.operator import OperatorProcess
from testing.policies import denied
from testing.world import World, blocked, holds_for

TEN_YEARS = 10 * 365 * 86400.0
ONCE = {"runGuarantee": "AtMostOnce", "backoffLimit": 0}
PAUSE = {"maxFailedNodes": 0, "action": "Pause"}
# The end of a Pod in a graceful node shutdown.
SHUT_DOWN = Outcome("Failed", 137, "Error", "node shutdown", "Terminated", "DisruptionTarget")


def hit(world: World) -> set[str]:
    """Nodes whose kubelets got a Pod."""
    return {node for node, _ in world.kubelet.ran}


@pytest.mark.parametrize("allowed", [pytest.param(0, marks=pytest.mark.slow), 2])
async def test_a_template_that_fails_reaches_no_more_nodes_than_run_at_once_and_may_fail(
    world: World, allowed: int
) -> None:
    await world.join(30)
    world.kubelet.default = fail()
    policy = {"maxFailedNodes": allowed, "action": "Pause"}
    task = await world.task(parallelism="10%", backoffLimit=1, failurePolicy=policy)
    found = await task.when(lambda t: stands(t, "Ready", "False", "Paused"))
    assert len(hit(world)) <= 3 + allowed
    assert found["status"]["failed"] > allowed
    assert stands(found, "Stalled", reason="NodesFailed")
    reached = len(hit(world))
    await holds_for(3, lambda: len(hit(world)) == reached)

    world.kubelet.default = SUCCEED
    await task.edit(template=world.template(labels={"mended": "yes"}))
    await task.done(30)


@pytest.mark.slow
async def test_large_tasks_of_a_namespace_are_looked_at_less_often(
    world: World, proxy: ApiProxy, operator: OperatorProcess
) -> None:
    """Each pass over one reads and writes it, which takes the API server long; whatever happens meanwhile.
    The metrics show how many wait."""

    def paused() -> float:
        return operator.metric("caretaker_paused_resources", kind="DaemonTask")

    world.kubelet.default = HOLD
    size, began = 240 * 1024, time.monotonic()
    template = world.template(containers=[{"name": "main", "image": "test:1", "args": ["x" * size]}])
    tasks = [await world.task(name, template=template) for name in ("one", "two", "three")]
    most = 0.0
    for _ in range(20):
        await world.join()
        await asyncio.sleep(0.4)
        most = max(most, await asyncio.to_thread(paused))
    elapsed = time.monotonic() - began
    mine = ("patch", "daemontasks", world.namespace)
    written = proxy.ledger.calls(lambda c: (c.verb, c.resource, c.namespace) == mine)
    assert len(written) <= len(tasks) + (BYTES.burst + elapsed * BYTES.per_second) / (size - FREE) + 1
    assert 1 <= most <= len(tasks)
    for task in tasks:
        await task.counts(desired=20)


def tracked(schemas: dict[str, Any], schema: Any, seen: set[str]) -> set[str]:
    """Names of the fields whose entries the API server tracks one by one, by its own schema."""
    found = set[str]()
    for part in (schema, *schema.get("allOf", ())):
        if (name := part.get("$ref", "").rpartition("/")[2]) and name not in seen:
            found |= tracked(schemas, schemas[name], seen | {name})
    for name, field in schema.get("properties", {}).items():
        merged = field.get("x-kubernetes-list-type") == "map"
        if merged or ("additionalProperties" in field and field.get("x-kubernetes-map-type") != "atomic"):
            found.add(name)
        if merged or field.get("type") != "array":
            found |= tracked(schemas, field.get("items", field), seen)
    return found


async def test_the_fields_whose_entries_are_tracked_count_more(admin: Admin) -> None:
    schemas = (await admin.get("/openapi/v3/api/v1"))["components"]["schemas"]
    names = tracked(schemas, schemas["io.k8s.api.core.v1.PodTemplateSpec"], set())
    assert {"env", "volumeMounts", "labels"} <= names
    of_no_template = {"ephemeralContainers", "ownerReferences"}
    assert not {name for name in names - of_no_template if cost_of(0, {name: [{}]}) < ENTRY}


@pytest.mark.slow
async def test_a_run_that_halts_its_node_reaches_no_more_nodes_than_run_at_once(world: World) -> None:
    """The kubelet's graceful shutdown ends the Pod, which is not a failure; then the node is NotReady."""
    await world.join(4)
    world.kubelet.default = HOLD
    task = await world.task(parallelism=1, failurePolicy=PAUSE, progressDeadlineSeconds=10)
    await task.running()
    (halted,) = hit(world)
    await world.kubelet.ready(halted, "False")
    await world.kubelet.finish(halted, outcome=SHUT_DOWN)
    found = await task.when(lambda t: stands(t, "Ready", "False", "Paused"))
    assert hit(world) == {halted}
    assert blocked(found) == {halted: "NodeNotReady"}

    await world.kubelet.ready(halted)
    await task.running()
    world.kubelet.default = SUCCEED
    await world.kubelet.finish_all()
    await task.done(4)


async def test_a_run_that_fills_the_disk_reaches_no_more_nodes_than_run_at_once(world: World) -> None:
    """The run is evicted, which is not a failure; from then on the kubelet rejects all Pods."""
    for name in await world.join(4):
        world.kubelet.script(name, EVICTED, *[rejected("Evicted")] * 9)
    task = await world.task(parallelism=1, failurePolicy=PAUSE, progressDeadlineSeconds=10)
    found = await task.when(lambda t: stands(t, "Ready", "False", "Paused"), 60)
    (full,) = hit(world)
    assert blocked(found) == {full: "Evicted"}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"backoffLimit": 3}, id="AtLeastOnce"),
        pytest.param(ONCE, id="AtMostOnce", marks=pytest.mark.slow),
    ],
)
async def test_one_node_whose_pods_are_refused_is_named_and_holds_up_no_other(
    world: World, spec: dict[str, Any]
) -> None:
    names = await world.join(12)
    bad = names[5]
    async with denied(world.admin, world.namespace, "CREATE", "not on this node", [bad]) as binding:
        task = await world.task(parallelism=1, **spec)
        found = await task.counts(succeeded=11, blocked=1)
        assert blocked(found) == {bad: "PodRefused"}
        assert "not on this node" in found["status"]["blockedNodes"][0]["message"]
        found = await task.when(lambda t: stands(t, "Ready", "False", "PodCreationRefused"))
        assert stands(found, "Degraded")
        assert bad in condition(found, "Degraded")["message"]
        assert hit(world) == set(names) - {bad}
        await world.admin.delete(binding)
        await task.done(12)
    assert sorted(node for node, _ in world.kubelet.ran) == sorted(names)


async def test_one_node_that_rejects_its_pods_holds_up_no_other(world: World) -> None:
    names = await world.join(6)
    bad = names[2]
    world.kubelet.script(bad, *[rejected()] * 3)
    task = await world.task(parallelism=1, failurePolicy={"maxFailedNodes": 0, "action": "Pause"})
    found = await task.done(6)
    assert found["status"]["failed"] == 0
    assert [node for node, _ in world.kubelet.ran].count(bad) == 4


async def test_a_pod_that_does_not_go_keeps_its_slot_long_past_its_grace(world: World) -> None:
    await world.join(2)
    world.kubelet.default = HOLD
    template = world.template(terminationGracePeriodSeconds=1)
    task = await world.task(template=template, parallelism=1)
    (stays,) = await task.running()
    (node,) = hit(world)
    world.kubelet.silent.add(node)
    await world.delete_pods([stays])
    found = await task.counts(blocked=1, pending=1)
    assert blocked(found) == {node: "PredecessorTerminating"}
    await holds_for(8, lambda: hit(world) == {node})

    world.kubelet.default = SUCCEED
    world.kubelet.answer(node)
    await task.done(2)


@pytest.mark.slow
async def test_the_others_finish_beside_a_pod_that_never_goes_and_status_names_its_slot(world: World) -> None:
    await world.join(5)
    world.kubelet.default = HOLD
    task = await world.task(parallelism=2, template=world.template(terminationGracePeriodSeconds=1))
    stays, _ = await task.running(2)
    stuck = stays["spec"]["nodeName"]
    world.kubelet.silent.add(stuck)
    await world.delete_pods([stays])
    await task.counts(blocked=1, active=1, pending=3)
    await world.kubelet.finish_all()
    found = await task.counts(succeeded=4, blocked=1)
    slots = found["status"]["slots"]
    assert (slots["width"], slots["held"]) == (2, 1)
    (holder,) = slots["holders"]
    assert (holder["nodeName"], holder["reason"]) == (stuck, "PredecessorTerminating")
    assert not found["status"].get("finishedRollout")

    world.kubelet.answer(stuck)
    found = await task.done(5)
    assert found["status"]["finishedRollout"].startswith(found["status"]["currentRevision"])
    assert not found["status"]["slots"].get("holders")


async def test_kubelets_whose_clocks_are_ten_years_off_hold_up_no_node(world: World) -> None:
    """Neither a retry nor the slot of a success waits for what such a clock shows."""
    names = await world.join(4)
    for name, ahead in zip(names, (TEN_YEARS, -TEN_YEARS), strict=False):
        world.kubelet.ahead[name] = ahead
        world.kubelet.script(name, fail())
    task = await world.task(parallelism=1, backoffLimit=1, minSuccessSeconds=1)
    await task.done(4)
    assert len(world.kubelet.ran) == 6


async def test_a_giant_boot_id_is_kept_short_and_holds_up_no_node(world: World) -> None:
    names = await world.join(3)
    body = {"status": {"nodeInfo": {"bootID": "b" * 500_000}}}
    await world.admin.patch(path("nodes", name=names[0], sub="status"), body, "strategic")
    task = await world.task(rerunOn=["TemplateChange", "NodeReboot"])
    await task.done(3)
    assert len((await task.ledger())[names[0]]["bootID"]) < 300
    assert len(world.kubelet.ran) == 3


async def test_a_namespace_that_terminates_holds_up_no_other(
    world: World, admin: Admin, nodes: Nodes, proxy: ApiProxy
) -> None:
    names = await world.join(6)
    going = f"{world.namespace}-going"
    await admin.create(path("namespaces"), {"metadata": {"name": going}})
    async with Kubelet(admin, going) as kubelet:
        kubelet.serve(names)
        kubelet.default = HOLD
        doomed = World(admin, going, nodes, kubelet)
        await (await doomed.task(parallelism=2, template=world.template())).running(2)
        kubelet.silent.update(names)  # so that the namespace stays Terminating
        await admin.delete(path("namespaces", name=going))
        task = await world.task(parallelism=2)
        await task.done(6)
        assert len(kubelet.ran) == 2
        refused = proxy.ledger.calls(
            lambda c: (c.verb, c.resource, c.namespace) == ("create", "pods", going) and c.code >= 400
        )
        assert len(refused) <= 6
        for name in names:
            kubelet.answer(name)
        await admin.wait_for_all(path("pods", going), lambda pods: not pods, 60)
