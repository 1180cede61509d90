"""The calls of Amazon ECS that are used, as aws.calls.Aws.ecs provides them.

Types only; response_check.py validates responses against them, and callers check the members that observing
a cluster needs besides. Names are AWS's own (Amazon ECS API reference); every method raises
AwsError.
"""

# ruff: noqa: N803 - the parameters' names are AWS's
from collections.abc import Sequence
from typing import Annotated, Protocol, TypedDict

import msgspec

from caretaker.aws.errors import Name

# The most that maxResults can ask for.
Page = Annotated[list[Name], msgspec.Meta(max_length=100)]
# Amazon ECS API reference, PlacementConstraint.
Expression = Annotated[str, msgspec.Meta(max_length=2000)]


class Failure(TypedDict, total=False):
    """A requested resource that was not found, while the call as a whole succeeded. reason: MISSING."""

    arn: Name
    reason: Name
    detail: str


class PlacementConstraint(TypedDict, total=False):
    """type: distinctInstance | memberOf."""

    type: str
    expression: Expression


# A task has 10 at most (API reference, CreateService), with those of its definition.
Constraints = Annotated[list[PlacementConstraint], msgspec.Meta(max_length=100)]


class CapacityProviderStrategyItem(TypedDict, total=False):
    """capacityProvider: FARGATE | FARGATE_SPOT | the name of one of an Auto Scaling group. Without weight
    and base it gets no tasks."""

    capacityProvider: Name
    weight: int
    base: int


class DeploymentConfiguration(TypedDict, total=False):
    """minimumHealthyPercent: of the desired count, 100 by default."""

    minimumHealthyPercent: int


class Deployment(TypedDict, total=False):
    """The members that are read of a Deployment or a TaskSet."""

    launchType: Name
    capacityProviderStrategy: list[CapacityProviderStrategyItem]


class Service(TypedDict, total=False):
    """The members that are read of a Service.

    status: ACTIVE | DRAINING | INACTIVE; schedulingStrategy: REPLICA | DAEMON; launchType: EC2 | FARGATE |
    EXTERNAL | MANAGED_INSTANCES, absent where capacity providers decide.
    """

    clusterArn: Name
    status: Name
    desiredCount: int
    runningCount: int
    launchType: Name
    capacityProviderStrategy: list[CapacityProviderStrategyItem]
    schedulingStrategy: Name
    taskDefinition: Name
    placementConstraints: Constraints
    deploymentConfiguration: DeploymentConfiguration
    deployments: list[Deployment]
    taskSets: list[Deployment]


class DescribeServicesResult(TypedDict, total=False):
    """A service that was deleted is among `services` for a while, INACTIVE."""

    services: list[Service]
    failures: list[Failure]


class Cluster(TypedDict, total=False):
    """registeredContainerInstancesCount: ACTIVE and DRAINING ones."""

    clusterArn: Name
    status: Name
    registeredContainerInstancesCount: int
    defaultCapacityProviderStrategy: list[CapacityProviderStrategyItem]


class DescribeClustersResult(TypedDict, total=False):
    """A cluster that was deleted is among `clusters` for a while, INACTIVE."""

    clusters: list[Cluster]
    failures: list[Failure]


class ManagedScaling(TypedDict, total=False):
    """status: ENABLED | DISABLED."""

    status: Name


class AutoScalingGroupProvider(TypedDict, total=False):
    """The fields that are read."""

    managedScaling: ManagedScaling


class CapacityProvider(TypedDict, total=False):
    """Without autoScalingGroupProvider it is AWS's own: Fargate, or Managed Instances."""

    name: Name
    autoScalingGroupProvider: AutoScalingGroupProvider


class DescribeCapacityProvidersResult(TypedDict, total=False):
    """At most 10 a page."""

    capacityProviders: list[CapacityProvider]
    failures: list[Failure]
    nextToken: str


class ContainerInstance(TypedDict, total=False):
    """capacityProviderName is absent where it is of none."""

    containerInstanceArn: Name
    capacityProviderName: Name


class DescribeContainerInstancesResult(TypedDict, total=False):
    """One that is gone is among `failures`."""

    containerInstances: list[ContainerInstance]
    failures: list[Failure]


class TaskDefinition(TypedDict, total=False):
    """The members that are read of a revision, which never changes."""

    placementConstraints: Constraints


class DescribeTaskDefinitionResult(TypedDict, total=False):
    """Includes deregistered ones."""

    taskDefinition: TaskDefinition


class ListClustersResult(TypedDict, total=False):
    """nextToken is absent on the last page."""

    clusterArns: Page
    nextToken: str


class ListContainerInstancesResult(TypedDict, total=False):
    """nextToken is absent on the last page."""

    containerInstanceArns: Page
    nextToken: str


class UpdateServiceResult(TypedDict, total=False):
    """The service as it is to be."""

    service: Service


class Ecs(Protocol):
    """Amazon ECS."""

    async def list_clusters(self, *, maxResults: int = ..., nextToken: str = ...) -> ListClustersResult:
        """One page of at most 100; follow nextToken."""

    async def describe_clusters(self, *, clusters: Sequence[str]) -> DescribeClustersResult:
        """At most 100, by name or ARN."""

    async def describe_services(self, *, cluster: str, services: Sequence[str]) -> DescribeServicesResult:
        """At most 10, by name or ARN."""

    async def describe_capacity_providers(
        self, *, cluster: str, capacityProviders: Sequence[str]
    ) -> DescribeCapacityProvidersResult:
        """At most 100, by name or ARN, that are associated with the cluster."""

    async def describe_container_instances(
        self, *, cluster: str, containerInstances: Sequence[str]
    ) -> DescribeContainerInstancesResult:
        """At most 100, by ID or ARN."""

    async def describe_task_definition(self, *, taskDefinition: str) -> DescribeTaskDefinitionResult:
        """By ARN."""

    async def list_container_instances(
        self,
        *,
        cluster: str,
        status: str = ...,
        filter: str = ...,  # noqa: A002 - the parameter's name is AWS's
        maxResults: int = ...,
        nextToken: str = ...,
    ) -> ListContainerInstancesResult:
        """One page of at most 100; follow nextToken. Without a status, of all but INACTIVE; `filter` is an
        expression of the cluster query language."""

    async def update_service(self, *, cluster: str, service: str, desiredCount: int) -> UpdateServiceResult:
        """Guarded."""
