"""Runs that fail: retries, backoff, what counts, and where it is told."""

import asyncio
import itertools
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from testbed.admin import Json, path
from testbed.recorder import PodRecorder
from testing.apiproxy import ApiProxy
from testing.customresource import condition, stands
from testing.faults import Match, Run
from testing.kubelet import DEADLINE, EVICTED, HOLD, IMAGE_PULL, OOM, SUCCEED, Outcome, fail, rejected
from testing.world import Task, World, blocked, holds_for

Recorders = Callable[[], PodRecorder]

BACKOFF = 1.0  # seconds after a first failure: 10 s at the operator's time scale


async def test_a_node_is_retried_up_to_its_limit_and_then_stands_in_failed_nodes(
    world: World, recorders: Recorders
) -> None:
    bad, *good = await world.join(3)
    world.kubelet.script(bad, *[fail(3, "disk is full")] * 3)
    async with recorders() as record:
        task = await world.task(backoffLimit=2)
        found = await task.counts(failed=1, succeeded=2)
        await record.settle()
    (failed,) = found["status"]["failedNodes"]
    assert failed.pop("lastFinishTime")
    assert failed == {
        "nodeName": bad,
        "reason": "Error",
        "message": "disk is full",
        "exitCode": 3,
        "attempts": 3,
        "podName": world.kubelet.ran[-1][1],
    }
    assert record.runs_per_node() == {bad: 3} | dict.fromkeys(good, 1)
    assert record.max_active_per_place() == 1
    waits = gaps(record, bad)
    assert waits[0] >= BACKOFF
    assert waits[1] >= 2 * BACKOFF
    assert stands(found, "Stalled", reason="NodesFailed")
    assert stands(found, "Ready", "False", "NodesFailed")
    assert bad in (await task.event("RunFailed"))["message"]
    assert len(await task.events("RunFailed")) == 1


def gaps(record: PodRecorder, node: str) -> list[float]:
    """Seconds between the end of each of a node's Pods and the creation of the next one, as the Pods tell: a
    kubelet or a watch that is slow changes neither."""
    ended: dict[str, float] = {}
    begun: dict[str, float] = {}
    for seen in record.pods:
        meta = seen.object["metadata"]
        if meta["annotations"]["caretaker.dev/node-name"] != node:
            continue
        begun[meta["name"]] = datetime.fromisoformat(meta["creationTimestamp"]).timestamp()
        if seen.object["status"].get("phase") in ("Succeeded", "Failed"):
            ended.setdefault(meta["name"], told_end(seen.object))
    order = sorted(begun, key=lambda name: begun[name])
    return [begun[after] - ended[before] for before, after in itertools.pairwise(order)]


def told_end(pod: Json) -> float:
    """When the kubelet says that it ended, in words that are there for a Pod without containers, too."""
    (ready,) = (c for c in pod["status"]["conditions"] if c["type"] == "Ready")
    return datetime.fromisoformat(ready["lastTransitionTime"]).timestamp()


async def test_a_node_that_succeeds_on_a_retry_counts_as_succeeded(world: World) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, fail())
    task = await world.task()
    found = await task.done(1)
    assert found["status"]["failedNodes"] == []
    assert not condition(found, "Degraded")
    entry = (await task.ledger_when(lambda entries: entries[node]["result"] == "Succeeded"))[node]
    assert (entry["attempts"], entry["seq"]) == (1, 2)


async def test_while_a_node_waits_for_its_retry_it_is_pending_and_not_failed(world: World) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, fail(9))
    task = await world.task()
    found = await task.counts(pending=1, active=0)
    assert found["status"]["failed"] == 0
    assert stands(found, "Reconciling")
    await task.done(1)


@pytest.mark.parametrize(
    ("outcome", "reason", "exit_code"),
    [
        pytest.param(OOM, "OOMKilled", 137, id="killed for its memory"),
        pytest.param(DEADLINE, "DeadlineExceeded", 143, id="longer than activeDeadlineSeconds"),
        pytest.param(fail(1), "Error", 1, id="exit code 1"),
    ],
)
async def test_a_failure_counts(world: World, outcome: Outcome, reason: str, exit_code: int) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, outcome)
    task = await world.task(backoffLimit=0, activeDeadlineSeconds=60)
    found = await task.counts(failed=1)
    (failed,) = found["status"]["failedNodes"]
    assert (failed["reason"], failed["exitCode"], failed["attempts"]) == (reason, exit_code, 1)


@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(EVICTED, id="evicted by the kubelet"),
        pytest.param(rejected("OutOfcpu"), id="no room on the node after all"),
        pytest.param(
            rejected("NodeAffinity"), id="labels changed before the kubelet saw it", marks=pytest.mark.slow
        ),
        pytest.param(
            rejected("UnexpectedAdmissionError"), id="its devices cannot be had", marks=pytest.mark.slow
        ),
        pytest.param(rejected("Evicted"), id="refused for DiskPressure", marks=pytest.mark.slow),
        pytest.param(rejected("NodeShutdown"), id="refused as the node shuts down", marks=pytest.mark.slow),
        pytest.param(
            rejected("AReasonOf2031"), id="refused for a reason that is not known yet", marks=pytest.mark.slow
        ),
    ],
)
async def test_a_disruption_is_retried_with_backoff_and_not_counted(
    world: World, recorders: Recorders, outcome: Outcome
) -> None:
    """Fault 24 (k8s#65240, #130411): rejections back off per node."""
    node, other = await world.join(2)
    world.kubelet.script(node, outcome, outcome, HOLD)
    async with recorders() as record:
        task = await world.task(backoffLimit=0)
        await uncounted(task, node)
        await world.kubelet.finish(node)
        await task.done(2)
        await record.settle()
    assert record.runs_per_node() == {node: 3, other: 1}
    waits = gaps(record, node)
    assert waits[0] >= BACKOFF
    assert waits[1] >= 2 * BACKOFF


async def uncounted(task: Task, node: str) -> None:
    """Return once two runs of this node are on record that do not count."""

    def is_second(entries: dict[str, Any]) -> bool:
        entry = entries.get(node, {})
        return 2 in (entry.get("disruptions"), entry.get("rejections"))

    ledger = await task.ledger_when(is_second)
    assert (ledger[node]["result"], ledger[node].get("attempts", 0)) == ("Retry", 0)


def on_exit(action: str, *codes: int) -> dict[str, Any]:
    rule = {"action": action, "onExitCodes": {"operator": "In", "values": list(codes)}}
    return {"podFailurePolicy": {"rules": [rule]}}


async def test_fail_index_fails_the_node_without_retries(world: World) -> None:
    bad, _ = await world.join(2)
    world.kubelet.script(bad, fail(42))
    task = await world.task(backoffLimit=5, **on_exit("FailIndex", 42))
    found = await task.counts(failed=1, succeeded=1)
    assert found["status"]["failedNodes"][0]["attempts"] == 1


async def test_fail_job_fails_the_task_and_starts_nothing_more(world: World) -> None:
    await world.join(3)
    world.kubelet.default = fail(13)
    task = await world.task(parallelism=1, backoffLimit=5, **on_exit("FailJob", 13))
    found = await task.when(lambda t: stands(t, "Stalled", reason="NodesFailed"))
    assert stands(found, "Progressing", "False", "NodesFailed")
    assert (found["status"]["failed"], found["status"]["pending"]) == (1, 2)
    await task.edit(parallelism=3)
    await task.counts(failed=1, pending=2)
    assert len(world.kubelet.ran) == 1
    world.kubelet.default = SUCCEED
    await task.edit(template=world.template(labels={"mended": "yes"}))
    await task.done(3)


async def test_ignored_exit_codes_are_retried_and_not_counted(world: World) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, fail(7), fail(7), HOLD)
    task = await world.task(backoffLimit=0, **on_exit("Ignore", 7))
    await uncounted(task, node)
    await world.kubelet.finish(node)
    await task.done(1)


async def test_with_rules_of_its_own_a_task_counts_disruptions_unless_a_rule_ignores_them(
    world: World,
) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, EVICTED)
    task = await world.task(backoffLimit=0, **on_exit("FailIndex", 99))
    found = await task.counts(failed=1)
    assert found["status"]["failedNodes"][0]["reason"] == "Evicted"


async def test_an_image_that_cannot_be_pulled_shows_in_status_and_ends_progressing(world: World) -> None:
    """Fault 32 (NodeWright): a bad image shows in status."""
    await world.join(2)
    world.kubelet.default = IMAGE_PULL
    task = await world.task(progressDeadlineSeconds=2)
    found = await task.when(lambda t: stands(t, "Progressing", "False", "ProgressDeadlineExceeded"))
    assert found["status"]["active"] == 2
    assert "ImagePullBackOff" in condition(found, "Ready")["message"]
    await task.condition("Stalled", reason="ProgressDeadlineExceeded")
    assert (await task.event("ProgressDeadlineExceeded"))["type"] == "Warning"


async def test_the_active_deadline_ends_a_pod_whose_image_cannot_be_pulled(world: World) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, IMAGE_PULL)
    task = await world.task(activeDeadlineSeconds=60, backoffLimit=0)
    await task.when(lambda t: "ImagePullBackOff" in condition(t, "Ready").get("message", ""))
    await world.kubelet.finish(node, outcome=DEADLINE)
    found = await task.counts(failed=1)
    assert found["status"]["failedNodes"][0]["reason"] == "DeadlineExceeded"


async def test_a_mended_image_replaces_the_pods_that_could_not_start(
    world: World, recorders: Recorders
) -> None:
    await world.join(2)
    world.kubelet.default = IMAGE_PULL
    async with recorders() as record:
        task = await world.task()
        await task.when(lambda t: "ImagePullBackOff" in condition(t, "Ready").get("message", ""))
        world.kubelet.default = SUCCEED
        containers = [{"name": "main", "image": "test:mended"}]
        await task.edit(template=world.template(containers=containers))
        await task.done(2)
        await record.settle()
    assert record.max_active_per_place() == 1


async def test_the_active_deadline_is_copied_to_the_pod_so_that_the_kubelet_enforces_it(
    world: World,
) -> None:
    """Fault 9 (kruise #1409): it holds whatever becomes of the operator."""
    world.kubelet.default = HOLD
    await world.join()
    task = await world.task(activeDeadlineSeconds=77)
    await task.counts(active=1)
    (pod,) = await task.pods()
    assert pod["spec"]["activeDeadlineSeconds"] == 77


async def test_a_pod_that_a_person_deletes_while_it_runs_is_started_again(
    world: World, recorders: Recorders
) -> None:
    world.kubelet.default = HOLD
    (node,) = await world.join()
    world.kubelet.silent.add(node)  # so that the Pod goes without having ended
    async with recorders() as record:
        task = await world.task(backoffLimit=0)
        (pod,) = await task.pods_when(lambda pods: any(p["spec"].get("nodeName") for p in pods))
        world.kubelet.default = SUCCEED
        await world.delete_pods([pod], grace=0)
        world.kubelet.answer(node)
        await task.done(1)
        await record.settle()
    assert record.runs_per_node() == {node: 2}


async def test_a_pod_that_is_deleted_while_it_runs_is_not_counted_when_its_kubelet_calls_it_failed(
    world: World,
) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, HOLD)
    task = await world.task(backoffLimit=0)
    await world.delete_pods(await task.running())
    found = await task.done(1)
    assert found["status"]["failedNodes"] == []


async def test_a_drained_pod_is_retried_and_not_counted(world: World) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, HOLD)
    task = await world.task(backoffLimit=0)
    (pod,) = await task.running()
    name = pod["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    await world.admin.create(path("pods", world.namespace, name, "eviction"), eviction)
    found = await task.done(1)
    assert found["status"]["failedNodes"] == []
    assert len(world.kubelet.ran) == 2


async def test_a_pod_that_the_scheduler_preempts_is_not_counted_and_runs_once_there_is_room(
    world: World,
) -> None:
    (node,) = await world.join()
    await world.shrink(node, cpu="3")
    world.kubelet.default = HOLD
    containers = [{"name": "main", "image": "test:1", "resources": {"requests": {"cpu": "2"}}}]
    task = await world.task(template=world.template(containers=containers), backoffLimit=0)
    (pod,) = await task.running()
    urgent = {**world.template(containers=containers)["spec"], "priorityClassName": "system-node-critical"}
    pods = path("pods", world.namespace)
    await world.admin.create(pods, {"metadata": {"name": "urgent"}, "spec": urgent})
    await world.gone([pod])
    found = await task.when(lambda t: blocked(t) == {node: "Unschedulable"})
    assert found["status"]["failed"] == 0
    world.kubelet.default = SUCCEED
    await world.admin.delete(f"{pods}/urgent")
    await task.done(1)


def twin_of(world: World, pod: Json) -> Json:
    """Another Pod for the node of the first run's Pod, as a second operator would make it."""
    meta = pod["metadata"]
    return {
        "metadata": {
            **{key: meta[key] for key in ("labels", "ownerReferences")},
            "name": meta["name"].removesuffix("1") + "2",
            "annotations": {**meta["annotations"], "caretaker.dev/seq": "2"},
        },
        "spec": {**world.template()["spec"], "affinity": pod["spec"]["affinity"]},
    }


async def test_of_two_pods_for_a_node_the_oldest_stays_and_its_success_is_not_undone(
    world: World, recorders: Recorders
) -> None:
    (node,) = await world.join()
    world.kubelet.default = HOLD
    async with recorders() as record:
        task = await world.task()
        (pod,) = await task.running()
        made = await world.admin.create(path("pods", world.namespace), twin_of(world, pod))
        await world.gone([made])
        assert (await task.event("DuplicatePods"))["type"] == "Warning"
        await world.kubelet.finish(node)
        await task.done(1)
        await holds_for(1.5, lambda: len(world.kubelet.ran) <= 2)
        await record.settle()
    assert record.runs_per_node("Succeeded") == {node: 1}
    assert (await task.ledger())[node]["result"] == "Succeeded"


async def test_a_duplicate_that_changes_while_it_is_deleted_is_deleted_all_the_same(
    world: World, proxy: ApiProxy
) -> None:
    """The delete is refused, since the Pod is no longer as it was seen; that it began to run tells a plan
    nothing new, so no event brings the next one."""
    (node,) = await world.join()
    world.kubelet.default = HOLD
    task = await world.task()
    (pod,) = await task.running()
    twin = twin_of(world, pod)
    world.kubelet.silent.add(node)
    twin["spec"]["nodeName"] = node
    deleting, begun = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def hold(_: object) -> None:
        loop.call_soon_threadsafe(deleting.set)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(begun.wait(), loop))

    first = Match(verb="delete", resource="pods", namespace=world.namespace, times=1)
    with proxy.fault(first, Run(run_before=hold)):
        made = await world.admin.create(path("pods", world.namespace), twin)
        await deleting.wait()
        world.kubelet.answer(node)
        await task.running(2)
        begun.set()
        await world.gone([made])
    await world.kubelet.finish(node)
    await task.done(1)
