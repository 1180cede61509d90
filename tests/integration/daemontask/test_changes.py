"""What a person changes while a task runs: the template, its knobs, suspend, forced re-runs."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from testbed.recorder import PodRecorder
from testing.apiproxy import ApiProxy
from testing.customresource import condition, stands
from testing.faults import Match, Run
from testing.kubelet import HOLD, SUCCEED, fail
from testing.world import World, holds_for, in_loop

Recorders = Callable[[], PodRecorder]


def moment(seconds: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---------------------------------------------------------------- template


async def test_a_changed_template_runs_again_on_every_node(world: World) -> None:
    names = await world.join(3)
    task = await world.task()
    first = await task.done(3)
    await task.edit(template=world.template(labels={"version": "2"}))
    second = await task.done(3)
    assert first["status"]["currentRevision"] != second["status"]["currentRevision"]
    assert second["status"]["completedRevision"] == second["status"]["currentRevision"]
    assert sorted(node for node, _ in world.kubelet.ran) == sorted(names * 2)


async def test_a_change_during_a_run_waits_for_the_active_pod_and_stores_its_result_under_the_old_key(
    world: World, recorders: Recorders
) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, HOLD)
    async with recorders() as record:
        task = await world.task()
        old = (await task.counts(active=1))["status"]["currentRevision"]
        await task.running()
        await task.edit(template=world.template(labels={"version": "2"}))
        found = await task.counts(active=1)
        new = found["status"]["currentRevision"]
        assert new != old
        assert stands(found, "Reconciling")
        await holds_for(1.5, lambda: len(world.kubelet.ran) == 1)
        await world.kubelet.finish(node)
        stored = await task.ledger_when(lambda entries: node in entries)
        assert (stored[node]["revision"], stored[node]["result"]) == (old, "Succeeded")
        await task.done(1)
        await task.ledger_when(lambda entries: entries[node]["revision"] == new)
        await record.settle()
    assert record.max_active_per_place() == 1
    assert record.runs_per_node("Succeeded") == {node: 2}


async def test_a_failure_of_the_old_template_costs_the_new_one_no_retries(world: World) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, HOLD, fail(), SUCCEED)
    task = await world.task(backoffLimit=1)
    await task.counts(active=1)
    await task.edit(template=world.template(labels={"version": "2"}))
    await world.kubelet.finish(node, outcome=fail())
    await task.done(1)
    entries = await task.ledger_when(lambda entries: entries[node]["result"] == "Succeeded")
    assert entries[node]["attempts"] == 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"parallelism": 1}, id="parallelism"),
        pytest.param({"backoffLimit": 9}, id="backoffLimit", marks=pytest.mark.slow),
        pytest.param({"activeDeadlineSeconds": 99}, id="activeDeadlineSeconds", marks=pytest.mark.slow),
        pytest.param({"ttlSecondsAfterFinished": 9999}, id="ttlSecondsAfterFinished", marks=pytest.mark.slow),
        pytest.param({"rerunOn": ["TemplateChange", "NodeReboot"]}, id="rerunOn"),
        pytest.param({"suspend": True}, id="suspend", marks=pytest.mark.slow),
        pytest.param({"failurePolicy": {"action": "Pause"}}, id="failurePolicy"),
    ],
)
async def test_a_knob_outside_the_template_never_runs_anything_again(
    world: World, change: dict[str, object]
) -> None:
    await world.join(2)
    task = await world.task()
    before = await task.done(2)
    await task.edit(**change)
    after = await task.when(lambda t: stands(t, "Ready"))
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    assert after["status"]["currentRevision"] == before["status"]["currentRevision"]
    assert after["status"]["succeeded"] == 2
    assert len(world.kubelet.ran) == 2


async def test_with_an_empty_rerun_on_a_changed_template_runs_on_new_nodes_only(world: World) -> None:
    await world.join(2)
    task = await world.task(rerunOn=[])
    await task.done(2)
    await task.edit(template=world.template(labels={"version": "2"}))
    await task.done(2)
    (late,) = await world.join()
    await task.done(3)
    assert [node for node, _ in world.kubelet.ran[2:]] == [late]


async def test_an_edit_while_a_pass_runs_is_not_lost(world: World, proxy: ApiProxy) -> None:
    """Fault 36 (kopf #1178): the edit comes between a pass's reading and its status write."""
    await world.join(2)
    task = world.handle("t")

    async def edit() -> None:
        await task.edit(template=world.template(labels={"version": "2"}))

    match = Match(
        verb="patch", resource="daemontasks", subresource="status", namespace=world.namespace, times=1
    )
    with proxy.fault(match, Run(run_before=in_loop(edit))) as rule:
        await world.task()
        await task.when(lambda t: bool(t["metadata"]["generation"] == 2))
        found = await task.done(2)
    assert len(rule.hits) == 1
    assert found["metadata"]["generation"] == 2
    revision = found["status"]["currentRevision"]
    await task.ledger_when(lambda entries: {entry["revision"] for entry in entries.values()} == {revision})


# ---------------------------------------------------------------- suspend


async def test_a_suspended_task_starts_nothing_and_its_active_pods_finish(world: World) -> None:
    await world.join(3)
    world.kubelet.default = HOLD
    task = await world.task(parallelism=1)
    await task.counts(active=1)
    await task.edit(suspend=True)
    found = await task.counts(active=1, pending=2)
    assert stands(found, "Suspended")
    await world.kubelet.finish_all()
    found = await task.counts(active=0, succeeded=1, pending=2)
    assert stands(found, "Ready", "True", "Suspended")
    assert stands(found, "Progressing", "False", "Suspended")
    assert not condition(found, "Reconciling")
    assert not condition(found, "Stalled")
    await task.event("Suspended")
    await task.edit(suspend=False)
    found = await task.done(3)
    assert not condition(found, "Suspended")
    await task.event("Resumed")
    assert len(await task.events("Suspended")) == 1
    assert len(await task.events("Resumed")) == 1


async def test_whatever_is_asked_of_a_suspended_task_is_caught_up_by_one_run(world: World) -> None:
    (node,) = await world.join()
    task = await world.task()
    await task.done(1)
    await task.edit(suspend=True)
    await task.annotate(rerun_at=moment(1))
    await task.edit(template=world.template(labels={"version": "2"}))
    await task.annotate(rerun_at=moment(2))
    await task.counts(pending=1)
    await task.edit(suspend=False)
    await task.done(1)
    await holds_for(1.5, lambda: len(world.kubelet.ran) == 2)
    assert [on for on, _ in world.kubelet.ran] == [node, node]


# ---------------------------------------------------------------- re-runs


async def test_rerun_at_runs_again_on_every_node_once_and_removing_it_changes_nothing(world: World) -> None:
    await world.join(2)
    task = await world.task()
    await task.done(2)
    await task.annotate(rerun_at=moment())
    await task.ledger_when(lambda entries: all(e["seq"] == 2 for e in entries.values()))
    found = await task.done(2)
    assert found["status"]["completedRevision"] == found["status"]["currentRevision"]
    assert not condition(found, "Reconciling")
    await task.annotate(rerun_at=None)
    await holds_for(1.5, lambda: len(world.kubelet.ran) == 4)


async def test_a_re_run_leaves_ready_true(world: World) -> None:
    await world.join(1)
    task = await world.task()
    await task.done(1)
    world.kubelet.default = HOLD
    await task.annotate(rerun_at=moment())
    found = await task.counts(active=1)
    assert stands(found, "Ready", "True", "Running")
    assert not condition(found, "Reconciling")


async def test_rerun_nodes_runs_again_on_those_nodes_only(world: World) -> None:
    a, b, c = await world.join(3)
    task = await world.task()
    await task.done(3)
    await task.annotate(rerun_nodes=json.dumps({a: moment(), c: moment()}))
    await task.ledger_when(lambda entries: entries[a]["seq"] == entries[c]["seq"] == 2)
    await task.done(3)
    assert (await task.ledger())[b]["seq"] == 1
    assert sorted(node for node, _ in world.kubelet.ran[3:]) == sorted([a, c])


async def test_a_failed_node_starts_afresh_when_it_is_re_run(world: World) -> None:
    bad, _ = await world.join(2)
    world.kubelet.script(bad, fail(), fail(), fail())
    task = await world.task(backoffLimit=0)
    await task.counts(failed=1, succeeded=1)
    await task.edit(backoffLimit=3)
    await task.counts(failed=1, succeeded=1)
    await task.annotate(rerun_nodes=json.dumps({bad: moment()}))
    await task.done(2)
    assert (await task.ledger())[bad]["attempts"] == 2


@pytest.mark.parametrize(
    ("mark", "value"),
    [
        pytest.param("rerun_at", "tomorrow", id="rerun-at that is no time", marks=pytest.mark.slow),
        pytest.param("rerun_nodes", "node-a", id="rerun-nodes that is no JSON"),
        pytest.param(
            "rerun_nodes",
            '{"node-a": "soon"}',
            id="rerun-nodes with a time that is none",
            marks=pytest.mark.slow,
        ),
        pytest.param("resume_at", "2026-13-01T00:00:00Z", id="resume-at in a thirteenth month"),
        pytest.param("ledger", "forget", id="a ledger decision that does not exist", marks=pytest.mark.slow),
        pytest.param("rerun_node", "node-a", id="an annotation that means nothing", marks=pytest.mark.slow),
    ],
)
async def test_an_annotation_that_cannot_be_read_is_told_and_ignored(
    world: World, mark: str, value: str
) -> None:
    await world.join(1)
    task = await world.task()
    await task.done(1)
    await task.annotate(**{mark: value})
    told = await task.condition("Degraded", reason="InvalidAnnotation")
    assert f"caretaker.dev/{mark.replace('_', '-')}" in told["message"]
    assert stands(await task.get(), "Ready")
    await task.annotate(**{mark: None})
    await task.when(lambda t: not condition(t, "Degraded"))
    assert len(world.kubelet.ran) == 1


async def test_pods_say_why_they_were_started(world: World) -> None:
    (node,) = await world.join()
    task = await world.task()
    await task.done(1)
    await task.annotate(rerun_at=moment())
    await task.ledger_when(lambda entries: entries[node]["seq"] == 2)
    last = (await task.pods())[-1]
    assert last["metadata"]["annotations"]["caretaker.dev/trigger"] == "Rerun"
