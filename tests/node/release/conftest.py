"""A release as it is published: from dist/ into a registry, signed, and from there into kind.

Inputs: RELEASE_DIST, what `make release` wrote, and PREVIOUS, the dist/ of the release before. Without it
this one stands in for it: its chart under an older version, with an annotation of Pods.
"""

import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pytest
import yaml

import chart
from realnode.kind import KindNode
from release import dist
from release.dist import Dist
from release.publish import Publisher
from release.registry import Distribution
from testing.release import Release

Say = Callable[[str], None]


@dataclass
class Figures:
    """What was measured: (what, value, the most that it may be, unit)."""

    rows: list[tuple[str, float, float | None, str]] = field(default_factory=list)

    def add(self, what: str, value: float, most: float | None = 0, unit: str = "") -> None:
        """One more; without `most` it is only told."""
        self.rows.append((what, value, most, unit))

    def missed(self) -> list[str]:
        """A line for each promise that was not kept."""
        return [
            f"{what}: {value:.3g}{unit}, must be {most:g}{unit} at most"
            for what, value, most, unit in self.rows
            if most is not None and value > most
        ]

    def table(self) -> Iterator[str]:
        """For a person."""
        yield f"{'':42}{'measured':>12}{'at most':>12}"
        for what, value, most, unit in self.rows:
            shown = f"{value:.1f}{unit}" if unit else f"{value:g}"
            limit = "" if most is None else f"{most:g}{unit}"
            yield f"{what:42}{shown:>12}{limit:>12}"


_FIGURES: Final = pytest.StashKey[Figures]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = Figures()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table, and what is missed."""
    found = config.stash[_FIGURES]
    if found.rows:
        terminalreporter.section("figures")
    for line in found.table() if found.rows else ():
        terminalreporter.write_line(line)
    for line in found.missed():
        terminalreporter.write_line(f"MISSED: {line}")


@pytest.fixture
def figures(pytestconfig: pytest.Config) -> Iterator[Figures]:
    """Of the run; a test fails when one that it adds is missed."""
    found = pytestconfig.stash[_FIGURES]
    before = found.missed()
    yield found
    assert found.missed() == before


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Say:
    """Tell whoever waits."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def tell(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n  {line} ", end="", flush=True)

    return tell


@pytest.fixture(scope="session")
def made() -> Dist:
    """The release."""
    return dist.read(Path(os.environ["RELEASE_DIST"]))


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory, made: Dist) -> Iterator[KindNode]:
    """A kind cluster whose nodes have none of our images."""
    assert made.digests
    with KindNode(tmp_path_factory.mktemp("node"), ours=False) as started:
        yield started


@pytest.fixture(scope="session")
def distribution(
    node: KindNode, made: Dist, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Distribution]:
    """A registry that the nodes ask in place of the one that the chart names."""
    server = Distribution(tmp_path_factory.mktemp("registry"))
    server.host = node.place.outside
    with server:
        node.pull_from(made.registry.partition("/")[0], server.url)
        yield server


@pytest.fixture(scope="session")
def publisher(made: Dist, distribution: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    """Of the release, with settings of its own."""
    host = distribution.url.removeprefix("http://")
    return Publisher(made, host, tmp_path_factory.mktemp("publisher"))


@pytest.fixture(scope="session")
def key(publisher: Publisher) -> Path:
    """What the release is signed with."""
    return publisher.key("throwaway")


@pytest.fixture(scope="session")
def published(publisher: Publisher, key: Path, say: Say) -> str:
    """Where the chart is, by digest."""
    say(f"published to {publisher.place}")
    return publisher.publish(key)


@pytest.fixture(scope="session")
def previous(
    publisher: Publisher,
    published: str,
    key: Path,
    node: KindNode,
    distribution: Distribution,
    tmp_path_factory: pytest.TempPathFactory,
    say: Say,
) -> Publisher:
    """Of the version before, which can be installed."""
    assert published
    host, work = distribution.url.removeprefix("http://"), tmp_path_factory.mktemp("previous")
    if given := os.environ.get("PREVIOUS"):
        before = Publisher(dist.read(Path(given)), host, work)
        node.pull_from(before.dist.registry.partition("/")[0], distribution.url)
        before.publish(key)
        return before
    older = replace(publisher.dist, version=f"{publisher.dist.version}-previous")
    say(f"no PREVIOUS: {older.version} is this release's chart with an annotation of Pods")
    before = Publisher(older, host, work)
    before.sign(key, before.push_chart(stand_in(publisher.dist, older.version, work)))
    return before


def stand_in(of: Dist, version: str, folder: Path) -> Path:
    """The chart under another version, and with other Pods."""
    with tarfile.open(of.chart) as archive:
        archive.extractall(folder, filter="data")
    about, values = (folder / "caretaker" / name for name in ("Chart.yaml", "values.yaml"))
    about.write_text(yaml.safe_dump({**yaml.safe_load(about.read_text()), "version": version}))
    set_before = values.read_text()
    values.write_text(set_before.replace("podAnnotations: {}", "podAnnotations: {previous: 'yes'}"))
    assert values.read_text() != set_before
    chart.helm("package", folder / "caretaker", "--destination", folder)
    return folder / f"caretaker-{version}.tgz"


def chart_of(publisher: Publisher) -> tuple[str, ...]:
    """What helm is told to install."""
    return publisher.charts, "--plain-http", "--version", publisher.dist.version


@pytest.fixture(scope="session")
def _release(_release: Release, previous: Publisher) -> Release:
    """Begins with the version before."""
    _release.chart = chart_of(previous)
    return _release
