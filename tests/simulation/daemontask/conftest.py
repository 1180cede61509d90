"""A simulated world, and a ledger with its API server."""

from collections.abc import Iterator
from typing import Any

import pytest

from caretaker.daemontask.shards import Shards
from simulation.daemontask.cluster import NAMESPACE, TASK, TASK_UID, SimCluster
from simulation.daemontask.ledger import Server
from simulation.daemontask.world import Make, SimWorld, virtual_time
from unit.daemontask.conftest import fresh_schedules

__all__ = ["fresh_schedules"]


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
