"""Writes of ours that a quota or a policy refuses: nothing is forgotten, the rest goes on, and it is told."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from testbed.admin import path
from testbed.recorder import PodRecorder, is_active, owner_uid
from testing.apicalls import Call
from testing.apiproxy import ApiProxy
from testing.customresource import TIMEOUT, condition, stands
from testing.kubelet import HOLD, SUCCEED, fail
from testing.policies import denied
from testing.world import Task, World, holds_for, node_of

pytestmark = pytest.mark.slow

Recorders = Callable[[], PodRecorder]

BIG = [{"name": "main", "image": "test:1", "resources": {"requests": {"cpu": "2"}}}]


async def test_a_ledger_that_a_quota_refuses_is_told_and_nothing_runs_twice(world: World) -> None:
    await world.join(3)
    world.kubelet.default = HOLD
    task = await world.task(ttlSecondsAfterFinished=0)
    await task.counts(active=3)  # all were started before the first record is refused
    present = len(await world.admin.list(path("configmaps", world.namespace)))
    quota = {"metadata": {"name": "full"}, "spec": {"hard": {"count/configmaps": str(present)}}}
    await world.admin.create(path("resourcequotas", world.namespace), quota)
    url = path("resourcequotas", world.namespace, "full")
    await world.admin.wait_for(url, lambda q: bool(q.get("status", {}).get("used")))

    await world.kubelet.finish_all()
    found = await task.when(lambda t: stands(t, "Ready", "False", "LedgerWriteRefused"))
    assert "exceeded quota: full" in condition(found, "Ready")["message"]
    assert stands(found, "Progressing", "False", "LedgerWriteRefused")
    assert stands(found, "Degraded", "True", "LedgerWriteRefused")
    assert not condition(found, "Stalled")
    assert not found["status"].get("completedRevision"), "what is not on record is not complete"
    assert len(await task.pods()) == 3, "what is not recorded is not deleted"

    await world.admin.delete(url)
    found = await task.done(3)
    assert not condition(found, "Degraded")
    await task.pods_when(lambda pods: not pods)
    assert len(world.kubelet.ran) == 3


async def test_pods_that_a_policy_keeps_from_being_deleted_hold_up_nothing_else(
    world: World, proxy: ApiProxy, recorders: Recorders
) -> None:
    await world.join(2)
    async with denied(world.admin, world.namespace, "DELETE", "keep all evidence") as binding:
        task = await world.task(ttlSecondsAfterFinished=0)
        found = await task.when(lambda t: stands(t, "Degraded", "True", "PodDeletionRefused"))
        assert "keep all evidence" in condition(found, "Degraded")["message"]
        found = await task.done(2)
        assert stands(found, "Ready", reason="Succeeded")
        assert stands(found, "Progressing", reason="RolloutComplete")
        assert stands(found, "Degraded", "True", "PodDeletionRefused")

        await look_often(task, proxy)
        late = f"late-{world.namespace}"
        world.kubelet.script(late, fail())
        async with recorders() as record:
            await world.join(names=[late])
            await task.counts(succeeded=3)
            await record.settle()
        tries = [pod for node, pod in world.kubelet.ran if node == late]
        assert seconds_to_retry(record, *tries) < 10, "a backoff of its own, 1 s here"
        assert {node_of(pod) for pod in await task.pods()} >= {late}
        await world.admin.delete(binding)
        await task.pods_when(lambda pods: not pods)
        await task.done(3)
        await task.when(lambda t: not condition(t, "Degraded"))
    assert len(world.kubelet.ran) == 4


async def test_a_live_pod_that_a_policy_keeps_from_being_deleted_keeps_its_slot(
    world: World, recorders: Recorders
) -> None:
    """Given up since no node has room for it; it may be placed yet."""
    both = await world.join(2)
    for name in both:
        await world.shrink(name)
    spec: dict[str, Any] = {"parallelism": 1, "progressDeadlineSeconds": 2, "ttlSecondsAfterFinished": 0}
    async with (
        recorders() as record,
        denied(world.admin, world.namespace, "DELETE", "hands off") as binding,
    ):
        task = await world.task(template=world.template(containers=BIG), **spec)
        found = await task.when(lambda t: stands(t, "Degraded", "True", "PodDeletionRefused"))
        assert "hands off" in condition(found, "Degraded")["message"]
        (stays,) = await task.pods()
        (other,) = set(both) - {node_of(stays)}
        await world.shrink(other, cpu="32")
        await holds_for(2, lambda: not world.kubelet.ran)
        await world.shrink(node_of(stays), cpu="32")
        await task.done(2)
        await world.admin.delete(binding)
        await task.pods_when(lambda pods: not pods)
        await record.settle()
    assert record.peak(lambda pod: is_active(pod) and bool(owner_uid(pod))).count == 1
    assert sorted(node for node, _ in world.kubelet.ran) == sorted(both)


async def look_often(task: Task, proxy: ApiProxy, times: int = 10) -> None:
    """Have the operator look at the task again and again: what is refused each time is tried ever later,
    in half a minute or so by the end."""

    def reads(call: Call) -> bool:
        found = (call.verb, call.resource, call.namespace, call.name)
        return found == ("get", "daemontasks", task.namespace, task.name)

    for _ in range(times):
        asked = len(proxy.ledger.calls(reads))
        await task.touch()
        await asyncio.to_thread(proxy.ledger.wait, reads, asked + 1, TIMEOUT)


def seconds_to_retry(record: PodRecorder, first: str, second: str) -> float:
    """From the end of a node's first Pod, as watched, to its second Pod."""
    ended = next(seen for seen in record.states_of(first) if seen.object["status"].get("phase") == "Failed")
    return record.first_seen()[second] - ended.at


async def test_a_pod_that_lost_its_labels_holds_up_its_own_node_only(world: World) -> None:
    """As kubectl label does when somebody sets a Pod aside to look at it."""
    aside, *others = await world.join(3)
    world.kubelet.default = HOLD
    task = await world.task()
    pods = await task.pods_when(lambda pods: len(pods) == 3)
    (one,) = [pod for pod in pods if node_of(pod) == aside]
    url = path("pods", world.namespace, one["metadata"]["name"])
    await world.admin.patch(url, {"metadata": {"labels": {"caretaker.dev/daemontask": None}}})

    found = await task.when(lambda t: stands(t, "Degraded", "True", "NameConflict"))
    assert one["metadata"]["name"] in condition(found, "Degraded")["message"]
    await world.kubelet.finish(*others)
    await task.counts(succeeded=2)
    await holds_for(1, lambda: [node for node, _ in world.kubelet.ran].count(aside) == 1)

    world.kubelet.default = SUCCEED
    await world.admin.delete(url, grace=0)
    await task.done(3)
