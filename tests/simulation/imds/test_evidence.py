"""No change without evidence: the clocks, readings and probe results on which a pass relies are lost, wrong
or late. The judge of judge.py looks at every change that is sent.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import pytest

from caretaker.api.conditions import find
from caretaker.kube.errors import ApiError
from simulation.imds.test_incidents import SPEC, A
from simulation.imds.truth import TEAM
from simulation.imds.world import World

FAST: Final[dict[str, Any]] = SPEC | {"safety": SPEC["safety"] | {"maxChangesPerMinute": 60}}


def right(world: World) -> bool:
    """Whether all have what the policy asks for."""
    wanted = world.cluster.policy("p").options().items()
    return all(wanted <= world.instance_of(node).last.options.items() for node in world.cluster.nodes)


@pytest.fixture
def world() -> Iterator[World]:
    made = World({A: {}})
    for _ in range(12):
        made.join(A, team="x")
    made.ec2.applies_in = 3.0
    yield made
    made.close()


@pytest.mark.parametrize(
    ("options", "soak"), [({"httpPutResponseHopLimit": 2}, 120.0), ({"httpEndpoint": "disabled"}, 1_800.0)]
)
@pytest.mark.parametrize("ahead", [pytest.param(180.0, marks=pytest.mark.slow), 3_600.0])
@pytest.mark.parametrize("stands_by", [False, True])
def test_the_clock_of_the_next_leader_does_not_end_a_soak(
    world: World, options: dict[str, Any], soak: float, ahead: float, stands_by: bool
) -> None:
    world.apply("p", **FAST | {"options": options})
    world.run(60.0)
    assert world.ready("p") == "CanarySoaking"
    if stands_by:
        world.operator.change_leader()
    else:
        world.operator.restart()
    world.clock.jump(ahead)
    world.run(soak - 5.0, until=lambda: bool(world.judge.sends))
    assert (world.ready("p"), world.judge.sends) == ("CanarySoaking", [])
    world.run(soak, until=lambda: right(world))
    assert right(world), "a change of leader costs one soak at most"


PROBED: Final = FAST | {"verification": {"probe": True, "expect": "PodReachable"}}
FORBIDDEN: Final = ApiError(403, "Forbidden")


def loses_a_verb(world: World, verb: str) -> None:
    """The operator's role does."""
    world.cluster.refused[verb] = FORBIDDEN


def is_removed(world: World, _: str) -> None:
    """The CRD of DaemonTasks, and with it the task."""
    world.cluster.lose_task()
    world.cluster.refused["create"] = ApiError(404, "NotFound")


def is_unserved(world: World, _: str) -> None:
    """The next process runs no DaemonTasks."""
    world.operator.daemontasks = False
    world.operator.restart()


UNUSABLE: Final = {
    "configmaps cannot be listed": (loses_a_verb, "configmaps"),
    "the task cannot be read": (loses_a_verb, "get"),
    "the task cannot be written": (loses_a_verb, "patch"),
    "DaemonTask is not installed": (is_removed, ""),
    "DaemonTasks do not run": (is_unserved, ""),
}
LATE: Final = "after the canary"
QUICK: Final = (
    ("the task cannot be read", LATE),
    ("DaemonTasks do not run", "before a canary"),
)


@pytest.mark.parametrize(
    ("how", "moment"),
    [
        pytest.param(how, moment, marks=[pytest.mark.slow] * ((how, moment) not in QUICK))
        for how in UNUSABLE
        for moment in ("before a canary", LATE)
    ],
)
def test_without_a_probe_nothing_is_changed_and_the_way_out_is_in_the_message(
    world: World, how: str, moment: str
) -> None:
    for _ in range(4):
        world.join(A, team="x")
    if moment == LATE:
        world.apply("p", **PROBED | {"safety": SPEC["safety"]})

        def passed() -> bool:
            canary = world.cluster.status("p").canary
            return canary is not None and bool(canary.passed)

        world.run(900.0, until=passed)
        assert passed()
    fails, what = UNUSABLE[how]
    world.run(0.0)
    fails(world, what)
    if moment == "before a canary":
        world.apply("p", **PROBED | {"safety": SPEC["safety"]})
    world.operator.wake("p", 0.0)
    world.run(60.0)
    sent = len(world.judge.sends)
    passes = world.run(900.0)
    assert (world.ready("p"), len(world.judge.sends)) == ("ProbeUnavailable", sent)
    assert sent <= (6 if moment == LATE else 1), "what was sent before it was seen"
    assert passes["p"] <= 900.0 / 15.0 + 2
    ready = find(world.cluster.status("p").conditions, "Ready")
    assert ready is not None
    assert "spec.verification.probe is false" in ready.message
    if how == "DaemonTasks do not run":
        world.operator.daemontasks = True
        world.operator.restart()
    world.cluster.calm()
    world.run(7_200.0, until=lambda: right(world))
    assert right(world), world.ready("p")


def test_without_a_probe_a_failed_canary_is_restored_all_the_same(world: World) -> None:
    safety = SPEC["safety"] | {"canary": SPEC["safety"]["canary"] | {"onFailure": "Restore"}}
    world.apply("p", **PROBED | {"safety": safety})

    def soaks() -> bool:
        return world.ready("p") == "CanarySoaking"

    world.run(900.0, until=soaks)
    assert soaks()
    ((_, _, instance),) = world.judge.sends
    is_unserved(world, "")
    (canary,) = (node for node in world.cluster.nodes if world.instance_of(node).name == instance)
    world.cluster.set_ready(canary, False)
    world.run(3_600.0, until=lambda: bool(world.judge.sends))
    assert [one for _, _, one in world.judge.sends] == [instance]


def test_without_a_probe_a_policy_goes_on_once_it_asks_for_none(world: World) -> None:
    loses_a_verb(world, "get")
    world.apply("p", **PROBED)
    world.run(600.0)
    assert (world.ready("p"), world.judge.sends) == ("ProbeUnavailable", [])
    world.apply("p", verification={})
    world.run(600.0, until=lambda: right(world))
    assert right(world)


def is_deleted(world: World) -> None:
    """The probe's task is deleted."""
    world.cluster.lose_task()


def is_suspended(world: World) -> None:
    """And so its task is deleted."""
    world.apply("p", suspend=True)
    world.run(30.0)
    assert world.cluster.tasks == {}
    world.apply("p", suspend=False)


def is_suspended_over_a_restart(world: World) -> None:
    world.apply("p", suspend=True)
    world.run(30.0)
    world.operator.restart()
    world.apply("p", suspend=False)


def registers_again(world: World) -> None:
    """Its kubelet registers the Node again, a while after it was deleted."""
    node = world.cluster.nodes["n11"]
    world.cluster.remove_node("n11")
    world.run(20.0)
    world.cluster.put_node(msgspec.structs.replace(node, uid="u11b"))


LOSSES: Final = [
    pytest.param(is_deleted, marks=pytest.mark.slow),
    pytest.param(is_suspended, marks=pytest.mark.slow),
    pytest.param(is_suspended_over_a_restart, marks=pytest.mark.slow),
    registers_again,
]


@pytest.fixture
def stopped(world: World) -> World:
    """A follower of a canary has an unexpected result, and its watch is over."""
    for _ in range(30):
        world.join(A, team="x")
    world.cluster.needs_of["n11"], world.cluster.probe_takes = 9, 20.0
    options = {"httpTokens": "required"}
    world.apply(
        "p", **PROBED | {"options": options, "verification": {"probe": True, "expect": "PodReachable"}}
    )

    def found() -> bool:
        verified = find(world.cluster.status("p").conditions, "Verified")
        return verified is not None and verified.status == "False"

    world.run(3_600.0, until=found)
    world.run(400.0)
    assert (world.ready("p"), world.cluster.status("p").changed) == ("SetButUnreachable", ())
    assert not right(world)
    return world


@pytest.mark.parametrize("loses", LOSSES)
def test_an_unexpected_result_counts_until_there_is_a_newer_one(
    stopped: World, loses: Callable[[World], None]
) -> None:
    world = stopped
    loses(world)
    world.operator.wake("p", 0.0)
    world.cluster.probe_takes = 60.0
    before = len(world.judge.sends)
    world.run(50.0)
    assert (world.ready("p"), len(world.judge.sends)) == ("SetButUnreachable", before)
    (one,) = world.cluster.status("p").unexpected
    assert (one.node, one.verdict) == ("n11", "HopLimited")
    ready = find(world.cluster.status("p").conditions, "Ready")
    assert ready is not None
    assert "the last result counts until the node is probed again" in ready.message
    assert world.run(60.0)["p"] <= 20
    assert world.ready("p") == "SetButUnreachable", "it is found once more"
    world.cluster.needs_of.clear()
    world.run(3 * 86_400.0, until=lambda: right(world))
    assert right(world), world.ready("p")
    assert world.cluster.status("p").unexpected == ()


def test_an_unexpected_result_of_a_node_that_is_gone_stops_nothing(stopped: World) -> None:
    world = stopped
    world.cluster.lose_task()
    world.end("n11")
    world.operator.wake("p", 0.0)
    world.run(3_600.0, until=lambda: right(world))
    assert right(world), world.ready("p")


@pytest.mark.parametrize("restarts", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("asks", [False, True], ids=["nothing else", "a probe is requested meanwhile"])
def test_verified_is_what_was_probed_after_its_change(world: World, restarts: bool, asks: bool) -> None:
    """All had a result before, and a follower is changed without a soak of its own."""
    verification = {"probe": True, "expect": "Any", "nodesPerGroup": 12}
    world.apply("p", **FAST | {"options": {"httpTokens": "optional"}, "verification": verification})
    world.run(400.0)
    world.ec2.applies_in = 20.0
    world.apply("p", options={"httpTokens": "required"})

    def sent() -> bool:
        return all(world.instance_of(node).last.by for node in world.cluster.nodes)

    world.run(2_500.0, until=sent)
    assert sent()
    if asks:
        world.cluster.rerun(world.clock.time())
    if restarts:
        world.operator.restart()
    world.run(600.0)
    verified = find(world.cluster.status("p").conditions, "Verified")
    assert verified is not None
    assert (verified.status, world.ready("p")) == ("True", "Enforced")
    probed = {node: found[-1].asked for node, found in world.cluster.measured.items()}
    late = [node for node, at in probed.items() if at < world.instance_of(node).last.in_force]
    assert (len(probed), late) == (12, [])
    assert sum(map(len, world.cluster.measured.values())) <= 12 * (3 + asks)


@pytest.mark.parametrize("lag", [8.0, 20.0])
@pytest.mark.parametrize("stands_by", [False, True])
def test_a_new_leader_changes_nothing_by_readings_that_may_be_older(
    world: World, lag: float, stands_by: bool
) -> None:
    """Another policy has just set 3 and is deleted. From 1 the change has passed; 3 may not be lowered."""
    world.apply("p", **FAST | {"safety": FAST["safety"] | {"allowTightening": []}})
    world.run(900.0, until=lambda: right(world))
    world.run(700.0)
    selector = {"nodeSelector": {"matchLabels": {TEAM: "y"}}}
    none = {"safety": FAST["safety"] | {"canary": {"instances": 0}}, "selector": selector, "priority": 200}
    world.apply("q", **FAST | none | {"options": {"httpPutResponseHopLimit": 1}})
    for _ in range(3):
        world.join(A, team="y")
    world.run(120.0)
    world.apply("q", options={"httpPutResponseHopLimit": 3})
    world.run(60.0, until=lambda: sum(one.last.by == "q" for one in world.ec2.instances.values()) == 3)
    world.ec2.lag(lag)
    if stands_by:
        world.operator.change_leader()
    else:
        world.operator.restart()
    world.delete("q")
    world.run(300.0)
    assert [who for _, who, _ in world.judge.sends] == []
    assert world.ready("p") == "TighteningNotAllowed"


def test_a_new_leader_goes_on_after_half_a_minute(world: World) -> None:
    world.apply("p", **SPEC)
    world.run(300.0, until=lambda: len(world.judge.sends) == 4)
    world.operator.restart()
    assert world.run(34.0)["p"] <= 15
    assert world.judge.sends == []
    world.run(12.0)
    assert world.judge.sends
