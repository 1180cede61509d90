"""The tag of an instance's Auto Scaling group is missing in EC2's first responses: the process never read it.
The judge of judge.py looks at every change that is sent."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final

import pytest

from caretaker.api.conditions import find
from simulation.imds.test_canary_evidence import HOLDS, HOP, LOWER, QUICK
from simulation.imds.test_evidence import right
from simulation.imds.test_incidents import A, B, canary
from simulation.imds.truth import TEAM, Group
from simulation.imds.world import World

NONE: Final[Group] = ("", "")
LAGS: Final = 29.0  # shorter than descriptions may lag
SOAK: Final = 120.0


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def world(count: int, *groups: Group) -> World:
        made.append(World({A: {}, B: {}, NONE: {}}))
        for number in range(count):
            made[-1].join(groups[number % len(groups)], team="x")
        made[-1].ec2.applies_in = 3.0
        return made[-1]

    yield world
    for one in made:
        one.close()


def lacks_group(world: World) -> None:
    """From now on, and a new process has not read it."""
    world.ec2.lacks_group = True
    world.operator.restart()


def described(world: World) -> int:
    """How often EC2 was asked for instances."""
    return world.operator.kind._inventory.calls


def passes_for(world: World, **spec: Any) -> None:
    """The change has passed in each group, and all watches are over."""
    world.apply("p", **QUICK | spec)
    world.run(900.0, until=lambda: right(world))
    world.run(700.0)
    assert (right(world), world.ready("p")) == (True, "Enforced")


@pytest.mark.parametrize("restarts", [False, True])
def test_what_has_passed_for_nodes_without_a_group_reaches_no_group(
    make: Callable[..., World], restarts: bool
) -> None:
    """It kills nodes of that group alone."""
    world = make(4, NONE)
    passes_for(world)
    if restarts:
        world.operator.restart()
        world.run(40.0)  # until it may change anything
    world.ec2.lacks_group = True
    world.harmful.add((B, HOP, 2))
    sent = len(world.judge.sends)
    for _ in range(6):
        world.join(B, team="x")
    world.run(LAGS)
    assert len(world.judge.sends) == sent
    world.ec2.lacks_group = False
    world.run(900.0)
    assert (world.ready("p"), len(world.judge.harmed)) == ("BreakerOpen", 1)
    world.heal()
    world.resume("p")
    world.run(3_600.0, until=lambda: right(world))
    assert right(world), world.ready("p")


def test_no_instance_becomes_the_canary_of_nodes_without_a_group(make: Callable[..., World]) -> None:
    world = make(6, B)
    lacks_group(world)
    world.apply("p", **QUICK)
    world.run(LAGS)
    assert (world.ready("p"), world.judge.sends) == ("CanaryChanging", [])
    world.ec2.lacks_group = False
    world.run(15.0)
    status = world.cluster.status("p").canary
    assert status is not None
    assert [(one.kind, one.name) for one in status.groups] == [B]


@pytest.mark.parametrize("instances", [0, 1])
def test_a_policy_of_the_group_goes_on_to_hold_it(make: Callable[..., World], instances: int) -> None:
    """Though the labels of its nodes have another group, and without a canary."""
    world = make(6, A)
    world.apply(
        "hold",
        **QUICK
        | {"options": {"httpPutResponseHopLimit": 1}, "priority": 200}
        | {"selector": {"groups": [{"kind": "AutoScalingGroup", "names": ["eks-a"]}]}},
    )
    world.apply("p", **QUICK | {"safety": QUICK["safety"] | {"canary": {"instances": instances}}})
    world.run(60.0)
    lacks_group(world)
    world.run(LAGS)
    world.ec2.lacks_group = False
    world.run(600.0)
    assert (world.judge.sends, world.ready("p")) == ([], "Enforced")


@pytest.mark.parametrize(
    ("by", "leaves"),
    [*product(["its group", "its policy"], [False, True]), ("another policy", False)],
)
def test_a_canary_is_not_taken_for_one_that_has_left(
    make: Callable[..., World], by: str, leaves: bool
) -> None:
    world = make(6, B)
    selector = {"groups": [{"kind": B[0], "names": [B[1]]}]}
    if by == "another policy":
        world.apply("q", **QUICK | {"options": {"httpPutResponseHopLimit": 3}})
    world.apply("p", **QUICK | {"selector": {} if by == "its group" else selector, "priority": 200})
    world.run(60.0)
    assert world.ready("p") == "CanarySoaking"
    node = canary(world, B)
    lacks_group(world)
    world.run(LAGS)
    assert (world.ready("p"), world.judge.sends) == ("NotAsked", [])
    ready = find(world.cluster.status("p").conditions, "Ready")
    assert ready is not None
    assert f"(node {node}) still has its change: EC2 has not confirmed its group" in ready.message
    world.ec2.lacks_group = False
    if leaves:
        world.attach(node)
    world.run(900.0)
    assert world.ready("p") == ("BreakerOpen" if leaves else "Enforced")
    assert right(world) != leaves


def test_a_canary_without_a_group_goes_on(make: Callable[..., World]) -> None:
    """Whether it has one is not at stake: it is of the group that it is taken for."""
    world = make(3, NONE)
    world.apply("p", **QUICK)
    world.run(60.0)
    assert world.ready("p") == "CanarySoaking"
    world.operator.restart()
    world.run(5.0)
    assert world.ready("p") == "CanarySoaking"


def test_an_instance_that_failed_as_a_canary_stays_behind_the_others(make: Callable[..., World]) -> None:
    world = make(3, B)
    world.apply("p", **QUICK)
    world.run(60.0)
    node = canary(world, B)
    world.ec2.put(world.instance_of(node), takes=0.0, HttpPutResponseHopLimit=1)
    world.run(90.0)
    assert world.ready("p") == "BreakerOpen"
    lacks_group(world)
    world.resume("p")
    world.run(LAGS)
    world.ec2.lacks_group = False
    world.run(60.0, until=lambda: bool(world.judge.sends))
    assert [one for _, _, one in world.judge.sends] not in ([], [world.instance_of(node).name])


@pytest.mark.parametrize("selector", [{}, {"groups": [{"kind": B[0], "names": [B[1]]}]}])
@pytest.mark.parametrize("lacks", ["the group's", "all"])
def test_what_an_exception_releases_meanwhile_has_to_pass_again(
    make: Callable[..., World], lacks: str, selector: dict[str, Any]
) -> None:
    world = make(0)
    for _ in range(6):
        world.join(B, team="x", options={HOP: 3})
    world.apply("p", **LOWER | {"selector": selector})
    world.run(2_400.0)
    world.apply("exception", **HOLDS | {"selector": {"nodeSelector": {"matchLabels": {TEAM: "x"}}}})
    world.run(1_200.0)
    assert (world.ready("exception"), world.ready("p")) == ("Enforced", "Enforced")
    world.harmful.add((B, HOP, 1))
    world.ec2.lacks_group, world.ec2.untold = lacks == "the group's", int(lacks == "all")
    world.operator.restart()
    world.run(10.0)
    world.delete("exception")
    world.run(LAGS - 10.0)
    world.ec2.lacks_group, world.ec2.untold = False, 0
    world.run(2_400.0)
    assert (world.ready("p"), len(world.judge.harmed)) == ("BreakerOpen", 1)


def test_nodes_without_a_group_are_changed_once_that_is_confirmed(make: Callable[..., World]) -> None:
    world = make(4, NONE)
    world.apply("p", **QUICK)
    assert world.run(30.0)["p"] <= 5
    assert world.judge.sends == []
    asked = described(world)
    assert world.run(10.0, until=lambda: bool(world.judge.sends))["p"] <= 3
    assert (len(world.judge.sends), described(world) - asked) == (1, 1)
    world.run(600.0)
    assert right(world)
    world.join(NONE, team="x")
    sent = len(world.judge.sends)
    world.run(45.0)
    assert len(world.judge.sends) == sent + 1, "of which the others have no doubt"


def test_what_needs_no_change_needs_no_confirmation(make: Callable[..., World]) -> None:
    world = make(4, NONE)
    for node in world.cluster.nodes:
        world.ec2.put(world.instance_of(node), takes=0.0, HttpPutResponseHopLimit=2)
    world.apply("p", **QUICK)
    world.run(3_599.0)
    assert (world.ready("p"), described(world)) == ("Enforced", 6), "once each resyncInterval"


@pytest.mark.parametrize("group", [A, ("KarpenterNodePool", "k"), B])
def test_what_a_label_or_a_tag_names_waits_for_nothing(make: Callable[..., World], group: Group) -> None:
    world = make(0)
    world.groups[group] = world.groups[A]
    for _ in range(3):
        world.join(group, team="x")
    world.apply("p", **QUICK)
    world.run(5.0)
    assert len(world.judge.sends) == 1


def test_a_response_without_tags_confirms_nothing(make: Callable[..., World]) -> None:
    world = make(4, B)
    lacks_group(world)
    world.apply("p", **QUICK)
    world.run(10.0)
    world.ec2.lacks_group, world.ec2.untold = False, 1
    world.run(120.0)
    assert world.judge.sends == []
    world.ec2.untold = 0
    world.run(1_200.0)
    assert (right(world), world.ready("p")) == (True, "Enforced")
