"""What a passed canary shows holds for its group, its values and its expectation alone. The judge of
judge.py looks at every change that is sent."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from simulation.imds.test_incidents import GROUP_A, SPEC, A, B, canary
from simulation.imds.truth import LABELS, TEAM, Group
from simulation.imds.world import World

HOP: Final = "HttpPutResponseHopLimit"
WORDS_OF: Final = {"PodReachable": "HopLimitTooLow", "PodBlocked": "StillReachable"}
SAFETY: Final = SPEC["safety"] | {"maxChangesPerMinute": 60}
QUICK: Final[dict[str, Any]] = SPEC | {"safety": SAFETY}


@pytest.fixture
def worlds() -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(*groups: Group, count: int = 6, **launched: Any) -> World:
        world = World(dict.fromkeys(groups, launched))
        made.append(world)
        for number in range(count):
            world.join(groups[number % len(groups)], team="x")
        world.ec2.applies_in = 3.0
        return world

    yield make
    for world in made:
        world.close()


def to_another_label(world: World, node: str) -> None:
    world.label(node, {LABELS[A[0]]: "b", TEAM: "x"})


MOVES: Final[dict[str, tuple[Group, Callable[[World, str], None]]]] = {
    "by a label": (A, to_another_label),
    "to another Auto Scaling group": (B, lambda world, node: world.attach(node, "other")),
    "out of its Auto Scaling group": (B, lambda world, node: world.attach(node)),
}


def states(world: World) -> tuple[str, str]:
    breaker = world.cluster.status("p").breaker
    return world.ready("p"), breaker.reason if breaker is not None else ""


# ---------------------------------------------------------------- its group


@pytest.mark.parametrize("after", [3.0, 30.0], ids=["while it is changed", "as it soaks"])
@pytest.mark.parametrize("how", MOVES)
def test_a_canary_that_changes_its_group_does_not_pass_for_the_old_one(
    worlds: Callable[..., World], how: str, after: float
) -> None:
    """The change kills nodes of the old group alone. A resume goes on with a canary that is in the group."""
    group, moves = MOVES[how]
    world = worlds(group)
    world.harmful.add((group, HOP, 2))
    world.ails_after = 60.0
    world.apply("p", **QUICK)
    world.run(after)
    moved = canary(world, group)
    moves(world, moved)
    world.run(1_200.0)
    assert (states(world), len(world.judge.sends)) == (("BreakerOpen", "CanaryLost"), 1)
    assert world.cluster.status("p").breaker.instance == world.instance_of(moved).name  # type: ignore[union-attr]
    world.heal()
    world.resume("p")
    world.run(3_600.0)
    assert states(world) == ("Enforced", "")


def test_a_canary_that_changes_its_group_before_its_call_is_none_of_the_old_one(
    worlds: Callable[..., World],
) -> None:
    """The process was killed between the status update and the call."""
    world = worlds(A)

    def listed() -> bool:
        found = world.cluster.status("p").canary
        return found is not None and bool(found.groups)

    world.apply("p", **QUICK)
    world.operator.kill_in, world.operator.effect = (
        8,
        False,
    )  # at the first call to EC2 that changes something
    world.run(2.0, until=lambda: world.operator.kill_in is None)
    assert (listed(), world.judge.sends) == (True, [])
    world.operator.restart()
    found = world.cluster.status("p").canary
    world.harmful.add((A, HOP, 2))
    to_another_label(world, found.groups[0].instances[0].node)  # type: ignore[union-attr]
    world.run(1_200.0)
    assert (states(world), world.judge.sends) == (("BreakerOpen", "CanaryLost"), [])


def relabels_sick_ones(world: World, seconds: float, *, restarts: bool = False) -> None:
    """A controller labels Nodes that are NotReady, and the policy of that label writes the old value back."""
    for _ in range(int(seconds / 20)):
        world.run(20.0)
        away = [node for node in world.cluster.nodes.values() if not node.ready]
        if away and restarts:
            world.operator.bury()
        for node in away:
            world.label(node.name, node.labels | {TEAM: "sick"})
        if away and restarts:
            world.operator.restart()


def reached(world: World) -> int:
    """How many instances p has changed."""
    return sum(any(then.by == "p" for then in one.past) for one in world.ec2.instances.values())


@pytest.fixture
def sick(worlds: Callable[..., World]) -> World:
    """With the policy of that label."""
    world = worlds(A, count=12)
    world.repaired_after = 3_600.0
    none = {"safety": SAFETY | {"canary": {"instances": 0}}, "options": {"httpPutResponseHopLimit": 1}}
    label = {"nodeSelector": {"matchLabels": {TEAM: "sick"}}}
    world.apply("sick", **QUICK | none | {"selector": label, "priority": 200})
    return world


@pytest.mark.parametrize("restarts", [False, True])
def test_a_canary_that_another_policy_wins_as_it_is_not_ready_gives_its_place_to_no_other(
    sick: World, restarts: bool
) -> None:
    sick.harmful.add((A, HOP, 2))
    sick.apply("p", **QUICK)
    relabels_sick_ones(sick, 1_200.0, restarts=restarts)
    assert (reached(sick), states(sick)) == (1, ("BreakerOpen", "CanaryLost"))
    sick.heal()
    sick.resume("p")
    sick.run(1_200.0)
    assert states(sick) == ("Enforced", "")


def test_one_that_follows_and_is_won_by_another_policy_as_it_is_not_ready_stops_all(sick: World) -> None:
    """Its canary stood the change."""
    sick.apply("p", **QUICK | {"safety": SAFETY | {"maxChangesPerMinute": 1}})
    sick.run(900.0, until=lambda: reached(sick) == 1)
    fine = next(one.name for one in sick.ec2.instances.values() if one.last.by == "p")
    for _ in range(100):
        for one in sick.ec2.instances.values():
            sick.cluster.set_ready(one.node, one.name == fine or one.last.options[HOP] == 1)
        relabels_sick_ones(sick, 20.0)
    assert (reached(sick), states(sick)) == (2, ("BreakerOpen", "InstanceSetBack"))


def test_an_edit_that_comes_with_the_move_ends_the_canary_without_a_result(
    worlds: Callable[..., World],
) -> None:
    """It is watched; the next one is in the group."""
    world = worlds(A)
    world.apply("p", **QUICK)
    world.run(30.0)
    moved = canary(world)
    to_another_label(world, moved)
    world.apply("p", resyncInterval="11m")
    world.run(20.0)
    status = world.cluster.status("p")
    assert status.canary is not None
    (group,) = (one for one in status.canary.groups if one.name == A[1])
    assert moved not in [one.node for one in group.instances]
    assert [one.node for group in status.changed for one in group.instances] == [moved]
    world.run(1_200.0)
    assert states(world) == ("Enforced", "")


# ---------------------------------------------------------------- its expectation


@pytest.mark.parametrize(
    ("options", "expect"),
    [({"httpPutResponseHopLimit": 2}, "PodReachable"), ({"httpTokens": "required"}, "PodBlocked")],
)
def test_a_change_that_was_proved_to_be_something_else_needs_a_canary_of_its_own(
    worlds: Callable[..., World], options: dict[str, Any], expect: str
) -> None:
    """All nodes that were probed have been replaced since."""
    world, name = worlds(A, count=3), WORDS_OF[expect]
    world.cluster.needs = 9 if expect == "PodReachable" else 1
    probing = {"probe": True, "nodesPerGroup": 1}
    world.apply("p", **QUICK | {"options": options, "verification": probing | {"expect": "Any"}})
    world.run(2_400.0)
    assert states(world) == ("Enforced", "")
    world.apply("p", verification=probing | {"expect": expect})
    world.run(5.0)
    for node in list(world.cluster.nodes):
        world.end(node)
    world.run(600.0)
    if world.cluster.status("p").breaker is not None:
        world.resume("p")
    sent = len(world.judge.sends)
    for _ in range(10):
        world.join(A, options={"HttpPutResponseHopLimit": 1 if expect == "PodReachable" else 2})
    world.run(3_600.0)
    assert len(world.judge.sends) - sent == 1
    assert world.ready("p") == name


# ---------------------------------------------------------------- its values


LOWER: Final = QUICK | {"options": {"httpPutResponseHopLimit": 1}, "priority": 10}
HOLDS: Final = QUICK | {"options": {"httpPutResponseHopLimit": 3}}


@pytest.fixture
def held(worlds: Callable[..., World]) -> World:
    """The baseline has lowered 3 to 1, and then an exception holds 3 on the nodes of team x."""
    world = worlds(A, count=12, HttpPutResponseHopLimit=3)
    world.join(A, team="y")
    world.apply("p", **LOWER)
    world.run(3 * 3_600.0)
    assert states(world) == ("Enforced", "")
    world.apply("exception", **HOLDS | {"selector": {"nodeSelector": {"matchLabels": {TEAM: "x"}}}})
    world.run(3_600.0)
    assert (world.ready("exception"), world.ready("p")) == ("Enforced", "Enforced")
    return world


@pytest.mark.parametrize("restarts", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "leaves",
    ["deleted", *(pytest.param(one, marks=pytest.mark.slow) for one in ("audits", "yields")), "one label"],
)
def test_what_passed_before_an_exception_does_not_count_after_it(
    held: World, leaves: str, restarts: bool
) -> None:
    """Pods have come to need the exception's value."""
    held.harmful.add((A, HOP, 1))
    held.run(60.0)
    if restarts:
        held.operator.restart()
    before = len(held.judge.sends)
    if leaves == "deleted":
        held.delete("exception")
    elif leaves == "audits":
        held.apply("exception", mode="Audit")
    elif leaves == "yields":
        held.apply("exception", priority=1)
    else:
        for node in ("n1", "n2", "n3"):
            held.label(node, held.cluster.nodes[node].labels | {TEAM: "y"})
    held.run(600.0)
    assert (len(held.judge.sends) - before, states(held)) == (1, ("BreakerOpen", "CanaryLost"))
    held.heal()
    held.resume("p")
    held.run(3 * 3_600.0)
    assert states(held) == ("Enforced", "")


@pytest.mark.parametrize("stands_by", [False, True])
def test_what_an_exception_has_just_changed_is_released_though_another_process_reads_it_late(
    worlds: Callable[..., World], stands_by: bool
) -> None:
    """The first readings still have the value from before the exception."""
    world = worlds(A, count=12, HttpPutResponseHopLimit=3)
    world.apply("p", **LOWER)
    world.run(1_800.0)
    assert states(world) == ("Enforced", "")
    none = {"safety": SAFETY | {"canary": {"instances": 0}}}
    world.apply("exception", **HOLDS | none)

    def changed() -> bool:
        return all(one.last.by == "exception" for one in world.ec2.instances.values())

    world.run(60.0, until=changed)
    assert changed()
    world.harmful.add((A, HOP, 1))
    world.ec2.lag(20.0)
    if stands_by:
        world.operator.change_leader()
    else:
        world.operator.restart()
    world.delete("exception")
    world.run(1_200.0)
    assert (len(world.judge.sends), states(world)) == (1, ("BreakerOpen", "CanaryLost"))


ROLES: Final = [f"arn:aws:iam::123456789012:role/{name}" for name in ("baseline", "exceptions")]


@pytest.mark.parametrize("lag", [0.0, pytest.param(20.0, marks=pytest.mark.slow)])
def test_what_an_exception_with_another_role_has_changed_is_released(
    worlds: Callable[..., World], lag: float
) -> None:
    """It takes as many nodes as it releases, and the baseline has read none of them since."""
    world = worlds(A, count=6, HttpPutResponseHopLimit=3)
    for _ in range(6):
        world.join(A, team="y")
    world.apply("p", **LOWER, aws={"roleARN": ROLES[0]})
    world.run(2_100.0)  # it reads all each 10 minutes
    assert states(world) == ("Enforced", "")
    team = {"nodeSelector": {"matchLabels": {TEAM: "x"}}}
    none = {"safety": SAFETY | {"canary": {"instances": 0}}, "selector": team}
    world.ec2.lag(lag)
    world.apply("exception", **HOLDS | none, aws={"roleARN": ROLES[1]})
    world.run(60.0)
    assert sum(one.last.by == "exception" for one in world.ec2.instances.values()) == 6
    world.harmful.add((A, HOP, 1))
    for node in list(world.cluster.nodes):
        labels = world.cluster.nodes[node].labels
        world.label(node, labels | {TEAM: "y" if labels[TEAM] == "x" else "x"})
    before = len(world.judge.sends)
    world.run(1_200.0)
    sent = [policy for _, policy, _ in world.judge.sends[before:]].count("p")
    assert (sent, states(world)) == (1, ("BreakerOpen", "CanaryLost"))


def test_an_audit_with_another_role_reads_what_was_changed(worlds: Callable[..., World]) -> None:
    """Without waiting for its resync."""
    world = worlds(A)
    world.apply("p", **QUICK, aws={"roleARN": ROLES[0]})
    world.apply("audit", options=QUICK["options"], aws={"roleARN": ROLES[1]}, resyncInterval="24h")
    world.run(1_200.0)
    found = world.cluster.status("audit").summary
    assert (found.compliant, found.pending, found.drifted) == (6, 0, 0)


def test_what_has_passed_goes_on_to_count_while_the_exception_stands(held: World) -> None:
    """Also when a node of the exception goes."""
    for node in ("n1", "n2"):
        held.end(node)
        held.run(60.0)
    before = len(held.judge.sends)
    for _ in range(5):
        held.join(A, team="y")
    held.run(30.0)
    assert len(held.judge.sends) - before == 5


def test_a_node_of_the_exception_that_is_deleted_is_not_released(held: World) -> None:
    """Though nodes join with the previous value at that moment."""
    before = len(held.judge.sends)
    for node in ("n1", "n2"):
        held.end(node)
        for _ in range(3):
            held.join(A, team="y")
        held.run(30.0)
    assert len(held.judge.sends) - before == 6


def test_one_that_is_released_as_another_is_taken_counts(held: World) -> None:
    held.harmful.add((A, HOP, 1))
    held.run(60.0)
    before = len(held.judge.sends)
    held.label("n1", held.cluster.nodes["n1"].labels | {TEAM: "y"})
    held.join(A, team="x")
    held.run(600.0)
    assert (len(held.judge.sends) - before, states(held)) == (1, ("BreakerOpen", "CanaryLost"))


def test_one_that_is_released_after_its_policy_did_not_select_it_counts(held: World) -> None:
    """All others have the value by then."""
    selector = {"nodeSelector": {"matchExpressions": [{"key": TEAM, "operator": "Exists"}]}}
    held.apply("p", selector=selector)
    held.harmful.add((A, HOP, 1))
    labels = held.cluster.nodes["n1"].labels
    held.label("n1", {LABELS[A[0]]: A[1]})
    held.run(60.0)
    before = len(held.judge.sends)
    held.label("n1", labels | {TEAM: "y"})
    held.run(600.0)
    assert (len(held.judge.sends) - before, states(held)) == (1, ("BreakerOpen", "CanaryLost"))


# ---------------------------------------------------------------- its pace


def test_edits_of_the_pace_give_no_changes_beyond_it(worlds: Callable[..., World]) -> None:
    """Each edit would begin with those of three seconds at once."""
    world = worlds(A, count=150)
    safety = SAFETY | {"canary": {"instances": 0}}
    world.apply("p", **QUICK | {"safety": safety})
    for number in range(40):
        world.run(1.5)
        world.apply("p", safety=safety | {"maxChangesPerMinute": 60 - number % 2})
    assert 30 < len(world.judge.sends) <= 60


def test_a_raised_pace_holds_at_once(worlds: Callable[..., World]) -> None:
    world = worlds(A, count=60)
    safety = SAFETY | {"canary": {"instances": 0}}
    world.apply("p", **QUICK | {"safety": safety | {"maxChangesPerMinute": 6}})
    world.run(60.0)
    before = len(world.judge.sends)
    world.apply("p", safety=safety | {"maxChangesPerMinute": 600})
    world.run(60.0)
    assert (before <= 6, len(world.judge.sends)) == (True, 60)


# ---------------------------------------------------------------- its Node


@pytest.mark.parametrize("labels", [{LABELS[A[0]]: "a"}, {LABELS[A[0]]: "b"}])
def test_another_node_of_the_same_instance_hides_no_canary(
    worlds: Callable[..., World], labels: dict[str, str]
) -> None:
    world = worlds(A)
    world.apply("p", **QUICK)
    world.run(30.0)
    node = canary(world)
    twin = world.twin(node, **labels)
    world.cluster.set_ready(node, False)
    world.run(600.0)
    assert (states(world), len(world.judge.sends)) == (("BreakerOpen", "CanaryLost"), 1)
    world.cluster.remove_node(twin)
    world.cluster.set_ready(node, True)
    world.resume("p")
    world.run(1_200.0)
    assert states(world) == ("Enforced", "")


def test_an_instance_with_nodes_of_two_groups_is_changed_for_neither(worlds: Callable[..., World]) -> None:
    world = worlds(A, B)
    world.apply("p", **QUICK | {"selector": {"groups": [GROUP_A]}})
    world.run(900.0)
    assert states(world) == ("Enforced", "")
    before = len(world.judge.sends)
    twin = world.twin("n2", **{LABELS[A[0]]: "a"})
    world.run(120.0)
    status = world.cluster.status("p")
    assert [(one.node, one.reason) for one in status.exceptions] == [(twin, "SameProviderID")]
    assert len(world.judge.sends) == before


def test_one_that_is_not_ready_and_is_then_stopped_stops_all_the_same(worlds: Callable[..., World]) -> None:
    """By an alarm, or by a person who looks. It goes on once its Node is Ready."""
    world = worlds(A, count=12)
    world.apply("p", **SPEC)
    world.run(900.0, until=lambda: len(world.judge.sends) >= 6)
    node = world.ec2.instances[world.judge.sends[-1][2]].node
    world.run(10.0)
    world.cluster.set_ready(node, False)
    world.run(60.0)
    sent = len(world.judge.sends)
    world.stop(node)
    world.run(900.0)
    assert (world.ready("p"), len(world.judge.sends)) == ("NodeNotReady", sent)
    world.start(node)
    world.run(2_400.0)
    assert states(world) == ("Enforced", "")


@pytest.mark.parametrize(
    "answers", ["away", "lags", pytest.param("away, and two Nodes name it", marks=pytest.mark.slow)]
)
def test_one_that_is_not_ready_starts_no_pass_after_the_other(
    worlds: Callable[..., World], answers: str
) -> None:
    """Though EC2 does not report whether it runs."""
    world = worlds(A, count=12)
    world.apply("p", **SPEC)
    world.run(900.0, until=lambda: len(world.judge.sends) >= 6)
    node = world.ec2.instances[world.judge.sends[-1][2]].node
    world.run(10.0)
    if answers == "lags":
        world.ec2.lag(8.0)
    else:
        world.ec2.blind = ["away"] * 10_000
    if "two" in answers:
        world.twin(node)
    world.cluster.set_ready(node, False)
    assert world.run(600.0)["p"] <= 120
    assert world.ready("p") in ("NodeNotReady", "NotAsked")


def test_one_that_is_stopped_while_it_is_ready_stops_nothing(worlds: Callable[..., World]) -> None:
    """A warm pool. Its Node is NotReady before EC2 is read again."""
    world = worlds(A, count=12)
    world.apply("p", **SPEC)
    world.run(900.0, until=lambda: len(world.judge.sends) >= 6)
    world.stop(world.ec2.instances[world.judge.sends[-1][2]].node)
    world.run(2_400.0)
    assert states(world) == ("Enforced", "")


def joins_not_ready(world: World, *, ago: timedelta = timedelta(0)) -> str:
    """Its Node. `ago`: the start of its instance."""
    node = world.join(A, team="x")
    world.cluster.set_ready(node, False)
    now = datetime.fromtimestamp(world.clock.time(), UTC)
    world.ec2.launched[world.instance_of(node).name] = now - ago
    return node


def test_nodes_that_join_and_do_not_become_ready_stop_the_change(worlds: Callable[..., World]) -> None:
    """The change is harmless once a node is up, and keeps those that start from being Ready."""
    world = worlds(A)
    world.apply("p", **QUICK)
    world.run(900.0)
    assert states(world) == ("Enforced", "")
    joined = []
    for _ in range(20):
        joined.append(joins_not_ready(world))
        world.run(120.0)
    changed = [node for node in joined if world.instance_of(node).last.by]
    assert (len(changed), states(world)) == (3, ("NodeNotReady", ""))
    world.operator.restart()
    world.run(60.0)
    assert states(world) == ("NodeNotReady", "")
    for node in joined:
        world.cluster.set_ready(node, True)
    world.run(600.0)
    assert states(world) == ("Enforced", "")


def test_nodes_that_join_and_become_ready_after_a_while_hold_up_no_canary(
    worlds: Callable[..., World],
) -> None:
    world = worlds(A)
    world.apply("p", **QUICK)
    world.run(900.0)
    world.apply("p", options={"httpPutResponseHopLimit": 3})
    last, reasons = "", set()
    for _ in range(10):
        joined, before = joins_not_ready(world), last
        world.run(60.0)
        world.cluster.set_ready(before, True)
        last = joined
        reasons.add(world.ready("p"))
    world.cluster.set_ready(last, True)
    world.run(400.0)
    assert ("NodeNotReady" in reasons, states(world)) == (False, ("Enforced", ""))


def test_a_node_that_was_not_ready_long_before_stops_nothing(worlds: Callable[..., World]) -> None:
    world = worlds(A)
    joins_not_ready(world, ago=timedelta(days=2))
    world.apply("p", **QUICK)
    world.run(1_200.0)
    assert states(world) == ("Enforced", "")


def test_a_node_that_is_drained_becomes_the_canary_last(worlds: Callable[..., World]) -> None:
    world = worlds(A, count=3)
    for node in ("n1", "n2"):
        world.cordon(node)
    world.apply("p", **QUICK)
    world.run(10.0)
    assert canary(world) == "n3"
    alone = worlds(A, count=1)
    alone.cordon("n1")
    alone.apply("p", **QUICK)
    alone.run(10.0)
    assert canary(alone) == "n1"


# ---------------------------------------------------------------- Ready, with nothing left to change


def test_it_is_not_ready_while_its_last_canary_soaks(worlds: Callable[..., World]) -> None:
    world = worlds(A, count=1)
    world.apply("p", **QUICK)
    world.run(10.0)
    assert world.ready("p") == "CanarySoaking"
    world.run(120.0)
    assert world.ready("p") == "Enforced"


def test_it_is_not_ready_while_ec2_does_not_report_a_changed_instance(worlds: Callable[..., World]) -> None:
    """Nor while its Node is NotReady."""
    world = worlds(A, count=1)
    world.apply("p", **QUICK)
    world.run(30.0)
    world.ec2.untold = 1
    world.operator.restart()
    world.run(5.0)
    assert world.ready("p") == "NotAsked"
    world.run(50.0)
    world.ec2.untold = 0
    world.run(10.0)
    assert world.ready("p") == "CanarySoaking"
    world.cluster.set_ready("n1", False)
    world.run(5.0)
    assert world.ready("p") == "NodeNotReady"
    world.cluster.set_ready("n1", True)
    world.run(150.0)
    assert world.ready("p") == "Enforced"
