"""Where ECS puts a service's tasks, when it stops them, and how managed scaling adds instances for them.

Pure. After the ECS developer guide: "Task placement constraints", "Draining Amazon ECS container instances",
"Amazon ECS capacity providers", "Automatically manage Amazon ECS capacity with cluster auto scaling".
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from awsdoubles.ecs.query import QueryError, parse

if TYPE_CHECKING:
    from awsdoubles.ecs.state import Cluster, Instance, Provider, Service

EXTERNAL = "ecs.capability.external"


def places(cluster: Cluster, service: Service) -> list[Instance]:
    """The container instances on which a task of it may start: none where an expression is about tasks."""
    try:
        constraints = [*service.constraints, *service.defined]
        wanted = [parse(one["expression"]) for one in constraints if one["type"] == "memberOf"]
    except QueryError:
        return []
    providers = {one["capacityProvider"] for one in service.providers}
    return [
        one
        for one in cluster.of_status("ACTIVE")
        if all(matches(one.attributes) for matches in wanted)
        and (not providers or one.provider in providers)
        and (EXTERNAL in one.attributes) == (service.launch_type == "EXTERNAL")
    ]


def schedule(cluster: Cluster, service: Service) -> None:
    """Start what has a place; stop what is too much, or drains.

    "If the minimum is 100%, the service scheduler can't remove existing tasks until the replacement tasks are
    considered healthy": a task of an instance that drains stops while enough others run.
    """
    tasks = [arn for arn in service.tasks if arn in cluster.instances]
    draining = {one.arn for one in cluster.of_status("DRAINING")}
    most = max(service.desired * service.maximum // 100, service.desired)
    lacking = service.desired - sum(arn not in draining for arn in tasks)
    tasks += _started(cluster, service, tasks)[: max(min(lacking, most - len(tasks)), 0)]
    healthy = -(-service.desired * service.minimum_healthy // 100)
    for arn in [arn for arn in tasks if arn in draining]:
        if len(tasks) - 1 >= min(healthy, service.desired):
            tasks.remove(arn)
    while len(tasks) > service.desired:
        tasks.pop()
    service.tasks = tasks


def _started(cluster: Cluster, service: Service, tasks: list[str]) -> list[str]:
    """Where tasks would start, one after another: where the fewest are."""
    number = Counter(tasks)
    free = sorted((one.arn for one in places(cluster, service)), key=lambda arn: number[arn])
    if any(one["type"] == "distinctInstance" for one in service.constraints):
        return [arn for arn in free if not number[arn]]
    return free * max(service.desired, 1)


def instances_wanted(cluster: Cluster, provider: Provider) -> int:
    """How many instances managed scaling wants: CapacityProviderReservation, M / N x 100, is to be
    targetCapacity. M are those with a task, and one more for each that waits, which is what distinctInstance
    makes of it; tasks without a strategy, and those of DAEMON services, are not counted."""
    mine = {one.arn for one in cluster.instances.values() if one.provider == provider.name}
    busy: set[str] = set()
    waiting = 0
    for service in cluster.services.values():
        if provider.name in [one["capacityProvider"] for one in service.providers]:
            busy |= mine & set(service.tasks)
            waiting += max(service.desired - len(service.tasks), 0)
    needed = len(busy) + waiting
    return min(-(-needed * 100 // provider.target), provider.maximum)
