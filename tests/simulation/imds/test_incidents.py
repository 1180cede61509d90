"""What may happen while a canary stands, and right after it has: one thing in each history, at each moment.
The judge of judge.py looks at every change that is sent."""

from collections.abc import Callable, Iterator
from itertools import product
from random import Random
from typing import Any, Final

import pytest

from simulation.imds.ec2 import Instance
from simulation.imds.judge import Sent
from simulation.imds.truth import LABELS, TEAM, WORDS, Group
from simulation.imds.world import World
from testing.examples import SEED, examples

pytestmark = [pytest.mark.random, pytest.mark.slow]
A: Final[Group] = ("EKSManagedNodegroup", "a")
B: Final[Group] = ("AutoScalingGroup", "b")
C: Final[Group] = ("KarpenterNodePool", "c")
GROUP_A: Final = {"kind": A[0], "names": [A[1]]}
SOAK: Final = 120.0
SPEC: Final[dict[str, Any]] = {
    "mode": "Enforce",
    "options": {"httpPutResponseHopLimit": 2},
    "safety": {
        "allowLoosening": WORDS,
        "allowTightening": WORDS,
        "canary": {"instances": 1, "soak": "2m"},
        "maxChangesPerMinute": 6,
    },
    "resyncInterval": "10m",
    "pendingTimeout": "1m",
}


def back(world: World, node: str) -> None:
    world.ec2.put(world.instance_of(node), takes=0.0, HttpPutResponseHopLimit=1)


def back_and_forth(world: World, node: str) -> None:
    back(world, node)
    world.run(90.0)
    world.ec2.put(world.instance_of(node), takes=0.0, HttpPutResponseHopLimit=2)


def lacking_option(world: World, _: str) -> None:
    world.ec2.untold, world.ec2.lacking = 1, "HttpPutResponseHopLimit"


def unready(world: World, node: str) -> None:
    world.cluster.set_ready(node, False)
    world.run(100.0)
    world.cluster.set_ready(node, True)


def stays_unready(world: World, node: str) -> None:
    world.cluster.set_ready(node, False)
    world.run(600.0)


def unready_and_edited(world: World, node: str) -> None:
    """The edit takes the canary out of its change."""
    world.cluster.set_ready(node, False)
    world.run(20.0)
    world.apply("p", options={"httpPutResponseHopLimit": 3})
    world.run(100.0)
    world.cluster.set_ready(node, True)


def lagging(world: World, node: str) -> None:
    world.ec2.lag(8.0, 0.0)
    back(world, node)


def gone_and_back(before: dict[str, Any], after: dict[str, Any]) -> Callable[[World, str], None]:
    def edit(world: World, _: str) -> None:
        world.apply("p", **before)
        world.run(30.0)
        world.apply("p", **after)

    return edit


def made_anew(world: World, _: str) -> None:
    world.delete("p")
    world.run(10.0)
    world.apply("p", **SPEC)


INCIDENTS: Final[dict[str, Callable[[World, str], object]]] = {
    "it is set back": back,
    "it is set back, and again as it was": back_and_forth,
    "its Node flaps between two looks": lambda world, node: world.cluster.flap(node),
    "its Node is not Ready for a while": unready,
    "its Node stays not Ready": stays_unready,
    "its Node is not Ready, and its policy is edited": unready_and_edited,
    "it is terminated, its Node leaves": lambda world, node: world.end(node),
    "it is terminated, its Node stays": lambda world, node: world.end(node, leaves_in=None),
    "its Node is deleted": lambda world, node: world.cluster.remove_node(node),
    "its Node comes to another group": lambda world, node: world.label(node, {LABELS[A[0]]: "b"}),
    "the operator is restarted": lambda world, _: world.operator.restart(),
    "another process leads": lambda world, _: world.operator.change_leader(),
    "the wall clock leaps": lambda world, _: world.clock.jump(3_600.0),
    "descriptions lag": lagging,
    "descriptions lack tags": lambda world, _: setattr(world.ec2, "untold", 1),
    "descriptions lack an option": lacking_option,
    "its policy is edited": lambda world, _: world.apply("p", options={"httpPutResponseHopLimit": 3}),
    "its policy audits for a while": gone_and_back({"mode": "Audit"}, {"mode": "Enforce"}),
    "its policy is suspended for a while": gone_and_back({"suspend": True}, {"suspend": False}),
    "it is resumed": lambda world, _: world.resume("p"),
    "its policy is made anew": made_anew,
}
MOMENTS: Final = {
    "while it is changed": 1.5,
    "as it soaks": 30.0,
    "as its soak ends": SOAK + 8.0,
    "as the others follow": SOAK + 40.0,
}


@pytest.fixture
def world() -> Iterator[World]:
    made = World({A: {}, B: {}})
    for number in range(16):
        made.join((A, B)[number % 2], team="x")
    made.ec2.applies_in = 3.0
    yield made
    made.close()


def canary(world: World, group: Group = A) -> str:
    """Its Node."""
    found = world.cluster.status("p").canary
    names = {one.instance for one in world.judge.taken[world.cluster.policy("p").uid].values() if one.canary}
    assert found is not None
    return next(
        one.node
        for one in world.ec2.instances.values()
        if one.name in names and world.judge.group(one) == group
    )


def right(world: World) -> bool:
    wanted = world.cluster.policy("p").options()["HttpPutResponseHopLimit"]
    nodes = map(world.instance_of, world.cluster.nodes)
    return all(one.last.options["HttpPutResponseHopLimit"] == wanted for one in nodes if one.runs)


def ends_well(world: World) -> None:
    """After all faults have ended and the breaker was closed."""
    world.run(1_800.0)
    world.calm()
    for _ in range(3):
        world.run(3_600.0, until=lambda: right(world))
        world.resume("p")
    assert right(world), world.ready("p")


def some(every: list[Any]) -> list[Any]:
    """A few in `make test`."""
    return Random(SEED).sample(every, min(examples(len(every)), len(every)))


@pytest.mark.parametrize(("incident", "moment"), some(list(product(INCIDENTS, MOMENTS))))
def test_nothing_follows_a_canary_that_has_not_stood(world: World, incident: str, moment: str) -> None:
    world.apply("p", **SPEC)
    world.run(MOMENTS[moment])
    INCIDENTS[incident](world, canary(world))
    ends_well(world)


FAILURES: Final[dict[str, Callable[[World, str], object]]] = {
    "it left its group": INCIDENTS["its Node comes to another group"],
    "it left its policy": lambda world, node: world.label(node, {LABELS[A[0]]: A[1], TEAM: "z"}),
    "another one was set back": back,
    "another one was lost": lambda world, node: world.end(node),
}


@pytest.mark.parametrize(("failure", "incident"), some(list(product(FAILURES, INCIDENTS))))
def test_nothing_follows_after_a_resume_once_one_is_worse(world: World, failure: str, incident: str) -> None:
    """One of a failed canary that still has its change. The next one soaks."""
    safety = SPEC["safety"] | {"canary": {"instances": 2, "soak": "2m"}, "maxChangesPerMinute": 60}
    team = {"nodeSelector": {"matchLabels": {TEAM: "x"}}}
    world.apply("p", **SPEC | {"safety": safety, "selector": team})
    world.run(40.0)
    first, second = (one.node for one in world.ec2.instances.values() if one.last.by and one.number % 2)
    FAILURES[failure](world, second if failure.startswith("another") else first)
    world.run(70.0)
    assert world.cluster.status("p").breaker is not None
    world.resume("p")
    world.run(20.0)
    INCIDENTS[incident](world, first)
    world.run(900.0)
    if first in world.cluster.nodes:  # it comes back
        world.label(first, {LABELS[A[0]]: A[1], TEAM: "x"})
    ends_well(world)


@pytest.mark.parametrize("left", [True, False], ids=["others are to be changed", "none is"])
def test_a_failed_canary_that_is_not_ready_stops_all_after_a_resume(world: World, left: bool) -> None:
    """The other instance of it was lost. `left`: in its group."""
    safety = {**SPEC["safety"], "canary": {"instances": 2, "soak": "4m"}, "maxChangesPerMinute": 60}
    world.apply("p", **SPEC | {"safety": safety})
    world.run(40.0)
    ours = [one for one in world.ec2.instances.values() if world.judge.group(one) == A]
    lost, broken = (one for one in ours if one.last.by)
    world.cluster.set_ready(broken.node, False)
    world.run(10.0)
    world.end(lost.node)
    if not left:
        for one in ours:
            world.ec2.put(one, takes=0.0, HttpPutResponseHopLimit=2)
    world.run(10.0)
    assert world.cluster.status("p").breaker is not None
    world.resume("p")
    world.run(120.0)
    assert world.ready("p") == "NodeNotReady"
    world.cluster.set_ready(broken.node, True)
    ends_well(world)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_canary_soaks_when_its_last_instance_is_changed(world: World, restarts: bool) -> None:
    """The rate limit allows one change a minute, which is as long as the soak."""
    safety = {**SPEC["safety"], "canary": {"instances": 2, "soak": "1m"}, "maxChangesPerMinute": 1}
    world.apply("p", **SPEC | {"safety": safety, "selector": {"groups": [GROUP_A]}})

    def passed() -> bool:
        found = world.cluster.status("p").canary
        return found is not None and bool(found.passed)

    world.run(90.0)
    if restarts:
        world.operator.restart()
    world.run(1_800.0, until=passed)
    assert passed()
    sent = sorted(one.at for one in world.judge.taken[world.cluster.policy("p").uid].values() if one.canary)
    assert len(sent) == 2
    assert 60.0 <= sent[1] - sent[0] < 75.0, "as soon as the rate limit allows"
    assert world.clock.now - sent[1] >= 60.0


WORSE: Final = [name for name in INCIDENTS if name.startswith("it") and name != "it is resumed"]


@pytest.mark.parametrize("incident", some(WORSE))
def test_nothing_follows_one_that_got_worse(world: World, incident: str) -> None:
    world.apply("p", **SPEC)
    world.run(SOAK + 40.0)
    sent = max(world.judge.taken[world.cluster.policy("p").uid].values(), key=lambda one: one.at)
    assert not sent.canary
    world.run(40.0)
    INCIDENTS[incident](world, world.ec2.instances[sent.instance].node)
    ends_well(world)


@pytest.mark.parametrize("incident", ["it is set back", "it is terminated, its Node stays"])
def test_a_resume_does_not_settle_what_is_read_after_it(world: World, incident: str) -> None:
    world.apply("p", **SPEC | {"selector": {"groups": [GROUP_A]}})
    world.run(30.0)
    INCIDENTS[incident](world, canary(world))
    world.resume("p")
    assert world.cluster.status("p").breaker is None
    world.run(100.0)
    assert (world.ready("p"), len(world.judge.sends)) == ("BreakerOpen", 1)


def test_one_that_is_lost_after_the_last_change_stops_what_joins_later(world: World) -> None:
    """Its Node stays, and there is no other change with which it would be read."""
    world.apply("p", **SPEC | {"safety": SPEC["safety"] | {"maxChangesPerMinute": 60}})
    world.run(600.0, until=lambda: right(world))
    world.run(30.0)
    last = max(world.judge.taken[world.cluster.policy("p").uid].values(), key=lambda one: one.at)
    world.end(world.ec2.instances[last.instance].node, leaves_in=None)
    world.run(300.0)
    world.join(A)
    world.run(60.0)
    assert world.ready("p") == "BreakerOpen"
    ends_well(world)


def test_a_watch_that_ends_in_the_second_of_a_pass_is_over_with_it(world: World) -> None:
    """Nothing else would start a pass before the resync."""
    world.operator.latency = 0.0
    world.apply("p", **SPEC | {"safety": SPEC["safety"] | {"maxChangesPerMinute": 60}})
    world.run(600.0, until=lambda: right(world))
    world.run(150.0)
    assert world.cluster.status("p").changed == ()


@pytest.mark.parametrize("answers", ["away", "lags", "lacks"])
def test_a_watch_whose_end_cannot_be_read_starts_no_pass_after_the_other(world: World, answers: str) -> None:
    world.apply("p", **SPEC | {"safety": SPEC["safety"] | {"maxChangesPerMinute": 60}})
    world.run(600.0, until=lambda: right(world))
    world.run(30.0)
    if answers == "away":
        world.ec2.blind = ["away"] * 10_000
    elif answers == "lags":
        world.ec2.lag(8.0)
    else:
        world.ec2.untold = 1
    assert world.run(600.0)["p"] <= 120


@pytest.mark.parametrize(("calls", "effect"), some(list(product(range(60), [True, False]))))
def test_it_may_be_killed_at_any_call(world: World, calls: int, effect: bool) -> None:
    world.apply("p", **SPEC)
    world.operator.kill_in, world.operator.effect = calls, effect
    ends_well(world)


@pytest.mark.parametrize("leaves", ["deleted", "audits", "yields", "lets go"])
def test_what_another_policy_frees_needs_a_canary_of_its_own(world: World, leaves: str) -> None:
    """The baseline has passed its canary long ago, for other changes."""
    for one in world.ec2.instances.values():
        world.ec2.put(one, takes=0.0, HttpPutResponseHopLimit=3)
    world.apply(
        "p", **SPEC | {"options": {"httpPutResponseHopLimit": 1, "httpTokens": "required"}, "priority": 10}
    )
    world.apply("exception", **SPEC | {"options": {"httpPutResponseHopLimit": 3}})
    world.run(3_600.0)
    if leaves == "deleted":
        world.delete("exception")
    elif leaves == "audits":
        world.apply("exception", mode="Audit")
    elif leaves == "yields":
        world.apply("exception", priority=1)
    else:
        world.apply("exception", selector={"nodeSelector": {"matchLabels": {TEAM: "y"}}})
    before = len(world.judge.sends)
    world.run(600.0)
    assert 0 < len(world.judge.sends) - before <= 2  # a canary of each group
    ends_well(world)


@pytest.mark.parametrize("restarts", [False, True])
def test_what_the_probe_has_found_is_not_forgotten_with_a_flap(world: World, restarts: bool) -> None:
    """The soak begins anew; until the next result nothing else is changed."""
    safety = {**SPEC["safety"], "maxChangesPerMinute": 60}
    world.apply("p", **SPEC | {"verification": {"probe": True, "expect": "PodReachable"}, "safety": safety})
    world.run(5.0)
    node = canary(world)
    world.cluster.needs_of[node] = 9
    world.run(300.0)
    assert world.ready("p") == "SetButUnreachable"
    before = world.cluster.status("p").canary
    sent = [instance for _, _, instance in world.judge.sends]
    world.cluster.flap(node)
    world.cluster.probe_takes = 30.0
    if restarts:
        world.operator.restart()
    world.run(20.0)
    after = world.cluster.status("p").canary
    assert before is not None
    assert after is not None
    assert after.since != before.since, "it soaks anew"
    assert {instance for _, _, instance in world.judge.sends} <= set(sent)


def test_what_the_probe_has_found_by_a_clock_that_was_ahead_is_not_forgotten(world: World) -> None:
    """Nor after its Node was not Ready, in the pass that finds it Ready."""
    world.clock.jump(3_600.0)
    world.apply("p", **SPEC | {"verification": {"probe": True, "expect": "PodReachable"}})
    world.run(5.0)
    node = canary(world)
    world.cluster.needs_of[node] = 9
    world.run(300.0)
    assert world.ready("p") == "SetButUnreachable"
    world.cluster.set_ready(node, False)
    world.clock.jump(0.0)
    world.groups[C] = world.groups[A]
    world.join(C)
    world.run(100.0)
    assert world.ready("p") == "NodeNotReady"
    sent = len(world.judge.sends)
    world.cluster.set_ready(node, True)
    world.cluster.probe_takes = 30.0
    world.run(20.0)
    assert (world.ready("p"), len(world.judge.sends)) == ("SetButUnreachable", sent)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_probe_that_was_requested_before_the_clock_was_set_back_proves_nothing(
    world: World, restarts: bool
) -> None:
    """Its request has a time within the soak that follows."""
    world.apply("p", **SPEC | {"verification": {"probe": True, "expect": "Any"}})
    world.run(1_200.0)
    assert world.ready("p") == "Enforced"
    probed = sum(map(len, world.cluster.measured.values()))
    world.clock.jump(-1_800.0)
    world.apply("p", options={"httpEndpoint": "disabled"})
    world.run(60.0)
    if restarts:
        world.operator.restart()
    world.run(1_800.0)
    assert world.ready("p") == "CanarySoaking"
    passes = world.run(7_200.0)
    assert (world.ready("p"), passes["p"] < 1_000) == ("Enforced", True)
    assert sum(map(len, world.cluster.measured.values())) > probed


@pytest.mark.parametrize("restarts", [False, True])
def test_what_the_probe_has_found_is_not_forgotten_while_ec2_does_not_answer(
    world: World, restarts: bool
) -> None:
    world.cluster.needs_of["n11"], world.cluster.probe_told = 9, 30.0
    world.apply("p", **SPEC | {"verification": {"probe": True, "expect": "PodReachable"}})
    world.run(600.0, until=lambda: world.ready("p") == "SetButUnreachable")
    assert not right(world)
    sent = len(world.judge.sends)
    if restarts:
        world.operator.restart()
        sent = 0
    world.ec2.blind = ["away"]
    world.run(700.0)
    assert world.ec2.blind == []
    assert (world.ready("p"), len(world.judge.sends)) == ("SetButUnreachable", sent)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("tags", [False, True], ids=["EC2 reports no tags", "its Node is not Ready"])
def test_what_the_probe_has_found_is_not_forgotten_after_the_watch(
    world: World, tags: bool, restarts: bool
) -> None:
    """Another process does not know tags, and so not whether the node's options are wanted."""
    world.cluster.needs_of["n11"], world.cluster.probe_told = 9, 30.0
    world.apply("p", **SPEC | {"verification": {"probe": True, "expect": "PodReachable"}})
    world.run(600.0, until=lambda: world.ready("p") == "SetButUnreachable")
    assert not right(world)
    world.run(400.0)
    assert world.cluster.status("p").changed == ()
    sent = len(world.judge.sends)
    if tags:
        world.cluster.set_ready("n11", False)
    else:
        world.ec2.untold = world.instance_of("n11").number
    if restarts:
        world.operator.restart()
        sent = 0
    world.run(700.0)
    assert (world.ready("p"), len(world.judge.sends)) == ("SetButUnreachable", sent)


@pytest.mark.parametrize("group", [A, B], ids=["by a label", "by a tag"])
@pytest.mark.parametrize("how", ["away", "lacks"])
def test_a_failed_canary_is_kept_while_ec2_does_not_answer_another_process(
    world: World, how: str, group: Group
) -> None:
    """The next canary is another instance."""
    world.apply("p", **SPEC | {"selector": {"groups": [{"kind": group[0], "names": [group[1]]}]}})
    world.run(40.0)
    node = canary(world, group)
    back(world, node)
    world.run(70.0)
    assert world.ready("p") == "BreakerOpen"
    world.operator.restart()
    if how == "away":
        world.ec2.blind = ["away"] * 4
    else:
        world.ec2.untold = 1
    world.resume("p")
    world.run(10.0)

    def canaries() -> list[tuple[str, str]]:
        found = world.cluster.status("p").canary
        groups = found.groups if found is not None else ()
        return [(group.phase, one.node) for group in groups for one in group.instances]

    assert (world.cluster.status("p").breaker, canaries()) == (None, [("Failed", node)])
    world.calm()
    world.run(620.0, until=lambda: ("Failed", node) not in canaries())
    assert [one != node for _, one in canaries()] == [True]


def test_what_another_policy_has_read_as_applied_is_not_sent_once_more(world: World) -> None:
    """Though its own policy has not looked at it yet, and the change of the other one is pending since."""
    world.groups[C] = world.groups[A]
    world.join(C)
    selector = {"groups": [{"kind": C[0], "names": [C[1]]}]}
    world.apply("p", **SPEC | {"selector": selector})
    world.run(1.0)
    world.apply("a", **SPEC | {"selector": selector, "options": {"httpTokens": "required"}})
    world.ec2.blind = ["away"] * 3
    world.run(100.0)
    world.operator.due["p"] = world.operator.due["a"] + 0.3
    world.run(200.0)
    assert [who for _, who, _ in world.judge.sends] == ["p", "a"]
    world.run(1_200.0)
    assert (world.ready("p"), world.ready("a")) == ("Enforced", "Enforced")


def test_all_of_a_canary_are_given_back_as_soon_as_the_pace_allows(world: World) -> None:
    canary = {"instances": 3, "soak": "2m", "onFailure": "Restore"}
    world.apply(
        "p", **SPEC | {"safety": SPEC["safety"] | {"canary": canary}, "selector": {"groups": [GROUP_A]}}
    )
    world.run(60.0)
    lost, *others = (one for one in world.ec2.instances.values() if one.last.by)
    world.end(lost.node)
    world.run(60.0)
    assert [one.last.options["HttpPutResponseHopLimit"] for one in others] == [1, 1]


RESTORE: Final = SPEC | {
    "safety": SPEC["safety"] | {"canary": {"instances": 1, "soak": "2m", "onFailure": "Restore"}},
    "selector": {"groups": [GROUP_A]},
}


def not_ready(world: World) -> Instance:
    """A canary whose Node is not Ready after its change."""
    world.apply("p", **RESTORE)
    world.run(20.0)
    one = world.instance_of(canary(world))
    world.cluster.set_ready(one.node, False)
    world.run(30.0)
    return one


def hops(one: Instance) -> int:
    return int(one.last.options["HttpPutResponseHopLimit"])


def slow(world: World) -> None:
    world.operator.latency = 1.5
    world.loop.at(world.clock.now + 200.0, lambda: setattr(world.operator, "latency", 0.02))


def killed(world: World) -> None:
    """Between the status and the call."""
    world.run(600.0, until=lambda: world.ready("p") == "BreakerOpen")
    world.operator.kill_in, world.operator.effect = 1, False


@pytest.mark.parametrize(
    "happens",
    [
        lambda world: world.ec2.faults.append("throttle"),
        lambda world: world.ec2.faults.append("drop"),
        lambda world: world.ec2.faults.append("lose"),
        lambda world: world.ec2.faults.extend(["refuse"] * 2),
        slow,
        killed,
    ],
    ids=[
        "it is throttled",
        "it is not answered",
        "its answer is lost",
        "it is refused",
        "it is late",
        "killed",
    ],
)
def test_a_canary_is_given_back_though_the_call_fails(
    world: World, happens: Callable[[World], object]
) -> None:
    one = not_ready(world)
    happens(world)
    world.run(900.0)
    assert (world.ready("p"), hops(one), world.ec2.faults) == ("BreakerOpen", 1, [])
    sent = len(world.judge.sends)
    world.ec2.put(one, takes=0.0, HttpPutResponseHopLimit=2)
    world.run(1_800.0)
    assert (hops(one), len(world.judge.sends)) == (2, sent), "another client wants it so"
    world.resume("p")
    world.run(600.0)
    assert (world.ready("p"), len(world.judge.sends)) == ("NodeNotReady", sent)


def test_nothing_follows_a_canary_that_could_not_be_given_back(world: World) -> None:
    one = not_ready(world)
    world.ec2.denied = {one.name}
    world.run(900.0)
    assert (world.ready("p"), hops(one)) == ("BreakerOpen", 2)
    world.resume("p")
    world.run(900.0)
    assert world.ready("p") == "NodeNotReady"
    assert [other.name for other in world.ec2.instances.values() if other.last.by] == [one.name]


def test_a_canary_is_given_back_an_opening_value_that_the_policy_may_not_write(world: World) -> None:
    safety = RESTORE["safety"] | {"allowLoosening": [], "allowTightening": ["Tokens"]}
    world.apply("p", **RESTORE | {"options": {"httpTokens": "required"}, "safety": safety})
    world.run(20.0)
    one = world.instance_of(canary(world))
    world.cluster.set_ready(one.node, False)
    world.run(600.0)
    assert [then.options["HttpTokens"] for then in one.past] == ["optional", "required", "optional"]


def test_a_canary_is_given_back_a_disabled_endpoint_beside_other_values(world: World) -> None:
    """EC2 takes it only alone."""
    launched = {"HttpEndpoint": "disabled", "HttpTokens": "optional"}
    for one in world.ec2.instances.values():
        world.ec2.put(one, takes=0.0, **launched)
    world.apply("p", **RESTORE | {"options": {"httpEndpoint": "enabled", "httpTokens": "required"}})
    world.run(20.0)
    one = world.instance_of(canary(world))
    world.cluster.set_ready(one.node, False)
    world.run(600.0)
    assert {name: one.last.options[name] for name in launched} == launched
    sent = len(world.judge.sends)
    world.run(3_600.0)
    assert (world.ready("p"), len(world.judge.sends)) == ("BreakerOpen", sent)


@pytest.mark.parametrize(
    ("options", "reads"), [({"httpPutResponseHopLimit": 2}, 3), ({"httpTokens": "required"}, 16)]
)
def test_the_calls_of_a_canary_are_those_that_are_documented(
    world: World, options: dict[str, Any], reads: int
) -> None:
    """Soaks of 2 and 15 minutes; a resync takes the place of one."""
    described: list[dict[str, Any]] = []
    describe = world.ec2.describe

    def counted(given: dict[str, Any]) -> dict[str, Any]:
        described.append(given)
        return describe(given)

    world.ec2.describe = counted  # type: ignore[method-assign]
    world.apply("p", **SPEC | {"options": options, "selector": {"groups": [GROUP_A]}})
    world.run(30.0, until=lambda: bool(world.judge.sends))
    described.clear()

    def passed() -> bool:
        found = world.cluster.status("p").canary
        return found is not None and bool(found.passed)

    world.run(1_200.0, until=passed)
    assert (passed(), len(described)) == (True, reads)
    sent = sorted(one.at for one in world.judge.taken[world.cluster.policy("p").uid].values() if one.canary)
    assert (len(sent), world.ec2.dry) == (1, 1)


def test_a_canary_whose_endpoint_another_hand_disables_is_told_until_it_is_enabled(world: World) -> None:
    """No probe can verify its change; nothing else is changed, and it passes once the endpoint is enabled."""
    world.apply("p", **SPEC | {"verification": {"probe": True}, "selector": {"groups": [GROUP_A]}})
    world.run(1.0)
    one = world.instance_of(canary(world))
    world.ec2.put(one, takes=0.0, HttpEndpoint="disabled")
    world.run(2_000.0)
    assert (world.ready("p"), len(world.judge.sends)) == ("NotProbeable", 1)
    (stopped,) = (told for told in world.cluster.status("p").conditions if told.type == "Enforcing")
    assert (stopped.status, one.name in stopped.message) == ("False", True)
    world.ec2.put(one, takes=0.0, HttpEndpoint="enabled")
    world.run(1_800.0)
    assert world.ready("p") == "Enforced"


def test_nothing_follows_while_ec2_does_not_tell_of_one_that_was_changed(world: World) -> None:
    """Another process does not know its tags, and so not whether its value is wanted."""
    world.apply("p", **SPEC)

    def late() -> list[Sent]:
        every = world.judge.taken[world.cluster.policy("p").uid].values()
        return [one for one in every if world.ec2.instances[one.instance].number > 8 and not one.canary]

    world.run(900.0, until=lambda: bool(late()))
    one = world.ec2.instances[late()[0].instance]
    world.run(20.0)
    world.operator.restart()
    world.ec2.untold = one.number
    back(world, one.node)
    world.run(200.0)
    assert (world.ready("p"), world.judge.sends) == ("NotAsked", [])
    assert world.run(600.0)["p"] <= 120
    world.ec2.untold = 0
    world.run(70.0)
    assert world.ready("p") == "BreakerOpen"
    ends_well(world)
