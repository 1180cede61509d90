"""A node that is replaced under the same name: a new machine, which runs, and never beside the old Pod."""

from collections.abc import Callable

from testbed.admin import ApiError
from testbed.recorder import PodRecorder, node_of
from testing.kubelet import HOLD, SUCCEED
from testing.world import Task, World, blocked

Recorders = Callable[[], PodRecorder]

BIG = [{"name": "main", "image": "test:1", "resources": {"requests": {"cpu": "2"}}}]


async def test_a_node_replaced_under_the_same_name_runs_again(world: World) -> None:
    """Fault 28 (k8s#132182)."""
    (name,) = await world.join()
    task = await world.task()
    await task.done(1)
    before = (await task.ledger())[name]["nodeUID"]
    await world.nodes.delete(name)
    await task.counts(desired=0)
    await world.join(names=[name])
    after = await task.ledger_when(lambda entries: entries[name]["nodeUID"] != before)
    assert after[name]["result"] == "Succeeded"
    await task.done(1)
    assert len(world.kubelet.ran) == 2


async def test_the_unscheduled_pod_of_a_replaced_node_does_not_run_on_the_new_one(
    world: World, recorders: Recorders
) -> None:
    (name,) = await world.join()
    await world.shrink(name)
    async with recorders() as record:
        task = await world.task(template=world.template(containers=BIG))
        await task.counts(blocked=1)
        (old,) = await task.pods()
        await world.nodes.delete(name)
        await world.gone([old])
        await world.join(names=[name])
        await task.done(1)
        await record.settle()
    states = record.states_of(old["metadata"]["name"])
    assert all(not seen.object["spec"].get("nodeName") for seen in states)


async def test_the_new_node_waits_until_the_old_ones_pod_is_gone(world: World, recorders: Recorders) -> None:
    """A Pod is the kubelet's of its node's name, whatever the UID: the new one's would run beside it."""
    (name,) = await world.join()
    world.kubelet.default = HOLD
    async with recorders() as record:
        task = await world.task()
        (old,) = await task.running()
        world.kubelet.silent.add(name)
        await world.nodes.delete(name)
        await world.join(names=[name])
        await task.when(lambda t: blocked(t) == {name: "PredecessorTerminating"})
        (left,) = await task.pods_when(lambda pods: all("deletionTimestamp" in p["metadata"] for p in pods))
        assert left["metadata"]["uid"] == old["metadata"]["uid"]
        world.kubelet.default = SUCCEED
        world.kubelet.answer(name)
        await task.done(1)
        await record.settle()
    assert [peak.count for peak in record.peaks(group=node_of).values()] == [1]
    assert (await task.ledger())[name]["nodeUID"] == await world.nodes.uid(name)


async def test_pods_that_somebody_orphaned_keep_no_later_task_of_the_name_waiting(world: World) -> None:
    """Their owner has let go of them, live ones and finished ones: they are nobody's, and stay."""
    names = await world.join(2)
    world.kubelet.script(names[0], SUCCEED)
    world.kubelet.script(names[1], HOLD)
    task = await world.task()
    await task.counts(succeeded=1, active=1)
    orphans = {pod["metadata"]["uid"] for pod in await task.pods()}
    await task.delete(propagation="Orphan")
    await world.until(lambda: gone(task))
    again = await world.task()
    await again.done(2)
    assert orphans <= {pod["metadata"]["uid"] for pod in await again.pods()}


async def gone(task: Task) -> bool:
    try:
        await task.get()
    except ApiError as error:
        return error.status == 404
    return False
