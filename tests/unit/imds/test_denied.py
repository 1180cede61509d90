"""Instances that may not be changed: what becomes of the others; the operator's own code in virtual time."""

from typing import Any

import pytest

from caretaker.aws.classes import ErrorClass
from caretaker.aws.errors import AwsError
from unit.imds.enforceworld import World

DENIED = AwsError(ErrorClass.ACCESS_DENIED, "UnauthorizedOperation", "no", service="ec2", operation="Modify")
HOUR = 3600.0


class Denying(World):
    """Changes of `denied` are not allowed; `tells` = False: a dry run says that they are."""

    def __init__(self, nodes: int, *denied: str, tells: bool = True) -> None:
        self.denied, self.tells = set(denied), tells
        self.dry, self.refused = 0, 0
        super().__init__(canary=0, nodes=nodes)
        safety = {"allowLoosening": ["HopLimit"], "canary": {"instances": 0}, "maxChangesPerMinute": 6}
        self.apply("p", mode="Enforce", options={"httpPutResponseHopLimit": 2}, safety=safety)

    async def modify_instance_metadata_options(self, **given: Any) -> Any:
        dry, denied = given.get("DryRun", False), given["InstanceId"] in self.denied
        self.dry += dry
        if denied and (self.tells or not dry):
            self.refused += not dry
            raise DENIED
        return await super().modify_instance_metadata_options(**given)

    def permission(self) -> str:
        found = {one.type: one.status for one in self.status("p").conditions}
        return str(found["PermissionOK"])

    def made(self) -> int:
        return sum(one.options["HttpPutResponseHopLimit"] == 2 for one in self.instances.values())


def names(first: int, last: int) -> list[str]:
    return [f"i-{number:08x}" for number in range(first, last + 1)]


@pytest.mark.parametrize("compliant", [True, False])
def test_the_first_of_a_policy_that_may_not_be_changed_stops_none_of_the_others(compliant: bool) -> None:
    world = Denying(6, *names(1, 1))
    if compliant:
        next(iter(world.instances.values())).options["HttpPutResponseHopLimit"] = 2
    world.run(HOUR / 6)
    assert world.made() == 5 + compliant
    assert (world.permission(), world.status("p").breaker) == ("True", None)
    world.close()


def test_many_that_may_not_be_changed_starve_none_of_the_others() -> None:
    world = Denying(60, *names(1, 40))
    world.run(HOUR)
    assert world.made() == 20
    world.run(HOUR)
    world.refused = world.dry = 0
    world.run(HOUR)
    assert world.refused + world.dry <= 60, "those that are left are asked for ever less often"
    world.add_node()
    world.run(600)
    assert world.made() == 21, "one that joins is changed all the same"
    world.close()


def test_what_is_denied_though_it_would_be_allowed_is_sent_once() -> None:
    world = Denying(6, *names(1, 6), tells=False)
    told = set()
    for _ in range(240):
        world.run(15)
        told.add(world.permission())
    assert (world.refused, told) == (1, {"False"})
    assert world.ready("p") == "BreakerOpen"
    world.denied.clear()
    world.resume("p")
    world.run(300)
    assert (world.made(), world.permission()) == (6, "True")
    world.close()


def test_a_permission_that_is_missing_is_told_until_a_change_is_made() -> None:
    world = Denying(6, *names(1, 6))
    told = set()
    for _ in range(240):
        world.run(15)
        told.add(world.permission())
    assert (world.refused, told, world.ready("p")) == (0, {"False"}, "AccessDenied")
    assert world.dry <= 3 * 15
    world.denied.clear()
    world.run(600)
    assert (world.made(), world.permission(), world.ready("p")) == (6, "True", "Enforced")
    world.close()


def test_what_ec2_tells_too_slowly_is_not_acted_upon_and_not_read_again_and_again() -> None:
    """In a pass: it goes on a pass later, when EC2 is quicker."""

    class Slow(Denying):
        seconds = 6.0

        async def describe_instances(self, **given: Any) -> Any:
            answer = await super().describe_instances(**given)
            self.now += self.seconds
            return answer

    world = Slow(3)
    world.run(HOUR / 60)
    assert world.sends == []
    world.seconds = 1.0
    world.run(HOUR / 10)
    assert world.made() == 3
    world.close()


def test_nobody_is_asked_where_nothing_is_to_be_changed() -> None:
    world = Denying(6)
    for one in world.instances.values():
        one.options["HttpPutResponseHopLimit"] = 2
    world.run(HOUR)
    assert (world.dry, world.ready("p")) == (0, "Enforced")
    world.close()
