"""What a person who resumes a policy has accepted, and what stops it again. The operator's own code in
virtual time; the judge of world/judge.py looks at every change that is sent."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from unit.imds.test_incidents import GROUP_A, SPEC, A, back, canary
from unit.imds.world.ec2 import Instance
from unit.imds.world.truth import LABELS, TEAM
from unit.imds.world.world import World

SAFETY: Final = SPEC["safety"] | {"canary": {"instances": 1, "soak": "4m"}, "maxChangesPerMinute": 60}
ONE: Final[dict[str, Any]] = SPEC | {"safety": SAFETY, "selector": {"groups": [GROUP_A]}}
TWO: Final[dict[str, Any]] = ONE | {"safety": SAFETY | {"canary": {"instances": 2, "soak": "4m"}}}
SLOW: Final[dict[str, Any]] = ONE | {"safety": SAFETY | {"canary": {"instances": 1, "soak": "20m"}}}
Happens = Callable[[World, str], object]


@pytest.fixture
def world() -> Iterator[World]:
    made = World({A: {}})
    for _ in range(6):
        made.join(A, **{TEAM: "x"})
    made.ec2.applies_in = 3.0
    yield made
    made.close()


def breaker(world: World) -> str:
    found = world.cluster.status("p").breaker
    return f"{found.reason} {found.node}" if found is not None else ""


def changed(world: World) -> list[Instance]:
    return [one for one in world.ec2.instances.values() if any(then.by for then in one.past)]


def leaves(world: World, node: str) -> None:
    """Its node group, and with it the policy."""
    world.label(node, {LABELS[A[0]]: "b", TEAM: "x"})


def left(world: World, spec: dict[str, Any] = ONE) -> str:
    """A canary that has left by its labels; a person has resumed its policy."""
    world.apply("p", **spec)
    world.run(30.0)
    node = canary(world)
    leaves(world, node)
    world.run(300.0)
    assert breaker(world) == f"CanaryLost {node}"
    world.resume("p")
    world.run(10.0)
    assert breaker(world) == ""
    return node


# ---------------------------------------------------------------- what stops it again

WORSE: Final[dict[str, tuple[Happens, str]]] = {
    "it is terminated, its Node leaves": (lambda world, node: world.end(node), "BreakerOpen"),
    "it is terminated, its Node stays": (lambda world, node: world.end(node, leaves_in=None), "BreakerOpen"),
    "its Node is deleted": (lambda world, node: world.remove(node), "BreakerOpen"),
    "its Node is not Ready": (lambda world, node: world.cluster.set_ready(node, False), "NodeNotReady"),
}


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("happens", WORSE)
def test_a_canary_that_left_and_gets_worse_after_a_resume_stops_all(
    world: World, happens: str, restarts: bool
) -> None:
    """While the next canary soaks, and after the watch of others would be over."""
    node = left(world, SLOW)
    world.run(600.0)
    second = {one.name for one in changed(world)}
    assert len(second) == 2
    WORSE[happens][0](world, node)
    if restarts:
        world.operator.restart()
    world.run(1_800.0)
    assert world.ready("p") == WORSE[happens][1]
    assert {one.name for one in changed(world)} == second


def test_what_a_person_has_accepted_stops_nothing_again(world: World) -> None:
    """The loss after the resume, as well."""
    node = left(world)
    world.end(node)
    world.run(10.0)
    assert breaker(world) == f"InstanceLost {node}"
    world.resume("p")
    world.run(1_200.0)
    assert (world.ready("p"), len(changed(world))) == ("Enforced", 6)


def test_a_canary_that_left_is_watched_until_its_change_has_passed(world: World) -> None:
    node = left(world)
    world.run(600.0)
    assert world.ready("p") == "Enforced"
    assert node not in {one.node for group in world.cluster.status("p").changed for one in group.instances}
    world.end(node)
    world.run(60.0)
    assert world.ready("p") == "Enforced"


def test_a_canary_that_left_is_watched_for_minutes_where_nothing_is_left_to_change(world: World) -> None:
    for number in range(2, 7):
        world.remove(f"n{number}")
    node = left(world)
    world.run(120.0)
    assert [one.node for group in world.cluster.status("p").changed for one in group.instances] == [node]
    passes = world.run(1_200.0)
    assert (world.cluster.status("p").changed, passes["p"] <= 6) == ((), True)
    world.end(node)
    world.run(60.0)
    assert breaker(world) == ""


def test_the_other_instances_of_a_failed_canary_are_watched_after_a_resume(world: World) -> None:
    """One of them was lost."""
    world.apply("p", **TWO)
    world.run(30.0)
    lost, other = changed(world)
    world.end(lost.node)
    world.run(10.0)
    assert breaker(world) == f"CanaryLost {lost.node}"
    world.resume("p")
    world.run(30.0)
    assert (breaker(world), len(changed(world))) == ("", 4)
    back(world, other.node)
    world.run(70.0)
    world.run(600.0)
    assert (breaker(world), len(changed(world))) == (f"InstanceSetBack {other.node}", 4)
    world.resume("p")
    world.run(1_200.0)
    assert world.ready("p") == "Enforced"


@pytest.mark.parametrize("reads", [True, False])
def test_what_was_set_back_before_the_resume_stops_nothing(world: World, reads: bool) -> None:
    """As operations.md has it, though it was not read before."""
    world.apply("p", **TWO)
    world.run(30.0)
    lost, other = changed(world)
    world.end(lost.node)
    world.run(10.0)
    assert breaker(world) == f"CanaryLost {lost.node}"
    back(world, other.node)
    world.run(700.0 if reads else 5.0)
    world.resume("p")
    world.run(1_200.0)
    assert world.ready("p") == "Enforced"


def test_a_canary_that_ended_before_the_resume_and_is_read_after_it_stops_all(world: World) -> None:
    """It left by its labels before, which is all that the breaker told."""
    world.apply("p", **ONE)
    world.run(30.0)
    node = canary(world)
    leaves(world, node)
    world.run(10.0)
    world.end(node, leaves_in=None)
    world.run(10.0)
    world.resume("p")
    world.run(30.0)
    assert (breaker(world), len(changed(world))) == (f"InstanceLost {node}", 1)
    world.resume("p")
    world.run(1_200.0)
    assert world.ready("p") == "Enforced"


@pytest.mark.parametrize("part", ["", "HttpPutResponseHopLimit", "HttpTokens"])
def test_one_with_a_part_of_a_failed_change_counts_while_its_node_is_not_ready(
    world: World, part: str
) -> None:
    """Of several options another client has reverted some. `part`: what it has left."""
    world.apply("p", **ONE | {"options": {"httpPutResponseHopLimit": 2, "httpTokens": "required"}})
    world.run(60.0)
    node = canary(world)
    one = world.instance_of(node)
    reverted = {name: value for name, value in one.launched.items() if name != part}
    world.ec2.put(one, takes=0.0, **reverted)
    world.run(70.0)
    assert breaker(world) == f"CanarySetBack {node}"
    world.cluster.set_ready(node, False)
    world.resume("p")
    world.run(60.0)
    assert (world.ready("p") == "NodeNotReady", len(changed(world))) == ((True, 1) if part else (False, 2))
    world.end(node)
    world.run(10.0)
    assert breaker(world) == (f"InstanceLost {node}" if part else "")


def test_what_the_policy_itself_has_restored_stops_nothing_after_a_resume(world: World) -> None:
    """Though EC2 describes it late."""
    canary = {"instances": 2, "soak": "4m", "onFailure": "Restore"}
    world.apply("p", **ONE | {"safety": SAFETY | {"canary": canary}})
    world.run(30.0)
    lost, other = changed(world)
    world.ec2.lag(8.0)
    world.end(lost.node)
    world.run(60.0, until=lambda: other.last.options == other.launched)
    assert other.last.by == "p"
    world.resume("p")
    world.run(120.0)
    assert breaker(world) == ""
    world.run(1_200.0)
    assert world.ready("p") == "Enforced"
