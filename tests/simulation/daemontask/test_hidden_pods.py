"""Pods that neither an old view nor the ledger tells of: the API server is asked for them.

Operator 0 is up to date, operator 1 has an old view. The judge of world.py objects to a second live Pod.
"""

from typing import Any

import msgspec
import pytest

from caretaker.api import names
from caretaker.daemontask import pod_control
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN
from simulation.daemontask.cluster import newer
from simulation.daemontask.world import NODES, Make, SimWorld

ONCE: dict[str, Any] = {"runGuarantee": "AtMostOnce", "backoffLimit": 0}


def begin(world: SimWorld) -> list[str]:
    """The next template's Pods, on their nodes."""
    world.cluster.edit(template=True)
    for _ in range(2):
        world.let_time_pass(2)
        world.whole_pass(0)
    for name in world.live_pods():
        world.cluster.bind(name)
    assert len(world.live_pods()) == 2
    return world.live_pods()


def end(world: SimWorld) -> None:
    """They end, are recorded and deleted."""
    world.run_pods()
    for _ in range(3):
        world.let_time_pass(31)
        world.whole_pass(0)
    assert not world.cluster.pods


def break_entries(world: SimWorld) -> None:
    for node in NODES:
        world.cluster.corrupt(node)


@pytest.mark.parametrize("most", [2, 1], ids=["the nodes' Pods", "all of the task's Pods"])
def test_where_a_template_came_back_its_earlier_pod_does_not_tell(
    make: Make, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(pod_control, "MOST_NAMED", most)
    world = make(**ONCE)
    world.whole_pass(0)
    world.run_pods()
    late = world.operators[1]
    late.catch_up()
    end(world)
    begin(world)
    break_entries(world)
    world.cluster.edit(template=-1)
    world.whole_pass(1, pods=False)
    assert {entry.reason for entry in world.cluster.entries().values()} == {OUTCOME_UNKNOWN}
    assert len(world.live_pods()) == 2, "of the other template"
    world.run_pods()
    for _ in range(3):
        world.let_time_pass(2)
        world.whole_pass(1)
    assert [node.reason for node in world.cluster.status.failed_nodes] == [OUTCOME_UNKNOWN] * 2
    assert not world.live_pods()


@pytest.mark.parametrize("seen", [True, False], ids=["which shows the first", "which shows none"])
def test_at_least_once_a_broken_entry_starts_nothing_beside_a_pod_that_an_old_view_does_not_show(
    make: Make, seen: bool
) -> None:
    world = make()
    begin(world)
    world.run_pods()
    if seen:
        world.operators[1].catch_up()
    end(world)
    begin(world)
    end(world)
    before = begin(world)
    break_entries(world)
    for _ in range(4):
        world.whole_pass(1, pods=False)
        world.let_time_pass(2)
    assert world.live_pods() == before


@pytest.mark.parametrize("decision", ["rerun", "assume-done: a,b"])
@pytest.mark.parametrize("spec", [{}, ONCE], ids=["AtLeastOnce", "AtMostOnce"])
def test_nor_does_a_decision_about_a_lost_ledger(make: Make, spec: dict[str, Any], decision: str) -> None:
    world = make(**spec)
    begin(world)
    end(world)
    before = begin(world)
    for shard in list(world.cluster.configmaps):
        world.cluster.lose(shard)
    world.cluster.annotate(names.LEDGER_DECISION, decision)
    for template in (False, True, False, False):
        world.cluster.edit(template=template)
        world.whole_pass(1, pods=False)
        world.let_time_pass(40)
    assert world.live_pods() == before


@pytest.mark.parametrize("refused", [False, True], ids=["at once", "after a refusal"])
def test_no_other_node_starts_beside_a_pod_whose_creation_was_not_answered(make: Make, refused: bool) -> None:
    """Its view does not show the Pod, and the node that it was for goes behind the others."""
    world = make(parallelism=1)
    one = world.act(0)
    one.begin()
    while not world.cluster.pods:
        is_pod = one.client.calls[0].what == "create /api/v1/namespaces/default/pods"
        one.answer(0, lose_reply=is_pod)
    before = world.live_pods()
    for turn in range(3):
        world.let_time_pass(2)
        one.begin()
        if refused and turn == 0:
            one.refuse(0, 503)
        one.finish()
        assert world.live_pods() == before
    assert world.cluster.status.active == 1


def test_nor_does_a_run_that_was_given_up_while_its_pod_was_on_its_way(make: Make) -> None:
    """To an operator whose clock is set back an intent may seem to be of long ago."""
    world = make(**ONCE)
    slow = world.act(1)
    slow.begin()
    while not world.cluster.entries():
        slow.answer(0)
    world.set_clock(-90)
    world.whole_pass(0)
    assert all(entry.finished_at for entry in world.cluster.entries().values())
    world.act(1).finish()
    before = world.live_pods()
    assert len(before) == 2
    world.cluster.edit(template=True)
    for _ in range(3):
        world.whole_pass(0, pods=False)
        world.let_time_pass(2)
    assert world.live_pods() == before


def test_nor_is_a_run_assumed_done_whose_pod_an_old_view_does_not_show(make: Make) -> None:
    world = make()
    begin(world)
    end(world)
    begin(world)
    for shard in list(world.cluster.configmaps):
        world.cluster.lose(shard)
    world.cluster.annotate(names.LEDGER_DECISION, "assume-done: a,b")
    world.whole_pass(1, pods=False)
    assert world.cluster.entries() == {}
    assert world.cluster.status.active == 2


def test_a_pod_of_an_earlier_task_of_the_same_name_holds_no_node_up(make: Make) -> None:
    world = make(**ONCE)
    world.whole_pass(0)
    world.run_pods()
    for name in list(world.cluster.pods):
        theirs = world.cluster.drop_pod(name)
        owner = msgspec.structs.replace(theirs.metadata.owner_references[0], uid="earlier")
        meta = msgspec.structs.replace(theirs.metadata, name=f"{name}-x", uid=name, owner_references=[owner])
        theirs = newer(msgspec.structs.replace(theirs, metadata=meta), world.cluster.version)
        world.cluster.pods[meta.name] = theirs
    break_entries(world)
    world.act(0).crash(0)
    world.act(0).start()
    world.whole_pass(0)
    assert [node.reason for node in world.cluster.status.failed_nodes] == [OUTCOME_UNKNOWN] * 2
    world.let_time_pass(40)
    begin(world)
