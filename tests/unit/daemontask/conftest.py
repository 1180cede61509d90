"""A simulated world for the tests of what operators do in one."""

from collections.abc import Iterator
from typing import Any

import pytest

from caretaker.daemontask import cron_calendar
from caretaker.daemontask.shards import Shards
from unit.daemontask.simcluster import NAMESPACE, TASK, TASK_UID, SimCluster
from unit.daemontask.simledger import Server
from unit.daemontask.simworld import Make, SimWorld, virtual_time


@pytest.fixture(scope="session", autouse=True)
def fresh_schedules() -> None:
    """Collection, too, reads some: tests must not be answered from what was read then, by other code perhaps
    (`make mutants` forks)."""
    cron_calendar.read.cache_clear()
    cron_calendar.read_zone.cache_clear()


@pytest.fixture
def make() -> Iterator[Make]:
    """A world of a task with such a spec."""
    made: list[SimWorld] = []
    with virtual_time() as clock:

        def one(**spec: Any) -> SimWorld:
            made.append(SimWorld(clock, **spec))
            return made[-1]

        yield one
        for world in made:
            world.close()


@pytest.fixture
def server() -> Iterator[Server]:
    """An API server that keeps what a ledger asks of it."""
    with virtual_time() as clock:
        yield Server(SimCluster(clock))


@pytest.fixture
def shards(server: Server) -> Shards:
    """A ledger that nothing is known of yet."""
    return Shards(server, NAMESPACE, TASK, TASK_UID)  # type: ignore[arg-type]
