"""How many calls a look takes, and what it does about each kind of service."""

from typing import Any

import pytest

from caretaker.daemontask.ecs.check import ServiceState
from unit.daemontask.ecs.build import INSTANCE, Account

SERVICE, CLUSTER, UPDATE, LIST = (
    "describe_services",
    "describe_clusters",
    "update_service",
    "list_container_instances",
)


def some(count: int, prefix: str = "i") -> set[str]:
    return {f"{INSTANCE}/prod/{prefix}{number}" for number in range(count)}


def test_no_such_service_takes_one_call() -> None:
    account = Account()
    account.service = None
    assert account.look().reason == "ServiceNotFound"
    assert account.calls == [SERVICE]


def test_a_service_in_step_takes_two_calls() -> None:
    account = Account(desiredCount=4, runningCount=3)
    account.active = some(4)
    assert account.look(counts="Registered") == ServiceState(
        desired=4, running=3, counted=4, target=4, counts="Registered"
    )
    assert account.calls == [SERVICE, CLUSTER]


@pytest.mark.parametrize(("before", "instances"), [(0, 3), (5, 3), (3, 0)])
def test_a_change_takes_three_calls(before: int, instances: int) -> None:
    account = Account(desiredCount=before, runningCount=before)
    account.active = some(instances)
    found = account.look()
    assert (found.was, found.desired, found.counted, found.in_step) == (before, instances, instances, True)
    assert account.calls == [SERVICE, LIST, UPDATE]
    assert account.service is not None
    assert account.service["desiredCount"] == instances


def test_what_drains_counts_where_registered_ones_do() -> None:
    account = Account(desiredCount=2)
    account.active, account.draining = some(2), some(3, "d")
    assert account.look(counts="Registered").counted == 5
    assert account.calls == [SERVICE, CLUSTER, UPDATE]


@pytest.mark.parametrize(("instances", "pages"), [(0, 1), (1, 1), (100, 1), (101, 2), (250, 3)])
def test_active_ones_are_counted_by_pages_of_a_hundred(instances: int, pages: int) -> None:
    account = Account(desiredCount=7777)
    account.active, account.draining = some(instances), some(50, "d")
    found = account.look(counts="Active", learn=True)
    assert (found.counted, found.arns) == (instances, frozenset(account.active))
    assert account.calls == [SERVICE, *[LIST] * pages, UPDATE]


def test_learning_lists_what_is_registered_once() -> None:
    account = Account(desiredCount=150)
    account.active, account.draining = some(100), some(50, "d")
    found = account.look(counts="Registered", learn=True)
    assert found.arns == frozenset(account.active | account.draining)
    assert account.calls == [SERVICE, LIST, LIST, CLUSTER]


def test_a_list_of_more_than_what_counts_teaches_nothing() -> None:
    """Without a status it has what is REGISTERING too (API reference, ListContainerInstances), which the
    cluster's own count has not."""
    account = Account(desiredCount=2)
    account.active, account.registering = some(2), some(1, "r")
    found = account.look(counts="Registered", learn=True)
    assert (found.counted, found.arns) == (2, None)
    assert account.calls == [SERVICE, LIST, CLUSTER]


@pytest.mark.parametrize(
    ("service", "reason", "told"),
    [
        ({"schedulingStrategy": "DAEMON"}, "DaemonService", "ECS itself keeps one task"),
        ({"status": "INACTIVE"}, "ServiceInactive", "is INACTIVE"),
        ({"status": "DRAINING"}, "ServiceInactive", "is DRAINING"),
        ({"launchType": "FARGATE"}, "FargateService", "on no container instance"),
        *(
            (
                {"launchType": None, "capacityProviderStrategy": [{"capacityProvider": name, "weight": 1}]},
                "FargateService",
                "on no container instance",
            )
            for name in ("FARGATE", "FARGATE_SPOT")
        ),
        ({"status": "INACTIVE", "schedulingStrategy": "DAEMON"}, "ServiceInactive", "is INACTIVE"),
    ],
)
def test_a_service_that_must_not_be_set_is_left_as_it_is(
    service: dict[str, Any], reason: str, told: str
) -> None:
    account = Account(desiredCount=9, **service)
    account.active = some(3)
    found = account.look()
    assert (found.reason, found.doubt, found.in_step) == (reason, False, False)
    assert told in found.message
    assert account.calls == [SERVICE]


@pytest.mark.parametrize("constraints", [[], [{"type": "memberOf", "expression": "attribute:x == y"}]])
def test_a_service_without_distinct_instance_is_kept_with_a_doubt(constraints: list[Any]) -> None:
    account = Account(desiredCount=1, placementConstraints=constraints)
    account.active = some(2)
    found = account.look()
    assert (found.reason, found.doubt, found.in_step) == ("NoDistinctInstance", True, True)
    assert account.calls == [SERVICE, LIST, UPDATE]


def test_a_cluster_that_is_deleted_meanwhile_sets_nothing() -> None:
    account = Account(desiredCount=3)
    account.cluster = False
    assert account.look(counts="Registered").reason == "ClusterNotFound"
    assert account.calls == [SERVICE, CLUSTER]
