"""The operators of tests have shorter waits, of the kinds that tests/testing/waits.py lists."""

import ast
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import caretaker
from caretaker.api.ecs import EcsAws, EcsEvents, EcsSpec
from testing import waits

ASSIGNED = ast.AnnAssign | ast.Assign


def modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(caretaker.__path__, "caretaker.")
    return [importlib.import_module(one.name) for one in found if one.name != "caretaker.__main__"]


@pytest.fixture
def every() -> Iterator[list[ModuleType]]:
    """All modules, which are as before once the test has ended."""
    found = modules()
    before = [dict(vars(one)) for one in found]
    yield found
    for module, names in zip(found, before, strict=True):
        vars(module).update(names)


def test_every_wait_is_shorter_wherever_it_is_imported(every: list[ModuleType]) -> None:
    listed = [(home, name) for home, names in waits.WAITS.items() for name in names]
    before: dict[tuple[str, str], Any] = {one: getattr(sys.modules[one[0]], one[1]) for one in listed}
    users = {
        one: [
            m for m in every if vars(m).get(one[1]) is value and one[1] not in waits.WAITS.get(m.__name__, ())
        ]
        for one, value in before.items()
    }
    waits.shorten(0.5, lease=True)
    for (home, name), value in before.items():
        least = waits.AT_LEAST.get((home, name), 0.0)
        shorter = tuple(one / 2 for one in value) if isinstance(value, tuple) else max(value / 2, least)
        assert getattr(sys.modules[home], name) == shorter
        assert [getattr(one, name) for one in users[home, name]] == [shorter] * len(users[home, name])
    assert any(users.values())


def test_specs_rates_and_the_lease_have_shorter_times(every: list[ModuleType]) -> None:
    waits.shorten(0.1, lease=True)
    spec = EcsSpec(EcsAws("eu-west-1"), "agent", EcsEvents("queue"), resync_seconds=300)
    modules = {one.__name__.removeprefix("caretaker."): one for one in every}
    assert modules["daemontask.ecs.worker"].resync_of(spec) == 30
    assert modules["imds.resource"].seconds_of("resyncInterval", "10m") == 60
    assert modules["s3refresh.resource"].seconds_of("debounce.minInterval", "1m") == 6
    assert modules["s3refresh.resource"].seconds_of("debounce.quietPeriod", "1m") == 60, "not listed"
    assert modules["s3refresh.resource"].DebounceOptions().claim_lost == 12
    per_minute = modules["imds.instance_modifier"].cap(60)
    assert (per_minute.per_second, per_minute.burst) == pytest.approx((9.5, 3))
    times = modules["runtime.lease"].LeaseTimes()
    assert (times.duration, times.renew_deadline, times.retry) == (6, 4, 0.8), "no shorter than by 0.4"
    options = modules["app"].Options()
    assert options.connect_seconds + options.read_seconds < times.renew_deadline + 1e-9
    assert times.renew_deadline > modules["kube.transport"].WRITE_SECONDS


def test_no_lease_no_shorter_writes(every: list[ModuleType]) -> None:
    transport = importlib.import_module("caretaker.kube.transport")
    before = transport.WRITE_SECONDS
    waits.shorten(0.1, lease=False)
    assert before == transport.WRITE_SECONDS


def test_every_field_is_read_by_its_module() -> None:
    for home, fields in waits.FIELDS.items():
        source = inspect.getsource(importlib.import_module(home))
        for field in fields:
            prefix, _, name = field.rpartition(".")
            whole = f'seconds_of("{field}"' in source
            assert whole or (f'"{prefix}"' in source and f'seconds_of(f"{{field}}.{name}"' in source), field


def test_listed_constants_are_read_when_they_are_used() -> None:
    """A default, a class attribute, another constant or another name would have the time of before."""
    tables = [*waits.WAITS.items(), *waits.LEASE.items()]
    every, listed = modules(), {name for _, names in tables for name in names}
    values = {id(getattr(sys.modules[home], name)): name for home, names in tables for name in names}
    for module in every:
        homes = {name for name, value in vars(module).items() if values.get(id(value)) == name}
        if not any(id(value) in values for value in vars(module).values()):
            continue
        tree = ast.parse(Path(str(module.__file__)).read_text())
        names = [name for one in tree.body if isinstance(one, ASSIGNED) for name in _read(one)]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                defaults = [*node.args.defaults, *node.args.kw_defaults]
                names += [name for one in defaults if one is not None for name in _read(one)]
            elif isinstance(node, ast.ClassDef):
                names += [name for one in node.body if isinstance(one, ASSIGNED) for name in _read(one)]
            elif isinstance(node, ast.ImportFrom):
                assert not [one for one in node.names if one.asname and one.name in listed], module.__name__
        assert not homes & set(names), module.__name__


def _read(tree: ast.AST) -> list[str]:
    """Names that are read."""
    return [one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)]


def test_a_constant_that_is_gone_is_an_error(
    every: list[ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "WAITS", {"caretaker.runtime.work_queue": ("BACKOFF_BASE", "NO_SUCH")})
    with pytest.raises(AttributeError, match="NO_SUCH"):
        waits.shorten(0.5, lease=False)
