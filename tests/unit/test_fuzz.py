"""A small part of `make fuzz`, and its findings as regression tests."""

import gc
import math
import os
import sys

import pytest
from hypothesis import HealthCheck, given, settings

from caretaker.kube.metadata import RECURSION_LIMIT
from fuzz.cost import CostlyError, judge, kept, seconds, usual
from fuzz.inputs import LARGEST, RECIPES, Recipe, Step, built, encoded, fitted, sweep, text
from fuzz.making import Subject
from fuzz.subjects import SUBJECTS

EXAMPLES = max(3 * int(os.environ.get("MODEL_PERCENT", "0")) // 10, 2)
# Inputs that failed before. The limit of CPU time is wider here, because the machine may be busy.
SEEDS = [
    pytest.param(
        "daemontask-spec",
        (Step(91, "items", "a", LARGEST),),
        id="a template of 1.5 MiB",
        marks=pytest.mark.slow,
    ),
    pytest.param("s3-key", (Step(0, "text", "a/", LARGEST),), id="a key of 512 folders"),
    pytest.param(
        "imds-plan",
        (Step(0, "drop"),),
        id="5,000 nodes, each with options that differ",
        marks=pytest.mark.slow,
    ),
    pytest.param("watch-line", (Step(0, "text", "a", 1),), id="a line that is no object"),
]


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """What earlier tests left is not searched for garbage by each call that is measured."""
    gc.collect()
    gc.freeze()


def tried(subject: Subject, recipe: Recipe, most: float) -> None:
    call, size = subject.inputs.make(recipe)
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION_LIMIT)
    try:
        judge(call, subject.typed, most, size, subject.base)
    finally:
        sys.setrecursionlimit(usual)


@pytest.mark.parametrize(("name", "recipe"), SEEDS)
def test_what_was_found_is_not_found_again(name: str, recipe: Recipe) -> None:
    """Where the subject has a base, in units of its CPU time of this moment: a busy machine slows both."""
    base = SUBJECTS[name].base
    unit = SUBJECTS[name].seconds if base is None else max(SUBJECTS[name].seconds, usual(base))
    tried(SUBJECTS[name], recipe, 4 * unit)


@pytest.mark.parametrize("name", SUBJECTS)
def test_nothing_that_others_write_raises_what_nobody_expects_or_stays(name: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(RECIPES)
    def attempt(recipe: Recipe) -> None:
        tried(SUBJECTS[name], recipe, math.inf)

    attempt()


def test_a_recipe_makes_a_sample_large_deep_odd_or_wrong() -> None:
    sample = {"a": [{"b": "c"}], "d": {"e": 1}}  # places: all, a, a[0], a[0].b, d, d.e

    def made(*steps: Step, limit: int = 100) -> bytes:
        return encoded(built((sample,), steps, limit))

    assert made(Step(3, "text", "xy", 5)) == b'{"a":[{"b":"xyxy"}],"d":{"e":1}}'
    assert made(Step(1, "items", size=30)) == b'{"a":[{"b":"c0"}],"d":{"e":1}}'
    assert made(Step(4, "keys", "k", 30)) == b'{"a":[{"b":"c"}],"d":{"k0":1,"k1":1,"k2":1}}'
    assert made(Step(5, "nest", "a", 3)) == b'{"a":[{"b":"c"}],"d":{"e":[[[1]]]}}'
    assert made(Step(2, "drop"), Step(4, "other", size=1)) == b'{"a":[],"d":{"e":1}}'
    assert made(Step(4, "other", size=1)) == b'{"a":[{"b":"c"}],"d":true}'
    assert len(made(Step(1, "items", size=LARGEST), limit=10_000)) in range(5_000, 10_000)
    twice = (Step(1, "keys", size=LARGEST), Step(3, "items", size=LARGEST))
    assert len(made(*twice, limit=10_000)) < 11_000
    assert len(text((Step(0, "text", "é", LARGEST),) * 2, 1000).encode()) in range(990, 1001)
    assert {step.how for (step,) in sweep(1)} == {"items", "keys", "text", "nest", "drop", "other"}


def test_an_input_keeps_the_bounds_of_its_crd() -> None:
    bounds = {
        "properties": {"a": {"maxItems": 1, "items": {"maxLength": 2}}},
        "additionalProperties": {"maxLength": 1},
        "maxProperties": 2,
    }
    assert fitted({"a": ["xyz", "x"], "b": "xyz", "c": 1}, bounds) == {"a": ["xy"], "b": "x"}


def test_a_call_that_takes_long_or_keeps_much_or_raises_something_else_is_told() -> None:
    left: list[bytes] = []

    def keeps() -> None:
        left.append(bytes(3 << 20))

    def fails() -> None:
        raise ValueError("x")

    assert kept(keeps) >= 3 << 20
    assert kept(lambda: bytes(3 << 20)) < 1 << 20
    assert seconds(lambda: sum(range(100_000))) > 0
    with pytest.raises(CostlyError, match="stay"):
        judge(keeps, (), math.inf, 1 << 20)
    with pytest.raises(CostlyError, match="CPU"):
        judge(lambda: sum(range(100_000)), (), 0.0, 1)
    with pytest.raises(ValueError, match="x"):
        judge(fails, (KeyError,), math.inf, 1)
    judge(fails, (ValueError,), math.inf, 1)
