"""An answer of ECS that says too little sets nothing: it is neither gone, nor none, nor zero."""

from typing import Any

import pytest

from caretaker.daemontask.ecs.check import Answer, Call, UnclearError
from unit.daemontask.ecs.played import ASG, REGION, Played

NEEDED = [
    ("describe_services", "services", {}),
    ("describe_services", "services.status", {}),
    ("describe_services", "services.schedulingStrategy", {}),
    ("describe_services", "services.desiredCount", {}),
    ("describe_services", "services.placementConstraints", {}),
    ("list_container_instances", "containerInstanceArns", {}),
    ("describe_clusters", "clusters", {"counts": "Registered"}),
    ("describe_clusters", "clusters.status", {"counts": "Registered"}),
    ("describe_clusters", "clusters.registeredContainerInstancesCount", {"counts": "Registered"}),
    ("list_container_instances", "containerInstanceArns", {"counts": "Registered", "learn": True}),
    ("describe_clusters", "clusters.defaultCapacityProviderStrategy", {"launch_type": ""}),
    ("describe_capacity_providers", "capacityProviders", {"providers": ASG}),
    ("describe_container_instances", "containerInstances", {"providers": ASG}),
    ("describe_task_definition", "taskDefinition", {"facts": False}),
]


@pytest.mark.parametrize("how", ["absent", "null"])
@pytest.mark.parametrize(("method", "member", "given"), NEEDED)
def test_an_answer_without_what_it_has_to_have_sets_nothing(
    method: str, member: str, given: dict[str, Any], how: str
) -> None:
    """Neither gone, nor none, nor zero."""
    given = dict(given)
    wanted = {name: given.pop(name) for name in ("counts", "learn") if name in given}
    ecs = Played(desired=3, **given)
    ecs.provider("asg", status="DISABLED")
    ecs.join(3, "asg")
    name, _, inner = member.partition(".")

    def without(values: Answer, key: str) -> Answer:
        rest = {one: value for one, value in values.items() if one != key}
        return rest if how == "absent" else {**rest, key: None}

    def changed(call: Call, answer: Answer) -> Answer:
        if call.method != method:
            return answer
        if not inner:
            return without(answer, name)
        return {**answer, name: [without(one, inner) for one in answer[name]]}

    ecs.change = changed
    with pytest.raises(UnclearError, match=inner or name):
        ecs.look(max_decrease_percent=100, **wanted)
    assert "UpdateService" not in ecs.calls
    assert ecs.service.desired == 3


@pytest.mark.parametrize(
    ("method", "member", "given"),
    [
        ("describe_services", "services", {}),
        ("describe_clusters", "clusters", {"counts": "Registered"}),
        ("describe_capacity_providers", "capacityProviders", {"providers": ASG}),
        ("describe_container_instances", "containerInstances", {"providers": ASG}),
    ],
)
@pytest.mark.parametrize("failures", [None, [], [{"reason": "ACCESS_DENIED"}]])
def test_what_is_neither_told_nor_missing_is_asked_for_again(
    method: str, member: str, given: dict[str, Any], failures: Any
) -> None:
    given = dict(given)
    wanted = {name: given.pop(name) for name in ("counts",) if name in given}
    ecs = Played(desired=3, **given)
    ecs.provider("asg", status="DISABLED")
    ecs.join(3, "asg")
    ecs.change = lambda call, answer: {member: [], "failures": failures} if call.method == method else answer
    with pytest.raises(UnclearError):
        ecs.look(**wanted)
    assert ecs.service.desired == 3


def test_pages_that_never_end_are_no_list() -> None:
    ecs = Played(desired=3)
    ecs.change = lambda call, answer: (
        {"containerInstanceArns": ["a"], "nextToken": "MA=="} if call.method.startswith("list") else answer
    )
    with pytest.raises(UnclearError, match="has no end"):
        ecs.look()


def test_an_instance_that_goes_between_two_calls_is_of_no_provider() -> None:
    ecs = Played(providers=ASG, desired=3)
    ecs.provider("asg", status="DISABLED")
    here = ecs.join(3, "asg")

    def gone(call: Call, answer: Answer) -> Answer:
        if call.method == "list_container_instances":
            ecs.cluster.instances.pop(here[0].arn, None)
        return answer

    ecs.change = gone
    assert ecs.look().desired == 2


def test_a_cluster_that_does_not_stand_still_ends_a_look() -> None:
    ecs = Played(providers=ASG, desired=3)
    ecs.provider("asg", status="DISABLED")

    def joining(call: Call, answer: Answer) -> Answer:
        if call.method == "describe_services":
            ecs.join(1, "asg")
        return answer

    ecs.change = joining
    with pytest.raises(UnclearError, match="faster than it can be looked at"):
        ecs.look()
    assert ecs.world.find(REGION, "prod") is ecs.cluster
