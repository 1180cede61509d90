"""Conditions of nodes as a gate: which nodes wait, and how far a run that breaks its nodes reaches."""

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from caretaker.api.daemontask import Drain, FailurePolicy
from caretaker.api.health_gate import HealthCondition, HealthGate
from caretaker.api.objects import Node, Pod, WireNode
from caretaker.api.times import format_time
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.node_health import NodeHealth, health_of
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from caretaker.daemontask.task_state import SpecCache
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.kube.store import Store
from caretaker.runtime.work_queue import Key
from simulation.daemontask.test_blast_radius import PAUSE, Rollout
from simulation.daemontask.world import Make
from unit.daemontask.build import NOW, UID, entry, node, planned, snapshot, started, states, task

DEADLOCK = HealthCondition("KernelDeadlock")
CNI = HealthCondition("NetworkReady", "True")
GATE = HealthGate((DEADLOCK, CNI))
KEY = Key("DaemonTask", "default", "task")


@pytest.mark.parametrize(
    ("conditions", "healthy"),
    [
        pytest.param((), True, id="a condition that the node does not have is healthy"),
        pytest.param((("KernelDeadlock", "False", 1.0),), True, id="False is healthy by default"),
        pytest.param((("KernelDeadlock", "True", 1.0),), False, id="True is not"),
        pytest.param((("KernelDeadlock", "Unknown", 1.0),), False, id="nor is Unknown"),
        pytest.param((("NetworkReady", "True", 1.0),), True, id="the listed status is healthy"),
        pytest.param((("NetworkReady", "False", 1.0),), False, id="another one is not"),
        pytest.param((("NetworkReady", "Unknown", 1.0),), False, id="Unknown never is"),
        pytest.param(
            (("DiskPressure", "True", 1.0),), True, id="a condition that is not listed does not count"
        ),
    ],
)
def test_a_node_starts_a_run_only_with_every_listed_condition_healthy(
    conditions: tuple[Any, ...], healthy: bool
) -> None:
    result = planned(task(health_gate=GATE, parallelism=1), [node("a", conditions=conditions)])
    assert (started(result), states(result)) == ((["a"], {"pending": 1}) if healthy else ([], {"blocked": 1}))
    assert not result.nodes.holders
    assert health_of(node("a", conditions=conditions), GATE.conditions, NOW).healthy == healthy


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        pytest.param(node(), NodeHealth(True, NOW - 86400), id="Ready, without a condition"),
        pytest.param(
            node(conditions=(("KernelDeadlock", "False", NOW - 5),)),
            NodeHealth(True, NOW - 5),
            id="healthy since the last fault ended",
        ),
        pytest.param(
            node(conditions=(("KernelDeadlock", "True", NOW - 5), ("NetworkReady", "False", NOW - 9))),
            NodeHealth(False, NOW - 9, "the node's condition KernelDeadlock is True"),
            id="broken since the first fault",
        ),
        pytest.param(
            node(ready=False, ready_since=NOW - 3, conditions=(("KernelDeadlock", "True", NOW - 5),)),
            NodeHealth(False, NOW - 5),
            id="a fault and NotReady",
        ),
        pytest.param(
            node(conditions=(("KernelDeadlock", "True", NOW + 5),)),
            NodeHealth(False, 0.0, "the node's condition KernelDeadlock is True"),
            id="a time ahead is of a wrong clock",
        ),
        pytest.param(
            node(conditions=(("Other", "True", NOW - 1),)),
            NodeHealth(True, NOW - 86400),
            id="another condition",
        ),
    ],
)
def test_since_when_a_node_is_healthy_or_not(of: Node, expected: NodeHealth) -> None:
    assert health_of(of, GATE.conditions, NOW) == expected


def test_a_node_without_a_gate_is_healthy_while_it_is_ready() -> None:
    sick = (("KernelDeadlock", "True", NOW - 5),)
    assert health_of(node(conditions=sick), (), NOW) == NodeHealth(True, NOW - 86400)
    assert started(planned(task(), [node("a", conditions=sick)])) == ["a"]


def test_status_has_how_many_nodes_wait_and_for_which_condition() -> None:
    nodes = [
        node("a", conditions=(("KernelDeadlock", "True", NOW - 60),)),
        node("b", conditions=(("KernelDeadlock", "Unknown", NOW - 60), ("NetworkReady", "False", NOW - 30))),
        node("c", conditions=(("NetworkReady", "False", NOW - 30),)),
        node("d"),
    ]
    seen = snapshot(task(health_gate=GATE, parallelism=1), nodes, entries={"d": entry(node("d"))})
    status = status_of(seen, planned(seen.task, nodes, entries={"d": entry(node("d"))}), Outcome())
    ready = next(one for one in status.conditions if one.type == "Ready")
    assert "3 node(s) wait for healthGate: KernelDeadlock on 2, NetworkReady on 1" in ready.message
    assert [(one.node_name, one.reason, one.message) for one in status.blocked_nodes] == [
        ("a", "NodeUnhealthy", "the node's condition KernelDeadlock is True"),
        (
            "b",
            "NodeUnhealthy",
            "the node's condition KernelDeadlock is Unknown; the node's condition NetworkReady is False",
        ),
        ("c", "NodeUnhealthy", "the node's condition NetworkReady is False"),
    ]
    assert status.slots is not None
    assert status.slots.held == 0


def test_a_toleration_of_anything_does_not_open_the_gate() -> None:
    template = {"spec": {"containers": [{"name": "main"}], "tolerations": [{"operator": "Exists"}]}}
    rules = EligibilityRules(template, health=GATE.conditions)
    found = rules.check(node("a", ready=False, conditions=(("KernelDeadlock", "True", 7.0),)))
    assert (found.kind, found.reason, found.since) == ("blocked", "NodeUnhealthy", 7.0)


# ---------------------------------------------------------------- blast radius


class Breaking(Rollout):
    """A run that succeeds, and makes a listed condition unhealthy `after` seconds later, on every node."""

    def __init__(self, count: int, after: float, **spec: Any) -> None:
        super().__init__(count, 2, frozenset(), health_gate=GATE, **spec)
        self.after = after

    def let_pass(self, seconds: float) -> None:
        super().let_pass(seconds)
        for name, found in self.pods.items():
            if found.terminal and not self.nodes[name].conditions and self.now >= found.finished + self.after:
                broken = (("KernelDeadlock", "True", self.now),)
                self.nodes[name] = msgspec.structs.replace(self.nodes[name], conditions=broken)

    def changes(self) -> Iterator[float]:
        ended = ((self.nodes[name], found) for name, found in self.pods.items() if found.terminal)
        broken = (found.finished + self.after for node, found in ended if not node.conditions)
        return itertools.chain(super().changes(), broken)


@pytest.mark.parametrize("after", [0, 20])
@pytest.mark.parametrize("action", ["Pause", "Fail"])
def test_a_run_that_breaks_every_node_reaches_no_more_nodes_than_run_at_once(after: int, action: Any) -> None:
    policy = FailurePolicy(0, action)
    rollout = Breaking(30, after, parallelism=3, min_success_seconds=60, failure_policy=policy)
    rollout.roll_on(24 * 3600, step=15)
    assert rollout.ready == ("Paused" if action == "Pause" else "NodesFailed")
    assert len(rollout.hit) == 3
    message = rollout.status.conditions[0].message
    assert "3 node(s) count as failed, NotReady, unhealthy or blocked since their run" in message


def test_without_a_failure_policy_a_broken_node_keeps_its_slot_for_the_progress_deadline() -> None:
    rollout = Breaking(30, 20, parallelism=3, min_success_seconds=60, progress_deadline_seconds=600)
    rollout.roll_on(655, step=5)
    assert len(rollout.hit) == 3
    rollout.roll_on(60, step=5)
    assert len(rollout.hit) == 6


def test_a_node_that_breaks_after_its_min_success_seconds_does_not_count() -> None:
    spec = {"parallelism": 2, "min_success_seconds": 60, "progress_deadline_seconds": 300}
    rollout = Breaking(6, 100, **spec, failure_policy=PAUSE)
    rollout.roll_on(1500, step=10)
    assert (rollout.ready, len(rollout.hit)) == ("Succeeded", 6)


def test_a_repaired_node_is_watched_again_and_then_lets_the_next_one_go() -> None:
    rollout = Breaking(4, 20, parallelism=1, min_success_seconds=60, failure_policy=PAUSE)
    rollout.roll_on(120, step=5)
    (first,) = rollout.hit
    repaired = (("KernelDeadlock", "False", rollout.now),)
    rollout.nodes[first] = msgspec.structs.replace(rollout.nodes[first], conditions=repaired)
    rollout.roll_on(59, step=5)
    assert len(rollout.hit) == 1
    rollout.roll_on(10, step=5)
    assert len(rollout.hit) == 2


class Flapping(Breaking):
    """A run after whose success a listed condition is healthy for so long, unhealthy for so long, and so on.
    An entry is written `writes` times."""

    def __init__(self, count: int, healthy: float, broken: float, **spec: Any) -> None:
        super().__init__(count, 0, **spec)
        self.periods = (healthy, broken)
        self.writes: Counter[str] = Counter()

    def one_pass(self) -> None:
        super().one_pass()
        self.writes.update(list(self.last.records))

    def let_pass(self, seconds: float) -> None:
        Rollout.let_pass(self, seconds)
        healthy, broken = self.periods
        for name, found in self.pods.items():
            if found.terminal:
                rounds, into = divmod(self.now - found.finished, healthy + broken)
                began = found.finished + rounds * (healthy + broken)
                stated = ("True", began + healthy) if into >= healthy else ("False", began)
                conditions = (("KernelDeadlock", *stated),)
                self.nodes[name] = msgspec.structs.replace(self.nodes[name], conditions=conditions)


@pytest.mark.parametrize("periods", [(30, 30), (45, 15), (5, 200), (55, 5)])
@pytest.mark.parametrize("after", [0, 20])
@pytest.mark.parametrize("hours", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_condition_that_comes_and_goes_reaches_no_further(
    periods: tuple[float, float], after: int, hours: int
) -> None:
    spec = {"parallelism": 3, "min_success_seconds": 60, "progress_deadline_seconds": 600 + after}
    rollout = Flapping(12, *periods, **spec, failure_policy=PAUSE)
    for _ in range(hours * 3600 // 5):
        rollout.one_pass()
        rollout.let_pass(5)
    assert (len(rollout.hit), rollout.ready) == (3, "Paused")
    assert rollout.last.rollout.failing or rollout.last.rollout.lost
    assert {name: rollout.writes[name] for name in rollout.hit} == dict.fromkeys(rollout.hit, 2), "end, mark"


@pytest.mark.parametrize(
    ("mark", "status", "since", "record", "failing"),
    [
        pytest.param(0, "True", 30.0, 30, 30.0, id="it breaks while it is watched"),
        pytest.param(0, "True", 60.0, 60, 60.0, id="in the last second"),
        pytest.param(0, "True", 60.5, None, 0.0, id="later"),
        pytest.param(0, "True", -30.0, 0, 0.0, id="it was broken before"),
        pytest.param(0, "False", 50.5, 51, 0.0, id="it broke and was repaired between two passes"),
        pytest.param(0, "False", 10.0, None, 0.0, id="it has held since"),
        pytest.param(0, "False", -10.0, None, 0.0, id="it was repaired during the run"),
        pytest.param(30, "True", 75.0, None, 30.0, id="it breaks again"),
        pytest.param(30, "True", 90.0, None, 30.0, id="a clock ahead, at the first look of an operator"),
        pytest.param(30, "False", 41.0, None, 0.0, id="it is repaired, and still watched"),
        pytest.param(30, "False", 40.0, -1, 0.0, id="it has held for long enough"),
    ],
)
def test_the_mark_of_a_node_that_broke_while_it_was_watched(
    mark: int, status: str, since: float, record: int | None, failing: float
) -> None:
    """100 s after a success, with minSuccessSeconds of 60. Times are seconds since the success."""
    ended = int(NOW - 100)
    of = node("a", conditions=(("KernelDeadlock", status, ended + since),))
    known = entry(of, finished_at=ended, failing_since=ended + mark if mark else 0)
    spec = {"min_success_seconds": 60, "parallelism": 1, "failure_policy": PAUSE}
    result = planned(task(health_gate=GATE, **spec), [of, node("b")], entries={"a": known})
    marks = {name: one.failing_since for name, one in result.records.items()}
    expected = None if record is None else {"a": 0 if record < 0 else ended + record}
    assert marks == (expected or {})
    counted = {one.node.name: one.decision.failing - ended for one in result.nodes.failing}
    assert counted == ({"a": failing} if failing or record == 0 else {})


@pytest.mark.parametrize(
    ("result", "changes"),
    [("Failed", {}), ("Retry", {"attempts": 1}), ("Succeeded", {"revision": "another"})],
)
def test_only_a_success_that_still_counts_is_marked(result: str, changes: dict[str, Any]) -> None:
    of = node("a", conditions=(("KernelDeadlock", "True", NOW - 50),))
    known = entry(of, result, finished_at=int(NOW - 60), **changes)
    spec = {"min_success_seconds": 60, "health_gate": GATE, "rerun_on": ("TemplateChange",)}
    assert not planned(task(**spec), [of], entries={"a": known}).records


def test_a_detector_that_goes_ends_no_watch() -> None:
    known = entry(node("a"), finished_at=int(NOW - 30), failing_since=int(NOW - 20))
    spec = {"min_success_seconds": 60, "health_gate": GATE}
    result = planned(task(**spec), [node("a")], entries={"a": known})
    assert (dict(result.records), result.nodes.resting) == ({}, 1)


def test_a_node_that_is_unhealthy_for_long_keeps_no_rollout_from_its_end() -> None:
    rollout = Rollout(2, 2, frozenset(), health_gate=GATE, parallelism=1)
    sick = (("KernelDeadlock", "True", NOW - 60),)
    rollout.nodes["n000"] = msgspec.structs.replace(rollout.nodes["n000"], conditions=sick)
    rollout.roll_on(1780, step=10)
    assert not rollout.status.finished_rollout
    rollout.roll_on(60, step=10)
    assert rollout.status.finished_rollout


def test_a_cordoned_node_that_is_unhealthy_for_long_gives_its_slot_back() -> None:
    mark = f"default/task/{UID}/{format_time(NOW - 9)}"
    sick = node("a", unschedulable=True, cordon=mark, conditions=(("KernelDeadlock", "True", NOW - 60),))
    of = task(health_gate=GATE, parallelism=1, drain=Drain())
    early, late = (planned(of, [sick], now=NOW + at) for at in (0, 1800))
    assert ([one.name for one in early.releases], [one.name for one in late.releases]) == ([], ["a"])


def test_a_node_that_is_repaired_after_its_slot_is_free_counts_until_it_has_held() -> None:
    ended, later = int(NOW - 100), NOW - 100 + 60 + 1800
    of = node("a", conditions=(("KernelDeadlock", "False", later - 20),))
    known = entry(of, finished_at=ended, failing_since=ended + 5)
    spec = {"min_success_seconds": 60, "parallelism": 1, "failure_policy": PAUSE, "health_gate": GATE}
    early = planned(task(**spec), [of, node("b")], entries={"a": known}, now=later)
    assert (early.hold, early.nodes.holders, early.wake) == ("Paused", (), later + 40)
    held = planned(task(**spec), [of, node("b")], entries={"a": known}, now=later + 40)
    assert (held.hold, started(held), held.records["a"].failing_since) == ("", ["b"], 0)


def test_a_node_whose_run_was_disrupted_and_broke_it_keeps_its_slot_and_counts() -> None:
    """Evicted for the disk that it filled."""
    broken = node("a", conditions=(("KernelDeadlock", "True", NOW - 10),))
    disrupted = entry(broken, "Retry", disruptions=1, finished_at=int(NOW - 20), started_at=int(NOW - 60))
    of = task(health_gate=GATE, parallelism=1, failure_policy=PAUSE)
    early = planned(of, [broken, node("b")], entries={"a": disrupted})
    assert ([one.node.name for one in early.nodes.holders], started(early)) == (["a"], [])
    late = planned(of, [broken, node("b")], entries={"a": disrupted}, now=NOW + 1800)
    assert (late.hold, started(late)) == ("Paused", [])


def test_operators_start_nothing_on_nodes_that_earlier_runs_have_broken(make: Make) -> None:
    """Two operators, their watches and a cluster in memory: no judge sees a run beyond the slot."""
    gate = {"conditions": [{"type": "KernelDeadlock"}]}
    spec = {"parallelism": 1, "minSuccessSeconds": 60, "failurePolicy": {"action": "Pause"}}
    world = make(healthGate=gate, rerunOn=["TemplateChange"], **spec)
    ran: set[str] = set()
    for _ in range(200):
        world.whole_pass(0)
        world.run_pods()
        for name in set(world.cluster.entries()) - ran:
            ran.add(name)
            world.cluster.set_condition(name, "KernelDeadlock", "True")
        world.clock.now += 20
    assert len(ran) == 1
    for name in ran:
        world.cluster.set_condition(name, "KernelDeadlock", "False")
    world.cluster.annotate("caretaker.dev/resume-at", "2100-01-01T00:00:00Z")
    for _ in range(10):
        world.whole_pass(0)
        world.run_pods()
        world.clock.now += 20
    assert set(world.cluster.entries()) == set(world.cluster.nodes)


def test_an_edit_of_the_gate_holds_from_the_next_pass_on(make: Make) -> None:
    """The template is the same, and so is its revision."""
    world = make(parallelism=1, rerunOn=["TemplateChange"])
    names = sorted(world.cluster.nodes)
    for name in names:
        world.cluster.set_condition(name, "KernelDeadlock", "True")
    world.whole_pass(0)
    world.run_pods()
    world.cluster.edit(healthGate={"conditions": [{"type": "KernelDeadlock"}]})
    for _ in range(10):
        world.whole_pass(0)
        world.run_pods()
        world.clock.now += 20
    assert len(world.cluster.entries()) == 1
    world.cluster.edit(healthGate=None)
    for _ in range(10):
        world.whole_pass(0)
        world.run_pods()
        world.clock.now += 20
    assert sorted(world.cluster.entries()) == names


# ---------------------------------------------------------------- events of nodes


def wire(heartbeat: str, *conditions: tuple[str, str]) -> WireNode:
    stated = [
        {"type": kind, "status": status, "lastHeartbeatTime": heartbeat, "message": heartbeat}
        | {"lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind, status in (("Ready", "True"), *conditions)
    ]
    return msgspec.convert(
        {"metadata": {"name": "a", "uid": "u"}, "status": {"conditions": stated}}, WireNode
    )


def test_a_heartbeat_changes_no_record() -> None:
    conditions = (("KernelDeadlock", "False"), ("DiskPressure", "False"))
    before, after = (wire(at, *conditions).record() for at in ("10:00", "10:05"))
    assert before == after
    assert [one[:2] for one in before.conditions] == sorted(conditions)
    assert before == wire("10:05", *reversed(conditions)).record(), "nor does their order"
    assert before != wire("10:05", ("KernelDeadlock", "True"), ("DiskPressure", "False")).record()


def test_a_status_that_the_api_does_not_have_is_unknown() -> None:
    """A node may write any text, of any length."""
    found = wire("10:00", ("KernelDeadlock", "x" * 10_000)).record()
    assert [one[:2] for one in found.conditions] == [("KernelDeadlock", "Unknown")]


@pytest.mark.parametrize(
    ("gate", "changes", "passes"),
    [
        pytest.param((DEADLOCK,), {"KernelDeadlock": "True"}, 1, id="a listed condition brings a pass"),
        pytest.param((DEADLOCK,), {"DiskPressure": "True"}, 0, id="another one does not"),
        pytest.param((), {"KernelDeadlock": "True"}, 0, id="nor does any without a gate"),
    ],
)
@pytest.mark.parametrize("cordoned", [False, True])
def test_which_conditions_bring_a_pass(
    gate: tuple[HealthCondition, ...], changes: dict[str, str], passes: int, cordoned: bool
) -> None:
    nodes, keys = Store[Node](), list[Key]()
    handlers = WatchHandlers(nodes, Store[Pod](), lambda key, **_: keys.append(key))
    rules = EligibilityRules({"spec": {}}, health=gate)
    handlers.task_states.of(KEY, UID).spec = SpecCache(revision="r", rules=rules)
    plain = {"KernelDeadlock": "False", "DiskPressure": "False"}
    for version, found in enumerate((plain, {**plain, **changes}), start=5):
        stated = tuple((kind, status, 1.0) for kind, status in found.items())
        nodes.apply(node("a", unschedulable=cordoned, conditions=stated), version)
        if version == 5:
            keys.clear()
    assert keys == [KEY] * passes


def test_a_condition_is_dated_to_when_it_was_seen_to_change() -> None:
    """A detector whose clock is years off neither excuses a run nor blames it."""
    nodes = Store[Node]()
    handlers = WatchHandlers(nodes, Store[Pod](), lambda *_, **__: None)
    began, dates = time.time(), list[float]()
    for version, (status, stated) in enumerate(
        (("False", began + 9e8), ("True", began + 9e8), ("True", began + 9e8)), start=5
    ):
        nodes.apply(
            node("a", labels={str(version): ""}, conditions=(("KernelDeadlock", status, stated),)), version
        )
        (found,) = handlers.nodes["a"].conditions
        assert found[:2] == ("KernelDeadlock", status)
        assert began <= found[2] <= time.time()
        dates.append(found[2])
    assert dates[0] < dates[1] == dates[2], "the third event changes a label alone"
    close = time.time() - 10
    nodes.apply(node("a", conditions=(("KernelDeadlock", "False", close),)), 9)
    assert handlers.nodes["a"].conditions == (("KernelDeadlock", "False", close),)
