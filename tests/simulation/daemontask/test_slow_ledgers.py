"""Ledgers of several shards whose writes take long: every node runs, once, or status says what is slow."""

from collections import Counter
from typing import Any

import pytest

from caretaker.api import conditions as c
from caretaker.api import names
from caretaker.daemontask import ledger
from simulation.daemontask.world import Make, SimWorld

pytestmark = pytest.mark.slow

ONCE: dict[str, Any] = {"runGuarantee": "AtMostOnce", "backoffLimit": 0}
LEAST: dict[str, Any] = {}
NODES = 12


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "SHARD_NODES", 2)


def many(make: Make, **spec: Any) -> SimWorld:
    """Six shards of two nodes."""
    world = make(**spec)
    for number in range(NODES - 2):
        world.cluster.add_node(f"n{number}")
    return world


def slow_pass(world: SimWorld, seconds: float) -> int:
    """A pass during which each write of the ledger takes that long; what takes longer than it may is not
    executed. Returns how many were not."""
    one, before = world.act(0), world.cluster.shard_writes
    one.catch_up()
    one.begin()
    sent = 0
    while one.busy:
        if any("/configmaps" in call.what and call.what[0] in "pc" for call in one.client.calls):
            sent += 1
            world.clock.now += seconds
            one.expire()
        one.answer()
    return sent - (world.cluster.shard_writes - before)


def rounds(world: SimWorld, seconds: float, count: int) -> int:
    """So many passes; returns how many writes of the ledger were in vain."""
    in_vain = 0
    for _ in range(count):
        in_vain += slow_pass(world, seconds)
        world.run_pods()
        world.let_time_pass(1)
    return in_vain


def counted(world: SimWorld) -> Counter[str]:
    created: Counter[str] = Counter()
    world.cluster.on_create.append(lambda pod: created.update([pod.annotations[names.POD_NODE_NAME]]))
    return created


@pytest.mark.parametrize("parallelism", [None, 3], ids=["all at once", "three at a time"])
@pytest.mark.parametrize("spec", [ONCE, LEAST], ids=["AtMostOnce", "AtLeastOnce"])
@pytest.mark.parametrize("seconds", [0.1, 1, 2, 3, 4.9, 7, 10])
def test_every_node_runs_once_however_long_the_ledger_takes(
    make: Make, seconds: float, spec: dict[str, Any], parallelism: int | None
) -> None:
    world = many(make, parallelism=parallelism, **spec)
    created = counted(world)
    in_vain = rounds(world, seconds, 40)
    assert world.cluster.status.succeeded == NODES
    world.cluster.edit(template=True)
    in_vain += rounds(world, seconds, 40)
    assert in_vain == (1 if seconds > 5 else 0), "once it is known to be slow, it is given the time"
    assert (world.cluster.status.succeeded, len(world.cluster.configmaps)) == (NODES, 6)
    assert created == dict.fromkeys(world.cluster.nodes, 2)


@pytest.mark.parametrize("spec", [ONCE, LEAST], ids=["AtMostOnce", "AtLeastOnce"])
def test_a_ledger_that_takes_too_long_is_named_and_the_rollout_goes_on_when_it_does_not(
    make: Make, spec: dict[str, Any]
) -> None:
    world = many(make, **spec)
    created = counted(world)
    rounds(world, 12, 12)
    ready, progressing = (c.find(world.cluster.status.conditions, kind) for kind in (c.READY, c.PROGRESSING))
    assert ready is not None
    assert progressing is not None
    assert (ready.reason, progressing.status) == ("LedgerWriteRefused", "False")
    assert "writes of the ledger in a row were not answered" in ready.message
    assert set(created) <= set(world.cluster.nodes)
    rounds(world, 1, 40)
    assert world.cluster.status.succeeded == NODES
    assert created == dict.fromkeys(world.cluster.nodes, 1)


@pytest.mark.parametrize("parallelism", [None, 5], ids=["intents alone", "with the records of other shards"])
def test_no_intent_is_older_than_its_patience_when_its_pod_is_sent(
    make: Make, parallelism: int | None
) -> None:
    """Another operator may give it up then, and somebody may ask for another run."""
    world = many(make, parallelism=parallelism, **ONCE)
    ages = []
    world.cluster.on_create.append(
        lambda pod: ages.append(
            world.clock.now - world.cluster.entries()[pod.annotations[names.POD_NODE_NAME]].started_at
        )
    )
    for seconds in (2, 4, 4.9, 6, 10):
        world.cluster.edit(template=True)
        rounds(world, seconds, 40)
    assert len(ages) == 5 * NODES
    assert max(ages) <= 25
