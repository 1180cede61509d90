"""A service is kept at what ECS would place on: it does not grow its own group, hang a drain, or count what
is elsewhere; and one answer does not take all of it away."""

import time

import pytest

from awsdoubles.ecs.control import arns
from testing.customresource import condition
from testing.ecstasks import SOON, EcsTasks

ASG = [{"capacityProvider": "asg", "weight": 1}]
DISTINCT = {"type": "distinctInstance"}
EXTERNAL = "ecs.capability.external"
LOOK = ["DescribeServices", "ListContainerInstances"]


@pytest.mark.slow
async def test_a_service_under_managed_scaling_does_not_grow_its_own_group(place: EcsTasks) -> None:
    place.control.put_provider("asg", target=80, maximum=40)
    place.cluster(providers=ASG, desired=10)
    place.control.register("prod", 10, provider="asg")
    task = await place.create(clusters=["prod"], resyncSeconds=SOON)
    told = await task.condition("Stalled", "True", "ManagedScaling")
    assert "uses asg with managed scaling" in told["message"]
    sizes = []
    for _ in range(6):
        await place.send(place.control.scale("prod"))
        await place.drained()
        place.control.clear_calls()
        await place.until(lambda: "DescribeServices" in place.operations())
        sizes.append(len(place.control.instances("prod")))
    assert sizes == [13] * 6, "ten tasks and their spare capacity"
    assert place.desired() == 10
    # It is turned off, and turned on again.
    place.control.put_provider("asg", status="DISABLED")
    await task.clusters({"prod": 13})
    place.control.put_provider("asg")
    await task.condition("Ready", "False", "ManagedScaling")


async def test_of_a_cluster_of_thirty_the_ten_that_a_service_may_run_on_count(place: EcsTasks) -> None:
    place.cluster(constraints=[DISTINCT, {"type": "memberOf", "expression": "attribute:stack == a"}])
    mine = place.control.register("prod", 10, attributes={"stack": "a"})
    other = place.control.register("prod", 15, attributes={"stack": "b"})
    place.control.register("prod", 5, attributes={"stack": "a", EXTERNAL: ""})
    task = await place.create(clusters=["prod"])
    await task.clusters({"prod": 10})
    await task.condition("QueueReachable")
    # One more of its own costs three calls.
    place.control.clear_calls()
    await place.send(place.control.register("prod", attributes={"stack": "a"}))
    await task.clusters({"prod": 11})
    expected = [*LOOK, "UpdateService"]
    assert place.operations() == expected
    # Those of the others are looked at once each. The next event is sent once the list of such a look is
    # answered: how many looks several events at once lead to is left open, and so is which of them ends last.
    there = arns(other[:3])
    for one in there:
        await place.send(place.control.flap("prod", [one], connected=False))
        expected += LOOK
        await place.called(len(expected))
    await place.send(place.control.register("prod", attributes={"stack": "a"}))
    await task.clusters({"prod": 12})
    expected += [*LOOK, "UpdateService"]
    assert place.operations() == expected
    # And then they cost nothing.
    for connected in (True, False):
        await place.send(place.control.flap("prod", there, connected=connected))
        await place.drained()  # a change that is heard before an earlier one costs a look
    await place.send(place.control.deregister("prod", arns(mine[:1])))
    await task.clusters({"prod": 11})
    assert place.operations() == [*expected, *LOOK, "UpdateService"]
    assert place.control.service("prod", "agent")["running"] == 11


async def test_of_a_capacity_provider_its_own_instances_count(place: EcsTasks) -> None:
    place.control.put_provider("asg", status="DISABLED")
    place.cluster(instances=20, providers=ASG)
    place.control.register("prod", 10, provider="asg")
    task = await place.create(clusters=["prod"])
    await task.clusters({"prod": 10})
    await task.condition("QueueReachable")
    place.control.clear_calls()
    await place.send(place.control.register("prod", provider="asg"))
    await task.clusters({"prod": 11})
    assert place.operations() == [
        *["DescribeServices", "ListContainerInstances", "DescribeContainerInstances"],
        *["DescribeServices", "ListContainerInstances", "UpdateService"],
    ]


@pytest.mark.parametrize("counts", [None, "Registered"])
async def test_a_drain_ends_or_is_said_to_hang(place: EcsTasks, counts: str | None) -> None:
    here = place.cluster(instances=4)
    how = {"countInstances": counts} if counts else {}
    task = await place.create(clusters=["prod"], resyncSeconds=SOON, **how)
    await task.clusters({"prod": 4})
    await place.until(lambda: place.control.service("prod", "agent")["running"] == 4)
    await place.send(place.control.drain("prod", here[:1]))
    if counts is None:
        await task.clusters({"prod": 3})
        await place.until(lambda: here[0] not in place.control.service("prod", "agent")["tasks"])
        assert not condition(await task.get(), "Degraded")
    else:
        told = await task.condition("Degraded", "True", "DrainMayHang")
        assert "set countInstances to Active" in told["message"]
        assert here[0] in place.control.service("prod", "agent")["tasks"]
        await task.edit(ecs={"countInstances": "Active"})
        await task.clusters({"prod": 3})
        await place.until(lambda: here[0] not in place.control.service("prod", "agent")["tasks"])
        await task.when(lambda f: not condition(f, "Degraded"))


async def test_max_count_holds_the_desired_count_and_says_so(place: EcsTasks) -> None:
    place.cluster(instances=5)
    task = await place.create(clusters=["prod"], maxCount=3)
    told = await task.condition("Degraded", "True", "MaxCountReached")
    assert (
        "5 container instances count, and spec.ecs.maxCount holds the desired count at 3" in told["message"]
    )
    assert place.desired() == 3
    await task.edit(ecs={"maxCount": 9})
    await task.clusters({"prod": 5})
    assert max(call["input"]["desiredCount"] for call in place.control.calls("UpdateService")) == 5


async def test_all_that_are_gone_in_one_answer_lose_no_task_before_a_second_one(place: EcsTasks) -> None:
    here = place.cluster(instances=40)
    task = await place.create(clusters=["prod"])
    await task.clusters({"prod": 40})
    await task.condition("QueueReachable")
    # Their agents register anew: for a moment none is there.
    place.control.clear_calls()
    await place.send(place.control.deregister("prod", here))
    told = await task.condition("Ready", "False", "ConfirmingDecrease")
    assert "0 container instances are left for a desired count of 40" in told["message"]
    assert not condition(await task.get(), "Stalled")
    await place.send(place.control.register("prod", 40))
    await task.clusters({"prod": 40})
    await task.condition("Ready", "True", "InStep")
    assert "UpdateService" not in place.operations()
    # And now they stay away.
    here = [one["arn"] for one in place.control.instances("prod")]
    since = time.time()
    await place.send(place.control.deregister("prod", here))
    await task.clusters({"prod": 0})
    # A look that an event before has led to may be under way: the list tells what it found.
    looks = [call["at"] for call in place.control.calls("ListContainerInstances") if call["at"] >= since]
    (update,) = place.control.calls("UpdateService")
    assert update["at"] - looks[0] >= 60 * 0.05 - 0.2, "a minute, as scaled"
