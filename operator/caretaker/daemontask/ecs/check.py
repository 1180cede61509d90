"""A look at one cluster: which calls it takes, and what they tell.

Pure: a generator yields calls and is sent their answers; whoever drives it sends them to AWS, or to nobody.
Three calls at most (DescribeServices, DescribeClusters, UpdateService), and those of a list of container
instances: in place of DescribeClusters where only the ACTIVE ones count, else once, to know which ones they
are.
"""

from collections.abc import Generator, Mapping
from typing import Any, Final, Literal

import msgspec

from caretaker.api.conditions import EcsReason as Reason

PAGE: Final = 100
FARGATE: Final = frozenset(("FARGATE", "FARGATE_SPOT"))  # launch types, and capacity providers of these names
# Reasons that say that the cluster does not run the service at all.
ABSENT: Final = frozenset((Reason.CLUSTER_NOT_FOUND, Reason.SERVICE_NOT_FOUND, Reason.SERVICE_INACTIVE))

Answer = Mapping[str, Any]


class Wanted(msgspec.Struct, frozen=True):
    """What is asked. `learn`: which container instances there are is not known yet."""

    cluster: str
    service: str
    counts: Literal["Registered", "Active"]
    learn: bool = True


class Call(msgspec.Struct, frozen=True):
    """A method of aws.ecs.Ecs and its parameters."""

    method: Literal["describe_services", "describe_clusters", "list_container_instances", "update_service"]
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
    arns: frozenset[str] | None = None  # of the container instances that count; None: they were not listed

    @property
    def kept(self) -> bool:
        """Whether desiredCount is the number of container instances."""
        return self.counted is not None and self.desired == self.counted


Check = Generator[Call, Answer, Verdict]


def check(wanted: Wanted) -> Check:
    """See the module."""
    answer = yield Call("describe_services", {"cluster": wanted.cluster, "services": [wanted.service]})
    service = next(iter(answer.get("services", [])), None)
    refusal = _unfit(wanted, service)
    if refusal is not None or service is None:
        return refusal if refusal is not None else no_service(wanted)
    arns = None
    if wanted.learn or wanted.counts == "Active":
        arns = yield from _listed(wanted)
    if wanted.counts == "Active":
        counted = len(arns or ())
    else:
        answer = yield Call("describe_clusters", {"clusters": [wanted.cluster]})
        clusters = answer.get("clusters", [])
        if not clusters or clusters[0].get("status") == "INACTIVE":
            return no_cluster(wanted.cluster)
        counted = int(clusters[0].get("registeredContainerInstancesCount", 0))
        if arns is not None and len(arns) != counted:
            # The list has those that are REGISTERING, DEREGISTERING or failed to as well, and does not say
            # which: taken for counted, one that becomes ACTIVE would seem to change nothing.
            arns = None
    reason, message = _doubtful(wanted, service)
    desired = int(service.get("desiredCount", 0))
    found = Verdict(
        reason, message, bool(reason), desired, int(service.get("runningCount", 0)), counted, arns=arns
    )
    if desired == counted:
        return found
    yield Call(
        "update_service", {"cluster": wanted.cluster, "service": wanted.service, "desiredCount": counted}
    )
    return msgspec.structs.replace(found, desired=counted, was=desired)


def no_cluster(cluster: str) -> Verdict:
    """A cluster that is not there, or no longer."""
    return Verdict(Reason.CLUSTER_NOT_FOUND, f"there is no active cluster {cluster}")


def no_service(wanted: Wanted) -> Verdict:
    """A service that is not there, or no longer."""
    return Verdict(
        Reason.SERVICE_NOT_FOUND, f"cluster {wanted.cluster} has no service {wanted.service}: create it there"
    )


def _listed(wanted: Wanted) -> Generator[Call, Answer, frozenset[str]]:
    """Every container instance that counts. A page more for every further hundred."""
    found: list[str] = []
    more: dict[str, Any] = {"status": "ACTIVE"} if wanted.counts == "Active" else {}
    while True:
        answer = yield Call(
            "list_container_instances", {"cluster": wanted.cluster, "maxResults": PAGE, **more}
        )
        found += answer.get("containerInstanceArns", [])
        if not answer.get("nextToken"):
            return frozenset(found)
        more["nextToken"] = answer["nextToken"]


def _unfit(wanted: Wanted, service: Answer | None) -> Verdict | None:
    """Why its desired count must not be set."""
    if service is None:
        return no_service(wanted)
    name = f"service {wanted.service} of cluster {wanted.cluster}"
    for wrong, reason, message in (
        (
            service.get("status") != "ACTIVE",
            Reason.SERVICE_INACTIVE,
            f"{name} is {service.get('status')}: create it again, or take the cluster from spec.ecs.clusters",
        ),
        (
            service.get("schedulingStrategy") == "DAEMON",
            Reason.DAEMON_SERVICE,
            f"{name} has schedulingStrategy DAEMON, with which ECS itself keeps one task on each container "
            "instance: this task has nothing to do there, delete it or name other clusters",
        ),
        (
            _on_fargate(service),
            Reason.FARGATE_SERVICE,
            f"{name} runs on Fargate, by its launchType or its capacity providers, and so on no container "
            "instance: use launchType EC2 or capacity providers of Auto Scaling groups",
        ),
    ):
        if wrong:
            return Verdict(reason, message)
    return None


def _on_fargate(service: Answer) -> bool:
    """A strategy of capacity providers holds Fargate's or Auto Scaling groups', never both, and takes the
    place of launchType (API reference, CreateService)."""
    strategy = service.get("capacityProviderStrategy", [])
    return service.get("launchType") in FARGATE or any(
        one.get("capacityProvider") in FARGATE for one in strategy
    )


def _doubtful(wanted: Wanted, service: Answer) -> tuple[str, str]:
    constraints = service.get("placementConstraints", [])
    if any(one.get("type") == "distinctInstance" for one in constraints):
        return "", ""
    return (
        Reason.NO_DISTINCT_INSTANCE,
        f"service {wanted.service} of cluster {wanted.cluster} lacks the placement constraint "
        "distinctInstance: ECS may put two of its tasks on one container instance and none on another; add "
        "it with UpdateService",
    )


def following(looking: Check, answer: Answer | None) -> Call | Verdict:
    """The next call of a look after this answer, None at its beginning; or what it has come to."""
    try:
        return next(looking) if answer is None else looking.send(answer)
    except StopIteration as end:
        verdict: Verdict = end.value
        return verdict
