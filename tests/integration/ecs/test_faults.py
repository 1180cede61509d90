"""What stands in the way is told, with what mends it, and harms nothing else."""

import asyncio
import json
from typing import Any

import pytest

from awsdoubles.clients import KEY
from awsdoubles.sqsproxy.proxy import SqsProxy
from awsdoubles.sqsproxy.rules import Fail, Match
from testing.customresource import condition, stands
from testing.ecstasks import SERVICE, SOON, EcsTasks
from testing.operator import OperatorProcess

pytestmark = pytest.mark.slow

ASG = [{"capacityProvider": "asg", "weight": 1}]


@pytest.mark.parametrize(
    ("service", "reason"),
    [
        ({"strategy": "DAEMON"}, "DaemonService"),
        ({"launch_type": "FARGATE"}, "FargateService"),
        ({"status": "INACTIVE"}, "ServiceInactive"),
        ({"status": "DRAINING"}, "ServiceInactive"),
        ({"providers": ASG}, "ManagedScaling"),
        ({"launch_type": "MANAGED_INSTANCES"}, "ManagedScaling"),
        ({"providers": [*ASG, {"capacityProvider": "b", "weight": 1}]}, "SeveralCapacityProviders"),
        ({"constraints": [{"type": "memberOf", "expression": "runningTasksCount < 2"}]}, "PlacementByTasks"),
    ],
)
async def test_a_service_that_must_not_be_set_is_left_and_told_of(
    place: EcsTasks, operator: OperatorProcess, service: dict[str, Any], reason: str
) -> None:
    place.control.put_provider("asg")
    place.cluster(instances=2, **service)
    place.cluster("good", instances=2)
    task = await place.create(clusters=["prod", "good"])
    told = await task.condition("Ready", "False", reason)
    assert f"service {SERVICE} of cluster prod" in told["message"]
    found = await task.condition("Degraded", "True", reason)
    assert found["message"] == told["message"]
    await task.condition("Stalled", "True", reason)
    # The other cluster is kept all the same, and events change nothing in the first.
    await place.until(lambda: place.desired("good") == 2)
    await task.condition("QueueReachable")
    await place.send(place.control.register("prod") + place.control.register("good"))
    await place.until(lambda: place.desired("good") == 3)
    updates = {call["input"]["cluster"] for call in place.control.calls("UpdateService")}
    assert updates == {"good"}
    rows = {one["cluster"]: one.get("reason") for one in (await task.get())["status"]["ecs"]}
    assert rows == {"good": None, "prod": reason}
    await place.event(task, reason)
    operator.assert_clean_logs()


async def test_what_is_missing_is_told_and_found_once_it_is_there(place: EcsTasks) -> None:
    place.control.add_cluster("prod")
    place.control.register("prod", 2)
    task = await place.create(clusters=["prod", "lab"], resyncSeconds=SOON)
    await task.when(lambda f: stands(f, "Stalled", "True", "ClusterNotFound"))
    place.cluster("lab", instances=1)
    told = await task.condition("Ready", "False", "ServiceNotFound")
    assert "cluster prod has no service agent: create it there" in told["message"]
    place.control.put_service("prod", SERVICE)
    await task.clusters({"prod": 2, "lab": 1})
    await task.condition("Ready", "True", "InStep")
    place.control.remove_cluster("lab")
    await task.condition("Ready", "False", "ClusterNotFound")


async def test_no_cluster_runs_the_service(place: EcsTasks) -> None:
    place.control.add_cluster("prod")
    task = await place.create()
    told = await task.condition("Ready", "False", "NoClusters")
    assert "no cluster in eu-west-1 runs the service agent" in told["message"]
    found = await task.get()
    assert not condition(found, "Stalled")
    assert not condition(found, "Reconciling")


async def test_without_distinct_instance_there_is_a_warning_and_the_count_is_kept(place: EcsTasks) -> None:
    place.cluster(instances=3, constraints=[])
    task = await place.create(clusters=["prod"])
    await task.clusters({"prod": 3})
    told = await task.condition("Degraded", "True", "NoDistinctInstance")
    assert "may put two of its tasks on one container instance" in told["message"]
    await task.condition("Ready", "True", "InStep")


@pytest.mark.parametrize(
    ("operation", "how"),
    [
        ("DescribeServices", {}),
        ("DescribeClusters", {"countInstances": "Registered"}),
        ("ListContainerInstances", {}),
        ("UpdateService", {}),
        ("DescribeCapacityProviders", {"providers": ASG}),
        ("DescribeContainerInstances", {"providers": ASG}),
    ],
)
async def test_a_permission_that_is_missing_is_named(
    place: EcsTasks, operation: str, how: dict[str, Any]
) -> None:
    place.control.put_provider("asg", status="DISABLED")
    service = {name: how[name] for name in ("providers",) if name in how}
    place.cluster(**service)
    place.control.register("prod", 2, provider="asg")
    place.control.deny(operation)
    task = await place.create(clusters=["prod"], **{k: v for k, v in how.items() if k not in service})
    told = await task.condition("Ready", "False", "AccessDenied")
    assert f"allow ecs:{operation} to the identity that spec.ecs.aws names" in told["message"]
    await place.event(task, "AccessDenied", f"ecs:{operation}")
    place.control.allow(operation)
    await task.clusters({"prod": 2})


async def test_a_policy_of_before_task_definitions_were_read_goes_on_to_do(place: EcsTasks) -> None:
    place.cluster(instances=2)
    place.control.deny("DescribeTaskDefinition")
    task = await place.create(clusters=["prod"], resyncSeconds=SOON)
    await task.clusters({"prod": 2})
    told = await task.condition("Degraded", "True", "TaskDefinitionUnread")
    assert "allow ecs:DescribeTaskDefinition" in told["message"]
    await task.condition("Ready", "True", "InStep")
    place.control.allow("DescribeTaskDefinition")
    await task.when(lambda f: not condition(f, "Degraded"))


async def test_clusters_that_may_not_be_listed(place: EcsTasks) -> None:
    place.cluster(instances=2)
    place.control.deny("ListClusters")
    task = await place.create()
    told = await task.condition("Ready", "False", "AccessDenied")
    assert "allow ecs:ListClusters" in told["message"]
    place.control.allow("ListClusters")
    await task.clusters({"prod": 2})


async def test_throttled_looks_are_tried_again_later_and_none_takes_more_than_three_calls(
    place: EcsTasks, operator: OperatorProcess
) -> None:
    place.cluster(instances=2)
    place.cluster("good", instances=1)
    task = await place.create(clusters=["prod", "good"])
    await task.clusters({"prod": 2, "good": 1})
    failed = operator.metric("caretaker_daemontask_ecs_looks_total", result="Failed")
    place.control.clear_calls()
    place.control.throttle(cluster="prod", count=4)
    await place.send(place.control.register("prod"))
    await task.clusters({"prod": 3, "good": 1})
    codes = [call["code"] for call in place.control.calls()]
    assert codes == ["ThrottlingException"] * 4 + [""] * 3
    looks = operator.metric("caretaker_daemontask_ecs_looks_total", result="Failed") - failed
    assert looks == 4, "each call is sent once"
    # Throttled for long, it is told, and the other cluster is kept meanwhile.
    place.control.throttle(cluster="prod", count=None)
    await place.send(place.control.register("prod"))
    await task.condition("Ready", "False", "Throttled")
    await place.send(place.control.register("good"))
    await place.until(lambda: place.desired("good") == 2)
    place.control.clear_faults()
    await task.clusters({"prod": 4, "good": 2})
    await task.condition("Ready", "True", "InStep")
    operator.assert_clean_logs()


async def test_a_service_that_fails_half_way_is_made_good(place: EcsTasks) -> None:
    place.cluster(instances=2)
    task = await place.create(clusters=["prod"])
    await task.clusters({"prod": 2})
    place.control.fault("refuse", operation="UpdateService", status=500, count=2)
    await place.send(place.control.register("prod"))
    await task.clusters({"prod": 3})
    assert [call["code"] for call in place.control.calls("UpdateService")][1:] == [
        *["ServerException"] * 2,
        "",
    ]


@pytest.mark.parametrize(
    "fault",
    [
        {"action": "cut_body", "operation": "DescribeServices"},
        {"action": "html", "operation": "DescribeServices"},
        {"action": "without", "operation": "DescribeServices"},
        {"action": "without", "operation": "ListContainerInstances", "member": "containerInstanceArns"},
        {"action": "cut_body", "operation": "ListContainerInstances"},
    ],
    ids=lambda fault: " ".join(fault.values()),
)
async def test_what_is_no_answer_takes_no_task_away(
    place: EcsTasks, operator: OperatorProcess, fault: dict[str, Any]
) -> None:
    place.cluster(instances=3)
    task = await place.create(clusters=["prod"], maxDecreasePercent=100)
    await task.clusters({"prod": 3})
    place.control.fault(count=None, **fault)
    await place.send(place.control.register("prod"))
    told = await task.condition("Ready", "False", "Unreachable")
    assert "hunter2" not in json.dumps((await task.get())["status"])
    assert fault["operation"] in told["message"]
    assert place.desired() == 3
    place.control.clear_faults()
    await task.clusters({"prod": 4})
    assert [call["input"]["desiredCount"] for call in place.control.calls("UpdateService")] == [3, 4]
    operator.assert_clean_logs()


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", '{"detail-type": "ECS Container Instance State Change"}']
)
async def test_a_malformed_message_stops_nothing(place: EcsTasks, text: str) -> None:
    place.cluster(instances=1)
    task = await place.create(clusters=["prod"])
    await task.clusters({"prod": 1})
    await task.condition("QueueReachable")
    for _ in range(3):
        place.aws.sqs.send_message(QueueUrl=place.queue.url, MessageBody=text or " ")
    await place.send(place.control.register("prod"))
    await task.clusters({"prod": 2})
    await place.drained()
    await task.condition("MalformedMessages", "True", "Unreadable")
    await task.condition("Ready", "True", "InStep")


async def test_a_forged_event_sets_nothing_but_what_ecs_reports(place: EcsTasks) -> None:
    """It is well-formed, newer than all others, and says of a registered instance that it is gone."""
    registered, _ = place.cluster(instances=2)
    task = await place.create(clusters=["prod"])
    await task.clusters({"prod": 2})
    await task.condition("QueueReachable")
    (event,) = place.control.register("prod")
    gone = {"containerInstanceArn": registered, "status": "INACTIVE", "agentConnected": False, "version": 99}
    await place.send([{**event, "detail": {**event["detail"], **gone}}] * 3)
    await task.clusters({"prod": 3})
    await place.drained()
    assert place.desired() == 3
    assert [call["input"]["desiredCount"] for call in place.control.calls("UpdateService")] == [2, 3]


async def test_a_queue_that_is_not_there_makes_changes_late_and_no_more(place: EcsTasks) -> None:
    place.cluster(instances=1)
    url = place.queue.url + "-gone"
    task = await place.create(clusters=["prod"], events={"sqsQueueURL": url}, resyncSeconds=SOON)
    told = await task.condition("QueueReachable", "False", "QueueNotFound")
    assert "spec.ecs.events.sqsQueueURL: sqs:ReceiveMessage" in told["message"]
    degraded = await task.condition("Degraded", "True", "QueueNotFound")
    assert f"looked at every {SOON} s only" in degraded["message"]
    place.control.register("prod")
    await task.clusters({"prod": 2})
    await task.condition("Ready", "True", "InStep")


async def test_a_queue_that_may_not_be_read(place: EcsTasks, sqs_proxy: SqsProxy) -> None:
    denied = Fail(403, "AccessDeniedException", "is not authorized to perform: sqs:receivemessage")
    rule = sqs_proxy.add(Match("ReceiveMessage"), denied)
    place.cluster(instances=1)
    task = await place.create(clusters=["prod"])
    told = await task.condition("QueueReachable", "False", "AccessDenied")
    assert "allow sqs:ReceiveMessage to the identity that spec.ecs.aws names" in told["message"]
    rule.remove()
    await task.condition("QueueReachable")
    await place.send(place.control.register("prod"))
    await task.clusters({"prod": 2})


async def test_a_role_signs_the_calls_and_is_named_when_it_cannot_be_assumed(place: EcsTasks) -> None:
    place.cluster(instances=1)
    role = {"roleARN": "arn:aws:iam::111122223333:role/ecs-agents", "externalID": "x1"}
    nowhere = {**place.endpoints, "sts": "http://127.0.0.1:9"}
    lost = await place.create("lost", clusters=["prod"], aws={**role, "endpointURLs": nowhere})
    await lost.when(
        lambda f: condition(f, "Ready")["message"].startswith("spec.ecs.aws.roleARN: sts:AssumeRole")
    )
    assert place.control.calls() == []
    endpoints = {**place.endpoints, "sts": place.aws.url}
    task = await place.create(clusters=["prod"], aws={**role, "endpointURLs": endpoints})
    await task.clusters({"prod": 1})
    assert KEY not in {call["key"] for call in place.control.calls()}


async def test_an_edit_is_followed(place: EcsTasks) -> None:
    place.cluster(instances=1)
    place.cluster("lab", instances=2)
    task = await place.create(clusters=["prod"])
    await task.clusters({"prod": 1})
    await task.edit(ecs={"clusters": ["lab"]})
    await task.clusters({"lab": 2})
    place.control.clear_calls()
    await place.send(place.control.register("prod") + place.control.register("lab"))
    await task.clusters({"lab": 3})
    assert {call["input"].get("cluster", "lab") for call in place.control.calls()} == {"lab"}
    assert place.desired() == 1


async def test_after_an_edit_nothing_is_told_of_the_service_before(place: EcsTasks) -> None:
    place.cluster(instances=2)
    task = await place.create(clusters=["prod"])
    await task.clusters({"prod": 2})
    await task.condition("QueueReachable")
    await place.send(place.control.register("prod"))
    before = (await task.clusters({"prod": 3}))["status"]
    assert {"lastEventTime", "lastUpdateTime"} <= before["ecs"][0].keys()
    place.control.put_service("prod", "logs", desired=3)
    place.control.fault("delay", operation="DescribeServices", seconds=3)
    await task.edit(ecs={"service": "logs"})
    await place.until(lambda: place.control.faults()[-1]["used"] == 1)
    status = (await task.when(lambda f: f["spec"]["ecs"]["service"] == "logs"))["status"]
    assert status["ecs"] == [{"cluster": "prod"}]
    assert [status[count] for count in ("desired", "active", "pending")] == [0, 0, 0]
    assert status["currentRevision"] != before["currentRevision"]
    (row,) = (await task.clusters({"prod": 3}))["status"]["ecs"]
    assert row.keys() & {"lastEventTime", "lastUpdateTime"} == set(), "in step: nothing was set"
    # Suspended it is another generation, and the same service.
    await task.edit(suspend=True)
    await task.condition("Suspended")
    assert (await task.get())["status"]["ecs"] == [row]


async def test_many_tasks_that_hang_do_not_hold_up_another(place: EcsTasks) -> None:
    place.cluster(instances=1)
    place.control.fault("delay", cluster="slow", seconds=4, count=None)
    for number in range(12):
        place.control.put_service("prod", f"s{number}")
    place.cluster("slow", instances=1)
    for number in range(12):
        await place.create(f"slow-{number}", clusters=["slow"], service=f"s{number}")
    task = await place.create("quick", clusters=["prod"])
    await asyncio.wait_for(task.condition("QueueReachable"), 30)
    await task.clusters({"prod": 1})
