"""What stands in status, in the Events, in the metrics and on the Pods."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from caretaker.daemontask.pods import pod_name
from testbed.admin import Json, path
from testing.customresource import condition, stands
from testing.kstatus import word as kstatus
from testing.kubelet import HOLD, IMAGE_PULL, fail
from testing.operator import OperatorProcess
from testing.world import COUNTS, World, check_sum, holds_for

ABNORMAL = ("Reconciling", "Stalled", "Degraded", "Suspended")


async def test_kstatus_says_in_progress_while_a_revision_rolls_out_and_then_current(world: World) -> None:
    await world.join(2)
    world.kubelet.default = HOLD
    task = await world.task()
    assert kstatus(await task.get()) == "InProgress"
    found = await task.counts(active=2)
    assert kstatus(found) == "InProgress"
    assert stands(found, "Reconciling", reason="RollingOut")
    assert stands(found, "Ready", "False", "RollingOut")
    assert stands(found, "Progressing", reason="RollingOut")
    await world.kubelet.finish_all()
    found = await task.done(2)
    assert kstatus(found) == "Current"
    assert stands(found, "Ready", reason="Succeeded")
    assert stands(found, "Progressing", reason="RolloutComplete")
    world.kubelet.default = HOLD
    await world.join()
    found = await task.counts(active=1)
    assert kstatus(found) == "Current"
    assert stands(found, "Ready", reason="Running")


async def test_kstatus_says_failed_when_retries_are_used_up(world: World) -> None:
    await world.join()
    world.kubelet.default = fail()
    task = await world.task(backoffLimit=0)
    assert kstatus(await task.counts(failed=1)) == "Failed"


async def test_kstatus_says_current_of_a_suspended_task_and_in_progress_without_nodes(world: World) -> None:
    suspended = await world.task("suspended", suspend=True)
    lonely = await world.task("lonely")
    assert kstatus(await suspended.when(lambda t: stands(t, "Suspended"))) == "Current"
    assert kstatus(await lonely.when(lambda t: stands(t, "Ready", "False"))) == "InProgress"


async def test_every_condition_is_about_the_generation_that_was_seen_and_abnormal_ones_are_never_false(
    world: World,
) -> None:
    await world.join(2)
    task = await world.task()
    await task.done(2)
    for change in ({"suspend": True}, {"suspend": False}, {"parallelism": 1}):
        await task.edit(**change)
        found = await task.when(lambda t: stands(t, "Ready"))
        generation = found["metadata"]["generation"]
        assert found["status"]["observedGeneration"] == generation
        conditions = found["status"]["conditions"]
        assert {c["observedGeneration"] for c in conditions} == {generation}
        assert all(c["status"] == "True" for c in conditions if c["type"] in ABNORMAL)
        assert {"Ready", "SpecValid", "Progressing"} <= {c["type"] for c in conditions}


async def test_a_conditions_time_moves_only_when_its_status_does(world: World) -> None:
    await world.join(1)
    task = await world.task()
    first = condition(await task.done(1), "Ready")["lastTransitionTime"]
    await world.until(lambda: stamp() > first)
    await task.edit(parallelism=1)
    found = await task.when(lambda t: stands(t, "Ready"))
    assert condition(found, "Ready")["lastTransitionTime"] == first
    await task.edit(template=world.template(nodeSelector={"no-such": "label"}))
    gone = await task.when(lambda t: stands(t, "Ready", "False", "NoMatchingNodes"))
    assert condition(gone, "Ready")["lastTransitionTime"] > first


def stamp(seconds: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_the_counts_add_up_at_every_write(world: World) -> None:
    bad, *_ = await world.join(6)
    await world.join(1, ready=False)
    world.kubelet.script(bad, fail(), fail())
    seen: list[Json] = []

    def note(task: Json) -> bool:
        seen.append(task)
        return bool(task["status"]["succeeded"] == 5 and task["status"]["failed"] == 1)

    task = await world.task(parallelism=2, backoffLimit=1, suspend=True)
    await task.counts(desired=7)  # the operator has heard of all nodes
    await task.edit(suspend=False)
    await task.when(note)
    assert len(seen) >= 3
    for state in seen:
        check_sum(state)
        assert state["status"]["desired"] == 7
        assert all(state["status"][name] >= 0 for name in COUNTS)


@pytest.mark.slow
async def test_the_size_of_status_does_not_grow_with_the_number_of_nodes(world: World) -> None:
    """Fault 34 (NodeWright)."""
    world.kubelet.default = fail(1, "m" * 1000)
    names = await world.join(55)
    await world.nodes.add(55, ready=False)
    task = await world.task(backoffLimit=0)
    found = await task.counts(failed=55, blocked=55)
    status = found["status"]
    assert [n["nodeName"] for n in status["failedNodes"]] == sorted(names)[:50]
    assert (status["failedNodesOmitted"], status["blockedNodesOmitted"]) == (5, 5)
    assert len(status["blockedNodes"]) == 50
    assert len(json.dumps(status)) < 50 * 2 * 600


async def test_events_come_once_for_each_transition(world: World) -> None:
    """Fault 11 (kruise): at most one event per transition."""
    names = await world.join(3)
    world.kubelet.script(names[0], fail(), fail())
    task = await world.task(backoffLimit=1, failurePolicy={"maxFailedNodes": 1})
    await task.counts(succeeded=2, failed=1)
    await task.edit(suspend=True)
    await task.event("Suspended")
    await task.edit(suspend=False)
    await task.event("Resumed")
    await task.annotate(rerun_at=stamp(1))
    await task.done(3)
    await task.event("RolloutComplete")
    await task.event("RunSucceeded", count=2)
    counted: dict[str, int] = {}
    for event in await task.events():
        counted[event["reason"]] = counted.get(event["reason"], 0) + 1
        assert event["source"]["component"] == "caretaker"
    assert counted["RolloutComplete"] == 1
    assert counted["Suspended"] == counted["Resumed"] == 1
    assert counted["RunFailed"] == 1
    assert counted["RunStarted"] == 2  # the template's, the re-run's
    assert counted["RunSucceeded"] == 2
    assert sum(counted.values()) <= 8


@pytest.mark.slow
async def test_a_rollout_one_by_one_posts_no_event_per_node(world: World, operator: OperatorProcess) -> None:
    bad = (await world.join(12))[:4]
    for name in bad:
        world.kubelet.script(name, fail())
    policy = {"maxFailedNodes": 4}
    task = await world.task(parallelism=1, minSuccessSeconds=1, backoffLimit=0, failurePolicy=policy)
    await task.when(lambda t: t["status"]["succeeded"] >= 2)
    operator.restart()
    await task.counts(succeeded=8, failed=4)
    await task.event("RolloutComplete")
    await task.event("RunSucceeded")
    reasons = sorted(event["reason"] for event in await task.events())
    assert reasons == ["RolloutComplete", "RunFailed", "RunStarted", "RunSucceeded"]


async def test_a_restart_of_the_operator_posts_no_event_again(
    world: World, operator: OperatorProcess
) -> None:
    await world.join(2)
    task = await world.task()
    await task.done(2)
    await task.event("RolloutComplete")
    before = [event["metadata"]["name"] for event in await task.events()]
    operator.restart()
    await world.join()
    await task.done(3)
    after = await task.events("RolloutComplete")
    assert len(after) == 1
    assert after[0]["metadata"]["name"] in before


async def test_metrics_tell_the_nodes_by_state_and_go_with_the_task(
    world: World, operator: OperatorProcess
) -> None:
    bad, *_ = await world.join(3)
    world.kubelet.script(bad, fail())

    def nodes(state: str) -> float:
        return operator.metric("caretaker_daemontask_nodes", namespace=world.namespace, name="t", state=state)

    def ended() -> float:
        return operator.metric("caretaker_daemontask_runs_total", result="Succeeded")

    runs = ended()
    created = operator.metric("caretaker_api_requests_total", verb="create", resource="pods")
    task = await world.task(backoffLimit=0)
    await task.counts(succeeded=2, failed=1)
    await world.until(lambda: nodes("succeeded") == 2)
    assert (nodes("desired"), nodes("failed"), nodes("active")) == (3, 1, 0)
    # The ledger is written once a second, and a run counts once it stands there.
    await world.until(
        lambda: operator.metric("caretaker_daemontask_runs_total", result="Succeeded") >= runs + 2
    )
    assert operator.metric("caretaker_daemontask_runs_total", result="Succeeded") == runs + 2
    writes = operator.metric("caretaker_api_requests_total", verb="create", resource="pods")
    assert writes - created == 3 + 1  # the dry run of the template
    assert operator.metric("caretaker_daemontask_run_duration_seconds_count") >= 3
    assert operator.metric("caretaker_reconcile_seconds_count", kind="DaemonTask") > 0
    await task.delete()
    series = f'namespace="{world.namespace}"'
    await world.until(lambda: not any(series in name for name in operator.metrics()))


async def test_a_pod_carries_what_its_run_is_for(world: World) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, fail())
    containers = [
        {"name": "main", "image": "test:1", "env": [{"name": "MINE", "value": "on $(NODE_NAME)"}]},
        {"name": "side", "image": "test:1", "env": [{"name": "NODE_NAME", "value": "chosen"}]},
    ]
    first = [{"name": "first", "image": "test:1"}]
    template = world.template(containers=containers, initContainers=first, labels={"mine": "yes"})
    task = await world.task(template=template)
    found = await task.done(1)
    pods = await task.pods()
    assert len(pods) == 2
    uid = found["metadata"]["uid"]
    keys = set()
    for attempt, pod in enumerate(pods, 1):
        meta = pod["metadata"]
        marks, labels = meta["annotations"], meta["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "caretaker"
        assert labels["caretaker.dev/daemontask"] == "t"
        assert labels["caretaker.dev/revision"] == found["status"]["currentRevision"]
        assert labels["mine"] == "yes"
        assert marks["caretaker.dev/node-name"] == node
        assert marks["caretaker.dev/node-uid"] == await world.nodes.uid(node)
        assert marks["caretaker.dev/attempt"] == marks["caretaker.dev/seq"] == str(attempt)
        assert marks["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"
        (owner,) = meta["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (uid, True)
        keys.add(marks["caretaker.dev/run-key"])
        env = {
            container["name"]: {variable["name"]: variable for variable in container["env"]}
            for container in (*pod["spec"]["containers"], *pod["spec"]["initContainers"])
        }
        for name in ("main", "first"):
            assert env[name]["NODE_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
            assert env[name]["DAEMONTASK_RUN_KEY"]["value"] == marks["caretaker.dev/run-key"]
            assert env[name]["DAEMONTASK_ATTEMPT"]["value"] == str(attempt)
        assert env["side"]["NODE_NAME"]["value"] == "chosen"
        order = [variable["name"] for variable in pod["spec"]["containers"][0]["env"]]
        assert order.index("NODE_NAME") < order.index("MINE")
        assert pod["spec"]["restartPolicy"] == "Never"
        assert not pod["spec"].get("nodeSelector", {}).get("kubernetes.io/hostname")
    assert len(keys) == 1


async def test_a_template_may_keep_the_autoscaler_away_from_its_nodes(world: World) -> None:
    await world.join()
    mark = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    template = {**world.template(), "metadata": {"annotations": {mark: "false"}}}
    task = await world.task(template=template)
    await task.done(1)
    (pod,) = await task.pods()
    assert pod["metadata"]["annotations"][mark] == "false"


async def test_a_foreign_pod_with_our_name_is_left_alone_told_and_the_next_name_used(world: World) -> None:
    await world.join()
    task = await world.task(suspend=True)
    found = await task.when(lambda t: stands(t, "Suspended"))
    node = world.nodes.names[0]
    name = pod_name("t", found["metadata"]["uid"], await world.nodes.uid(node), 1)
    foreign = {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "test:1"}], "nodeSelector": {"no": "node"}},
    }
    made = await world.admin.create(path("pods", world.namespace), foreign)
    world.kubelet.default = HOLD
    await task.edit(suspend=False)
    found = await task.when(lambda t: stands(t, "Degraded", reason="NameConflict"))
    assert name in condition(found, "Degraded")["message"]
    await world.kubelet.finish_all()
    await task.done(1)
    (pod,) = await task.pods()
    assert pod["metadata"]["name"] == name.removesuffix("-1") + "-2"
    still = await world.admin.get(path("pods", world.namespace, name))
    assert still["metadata"]["uid"] == made["metadata"]["uid"]
    assert len(await task.events("NameConflict")) == 1
    await task.when(lambda t: not condition(t, "Degraded"))


@pytest.mark.parametrize("stuck", [pytest.param(True, id="stuck"), pytest.param(False, id="in time")])
async def test_the_progress_deadline_is_told_once_and_only_when_it_passes(world: World, stuck: bool) -> None:
    await world.join()
    world.kubelet.default = IMAGE_PULL
    task = await world.task(progressDeadlineSeconds=1 if stuck else 600)
    await task.counts(active=1)
    if stuck:
        await task.condition("Progressing", "False", "ProgressDeadlineExceeded")
        await task.event("ProgressDeadlineExceeded")

    async def once() -> bool:
        return len(await task.events("ProgressDeadlineExceeded")) == int(stuck)

    await holds_for(2, once)
