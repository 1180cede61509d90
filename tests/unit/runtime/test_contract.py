"""Every kind keeps the contract of runtime.controller.Kind: the same methods, with the same parameters."""

import inspect
import typing
from collections.abc import Callable
from typing import Any

import pytest

from caretaker.app import WIRINGS
from caretaker.aws.calls import Aws
from caretaker.daemontask.controller import DaemonTaskKind
from caretaker.daemontask.ecs.controller import EcsTarget
from caretaker.daemontask.wiring import Targets
from caretaker.kube.client import KubeClient
from caretaker.kube.store import Store
from caretaker.obs.metrics import Metrics, create_metrics
from caretaker.runtime.controller import Kind
from caretaker.runtime.wiring import Context
from caretaker.runtime.work_queue import WorkQueue
from caretaker.settings import Settings

METHODS = {
    name: method for name, method in vars(Kind).items() if inspect.isfunction(method) and name[0] != "_"
}
STEPS = ["plan", "recheck", "before", "subject", "status", "observe", "after", "events", "requeue"]
LIFE = ["path", "admit", "gather", "target", "forget", "quiesce", "stop"]
EITHER = "forget"  # a coroutine or not: the loop awaits what it returns
# What each kind's factory makes, and the two targets behind DaemonTask's.
CLASSES: list[type] = [typing.get_type_hints(wiring.make)["return"] for wiring in WIRINGS.values()]
TARGETS: list[type] = [DaemonTaskKind, EcsTarget]
# Targets has read the task, and gives it to the target that it belongs to.
GIVEN = {(DaemonTaskKind, "gather"), (EcsTarget, "gather")}


def parameters(method: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(method).parameters)


def test_the_contract_has_the_steps_of_a_pass_and_the_life_of_a_kind() -> None:
    assert sorted(METHODS) == sorted(STEPS + LIFE)


@pytest.mark.parametrize("made", CLASSES + TARGETS, ids=lambda made: made.__name__)
@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_kind_takes_and_awaits_what_the_contract_says(made: type, name: str) -> None:
    own, contract = getattr(made, name), METHODS[name]
    assert name == EITHER or inspect.iscoroutinefunction(own) == inspect.iscoroutinefunction(contract)
    if (made, name) in GIVEN:
        assert parameters(own)[:2] == parameters(contract)
    else:
        assert parameters(own) == parameters(contract)


@pytest.mark.parametrize("made", CLASSES, ids=lambda made: made.__name__)
def test_a_kind_is_a_subclass_of_the_contract(made: type) -> None:
    """mypy then compares the types of each method with the contract's."""
    assert Kind in made.__mro__


@pytest.mark.parametrize("name", sorted({*LIFE} - {"path"}))
def test_targets_calls_what_the_loop_does_not_call_on_a_target(name: str) -> None:
    """The loop asks target() for the steps: all else of the ECS target would be left out."""
    assert name in vars(Targets) or name not in vars(EcsTarget)


def test_kinds_that_watch_one_resource_declare_the_same_watch() -> None:
    """They share its Store, so that neither may ask for fewer items."""
    watches = [watch for wiring in WIRINGS.values() for watch in wiring.watches]
    assert {watch.resource: watch for watch in watches} == {
        watch.resource: watch for watch in reversed(watches)
    }


def series_of(name: str, metrics: Metrics) -> list[str]:
    """The metrics with a series of this resource."""
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    return sorted({sample.name for sample in samples if sample.labels.get("name") == name})


@pytest.mark.parametrize("kind", WIRINGS)
async def test_a_kind_that_stops_shows_no_resource(kind: str) -> None:
    metrics, wiring = create_metrics("1"), WIRINGS[kind]
    series = metrics.registry._names_to_collectors
    shared = set(series.values())
    made = wiring.make(
        Context(
            client=KubeClient.__new__(KubeClient),  # nothing is asked
            aws=Aws(),
            stores={watch.resource: Store() for watch in wiring.watches},
            queue=WorkQueue(),
            metrics=metrics,
            settings=Settings(identity="a"),
            unseen=lambda: None,
        )
    )
    for gauge in set(series.values()) - shared:
        if "name" in (labels := getattr(gauge, "_labelnames", ())):
            gauge.labels(*("r" for _ in labels)).set(1)
    assert series_of("r", metrics) != []
    await made.stop()
    assert series_of("r", metrics) == [], "clear() of metrics.py of the kind, by stop() of its controller"
