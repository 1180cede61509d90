"""A ledger of more than one shard, and shards that somebody has had a hand in, as small histories.

The judge of world.py objects to every run that is repeated; what is told of it is asserted here.
"""

from collections import Counter

import msgspec
import pytest

from caretaker.api import conditions as c
from caretaker.api import names
from caretaker.api.daemontask import LedgerStatus
from caretaker.api.objects import Pod
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN, SHARD_NODES
from caretaker.daemontask.shard import WireConfigMap
from caretaker.daemontask.shards import Shards
from simulation.daemontask.cluster import NAMESPACE, TASK, TASK_UID
from simulation.daemontask.operator import Call
from simulation.daemontask.world import Make, SimWorld

LEDGER = LedgerStatus(shards=1)


@pytest.fixture
def world(make: Make) -> SimWorld:
    return make()


def settle(world: SimWorld, rounds: int = 4) -> None:
    """What is due runs, is recorded, and its TTL takes the Pods."""
    for _ in range(rounds):
        world.whole_pass(0)
        world.run_pods()
        world.let_time_pass(31)


def shards(world: SimWorld) -> list[str]:
    return sorted(world.cluster.configmaps)


def nodes_of(world: SimWorld, name: str) -> set[str]:
    """The nodes of this world that have an entry in the shard."""
    return set(world.cluster.configmaps[name].data or {}) & world.cluster.nodes.keys()


def two_shards(world: SimWorld) -> tuple[str, str]:
    """All nodes have run: a and b are in a shard that is full, c and d in the other."""
    settle(world)
    (first,) = shards(world)
    world.cluster.fill(first)
    for name in ("c", "d"):
        world.cluster.add_node(name)
    settle(world)
    _, second = shards(world)
    assert (nodes_of(world, first), nodes_of(world, second)) == ({"a", "b"}, {"c", "d"})
    assert len(world.cluster.configmaps[first].data or {}) == SHARD_NODES
    assert world.cluster.status.ledger.shards == 2
    assert not world.cluster.pods
    return first, second


def restart(world: SimWorld, who: int = 0) -> None:
    one = world.act(who)
    one.crash(0)
    one.start()


def counted(world: SimWorld) -> Counter[str]:
    """How often each node gets a Pod from now on."""
    created: Counter[str] = Counter()

    def count(pod: Pod) -> None:
        created[pod.annotations[names.POD_NODE_NAME]] += 1

    world.cluster.on_create.append(count)
    return created


def told(world: SimWorld, kind: str) -> tuple[str, str, str]:
    found = c.find(world.cluster.status.conditions, kind)
    return (found.status, found.reason, found.message) if found is not None else ("", "", "")


# ---------------------------------------------------------------- more than one shard


def test_nothing_moves_and_nothing_is_repeated_when_the_first_shard_has_room_again(world: SimWorld) -> None:
    first, second = two_shards(world)
    created = counted(world)
    for _ in range(3):  # the entries of nodes that are gone go
        world.let_time_pass(601)
        world.whole_pass(0)
    assert set(world.cluster.configmaps[first].data or {}) == {"a", "b"}
    world.cluster.edit(template=True)
    world.cluster.add_node("e")
    settle(world)
    assert (nodes_of(world, first), nodes_of(world, second)) == ({"a", "b", "e"}, {"c", "d"})
    assert created == dict.fromkeys("abcde", 1)


def test_a_run_that_the_other_recorded_in_a_later_shard_is_seen_though_an_earlier_one_has_room_now(
    world: SimWorld,
) -> None:
    two_shards(world)
    restart(world, 1)
    world.whole_pass(1)  # knows both shards; the first is full
    world.let_time_pass(601)
    world.cluster.add_node("e")
    settle(world)
    assert "e" in world.cluster.entries()
    created = counted(world)
    world.whole_pass(1, nodes=False)  # the entries of nodes that are gone go; it does not know of e yet
    assert not any(name.startswith("gone") for name in world.cluster.entries())
    world.whole_pass(1)
    world.whole_pass(1)
    assert not created
    assert not world.cluster.pods


@pytest.mark.parametrize("lost", [0, 1], ids=["the first", "the second"])
@pytest.mark.parametrize("decision", ["rerun", "assume-done"])
def test_one_of_two_shards_is_lost(world: SimWorld, decision: str, lost: int) -> None:
    both = two_shards(world)
    mine = nodes_of(world, both[lost])
    world.cluster.lose(both[lost])
    restart(world)
    created = counted(world)
    settle(world)
    assert told(world, c.STALLED)[:2] == ("True", "LedgerLost")
    assert (dict(created), shards(world)) == ({}, [both[1 - lost]])
    world.cluster.annotate(names.LEDGER_DECISION, decision)
    settle(world)
    assert created == (dict.fromkeys(mine, 1) if decision == "rerun" else {})
    assumed = {name for name, entry in world.cluster.entries().items() if entry.reason == "AssumedDone"}
    assert assumed == (mine if decision == "assume-done" else set())
    assert told(world, c.READY)[:2] == ("True", "Succeeded")
    world.cluster.annotate(names.LEDGER_DECISION, "")
    restart(world)
    settle(world)
    assert told(world, c.READY)[:2] == ("True", "Succeeded")
    assert sum(created.values()) == (2 if decision == "rerun" else 0)


def between_two_shard_writes(world: SimWorld) -> None:
    """A pass up to its second patch of the ledger, and no further."""
    one = world.act(0)
    one.catch_up()
    one.begin()
    seen: list[Call] = []
    while len(seen) < 2:
        assert one.client.calls, "the pass has ended"
        seen += [call for call in one.client.calls if is_shard_write(call) and call not in seen]
        if len(seen) < 2:
            one.answer()


def is_shard_write(call: Call) -> bool:
    return call.what.startswith("patch") and "/configmaps/" in call.what


@pytest.mark.parametrize("executed", [0, 1], ids=["not executed", "executed"])
def test_a_kill_between_the_two_shard_writes_of_one_pass_repeats_and_loses_nothing(
    world: SimWorld, executed: int
) -> None:
    two_shards(world)
    created = counted(world)
    world.cluster.edit(template=True)
    world.whole_pass(0)
    world.run_pods()
    before = world.cluster.entries()
    between_two_shard_writes(world)
    now = world.cluster.entries()
    assert {name for name in now if now[name] != before[name]} == {"a", "b"}
    world.act(0).crash(executed)
    world.act(0).start()
    settle(world)
    assert created == dict.fromkeys("abcd", 1)
    assert {world.cluster.entries()[name].seq for name in "abcd"} == {2}
    assert told(world, c.READY)[:2] == ("True", "Succeeded")


def test_a_kill_between_the_intents_of_two_shards_starts_nothing_that_is_not_on_record(make: Make) -> None:
    world = make(runGuarantee="AtMostOnce", backoffLimit=0, failurePolicy={"maxFailedNodes": 4})
    two_shards(world)
    created = counted(world)
    world.cluster.edit(template=True)
    between_two_shard_writes(world)
    world.act(0).crash(0)
    world.act(0).start()
    settle(world, 6)
    assert created == dict.fromkeys("cd", 1)
    entries = world.cluster.entries()
    assert {name: entries[name].reason for name in "ab"} == dict.fromkeys("ab", OUTCOME_UNKNOWN)
    assert {entries[name].result for name in "cd"} == {"Succeeded"}


def test_a_loss_that_is_found_right_after_a_write_is_decided_before_it_is_forgotten(world: SimWorld) -> None:
    """The ledger is written once in a while; status must not count the shards before that."""
    world.cluster.annotate(names.LEDGER_DECISION, "assume-done")  # left behind from an earlier time
    world.whole_pass(0)
    world.run_pods()
    world.let_time_pass(1)
    world.whole_pass(0)
    (name,) = shards(world)
    for pod in list(world.cluster.pods):
        world.cluster.drop_pod(pod)
    world.cluster.lose(name)
    created = counted(world)
    world.cluster.add_node("c")
    world.whole_pass(0)
    world.whole_pass(0)
    settle(world)
    assert not created


def test_a_decision_that_a_quota_keeps_from_being_written_is_not_forgotten(world: SimWorld) -> None:
    settle(world)
    (name,) = shards(world)
    world.cluster.lose(name)
    world.cluster.annotate(names.LEDGER_DECISION, "assume-done")
    restart(world)
    created = counted(world)
    one = world.act(0)
    one.begin()
    while not any(call.what.startswith("create") for call in one.client.calls):
        one.answer()
    one.refuse(0, 403)
    one.finish()
    assert told(world, c.READY)[1] == "LedgerWriteRefused"
    settle(world)
    assert not created
    assert {entry.reason for entry in world.cluster.entries().values()} == {"AssumedDone"}


# ---------------------------------------------------------------- shards that somebody had a hand in


@pytest.mark.parametrize("which", [0, 1], ids=["the first", "the second"])
def test_a_shard_that_lost_its_labels_is_found_at_a_start_and_gets_them_back(
    world: SimWorld, which: int
) -> None:
    both = two_shards(world)
    kept = world.cluster.entries()
    labels = dict(world.cluster.configmaps[both[which]].metadata.labels or {})
    world.cluster.take_labels(both[which])
    restart(world)
    created = counted(world)
    world.whole_pass(0)
    assert world.cluster.configmaps[both[which]].metadata.labels == labels
    settle(world)
    assert (dict(created), world.cluster.entries()) == ({}, kept)
    assert told(world, c.READY)[:2] == ("True", "Succeeded")


def test_a_shard_that_lost_its_labels_under_a_running_operator_takes_the_next_record(
    world: SimWorld,
) -> None:
    settle(world)
    (name,) = shards(world)
    created = counted(world)
    world.cluster.take_labels(name)
    world.cluster.add_node("c")
    settle(world, 6)
    assert created == {"c": 1}
    assert nodes_of(world, name) == {"a", "b", "c"}
    assert names.LABEL_LEDGER in (world.cluster.configmaps[name].metadata.labels or {})


def test_a_shard_without_labels_that_status_does_not_know_of_is_found(world: SimWorld) -> None:
    """Its operator was killed before it wrote the status."""
    one = world.act(0)
    world.whole_pass(0)
    world.run_pods()
    one.catch_up()
    one.begin()
    while not world.cluster.configmaps:
        one.answer()
    one.crash(0)
    (name,) = shards(world)
    assert not world.cluster.status.ledger.shards
    world.cluster.take_labels(name)
    for pod in list(world.cluster.pods):
        world.cluster.drop_pod(pod)
    one.start()
    created = counted(world)
    settle(world)
    assert not created
    assert told(world, c.READY)[:2] == ("True", "Succeeded")


def test_labels_that_cannot_be_given_back_are_told(world: SimWorld) -> None:
    """As by an admission policy that lets the operator touch nothing without them."""
    settle(world)
    (name,) = shards(world)
    world.cluster.take_labels(name)
    restart(world)
    one = world.act(0)
    one.begin()
    while not any(is_shard_write(call) for call in one.client.calls):
        one.answer()
    one.refuse(0, 403)
    one.finish()
    _, reason, message = told(world, c.READY)
    assert reason == "LedgerWriteRefused"
    assert name in message
    assert "labels" in message
    settle(world)
    assert told(world, c.READY)[:2] == ("True", "Succeeded")


@pytest.mark.parametrize("decision", ["", "rerun", "assume-done"])
def test_a_foreign_config_map_of_a_lost_shards_name_is_told_and_waited_for(
    world: SimWorld, decision: str
) -> None:
    settle(world)
    (name,) = shards(world)
    world.cluster.lose(name)
    world.cluster.take_name(name)
    restart(world)
    created = counted(world)
    if decision:
        world.cluster.annotate(names.LEDGER_DECISION, decision)
    settle(world)
    _, reason, message = told(world, c.DEGRADED)
    assert (reason, told(world, c.READY)[1]) == (
        "LedgerWriteRefused",
        "LedgerWriteRefused" if decision else "LedgerLost",
    )
    assert name in message
    assert "delete it" in message
    assert not created
    world.cluster.lose(name)
    settle(world)
    assert created == (dict.fromkeys("ab", 1) if decision == "rerun" else {})
    assert told(world, c.READY)[1] == ("Succeeded" if decision else "LedgerLost")
    assert not told(world, c.DEGRADED)[0]


@pytest.mark.parametrize("started", [False, True], ids=["before the first run", "while it runs"])
def test_a_foreign_config_map_of_the_first_shards_name_is_told_and_waited_for(
    make: Make, started: bool
) -> None:
    donor = make()
    settle(donor)
    (name,) = shards(donor)
    world = make()
    created = counted(world)
    if started:
        world.whole_pass(0)
    world.cluster.take_name(name)
    settle(world)
    assert sum(created.values()) == (2 if started else 0)
    _, reason, message = told(world, c.READY)
    assert reason == "LedgerWriteRefused"
    assert name in message
    world.cluster.lose(name)
    settle(world)
    assert created == dict.fromkeys("ab", 1)
    assert told(world, c.READY)[:2] == ("True", "Succeeded")


def test_a_foreign_config_map_of_the_name_of_a_shard_that_is_not_needed_is_in_nobodys_way(
    world: SimWorld,
) -> None:
    settle(world)
    (first,) = shards(world)
    world.cluster.take_name(f"{first[:-1]}1")
    world.cluster.add_node("c")
    settle(world)
    assert told(world, c.READY)[:2] == ("True", "Succeeded")
    assert nodes_of(world, first) == {"a", "b", "c"}


@pytest.mark.parametrize(("version", "told"), [("4711", 4711), ("opaque-4711", 0)])
def test_the_version_of_a_ledger_is_read_only_where_an_entry_is_broken(
    world: SimWorld, version: str, told: int
) -> None:
    settle(world)
    (shard,) = world.cluster.configmaps.values()
    meta = msgspec.structs.replace(shard.metadata, resource_version=version)
    read = Shards(world.operators[0].client, NAMESPACE, TASK, TASK_UID)  # type: ignore[arg-type]
    read.take([WireConfigMap(meta, shard.data)], 0)
    assert (set(read.ledger(LEDGER).entries), read.ledger(LEDGER).version) == ({"a", "b"}, 0)
    read.take([WireConfigMap(meta, {**(shard.data or {}), "a": "{"})], 0)
    assert (set(read.ledger(LEDGER).corrupt), read.ledger(LEDGER).version) == ({"a"}, told)
