"""Which changes of a Pod bring a pass of its task."""

import time
from copy import copy
from itertools import count
from typing import Any

import pytest

from caretaker.api.objects import Node, Pod
from caretaker.daemontask.bulk import FREE
from caretaker.daemontask.node_eligibility import COSTLY, EligibilityRules
from caretaker.daemontask.task_state import SpecCache
from caretaker.daemontask.watch_handlers import SLOW, WatchHandlers
from caretaker.kube.store import Store
from caretaker.runtime.work_queue import Key
from fuzz.cost import seconds
from unit.daemontask.build import UID, node, pod, succeeded

A = node("a")
KEY = Key("DaemonTask", "default", "task")


@pytest.mark.parametrize(("served", "passes"), [("", 1), ("default", 1), ("other", 0)])
def test_a_mark_brings_a_pass_of_its_task_where_its_namespace_is_served(served: str, passes: int) -> None:
    nodes, keys = Store[Node](), list[Key]()
    WatchHandlers(nodes, Store[Pod](), lambda key, **_: keys.append(key), namespace=served)
    marked = f"default/task/{UID}/2026-01-01T00:00:00Z"
    nodes.observe_write(node("a", unschedulable=True, cordon=marked), 1)
    nodes.observe_write(node("a", unschedulable=True, cordon=marked, boot_id="another"), 2)
    assert keys == [KEY] * passes


@pytest.mark.parametrize("ended", [True, False])
def test_the_end_of_a_pod_brings_a_pass_of_a_task_that_is_gone_and_has_its_node_cordoned(ended: bool) -> None:
    nodes, pods, keys = Store[Node](), Store[Pod](), list[Key]()
    WatchHandlers(nodes, pods, lambda key, **_: keys.append(key))
    nodes.observe_write(node("a", unschedulable=True, cordon=f"default/task/{UID}/2026-01-01T00:00:00Z"), 1)
    keys.clear()
    of = node("a")
    pods.observe_write(succeeded(of) if ended else pod(of), 1)
    assert keys == [KEY] * ended


@pytest.mark.parametrize(
    ("age", "unplaced", "passes"),
    [
        pytest.param(0.0, False, 0, id="nothing changes for one in time: a rollout has thousands"),
        pytest.param(
            SLOW + 1, False, 2, id="one that took long may be called late, until it is placed and runs"
        ),
        pytest.param(0.0, True, 2, id="so may the node whose last Pod was given up unplaced"),
    ],
)
def test_being_placed_and_beginning_to_run(age: float, unplaced: bool, passes: int) -> None:
    pods, keys = Store[Pod](), list[Key]()
    handlers = WatchHandlers(Store[Node](), pods, lambda key, **_: keys.append(key))
    handlers.task_states.of(KEY, UID).order.unplaced = frozenset({A.uid} if unplaced else ())
    created = time.time() - age
    pods.apply(pod(A, phase="Pending", node_name="", created=created), 5)
    keys.clear()
    pods.apply(pod(A, phase="Pending", created=created), 6)
    pods.apply(pod(A, phase="Running", created=created), 7)
    assert keys == [KEY] * passes


def test_a_node_is_not_held_against_thousands_of_terms_by_an_event() -> None:
    """An event may concern 5,000 nodes; the pass computes the eligibility of all, and yields in between."""
    terms = [{"matchExpressions": [{"key": f"k{n}", "operator": "Exists"}]} for n in range(COSTLY + 1)]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    nodes, keys = Store[Node](), list[tuple[Key, dict[str, bool]]]()
    handlers = WatchHandlers(nodes, Store[Pod](), lambda key, **how: keys.append((key, how)))
    rules = EligibilityRules({"spec": {"affinity": {"nodeAffinity": required}}})
    handlers.task_states.of(KEY, UID).spec = SpecCache(revision="r", rules=rules)
    nodes.apply(A, 5)
    nodes.apply(node("a", labels={"k1": ""}), 6)
    assert keys == [(KEY, {"urgent": False, "patient": False})] * 2
    assert not rules._memo


@pytest.mark.parametrize(
    "terms",
    [
        pytest.param([{}] * 80_000, id="empty terms"),
        pytest.param([{"matchFields": [{}]}] * 12_000, id="terms of an empty requirement"),
        pytest.param([{"matchExpressions": [{}] * 80_000}], id="empty requirements"),
        pytest.param(
            [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}] * (COSTLY // 2), id="just not costly"
        ),
    ],
)
def test_a_change_of_a_node_costs_many_tasks_no_more_than_a_turn_of_the_loop(terms: list[Any]) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    rules = EligibilityRules({"spec": {"affinity": {"nodeAffinity": required}}})
    nodes, versions = Store[Node](), count(5)
    task_states = WatchHandlers(nodes, Store[Pod](), lambda *_, **__: None).task_states
    for number in range(100):
        state = task_states.of(Key(KEY.kind, KEY.namespace, str(number)), str(number))
        state.spec = SpecCache(revision="r", rules=copy(rules))
        state.spec.rules._memo = {}

    def change() -> None:
        version = next(versions)
        nodes.apply(node("a", labels={"version": str(version)}), version)

    assert seconds(change, 0.1) <= 0.1, "CPU; one task with empty terms took 20 ms"


@pytest.mark.parametrize(
    ("size", "how"),
    [(FREE, {"urgent": True, "patient": False}), (FREE + 1, {"urgent": False, "patient": True})],
    ids=["at once", "a large task after the others"],
)
def test_a_node_that_joins_is_looked_at(size: int, how: dict[str, bool]) -> None:
    nodes, keys = Store[Node](), list[tuple[Key, dict[str, bool]]]()
    task_states = WatchHandlers(nodes, Store[Pod](), lambda key, **how: keys.append((key, how))).task_states
    task_states.of(KEY, UID).spec = SpecCache(revision="r", rules=EligibilityRules({"spec": {}}))
    task_states.pass_turn(KEY).read(size, 0.0)  # its annotations count, too
    nodes.apply(A, 5)
    assert keys == [(KEY, how)]
