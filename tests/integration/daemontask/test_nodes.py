"""What happens to the nodes while a task is there: they join, leave, are cordoned, tainted, lost."""

import asyncio
import time
from collections.abc import Callable

import pytest

from testbed.recorder import PodRecorder
from testing.apicalls import Call
from testing.apiproxy import ApiProxy
from testing.customresource import TIMEOUT, condition, stands
from testing.kubelet import HOLD, SUCCEED, fail
from testing.world import World, holds_for, node_of

Recorders = Callable[[], PodRecorder]

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
TOLERATE_CORDON = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
TOLERATE_NOT_READY = {"key": NOT_READY, "operator": "Exists"}
BACKOFF = 1.0  # seconds after a first failure: 10 s at the operator's time scale
BIG = [{"name": "main", "image": "test:1", "resources": {"requests": {"cpu": "2"}}}]


# ---------------------------------------------------------------- joining


async def test_a_node_that_joins_is_blocked_until_ready_and_then_runs_once(world: World) -> None:
    await world.join()
    task = await world.task()
    await task.done(1)
    (late,) = await world.join(ready=False)
    found = await task.counts(blocked=1, succeeded=1, failed=0)
    (blocked,) = found["status"]["blockedNodes"]
    assert (blocked["nodeName"], blocked["reason"]) == (late, "NodeNotReady")
    assert stands(found, "Ready")
    assert not condition(found, "Reconciling")
    began = time.monotonic()
    await world.kubelet.ready(late)
    await task.done(2)
    assert time.monotonic() - began < 10
    assert [node for node, _ in world.kubelet.ran].count(late) == 1


async def test_a_template_that_tolerates_not_ready_runs_before_the_node_is_ready(world: World) -> None:
    """As a task must that brings the network to the node."""
    (node,) = await world.join(ready=False)
    task = await world.task(template=world.template(tolerations=[TOLERATE_NOT_READY]))
    await task.done(1)
    assert [on for on, _ in world.kubelet.ran] == [node]


async def test_no_matching_node_is_not_complete_and_the_first_one_starts_it(world: World) -> None:
    """Fault 21 (system-upgrade-controller)."""
    task = await world.task()
    found = await task.when(lambda t: stands(t, "Ready", "False", "NoMatchingNodes"))
    assert found["status"]["desired"] == 0
    assert found["status"]["completedRevision"] == ""
    assert not await task.events("RolloutComplete")
    await world.join()
    await task.done(1)


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param({"eks.amazonaws.com/compute-type": "fargate"}, id="AWS Fargate"),
        pytest.param({"type": "virtual-kubelet"}, id="a virtual kubelet", marks=pytest.mark.slow),
        pytest.param(
            {"kubernetes.azure.com/virtual-node": "true"}, id="an AKS virtual node", marks=pytest.mark.slow
        ),
        pytest.param({"kubernetes.io/os": "windows"}, id="Windows"),
    ],
)
async def test_a_node_that_runs_no_ordinary_pods_is_left_out_unless_the_template_selects_it(
    world: World, labels: dict[str, str]
) -> None:
    await world.join()
    (special,) = await world.join(labels=labels)
    task = await world.task()
    await task.done(1)
    chosen = await world.task(
        "chosen", template=world.template(nodeSelector={**world.selector, **labels}), parallelism=1
    )
    await chosen.done(1)
    assert [node_of(pod) for pod in await chosen.pods()] == [special]


# ---------------------------------------------------------------- leaving


async def test_a_deleted_node_frees_its_slot_at_once_and_is_neither_success_nor_failure(
    world: World,
) -> None:
    """Faults 15 and 25 (rancher#25878, k8s#22545)."""
    await world.join(3)
    world.kubelet.default = HOLD
    task = await world.task(parallelism=1)
    await task.counts(active=1, pending=2)
    (running,) = await task.running()
    gone = node_of(running)
    world.kubelet.default = SUCCEED
    await world.nodes.delete(gone)
    found = await task.done(2)
    assert (found["status"]["desired"], found["status"]["failed"]) == (2, 0)


async def test_deleted_nodes_never_linger_in_lists(world: World) -> None:
    """Fault 33 (node-readiness-controller #382)."""
    good, lost = await world.join(2)
    (unready,) = await world.join(ready=False)
    world.kubelet.script(lost, fail())
    task = await world.task(backoffLimit=0)
    await task.counts(succeeded=1, failed=1, blocked=1)
    await world.nodes.delete(lost, unready)
    found = await task.counts(desired=1, succeeded=1, failed=0, blocked=0)
    assert (found["status"]["failedNodes"], found["status"]["blockedNodes"]) == ([], [])
    node = await world.node(good)
    assert not [key for key in node["metadata"]["labels"] if key.startswith("caretaker.dev/")]
    assert not [key for key in node["metadata"]["annotations"] if key.startswith("caretaker.dev/")]


# ---------------------------------------------------------------- cordon


async def test_a_cordon_neither_stops_a_run_nor_repeats_it_and_is_never_undone_by_us(world: World) -> None:
    """Faults 7 and 20 (kruise; system-upgrade-controller #341, #71)."""
    (node,) = await world.join()
    world.kubelet.script(node, HOLD)
    task = await world.task()
    await task.running()
    await world.cordon(node)

    async def left_alone() -> bool:
        return not any("deletionTimestamp" in pod["metadata"] for pod in await task.pods())

    await holds_for(1.5, left_alone)
    await world.kubelet.finish(node)
    await task.done(1)
    assert (await world.node(node))["spec"]["unschedulable"] is True
    await world.cordon(node, on=False)
    await holds_for(1.5, lambda: len(world.kubelet.ran) == 1)
    await task.done(1)


async def first_start(world: World, proxy: ApiProxy, since: float) -> float:
    """When (time.time) the operator asked for this test's first Pod since then."""

    def is_start(call: Call) -> bool:
        asked = (call.verb, call.resource, call.namespace, call.dry_run)
        return asked == ("create", "pods", world.namespace, False) and call.time >= since

    found = await asyncio.to_thread(proxy.ledger.wait, is_start, 1, TIMEOUT)
    return found[0].time


async def test_a_cordoned_node_is_blocked_and_runs_within_two_seconds_of_its_uncordoning(
    world: World, proxy: ApiProxy
) -> None:
    """Fault 8 (kruise #1199)."""
    (node,) = await world.join()
    await world.cordon(node)
    task = await world.task()
    found = await task.counts(blocked=1)
    assert found["status"]["blockedNodes"][0]["reason"] == "Cordoned"
    assert stands(found, "Ready", "False", "NodesBlocked")
    blocked = time.time()
    await world.cordon(node, on=False)
    free = time.time()
    assert await first_start(world, proxy, blocked) - free < 2
    await task.done(1)


async def test_a_template_that_tolerates_the_cordon_runs_on_a_cordoned_node(world: World) -> None:
    (node,) = await world.join()
    await world.cordon(node)
    task = await world.task(template=world.template(tolerations=[TOLERATE_CORDON]))
    await task.done(1)


# ---------------------------------------------------------------- taints


async def test_a_no_schedule_taint_lets_the_active_pod_go_on_and_starts_no_other(world: World) -> None:
    busy, idle = await world.join(2)
    await world.taint(idle, "NoSchedule")
    world.kubelet.script(busy, HOLD)
    task = await world.task()
    await task.counts(active=1, desired=1)
    await task.running()
    await world.taint(busy, "NoSchedule")
    await world.kubelet.finish(busy)
    await task.done(1)
    await world.taint(idle, None)
    await task.done(2)


async def test_a_node_whose_no_execute_taint_goes_runs_within_two_seconds(
    world: World, proxy: ApiProxy
) -> None:
    """Fault 8 (kruise #1199), and: the eviction is not counted, the node leaves `desired` meanwhile."""
    node, other = await world.join(2)
    world.kubelet.script(node, HOLD)
    world.kubelet.script(other, HOLD)
    task = await world.task(backoffLimit=0)
    (evicted,) = [pod for pod in await task.running(2) if node_of(pod) == node]
    await world.taint(node, "NoExecute")
    await world.gone([evicted])
    gone = time.time()
    found = await task.counts(desired=1, active=1)
    assert found["status"]["failed"] == 0
    await world.until(lambda: time.time() > gone + BACKOFF)
    tainted = time.time()
    await world.taint(node, None)
    free = time.time()
    assert await first_start(world, proxy, tainted) - free < 2
    await world.kubelet.finish(other)
    await task.done(2)


async def test_a_tolerated_taint_changes_nothing(world: World) -> None:
    (node,) = await world.join(taints=[{"key": "dedicated", "value": "gpu", "effect": "NoExecute"}])
    toleration = {"key": "dedicated", "operator": "Equal", "value": "gpu"}
    task = await world.task(template=world.template(tolerations=[toleration]))
    await task.done(1)
    assert [on for on, _ in world.kubelet.ran] == [node]


# ---------------------------------------------------------------- lost nodes


async def test_with_parallelism_one_a_node_that_is_lost_does_not_stop_the_other_nine(world: World) -> None:
    """Fault 15 (system-upgrade-controller, kured#137). The one documented case above parallelism."""
    await world.join(10)
    world.kubelet.default = HOLD
    task = await world.task(parallelism=1, progressDeadlineSeconds=3)
    (first,) = await task.running()
    lost, name = node_of(first), first["metadata"]["name"]
    world.kubelet.silent.add(lost)
    await world.kubelet.ready(lost, "Unknown")
    found = await task.when(lambda t: t["status"]["blocked"] == 1)
    assert found["status"]["blockedNodes"][0]["reason"] == "NodeNotReady"
    await world.kubelet.finish_all()
    await task.counts(succeeded=9, blocked=1, active=0)
    (pod,) = [pod for pod in await task.pods() if node_of(pod) == lost]
    assert pod["metadata"]["name"] == name
    assert "deletionTimestamp" not in pod["metadata"]
    await world.kubelet.ready(lost)
    world.kubelet.answer(lost)
    await world.kubelet.finish(lost)
    await task.done(10)
    assert len(world.kubelet.ran) == 10


async def test_pods_are_not_evicted_from_a_node_that_is_lost(world: World) -> None:
    await world.join()
    world.kubelet.default = HOLD
    task = await world.task()
    await task.counts(active=1)
    (pod,) = await task.pods()
    unbounded = {
        toleration["key"]
        for toleration in pod["spec"]["tolerations"]
        if toleration.get("effect") == "NoExecute" and "tolerationSeconds" not in toleration
    }
    assert {NOT_READY, UNREACHABLE} <= unbounded


async def test_a_pod_that_is_stuck_terminating_does_not_block_the_other_nodes(world: World) -> None:
    """Fault 5 (kruise)."""
    await world.join(3)
    world.kubelet.default = HOLD
    template = world.template(terminationGracePeriodSeconds=1)
    task = await world.task(parallelism=1, progressDeadlineSeconds=3, template=template)
    (running,) = await task.running()
    stuck = node_of(running)
    world.kubelet.silent.add(stuck)
    await world.kubelet.ready(stuck, "Unknown")
    await world.delete_pods([running])
    found = await task.counts(blocked=1)
    assert found["status"]["blockedNodes"][0]["reason"] == "PredecessorTerminating"
    await task.counts(active=1)
    await world.kubelet.finish_all()
    await task.counts(succeeded=2, blocked=1)
    await world.kubelet.ready(stuck)
    world.kubelet.answer(stuck)
    await task.done(3)


# ---------------------------------------------------------------- no room


async def test_a_pod_that_does_not_fit_is_blocked_with_the_schedulers_message_and_gives_up_its_slot(
    world: World, recorders: Recorders
) -> None:
    full, *others = await world.join(3)
    await world.shrink(full)
    async with recorders() as record:
        task = await world.task(
            template=world.template(containers=BIG), parallelism=1, progressDeadlineSeconds=2
        )
        found = await task.when(lambda t: t["status"]["succeeded"] == 2 and t["status"]["blocked"] == 1)
        (blocked,) = found["status"]["blockedNodes"]
        assert blocked["nodeName"] == full
        assert blocked["reason"] == "Unschedulable"
        assert "Insufficient cpu" in blocked["message"]
        await world.shrink(full, cpu="32")
        await task.done(3)
        await record.settle()
    assert record.max_active() == 1
    assert {node: record.runs_per_node()[node] for node in others} == dict.fromkeys(others, 1)


async def test_a_node_at_its_limit_of_pods_is_named_as_such(world: World) -> None:
    (full,) = await world.join()
    await world.shrink(full, pods="0", cpu="32", memory="256Gi")
    task = await world.task()
    found = await task.counts(blocked=1)
    assert found["status"]["blockedNodes"][0]["reason"] == "TooManyPods"
    await world.shrink(full, pods="110")
    await task.done(1)


async def test_labels_that_flip_while_a_pod_is_pending_never_make_a_second_one(
    world: World, recorders: Recorders
) -> None:
    """Fault 3 (k8s#14528)."""
    (node,) = await world.join(labels={"flip": "on"})
    await world.shrink(node)
    selector = {**world.selector, "flip": "on"}
    async with recorders() as record:
        task = await world.task(template=world.template(containers=BIG, nodeSelector=selector))
        await task.counts(blocked=1)
        for _ in range(4):
            await world.patch_node(node, {"metadata": {"labels": {"flip": "off"}}})
            await world.patch_node(node, {"metadata": {"labels": {"flip": "on"}}})
        await world.patch_node(node, {"metadata": {"labels": {"flip": "off"}}})
        await task.counts(desired=0)
        await task.pods_when(lambda pods: not pods)
        await world.patch_node(node, {"metadata": {"labels": {"flip": "on"}}})
        await world.shrink(node, cpu="32")
        await task.done(1)
        await record.settle()
    assert record.max_active_per_place() == 1
    assert record.runs_per_node("Succeeded") == {node: 1}


# ---------------------------------------------------------------- names


async def test_a_node_whose_hostname_label_differs_repeats_or_is_absent_gets_its_own_pod(
    world: World,
) -> None:
    """Fault 16 (system-upgrade-controller #119, #126, #132)."""
    a, b = await world.join(2, labels={"kubernetes.io/hostname": "both"})
    (c,) = await world.join()
    await world.patch_node(c, {"metadata": {"labels": {"kubernetes.io/hostname": None}}})
    task = await world.task()
    await task.done(3)
    assert sorted(node for node, _ in world.kubelet.ran) == [a, b, c]


async def test_a_node_name_of_253_characters_is_served_like_any_other(world: World) -> None:
    """Fault 17 (system-upgrade-controller #273)."""
    mark = world.selector[next(iter(world.selector))]
    parts = [mark, "a" * 60, "b" * 60, "c" * 60]
    rest = 253 - len(".".join(parts)) - 1
    name = ".".join([*parts, "d" * rest])
    assert len(name) == 253
    await world.join(names=[name], labels={"kubernetes.io/hostname": "short"})
    task = await world.task()
    await task.done(1)
    (pod,) = await task.pods()
    assert node_of(pod) == name
    assert all(len(value) <= 63 for value in pod["metadata"]["labels"].values())
    assert list(await task.ledger()) == [name]
