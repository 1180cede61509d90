"""spec.dependsOn: tasks that run one after the other on each node."""

from typing import Any

from testbed.admin import Admin, Json
from testbed.paths import CHECKOUT
from testing import manifests
from testing.apiproxy import ApiProxy
from testing.customresource import condition, stands
from testing.faults import Match, Stall
from testing.kubelet import HOLD, SUCCEED, fail
from testing.world import Task, World, holds_for, node_of

FIRST = [{"name": "first"}]


async def second_task(world: World, **spec: Any) -> Task:
    return await world.task("second", dependsOn=FIRST, **spec)


async def nodes_of(task: Task) -> list[str]:
    return [node_of(pod) for pod in await task.pods()]


async def says(task: Task, words: str, progressing: str = "True") -> Json:
    """The task once it waits for another one, with these words."""

    def holds(found: Json) -> bool:
        waits = stands(found, "Progressing", progressing, "AwaitingDependency")
        return waits and words in condition(found, "Ready")["message"]

    return await task.when(holds)


async def test_each_node_runs_the_second_task_once_the_first_has_succeeded_there(world: World) -> None:
    a, b = await world.join(2)
    world.kubelet.default = HOLD
    first = await world.task("first")
    second = await second_task(world)
    await first.running(2)
    found = await says(second, "2 node(s) wait for DaemonTask first")
    assert stands(found, "Ready", "False", "AwaitingDependency")
    assert stands(found, "Reconciling")
    await holds_for(1.0, lambda: not_begun(second))
    await world.kubelet.finish(a)
    await second.running(1)
    found = await second.counts(active=1, pending=1)
    assert "1 node(s) wait for DaemonTask first" in condition(found, "Ready")["message"]
    assert await nodes_of(second) == [a]
    world.kubelet.default = SUCCEED
    await world.kubelet.finish_all()
    await second.done(2)
    (late,) = await world.join()
    await second.done(3)
    ran = [pod.split("-")[0] for node, pod in world.kubelet.ran if node == late]
    assert ran == ["first", "second"]
    assert sorted(await nodes_of(second)) == sorted([a, b, late])


async def not_begun(task: Task) -> bool:
    return not await task.pods()


async def test_a_missing_task_is_reported_and_its_creation_lets_nodes_go_on(world: World) -> None:
    await world.join(2)
    second = await second_task(world)
    await says(second, "2 node(s) wait for DaemonTask first, which is not in this namespace", "False")
    await holds_for(1.0, lambda: not_begun(second))
    first = await world.task("first")
    await second.done(2)
    await first.delete()
    (late,) = await world.join()
    await says(second, "1 node(s) wait for DaemonTask first, which is not in this namespace", "False")
    await second.edit(dependsOn=None)
    await second.done(3)
    assert late in await nodes_of(second)


async def test_a_change_of_the_first_task_lets_no_further_run_of_the_second_begin(world: World) -> None:
    await world.join(2)
    first = await world.task("first")
    await first.done(2)
    world.kubelet.default = HOLD
    second = await second_task(world, parallelism=1)
    (running,) = await second.running(1)
    await first.put_template(world.template(containers=[{"name": "main", "image": "test:2"}]))
    await first.running(2)
    await says_while_it_runs(second)
    (there,) = await second.pods()
    assert there["metadata"]["uid"] == running["metadata"]["uid"], "a Pod that runs is left alone"
    await world.kubelet.finish(node_of(running))
    await second.counts(succeeded=1, pending=1, active=0)
    await holds_for(1.0, lambda: has_pods(second, 1))
    await world.kubelet.finish_all()
    await second.running(1)
    await world.kubelet.finish_all()
    await second.done(2)


async def says_while_it_runs(task: Task) -> Json:
    words = "1 node(s) wait for DaemonTask first"
    return await task.when(lambda t: t["status"]["active"] == 1 and words in condition(t, "Ready")["message"])


async def has_pods(task: Task, count: int) -> bool:
    return len(await task.pods()) == count


async def test_an_edit_that_the_operator_has_not_seen_counts(world: World, proxy: ApiProxy) -> None:
    await world.join(2)
    first = await world.task("first")
    await first.done(2)
    world.kubelet.default = HOLD
    second = await second_task(world, parallelism=1)
    (running,) = await second.running(1)
    with proxy.fault(Match(verb="watch", resource="daemontasks"), Stall()):
        await first.put_template(world.template(containers=[{"name": "main", "image": "test:2"}]))
        await world.kubelet.finish(node_of(running))
        await first.running(2)
        assert await has_pods(second, 1)
    await world.kubelet.finish_all()
    await second.running(1)
    await world.kubelet.finish_all()
    await second.done(2)


async def test_a_node_where_the_first_task_failed_waits_for_its_success(world: World) -> None:
    a, b = await world.join(2)
    world.kubelet.script(a, fail())
    first = await world.task("first", backoffLimit=0)
    second = await second_task(world)
    await says(second, "1 node(s) wait for DaemonTask first, which failed there", "False")
    assert await nodes_of(second) == [b]
    await first.annotate(rerun_at="2026-01-01T00:00:00Z")
    await second.done(2)


async def test_a_node_that_the_first_task_leaves_out_does_not_wait(world: World) -> None:
    a, b = await world.join(2)
    world.kubelet.script(a, HOLD)
    here = world.template(nodeSelector={**world.selector, "kubernetes.io/hostname": a})
    first = await world.task("first", template=here)
    await first.running(1)
    second = await second_task(world)
    await second.counts(succeeded=1, pending=1)
    assert await nodes_of(second) == [b]
    await world.kubelet.finish(a)
    await second.done(2)


async def test_after_a_reboot_both_run_again_in_order(world: World) -> None:
    (a,) = await world.join()
    both: dict[str, Any] = {"rerunOn": ["TemplateChange", "NodeReboot"]}
    await world.task("first", **both)
    second = await second_task(world, **both)
    await second.done(1)
    world.kubelet.script(a, HOLD)
    await world.kubelet.reboot(a)
    await says_of_reboot(second)
    await world.kubelet.finish(a)
    await world.until(lambda: [pod.split("-")[0] for _, pod in world.kubelet.ran] == ["first", "second"] * 2)
    await second.done(1)


async def says_of_reboot(task: Task) -> None:
    await task.when(
        lambda t: (
            t["status"]["pending"] == 1
            and "1 node(s) wait for DaemonTask first" in condition(t, "Ready")["message"]
        )
    )


async def test_tasks_that_depend_on_each_other_are_reported_and_others_go_on(world: World) -> None:
    await world.join(1)
    first = await world.task("first", dependsOn=[{"name": "second"}])
    second = await second_task(world)
    other = await world.task("other")
    for task, way in ((first, "first -> second -> first"), (second, "second -> first -> second")):
        found = await task.when(lambda t: stands(t, "Ready", "False", "DependencyCycle"))
        assert way in condition(found, "Ready")["message"]
        assert stands(found, "Stalled", "True", "DependencyCycle")
    await other.done(1)
    assert await not_begun(first)
    assert await not_begun(second)
    await first.edit(dependsOn=None)
    await second.done(1)
    assert [pod.split("-")[0] for _, pod in world.kubelet.ran] == ["other", "first", "second"]


async def test_a_task_that_runs_on_no_node_is_named(world: World) -> None:
    await world.join(1)
    queue = "https://sqs.eu-west-1.amazonaws.com/000000000000/none"
    ecs = {"aws": {"region": "eu-west-1"}, "service": "agent", "events": {"sqsQueueURL": queue}}
    second = await second_task(world)
    await world.create("first", {"ecs": ecs})
    await says(second, "1 node(s) wait for DaemonTask first, which has spec.ecs and runs on no node", "False")


async def test_the_example_is_accepted_and_runs_in_order(world: World, admin: Admin) -> None:
    text = (CHECKOUT / "examples" / "ordered-tasks.yaml").read_text()
    specs = [manifests.load(part) for part in text.split("\n---\n")]
    await world.join(2)
    handles = []
    for body in reversed(specs):
        spec = body["spec"]
        spec["template"]["spec"]["nodeSelector"] = world.selector
        handles.append(await world.task(body["metadata"]["name"], **spec))
    await handles[0].done(2)
    assert [pod.split("-")[0] for _, pod in world.kubelet.ran].count("check") == 2
