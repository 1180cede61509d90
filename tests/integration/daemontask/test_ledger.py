"""The ledger: what is remembered of finished runs, whoever deletes or damages what."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from testbed.admin import Json, path
from testbed.recorder import PodRecorder
from testing.apiproxy import ApiProxy
from testing.customresource import condition, stands
from testing.faults import Match, Stall
from testing.kubelet import HOLD, SUCCEED, fail
from testing.operator import OperatorProcess
from testing.world import Task, World, holds_for, node_of

Recorders = Callable[[], PodRecorder]

BIG = [{"name": "main", "image": "test:1", "resources": {"requests": {"cpu": "2"}}}]


async def remembered(world: World) -> Task:
    """A task that is done on two nodes, of which the ledger alone knows: its Pods are deleted."""
    await world.join(2)
    task = await world.task()
    await task.done(2)
    await world.delete_pods(await task.pods())
    return task


async def edit_ledger(world: World, task: Task, node: str, text: str | None) -> None:
    """Change what the ledger says of a node, as a person with kubectl edit does."""
    (shard,) = await task.shards()
    url = path("configmaps", world.namespace, shard["metadata"]["name"])
    await world.admin.patch(url, {"data": {node: text}})


async def test_an_entry_tells_what_ran_and_belongs_to_the_task(world: World) -> None:
    (node,) = await world.join()
    task = await world.task()
    found = await task.done(1)
    (shard,) = await task.shards()
    owner = shard["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("DaemonTask", "t", found["metadata"]["uid"])
    entry = json.loads(shard["data"][node])
    (pod,) = await task.pods()
    assert entry["podUID"] == pod["metadata"]["uid"]
    assert entry["runKey"] == pod["metadata"]["annotations"]["caretaker.dev/run-key"]
    assert (entry["result"], entry["seq"]) == ("Succeeded", 1)
    marks = shard["metadata"]["annotations"]
    assert marks["caretaker.dev/ledger-records"] == "1"
    told = found["status"]["ledger"]
    assert (told["shards"], told["recorded"]) == (1, 1)
    assert told["writes"] == [int(marks["caretaker.dev/ledger-writes"])]
    assert told["doneRun"]


async def test_deleting_all_finished_pods_repeats_nothing(world: World) -> None:
    """Fault 14 (k8s#91235, kruise #1581)."""
    await world.join(3)
    task = await world.task()
    await task.done(3)
    await world.delete_pods(await task.pods())
    await task.pods_when(lambda pods: not pods)
    await holds_for(2, lambda: len(world.kubelet.ran) == 3)
    (late,) = await world.join()
    await task.done(4)
    assert [node for node, _ in world.kubelet.ran[3:]] == [late]


async def test_deleting_a_finished_pod_while_the_operator_is_away_repeats_it_only_if_it_was_not_recorded(
    world: World, operator: OperatorProcess
) -> None:
    recorded, lost = await world.join(2)
    world.kubelet.script(lost, HOLD)
    task = await world.task()
    await task.ledger_when(lambda entries: recorded in entries)
    operator.terminate()
    try:
        await world.kubelet.finish(lost)
        pods = await task.pods_when(lambda pods: all(p["status"]["phase"] == "Succeeded" for p in pods))
        await world.delete_pods(pods)
        await world.gone(pods)
    finally:
        operator.start()
    await task.ledger_when(lambda entries: lost in entries)
    await task.done(2)
    ran = [node for node, _ in world.kubelet.ran]
    assert (ran.count(recorded), ran.count(lost)) == (1, 2)


async def test_a_pod_that_ran_while_the_operator_was_away_is_recorded_though_its_deadline_has_passed(
    world: World, operator: OperatorProcess, proxy: ApiProxy, recorders: Recorders
) -> None:
    """Fault 10 (kruise #1704). The operator knows the Pod as unscheduled and the deadline as long past: its
    watch of Pods tells nothing until the run is recorded."""
    (node,) = await world.join()
    await world.shrink(node)
    async with recorders() as record:
        task = await world.task(template=world.template(containers=BIG), progressDeadlineSeconds=600)
        await task.counts(blocked=1)
        (pod,) = await task.pods()
        operator.pause()
        try:
            await task.edit(progressDeadlineSeconds=1)
            with proxy.fault(Match(verb="watch", resource="pods"), Stall()):
                await bind(world, pod, node)
                await task.pods_when(lambda pods: [p["status"]["phase"] for p in pods] == ["Succeeded"])
                created = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
                await world.until(lambda: datetime.now(UTC) > created + timedelta(seconds=3))
                operator.resume()
                entries = await task.ledger_when(lambda entries: node in entries)
        finally:
            operator.resume()
        await task.done(1)
        await record.settle()
    assert (entries[node]["podUID"], entries[node]["result"]) == (pod["metadata"]["uid"], "Succeeded")
    (left,) = await task.pods()
    assert left["metadata"]["uid"] == pod["metadata"]["uid"], "not deleted"
    assert record.runs_per_node() == {node: 1}


async def bind(world: World, pod: Json, node: str) -> None:
    """Place a Pod as a scheduler does."""
    name = pod["metadata"]["name"]
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    await world.admin.create(
        path("pods", world.namespace, name, "binding"),
        {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target},
    )


async def test_a_restart_in_the_middle_of_a_run_repeats_nothing_and_the_deadline_still_counts(
    world: World, operator: OperatorProcess
) -> None:
    """Fault 9 (kruise #1409)."""
    stuck, running = await world.join(2)
    await world.shrink(stuck)
    world.kubelet.default = HOLD
    task = await world.task(template=world.template(containers=BIG), progressDeadlineSeconds=4)
    await task.counts(active=1, blocked=1)
    operator.restart()
    late = await task.when(lambda t: stands(t, "Progressing", "False", "ProgressDeadlineExceeded"))
    assert late["status"]["active"] == 1
    await world.kubelet.finish_all()
    await world.shrink(stuck, cpu="32")
    await task.done(2)
    assert [node for node, _ in world.kubelet.ran].count(running) == 1


async def test_a_corrupt_entry_is_isolated_to_its_node(world: World, operator: OperatorProcess) -> None:
    """Fault 32 (NodeWright)."""
    bad, good = await world.join(2)
    task = await world.task()
    await task.done(2)
    world.kubelet.default = HOLD
    await world.delete_pods(await task.pods())
    await edit_ledger(world, task, bad, '{"nodeUID": 7')
    operator.restart()
    found = await task.when(lambda t: stands(t, "Degraded", reason="LedgerCorrupt"))
    assert bad in condition(found, "Degraded")["message"]
    assert (found["status"]["succeeded"], found["status"]["active"]) == (1, 1)
    await world.kubelet.finish_all()
    await task.done(2)
    await task.when(lambda t: not condition(t, "Degraded"))
    ran = [node for node, _ in world.kubelet.ran]
    assert (ran.count(bad), ran.count(good)) == (2, 1)


async def test_a_corrupt_entry_whose_pod_is_still_there_is_mended_from_it(
    world: World, operator: OperatorProcess
) -> None:
    (node,) = await world.join()
    task = await world.task()
    await task.done(1)
    before = (await task.ledger())[node]
    await edit_ledger(world, task, node, "{}")
    operator.restart()
    after = await task.ledger_when(lambda entries: bool(entries[node]))
    assert after[node] == before
    await task.when(lambda t: not condition(t, "Degraded"))
    assert len(world.kubelet.ran) == 1


async def delete_shards(world: World, task: Task) -> None:
    for shard in await task.shards():
        await world.admin.delete(path("configmaps", world.namespace, shard["metadata"]["name"]))


async def lose_the_ledger(world: World, task: Task, operator: OperatorProcess) -> dict[str, Any]:
    await delete_shards(world, task)
    operator.restart()
    await world.join()
    found = await task.when(lambda t: stands(t, "Stalled", reason="LedgerLost"))
    ran = len(world.kubelet.ran)
    await holds_for(1.5, lambda: len(world.kubelet.ran) == ran)
    assert stands(found, "Ready", "False", "LedgerLost")
    assert stands(found, "Progressing", "False", "LedgerLost")
    assert "caretaker.dev/ledger" in condition(found, "Stalled")["message"]
    return found


async def test_a_lost_shard_stops_everything_until_it_is_decided_to_run_again(
    world: World, operator: OperatorProcess
) -> None:
    task = await remembered(world)
    await lose_the_ledger(world, task, operator)
    await task.annotate(ledger="rerun")
    found = await task.done(3)
    assert not condition(found, "Stalled")
    assert len(world.kubelet.ran) == 5
    await task.annotate(ledger=None)
    await task.done(3)
    assert len(await task.events("LedgerLost")) == 1


async def test_a_lost_shard_stops_everything_until_it_is_decided_to_take_the_work_as_done(
    world: World, operator: OperatorProcess
) -> None:
    task = await remembered(world)
    await a_later_second(world, await task.get())
    await lose_the_ledger(world, task, operator)
    await task.annotate(ledger="assume-done")
    found = await task.done(3)
    assert not condition(found, "Stalled")
    assert len(world.kubelet.ran) == 3, "only the node that joined meanwhile runs"
    assert reasons(await task.ledger()) == ["", "AssumedDone", "AssumedDone"]
    await task.annotate(ledger=None)
    (late,) = await world.join()
    await task.done(4)
    assert [node for node, _ in world.kubelet.ran[3:]] == [late]


def reasons(ledger: dict[str, Any]) -> list[str]:
    return sorted(entry.get("reason", "") for entry in ledger.values())


async def a_later_second(world: World, task: Json) -> None:
    """Nodes that join from now on were made after every node had succeeded: both are told in seconds."""
    done = datetime.fromisoformat(task["status"]["ledger"]["doneAt"])
    await world.until(lambda: datetime.now(UTC) > done + timedelta(seconds=1))


async def put_back(world: World, backup: Json) -> None:
    """As `kubectl replace --force` does with a file of an earlier time."""
    given = {"uid", "resourceVersion", "creationTimestamp"}  # by the API server
    meta = {key: value for key, value in backup["metadata"].items() if key not in given}
    await world.admin.delete(path("configmaps", world.namespace, meta["name"]))
    await world.admin.create(path("configmaps", world.namespace), {**backup, "metadata": meta})


@pytest.mark.parametrize(
    "restarted",
    [
        pytest.param(True, id="before a start", marks=pytest.mark.slow),
        pytest.param(False, id="under a running operator"),
    ],
)
@pytest.mark.parametrize("harm", ["restored", "emptied"])
async def test_a_ledger_that_was_restored_from_a_backup_or_emptied_repeats_no_run_that_may_not_be(
    world: World, operator: OperatorProcess, harm: str, restarted: bool
) -> None:
    await world.join()
    task = await world.task(runGuarantee="AtMostOnce", backoffLimit=0)
    await task.done(1)
    (backup,) = await task.shards()
    await world.join()
    await task.done(2)
    await world.delete_pods(await task.pods())
    await task.pods_when(lambda pods: not pods)
    if harm == "restored":
        await put_back(world, backup)
    else:
        data = dict.fromkeys((await task.shards())[0]["data"])
        await world.admin.patch(
            path("configmaps", world.namespace, backup["metadata"]["name"]), {"data": data}
        )
    if restarted:
        operator.restart()
    await world.join()
    found = await task.when(lambda t: stands(t, "Stalled", reason="LedgerLost"))
    why = "is an older copy" if harm == "restored" else "has 0 of 2 records"
    assert why in condition(found, "Ready")["message"]
    await holds_for(1.5, lambda: len(world.kubelet.ran) == 2)


async def test_in_mid_rollout_only_the_nodes_that_somebody_names_are_taken_to_have_run(
    world: World, operator: OperatorProcess
) -> None:
    ran, other = await world.join(2)
    world.kubelet.script(other, HOLD)
    task = await world.task(runGuarantee="AtMostOnce", backoffLimit=0)
    await task.counts(succeeded=1, active=1)
    await task.running()
    await task.ledger_when(lambda entries: entries.get(ran, {}).get("result") == "Succeeded")
    operator.kill9()
    await world.delete_pods(await task.pods())
    await delete_shards(world, task)
    operator.restart()
    await task.when(lambda t: stands(t, "Stalled", reason="LedgerLost"))
    await task.annotate(ledger="assume-done")
    found = await task.when(lambda t: "assume-done is not carried out" in condition(t, "Ready")["message"])
    assert "not every node had succeeded" in condition(found, "Ready")["message"]
    assert not await task.shards()
    world.kubelet.script(other, SUCCEED)
    await task.annotate(ledger=f"assume-done: {ran}")
    await task.done(2)
    assert [node for node, _ in world.kubelet.ran].count(ran) == 1
    assert (await task.ledger())[ran]["reason"] == "AssumedDone"


@pytest.mark.parametrize("restarted", [True, False], ids=["at a start", "under a running operator"])
async def test_a_shard_that_lost_its_label_is_found_by_its_owner_and_gets_it_back(
    world: World, operator: OperatorProcess, restarted: bool
) -> None:
    task = await remembered(world)
    (shard,) = await task.shards()
    url = path("configmaps", world.namespace, shard["metadata"]["name"])
    await world.admin.patch(url, {"metadata": {"labels": {"caretaker.dev/ledger": None}}})
    assert not await task.shards()
    if restarted:
        operator.restart()
    else:
        await world.join()
    entries = await task.ledger_when(lambda entries: len(entries) == (2 if restarted else 3))
    (found,) = await task.shards()
    assert found["metadata"]["uid"] == shard["metadata"]["uid"]
    assert found["metadata"]["labels"] == shard["metadata"]["labels"]
    assert found["data"].items() >= shard["data"].items()
    await task.done(len(entries))
    assert len(world.kubelet.ran) == len(entries)
    assert not await task.events("LedgerLost")


async def test_a_config_map_of_a_lost_shards_name_is_told_and_the_decision_waits_for_its_end(
    world: World, operator: OperatorProcess
) -> None:
    task = await remembered(world)
    (shard,) = await task.shards()
    name = shard["metadata"]["name"]
    url = path("configmaps", world.namespace, name)
    await world.admin.delete(url)
    await world.admin.create(
        path("configmaps", world.namespace), {"metadata": {"name": name}, "data": {"a": "b"}}
    )
    operator.restart()
    found = await task.when(lambda t: stands(t, "Degraded", reason="LedgerWriteRefused"))
    assert stands(found, "Stalled", reason="LedgerLost")
    assert name in condition(found, "Degraded")["message"]
    await task.annotate(ledger="assume-done")
    found = await task.when(lambda t: stands(t, "Ready", "False", "LedgerWriteRefused"))
    assert name in condition(found, "Ready")["message"]
    assert not condition(found, "Stalled")
    assert (await world.admin.get(url))["data"] == {"a": "b"}
    await world.admin.delete(url)
    found = await task.done(2)
    assert not condition(found, "Degraded")
    assert {entry["reason"] for entry in (await task.ledger()).values()} == {"AssumedDone"}
    assert len(world.kubelet.ran) == 2


@pytest.mark.parametrize("noticed", ["by a start", pytest.param("by a record", marks=pytest.mark.slow)])
async def test_a_shard_that_is_deleted_under_a_running_operator_is_missed_before_anything_starts(
    world: World, noticed: str
) -> None:
    """What the operator remembers of it proves nothing: another may have written it since."""
    *done, busy = await world.join(3)
    world.kubelet.script(busy, HOLD)
    task = await world.task()
    await task.counts(succeeded=2, active=1)
    await task.running()
    await task.ledger_when(lambda entries: set(done) == set(entries))
    await world.delete_pods([pod for pod in await task.pods() if node_of(pod) in done])
    await task.pods_when(lambda pods: len(pods) == 1)
    await delete_shards(world, task)
    if noticed == "by a start":
        await world.join()
    else:
        await world.kubelet.finish(busy)
    found = await task.when(lambda t: stands(t, "Stalled", reason="LedgerLost"))
    assert stands(found, "Ready", "False", "LedgerLost")
    assert await task.shards() == []
    assert len(world.kubelet.ran) == 3
    if noticed == "by a start":
        await world.kubelet.finish(busy)
    await task.annotate(ledger=f"assume-done: {', '.join(done)}")
    await task.done(4 if noticed == "by a start" else 3)
    assert len(world.kubelet.ran) == (4 if noticed == "by a start" else 3)


async def test_finished_pods_go_after_their_ttl_and_the_last_failed_one_stays_for_its_logs(
    world: World,
) -> None:
    good, bad = await world.join(2)
    world.kubelet.script(bad, fail(), fail())
    task = await world.task(backoffLimit=1, ttlSecondsAfterFinished=0)
    await task.counts(succeeded=1, failed=1)
    (left,) = await task.pods_when(lambda pods: len(pods) == 1)
    found = await task.get()
    assert left["metadata"]["name"] == found["status"]["failedNodes"][0]["podName"]
    world.kubelet.default = SUCCEED
    await task.annotate(rerun_at="2030-01-01T00:00:00Z")
    await task.done(2)
    await task.pods_when(lambda pods: not pods)
    assert {node: entry["result"] for node, entry in (await task.ledger()).items()} == {
        good: "Succeeded",
        bad: "Succeeded",
    }


async def test_without_a_ttl_each_node_keeps_its_last_pod(world: World) -> None:
    await world.join(2)
    task = await world.task()
    await task.done(2)
    await task.annotate(rerun_at="2030-01-01T00:00:00Z")
    await task.ledger_when(lambda entries: all(e["seq"] == 2 for e in entries.values()))
    await task.pods_when(lambda pods: sorted(p["metadata"]["name"][-2:] for p in pods) == ["-2", "-2"])


async def test_a_task_that_is_deleted_and_made_again_knows_nothing_of_its_namesake(world: World) -> None:
    """Fault 19 (system-upgrade-controller #36): owner UIDs are checked."""
    await world.join(2)
    task = await world.task()
    first = await task.done(2)
    await task.delete()
    await world.admin.wait_gone(task.url)
    again = await world.task()
    second = await again.done(2)
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert second["status"]["ledger"]["shards"] == 1
    assert second["status"]["ledger"]["recorded"] == 2
    assert len(world.kubelet.ran) == 4


async def test_a_task_made_again_waits_for_its_namesakes_terminating_pods(
    world: World, recorders: Recorders
) -> None:
    """Fault 27 (k8s#131684)."""
    (node,) = await world.join()
    world.kubelet.default = HOLD
    async with recorders() as record:
        task = await world.task()
        await task.running()
        world.kubelet.silent.add(node)
        await task.delete()
        await world.admin.wait_gone(task.url)
        await task.pods_when(lambda pods: all("deletionTimestamp" in p["metadata"] for p in pods))
        again = await world.task()
        found = await again.counts(blocked=1)
        assert found["status"]["blockedNodes"][0]["reason"] == "PredecessorTerminating"
        world.kubelet.default = SUCCEED
        world.kubelet.answer(node)
        await again.done(1)
        await record.settle()

    def is_live(pod: Any) -> bool:
        return pod["status"].get("phase") not in ("Succeeded", "Failed")

    assert record.peak(is_live).count == 1


async def test_deleting_a_task_takes_its_pods_and_its_ledger_along_and_no_finalizer_is_in_the_way(
    world: World,
) -> None:
    await world.join(2)
    task = await world.task()
    found = await task.done(2)
    assert not found["metadata"].get("finalizers")
    pods, shards = await task.pods(), await task.shards()
    for item in (*pods, *shards):
        assert not item["metadata"].get("finalizers")
    await task.delete()
    await world.gone(pods)
    for shard in shards:
        await world.admin.wait_gone(path("configmaps", world.namespace, shard["metadata"]["name"]))
