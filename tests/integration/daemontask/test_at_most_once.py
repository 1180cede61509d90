"""AtMostOnce on a real API server: whatever gets lost, no run is repeated, and people are told."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from testbed.admin import Json, path
from testbed.cluster import Cluster
from testbed.recorder import PodRecorder
from testing.apiproxy import ApiProxy
from testing.cli import Cli
from testing.customresource import condition, stands
from testing.faults import Action, Answer, LoseReply, Match, Reset, Run
from testing.kubelet import EVICTED, HOLD, OOM, Outcome, fail, rejected
from testing.operator import OperatorProcess
from testing.world import Task, World, holds_for, in_loop, node_of

Recorders = Callable[[], PodRecorder]

ONCE: Final[dict[str, Any]] = {"runGuarantee": "AtMostOnce", "backoffLimit": 0}


@pytest.fixture
def unscaled(
    operator: OperatorProcess, proxy: ApiProxy, namespace: str, tmp_path: Path
) -> Iterator[ApiProxy]:
    """The proxy, with an operator of unscaled times behind it; the shared one is paused meanwhile.

    A pass creates Pods for 10 s after it wrote their intents, and takes the others back. The scaled second is
    less than twenty Pods take on a busy machine.
    """
    kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")
    operator.pause()
    try:
        with OperatorProcess(kubeconfig, "unscaled", namespace=namespace, leader_elect=False):
            yield proxy
    finally:
        operator.resume()


def creates(world: World, **how: Any) -> Match:
    """The creation of this test's Pods, dry runs apart."""
    return Match(
        verb="create", resource="pods", namespace=world.namespace, where=lambda call: call.is_write, **how
    )


async def all_known(world: World, nodes: int, **spec: Any) -> Task:
    """A suspended task, once the operator knows so many nodes: one pass will start on all of them."""
    task = await world.task(suspend=True, **spec)
    await task.counts(desired=nodes)
    return task


async def failure(task: Task, timeout: float = 40.0) -> Json:
    """What status says of the one node that failed."""
    (found,) = (await task.counts(timeout, failed=1))["status"]["failedNodes"]
    return dict(found)


async def test_the_intent_stands_in_the_ledger_before_the_pod_is_created(
    world: World, proxy: ApiProxy
) -> None:
    names = await world.join(3)
    found: list[dict[str, Json]] = []

    async def look() -> None:
        found.append(await world.handle("t").ledger())

    task = await all_known(world, 3, **ONCE)
    with proxy.fault(creates(world), Run(run_before=in_loop(look))):
        await task.edit(suspend=False)
        await task.done(3)
    assert len(found) == 3
    for ledger in found:
        assert ledger.keys() == set(names)
    assert {(e["result"], e["reason"], bool(e["intent"])) for e in found[0].values()} == {
        ("Failed", "OutcomeUnknown", True)
    }
    ended = await task.ledger_when(lambda ledger: all(e["result"] == "Succeeded" for e in ledger.values()))
    assert not any("intent" in entry or "before" in entry for entry in ended.values())


async def test_a_run_that_somebody_deletes_is_not_repeated_until_it_is_asked_for(
    world: World, cluster: Cluster, recorders: Recorders, tmp_path: Path
) -> None:
    lost, good = await world.join(2)
    world.kubelet.script(lost, HOLD)
    async with recorders() as record:
        task = await world.task(**ONCE)
        await task.counts(succeeded=1, active=1)
        (pod,) = [p for p in await task.running() if node_of(p) == lost]
        await world.delete_pods([pod], grace=0)
        told = await failure(task)
        assert (told["nodeName"], told["reason"]) == (lost, "OutcomeUnknown")
        assert "rerun" in told["message"]
        event = await task.event("RunFailed")
        assert f"{lost} (OutcomeUnknown)" in event["message"]
        shown = await task.condition("Degraded", reason="NodesFailed")
        assert shown["message"]
        await holds_for(2, lambda: len(world.kubelet.ran) == 2)
        cli = Cli(cluster.kubeconfig, world.namespace)
        status = await cli("status", "daemontask", "t")
        assert "OutcomeUnknown" in status.out
        said = await cli("rerun", "daemontask", "t", "--nodes", lost)
        assert said.code == 0
        await task.done(2)
        await record.settle()
    assert record.runs_per_node() == {lost: 2, good: 1}
    keys = {p["metadata"]["annotations"]["caretaker.dev/run-key"] for p in [pod, *await task.pods()]}
    assert len(keys) == 3, "the re-run has a key of its own"


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        pytest.param(fail(3), "Error", id="an exit code"),
        pytest.param(OOM, "OOMKilled", id="its memory", marks=pytest.mark.slow),
        pytest.param(EVICTED, "Evicted", id="an eviction", marks=pytest.mark.slow),
        pytest.param(rejected("OutOfcpu"), "OutOfcpu", id="a rejection, which may be that of a second look"),
        pytest.param(
            Outcome("Failed", 137, "ContainerStatusUnknown", "The container could not be located"),
            "OutcomeUnknown",
            id="a reboot after which the kubelet finds no trace",
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_a_failure_is_the_last(world: World, outcome: Outcome, reason: str) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, outcome)
    task = await world.task(**ONCE)
    assert (await failure(task))["reason"] == reason
    await holds_for(3, lambda: len(world.kubelet.ran) == 1)
    assert (await task.ledger())[node]["result"] == "Failed"


@pytest.mark.parametrize(
    ("fault", "runs"),
    [
        pytest.param(LoseReply(), 1, id="after it was executed"),
        pytest.param(Reset(), 0, id="before it was executed", marks=pytest.mark.slow),
        pytest.param(Answer(500, "InternalError"), 0, id="by a 500", marks=pytest.mark.slow),
    ],
)
async def test_a_create_whose_answer_is_lost_is_sent_once(
    world: World, proxy: ApiProxy, recorders: Recorders, fault: Action, runs: int
) -> None:
    (node,) = await world.join()
    async with recorders() as record:
        with proxy.fault(creates(world), fault) as rule:
            task = await world.task(**ONCE)
            if runs:
                await task.done(1)
            else:
                assert (await failure(task))["reason"] == "OutcomeUnknown"
            assert len(rule.hits) == 1
        await holds_for(2, lambda: len(world.kubelet.ran) == runs)
        await record.settle()
    assert record.runs_per_node() == ({node: 1} if runs else {})


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Answer(403, "Forbidden", "exceeded quota: q"), id="a quota"),
        pytest.param(Answer(429, "TooManyRequests"), id="a flow schema", marks=pytest.mark.slow),
        pytest.param(
            Answer(500, "InternalError", 'Internal error occurred: failed calling webhook "w"'),
            id="a webhook that does not answer",
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_what_was_refused_never_ran_and_is_tried_again(
    world: World, proxy: ApiProxy, recorders: Recorders, fault: Action
) -> None:
    names = await world.join(4)
    async with recorders() as record:
        with proxy.fault(creates(world), fault) as rule:
            task = await world.task(**ONCE)
            await asyncio.to_thread(rule.wait, 1)
            # Taken back before the pass ends, so that the operator may be killed now.
            await task.when(lambda t: condition(t, "Degraded").get("reason") == "PodCreationRefused")
            await task.ledger_when(
                lambda ledger: bool(ledger) and not any("intent" in e for e in ledger.values())
            )
        await task.done(4)
        await record.settle()
    assert record.runs_per_node() == dict.fromkeys(names, 1)


async def test_a_pod_that_no_node_ever_got_makes_way_and_its_node_queues_again(
    world: World, proxy: ApiProxy
) -> None:
    (node,) = await world.join()
    await world.shrink(node)
    big = [{"name": "main", "image": "test:1", "resources": {"requests": {"cpu": "2"}}}]
    task = await world.task(template=world.template(containers=big), progressDeadlineSeconds=2, **ONCE)
    ours = Match(verb="delete", resource="pods", namespace=world.namespace)
    # Once it is gone: a Pod that gets its node while the deletion is on its way is not deleted, and runs.
    await asyncio.to_thread(proxy.ledger.wait, lambda c: ours.fits(c) and c.code == 200, 1, 40)
    await world.shrink(node, cpu="32")
    await task.done(1)
    assert len(world.kubelet.ran) == 1
    entry = (await task.ledger_when(lambda ledger: ledger[node]["result"] == "Succeeded"))[node]
    assert entry["seq"] > 1


async def test_a_pod_that_loses_its_label_is_unknown_until_it_has_it_back(world: World) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, HOLD)
    task = await world.task(**ONCE)
    (pod,) = await task.running()
    url = path("pods", world.namespace, pod["metadata"]["name"])
    await world.admin.patch(url, {"metadata": {"labels": {"caretaker.dev/daemontask": None}}})
    assert (await failure(task))["reason"] == "OutcomeUnknown"
    await world.admin.patch(url, {"metadata": {"labels": {"caretaker.dev/daemontask": "t"}}})
    await task.counts(active=1, failed=0)
    await world.kubelet.finish(node)
    await task.done(1)
    assert len(world.kubelet.ran) == 1


async def test_a_node_that_reboots_in_the_middle_of_a_run_runs_nothing_twice(world: World) -> None:
    """Even where reboots start runs: the first one is the run's own."""
    (node,) = await world.join()
    world.kubelet.script(node, HOLD)
    task = await world.task(rerunOn=["TemplateChange", "NodeReboot"], **ONCE)
    await task.running()
    await world.kubelet.reboot(node)
    await holds_for(1, lambda: len(world.kubelet.ran) == 1)
    await world.kubelet.finish(node, outcome=fail(137))
    assert (await failure(task))["reason"] == "Error"
    await holds_for(2, lambda: len(world.kubelet.ran) == 1)
    await world.kubelet.reboot(node)
    await task.done(1)
    assert len(world.kubelet.ran) == 2


async def test_an_entry_that_cannot_be_read_is_an_unknown_outcome(world: World, operator: Any) -> None:
    bad, good = await world.join(2)
    task = await world.task(ttlSecondsAfterFinished=0, **ONCE)
    await task.done(2)
    await task.pods_when(lambda pods: not pods)
    (shard,) = await task.shards()
    url = path("configmaps", world.namespace, shard["metadata"]["name"])
    operator.pause()
    try:
        await world.admin.patch(url, {"data": {bad: "?"}})
    finally:
        operator.resume()
    operator.restart()
    told = await failure(task)
    assert (told["nodeName"], told["reason"]) == (bad, "OutcomeUnknown")
    assert "ledger" in told["message"]
    assert [node for node, _ in world.kubelet.ran].count(good) == 1
    assert len(world.kubelet.ran) == 2


async def test_a_run_in_progress_is_covered_when_the_task_is_changed(world: World) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, HOLD)
    task = await world.task(backoffLimit=0)
    (pod,) = await task.running()
    assert not await task.ledger()
    await task.edit(runGuarantee="AtMostOnce")
    await task.ledger_when(lambda ledger: bool(ledger.get(node, {}).get("intent")))
    await world.delete_pods([pod], grace=0)
    assert (await failure(task))["reason"] == "OutcomeUnknown"
    assert len(world.kubelet.ran) == 1


@pytest.mark.parametrize(
    ("spec", "writes"),
    [
        pytest.param({}, 0, id="at least once", marks=pytest.mark.slow),
        pytest.param(ONCE, 1, id="at most once"),
    ],
)
async def test_twenty_starts_cost_one_write_of_the_ledger_or_none(
    world: World, unscaled: ApiProxy, spec: dict[str, Any], writes: int
) -> None:
    await world.join(20)
    world.kubelet.default = HOLD
    task = await all_known(world, 20, **spec)
    await task.edit(suspend=False)
    await task.running(20)
    found = unscaled.ledger.calls(
        lambda call: call.is_write and (call.resource, call.namespace) == ("configmaps", world.namespace)
    )
    assert len(found) == writes, "\n".join(map(str, found))
    await world.kubelet.finish_all()
    await task.done(20)
    assert stands(await task.get(), "Ready")
