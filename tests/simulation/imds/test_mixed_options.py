"""A group whose instances differ in another option than the one that is changed.

Hop limit 1 with required tokens cuts pods off, and either of both alone does not.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from simulation.imds.ec2 import Instance
from simulation.imds.test_canary_evidence import QUICK
from simulation.imds.test_incidents import A
from simulation.imds.world import World

HOP, TOKENS = "HttpPutResponseHopLimit", "HttpTokens"
SOAKED: Final = 1200.0  # a closing change soaks 15 minutes
# The desired option, the instances that keep the other one, and those that do not.
CLOSING: Final[dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]] = {
    "a lower hop limit": (
        {"httpPutResponseHopLimit": 1},
        {HOP: 2, TOKENS: "optional"},
        {HOP: 2, TOKENS: "required"},
    ),
    "required tokens": (
        {"httpTokens": "required"},
        {HOP: 2, TOKENS: "optional"},
        {HOP: 1, TOKENS: "optional"},
    ),
}
Mixed = Callable[..., tuple[World, list[str], list[str]]]


def closed(one: Instance) -> bool:
    return one.runs and (one.last.options[HOP], one.last.options[TOKENS]) == (1, "required")


@pytest.fixture(params=CLOSING)
def mixed(request: pytest.FixtureRequest) -> Iterator[Mixed]:
    """A group of six and six instances, and the policy."""
    options, open_still, shut = CLOSING[request.param]
    made: list[World] = []

    def make(*, harmful: bool, size: int = 1, probe: bool = False) -> tuple[World, list[str], list[str]]:
        world = World({A: {}})
        made.append(world)
        if harmful:
            world.ails = closed  # type: ignore[method-assign]
        ones, others = ([world.join(A, options=has) for _ in range(6)] for has in (open_still, shut))
        safety = QUICK["safety"] | {"canary": {"instances": size, "soak": "2m"}}
        verification = {"verification": {"probe": True, "expect": "Any"}} if probe else {}
        world.apply("p", **{**QUICK, "options": options, "safety": safety, **verification})
        return world, ones, others

    yield make
    for world in made:
        world.close()


def pairs(world: World) -> list[Instance]:
    return [one for one in world.ec2.instances.values() if closed(one)]


def changed(world: World, nodes: list[str]) -> int:
    return sum(any(turn.by for turn in world.instance_of(node).past) for node in nodes)


@pytest.mark.parametrize("probe", [False, True], ids=["without a probe", "with a probe"])
@pytest.mark.parametrize("size", [1, 2])
def test_what_passed_on_another_pair_of_options_reaches_no_instance_that_pods_would_lose(
    mixed: Mixed, size: int, probe: bool
) -> None:
    world, ones, others = mixed(harmful=True, size=size, probe=probe)
    world.run(3 * 3600.0)
    lost = [one for one in world.ec2.instances.values() if not one.runs]
    assert len(lost) == changed(world, others) == 1, "the canary of those that would have both"
    assert (world.ready("p"), pairs(world)) == ("BreakerOpen", [])
    if size == 1:  # else both kinds are in the first canary
        assert changed(world, ones) == 6, "the others followed their canary"


@pytest.mark.parametrize("size", [1, 2])
def test_those_that_would_have_both_have_a_canary_of_their_own_and_then_all_follow(
    mixed: Mixed, size: int
) -> None:
    world, ones, others = mixed(harmful=False, size=size)
    world.run(SOAKED)
    canaries = 1 if size == 1 else 3  # one of these was in the first canary, too, which shows too little
    assert (changed(world, ones), changed(world, others)) == (6, canaries)
    world.operator.change_leader()
    world.run(2 * SOAKED)
    assert (world.ready("p"), len(pairs(world))) == ("Enforced", 6)
    status = world.cluster.status("p").canary
    assert status is not None
    assert [one.closed_to_pods for one in status.passed] == [True]


def test_others_that_keep_joining_hold_up_no_canary_that_they_do_not_belong_to(mixed: Mixed) -> None:
    """They follow the canary of before; each that joined would have begun its soak anew."""
    world, ones, others = mixed(harmful=False, size=2)
    open_still, shut = (world.instance_of(of[0]).launched for of in (ones, others))
    for other in others:
        world.remove(other)
    world.run(SOAKED)
    world.join(A, options=shut)
    for _ in range(12):
        world.run(300.0)
        world.join(A, options=open_still)
    status = world.cluster.status("p").canary
    assert status is not None
    assert [one.closed_to_pods for one in status.passed] == [True]


def test_a_pass_with_both_counts_for_all_that_join(mixed: Mixed) -> None:
    world, ones, others = mixed(harmful=False)
    world.run(3 * SOAKED)
    joined = [world.join(A, options=world.instance_of(one).launched) for one in (ones[0], others[0])]
    world.run(60.0)
    assert changed(world, joined) == 2
