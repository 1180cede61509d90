"""Fixtures of the whole suite; what needs a server starts it only when a test asks for one."""

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from testing import forks
from testing.examples import OTHERS, SEED, examples
from testing.sharing import pytest_addoption, pytest_runtestloop

__all__ = ["pytest_addoption", "pytest_runtestloop"]

gc.disable()  # until all is collected

# A shell that starts the suite in the background has it ignore SIGINT, and all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Of our tooling, of recipes, and with other projects' tools: a change of the operator seldom breaks them.
_TOOLING = {
    "awsdoubles",
    "chart",
    "gitops",
    "hoplab",
    "observability",
    "recipes",
    "test_apiproxy.py",
    "test_bench.py",
    "test_cronticks.py",
    "test_demo.py",
    "test_dist.py",
    "test_dist_images.py",
    "test_docs_commands.py",
    "test_iam_examples.py",
    "test_processes.py",
    "test_release_check.py",
    "test_stress.py",
    "test_testbed.py",
    "test_testbed_cluster.py",
}
_TOOLING_UNITS = {  # in tests/unit
    "awsdoubles",
    "docsite",
    "gotools",
    "hoplab",
    "matrix",
    "mutants",
    "realnode",
    "release",
    "testbed",
}
# Each file runs in one worker. The longest begin first, so that the workers end together. The others follow
# by folder, since an operator that a folder shares watches all namespaces and ends with its folder.
_LONGEST = (
    "test_dist_images.py",
    "test_docs_commands.py",
    "test_demo.py",
    "test_s3refresh_crash.py",
    "test_enforce.py",
    "test_s3refresh_replicas.py",
    "test_takeover.py",
    "test_drain.py",
    "test_lifecycle.py",
    "test_s3refresh_soak.py",
    "test_refresh_now.py",
    "test_wired_targets.py",
    "test_crash.py",
    "test_costs.py",
    "test_soak.py",
    "test_silent_watches.py",
)
_FOLDER = Path(__file__).parent
_WITH_SERVERS = {"integration", "e2e", "node"}

# Neither chance, earlier failures nor how busy the machine is decide what is tried: see testing/examples.py.
_base = settings.get_profile("ci")
settings.register_profile(
    "tried", _base, derandomize=not OTHERS, max_examples=examples(_base.max_examples, quick_percent=10)
)
settings.load_profile("tried")
# Nor which modules happen to be loaded: hypothesis has no setting that keeps it from their constants.
providers._get_local_constants = providers.Constants


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before hypothesis reads its options."""
    if OTHERS:
        config.option.hypothesis_seed = str(SEED)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Not to collect files that are left out spares `make unit` and each worker of `make integration` seconds
    of CPU."""
    return True if config.option.markexpr == "not slow" and _is_tooling(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before pytest selects by mark. pytest sorts the paths of a command line, so they give no order."""
    for item in items:
        if _is_tooling(item.path):
            item.add_marker(pytest.mark.slow)
    order = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def _is_tooling(path: Path) -> bool:
    top, *rest = path.relative_to(_FOLDER).parts or ("",)
    if top == "unit":
        return bool(rest) and rest[0] in _TOOLING_UNITS
    return top in ("integration", "e2e") and bool(rest) and rest[0] in _TOOLING


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> None:
    """Collects nothing."""
    if file_path.relative_to(_FOLDER).parts[0] in _WITH_SERVERS:
        parent.config.pluginmanager.import_plugin("testing.servers")


def pytest_report_header() -> str:
    """Told with every run."""
    return f"random tests: {f'MODEL_SEED={SEED}' if OTHERS else 'those of every run'}"


def pytest_collection_finish() -> None:
    """What has been imported and collected by now is never garbage: a tenth of the unit tests' time went into
    looking at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def forked_operators() -> Iterator[None]:
    """Operators are forked from a server that starts with the first one."""
    with forks.serving():
        yield
