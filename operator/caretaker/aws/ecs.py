"""The calls of Amazon ECS that are used, as aws.calls.Aws.ecs answers them.

Types only. Names are AWS's own (Amazon ECS API reference); every method raises AwsError.
"""

# ruff: noqa: N803 - the parameters' names are AWS's
from collections.abc import Sequence
from typing import Protocol, TypedDict


class Failure(TypedDict, total=False):
    """What was asked for and not found, while the call as a whole succeeded. reason: MISSING."""

    arn: str
    reason: str
    detail: str


class PlacementConstraint(TypedDict, total=False):
    """type: distinctInstance | memberOf."""

    type: str
    expression: str


class CapacityProviderStrategyItem(TypedDict, total=False):
    """capacityProvider: FARGATE | FARGATE_SPOT | the name of one of an Auto Scaling group."""

    capacityProvider: str


class Service(TypedDict, total=False):
    """What is read of a Service.

    status: ACTIVE | DRAINING | INACTIVE; schedulingStrategy: REPLICA | DAEMON; launchType is absent where
    capacity providers decide.
    """

    serviceArn: str
    serviceName: str
    clusterArn: str
    status: str
    desiredCount: int
    runningCount: int
    launchType: str
    capacityProviderStrategy: list[CapacityProviderStrategyItem]
    schedulingStrategy: str
    placementConstraints: list[PlacementConstraint]


class DescribeServicesResult(TypedDict, total=False):
    """A service that was deleted is among `services` for a while, INACTIVE."""

    services: list[Service]
    failures: list[Failure]


class Cluster(TypedDict, total=False):
    """registeredContainerInstancesCount: ACTIVE and DRAINING ones."""

    clusterArn: str
    clusterName: str
    status: str
    registeredContainerInstancesCount: int


class DescribeClustersResult(TypedDict, total=False):
    """A cluster that was deleted is among `clusters` for a while, INACTIVE."""

    clusters: list[Cluster]
    failures: list[Failure]


class ListClustersResult(TypedDict, total=False):
    """nextToken is absent on the last page."""

    clusterArns: list[str]
    nextToken: str


class ListContainerInstancesResult(TypedDict, total=False):
    """nextToken is absent on the last page."""

    containerInstanceArns: list[str]
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

    async def list_container_instances(
        self, *, cluster: str, status: str = ..., maxResults: int = ..., nextToken: str = ...
    ) -> ListContainerInstancesResult:
        """One page of at most 100; follow nextToken. Without a status, of all but INACTIVE."""

    async def update_service(self, *, cluster: str, service: str, desiredCount: int) -> UpdateServiceResult:
        """Guarded."""
