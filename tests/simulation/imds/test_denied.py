"""Denied instances do not stop the others. The operator's own code in virtual time."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from simulation.imds.truth import Group
from simulation.imds.world import World

pytestmark = pytest.mark.slow

HOUR = 3600.0
GROUP: Group = ("EKSManagedNodegroup", "a")


class Denying(World):
    """Changes of `denied` are not allowed."""

    def __init__(self, nodes: int, *denied: str, tells: bool = True) -> None:
        super().__init__({GROUP: {}})
        self.ec2.denied, self.ec2.tells, self.ec2.applies_in = set(denied), tells, 0.0
        for _ in range(nodes):
            self.join(GROUP)

    def enforce(self) -> None:
        safety = {"allowLoosening": ["HopLimit"], "canary": {"instances": 0}, "maxChangesPerMinute": 6}
        self.apply("p", mode="Enforce", options={"httpPutResponseHopLimit": 2}, safety=safety)

    def change(self, *names: str) -> None:
        """By another client."""
        for name in names:
            self.ec2.put(self.ec2.instances[name], HttpPutResponseHopLimit=2)

    def permission(self) -> str:
        found = {one.type: one.status for one in self.cluster.status("p").conditions}
        return str(found["PermissionOK"])

    def made(self) -> int:
        return sum(one.last.options["HttpPutResponseHopLimit"] == 2 for one in self.ec2.instances.values())


Make = Callable[..., Denying]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Denying] = []

    def world(*given: Any, **more: Any) -> Denying:
        made.append(Denying(*given, **more))
        return made[-1]

    yield world
    for one in made:
        one.close()


def names(first: int, last: int) -> list[str]:
    return [f"i-{number:08x}" for number in range(first, last + 1)]


@pytest.mark.parametrize("compliant", [True, False])
def test_the_first_of_a_policy_that_may_not_be_changed_stops_none_of_the_others(
    make: Make, compliant: bool
) -> None:
    world = make(6, *names(1, 1))
    world.change(*names(1, 1) if compliant else ())
    world.enforce()
    world.run(HOUR / 6)
    assert world.made() == 5 + compliant
    assert (world.permission(), world.cluster.status("p").breaker) == ("True", None)


def test_many_that_may_not_be_changed_starve_none_of_the_others(make: Make) -> None:
    world = make(60, *names(1, 40))
    world.enforce()
    world.run(HOUR)
    assert world.made() == 20
    world.run(HOUR)
    world.ec2.denials = world.ec2.dry = 0
    world.run(HOUR)
    assert world.ec2.denials + world.ec2.dry <= 60, "those that are left are asked for ever less often"
    world.join(GROUP)
    world.run(600)
    assert world.made() == 21, "one that joins is changed all the same"


def test_what_is_denied_though_it_would_be_allowed_is_sent_once_more(make: Make) -> None:
    world = make(6, *names(1, 6), tells=False)
    world.enforce()
    world.run(1)
    told = set()
    for _ in range(240):
        world.run(15)
        told.add(world.permission())
    assert (world.ec2.denials, told) == (2, {"False"})
    assert world.ready("p") == "BreakerOpen"
    world.ec2.denied.clear()
    world.resume("p")
    world.run(300)
    assert (world.made(), world.permission()) == (6, "True")


def test_a_permission_that_is_missing_is_told_until_a_change_is_made(make: Make) -> None:
    world = make(6, *names(1, 6))
    world.enforce()
    world.run(1)
    told = set()
    for _ in range(240):
        world.run(15)
        told.add(world.permission())
    assert (world.ec2.denials, told, world.ready("p")) == (0, {"False"}, "AccessDenied")
    assert world.ec2.dry <= 3 * 15
    world.ec2.denied.clear()
    world.run(600)
    assert (world.made(), world.permission(), world.ready("p")) == (6, "True", "Enforced")


def test_what_ec2_tells_too_slowly_is_not_acted_upon_and_not_read_again_and_again(make: Make) -> None:
    """In a pass: it goes on a pass later, when EC2 is quicker."""
    world = make(3)
    world.operator.latency = 6.0
    world.enforce()
    world.run(HOUR / 60)
    assert world.judge.sends == []
    world.operator.latency = 0.5
    world.run(HOUR / 10)
    assert world.made() == 3


def test_nobody_is_asked_where_nothing_is_to_be_changed(make: Make) -> None:
    world = make(6)
    world.change(*names(1, 6))
    world.enforce()
    world.run(HOUR)
    assert (world.ec2.dry, world.ready("p")) == (0, "Enforced")
