"""Placement of a service's tasks by ECS: services whose count must not be set, and the filter that lists the
container instances that count.

Pure. docs/design/005-ecs.md quotes the sentences of AWS that this relies on.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from caretaker.api.conditions import EcsReason as Reason

FARGATE: Final = frozenset(("FARGATE", "FARGATE_SPOT"))  # launch types, and capacity providers of these names
MANAGED_INSTANCES: Final = "MANAGED_INSTANCES"
# Subjects that depend on the tasks that run on an instance, the service's own among them.
_BY_TASKS: Final = re.compile(r"\b(task\s*:|runningTasksCount\b)", re.IGNORECASE)
_OR: Final = re.compile(r"\|\||\bor\b", re.IGNORECASE)
# "If this attribute exists, the instance is identified as an external instance" (developer guide).
EXTERNAL: Final = "attribute:ecs.capability.external exists"
NOT_EXTERNAL: Final = "attribute:ecs.capability.external !exists"

Service = Mapping[str, Any]
ReasonMessage = tuple[str, str]  # (reason, message)


def refusal(name: str, service: Service) -> ReasonMessage | None:
    """Why a service's desired count must not be set. `name`: the service, for the message."""
    status, launch = service["status"], _launch_types(service)
    if status != "ACTIVE":
        return (
            Reason.SERVICE_INACTIVE,
            f"{name} is {status}: create it again, or take the cluster from spec.ecs.clusters",
        )
    if service["schedulingStrategy"] == "DAEMON":
        return (
            Reason.DAEMON_SERVICE,
            f"{name} has schedulingStrategy DAEMON, with which ECS itself keeps one task on each container "
            "instance: this task has nothing to do there, delete it or name other clusters",
        )
    if launch & FARGATE:
        return on_fargate(name)
    if MANAGED_INSTANCES in launch:
        return managed_scaling(name, [f"launchType {MANAGED_INSTANCES}"])
    return by_tasks(name, expressions(service))


def refusal_of(name: str, providers: Sequence[str]) -> ReasonMessage | None:
    """The same, by the capacity providers of the service."""
    if FARGATE & set(providers):
        return on_fargate(name)
    if len(providers) > 1:
        return (
            Reason.SEVERAL_CAPACITY_PROVIDERS,
            f"{name} uses the capacity providers {', '.join(providers)}, and ECS divides its tasks among "
            "them by weight, not by how many container instances each has: use one provider, or launchType "
            "EC2",
        )
    return None


def on_fargate(name: str) -> ReasonMessage:
    """The refusal of a service on Fargate. A strategy has providers of Fargate or of Auto Scaling groups,
    never both, and replaces launchType (API reference, CreateService)."""
    return (
        Reason.FARGATE_SERVICE,
        f"{name} runs on Fargate, by its launchType or its capacity providers, and so on no container "
        "instance: use launchType EC2 or capacity providers of Auto Scaling groups",
    )


def managed_scaling(name: str, providers: Sequence[str]) -> ReasonMessage:
    """The refusal of managed scaling: ECS adds container instances for tasks, and each adds a task."""
    return (
        Reason.MANAGED_SCALING,
        f"{name} uses {', '.join(providers)} with managed scaling: ECS adds container instances for its "
        "tasks, and each would be counted as one more task, up to the group's maximum; use launchType EC2, "
        "turn managed scaling off, or create the service anew with schedulingStrategy DAEMON",
    )


def providers_of(service: Service) -> tuple[str, ...] | None:
    """The capacity providers of a service, sorted; empty with a launch type. None: it has neither, so the
    cluster's default strategy applies."""
    strategies = [one.get("capacityProviderStrategy") or () for one in _parts(service)]
    if not any(strategies):
        return () if _launch_types(service) else None
    return used(item for strategy in strategies for item in strategy)


def used(strategy: "Iterator[Mapping[str, Any]] | Sequence[Mapping[str, Any]]") -> tuple[str, ...]:
    """The providers of a strategy that get tasks: "any capacity providers with a weight of zero aren't
    used"."""
    items = [item for item in strategy if item.get("capacityProvider")]
    weighted = [item for item in items if item.get("weight") or item.get("base")]
    return tuple(sorted({str(item["capacityProvider"]) for item in weighted or items}))


def is_managed(provider: Mapping[str, Any]) -> bool:
    """Whether ECS scales a capacity provider: yes, unless its managed scaling is DISABLED."""
    group = provider.get("autoScalingGroupProvider") or {}
    return (group.get("managedScaling") or {}).get("status") != "DISABLED"


def expressions(of: Service) -> tuple[str, ...]:
    """The memberOf constraints of a service, or of a task definition, in the cluster query language."""
    found = of["placementConstraints"]
    return tuple(
        str(one["expression"]) for one in found if one.get("type") == "memberOf" and one.get("expression")
    )


def is_distinct(service: Service) -> bool:
    """Whether ECS puts no two of its tasks on one container instance."""
    return any(one.get("type") == "distinctInstance" for one in service["placementConstraints"])


def is_external(service: Service) -> bool:
    """Whether it runs on instances of ECS Anywhere alone."""
    return "EXTERNAL" in _launch_types(service)


def query(service: Service, constraints: Sequence[str]) -> str:
    """The filter of ListContainerInstances, in the language of memberOf: ECS itself counts."""
    parts = [EXTERNAL if is_external(service) else NOT_EXTERNAL, *constraints]
    # "A single expression can't contain parentheses", and one without `or` needs none beside `and`.
    return " and ".join(f"({part})" if _OR.search(part) else part for part in parts)


def doubt(name: str, service: Service, draining: int | None, *, unread: bool) -> tuple[str, str]:
    """(reason, message) of a fault of a service whose count is kept. `draining`: the number of instances
    where draining ones count; `unread`: the task definition may not be read."""
    if not is_distinct(service):
        return (
            Reason.NO_DISTINCT_INSTANCE,
            f"{name} lacks the placement constraint distinctInstance: ECS may put two of its tasks on one "
            "container instance and none on another; add it with UpdateService",
        )
    if unread:
        return (
            Reason.TASK_DEFINITION_UNREAD,
            f"{name}: the placement constraints of its task definition cannot be read, and container "
            "instances that they leave out are counted: allow ecs:DescribeTaskDefinition to the identity "
            "that spec.ecs.aws names",
        )
    if draining is not None and hangs(service, draining):
        return (
            Reason.DRAIN_MAY_HANG,
            f"{name} has a minimumHealthyPercent with which no task may stop before another runs, and "
            "countInstances Registered wants a task for an instance that drains, too: its drain may not "
            "end; set countInstances to Active, or minimumHealthyPercent lower",
        )
    return "", ""


def hangs(service: Service, counted: int) -> bool:
    """Whether a drain may hang where draining instances count: the draining task may stop only when enough
    others run, and one of these has no instance."""
    healthy = (service.get("deploymentConfiguration") or {}).get("minimumHealthyPercent")
    least = -(-counted * (100 if healthy is None else healthy) // 100)  # "rounded up to the nearest integer"
    return counted > 0 and is_distinct(service) and least >= counted


def _parts(service: Service) -> list[Mapping[str, Any]]:
    """The service, its deployments and its task sets: all are in force during a deployment."""
    return [service, *(service.get("deployments") or ()), *(service.get("taskSets") or ())]


def _launch_types(service: Service) -> set[str]:
    return {str(one["launchType"]) for one in _parts(service) if one.get("launchType")}


def by_tasks(name: str, constraints: Sequence[str]) -> ReasonMessage | None:
    """The refusal of a constraint that depends on running tasks; None: there is none."""
    found = next((one for one in constraints if _BY_TASKS.search(one)), None)
    if found is None:
        return None
    return (
        Reason.PLACEMENT_BY_TASKS,
        f"{name} has the placement constraint {found!r}, which depends on the tasks that run: how many "
        "container instances it leaves cannot be counted beforehand; use attributes of container instances",
    )
