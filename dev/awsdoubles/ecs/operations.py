"""The operations of Amazon ECS that caretaker uses: the checked input in, the answer out, or AWS's error.

What each does stands in the Amazon ECS API reference, under its name; what is AWS's limit, too.
"""

import base64
from collections.abc import Callable
from typing import Final

from awsdoubles.clients import ACCOUNT
from awsdoubles.ecs.query import QueryError, parse
from awsdoubles.ecs.state import REGISTERED, Cluster, Instance, Provider, Service, World
from awsdoubles.jsonprotocol import AwsError, Json

MOST_SERVICES: Final = 10
MOST_CLUSTERS: Final = 100
PAGE: Final = 100
# "If you don't specify this parameter, the default is to include container instances set to all states other
# than INACTIVE" (ListContainerInstances, status).
ALL: Final = ("ACTIVE", "DRAINING", "REGISTERING", "DEREGISTERING", "REGISTRATION_FAILED")


def list_clusters(world: World, region: str, body: Json, _: float) -> Json:
    """Active ones alone."""
    found = [one.arn for one in world.in_region(region) if one.status == "ACTIVE"]
    return _page(found, body, "clusterArns")


def describe_clusters(world: World, region: str, body: Json, _: float) -> Json:
    """What is not there is told in `failures`; what was deleted is INACTIVE for a while."""
    names = body.get("clusters") or ["default"]
    if len(names) > MOST_CLUSTERS:
        raise AwsError("InvalidParameterException", f"clusters can have at most {MOST_CLUSTERS} items.")
    found = {name: world.find(region, name) for name in names}
    return {
        "clusters": [_cluster(one) for one in found.values() if one is not None],
        "failures": [
            _failure(region, f"cluster/{name.rpartition('/')[2]}")
            for name, one in found.items()
            if one is None
        ],
    }


def describe_services(world: World, region: str, body: Json, now: float) -> Json:
    """At most 10; what is not there is told in `failures`, what was deleted is INACTIVE for a while."""
    cluster = _known(world, region, body)
    names = [name.rpartition("/")[2] for name in body["services"]]
    if not 0 < len(names) <= MOST_SERVICES:
        raise AwsError("InvalidParameterException", f"services can have at most {MOST_SERVICES} items.")
    found = {name: cluster.services.get(name) for name in names}
    for service in filter(None, found.values()):
        cluster.settle(service, now, world.settings.start_seconds)
    missing = [name for name, one in found.items() if one is None]
    return {
        "services": [_service(one) for one in found.values() if one is not None],
        "failures": [_failure(region, f"service/{cluster.name}/{name}") for name in missing],
    }


def list_container_instances(world: World, region: str, body: Json, _: float) -> Json:
    """Pages of at most 100, of those that match the filter."""
    cluster = _known(world, region, body)
    statuses = (body["status"],) if body.get("status") else ALL
    try:
        matches = parse(body["filter"]) if body.get("filter") else None
    except QueryError as error:
        raise AwsError("InvalidParameterException", f"Invalid filter: {error}") from None
    found = [one.arn for one in cluster.of_status(*statuses) if matches is None or matches(one.attributes)]
    return _page(found, body, "containerInstanceArns")


def describe_container_instances(world: World, region: str, body: Json, _: float) -> Json:
    """At most 100; one that is gone is told in `failures`."""
    cluster = _known(world, region, body)
    asked = body["containerInstances"]
    if not 0 < len(asked) <= PAGE:
        raise AwsError("InvalidParameterException", "instanceIds can have at most 100 items.")
    return {
        "containerInstances": [
            _instance(cluster.instances[arn]) for arn in asked if arn in cluster.instances
        ],
        "failures": [{"arn": arn, "reason": "MISSING"} for arn in asked if arn not in cluster.instances],
    }


def describe_capacity_providers(world: World, region: str, body: Json, _: float) -> Json:
    """At most 10 a page; what is missing is told in `failures`."""
    names = body.get("capacityProviders") or [name for where, name in world.providers if where == region]
    found = {name: world.providers.get((region, name)) for name in names}
    missing = [_failure(region, f"capacity-provider/{name}") for name, one in found.items() if one is None]
    return {
        "capacityProviders": [_provider(region, one) for one in found.values() if one is not None][:10],
        "failures": missing,
    }


def describe_task_definition(world: World, region: str, body: Json, _: float) -> Json:
    """Those that a service has."""
    name = body["taskDefinition"].rpartition("/")[2]
    services = (one for cluster in world.in_region(region) for one in cluster.services.values())
    found = next((one for one in services if one.definition == name), None)
    if found is None:
        raise AwsError("ClientException", "Unable to describe task definition.")
    described = {"taskDefinitionArn": _definition(region, found), "status": "ACTIVE"}
    return {"taskDefinition": {**described, "placementConstraints": found.defined, "volumes": []}, "tags": []}


def update_service(world: World, region: str, body: Json, now: float) -> Json:
    """The desired count. A service that is not ACTIVE, or of the DAEMON strategy, is refused."""
    cluster = _known(world, region, body)
    service = cluster.services.get(body["service"].rpartition("/")[2])
    if service is None:
        raise AwsError("ServiceNotFoundException", "Service not found.")
    if service.status != "ACTIVE":
        raise AwsError("ServiceNotActiveException", "Service was not ACTIVE.")
    if service.strategy == "DAEMON":
        raise AwsError(
            "InvalidParameterException",
            "The daemon scheduling strategy does not support a desired count for services. Remove the "
            "desired count value and try again",
        )
    cluster.settle(service, now, world.settings.start_seconds)
    if body.get("desiredCount") is not None:
        service.desired, service.changed_at = body["desiredCount"], now
    return {"service": _service(service)}


Operation = Callable[[World, str, Json, float], Json]
OPERATIONS: Final[dict[str, Operation]] = {
    "ListClusters": list_clusters,
    "DescribeClusters": describe_clusters,
    "DescribeServices": describe_services,
    "DescribeCapacityProviders": describe_capacity_providers,
    "DescribeContainerInstances": describe_container_instances,
    "DescribeTaskDefinition": describe_task_definition,
    "ListContainerInstances": list_container_instances,
    "UpdateService": update_service,
}


def clusters_named(body: Json) -> list[str]:
    """The names of the clusters that a call is about."""
    named = [body["cluster"]] if "cluster" in body else body.get("clusters", [])
    return [name.rpartition("/")[2] for name in named]


def _known(world: World, region: str, body: Json) -> Cluster:
    cluster = world.find(region, body.get("cluster", ""))
    if cluster is None or cluster.status != "ACTIVE":
        raise AwsError("ClusterNotFoundException", "Cluster not found.")
    return cluster


def _page(found: list[str], body: Json, member: str) -> Json:
    most = body.get("maxResults") or PAGE
    if not 1 <= most <= PAGE:
        raise AwsError("InvalidParameterException", "maxResults must be between 1 and 100.")
    try:
        start = int(base64.urlsafe_b64decode(body["nextToken"])) if body.get("nextToken") else 0
    except ValueError:
        raise AwsError("InvalidParameterException", "Invalid token") from None
    page: Json = {member: found[start : start + most]}
    if start + most < len(found):
        page["nextToken"] = base64.urlsafe_b64encode(str(start + most).encode()).decode()
    return page


def _failure(region: str, resource: str) -> Json:
    return {"arn": f"arn:aws:ecs:{region}:{ACCOUNT}:{resource}", "reason": "MISSING"}


def _cluster(one: Cluster) -> Json:
    return {
        "clusterArn": one.arn,
        "clusterName": one.name,
        "status": one.status,
        "registeredContainerInstancesCount": len(one.of_status(*REGISTERED)),
        "runningTasksCount": sum(service.running for service in one.services.values()),
        "pendingTasksCount": 0,
        "activeServicesCount": sum(service.status == "ACTIVE" for service in one.services.values()),
        "capacityProviders": [],
        "defaultCapacityProviderStrategy": one.default_strategy,
    }


def _instance(one: Instance) -> Json:
    return {
        "containerInstanceArn": one.arn,
        "status": one.status,
        "agentConnected": one.connected,
        "version": one.version,
        "attributes": [{"name": name, "value": value} for name, value in one.attributes.items()],
        **({"capacityProviderName": one.provider} if one.provider else {}),
    }


def _provider(region: str, one: Provider) -> Json:
    group = f"arn:aws:autoscaling:{region}:{ACCOUNT}:autoScalingGroup:1:autoScalingGroupName/{one.name}"
    return {
        "capacityProviderArn": f"arn:aws:ecs:{region}:{ACCOUNT}:capacity-provider/{one.name}",
        "name": one.name,
        "status": "ACTIVE",
        "autoScalingGroupProvider": {
            "autoScalingGroupArn": group,
            "managedScaling": {"status": one.status, "targetCapacity": one.target},
            "managedTerminationProtection": "ENABLED" if one.protected else "DISABLED",
        },
    }


def _definition(region: str, service: Service) -> str:
    return f"arn:aws:ecs:{region}:{ACCOUNT}:task-definition/{service.definition}"


def _service(one: Service) -> Json:
    """Of launchType and capacityProviderStrategy it has the one with which it was created (API reference,
    Service)."""
    how = {"capacityProviderStrategy": one.providers} if one.providers else {"launchType": one.launch_type}
    return {
        "serviceArn": one.arn,
        "serviceName": one.name,
        "clusterArn": one.cluster,
        "taskDefinition": _definition(one.cluster.split(":")[3], one),
        "status": one.status,
        "desiredCount": one.desired,
        "runningCount": one.running,
        "pendingCount": max(one.desired - one.running, 0),
        **(how if one.providers or one.launch_type else {}),
        "deploymentConfiguration": {
            "minimumHealthyPercent": one.minimum_healthy,
            "maximumPercent": one.maximum,
        },
        "schedulingStrategy": one.strategy,
        "placementConstraints": one.constraints,
        "placementStrategy": [],
        "loadBalancers": [],
        "serviceRegistries": [],
        "events": [],
        "deployments": [],
    }


def instance_view(one: Instance) -> Json:
    """For the control API."""
    return {"arn": one.arn, "status": one.status, "agentConnected": one.connected, "version": one.version}
