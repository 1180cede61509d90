"""A check of one cluster: its calls to AWS, and the state of the service by their answers.

Pure: a generator yields calls and receives answers; the caller sends the calls to AWS, or simulates them. A
check takes at most three calls: DescribeServices, ListContainerInstances or DescribeClusters, UpdateService.
Each further hundred container instances adds a page, `learn` adds a list to DescribeClusters. Separate checks
read the task definition and the capacity providers; they set nothing and take at most three calls as well.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from caretaker.api.conditions import EcsReason as Reason
from caretaker.aws.errors import word
from caretaker.daemontask.ecs import placement

PAGE: Final = 100
MOST_PAGES: Final = 200  # of container instances; a cluster has 5,000 at most (Amazon ECS service quotas)
MOST_SHOWN: Final = 3  # reasons of failures in a message
MOST_LESSONS: Final = 6  # checks in a row that only read Facts
# Reasons for which the cluster does not run the service at all.
ABSENT: Final = frozenset((Reason.CLUSTER_NOT_FOUND, Reason.SERVICE_NOT_FOUND, Reason.SERVICE_INACTIVE))

# The answer to DescribeTaskDefinition where it is not allowed has this member. An IAM policy without that
# action goes on to work, with Degraded.
DENIED: Final = "denied"

Answer = Mapping[str, Any]
Counts = Literal["Registered", "Active"]
T = TypeVar("T")


class UnclearError(Exception):
    """An answer lacks a required member: it proves nothing, and the check is repeated later."""


class PendingDecrease(msgspec.Struct, frozen=True):
    """A decrease larger than one answer may cause. `counted`: the largest number seen since; `old`: seen long
    enough ago for this check to confirm it; `new`: no earlier check saw it."""

    counted: int
    old: bool = False
    new: bool = False


class Facts(msgspec.Struct, frozen=True):
    """Facts about a service that DescribeServices does not have. They expire, but for `lasting`."""

    default: tuple[str, ...] | None = None  # capacity providers of the cluster's default strategy
    managed: Mapping[str, bool] = {}  # capacity provider -> whether ECS scales it
    members: Mapping[str, str] = {}  # container instance -> its capacity provider, "" = none
    definition: str = ""  # ARN of the task definition that has `constraints`
    constraints: tuple[str, ...] | None = ()  # memberOf; None: not allowed to read

    @property
    def lasting(self) -> "Facts":
        """The facts that never change: those of a task definition's revision."""
        known = self.constraints is not None
        return Facts(definition=self.definition, constraints=self.constraints) if known else Facts()


class CheckParams(msgspec.Struct, frozen=True):
    """The parameters of a check. `learn`: the container instances are still to be listed."""

    cluster: str
    service: str
    counts: Counts
    learn: bool = True
    max_count: int | None = None
    max_decrease_percent: int = 100
    decrease: PendingDecrease | None = None
    facts: Facts = Facts()

    @property
    def name(self) -> str:
        """The service, for messages."""
        return f"service {self.service} of cluster {self.cluster}"


class Call(msgspec.Struct, frozen=True):
    """A method of aws.ecs.Ecs and its parameters."""

    method: Literal[
        "describe_services",
        "describe_clusters",
        "describe_capacity_providers",
        "describe_container_instances",
        "describe_task_definition",
        "list_container_instances",
        "update_service",
    ]
    parameters: dict[str, Any]


class ServiceState(msgspec.Struct, frozen=True):
    """The state of a service after a check. `reason`: why it is left as it is, or with `doubt` the fault of
    one that is kept; `was`: desiredCount before UpdateService."""

    reason: str = ""
    message: str = ""
    doubt: bool = False
    desired: int | None = None
    running: int | None = None
    counted: int | None = None
    was: int | None = None
    target: int | None = None  # the wanted desiredCount: `counted`, or maxCount
    decrease: PendingDecrease | None = None  # a decrease for a later check to confirm
    counts: Counts = "Active"  # how they were counted
    arns: frozenset[str] | None = None  # container instances that count; None: not listed

    @property
    def in_step(self) -> bool:
        """Whether desiredCount is the wanted one."""
        return self.target is not None and self.desired == self.target and self.decrease is None


class _Count(msgspec.Struct, frozen=True):
    number: int
    counts: Counts
    arns: frozenset[str] | None = None


Check = Generator[Call, Answer, ServiceState]
Steps = Generator[Call, Answer, T]
Keep = Callable[[Facts], object]


def check(params: CheckParams, keep: Keep = lambda _: None) -> Check:
    """The calls of a check, see the module. `keep` gets all facts as soon as one is added, since a later call
    may fail. Raises UnclearError."""
    for _ in range(MOST_LESSONS):
        found = yield from _attempt(params, keep)
        if isinstance(found, ServiceState):
            return found
        keep(found)
        params = replace(params, facts=found)
    raise UnclearError(f"cluster {params.cluster} changes faster than it can be looked at")


def no_cluster(cluster: str) -> ServiceState:
    """The state for a cluster that does not exist."""
    return ServiceState(Reason.CLUSTER_NOT_FOUND, f"there is no active cluster {cluster}")


def no_service(params: CheckParams) -> ServiceState:
    """The state for a service that does not exist."""
    return ServiceState(
        Reason.SERVICE_NOT_FOUND, f"cluster {params.cluster} has no service {params.service}: create it there"
    )


def following(steps: Check, answer: Answer | None) -> Call | ServiceState:
    """The next call of a check after this answer (None: the first call), or its result."""
    try:
        return next(steps) if answer is None else steps.send(answer)
    except StopIteration as end:
        state: ServiceState = end.value
        return state


# ---------------------------------------------------------------- one check


def _attempt(params: CheckParams, keep: Keep) -> Steps[ServiceState | Facts]:
    """The state, or new facts for the next check."""
    answer = yield Call("describe_services", {"cluster": params.cluster, "services": [params.service]})
    service = _one(answer, "services", "DescribeServices")
    if service is None:
        return no_service(params)
    _has(service, "DescribeServices", "status", "schedulingStrategy", "desiredCount", "placementConstraints")
    refused = placement.refusal(params.name, service)
    if refused is not None:
        return ServiceState(*refused)
    providers = placement.providers_of(service)
    if providers is None:
        providers = params.facts.default
    if providers is None:
        return (yield from _default_of(params))
    for learnt in (_judged(params, providers), _defined(params, service)):
        found = yield from learnt
        if found is not None:
            return found
    counted = yield from _counted(params, service, providers, keep)
    if not isinstance(counted, _Count):
        return counted
    return (yield from _set(params, service, counted))


def _set(params: CheckParams, service: Answer, counted: _Count) -> Steps[ServiceState]:
    desired = int(service["desiredCount"])
    found = ServiceState(
        desired=desired,
        running=service.get("runningCount"),
        counted=counted.number,
        counts=counted.counts,
        arns=counted.arns,
    )
    believed, decrease = _believed(params, desired, counted.number)
    target = desired if believed is None else believed
    if believed is not None and params.max_count is not None:
        target = min(believed, params.max_count)
    if decrease is None:
        reason, message = _doubt(params, service, counted, target)
    else:
        reason, message = Reason.CONFIRMING_DECREASE, _unconfirmed(params, target, counted.number)
    doubt = bool(reason) and decrease is None
    found = replace(found, reason=reason, message=message, doubt=doubt, target=target, decrease=decrease)
    if desired == target:
        return found
    yield Call(
        "update_service", {"cluster": params.cluster, "service": params.service, "desiredCount": target}
    )
    return replace(found, desired=target, was=desired)


def _believed(params: CheckParams, desired: int, number: int) -> tuple[int | None, PendingDecrease | None]:
    """(the number of container instances to go by, None: not confirmed yet; the decrease to confirm). A
    decrease by one is never in doubt."""
    if desired - number <= max(desired * params.max_decrease_percent // 100, 1):
        return number, None
    new = PendingDecrease(number, new=True)
    if params.decrease is None or params.decrease.counted >= desired:  # somebody else has made that one
        return None, new
    # Only the instances that both checks miss.
    seen = max(number, params.decrease.counted)
    if not params.decrease.old:
        return None, PendingDecrease(seen)
    return seen, new if number < seen else None


def _unconfirmed(params: CheckParams, desired: int, number: int) -> str:
    return (
        f"{params.name}: {number} container instances are left for a desired count of {desired}, more than "
        f"{params.max_decrease_percent}% less at once: a second look has to find the same first"
    )


def _doubt(params: CheckParams, service: Answer, counted: _Count, target: int) -> tuple[str, str]:
    """(reason, message) of a fault of a service whose count is kept."""
    if target < counted.number:
        return (
            Reason.MAX_COUNT_REACHED,
            f"{params.name}: {counted.number} container instances count, and spec.ecs.maxCount holds the "
            f"desired count at {target}",
        )
    draining = counted.number if counted.counts == "Registered" else None
    unread = params.facts.constraints is None and bool(service.get("taskDefinition"))
    return placement.doubt(params.name, service, draining, unread=unread)


# ---------------------------------------------------------------- counting


def _counted(
    params: CheckParams, service: Answer, providers: tuple[str, ...], keep: Keep
) -> Steps[ServiceState | Facts | _Count]:
    constraints = (*placement.expressions(service), *(params.facts.constraints or ()))
    everywhere = not (providers or constraints or placement.is_external(service))
    if params.counts == "Registered" and everywhere:
        return (yield from _registered(params))
    arns = yield from _listed(params, status="ACTIVE", filter=placement.query(service, constraints))
    if not providers:
        return _Count(len(arns), "Active", arns)
    unknown = sorted(arns - params.facts.members.keys())
    if unknown:
        return (yield from _members_of(params, unknown, keep))
    mine = frozenset(arn for arn in arns if params.facts.members[arn] in providers)
    return _Count(len(mine), "Active", mine)


def _registered(params: CheckParams) -> Steps[ServiceState | _Count]:
    """ECS's own count."""
    arns = None
    if params.learn:
        arns = yield from _listed(params)
    cluster = yield from _cluster(params)
    if cluster is None:
        return no_cluster(params.cluster)
    _has(cluster, "DescribeClusters", "registeredContainerInstancesCount")
    number = int(cluster["registeredContainerInstancesCount"])
    if arns is not None and len(arns) != number:
        # The list also has instances that are REGISTERING, DEREGISTERING or failed to, unmarked. Taken for
        # counted, one that becomes ACTIVE would seem to change nothing.
        arns = None
    return _Count(number, "Registered", arns)


def _listed(params: CheckParams, **which: str) -> Steps[frozenset[str]]:
    """The container instances; each further hundred takes another page."""
    found: list[str] = []
    more: dict[str, Any] = dict(which)
    for _ in range(MOST_PAGES):
        answer = yield Call(
            "list_container_instances", {"cluster": params.cluster, "maxResults": PAGE, **more}
        )
        _has(answer, "ListContainerInstances", "containerInstanceArns")
        found += answer["containerInstanceArns"]
        if not answer.get("nextToken"):
            return frozenset(found)
        more["nextToken"] = answer["nextToken"]
    raise UnclearError("the list of container instances has no end")


def _cluster(params: CheckParams) -> Steps[Answer | None]:
    """The cluster; None: it does not exist, or is INACTIVE."""
    answer = yield Call("describe_clusters", {"clusters": [params.cluster]})
    cluster = _one(answer, "clusters", "DescribeClusters")
    if cluster is not None:
        _has(cluster, "DescribeClusters", "status")
    return cluster if cluster is None or cluster["status"] != "INACTIVE" else None


# ---------------------------------------------------------------- facts for later checks


def _default_of(params: CheckParams) -> Steps[ServiceState | Facts]:
    """The cluster's default strategy, for a service with neither a launch type nor a strategy."""
    cluster = yield from _cluster(params)
    if cluster is None:
        return no_cluster(params.cluster)
    _has(cluster, "DescribeClusters", "defaultCapacityProviderStrategy")
    return replace(params.facts, default=placement.used(cluster["defaultCapacityProviderStrategy"]))


def _judged(params: CheckParams, providers: tuple[str, ...]) -> Steps[ServiceState | Facts | None]:
    """Whether ECS scales the service's capacity providers; None: it has none, or their size is fixed."""
    if not providers:
        return None
    refused = placement.refusal_of(params.name, providers)
    if refused is not None:
        return ServiceState(*refused)
    managed = params.facts.managed
    if unknown := [one for one in providers if one not in managed]:
        answer = yield Call(
            "describe_capacity_providers", {"cluster": params.cluster, "capacityProviders": unknown}
        )
        _has(answer, "DescribeCapacityProviders", "capacityProviders")
        found = {one.get("name"): placement.is_managed(one) for one in answer["capacityProviders"]}
        if missing := [one for one in unknown if one not in found]:
            raise UnclearError(f"DescribeCapacityProviders does not tell of {', '.join(missing)}")
        return replace(params.facts, managed={**managed, **{one: found[one] for one in unknown}})
    scaled = [one for one in providers if managed[one]]
    return ServiceState(*placement.managed_scaling(params.name, scaled)) if scaled else None


def _defined(params: CheckParams, service: Answer) -> Steps[ServiceState | Facts | None]:
    """The placement constraints of the task definition; None: known already, or none."""
    arn, facts = str(service.get("taskDefinition") or ""), params.facts
    if arn in ("", facts.definition):
        refused = placement.by_tasks(params.name, facts.constraints or () if arn else ())
        return ServiceState(*refused) if refused is not None else None
    answer = yield Call("describe_task_definition", {"taskDefinition": arn})
    if answer.get(DENIED):
        return replace(facts, definition=arn, constraints=None)
    _has(answer, "DescribeTaskDefinition", "taskDefinition")
    _has(answer["taskDefinition"], "DescribeTaskDefinition", "placementConstraints")
    return replace(facts, definition=arn, constraints=placement.expressions(answer["taskDefinition"]))


def _members_of(params: CheckParams, unknown: list[str], keep: Keep) -> Steps[Facts]:
    """The capacity providers of these container instances; each further hundred takes another call."""
    facts = params.facts
    for start in range(0, len(unknown), PAGE):
        some = unknown[start : start + PAGE]
        answer = yield Call(
            "describe_container_instances", {"cluster": params.cluster, "containerInstances": some}
        )
        _has(answer, "DescribeContainerInstances", "containerInstances")
        by_arn = {one.get("containerInstanceArn"): one for one in answer["containerInstances"]}
        gone = {one.get("arn") for one in answer.get("failures") or () if one.get("reason") == "MISSING"}
        if missing := [arn for arn in some if arn not in by_arn and arn not in gone]:
            raise UnclearError(f"DescribeContainerInstances does not tell of {missing[0]}")
        found = {arn: str(by_arn.get(arn, {}).get("capacityProviderName") or "") for arn in some}
        facts = replace(facts, members={**facts.members, **found})
        keep(facts)
    return facts


# ---------------------------------------------------------------- answers


def _one(answer: Answer, member: str, operation: str) -> Answer | None:
    """The by_arn object; None where ECS reports it MISSING."""
    found = answer.get(member)
    if found:
        one: Answer = found[0]
        return one
    failures = answer.get("failures") or ()
    if any(failure.get("reason") == "MISSING" for failure in failures):
        return None
    shown = ", ".join(word(failure.get("reason")) for failure in failures[:MOST_SHOWN])
    raise UnclearError(f"{operation} answered without {member}{f': {shown}' if shown else ''}")


def _has(answer: Answer, operation: str, *members: str) -> None:
    missing = [member for member in members if answer.get(member) is None]
    if missing:
        raise UnclearError(f"{operation} answered without {', '.join(missing)}")
