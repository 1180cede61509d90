"""Short histories of referenced data: each what an operator did wrong, or could do wrong."""

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from caretaker.api import names
from caretaker.daemontask.data_reader import DATA_SECONDS
from simulation.daemontask.cluster import Clock
from simulation.daemontask.data import MAP, SECRET, DataWorld, data_time
from simulation.daemontask.kubelets import Phase
from simulation.daemontask.operator import KEY


@pytest.fixture
def world() -> Iterator[DataWorld]:
    """Both nodes have run with the data, and both operators know."""
    with data_time() as clock:
        made = DataWorld(clock)
        for _ in range(3):
            work(made)
        made.whole_pass(1)
        assert runs(made) == [1, 1]
        yield made
        made.close()


def work(world: DataWorld, who: int = 0) -> None:
    world.whole_pass(who)
    world.run_pods()
    world.whole_pass(who)


def runs(world: DataWorld) -> list[int]:
    """Of each node that has a record."""
    return [entry.seq for entry in world.cluster.entries().values()]


def ready(world: DataWorld) -> str:
    conditions: list[Any] = world.cluster.status.conditions
    return next(one.reason for one in conditions if one.type == "Ready")


def reads(world: DataWorld) -> list[str]:
    """The objects that one whole pass reads, whole or not."""
    one, found = world.act(0), list[str]()
    one.begin()
    while one.busy:
        found += [call.what for call in one.client.calls[:1] if call.what in (f"get {MAP}", f"get {SECRET}")]
        one.answer()
    return found


def passes_due(world: DataWorld, seconds: float) -> int:
    """How many passes are due this long after the next one, although nothing has happened."""
    queue = world.act(0).queue

    async def take() -> None:
        await queue.get(asyncio.Event())
        queue.done(KEY)

    queue.add(KEY)
    world.clock.now += 60
    world.loop.step(take())
    world.whole_pass(0)
    world.clock.now += seconds
    return len(queue)


@pytest.mark.parametrize("how", ["deleted", "denied"])
def test_a_task_that_no_longer_refers_to_what_is_missing_goes_on(world: DataWorld, how: str) -> None:
    if how == "deleted":
        world.cluster.take(MAP)
    else:
        world.cluster.deny(MAP, denied=True)
    world.let_time_pass(DATA_SECONDS)
    world.whole_pass(0)
    assert ready(world) == "ReferencedDataUnavailable"
    world.cluster.refer(0)
    world.cluster.edit(template=True)
    for _ in range(3):
        work(world)
    assert (ready(world), runs(world)) == ("Succeeded", [2, 2])


def test_the_next_pass_is_when_the_data_is_read_again(world: DataWorld) -> None:
    for _ in range(3):  # the Pods go
        passes_due(world, 0)
    assert not passes_due(world, DATA_SECONDS - 1)
    assert passes_due(world, DATA_SECONDS)


def test_a_task_that_no_longer_refers_to_data_is_at_rest(world: DataWorld) -> None:
    world.cluster.refer(0)
    for _ in range(3):
        work(world)
        world.let_time_pass(DATA_SECONDS)
        assert not reads(world)
        assert not passes_due(world, 2 * DATA_SECONDS)
    assert runs(world) == [1, 1]


def test_one_who_is_late_runs_nothing_again_with_data_of_before(world: DataWorld) -> None:
    """It has read the data just before the change, and its ledger is older than the runs with the new."""
    world.let_time_pass(DATA_SECONDS)
    world.whole_pass(1)
    world.cluster.put(MAP, "1")
    for _ in range(3):
        work(world)
    assert runs(world) == [2, 2]
    world.cluster.add_node("b")  # a run is due, so that it asks whether its ledger is current
    for _ in range(3):
        work(world, 1)
    assert world.cluster.entries()["a"].seq == 2


def test_other_objects_are_read_at_once(world: DataWorld) -> None:
    before = world.cluster.status.current_revision
    world.cluster.refer(1)
    for _ in range(3):
        world.let_time_pass(3)
        work(world)
    assert world.cluster.status.current_revision != before
    assert runs(world) == [2, 2]


def test_an_operator_that_is_killed_forgets_no_data_that_ran(world: DataWorld) -> None:
    """The object goes before the operator that comes reads it: no node is due by that."""
    world.cluster.put(MAP, "1")
    world.let_time_pass(DATA_SECONDS)
    for _ in range(3):
        work(world)
    world.cluster.take(MAP)
    world.act(0).crash(0)
    world.acting.start()
    work(world)
    assert (ready(world), world.cluster.status.succeeded) == ("ReferencedDataUnavailable", 2)
    world.cluster.put(MAP, "1")
    world.let_time_pass(DATA_SECONDS)
    work(world)
    assert (ready(world), runs(world)) == ("Succeeded", [2, 2])


def test_a_rerun_waits_for_the_data_and_has_it(world: DataWorld) -> None:
    world.cluster.take(SECRET)
    world.let_time_pass(DATA_SECONDS)
    world.cluster.annotate(names.RERUN_AT, "2030-01-01T00:00:00Z")
    work(world)
    assert not world.live_pods()
    assert runs(world) == [1, 1]
    world.cluster.put(SECRET, "1")
    world.let_time_pass(DATA_SECONDS)
    for _ in range(3):
        work(world)
    assert runs(world) == [2, 2], "for both reasons one run"
    assert not world.cluster.needs_run(*_node(world, "a"))


class _Fleet(DataWorld):
    """Twenty nodes, whose runs fail with the data that starts with "bad" as they begin."""

    nodes: ClassVar[tuple[str, ...]] = tuple(f"n{number:02}" for number in range(20))
    replicas: ClassVar[int] = 1

    def __init__(self, clock: Clock, **spec: Any) -> None:
        super().__init__(clock, **spec)
        self.began_with: dict[str, list[str]] = {}  # by node

    def run_pods(self, phase: Phase = "Succeeded") -> None:
        value = self.cluster.objects[MAP].data["v"]
        for pod in map(self.cluster.record, self.cluster.pods.values()):
            if not pod.terminal and not pod.deletion:
                self.began_with.setdefault(pod.annotations[names.POD_NODE_NAME], []).append(value)
        super().run_pods("Failed" if value.startswith("bad") else phase)

    def go_on(self, seconds: int) -> None:
        for _ in range(seconds):
            work(self)
            self.clock.now += 1


@pytest.mark.parametrize(
    ("spec", "reach"),
    [
        ({"canary": {"nodes": 1}}, 1),
        ({"failurePolicy": {"maxFailedNodes": 0, "action": "Pause"}, "parallelism": 2}, 2),
    ],
    ids=["canary", "Pause"],
)
def test_data_that_turns_bad_during_a_rollout_reaches_no_more_nodes_than_a_template(
    spec: dict[str, Any], reach: int
) -> None:
    """Beside the two whose Pods were created before and start after the change. By a read each 30 s the
    rollout of the data before would go on and be over."""
    with data_time() as clock:
        world = _Fleet(clock, **{"parallelism": 2, "backoffLimit": 0, **spec})
        world.go_on(3)
        world.cluster.put(MAP, "bad")
        world.go_on(120)
        assert sum("bad" in values for values in world.began_with.values()) == 2 + reach
        world.close()


def test_data_that_was_wrong_for_less_than_a_period_of_reads_stays_on_no_node() -> None:
    """All runs succeed, so that nothing but the data shows which ones had the wrong one."""
    with data_time() as clock:
        world = _Fleet(clock, parallelism=1)
        world.go_on(3)
        world.cluster.put(MAP, "wrong")
        world.go_on(12)
        assert any("wrong" in values for values in world.began_with.values())
        world.cluster.put(MAP, "0")
        world.go_on(120)
        assert {values[-1] for values in world.began_with.values()} == {"0"}
        world.close()


def test_data_that_changes_all_the_time_holds_up_no_pass_of_a_slow_api_server() -> None:
    """Between any two reads more than a second passes, and the data changes."""
    with data_time() as clock:
        world = DataWorld(clock, parallelism=1)
        for _ in range(8):
            one = world.act(0)
            one.begin()
            while one.busy:
                one.answer()
                clock.now += 0.4
                world.cluster.put(MAP, str(clock.now))
            world.run_pods()
            one.catch_up()
        assert min(runs(world)) >= 2
        world.close()


def test_data_is_read_once_a_second_while_runs_start(world: DataWorld) -> None:
    """And not by passes that start none."""
    world.cluster.edit(template=True)
    assert reads(world) == []
    world.let_time_pass(2)
    world.run_pods()
    world.acting.deliver("pods", 9)
    assert reads(world) == []
    assert runs(world) == [2, 2]
    world.cluster.edit(template=True)
    assert sorted(reads(world)) == [f"get {MAP}", f"get {SECRET}"]


def _node(world: DataWorld, name: str) -> tuple[Any, Any]:
    return world.cluster.record(world.cluster.nodes[name]), world.cluster.entries()[name]
