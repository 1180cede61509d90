"""How many failed nodes are too many: `failurePolicy`."""

from datetime import UTC, datetime

from testbed.admin import Json
from testing.customresource import condition, stands
from testing.kubelet import HOLD, SUCCEED, fail
from testing.world import World

PAUSE = {"maxFailedNodes": 0, "action": "Pause"}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_continue_runs_the_other_nodes_and_then_stalls(world: World) -> None:
    bad, *_ = await world.join(4)
    world.kubelet.script(bad, fail())
    task = await world.task(parallelism=1, backoffLimit=0)
    found = await task.counts(failed=1, succeeded=3)
    assert stands(found, "Stalled", reason="NodesFailed")
    assert stands(found, "Degraded", reason="NodesFailed")


async def test_continue_within_its_limit_ends_ready_and_degraded(world: World) -> None:
    bad, *_ = await world.join(4)
    world.kubelet.script(bad, fail())
    task = await world.task(backoffLimit=0, failurePolicy={"maxFailedNodes": "25%"})
    found = await task.counts(failed=1, succeeded=3)
    assert stands(found, "Ready")
    assert stands(found, "Degraded", reason="NodesFailed")
    assert not condition(found, "Stalled")
    assert not condition(found, "Reconciling")


async def test_pause_starts_nothing_new_lets_active_pods_finish_and_an_edit_ends_it(world: World) -> None:
    """Fault 11 (kruise): a pause is in status only, and can be ended."""
    await world.join(4)
    world.kubelet.default = HOLD
    task = await world.task(parallelism=2, backoffLimit=0, failurePolicy=PAUSE)
    spec = (await task.counts(active=2))["spec"]
    await task.running(2)
    bad, good = (node for node, _ in world.kubelet.ran)
    await world.kubelet.finish(bad, outcome=fail())
    found = await task.when(lambda t: stands(t, "Ready", "False", "Paused"))
    assert stands(found, "Stalled", reason="NodesFailed")
    assert stands(found, "Progressing", "False", "Paused")
    assert (found["status"]["active"], found["status"]["pending"]) == (1, 2)
    await world.kubelet.finish(good)
    found = await task.counts(active=0, succeeded=1, failed=1, pending=2)
    assert found["spec"] == spec
    assert len(world.kubelet.ran) == 2
    assert len(await task.events("NodesFailed")) <= 1
    world.kubelet.default = SUCCEED
    await task.edit(failurePolicy={"maxFailedNodes": 1})
    found = await task.counts(succeeded=3, failed=1)
    assert stands(found, "Ready", "False", "NodesFailed")


async def test_resume_at_lets_a_paused_task_go_on_until_the_next_failure(world: World) -> None:
    """Fault 11 (kruise): resume works."""
    await world.join(3)
    world.kubelet.default = fail()
    task = await world.task(parallelism=1, backoffLimit=0, failurePolicy=PAUSE)
    await task.when(lambda t: stands(t, "Ready", "False", "Paused"))
    assert len(world.kubelet.ran) == 1
    world.kubelet.default = HOLD
    resumed = now()
    await task.annotate(resume_at=resumed)
    found = await task.counts(active=1)
    assert condition(found, "Ready")["reason"] != "Paused"
    await world.until(lambda: now() > resumed)  # ends are told in whole seconds
    await world.kubelet.finish_all(fail())
    await task.when(lambda t: stands(t, "Ready", "False", "Paused") and t["status"]["failed"] == 2)
    assert len(world.kubelet.ran) == 2


async def test_a_mended_template_ends_a_pause(world: World) -> None:
    await world.join(3)
    world.kubelet.default = fail()
    task = await world.task(parallelism=1, backoffLimit=0, failurePolicy=PAUSE)
    await task.when(lambda t: stands(t, "Ready", "False", "Paused"))
    world.kubelet.default = SUCCEED
    await task.edit(template=world.template(labels={"mended": "yes"}))
    found = await task.done(3)
    assert found["status"]["failedNodes"] == []
    assert not condition(found, "Stalled")


async def test_fail_deletes_pods_that_no_node_has_yet_and_lets_active_ones_finish(world: World) -> None:
    bad, good, full = await world.join(3)
    await world.shrink(full)
    world.kubelet.script(good, HOLD)
    world.kubelet.script(bad, HOLD)
    containers = [{"name": "main", "image": "test:1", "resources": {"requests": {"cpu": "2"}}}]
    policy = {"maxFailedNodes": 0, "action": "Fail"}
    template = world.template(containers=containers)
    task = await world.task(template=template, backoffLimit=0, failurePolicy=policy)
    await task.counts(active=2, blocked=1)
    await task.running(2)
    await world.kubelet.finish(bad, outcome=fail())
    found = await task.counts(active=1, failed=1)
    assert stands(found, "Stalled", reason="NodesFailed")
    await task.pods_when(lambda pods: {on(pod) for pod in pods} == {bad, good})
    await world.kubelet.finish(good)
    found = await task.counts(active=0, failed=1, succeeded=1)
    assert stands(found, "Ready", "False", "NodesFailed")


def on(pod: Json) -> str:
    return str(pod["metadata"]["annotations"]["caretaker.dev/node-name"])
