"""What a person who resumes a policy has accepted, and what stops it again. The operator's own code in
virtual time; the judge of judge.py looks at every change that is sent."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import pytest

from simulation.imds.ec2 import Instance
from simulation.imds.test_incidents import GROUP_A, SPEC, A, back, canary
from simulation.imds.truth import LABELS, TEAM
from simulation.imds.world import World

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


def halved(world: World) -> Instance:
    """The other one of a canary of two, one of which was lost."""
    world.apply("p", **TWO)
    world.run(30.0)
    lost, other = changed(world)
    world.end(lost.node)
    world.run(10.0)
    assert breaker(world) == f"CanaryLost {lost.node}"
    return other


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
    other = halved(world)
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
    other = halved(world)
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


@pytest.mark.parametrize("process", ["restart", "change_leader"])
@pytest.mark.parametrize("happens", ["it is terminated, its Node leaves", "its Node is not Ready"])
def test_a_late_reading_after_a_resume_ends_no_watch(world: World, process: str, happens: str) -> None:
    """EC2 describes an instance as it was before its change, to a process that has not sent it."""
    world.ec2.applies_in = 0.0
    world.run(200.0)
    world.apply("p", **SLOW | {"safety": SAFETY | {"canary": {"instances": 2, "soak": "20m"}}})
    world.run(60.0, until=lambda: len(changed(world)) == 2)
    world.run(5.0)
    lost, other = changed(world)
    world.end(lost.node)
    world.run(2.0)
    assert breaker(world) == f"CanaryLost {lost.node}"
    world.resume("p")
    world.ec2.lag(8.0)
    getattr(world.operator, process)()
    world.run(60.0)
    world.ec2.calm()
    sent = len(changed(world))
    WORSE[happens][0](world, other.node)
    world.run(2_600.0)
    assert (world.ready("p"), len(changed(world))) == (WORSE[happens][1], sent)


@pytest.mark.parametrize("happens", ["it is terminated, its Node leaves", "its Node is not Ready"])
def test_one_that_was_not_read_before_the_resume_is_watched(world: World, happens: str) -> None:
    """Its region does not answer from before the first reading of its change."""
    world.ec2.applies_in = 0.0
    world.run(200.0)
    world.apply("p", **TWO)
    world.run(60.0, until=lambda: len(changed(world)) == 2)
    lost, other = changed(world)
    world.ec2.blind = ["away"] * 10_000
    world.operator.restart()
    world.run(1.0)
    world.end(lost.node)
    world.run(30.0)
    assert breaker(world) == f"CanaryLost {lost.node}"
    world.resume("p")
    world.run(30.0)
    assert breaker(world) == ""
    world.ec2.calm()
    WORSE[happens][0](world, other.node)
    world.run(2_600.0)
    assert (world.ready("p"), len(changed(world))) == (WORSE[happens][1], 2)


def test_the_node_of_a_failed_canary_counts_where_an_older_version_closed_the_breaker(world: World) -> None:
    """Which kept the failed canary, and watched nobody."""
    other = halved(world)
    world.cluster.set_ready(other.node, False)
    world.run(5.0)
    policy = world.cluster.policies["p"]
    status = msgspec.json.decode(policy.status)
    del status["breaker"]
    status["changed"] = []
    policy.status = msgspec.Raw(msgspec.json.encode(status))
    world.judge.acted("p")
    world.judge.opened.pop(policy.metadata.uid)
    world.operator.restart()
    world.run(300.0)
    assert (world.ready("p"), len(changed(world))) == ("NodeNotReady", 2)


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("undoes", [True, False])
def test_a_canary_that_left_and_is_set_back_opens_the_breaker_once(
    world: World, ready: bool, undoes: bool
) -> None:
    """Not where the option is removed from the spec first."""
    node = left(world, SLOW)
    world.cluster.set_ready(node, ready)
    world.run(60.0)
    if undoes:
        world.apply("p", options={"httpTokens": "optional"})
        world.run(10.0)
    back(world, node)
    world.run(1_000.0)
    assert breaker(world) == ("" if undoes else f"InstanceSetBack {node}")
    world.resume("p")
    world.run(4_000.0)
    assert (world.ready("p"), breaker(world)) == ("Enforced", "")


@pytest.mark.parametrize("eligible", [True, False])
def test_the_loss_of_a_watched_one_opens_the_breaker_once(world: World, eligible: bool) -> None:
    """While no other one is chosen: the Node of this one is not Ready, or those of all others are not."""
    other = halved(world)
    for node in [other.node] if eligible else [name for name in world.cluster.nodes if name != other.node]:
        world.cluster.set_ready(node, False)
    world.run(5.0)
    world.resume("p")
    world.run(60.0)
    world.end(other.node)
    world.run(5.0)
    assert breaker(world) == f"InstanceLost {other.node}"
    world.resume("p")
    world.run(10.0)
    assert breaker(world) == ""


def test_a_restart_writes_nothing_of_a_failed_canary_that_was_set_back(world: World) -> None:
    """An accepted loss stays so, too, though nothing was read since the restart."""
    other = halved(world)
    back(world, other.node)
    world.run(700.0)
    before = world.cluster.policies["p"].metadata.resource_version
    assert not any(one.applied for one in world.cluster.status("p").canary.groups[0].instances)
    world.operator.restart()
    world.run(5.0)
    assert world.cluster.policies["p"].metadata.resource_version == before
    world.end(other.node)
    world.resume("p")
    world.run(10.0)
    assert breaker(world) == ""


def test_what_the_policy_itself_sets_back_is_no_reversal(world: World) -> None:
    """By another spec, before the first one is applied again."""
    halved(world)
    world.apply("p", options={"httpPutResponseHopLimit": 1})
    world.run(30.0)
    world.apply("p", options={"httpPutResponseHopLimit": 2})
    world.run(1_500.0)
    assert (breaker(world), world.ready("p")) == ("", "Enforced")
