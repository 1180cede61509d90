"""Schedules and budgets against a real API server: ticks that come, that were missed, that are held back."""

import time
from datetime import datetime

import pytest

from testbed.admin import Json, path
from testing.apiproxy import ApiProxy
from testing.customresource import condition, stands
from testing.kubelet import HOLD, SUCCEED
from testing.schedules import AT, YEARLY, last_seen_years_ago, next_year, this_year
from testing.world import Task, World, holds_for

MINUTE = 60.0


async def yearly(world: World, **spec: object) -> Task:
    """It has run this year, after a long outage."""
    task = await world.task(schedule=YEARLY, **spec)
    await miss_ticks(world, task)
    return task


async def miss_ticks(world: World, task: Task) -> None:
    """One of the last years' is caught up with then."""
    await task.condition("Ready", reason="AwaitingSchedule")
    await last_seen_years_ago(world.admin, world.namespace, task.name)
    await task.edit(minSuccessSeconds=0, progressDeadlineSeconds=1799)


async def test_after_a_long_outage_every_node_runs_once_and_the_schedule_goes_on(world: World) -> None:
    """Fault 13 (kruise#1289)."""
    await world.join(2)
    task = await yearly(world)
    done = await task.done(2)
    assert len(world.kubelet.ran) == 2
    status = done["status"]
    assert (status["lastScheduleTime"], status["nextScheduleTime"]) == (this_year(), next_year())
    (missed,) = status["scheduleHistory"]
    assert missed == {"scheduleTime": "2020-01-01T00:00:00Z", "desired": 2, "succeeded": 0, "failed": 0}
    assert {pod["metadata"]["annotations"][AT] for pod in await task.pods()} == {this_year()}
    assert not stands(done, "Reconciling")


async def test_the_same_tick_never_runs_twice_though_its_pods_are_deleted(world: World) -> None:
    """Fault 12 (kruise#862, #1039, #1488)."""
    await world.join(2)
    task = await yearly(world)
    await task.done(2)
    pods = await task.pods()
    await world.delete_pods(pods)
    await world.gone(pods)
    (later,) = await world.join()  # runs for the same tick, and makes every node be looked at
    await task.done(3)
    await task.edit(parallelism=2)
    await task.done(3)
    assert len(world.kubelet.ran) == 3
    (made,) = await task.pods()
    assert (made["spec"]["nodeName"], made["metadata"]["annotations"][AT]) == (later, this_year())


@pytest.mark.slow
async def test_a_tick_comes_by_itself_and_nothing_is_written_before_it(world: World, proxy: ApiProxy) -> None:
    await world.join(2)
    await world.until(lambda: time.time() % MINUTE < 40)
    task = await world.task(schedule="* * * * *")
    waiting = await task.condition("Ready", reason="AwaitingSchedule")
    told = (await task.get())["status"]["nextScheduleTime"]
    assert told in waiting["message"]
    due = datetime.fromisoformat(told).timestamp()
    since = time.time()

    def quiet() -> bool:
        mine = proxy.ledger.writes(since=since)
        return not [call for call in mine if call.namespace == world.namespace]

    await holds_for(max(due - time.time() - 2, 0), quiet)
    assert await task.pods() == []
    done = await task.when(lambda t: t["status"]["succeeded"] == 2, 2 * MINUTE)
    assert done["status"]["lastScheduleTime"] >= told
    started = min(datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) for pod in await task.pods())
    assert 0 <= started.timestamp() - due < 5
    await task.edit(suspend=True)
    stopped = await task.when(lambda t: stands(t, "Suspended"))
    assert stopped["status"].get("nextScheduleTime") is None


async def test_a_schedule_that_never_comes_is_an_invalid_spec(world: World) -> None:
    await world.join()
    task = await world.task(schedule="0 0 30 2 *")
    told = await task.condition("Stalled", reason="InvalidSpec")
    assert told["message"].startswith("spec.schedule: '0 0 30 2 *' never comes")
    await task.edit(schedule=YEARLY)
    await task.condition("Ready", reason="AwaitingSchedule")


async def test_replace_deletes_the_pod_that_is_active_when_its_node_is_due_again(world: World) -> None:
    await world.join(2)
    world.kubelet.default = HOLD
    task = await yearly(world, concurrencyPolicy="Replace")
    first = {pod["metadata"]["uid"] for pod in await task.running(2)}
    world.kubelet.default = SUCCEED
    await task.put_template(world.template(terminationGracePeriodSeconds=1))
    await task.done(2)
    entries = await task.ledger_when(lambda found: {e["podUID"] for e in found.values()}.isdisjoint(first))
    assert {entry["result"] for entry in entries.values()} == {"Succeeded"}
    assert len(world.kubelet.ran) == 4


async def test_rotating_a_secret_runs_nothing_again(world: World) -> None:
    """Fault 22 (system-upgrade-controller #245)."""
    secret = path("secrets", world.namespace)
    await world.admin.create(secret, {"metadata": {"name": "key"}, "stringData": {"key": "old"}})
    await world.join(2)
    container = {"name": "main", "image": "test:1", "envFrom": [{"secretRef": {"name": "key"}}]}
    task = await yearly(world, template=world.template(containers=[container]))
    before = await task.done(2)
    await world.admin.patch(path("secrets", world.namespace, "key"), {"stringData": {"key": "new"}})
    await world.join()  # so that the task is looked at again
    after = await task.done(3)
    assert after["status"]["currentRevision"] == before["status"]["currentRevision"]
    assert len(world.kubelet.ran) == 3


async def test_a_budget_limits_how_many_run_and_says_so(world: World) -> None:
    await world.join(3)
    world.kubelet.default = HOLD
    task = await world.task(budgets=[{"nodes": "34%"}, {"nodes": 1}])
    held = await task.counts(active=1, pending=2)
    assert "a budget lets 1 node(s) run at a time" in condition(held, "Ready")["message"]
    assert stands(held, "Reconciling")
    assert stands(held, "Progressing", reason="RollingOut")
    await task.edit(budgets=[{"nodes": "2"}])
    await task.counts(active=2, pending=1)
    await task.edit(budgets=[{"nodes": 0}])
    await task.condition("Progressing", "False", "HeldByBudget")
    await task.event("HeldByBudget")
    await task.edit(budgets=None)
    await task.counts(active=3, pending=0)


@pytest.mark.slow
async def test_a_window_that_closes_lets_the_rollout_go_on_by_itself(world: World) -> None:
    """Closed to it are the first 30 s of every minute."""
    await world.join(2)
    await world.until(lambda: time.time() % MINUTE < 15)
    task = await world.task(budgets=[{"nodes": 0, "schedule": "* * * * *", "duration": "30s"}])
    held = await task.when(lambda t: stands(t, "Progressing", "False", "HeldByBudget"))
    until = _until(held)
    assert until % MINUTE == 30
    assert await task.pods() == []
    await task.done(2, 2 * MINUTE)
    started = [datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) for pod in await task.pods()]
    assert all(0 <= at.timestamp() - until < 10 for at in started)


def _until(task: Json) -> float:
    words = condition(task, "Progressing")["message"].partition(" until ")[2]
    return datetime.fromisoformat(words.partition(";")[0]).timestamp()
