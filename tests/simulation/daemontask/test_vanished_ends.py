"""Pods that end and are gone before their record, as where a cleaner deletes what has failed: ends count."""

from collections.abc import Iterator

import pytest

from caretaker.api.objects import Node, Pod
from caretaker.daemontask.decision import PodsByNode
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.task_state import TaskState
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.kube.store import Store
from simulation.daemontask.operator import KEY
from simulation.daemontask.world import Phase, SimWorld, virtual_time
from unit.daemontask.build import NOW, UID, failed, node, planned, pod, succeeded, task


@pytest.fixture
def world() -> Iterator[SimWorld]:
    """Two nodes; each may fail twice."""
    with virtual_time() as clock:
        made = SimWorld(clock)
        yield made
        made.close()


def run_and_clear_up(world: SimWorld, phase: Phase) -> int:
    """All Pods end and are deleted; the operator hears both before it looks again. Returns how many."""
    names = sorted(world.cluster.pods)
    for name in names:
        world.cluster.bind(name)
        world.cluster.finish(name, phase)
        world.cluster.drop_pod(name)
    return len(names)


def entries(world: SimWorld) -> list[Entry]:
    return list(world.cluster.entries().values())


def kept(world: SimWorld, who: int = 0) -> int:
    """How many Pods that are gone the operator still knows."""
    state = world.operators[who].task_states.find(KEY)
    assert state is not None
    return len(state.deletions.ended)


def pass_by(world: SimWorld, seconds: float, who: int = 0) -> None:
    world.let_time_pass(seconds)
    world.whole_pass(who)


def test_a_success_is_recorded_and_not_repeated(world: SimWorld) -> None:
    world.whole_pass(0)
    assert run_and_clear_up(world, "Succeeded") == 2
    world.whole_pass(0)
    assert [(e.result, e.seq) for e in entries(world)] == [("Succeeded", 1)] * 2
    for _ in range(3):
        pass_by(world, 60)
    assert not world.cluster.pods
    assert kept(world) == 0


def test_a_failure_counts_and_backs_off(world: SimWorld) -> None:
    world.whole_pass(0)
    assert run_and_clear_up(world, "Failed") == 2
    world.whole_pass(0)
    assert [(e.result, e.attempts) for e in entries(world)] == [("Retry", 1)] * 2
    pass_by(world, 2)
    assert not world.cluster.pods, "the backoff of 10 s is not over"
    pass_by(world, 9)
    assert run_and_clear_up(world, "Failed") == 2
    pass_by(world, 2)
    assert [(e.result, e.attempts) for e in entries(world)] == [("Failed", 2)] * 2
    pass_by(world, 3600)
    assert not world.cluster.pods
    assert kept(world) == 0


def test_it_counts_though_the_first_record_is_not_written(world: SimWorld) -> None:
    world.whole_pass(0)
    run_and_clear_up(world, "Succeeded")
    one = world.act(0)
    one.catch_up()
    one.begin()
    while not any("configmaps" in call.what for call in one.client.calls):
        one.answer()
    one.refuse(0, 503)
    one.finish()
    assert not entries(world)
    assert kept(world) == 2
    for _ in range(3):
        pass_by(world, 60)
    assert [e.result for e in entries(world)] == ["Succeeded"] * 2
    assert not world.cluster.pods


def test_an_end_that_was_recorded_before_is_not_kept(world: SimWorld) -> None:
    world.whole_pass(0)
    world.run_pods()
    world.whole_pass(0)
    for name in list(world.cluster.pods):
        world.cluster.drop_pod(name)
    world.operators[0].catch_up()
    assert kept(world) == 0


@pytest.mark.parametrize("first", ["node", "pods"])
@pytest.mark.parametrize("again", [False, True], ids=["removed", "replaced"])
def test_nothing_is_kept_of_a_node_that_is_gone(world: SimWorld, first: str, again: bool) -> None:
    world.whole_pass(0)
    run_and_clear_up(world, "Succeeded")
    one = world.operators[0]
    if first == "pods":
        one.catch_up()
    for name in ("a", "b"):
        world.cluster.add_node(name) if again else world.cluster.remove_node(name)
    world.whole_pass(0)
    assert kept(world) == 0
    assert not entries(world)
    assert len(world.live_pods()) == (2 if again else 0)


def test_a_name_that_another_operator_gave_again_is_that_operators_business(world: SimWorld) -> None:
    """The other one saw neither end nor deletion, and its new Pod has the same name."""
    world.whole_pass(0)
    run_and_clear_up(world, "Failed")
    world.operators[0].catch_up()
    other = world.act(1)
    other.crash(0)
    other.start()
    world.whole_pass(1)
    assert len(world.live_pods()) == 2
    world.whole_pass(0)
    assert kept(world) == 0
    world.run_pods()
    pass_by(world, 2)
    assert [(e.result, e.seq) for e in entries(world)] == [("Succeeded", 1)] * 2


def test_it_is_forgotten_with_the_lease(world: SimWorld) -> None:
    """Who leads meanwhile may have run the node again."""
    world.whole_pass(0)
    run_and_clear_up(world, "Succeeded")
    world.operators[0].catch_up()
    world.act(0).depose()
    for _ in range(2):
        world.whole_pass(0)
    assert len(world.live_pods()) == 2


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_run_that_is_made_at_most_once_has_its_outcome(phase: Phase) -> None:
    with virtual_time() as clock:
        world = SimWorld(clock, runGuarantee="AtMostOnce", backoffLimit=0)
        world.whole_pass(0)
        run_and_clear_up(world, phase)
        for _ in range(3):
            pass_by(world, 60)
        assert [(e.result, e.reason) for e in entries(world)] == [
            (phase, "" if phase == "Succeeded" else "Error")
        ] * 2
        world.close()


def test_only_an_end_is_kept_and_beside_what_is_there() -> None:
    a, b = node("a"), node("b")
    state = TaskState("uid")
    for gone in (pod(a), failed(a, 2), succeeded(b)):
        state.pod_gone(gone, 0.0)
    there = {a.uid: {"x": pod(a, 3)}}
    found = state.with_ended(there, {"a": a, "b": b})
    assert {of: [p.uid for p in pods.values()] for of, pods in found.items()} == {
        a.uid: ["pod-a-3", "pod-a-2"],
        b.uid: ["pod-b-1"],
    }
    assert there == {a.uid: {"x": pod(a, 3)}}


def test_an_end_of_our_own_making_is_not_kept() -> None:
    state = TaskState("uid")
    a = node("a")
    state.deletions.expected.add("pod-a-1")
    state.pod_gone(failed(a), 0.0)
    assert not state.with_ended({}, {"a": a})


def test_a_pod_that_had_failed_before_its_deletion_was_asked_for_was_not_killed_by_it() -> None:
    """Both within a second: the API server shows the deletion before it removes the Pod."""
    a, pods = node("a"), Store[Pod]()
    state = WatchHandlers(Store[Node](), pods, lambda *_, **__: None).task_states.of(KEY, UID)
    ended = failed(a, finished=NOW)
    going = failed(a, finished=NOW, deletion=NOW, deletion_asked=NOW)
    pods.apply(ended, 5)
    pods.apply(going, 6)
    there = {a.uid: {going.name: going}}
    assert state.with_ended(there, {"a": a}) == {a.uid: {ended.name: ended}}
    pods.remove(("default", going.name), going.uid, 7)
    assert state.with_ended({}, {"a": a}) == {a.uid: {ended.name: ended}}


def test_a_pod_that_failed_after_its_deletion_was_asked_for_was_killed_by_it() -> None:
    a, pods = node("a"), Store[Pod]()
    state = WatchHandlers(Store[Node](), pods, lambda *_, **__: None).task_states.of(KEY, UID)
    killed = failed(a, deletion=NOW, deletion_asked=NOW - 30)
    pods.apply(pod(a, deletion=NOW, deletion_asked=NOW - 30), 5)
    pods.apply(killed, 6)
    pods.remove(("default", killed.name), killed.uid, 7)
    assert state.with_ended({}, {"a": a}) == {a.uid: {killed.name: killed}}


@pytest.mark.parametrize("seen", ["its end", "its deletion alone"])
def test_a_later_time_that_the_api_server_tells_as_the_kubelet_lets_go_changes_nothing(seen: str) -> None:
    """With a grace period of 0, deletionTimestamp is the time of that request: after the end, it seems."""
    a, pods = node("a"), Store[Pod]()
    state = WatchHandlers(Store[Node](), pods, lambda *_, **__: None).task_states.of(KEY, UID)
    asked = {"deletion": NOW + 30, "deletion_asked": NOW}
    killed = failed(a, finished=NOW, **asked)
    pods.apply(killed if seen == "its end" else pod(a, **asked), 5)
    going = failed(a, finished=NOW, deletion=NOW + 1, deletion_asked=NOW + 1)
    pods.apply(going, 6)
    there = {a.uid: {going.name: going}}
    assert reasons(state.with_ended(there, {"a": a}), a) == ["Deleted"]
    pods.remove(("default", going.name), going.uid, 7)
    assert reasons(state.with_ended({}, {"a": a}), a) == ["Deleted"]


def reasons(found: PodsByNode, of: Node) -> list[str]:
    """Why the node's runs ended, as the next pass records it."""
    pods = list(found[of.uid].values())
    return [entry.reason for entry in planned(task(), [of], pods).records.values()]
