"""A look at one cluster: which calls it takes, and what they tell.

Pure: a generator yields calls and is sent their answers; whoever drives it sends them to AWS, or to nobody.
Three calls at most: DescribeServices, ListContainerInstances or DescribeClusters, UpdateService; with a page
more for every further hundred of container instances, and a list beside DescribeClusters once, to know which
they are. What has to be learnt first, of the task definition and of capacity providers, is a look of its own,
of at most three calls, too.
"""

from collections.abc import Generator, Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from caretaker.api.conditions import EcsReason as Reason
from caretaker.daemontask.ecs import placement

PAGE: Final = 100
MOST_PAGES: Final = 200  # of container instances; a cluster has 5,000 at most (Amazon ECS service quotas)
MOST_LESSONS: Final = 6  # looks that learn, in a row
# Reasons that say that the cluster does not run the service at all.
ABSENT: Final = frozenset((Reason.CLUSTER_NOT_FOUND, Reason.SERVICE_NOT_FOUND, Reason.SERVICE_INACTIVE))

# A member of what stands for the answer to DescribeTaskDefinition where it is not allowed: a policy of before
# it was asked for goes on to do, and is told of.
DENIED: Final = "denied"

Answer = Mapping[str, Any]
Counts = Literal["Registered", "Active"]
T = TypeVar("T")


class UnclearError(Exception):
    """An answer lacks what it has to have: nothing is known, and it is asked for again later."""


class Drop(msgspec.Struct, frozen=True):
    """More was to be taken away at once than one answer may: `counted` is the largest number seen since.
    `old`: it was seen long enough ago for this look to confirm it."""

    counted: int
    old: bool = False


class Facts(msgspec.Struct, frozen=True):
    """What DescribeServices does not tell of a service. Who keeps it forgets it after a while (`lasting`)."""

    default: tuple[str, ...] | None = None  # capacity providers of the cluster's default strategy
    managed: Mapping[str, bool] = {}  # capacity provider -> whether ECS scales it
    members: Mapping[str, str] = {}  # container instance -> capacity provider, "" = none
    definition: str = ""  # ARN of the task definition of which `constraints` are
    constraints: tuple[str, ...] | None = ()  # memberOf; None: they may not be read

    @property
    def lasting(self) -> "Facts":
        """What cannot change: a revision of a task definition."""
        known = self.constraints is not None
        return Facts(definition=self.definition, constraints=self.constraints) if known else Facts()


class Wanted(msgspec.Struct, frozen=True):
    """What is asked. `learn`: which container instances there are is not known yet."""

    cluster: str
    service: str
    counts: Counts
    learn: bool = True
    max_count: int | None = None
    max_decrease_percent: int = 100
    drop: Drop | None = None
    facts: Facts = Facts()

    @property
    def name(self) -> str:
        """Of the service, for people."""
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


class Verdict(msgspec.Struct, frozen=True):
    """What was found. `reason`: why the service is left as it is, or with `doubt` what is wrong with it while
    it is kept; `was`: desiredCount before it was set."""

    reason: str = ""
    message: str = ""
    doubt: bool = False
    desired: int | None = None
    running: int | None = None
    counted: int | None = None
    was: int | None = None
    target: int | None = None  # what desiredCount is to be: `counted`, or maxCount
    drop: Drop | None = None  # to be confirmed by a later look
    counts: Counts = "Active"  # how they were counted
    arns: frozenset[str] | None = None  # of the container instances that count; None: they were not listed
    facts: Facts = Facts()

    @property
    def kept(self) -> bool:
        """Whether desiredCount is what it is to be."""
        return self.target is not None and self.desired == self.target and self.drop is None


class _Count(msgspec.Struct, frozen=True):
    number: int
    counts: Counts
    arns: frozenset[str] | None = None


Check = Generator[Call, Answer, Verdict]
Steps = Generator[Call, Answer, T]


def check(wanted: Wanted) -> Check:
    """See the module. Raises UnclearError."""
    for _ in range(MOST_LESSONS):
        found = yield from _look(wanted)
        if isinstance(found, Verdict):
            return msgspec.structs.replace(found, facts=wanted.facts)
        wanted = msgspec.structs.replace(wanted, facts=found)
    raise UnclearError(f"cluster {wanted.cluster} changes faster than it can be looked at")


def no_cluster(cluster: str) -> Verdict:
    """A cluster that is not there, or no longer."""
    return Verdict(Reason.CLUSTER_NOT_FOUND, f"there is no active cluster {cluster}")


def no_service(wanted: Wanted) -> Verdict:
    """A service that is not there, or no longer."""
    return Verdict(
        Reason.SERVICE_NOT_FOUND, f"cluster {wanted.cluster} has no service {wanted.service}: create it there"
    )


def following(looking: Check, answer: Answer | None) -> Call | Verdict:
    """The next call of a look after this answer, None at its beginning; or what it has come to."""
    try:
        return next(looking) if answer is None else looking.send(answer)
    except StopIteration as end:
        verdict: Verdict = end.value
        return verdict


# ---------------------------------------------------------------- one look


def _look(wanted: Wanted) -> Steps[Verdict | Facts]:
    """What was found, or learnt."""
    answer = yield Call("describe_services", {"cluster": wanted.cluster, "services": [wanted.service]})
    service = _one(answer, "services", "DescribeServices")
    if service is None:
        return no_service(wanted)
    _has(service, "DescribeServices", "status", "schedulingStrategy", "desiredCount", "placementConstraints")
    refused = placement.refusal(wanted.name, service)
    if refused is not None:
        return Verdict(*refused)
    providers = placement.providers_of(service)
    if providers is None:
        providers = wanted.facts.default
    if providers is None:
        return (yield from _default_of(wanted))
    for learnt in (_judged(wanted, providers), _defined(wanted, service)):
        found = yield from learnt
        if found is not None:
            return found
    counted = yield from _counted(wanted, service, providers)
    if not isinstance(counted, _Count):
        return counted
    return (yield from _set(wanted, service, counted))


def _set(wanted: Wanted, service: Answer, counted: _Count) -> Steps[Verdict]:
    desired = int(service["desiredCount"])
    found = Verdict(
        desired=desired,
        running=service.get("runningCount"),
        counted=counted.number,
        counts=counted.counts,
        arns=counted.arns,
    )
    believed, drop = _believed(wanted, desired, counted.number)
    target = desired if believed is None else believed
    if believed is not None and wanted.max_count is not None:
        target = min(believed, wanted.max_count)
    if drop is None:
        reason, message = _doubt(wanted, service, counted, target)
    else:
        reason, message = Reason.CONFIRMING_DECREASE, _unconfirmed(wanted, target, counted.number)
    doubt = bool(reason) and drop is None
    found = msgspec.structs.replace(
        found, reason=reason, message=message, doubt=doubt, target=target, drop=drop
    )
    if desired == target:
        return found
    yield Call(
        "update_service", {"cluster": wanted.cluster, "service": wanted.service, "desiredCount": target}
    )
    return msgspec.structs.replace(found, desired=target, was=desired)


def _believed(wanted: Wanted, desired: int, number: int) -> tuple[int | None, Drop | None]:
    """(how many container instances there are taken to be, None: nobody knows yet; what is to be confirmed).
    One instance less is always believed."""
    if desired - number <= max(desired * wanted.max_decrease_percent // 100, 1):
        return number, None
    seen = number if wanted.drop is None else max(number, wanted.drop.counted)
    if wanted.drop is None or not wanted.drop.old:
        return None, Drop(seen)
    # What both looks have seen to be gone, and no more.
    return seen, Drop(number) if number < seen else None


def _unconfirmed(wanted: Wanted, desired: int, number: int) -> str:
    return (
        f"{wanted.name}: {number} container instances are left for a desired count of {desired}, more than "
        f"{wanted.max_decrease_percent}% less at once: a second look has to find the same first"
    )


def _doubt(wanted: Wanted, service: Answer, counted: _Count, target: int) -> tuple[str, str]:
    """(reason, message) of what is wrong though the count is kept."""
    if target < counted.number:
        return (
            Reason.MAX_COUNT_REACHED,
            f"{wanted.name}: {counted.number} container instances count, and spec.ecs.maxCount holds the "
            f"desired count at {target}",
        )
    draining = counted.number if counted.counts == "Registered" else None
    unread = wanted.facts.constraints is None and bool(service.get("taskDefinition"))
    return placement.doubt(wanted.name, service, draining, unread=unread)


# ---------------------------------------------------------------- what counts


def _counted(wanted: Wanted, service: Answer, providers: tuple[str, ...]) -> Steps[Verdict | Facts | _Count]:
    constraints = (*placement.expressions(service), *(wanted.facts.constraints or ()))
    everywhere = not (providers or constraints or placement.is_external(service))
    if wanted.counts == "Registered" and everywhere:
        return (yield from _registered(wanted))
    arns = yield from _listed(wanted, status="ACTIVE", filter=placement.query(service, constraints))
    if not providers:
        return _Count(len(arns), "Active", arns)
    unknown = sorted(arns - wanted.facts.members.keys())
    if unknown:
        return (yield from _members_of(wanted, unknown))
    mine = frozenset(arn for arn in arns if wanted.facts.members[arn] in providers)
    return _Count(len(mine), "Active", mine)


def _registered(wanted: Wanted) -> Steps[Verdict | _Count]:
    """ECS's own count."""
    arns = None
    if wanted.learn:
        arns = yield from _listed(wanted)
    cluster = yield from _cluster(wanted)
    if cluster is None:
        return no_cluster(wanted.cluster)
    _has(cluster, "DescribeClusters", "registeredContainerInstancesCount")
    number = int(cluster["registeredContainerInstancesCount"])
    if arns is not None and len(arns) != number:
        # The list has those that are REGISTERING, DEREGISTERING or failed to as well, and does not say
        # which: taken for counted, one that becomes ACTIVE would seem to change nothing.
        arns = None
    return _Count(number, "Registered", arns)


def _listed(wanted: Wanted, **which: str) -> Steps[frozenset[str]]:
    """Container instances. A page more for every further hundred."""
    found: list[str] = []
    more: dict[str, Any] = dict(which)
    for _ in range(MOST_PAGES):
        answer = yield Call(
            "list_container_instances", {"cluster": wanted.cluster, "maxResults": PAGE, **more}
        )
        _has(answer, "ListContainerInstances", "containerInstanceArns")
        found += answer["containerInstanceArns"]
        if not answer.get("nextToken"):
            return frozenset(found)
        more["nextToken"] = answer["nextToken"]
    raise UnclearError("the list of container instances has no end")


def _cluster(wanted: Wanted) -> Steps[Answer | None]:
    """None: there is no active one."""
    answer = yield Call("describe_clusters", {"clusters": [wanted.cluster]})
    cluster = _one(answer, "clusters", "DescribeClusters")
    if cluster is not None:
        _has(cluster, "DescribeClusters", "status")
    return cluster if cluster is None or cluster["status"] != "INACTIVE" else None


# ---------------------------------------------------------------- what has to be learnt first


def _default_of(wanted: Wanted) -> Steps[Verdict | Facts]:
    """The cluster's default strategy, of a service that names neither a launch type nor a strategy."""
    cluster = yield from _cluster(wanted)
    if cluster is None:
        return no_cluster(wanted.cluster)
    _has(cluster, "DescribeClusters", "defaultCapacityProviderStrategy")
    return msgspec.structs.replace(
        wanted.facts, default=placement.used(cluster["defaultCapacityProviderStrategy"])
    )


def _judged(wanted: Wanted, providers: tuple[str, ...]) -> Steps[Verdict | Facts | None]:
    """Whether ECS scales the capacity providers of the service; None: it has none, or they stay as they
    are."""
    if not providers:
        return None
    refused = placement.refusal_of(wanted.name, providers)
    if refused is not None:
        return Verdict(*refused)
    known = wanted.facts.managed
    if unknown := [one for one in providers if one not in known]:
        answer = yield Call(
            "describe_capacity_providers", {"cluster": wanted.cluster, "capacityProviders": unknown}
        )
        _has(answer, "DescribeCapacityProviders", "capacityProviders")
        found = {one.get("name"): placement.is_managed(one) for one in answer["capacityProviders"]}
        if missing := [one for one in unknown if one not in found]:
            raise UnclearError(f"DescribeCapacityProviders does not tell of {', '.join(missing)}")
        return msgspec.structs.replace(
            wanted.facts, managed={**known, **{one: found[one] for one in unknown}}
        )
    scaled = [one for one in providers if known[one]]
    return Verdict(*placement.managed_scaling(wanted.name, scaled)) if scaled else None


def _defined(wanted: Wanted, service: Answer) -> Steps[Verdict | Facts | None]:
    """The placement constraints of the task definition; None: they are known, or there are none."""
    arn, facts = str(service.get("taskDefinition") or ""), wanted.facts
    if arn in ("", facts.definition):
        refused = placement.by_tasks(wanted.name, facts.constraints or () if arn else ())
        return Verdict(*refused) if refused is not None else None
    answer = yield Call("describe_task_definition", {"taskDefinition": arn})
    if answer.get(DENIED):
        return msgspec.structs.replace(facts, definition=arn, constraints=None)
    _has(answer, "DescribeTaskDefinition", "taskDefinition")
    _has(answer["taskDefinition"], "DescribeTaskDefinition", "placementConstraints")
    return msgspec.structs.replace(
        facts, definition=arn, constraints=placement.expressions(answer["taskDefinition"])
    )


def _members_of(wanted: Wanted, unknown: list[str]) -> Steps[Facts]:
    """Which capacity providers these container instances are of. A call more for every further hundred."""
    found = dict(wanted.facts.members)
    for start in range(0, len(unknown), PAGE):
        some = unknown[start : start + PAGE]
        answer = yield Call(
            "describe_container_instances", {"cluster": wanted.cluster, "containerInstances": some}
        )
        _has(answer, "DescribeContainerInstances", "containerInstances")
        told = {one.get("containerInstanceArn"): one for one in answer["containerInstances"]}
        gone = {one.get("arn") for one in answer.get("failures") or () if one.get("reason") == "MISSING"}
        if missing := [arn for arn in some if arn not in told and arn not in gone]:
            raise UnclearError(f"DescribeContainerInstances does not tell of {missing[0]}")
        found |= {arn: str(told[arn].get("capacityProviderName") or "") for arn in some if arn in told}
        found |= {arn: "" for arn in some if arn not in told}
    return msgspec.structs.replace(wanted.facts, members=found)


# ---------------------------------------------------------------- answers


def _one(answer: Answer, member: str, operation: str) -> Answer | None:
    """The one that was asked for; None where ECS says that it is missing."""
    found = answer.get(member)
    if found:
        one: Answer = found[0]
        return one
    failures = answer.get("failures") or ()
    if any(failure.get("reason") == "MISSING" for failure in failures):
        return None
    told = ", ".join(str(failure.get("reason")) for failure in failures)
    raise UnclearError(f"{operation} answered without {member}{f': {told}' if told else ''}")


def _has(answer: Answer, operation: str, *members: str) -> None:
    missing = [member for member in members if answer.get(member) is None]
    if missing:
        raise UnclearError(f"{operation} answered without {', '.join(missing)}")
