"""The ECS double says what Amazon ECS says, above all where moto's ECS (5.2) says something else.

What is AWS's word is named beside each: the Amazon ECS API reference, by operation, and the developer guide.
"""

import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, ParamValidationError

from awsdoubles.clients import client as made_client
from awsdoubles.ecs.control import Control, ControlError, arns
from awsdoubles.ecs.server import Ecs


@pytest.fixture(scope="module")
def server() -> Iterator[Ecs]:
    with Ecs() as double:
        yield double


@pytest.fixture
def control(server: Ecs) -> Control:
    """As new, with a cluster."""
    server.control.reset()
    server.control.add_cluster("prod")
    return server.control


@pytest.fixture(scope="module")
def client(server: Ecs) -> Iterator[Any]:
    made = made_client("ecs", server.url)
    yield made
    made.close()


def refusal(call: Any, **parameters: Any) -> str:
    """The code of the error that a call ends with."""
    with pytest.raises(ClientError) as error:
        call(**parameters)
    return str(error.value.response["Error"]["Code"])


def registered(client: Any) -> int:
    (found,) = client.describe_clusters(clusters=["prod"])["clusters"]
    return int(found["registeredContainerInstancesCount"])


def service(client: Any, name: str = "agent") -> Any:
    (found,) = client.describe_services(cluster="prod", services=[name])["services"]
    return found


def test_registered_instances_are_active_and_draining_ones_and_fewer_after_a_deregistration(
    control: Control, client: Any
) -> None:
    """API reference, Cluster: "This includes container instances in both ACTIVE and DRAINING status". moto
    never lowers the count."""
    here = arns(control.register("prod", 4))
    control.drain("prod", here[:2])
    assert registered(client) == 4
    control.deregister("prod", here[:1])
    assert registered(client) == 3
    active = client.list_container_instances(cluster="prod", status="ACTIVE")["containerInstanceArns"]
    assert sorted(active) == sorted(here[2:])
    every = client.list_container_instances(cluster="prod")["containerInstanceArns"]
    assert sorted(every) == sorted(here[1:])


def test_lists_have_pages(control: Control, client: Any) -> None:
    """API reference, ListContainerInstances and ListClusters: maxResults, 1 to 100. moto has one page."""
    control.register("prod", 230)
    sizes, more = [], {}
    while True:
        page = client.list_container_instances(cluster="prod", **more)
        sizes.append(len(page["containerInstanceArns"]))
        if "nextToken" not in page:
            break
        more = {"nextToken": page["nextToken"]}
    assert sizes == [100, 100, 30]
    for number in range(3):
        control.add_cluster(f"more-{number}")
    first = client.list_clusters(maxResults=3)
    second = client.list_clusters(maxResults=3, nextToken=first["nextToken"])
    assert (len(first["clusterArns"]), len(second["clusterArns"])) == (3, 1)
    assert refusal(client.list_clusters, maxResults=101) == "InvalidParameterException"


def test_placement_constraints_are_told(control: Control, client: Any) -> None:
    """API reference, Service: placementConstraints. moto forgets them."""
    control.put_service("prod", "agent")
    control.put_service("prod", "bare", constraints=[])
    assert service(client)["placementConstraints"] == [{"type": "distinctInstance"}]
    assert service(client, "bare")["placementConstraints"] == []


def test_a_service_that_is_not_active_or_is_a_daemon_takes_no_desired_count(
    control: Control, client: Any
) -> None:
    """API reference, UpdateService: ServiceNotActiveException; developer guide, "Amazon ECS services": a
    DAEMON service has no desired count of yours. moto changes both."""
    control.put_service("prod", "agent", desired=2)
    control.put_service("prod", "daemon", strategy="DAEMON")
    control.register("prod", 3)
    control.remove_service("prod", "agent")
    update = client.update_service
    assert refusal(update, cluster="prod", service="agent", desiredCount=1) == "ServiceNotActiveException"
    assert refusal(update, cluster="prod", service="daemon", desiredCount=1) == "InvalidParameterException"
    assert refusal(update, cluster="prod", service="none", desiredCount=1) == "ServiceNotFoundException"
    assert refusal(update, cluster="none", service="agent", desiredCount=1) == "ClusterNotFoundException"
    assert (service(client)["status"], service(client, "daemon")["desiredCount"]) == ("INACTIVE", 3)


def test_what_is_missing_is_a_failure_and_not_an_error(control: Control, client: Any) -> None:
    """API reference, DescribeServices and DescribeClusters: failures."""
    (failure,) = client.describe_services(cluster="prod", services=["none"])["failures"]
    assert (failure["reason"], failure["arn"].endswith("service/prod/none")) == ("MISSING", True)
    found = client.describe_clusters(clusters=["prod", "none"])
    assert ([c["clusterName"] for c in found["clusters"]], len(found["failures"])) == (["prod"], 1)
    describe = client.describe_services
    assert refusal(describe, cluster="none", services=["x"]) == "ClusterNotFoundException"
    control.remove_cluster("prod")
    assert client.describe_clusters(clusters=["prod"])["clusters"][0]["status"] == "INACTIVE"
    assert client.list_clusters()["clusterArns"] == []
    assert refusal(describe, cluster="prod", services=["x"]) == "ClusterNotFoundException"


def test_eleven_services_are_too_many(control: Control, client: Any) -> None:
    """API reference, DescribeServices: "You may specify up to 10 services". moto takes any number."""
    names = [f"s{number}" for number in range(11)]
    assert refusal(client.describe_services, cluster="prod", services=names) == "InvalidParameterException"


def test_tasks_run_one_on_each_active_instance_some_time_after_they_are_wanted(
    control: Control, client: Any
) -> None:
    """moto's tasks never run, whatever is wanted."""
    control.settings(start_seconds=0.2)
    control.put_service("prod", "agent")
    here = arns(control.register("prod", 3))
    control.drain("prod", here[:1])
    answer = client.update_service(cluster="prod", service="agent", desiredCount=3)["service"]
    assert (answer["desiredCount"], answer["runningCount"]) == (3, 0)
    deadline = time.monotonic() + 10
    while service(client)["runningCount"] != 2:
        assert time.monotonic() < deadline


def test_lists_are_filtered_by_the_cluster_query_language(control: Control, client: Any) -> None:
    """Developer guide, "Create expressions to define container instances": "You can also apply a group filter
    when listing container instances"."""
    some = arns(control.register("prod", 2, attributes={"stack": "a", "gpu": ""}))
    control.register("prod", 3, attributes={"stack": "b"})
    control.register("prod", 4)

    def found(expression: str) -> int:
        answer = client.list_container_instances(cluster="prod", filter=expression)
        return len(answer["containerInstanceArns"])

    assert sorted(
        client.list_container_instances(cluster="prod", filter="attribute:gpu exists")[
            "containerInstanceArns"
        ]
    ) == sorted(some)
    assert found("attribute:gpu !exists") == 7
    assert found("attribute:stack != a") == 7
    assert found("attribute:stack in [a, b] and not(attribute:gpu exists)") == 3
    assert found("(attribute:stack == a or attribute:stack == b) and attribute:stack =~ b.*") == 3
    wrong = {"cluster": "prod", "filter": "attribute:stack ="}
    assert refusal(client.list_container_instances, **wrong) == "InvalidParameterException"


def test_tasks_run_where_constraints_provider_and_launch_type_let_them(control: Control, client: Any) -> None:
    """Developer guide, "Task placement constraints", "Amazon ECS capacity providers", "External instances":
    "If this attribute exists, the instance is identified as an external instance"."""
    control.register("prod", 2, attributes={"stack": "a"})
    control.register("prod", 3, attributes={"stack": "a", "ecs.capability.external": ""})
    control.register("prod", 4, provider="asg")
    limited = [{"type": "distinctInstance"}, {"type": "memberOf", "expression": "attribute:stack == a"}]
    strategy = [{"capacityProvider": "asg", "weight": 1}]
    control.put_service("prod", "limited", constraints=limited, desired=99)
    control.put_service("prod", "far", launch_type="EXTERNAL", desired=99)
    control.put_service("prod", "scaled", providers=strategy, desired=99)
    control.put_service("prod", "any", desired=99)
    running = {name: service(client, name)["runningCount"] for name in ("limited", "far", "scaled", "any")}
    assert running == {"limited": 2, "far": 3, "scaled": 4, "any": 6}
    assert "launchType" not in service(client, "scaled")
    assert "capacityProviderStrategy" not in service(client, "any")


@pytest.mark.parametrize(("healthy", "stops"), [(100, False), (67, False), (66, True)])
def test_a_task_of_an_instance_that_drains_stops_when_enough_others_run(
    control: Control, client: Any, healthy: int, *, stops: bool
) -> None:
    """API reference, UpdateContainerInstancesState: "If the minimum is 100%, the service scheduler can't
    remove existing tasks until the replacement tasks are considered healthy"."""
    here = arns(control.register("prod", 3))
    control.put_service("prod", "agent", desired=3, minimum_healthy=healthy)
    assert service(client)["runningCount"] == 3
    control.drain("prod", here[:1])
    assert (here[0] not in control.service("prod", "agent")["tasks"]) == stops
    control.register("prod")
    assert service(client)["runningCount"] == 3
    assert here[0] not in control.service("prod", "agent")["tasks"], "the replacement has a place"


def test_managed_scaling_adds_instances_for_tasks_and_takes_idle_ones_away(
    control: Control, client: Any
) -> None:
    """Developer guide, "Automatically manage Amazon ECS capacity with cluster auto scaling"; of tasks without
    a strategy: "those tasks aren't counted for capacity provider scaling actions". With managed termination
    protection "Amazon ECS only terminates EC2 instances that don't have any running Amazon ECS tasks"."""
    strategy = [{"capacityProvider": "asg", "weight": 1}]
    control.put_provider("asg", target=80, maximum=20)
    control.put_service("prod", "agent", providers=strategy, desired=4)
    control.put_service("prod", "other", desired=50)
    assert [len(control.scale("prod")), len(control.scale("prod"))] == [5, 0]
    control.put_service("prod", "agent", providers=strategy, desired=3)
    assert control.scale("prod") == [], "a task of the other service is on each"
    control.put_service("prod", "other", strategy="DAEMON")
    (event,) = control.scale("prod")
    assert event["detail"]["status"] == "INACTIVE"
    control.put_service("prod", "other", strategy="REPLICA", desired=50)
    control.put_provider("asg", target=100, maximum=20, protected=False)
    assert len(control.scale("prod")) == 1, "whatever runs on it"
    control.put_service("prod", "agent", providers=strategy, desired=99)
    assert len(control.scale("prod")) == 17, "the group's maximum"
    control.put_provider("asg", status="DISABLED")
    control.put_service("prod", "agent", providers=strategy, desired=0)
    assert control.scale("prod") == []
    (found,) = client.describe_capacity_providers(cluster="prod", capacityProviders=["asg"])[
        "capacityProviders"
    ]
    assert found["autoScalingGroupProvider"]["managedScaling"]["status"] == "DISABLED"
    missing = client.describe_capacity_providers(cluster="prod", capacityProviders=["none"])
    assert (missing["capacityProviders"], missing["failures"][0]["reason"]) == ([], "MISSING")


def test_instances_tell_their_provider_and_task_definitions_their_constraints(
    control: Control, client: Any
) -> None:
    """API reference, DescribeContainerInstances, DescribeTaskDefinition."""
    mine, other = arns([*control.register("prod", 1, provider="asg"), *control.register("prod")])
    answer = client.describe_container_instances(cluster="prod", containerInstances=[mine, other, f"{mine}0"])
    assert [one.get("capacityProviderName") for one in answer["containerInstances"]] == ["asg", None]
    assert [one["reason"] for one in answer["failures"]] == ["MISSING"]
    constraints = [{"type": "memberOf", "expression": "attribute:stack == a"}]
    control.put_service("prod", "agent", definition="agent:7", defined=constraints)
    definition = service(client)["taskDefinition"]
    told = client.describe_task_definition(taskDefinition=definition)["taskDefinition"]
    assert (told["taskDefinitionArn"], told["placementConstraints"]) == (definition, constraints)
    assert refusal(client.describe_task_definition, taskDefinition="agent:8") == "ClientException"


def test_events_are_those_of_eventbridge(control: Control) -> None:
    """Developer guide, "Amazon ECS container instance state change events"."""
    (joined,) = control.register("prod")
    assert (joined["source"], joined["detail-type"]) == ("aws.ecs", "ECS Container Instance State Change")
    assert (joined["detail"]["status"], joined["detail"]["version"]) == ("ACTIVE", 1)
    assert joined["resources"] == arns([joined])
    (flap,) = control.flap("prod", connected=False)
    changed = {name for name in flap["detail"] if flap["detail"][name] != joined["detail"][name]}
    assert changed - {"updatedAt", "ec2InstanceId"} == {"agentConnected", "version"}
    (gone,) = control.deregister("prod", arns([joined]))
    assert (gone["detail"]["status"], gone["detail"]["version"]) == ("INACTIVE", 3)


def test_regions_are_apart(control: Control, server: Ecs) -> None:
    control.add_cluster("far", region="us-east-1")
    other = made_client("ecs", server.url, region="us-east-1")
    assert [arn.rpartition("/")[2] for arn in other.list_clusters()["clusterArns"]] == ["far"]
    other.close()


def test_requests_are_held_to_botocores_model(control: Control, client: Any, server: Ecs) -> None:
    with pytest.raises(ParamValidationError):
        client.describe_services(cluster="prod")
    assert control.calls() == []
    assert refusal(client.create_cluster, clusterName="x") == "UnknownOperationException"


def test_faults_are_used_up_and_told(control: Control, client: Any) -> None:
    control.put_service("prod", "agent")
    control.throttle(operation="DescribeServices", cluster="prod", count=2)
    control.fault("lose_reply", operation="UpdateService")
    control.deny("ListClusters")
    for _ in range(2):
        assert refusal(client.describe_services, cluster="prod", services=["agent"]) == "ThrottlingException"
    with pytest.raises(ConnectionClosedError):
        client.update_service(cluster="prod", service="agent", desiredCount=4)
    assert service(client)["desiredCount"] == 4, "it was done"
    assert refusal(client.list_clusters) == "AccessDeniedException"
    assert [call["code"] for call in control.calls()] == [
        *["ThrottlingException"] * 2,
        "(reply lost)",
        "",
        "AccessDeniedException",
    ]
    assert [fault["used"] for fault in control.faults()] == [2, 1]
    with pytest.raises(ControlError, match="action 'explode' is none of"):
        control.fault("explode")


def test_half_a_call_is_not_in_the_ledger(control: Control, server: Ecs) -> None:
    """Whoever reads the ledger takes what stands there for a call that was made."""
    place = urlsplit(server.url)
    head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{"
    with socket.create_connection((place.hostname, place.port)) as half:
        half.sendall(head.encode())
        control.instances("prod")  # a call later, the server has read that
        assert control.calls() == []
