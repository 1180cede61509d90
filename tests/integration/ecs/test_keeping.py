"""One task on every container instance: how many calls it takes, whatever becomes of the events."""

import asyncio
import random

import pytest

from awsdoubles.clients import REGION
from awsdoubles.ecs.control import send
from awsdoubles.sqsproxy.proxy import SqsProxy
from awsdoubles.sqsproxy.rules import Duplicate, Fail, Match
from testing.customresource import condition
from testing.ecstasks import SERVICE, SOON, EcsTasks
from testing.operator import OperatorProcess

CHANGED = "caretaker_daemontask_ecs_events_total"
CHANGE = ["DescribeServices", "ListContainerInstances", "UpdateService"]


async def test_a_service_follows_its_container_instances_with_three_calls_a_change(place: EcsTasks) -> None:
    first = place.cluster(instances=3)
    task = await place.create(clusters=["prod"])
    await task.clusters({"prod": 3})
    await task.condition("Ready", "True", "InStep")
    place.control.clear_calls()

    await place.send(place.control.register("prod"))
    found = await task.clusters({"prod": 4})
    assert place.operations() == CHANGE
    told = found["status"]["ecs"][0]
    assert (told["desiredCount"], told["lastCalls"]) == (4, 3)
    assert told["lastEventTime"] <= told["lastUpdateTime"]

    place.control.clear_calls()
    await place.send(place.control.deregister("prod", first[:1]))
    await task.clusters({"prod": 3})
    assert (place.operations(), place.desired()) == (CHANGE, 3)
    assert (found["status"]["desired"], found["spec"].get("template")) == (4, None)
    await place.event(task, "DesiredCountSet", f"service {SERVICE}: prod: 3")


@pytest.mark.slow
async def test_a_thousand_events_of_agents_that_flap_cost_no_call(
    place: EcsTasks, operator: OperatorProcess
) -> None:
    place.cluster(instances=50)
    task = await place.create(clusters=["prod"])
    before = (await task.clusters({"prod": 50}))["metadata"]["resourceVersion"]
    await task.condition("QueueReachable")
    place.control.clear_calls()
    events = []
    for number in range(20):
        events += place.control.flap("prod", connected=bool(number % 2))
    assert len(events) == 1000
    await place.send(events)
    await place.drained()
    # One more change, seen after all of them: what they might have led to would have come before.
    assert place.operations() == []
    await place.send(place.control.register("prod"))
    found = await task.clusters({"prod": 51})
    assert place.operations() == CHANGE
    assert found["metadata"]["resourceVersion"] != before
    assert operator.metric("caretaker_daemontask_ecs_events_total", result="Unchanged") >= 1000


async def test_repeated_and_reordered_events_are_one_change(place: EcsTasks) -> None:
    here = place.cluster(instances=4)
    task = await place.create(clusters=["prod"], countInstances="Active")
    await task.clusters({"prod": 4})
    events = [
        *place.control.drain("prod", here[:2]),
        *place.control.activate("prod", here[:1]),
        *place.control.register("prod", 3),
    ] * 4
    random.Random(7).shuffle(events)
    place.control.clear_calls()
    await place.send(events)
    await task.clusters({"prod": 6})
    await place.drained()
    await place.send(place.control.deregister("prod", here[3:]))
    await task.clusters({"prod": 5})
    # How many changes are heard together is the machine's doing; a repetition never leads to a look.
    changes = len({(one["detail"]["containerInstanceArn"], one["detail"]["version"]) for one in events}) + 1
    assert 2 <= place.operations().count("DescribeServices") <= changes
    assert place.operations().count("UpdateService") == 2


async def test_an_event_that_comes_during_a_look_leads_to_another(
    place: EcsTasks, operator: OperatorProcess
) -> None:
    place.cluster(instances=1)
    task = await place.create(clusters=["prod"])
    await task.clusters({"prod": 1})
    await task.condition("QueueReachable")
    place.control.clear_calls()
    heard = operator.metric(CHANGED, result="Changed")
    place.control.fault("delay", operation="ListContainerInstances", seconds=4)
    await place.send(place.control.register("prod"))
    await place.until(lambda: place.control.faults()[-1]["used"] == 1)
    # The answer that is on its way tells of two.
    await place.send(place.control.register("prod"))
    await place.until(lambda: operator.metric(CHANGED, result="Changed") == heard + 2)
    # The look is still under way, unless the machine is busy: then another one follows just as well.
    await task.clusters({"prod": 3})
    assert place.operations() == CHANGE * 2
    assert [call["input"]["desiredCount"] for call in place.control.calls("UpdateService")] == [2, 3]


async def test_what_no_event_told_is_found_by_the_resync(place: EcsTasks) -> None:
    here = place.cluster(instances=4)
    task = await place.create(clusters=["prod"], resyncSeconds=SOON)
    await task.clusters({"prod": 4})
    place.control.register("prod", 3)  # these events are lost
    await task.clusters({"prod": 7})
    place.control.deregister("prod", here)
    await task.clusters({"prod": 3})  # more than half: two looks


async def test_events_that_cannot_be_deleted_change_nothing_twice(
    place: EcsTasks, sqs_proxy: SqsProxy
) -> None:
    place.cluster(instances=1)
    task = await place.create(clusters=["prod"])
    await task.clusters({"prod": 1})
    sqs_proxy.add(Match("DeleteMessageBatch"), Fail(), count=1)
    sqs_proxy.add(Match("ReceiveMessage"), Duplicate(), count=3)
    place.control.clear_calls()
    await place.send(place.control.register("prod"))
    await task.clusters({"prod": 2})
    await place.drained()
    assert place.operations() == CHANGE


async def test_every_cluster_that_runs_the_service_and_no_other(place: EcsTasks) -> None:
    place.cluster("one", instances=2)
    place.control.add_cluster("other")
    others = place.control.register("other", 3)
    task = await place.create(resyncSeconds=SOON)
    await task.clusters({"one": 2})
    place.control.clear_calls()
    await place.send(others)
    await place.drained()
    await place.until(lambda: "DescribeServices" in place.operations())
    assert "UpdateService" not in place.operations()
    # It begins to run there; the resync finds out.
    place.control.put_service("other", SERVICE)
    await task.clusters({"one": 2, "other": 3})
    place.control.remove_service("one", SERVICE)
    await task.clusters({"other": 3})
    assert [c for c in place.control.calls("UpdateService") if c["code"]] == []


async def test_an_event_of_a_new_cluster_without_the_service_takes_one_call_and_a_list(
    place: EcsTasks,
) -> None:
    place.cluster("one", instances=1)
    task = await place.create()
    await task.clusters({"one": 1})
    place.control.add_cluster("new")  # since the list
    place.control.clear_calls()
    await place.send(place.control.register("new"))
    await place.until(lambda: "DescribeServices" in place.operations())
    await place.send(place.control.register("one"))
    await task.clusters({"one": 2})
    assert place.operations() == ["ListClusters", "DescribeServices", *CHANGE]


async def test_active_ones_are_counted_with_a_call_more_for_every_further_hundred(place: EcsTasks) -> None:
    here = place.cluster(instances=250)
    task = await place.create(clusters=["prod"], countInstances="Active")
    await task.clusters({"prod": 250})
    place.control.clear_calls()
    await place.send(place.control.drain("prod", here[:1]))
    await task.clusters({"prod": 249})
    pages = ["ListContainerInstances"] * 3
    assert place.operations() == ["DescribeServices", *pages, "UpdateService"]
    counted = await place.create("registered", clusters=["prod"], countInstances="Registered")
    await counted.clusters({"prod": 250})


async def test_two_regions(place: EcsTasks) -> None:
    far = "us-east-1"
    place.cluster(instances=1)
    place.cluster(instances=4, region=far)
    task = await place.create(clusters=["prod"])
    queue = place.aws.client("sqs", region=far).create_queue(QueueName=f"{task.name}-far")["QueueUrl"]
    other = await place.create("far", clusters=["prod"], aws={"region": far}, events={"sqsQueueURL": queue})
    await task.clusters({"prod": 1})
    await other.clusters({"prod": 4})
    # A rule that forwards events of all regions to one queue: those of others are nobody's there.
    place.control.clear_calls()
    await place.send(place.control.register("prod", region=far) + place.control.register("prod"))
    await task.clusters({"prod": 2})
    assert {call["region"] for call in place.control.calls()} == {REGION}
    assert place.desired(region=far) == 4


async def test_tasks_share_a_queue(place: EcsTasks) -> None:
    place.cluster(instances=1)
    place.control.put_service("prod", "logs")
    one = await place.create("one", clusters=["prod"])
    two = await place.create("two", clusters=["prod"], service="logs")
    await asyncio.gather(one.clusters({"prod": 1}), two.clusters({"prod": 1}))
    await asyncio.gather(one.condition("QueueReachable"), two.condition("QueueReachable"))
    place.control.clear_calls()
    await place.send(place.control.register("prod"))
    await asyncio.gather(one.clusters({"prod": 2}), two.clusters({"prod": 2}))
    assert sorted(place.operations()) == sorted(CHANGE * 2)
    await one.delete()
    place.made.remove(one)
    await place.send(place.control.register("prod"))
    await two.clusters({"prod": 3})
    assert place.desired() == 2, "deletion leaves the desired count as it is, and nobody follows it"


async def test_one_that_is_made_anew_reads_its_own_queue_and_leaves_the_old_one(place: EcsTasks) -> None:
    place.cluster(instances=1)
    task = await place.create(clusters=["prod"])
    await task.clusters({"prod": 1})
    queue = place.aws.queue(max_receives=None)
    await task.delete()
    again = await place.create(clusters=["prod"], events={"sqsQueueURL": queue.url})
    await again.clusters({"prod": 1})
    await again.condition("QueueReachable")
    await asyncio.to_thread(send, place.aws.sqs, queue.url, place.control.register("prod"))
    await again.clusters({"prod": 2})
    place.made.remove(task)


async def test_suspended_nothing_is_asked_and_resumed_everything_is_made_good(place: EcsTasks) -> None:
    place.cluster(instances=2)
    task = await place.create(clusters=["prod"], resyncSeconds=SOON)
    await task.clusters({"prod": 2})
    await place.admin.patch(task.url, {"spec": {"suspend": True}})
    found = await task.when(lambda f: bool(condition(f, "Suspended")))
    assert found["status"]["ecs"][0]["registeredContainerInstances"] == 2
    place.control.clear_calls()
    await place.send(place.control.register("prod", 2))
    # Another task's resyncs show how much time has passed.
    other = await place.create("other", clusters=["prod"], service="none", resyncSeconds=SOON)
    await other.condition("Ready", "False", "ServiceNotFound")
    await place.until(lambda: place.operations().count("DescribeServices") >= 4)
    assert set(place.operations()) == {"DescribeServices"}
    assert place.desired() == 2
    await place.admin.patch(task.url, {"spec": {"suspend": False}})
    await task.clusters({"prod": 4})


async def test_at_rest_nothing_is_asked_and_nothing_written(
    place: EcsTasks, operator: OperatorProcess
) -> None:
    place.cluster(instances=2)
    task = await place.create(clusters=["prod"])
    await task.clusters({"prod": 2})
    await task.condition("QueueReachable")
    settled = await task.when(lambda f: f["status"]["active"] == 0)
    place.control.clear_calls()
    # A resync of another task, many times, and this one is not looked at.
    other = await place.create("other", clusters=["prod"], service="none", resyncSeconds=SOON)
    await other.condition("Ready", "False", "ServiceNotFound")
    await place.until(lambda: place.operations().count("DescribeServices") >= 4)
    assert {call["input"]["services"][0] for call in place.control.calls()} == {"none"}
    assert (await task.get())["metadata"]["resourceVersion"] == settled["metadata"]["resourceVersion"]


@pytest.mark.parametrize("counts", ["Registered", "Active"])
async def test_a_lost_answer_is_made_good(place: EcsTasks, counts: str) -> None:
    place.cluster(instances=1)
    task = await place.create(clusters=["prod"], countInstances=counts)
    await task.clusters({"prod": 1})
    for name in ("UpdateService", "DescribeServices"):
        place.control.fault("lose_reply", operation=name)
        await place.send(place.control.register("prod"))
        await place.until(lambda: place.control.faults()[-1]["used"] == 1)
    await task.clusters({"prod": 3})
