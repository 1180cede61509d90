"""spec.nodeGate: a node loses its startup taint when the task has succeeded there, and nothing else of it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from testbed.admin import Admin, ApiError, Json, path
from testing.apiproxy import ApiProxy
from testing.customresource import TIMEOUT, condition, stands
from testing.faults import Answer, LoseReply, Match, Run
from testing.kubelet import HOLD, fail
from testing.operator import OperatorProcess
from testing.world import Task, World, holds_for, in_loop

OTHER = {"key": "example.com/theirs", "value": "v", "effect": "PreferNoSchedule"}


def gate(world: World, task: str = "t", effect: str = "NoSchedule") -> Json:
    return {"key": f"{world.namespace}.gate.caretaker.dev/{task}", "effect": effect}


async def taints(world: World, name: str) -> list[Json]:
    """A node's taints, without the times at which the API server saw them come."""
    found = (await world.node(name))["spec"].get("taints") or []
    return [{key: value for key, value in taint.items() if key != "timeAdded"} for taint in found]


async def keys_when(world: World, name: str, *wanted: str) -> Json:
    """The node once its taints have exactly these keys."""

    def holds(node: Json) -> bool:
        return sorted(t["key"] for t in node["spec"].get("taints") or []) == sorted(wanted)

    return await world.admin.wait_for(path("nodes", name=name), holds, TIMEOUT)


async def gated(world: World, name: str = "t", **spec: Any) -> Task:
    return await world.task(name, nodeGate={}, **spec)


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
async def test_a_node_that_joins_shut_is_opened_by_the_success_and_keeps_its_other_taints(
    world: World, effect: str
) -> None:
    task = await gated(world)
    world.kubelet.default = HOLD
    (name,) = await world.join(taints=[OTHER, {**gate(world, effect=effect), "value": "any"}])
    (pod,) = await task.running()
    key = gate(world)["key"]
    assert {"key": key, "operator": "Exists"} in pod["spec"]["tolerations"]
    found = await task.counts(active=1)
    assert found["status"]["nodeGate"] == {"taint": key, "gatedNodes": 1, "excludedNodes": 0}
    assert key in [taint["key"] for taint in await taints(world, name)]
    await world.kubelet.finish(name)
    ended = time.monotonic()
    await keys_when(world, name, OTHER["key"])
    print(f"opened {time.monotonic() - ended:.2f} s after the end of its run")
    assert await taints(world, name) == [OTHER]
    found = await task.when(lambda t: t["status"]["nodeGate"]["gatedNodes"] == 0)
    assert stands(found, "Ready")


async def test_a_node_that_has_succeeded_is_opened_at_any_time_also_while_the_task_is_suspended(
    world: World,
) -> None:
    (name,) = await world.join()
    task = await gated(world)
    await task.done(1)
    await task.edit(suspend=True)
    await world.patch_node(name, {"spec": {"taints": [OTHER, gate(world)]}})
    await keys_when(world, name, OTHER["key"])
    assert len(world.kubelet.ran) == 1


async def test_a_failed_node_stays_shut_until_a_run_succeeds(world: World, operator: OperatorProcess) -> None:
    (name,) = await world.join(taints=[gate(world)])
    world.kubelet.script(name, fail())
    task = await gated(world, backoffLimit=0)
    await task.counts(failed=1)
    await holds_for(1.0, lambda: keys_are(world, name, gate(world)["key"]))
    of = {"namespace": world.namespace, "name": "t"}
    await world.until(lambda: operator.metric("caretaker_daemontask_gated_nodes", **of, state="failed") == 1)
    await task.annotate(rerun_at="2026-01-01T00:00:00Z")
    await keys_when(world, name)
    await world.until(
        lambda: operator.metric("caretaker_daemontask_gated_nodes", **of, state="succeeded") == 0
    )


async def keys_are(world: World, name: str, *wanted: str) -> bool:
    return [taint["key"] for taint in await taints(world, name)] == list(wanted)


async def test_a_changed_template_keeps_it_shut_until_the_new_one_has_succeeded(world: World) -> None:
    (name,) = await world.join(taints=[gate(world)])
    world.kubelet.default = HOLD
    task = await gated(world)
    await task.running()
    old = (await task.when(lambda t: "currentRevision" in t["status"]))["status"]["currentRevision"]
    await task.put_template(world.template(containers=[{"name": "main", "image": "test:2"}]))
    await task.when(lambda t: t["status"]["currentRevision"] != old)
    await world.kubelet.finish(name)
    await task.pods_when(lambda pods: any(p["spec"]["containers"][0]["image"] == "test:2" for p in pods))
    await holds_for(1.0, lambda: keys_are(world, name, gate(world)["key"]))
    await world.kubelet.finish(name)
    await keys_when(world, name)


async def test_a_node_that_the_template_does_not_select_keeps_it_and_is_told(world: World) -> None:
    name, other = await world.join(2, taints=[gate(world)])
    template = world.template(nodeSelector={**world.selector, "kubernetes.io/hostname": name})
    task = await gated(world, template=template)
    await keys_when(world, name)
    found = await task.when(lambda t: t["status"]["nodeGate"]["gatedNodes"] == 1)
    assert found["status"]["nodeGate"]["excludedNodes"] == 1
    assert stands(found, "Ready")
    assert await keys_are(world, other, gate(world)["key"])
    await task.put_template(world.template())
    await keys_when(world, other)


async def test_a_task_of_that_name_in_another_namespace_or_without_the_field_opens_nothing(
    world: World,
) -> None:
    theirs = {"key": "elsewhere.gate.caretaker.dev/t", "effect": "NoSchedule"}
    plain = gate(world, "plain")
    (name,) = await world.join(taints=[theirs, plain])
    everything = world.template(tolerations=[{"operator": "Exists"}])
    first = await gated(world, template=everything)
    second = await world.task("plain", template=everything)
    await first.done(1)
    found = await second.done(1)
    assert found["status"].get("nodeGate") is None
    await holds_for(1.0, lambda: keys_are(world, name, theirs["key"], plain["key"]))


async def test_a_task_that_is_made_again_opens_by_its_own_run(world: World) -> None:
    (name,) = await world.join()
    task = await gated(world)
    await task.done(1)
    await task.delete()
    await world.admin.wait_gone(task.url)
    await world.patch_node(name, {"spec": {"taints": [gate(world)]}})
    world.kubelet.default = HOLD
    await gated(world)
    await task.running()
    assert await keys_are(world, name, gate(world)["key"])
    await world.kubelet.finish(name)
    await keys_when(world, name)


# ---------------------------------------------------------------- faults


async def test_taints_that_others_change_at_the_same_moment_are_not_lost(
    world: World, proxy: ApiProxy
) -> None:
    """Between what the operator saw and its patch, another controller takes the first taint and adds one."""
    (name,) = await world.join(taints=[OTHER, gate(world)])
    cloud = {"key": "example.com/new", "value": "1", "effect": "NoSchedule"}

    async def change() -> None:
        await world.patch_node(name, {"spec": {"taints": [gate(world), cloud]}})

    once = Match(verb="patch", resource="nodes", name=name, nth=1)
    with proxy.fault(once, Run(run_before=in_loop(change))) as rule:
        task = await gated(world)
        await asyncio.to_thread(rule.wait, timeout=TIMEOUT)
        await keys_when(world, name, cloud["key"])
    assert await taints(world, name) == [cloud]
    assert [call.code for call in rule.hits] == [422]
    assert not condition(await task.done(1), "Degraded"), "that is nobody's fault"


async def test_a_node_that_was_replaced_at_the_same_moment_stays_shut_until_its_own_run(
    world: World, proxy: ApiProxy
) -> None:
    (name,) = await world.join(taints=[gate(world)])

    async def replace() -> None:
        world.kubelet.default = HOLD
        await world.nodes.delete(name)
        await world.join(names=[name], taints=[gate(world)], wait=False)

    once = Match(verb="patch", resource="nodes", name=name, nth=1)
    with proxy.fault(once, Run(run_before=in_loop(replace))) as rule:
        task = await gated(world)
        await asyncio.to_thread(rule.wait, timeout=TIMEOUT)
    await task.running()
    assert gate(world)["key"] in [taint["key"] for taint in await taints(world, name)]
    await world.kubelet.finish(name)
    await keys_when(world, name)


@pytest.mark.parametrize(
    "action",
    [
        pytest.param(LoseReply(), id="the answer is lost"),
        pytest.param(Answer(500), id="500"),
        pytest.param(Answer(409, "Conflict"), id="409"),
        pytest.param(Answer(429), id="429"),
    ],
)
async def test_a_patch_that_fails_is_tried_again(world: World, proxy: ApiProxy, action: Any) -> None:
    (name,) = await world.join(taints=[OTHER, gate(world)])
    once = Match(verb="patch", resource="nodes", name=name, times=1)
    with proxy.fault(once, action) as rule:
        task = await gated(world)
        await asyncio.to_thread(rule.wait, timeout=TIMEOUT)
        await keys_when(world, name, OTHER["key"])
    found = await task.when(lambda t: t["status"]["nodeGate"]["gatedNodes"] == 0)
    assert not condition(found, "Degraded")
    assert not await task.events("GateRefused"), "nobody has to act"
    assert len(world.kubelet.ran) == 1


async def test_a_task_that_gets_the_field_later_opens_the_nodes_that_it_has_succeeded_on(
    world: World,
) -> None:
    (name,) = await world.join(taints=[gate(world)])
    task = await world.task("t", template=world.template(tolerations=[{"operator": "Exists"}]))
    await task.done(1)
    assert await keys_are(world, name, gate(world)["key"])
    await task.edit(nodeGate={})
    await keys_when(world, name)
    assert len(world.kubelet.ran) == 1
    await task.edit(nodeGate=None)
    await task.when(lambda t: t["status"].get("nodeGate") is None)
    await world.patch_node(name, {"spec": {"taints": [gate(world)]}})
    await holds_for(1.0, lambda: keys_are(world, name, gate(world)["key"]))


async def test_a_shut_node_that_is_left_out_is_counted_when_it_joins_and_when_it_goes(world: World) -> None:
    (mine,) = await world.join()
    template = world.template(nodeSelector={**world.selector, "kubernetes.io/hostname": mine})
    task = await gated(world, template=template)
    await task.done(1)
    (name,) = await world.join(taints=[gate(world)])
    await task.when(lambda t: t["status"]["nodeGate"]["excludedNodes"] == 1)
    await world.nodes.delete(name)
    await task.when(lambda t: t["status"]["nodeGate"]["gatedNodes"] == 0)


async def test_the_next_run_starts_though_a_node_can_neither_be_opened_nor_read(
    world: World, proxy: ApiProxy
) -> None:
    (first,) = await world.join(taints=[gate(world)])
    busy = proxy.fault(Match(verb="patch", resource="nodes", name=first), Answer(409, "Conflict"))
    mute = proxy.fault(Match(verb="get", resource="nodes", name=first), Answer(500))
    with busy, mute as rule:
        task = await gated(world)
        await asyncio.to_thread(rule.wait, timeout=TIMEOUT)
        await world.join(1)
        found = await task.done(2)
        assert found["status"]["nodeGate"]["gatedNodes"] == 1
        assert not condition(found, "Degraded")
    await keys_when(world, first)


async def test_a_policy_that_refuses_one_node_holds_up_no_other_and_is_told(world: World) -> None:
    refused, other = await world.join(2, taints=[gate(world)])
    async with unchangeable(world.admin, refused, world.namespace):
        task = await gated(world)
        await keys_when(world, other)
        # The other node may still run when the first one is refused; the task itself succeeds.
        found = await task.when(lambda t: stands(t, "Degraded", reason="GateRefused") and stands(t, "Ready"))
        message = condition(found, "Degraded")["message"]
        assert refused in message
        assert "this node stays as it is" in message
        await task.event("GateRefused")
    await keys_when(world, refused)
    await task.when(lambda t: not condition(t, "Degraded"))


@asynccontextmanager
async def unchangeable(admin: Admin, node: str, name: str) -> AsyncIterator[None]:
    """A policy that keeps a taint on this node."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
    keeps = f"object.metadata.name != '{node}' || has(object.spec.taints)"
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": keeps, "message": "this node stays as it is"}],
    }
    policies, bindings = "validatingadmissionpolicies", "validatingadmissionpolicybindings"
    await admin.create(path(policies), {"metadata": {"name": name}, "spec": spec})
    binding = {"policyName": name, "validationActions": ["Deny"]}
    await admin.create(path(bindings), {"metadata": {"name": name}, "spec": binding})
    try:
        async with asyncio.timeout(TIMEOUT):
            while not await _refuses(admin, node):  # noqa: ASYNC110 - nothing tells when a policy begins to act
                await asyncio.sleep(0.1)
        yield
    finally:
        await admin.delete(path(bindings, name=name))
        await admin.delete(path(policies, name=name))


async def _refuses(admin: Admin, node: str) -> bool:
    try:
        await admin.patch(f"{path('nodes', name=node)}?dryRun=All", {"spec": {"taints": None}})
    except ApiError:
        return True
    return False
